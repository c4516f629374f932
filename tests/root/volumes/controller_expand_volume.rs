//! An expansion that fails never takes back what anybody has taken on, or what the state file may tell of.

use std::fs::File;

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, output, run, text};

const LEN: usize = 1 << 16;

/// Nobody can write to a file while this lives.
struct Immutable(std::path::PathBuf);

impl Immutable {
    fn new(path: std::path::PathBuf) -> Self {
        run("chattr", &["+i", text(&path)]);
        Immutable(path)
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        output("chattr", &["-i", text(&self.0)]);
    }
}

/// The image is longer than its record, as a growth left it whose record could not be written and which could not be
/// taken back. The device took it on, and the volume's user has written there.
#[test]
fn a_size_that_the_device_has_taken_on_stays() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Block, "volume", 64 * MIB, &[]);
    vol.up();
    let image = world.image(vol.id());
    File::options().write(true).open(&image).expect("open").set_len(128 * MIB).expect("lengthen");
    let [number] = kernel::loops(&world.data)[..] else { panic!("one device") };
    run("losetup", &["--set-capacity", &format!("/dev/loop{number}")]);
    write_at(&vol.file("a"), 100 * MIB, &pattern(1, LEN)).expect("write");
    for bytes in [96 * MIB, 256 * MIB] {
        let state = Immutable::new(world.data.join("state.jsonl"));
        let failed = vol.expand(bytes).expect_err("the record cannot be written");
        drop(state);
        // Nobody knows whether the state file has the new size, so that what was added stays as well.
        assert!(image.metadata().expect("stat").len() >= 128 * MIB, "{failed}");
        assert!(read_at(&vol.file("a"), 100 * MIB, LEN) == pattern(1, LEN), "after {bytes}");
    }
    vol.remove();
    world.finish();
}

/// While the state file cannot be written, nobody knows which size it tells: the image stays as long as it may be, and
/// the next start takes its size over.
#[test]
fn a_size_that_the_state_file_may_have_stays() {
    let mut world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "volume", 64 * MIB, &[]);
    vol.up();
    let image = world.image(vol.id());
    let state = Immutable::new(world.data.join("state.jsonl"));
    vol.expand(256 * MIB).expect_err("the record cannot be written");
    drop(state);
    assert_eq!(image.metadata().expect("stat").len(), 256 * MIB);
    let volume = vol.info.clone();
    world.restart_after_kill();
    let listed = world.csi.list(0, "").expect("ListVolumes").entries;
    assert_eq!(listed[0].volume.as_ref().expect("a volume").capacity_bytes as u64, 256 * MIB);
    let vol = Vol::of(&world, Kind::Ext4, volume);
    assert_eq!(world.csi.health(vol.id()).expect("health").health_statuses, []);
    vol.remove();
    world.finish();
}
