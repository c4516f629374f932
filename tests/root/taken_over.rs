//! A device that a killed NodeStageVolume left behind, taken over by the next one; and the numbers of devices, which
//! other programs get afterwards.

use std::path::{Path, PathBuf};

use crate::harness::kernel::{self, allocated, loop_attribute, pattern, write_at};
use crate::harness::{Kind, MIB, Vol, World, attach, eventually, output, run, text};

const THICK: [(&str, &str); 1] = [("provisioning", "thick")];

fn number_of(device: &Path) -> u32 {
    text(device).strip_prefix("/dev/loop").and_then(|number| number.parse().ok()).expect("a loop device")
}

/// Whether a number that nobody has attached refuses to discard for whoever attaches it next.
fn is_left_stuck(number: u32) -> bool {
    let queue = |file: &str| {
        std::fs::read_to_string(format!("/sys/block/loop{number}/queue/{file}")).unwrap_or_default()
    };
    let attached = Path::new(&format!("/sys/block/loop{number}/loop")).exists();
    !attached && queue("discard_max_bytes").trim() == "0" && queue("discard_max_hw_bytes").trim() != "0"
}

/// Discards through the volume whatever can be discarded.
fn discard(vol: &Vol<'_>) {
    if vol.kind == Kind::Block {
        output("blkdiscard", &["-f", text(&vol.target("a"))]);
    } else {
        write_at(&vol.file("a"), 0, &pattern(1, 16 << 20)).expect("write");
        std::fs::remove_file(vol.file("a")).expect("unlink");
        output("sync", &["-f", text(&vol.staging())]);
        output("fstrim", &["-v", text(&vol.staging())]);
    }
}

fn keeps_its_promises(kind: Kind, autoclear: bool) {
    let world = World::new(&[]);
    let vol = Vol::create(&world, kind, "thick", kind.size(), &THICK);
    let image = world.image(vol.id());
    if kind != Kind::Block {
        vol.stage().expect("NodeStageVolume, which makes the filesystem");
        vol.unstage().expect("NodeUnstageVolume");
    }
    // As the driver has it after LOOP_CONFIGURE and before the next system call, but for direct I/O.
    let device = PathBuf::from(attach(&image, &[]));
    // With autoclear it would be gone with the process, but for somebody who has it open.
    let held = autoclear.then(|| std::fs::File::open(&device).expect("open the device"));
    if autoclear {
        run("losetup", &["--detach", text(&device)]);
        assert_eq!(loop_attribute(number_of(&device), "autoclear"), "1");
    }
    // As a tool of the host that looks for zeros, or a discard that came before the limit.
    run("fallocate", &["--punch-hole", "--offset", "8MiB", "--length", "8MiB", text(&image)]);
    assert!(allocated(&image) < vol.bytes());
    vol.up();
    drop(held);
    assert_eq!(kernel::loops(&world.data), [number_of(&device)], "no second device");
    assert!(allocated(&image) >= vol.bytes(), "what was missing is there again");
    discard(&vol);
    assert!(allocated(&image) >= vol.bytes(), "{} of {} left", allocated(&image), vol.bytes());
    assert_eq!(loop_attribute(number_of(&device), "dio"), "1", "direct I/O as its record says");
    vol.remove();
    world.finish();
}

#[test]
fn a_thick_block_device_does_not_discard() {
    keeps_its_promises(Kind::Block, false);
}

#[test]
fn a_thick_filesystem_does_not_discard() {
    keeps_its_promises(Kind::Ext4, false);
}

#[test]
fn a_thick_filesystem_on_a_device_that_was_going_does_not_discard() {
    keeps_its_promises(Kind::Ext4, true);
}

/// The same where the volume is staged: what came after the mount was cut off.
#[test]
fn a_staged_volume_is_brought_to_its_record() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "thick", Kind::Ext4.size(), &THICK);
    let image = world.image(vol.id());
    vol.stage().expect("NodeStageVolume, which makes the filesystem");
    vol.unstage().expect("NodeUnstageVolume");
    let device = PathBuf::from(attach(&image, &[]));
    run("mount", &[text(&device), text(&vol.staging())]);
    run("fallocate", &["--punch-hole", "--offset", "8MiB", "--length", "8MiB", text(&image)]);
    vol.up();
    discard(&vol);
    assert!(allocated(&image) >= vol.bytes(), "{} of {} left", allocated(&image), vol.bytes());
    vol.remove();
    assert!(kernel::loops(&world.data).is_empty(), "the device goes with the volume");
    world.finish();
}

/// A sector size that is not the volume's, since whoever attached it did not know it.
#[test]
fn a_device_gets_the_volumes_sector_size() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Block, "volume", 64 * MIB, &[]);
    vol.stage().expect("NodeStageVolume");
    let [number] = kernel::loops(&world.data)[..] else { panic!("one device") };
    let size = |number: u32| {
        let file = format!("/sys/block/loop{number}/queue/logical_block_size");
        std::fs::read_to_string(file).expect("sysfs").trim().parse::<u32>().expect("a number")
    };
    let (wanted, image) = (size(number), world.image(vol.id()));
    vol.unstage().expect("NodeUnstageVolume");
    let other = if wanted == 512 { "4096" } else { "512" };
    let device = PathBuf::from(attach(&image, &["--sector-size", other]));
    assert_ne!(size(number_of(&device)), wanted);
    vol.up();
    assert_eq!(size(number_of(&device)), wanted);
    vol.remove();
    world.finish();
}

/// What the kernel keeps of a thick volume's device (since Linux 6.9) is not for the number's next user.
#[test]
fn a_number_is_given_back_as_it_was() {
    let world = World::new(&[]);
    for kind in [Kind::Block, Kind::Ext4, Kind::Xfs] {
        let vol = Vol::create(&world, kind, &format!("thick {kind:?}"), kind.size(), &THICK);
        vol.up();
        let [number] = kernel::loops(&world.data)[..] else { panic!("one device") };
        vol.down();
        assert!(kernel::loops(&world.data).is_empty());
        eventually("the number discards for others", || !is_left_stuck(number));
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}

/// Also when the driver was killed before it could.
#[test]
fn a_start_gives_back_what_a_kill_left() {
    let mut world = World::new(&[]);
    let id = {
        let vol = Vol::create(&world, Kind::Block, "thick", 64 * MIB, &THICK);
        vol.stage().expect("NodeStageVolume");
        vol.id().to_owned()
    };
    let [number] = kernel::loops(&world.data)[..] else { panic!("one device") };
    world.take_driver().kill();
    run("losetup", &["--detach", &format!("/dev/loop{number}")]);
    eventually("it is detached", || kernel::loops(&world.data).is_empty());
    world.start();
    eventually("the number discards for others", || !is_left_stuck(number));
    world.csi.delete(&id).expect("DeleteVolume");
    world.finish();
}
