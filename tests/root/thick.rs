//! Thick volumes own their space from the first moment to the last; thin ones give back what they do not use.

use crate::harness::kernel::{self, allocated, pattern, write_at};
use crate::harness::{Kind, MIB, Vol, World, eventually, output, text};
use crate::life::can_grow;

const THICK: [(&str, &str); 1] = [("provisioning", "thick")];

fn stays_allocated(kind: Kind) {
    let world = World::new(&[]);
    let mut vol = Vol::create(&world, kind, "thick", kind.size(), &THICK);
    let image = world.image(vol.id());
    let whole =
        |vol: &Vol| assert!(allocated(&image) >= vol.bytes(), "{} of {}", allocated(&image), vol.bytes());
    whole(&vol);
    vol.up();
    whole(&vol);
    for _ in 0..2 {
        if kind == Kind::Block {
            // Discarding the device: refused, or nothing is given back.
            output("blkdiscard", &["-f", text(&vol.target("a"))]);
            output("blkdiscard", &["-f", "-z", text(&vol.target("a"))]);
        } else {
            write_at(&vol.file("a"), 0, &pattern(1, 32 << 20)).expect("write");
            std::fs::remove_file(vol.file("a")).expect("unlink");
            output("sync", &["-f", text(&vol.staging())]);
            output("fstrim", &["-v", text(&vol.staging())]);
        }
        whole(&vol);
        if !can_grow(kind) {
            continue;
        }
        let bytes = vol.bytes() + 64 * MIB;
        vol.expand(bytes).expect("ControllerExpandVolume");
        vol.node_expand("a", bytes).expect("NodeExpandVolume");
        vol.info.capacity_bytes = i64::try_from(bytes).expect("a size");
        whole(&vol);
    }
    vol.down();
    vol.up();
    whole(&vol);
    vol.remove();
    world.finish();
}

#[test]
fn thick_ext4_stays_allocated() {
    stays_allocated(Kind::Ext4);
}

#[test]
fn thick_xfs_stays_allocated() {
    stays_allocated(Kind::Xfs);
}

#[test]
fn thick_block_stays_allocated() {
    stays_allocated(Kind::Block);
}

/// Also with the mount option, which discards at every deletion.
#[test]
fn thick_stays_allocated_with_discard() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "thick", 64 * MIB, &THICK).with_flags(&["discard"]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, 32 << 20)).expect("write");
    std::fs::remove_file(vol.file("a")).expect("unlink");
    output("sync", &["-f", text(&vol.staging())]);
    assert!(allocated(&world.image(vol.id())) >= vol.bytes());
    vol.remove();
    world.finish();
}

#[test]
fn thin_gives_blocks_back() {
    let world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let vol = Vol::create(&world, kind, &format!("thin {kind:?}"), kind.size(), &[]);
        let image = world.image(vol.id());
        assert!(allocated(&image) < MIB);
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(1, 32 << 20)).expect("write");
        let full = allocated(&image);
        assert!(full >= 32 * MIB && full < vol.bytes(), "{kind:?}: {full}");
        std::fs::remove_file(vol.file("a")).expect("unlink");
        // xfs frees the blocks of a deleted file in the background.
        eventually("fstrim gives back what was deleted", || {
            output("sync", &["-f", text(&vol.staging())]);
            let trimmed = output("fstrim", &["-v", text(&vol.staging())]);
            assert!(trimmed.status.success(), "{kind:?}: {trimmed:?}");
            output("sync", &["-f", text(&vol.staging())]);
            allocated(&image) + 24 * MIB < full
        });
        vol.remove();
    }
    let vol = Vol::create(&world, Kind::Block, "thin block", 64 * MIB, &[]);
    vol.up();
    write_at(&vol.target("a"), 0, &pattern(1, 32 << 20)).expect("write");
    assert!(allocated(&world.image(vol.id())) >= 32 * MIB);
    assert!(output("blkdiscard", &["-f", text(&vol.target("a"))]).status.success());
    assert!(allocated(&world.image(vol.id())) < MIB);
    assert_eq!(kernel::read_at(&vol.target("a"), 0, 4096), vec![0; 4096]);
    vol.remove();
    world.finish();
}
