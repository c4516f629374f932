//! Kernels before Linux 5.14 have no quotactl_fd(2): they are asked for quotas with the path of the block device. Made by
//! telling the driver that the newer call is not there.

use std::path::Path;

use crate::contract::quotas::quotas;
use crate::directories::quotas::{Unprivileged, fill, kernel, place, sync, with_project_quotas};
use crate::harness::calls::Calls;
use crate::harness::process::{binary, command};
use crate::harness::{Kind, MIB, Vol, World, output, text};

/// quotactl_fd(2), on every architecture.
const NEWER: [i64; 1] = [443];

/// The node of the loop device below a mount.
fn device(mount_point: &Path) -> String {
    let found = output("findmnt", &["-no", "SOURCE", text(mount_point)]);
    String::from_utf8(found.stdout).expect("UTF-8").trim().to_owned()
}

/// A container's /dev may lack the node; it is made as devtmpfs does.
#[test]
fn the_kernel_is_asked_by_device() {
    let Some(disk) = with_project_quotas("xfs") else { return };
    let device = device(&disk.path);
    std::fs::remove_file(&device).expect("unlink the node");
    Calls::hold(&[Calls::missing(&NEWER)], || {
        quotas(&kernel(), &place(&disk, "bytes"), &Unprivileged, &|| sync(&disk.path));
    });
    assert!(Path::new(&device).exists(), "{device} was made again");
}

#[test]
fn a_directory_lives() {
    for fs_type in ["ext4", "xfs"] {
        let Some(disk) = with_project_quotas(fs_type) else { continue };
        let pool = place(&disk, "pool");
        let mut world = World::empty(&[]);
        world.set_flags(&["--pool", &format!("quota={},reserve=0", text(&pool))]);
        Calls::hold(&[Calls::missing(&NEWER)], || world.start_as(command(binary()).args(world.arguments())));
        let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &[("pool", "quota")]);
        vol.up();
        let written = fill(&vol.file("a"));
        assert!((63 * MIB..=64 * MIB).contains(&written), "{written}");
        vol.remove();
        world.finish();
    }
}
