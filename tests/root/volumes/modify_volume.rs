//! ControllerModifyVolume on a volume in use.

use tonic::Code;

use crate::harness::kernel::{self, loop_attribute, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, output, text};

#[test]
fn a_volume_in_use_becomes_thick_and_thin_again() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Block, "volume", Kind::Block.size(), &[]);
    vol.up();
    let (file, image) = (vol.file("a"), world.image(vol.id()));
    write_at(&file, 0, &pattern(1, 1 << 20)).expect("write");
    assert!(kernel::allocated(&image) < vol.bytes() / 2);
    world.csi.modify(vol.id(), &[("provisioning", "thick")]).expect("ControllerModifyVolume");
    assert!(kernel::allocated(&image) >= vol.bytes(), "the space is there before the answer");
    world.csi.modify(vol.id(), &[("provisioning", "thick")]).expect("again");
    assert!(!output("blkdiscard", &[text(&file)]).status.success(), "a thick volume gives nothing back");
    assert_eq!(read_at(&file, 0, 1 << 20), pattern(1, 1 << 20));
    vol.down();
    vol.up();
    assert!(!output("blkdiscard", &[text(&file)]).status.success());

    world.csi.modify(vol.id(), &[("provisioning", "thin")]).expect("ControllerModifyVolume");
    vol.down();
    vol.up();
    assert!(output("blkdiscard", &[text(&file)]).status.success(), "a thin volume gives blocks back");
    assert!(kernel::allocated(&image) < MIB);
    vol.remove();
    world.finish();
}

#[test]
fn direct_io_and_discard_change_in_use() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "volume", Kind::Ext4.size(), &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, 1 << 20)).expect("write");
    let [number] = kernel::loops(&world.data)[..] else { panic!("one device") };
    assert_eq!(loop_attribute(number, "dio"), "1");
    world.csi.modify(vol.id(), &[("directIO", "false")]).expect("ControllerModifyVolume");
    assert_eq!(loop_attribute(number, "dio"), "0");
    world
        .csi
        .modify(vol.id(), &[("directIO", "true"), ("discard", "false")])
        .expect("ControllerModifyVolume");
    assert_eq!(loop_attribute(number, "dio"), "1");
    assert!(!output("fstrim", &[text(&vol.target("a"))]).status.success(), "discards are off");
    assert_eq!(read_at(&vol.file("a"), 0, 1 << 20), pattern(1, 1 << 20));
    let refused = world.csi.modify(vol.id(), &[("backend", "directory")]).expect_err("it cannot change");
    assert_eq!(refused.code(), Code::InvalidArgument);
    vol.down();
    vol.up();
    assert!(!output("fstrim", &[text(&vol.target("a"))]).status.success(), "and stay off");
    vol.remove();
    world.finish();
}
