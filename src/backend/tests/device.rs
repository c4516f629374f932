//! The loop device of an image.

use nix::errno::Errno;

use super::super::device;
use super::*;
use crate::kernel::AttachOptions;

fn block() -> Machine {
    Machine::new(Content::Block)
}

fn attach(machine: &Machine) -> Result<()> {
    device::attach(machine.place(), &machine.uses(), false, false).map(drop)
}

#[test]
fn a_device_open_for_others_is_unavailable() {
    let machine = block();
    attach(&machine).unwrap();
    let device = machine.uses().loops.remove(0);
    let alone = |done: std::io::Result<()>| device::alone(done, machine.place(), &device, String::new);
    alone(Ok(())).unwrap();
    let open = alone(Err(Errno::EBUSY.into())).unwrap_err();
    assert!(matches!(&open, Error::Unavailable(text) if text.contains("/dev/loop0")), "{open}");
    assert_errno(alone(Err(Errno::EIO.into())), Errno::EIO);
}

#[test]
fn a_held_device_is_refused_with_who_has_it_open() {
    let machine = block();
    machine.kernel.attach_foreign(machine.image(), true).unwrap();
    let uses = machine.uses();
    assert_in_use(machine.stage(), "because a program that the driver does not see has it open; end that");
    let open = machine.os.loops.open(&uses.loops[0]).unwrap();
    assert_in_use(machine.stage(), "(read-only) from an earlier use, because process 1 (fake) has it open");
    let why = || why_attached(&machine.os, &uses, false);
    assert_eq!(why(), "; process 1 (fake) has it open");
    let why = machine.failing("read", Errno::EACCES, why);
    assert!(why.contains("looking for it failed") && why.contains("EACCES"), "{why}");
    drop(open);
}

#[test]
fn a_full_disk_lets_an_unprepared_image_be_attached() {
    let machine = block();
    assert_errno(machine.failing("write_in_place", Errno::EIO, || attach(&machine)), Errno::EIO);
    assert_eq!(machine.kernel.loops(), []);
    machine.failing("write_in_place", Errno::ENOSPC, || attach(&machine)).unwrap();
    assert_eq!(machine.kernel.loops().len(), 1);
}

#[test]
fn direct_io_is_a_wish_and_the_page_cache_is_not() {
    let mut machine = block();
    machine.volume.parameters.direct_io = true;
    let options = AttachOptions {
        read_only: false,
        autoclear: false,
        direct_io: false,
        block_size: 512,
        discard: true,
    };
    drop(machine.os.loops.attach(&machine.image(), options).unwrap());
    let conform = |machine: &Machine| {
        let uses = machine.uses();
        device::conform(machine.place(), &uses.loops[0], &uses)
    };
    machine.failing("set_direct_io", Errno::EINVAL, || conform(&machine)).unwrap();
    assert_errno(machine.failing("set_direct_io", Errno::EIO, || conform(&machine)), Errno::EIO);
    conform(&machine).unwrap();
    assert!(machine.kernel.loops()[0].direct_io);
    machine.volume.parameters.direct_io = false;
    assert_errno(machine.failing("set_direct_io", Errno::EINVAL, || conform(&machine)), Errno::EINVAL);
}

#[test]
fn the_block_size_of_a_device_in_use_stays() {
    let mut machine = Machine::formatted(FsType::Ext4);
    machine.volume.block_size = 4096;
    machine.kernel.watch_looks(true);
    machine.finish_stage().unwrap();
    let asked = machine.kernel.looks().iter().any(|look| look.name == "block_size");
    assert!(!asked, "a filesystem is mounted on it");
}

#[test]
fn a_staging_that_was_cut_off_takes_the_images_size() {
    let machine = block();
    attach(&machine).unwrap();
    machine.os.images.set_size(&machine.image(), 2 * BYTES).unwrap();
    machine.finish_stage().unwrap();
    assert_eq!(machine.os.loops.size(&machine.kernel.loops()[0]).unwrap(), 2 * BYTES);
}
