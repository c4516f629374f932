//! A container's /sys is often read-only for whoever is in it, also for a privileged one: that of a pod, that of a node of
//! kind. What has to be written there is written all the same.

use std::path::PathBuf;

use crate::harness::kernel::{self, allocated, pattern, write_at};
use crate::harness::namespace::in_own_namespace;
use crate::harness::process::binary;
use crate::harness::{Kind, MIB, Vol, World, eventually};

/// Mounts the sysfs of a new network namespace read-only, which it is for good then, and becomes the driver.
const SCRIPT: &str = "set -e; mount -t sysfs -o ro sysfs /sys; exec \"$0\" \"$@\"";

const THICK: [(&str, &str); 1] = [("provisioning", "thick")];

#[test]
fn discards_end_where_sysfs_is_read_only() {
    let mut world = World::empty(&[]);
    let arguments = world.arguments();
    let mut start = in_own_namespace(&world.dir, &["--net"]);
    world.start_as(start.args(["/bin/sh", "-c", SCRIPT, binary()]).args(arguments));
    let root = PathBuf::from(format!("/proc/{}/root", world.driver().pid()));
    let path_of = |number: u32| PathBuf::from(format!("/sys/block/loop{number}/queue/discard_max_bytes"));
    let limit = |number: u32| std::fs::read_to_string(path_of(number)).expect("sysfs").trim().to_owned();
    let seen = |path: PathBuf| root.join(path.strip_prefix("/").expect("absolute"));
    for (kind, made_thick) in [(Kind::Block, true), (Kind::Ext4, true), (Kind::Ext4, false)] {
        let parameters: &[(&str, &str)] = if made_thick { &THICK } else { &[] };
        let vol = Vol::create(&world, kind, &format!("{kind:?} {made_thick}"), 64 * MIB, parameters);
        vol.up();
        let number = *kernel::loops(&world.data).first().expect("a loop device");
        let written = std::fs::write(seen(path_of(number)), "0");
        assert_eq!(written.expect_err("read-only").raw_os_error(), Some(libc::EROFS));
        if !made_thick {
            assert_ne!(limit(number), "0");
            world.csi.modify(vol.id(), &THICK).expect("ControllerModifyVolume");
        }
        assert_eq!(limit(number), "0");
        if kind == Kind::Ext4 {
            write_at(&seen(vol.file("a")), 0, &pattern(1, 16 << 20)).expect("write");
        }
        assert!(allocated(&world.image(vol.id())) >= vol.bytes());
        vol.down();
        eventually("the device goes", || kernel::loops(&world.data).is_empty());
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}
