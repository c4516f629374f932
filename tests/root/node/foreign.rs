//! What is in an image is never overwritten by a mkfs, whoever wrote it and whatever the records say.

use std::path::Path;

use crate::harness::kernel::{self, digest, pattern};
use crate::harness::{Kind, MIB, Vol, World, run, text};

/// Staging is refused and changes nothing; deleting works all the same.
fn refused(world: &World, vol: Vol, what: &str) {
    let image = world.image(vol.id());
    let before = digest(&image);
    for _ in 0..2 {
        let error = vol.stage().expect_err("never formats");
        assert_eq!(error.code(), tonic::Code::FailedPrecondition, "{error:?}");
        assert!(error.message().contains(what), "{error:?}");
    }
    assert!(before == digest(&image), "{what} was written to");
    assert!(kernel::loops(&image).is_empty() && kernel::mounts(&world.kubelet).is_empty());
    vol.delete().expect("DeleteVolume");
}

fn put(image: &Path, offset: u64, bytes: &[u8]) {
    kernel::write_at(image, offset, bytes).expect("write");
}

#[test]
fn a_blank_volume_with_foreign_data_is_not_formatted() {
    let world = World::new(&[]);
    let create_of = |name: &str, mib| Vol::create(&world, Kind::Ext4, name, mib * MIB, &[]);
    let create = |name: &str| create_of(name, 32);
    let vol = create_of("xfs", 320);
    run("mkfs.xfs", &["-q", "-f", text(&world.image(vol.id()))]);
    refused(&world, vol, "an xfs filesystem");
    let vol = create_of("btrfs", 320);
    run("mkfs.btrfs", &["-q", "-f", text(&world.image(vol.id()))]);
    refused(&world, vol, "a btrfs filesystem");
    let vol = create("LUKS");
    put(&world.image(vol.id()), 0, b"LUKS\xba\xbe\x00\x02");
    refused(&world, vol, "a LUKS container");
    let vol = create("swap");
    run("mkswap", &[text(&world.image(vol.id()))]);
    refused(&world, vol, "swap space");
    for offset in [0, 10 * MIB + 12_345, 32 * MIB - 1] {
        let vol = create("bytes");
        put(&world.image(vol.id()), offset, &pattern(offset, 1));
        refused(&world, vol, "data of an unknown kind");
    }
    // Even a filesystem of the right kind is not ours while the record says that none was made.
    let vol = create("ext4");
    run("mkfs.ext4", &["-q", text(&world.image(vol.id()))]);
    refused(&world, vol, "an ext4 filesystem");
    world.finish();
}

#[test]
fn a_thick_volume_with_foreign_data_is_not_formatted() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "thick", 64 * MIB, &[("provisioning", "thick")]);
    put(&world.image(vol.id()), 40 * MIB, &pattern(3, 7));
    refused(&world, vol, "data of an unknown kind");
    world.finish();
}

#[test]
fn a_used_volume_with_other_content_is_left_alone() {
    let world = World::new(&[]);
    for blank in [false, true] {
        let vol = Vol::create(&world, Kind::Ext4, "used", 320 * MIB, &[]);
        vol.up();
        vol.down();
        let image = world.image(vol.id());
        crate::harness::eventually("the device goes", || kernel::loops(&image).is_empty());
        if blank {
            // What a restore of an empty image looks like: the data are gone, and no new filesystem hides it.
            std::fs::File::create(&image).and_then(|f| f.set_len(320 * MIB)).expect("empty it");
            refused(&world, vol, "holds nothing");
        } else {
            run("mkfs.xfs", &["-q", "-f", text(&image)]);
            refused(&world, vol, "an xfs filesystem");
        }
    }
    world.finish();
}
