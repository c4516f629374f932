//! Images, and what a tree answers in their place.

use nix::errno::Errno;

use super::*;
use crate::model::Provisioning;

fn block() -> Machine {
    Machine::new(Content::Block)
}

fn cut_off(machine: &Machine) {
    machine.os.images.set_size(&machine.image(), BYTES - 4096).unwrap();
}

#[test]
fn bytes_to_copy_are_the_data_wherever_they_lie() {
    let machine = block();
    let bytes = machine.paths.bytes();
    let to_copy = || bytes.to_copy(&machine.os, &machine.paths).unwrap();
    assert_eq!(to_copy(), 0);
    for at in [1 << 20, 5 << 20] {
        machine.os.images.write_at(&machine.image(), at, &[7; 1 << 20]).unwrap();
    }
    assert_eq!(to_copy(), 2 << 20);
}

#[test]
fn allocated_bytes_are_those_written_or_all() {
    let mut machine = block();
    let allocated = |machine: &Machine| machine.paths.bytes().allocated(&machine.os, &machine.paths).unwrap();
    assert_eq!(allocated(&machine), 0);
    machine.os.images.write_at(&machine.image(), 0, &[7; 1 << 20]).unwrap();
    assert_eq!(allocated(&machine), 1 << 20);
    machine.kernel.remove_file(machine.image()).unwrap();
    assert_eq!(allocated(&machine), 0, "it is gone");
    machine = Machine::empty(Content::Block);
    machine.volume.parameters.provisioning = Provisioning::Thick;
    machine.paths.bytes().create(machine.place(), b"").unwrap();
    assert_eq!(allocated(&machine), BYTES);
}

/// So nothing of it is taken for whole.
#[test]
fn a_tree_without_room_for_a_mark_loses_its_name() {
    let machine = Machine::new(Content::Directory);
    let begin = || begin_deletion(&machine.os, &machine.paths);
    assert_errno(machine.failing("create_file", Errno::EIO, begin), Errno::EIO);
    assert!(machine.kernel.exists(machine.image()));
    machine.failing("create_file", Errno::ENOSPC, begin).unwrap();
    assert!(!machine.kernel.exists(machine.image()));
    assert!(Mark::Deleting.is_set(&machine.os, &machine.paths).unwrap());
}

#[test]
fn a_truncated_image_is_not_served_or_lengthened() {
    let machine = block();
    let expect =
        |bytes| machine.paths.bytes().expect_whole(&machine.os, &machine.paths, bytes, &"the volume");
    expect(BYTES).unwrap();
    expect(BYTES - 1).unwrap();
    assert_in_use(expect(BYTES + 1), "it was truncated");
    cut_off(&machine);
    assert_in_use(machine.paths.bytes().grow(machine.place(), 2 * BYTES), "it was truncated");
    assert_in_use(machine.stage(), "it was truncated");
    assert_in_use(machine.paths.bytes().recover(machine.place()), "it was truncated");
    assert_eq!(machine.size_of_image(), BYTES - 4096);
}

#[test]
fn a_failed_growth_is_taken_back_if_nobody_has_it() {
    for step in ["set_size", "sync_file"] {
        let machine = block();
        let grown = || machine.paths.bytes().grow(machine.place(), 2 * BYTES);
        assert_errno(machine.failing(step, Errno::EIO, grown), Errno::EIO);
        assert_eq!(machine.size_of_image(), BYTES, "{step}");
    }
    let mut machine = block();
    let bytes = machine.paths.bytes();
    assert_eq!(bytes.grow(machine.place(), 3 * BYTES).unwrap(), BYTES);
    bytes.ungrow(machine.place(), 2 * BYTES).unwrap();
    assert_eq!(machine.size_of_image(), 2 * BYTES, "what it had before");
    machine.volume.capacity_bytes = 3 * BYTES;
    bytes.ungrow(machine.place(), BYTES).unwrap();
    assert_eq!(machine.size_of_image(), 2 * BYTES, "it never gets longer");
    machine.volume.capacity_bytes = BYTES;
    let device = machine.kernel.attach_foreign(machine.image(), false).unwrap();
    bytes.ungrow(machine.place(), BYTES).unwrap();
    assert_eq!(machine.size_of_image(), 2 * BYTES, "a device has taken it on");
    machine.kernel.detach_foreign(device.number);
    bytes.ungrow(machine.place(), BYTES).unwrap();
    assert_eq!(machine.size_of_image(), BYTES);
}

#[test]
fn a_size_that_a_filesystem_has_is_not_taken_back() {
    let mut machine = Machine::formatted(FsType::Ext4);
    machine.unstage().unwrap();
    machine.paths.bytes().grow(machine.place(), 2 * BYTES).unwrap();
    machine.volume.capacity_bytes = BYTES / 2;
    machine.paths.bytes().ungrow(machine.place(), BYTES / 2).unwrap();
    assert_eq!(machine.size_of_image(), BYTES);
}

#[test]
fn a_start_prepares_an_image_that_was_copied_here() {
    let machine = Machine::empty(Content::Block);
    machine.kernel.create_directories(&machine.paths.directory);
    machine.os.files.create_file(&machine.image()).unwrap();
    machine.os.images.set_size(&machine.image(), BYTES).unwrap();
    machine.kernel.clear_steps();
    assert_eq!(machine.paths.bytes().recover(machine.place()).unwrap(), None);
    let steps = machine.kernel.steps();
    assert!(steps.iter().any(|step| step.name == "write_in_place"), "{steps:?}");
    machine.os.images.set_size(&machine.image(), 2 * BYTES).unwrap();
    assert_eq!(machine.paths.bytes().recover(machine.place()).unwrap(), Some(2 * BYTES));
}

#[test]
fn no_tool_is_at_work_where_none_is() {
    for content in [Content::Block, Content::Directory] {
        let machine = Machine::new(content);
        assert_eq!(machine.paths.bytes().tool_at_work(&machine.os, &machine.paths), None);
    }
}

#[test]
fn a_copy_that_fails_names_what_is_copied_where() {
    let machine = block();
    machine.os.images.write_at(&machine.image(), 0, b"data").unwrap();
    let to = VolumePaths::new(Path::new("/pool/copy"), &machine.volume.id, BackendKind::Loop);
    for directory in [&to.parent, &to.directory] {
        machine.kernel.create_directories(directory);
    }
    for (share, step) in [(Share::Whole, "reflink"), (Share::Nothing, "copy_range")] {
        let copy = Copy { os: &machine.os, from: &machine.paths, to: &to, share };
        machine.paths.bytes().prepare(&machine.os, &to).unwrap();
        let error = machine.failing(step, Errno::EIO, || copy.run(&mut |_| Ok(()))).unwrap_err();
        let words = format!("{} from {}", to.directory.display(), machine.paths.directory.display());
        assert!(error.to_string().contains(&words), "{error}");
        machine.kernel.remove_file(to.data()).unwrap();
    }
}

#[test]
fn an_image_is_shared_in_one_step_and_a_tree_is_not() {
    for (content, is_whole) in [(Content::Block, true), (Content::Directory, false)] {
        assert_eq!(Machine::new(content).paths.bytes().shares_whole(), is_whole);
    }
}

#[test]
fn the_loss_of_a_tree_is_told() {
    let machine = Machine::new(Content::Directory);
    let bytes = machine.paths.bytes();
    assert_eq!(bytes.recover(machine.place()).unwrap(), None);
    machine.os.trees.remove(&machine.image()).unwrap();
    assert_in_use(bytes.recover(machine.place()), "is gone; restore it or delete the volume");
}

#[test]
fn a_thick_image_keeps_its_blocks_when_a_growth_fails() {
    let mut machine = Machine::empty(Content::Block);
    machine.volume.parameters.provisioning = Provisioning::Thick;
    let bytes = machine.paths.bytes();
    bytes.create(machine.place(), b"").unwrap();
    assert_errno(
        machine.failing("sync_file", Errno::EIO, || bytes.grow(machine.place(), 2 * BYTES)),
        Errno::EIO,
    );
    let stat = machine.kernel.stat(machine.image()).unwrap();
    assert_eq!((stat.size, stat.allocated >= BYTES), (BYTES, true));
}

#[test]
fn a_tree_alone_has_slow_sizes_and_is_bound() {
    for content in [Content::Block, filesystem(FsType::Ext4, Format::Blank), Content::Directory] {
        let (presence, is_tree) = (presence_of(&content), content == Content::Directory);
        assert_eq!((presence.has_slow_stats(), presence.is_staged_by_bind()), (is_tree, is_tree));
        assert!(!presence.is_staged(&Uses::default(), Path::new(STAGING)), "nothing uses it");
    }
}
