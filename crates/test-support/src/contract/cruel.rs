//! What only somebody beside the driver can bring about: each runner says how.

use std::any::Any;
use std::path::Path;

use hostloop::kernel::{MakeOptions, Os};
use hostloop::model::FsType;

use super::{Cleanup, FOR_MOUNT, MIB, assert_gone, devices_of, directory, flags, formatted, image};

/// A sync that fails says so once; the next one succeeds, and the data are lost nevertheless. `fail` makes writing back
/// fail from the next write on, `mend` ends that, and `forget` drops what is not on the disk. `file` has 8 KiB that are.
pub fn failed_sync(os: &Os, file: &Path, fail: &dyn Fn(), mend: &dyn Fn(), forget: &dyn Fn() -> Os) {
    fail();
    os.images.write_at(file, 0, &[7; 8192]).expect("it goes to the page cache");
    os.files.sync_file(file).expect_err("the kernel tells that it could not be written");
    mend();
    os.files.sync_file(file).expect("it tells so once");
    let os = forget();
    assert_ne!(os.images.read_at(file, 0, 8192).expect("read"), [7; 8192], "a later sync is no second try");
    os.images.write_at(file, 0, &[8; 8192]).expect("write");
    os.files.sync_file(file).expect("sync");
    assert_eq!(forget().images.read_at(file, 0, 8192).expect("read"), [8; 8192]);
}

/// While a program works on a device, no other can, it cannot be mounted, and it shows as held.
pub fn working_program(os: &Os, dir: &Path, claim: &dyn Fn(&Path) -> Box<dyn Any>) {
    let _cleanup = Cleanup::new(os, dir);
    let target = directory(os, dir.join("claimed by a program"));
    let open = formatted(os, &dir.join("worked on.img"), FsType::Ext4, 64 * MIB);
    let device = open.device.path();
    let program = claim(&device);
    assert!(os.files.block_device(&device).expect("look").held);
    let options = MakeOptions { extra: Vec::new(), zeroed: false };
    os.filesystems.make(&device, FsType::Ext4, &options).expect_err("another program works on it");
    os.mounts.mount(&device, &target, FsType::Ext4, &flags(&[])).expect_err("a program works on it");
    drop(program);
    assert!(!os.files.block_device(&device).expect("look").held);
    os.filesystems.make(&device, FsType::Ext4, &options).expect("make");
}

/// A device outlives its mount as long as somebody has it open, can be mounted again meanwhile, and goes then.
pub fn let_go_late(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    let (file, target) = (dir.join("late.img"), directory(os, dir.join("late")));
    let open = formatted(os, &file, FsType::Ext4, 8 * MIB);
    let device = open.device.clone();
    for _ in 0..2 {
        os.mounts.mount(&device.path(), &target, FsType::Ext4, &flags(&[])).expect("mount");
        os.mounts.unmount(&target).expect("unmount");
        assert_eq!(devices_of(os, &file), std::slice::from_ref(&device), "it is still open");
    }
    drop(open);
    assert_gone(os, &file);
    image(os, &dir.join("unused.img"), MIB);
    drop(os.loops.attach(&dir.join("unused.img"), FOR_MOUNT).expect("attach"));
    assert_gone(os, &dir.join("unused.img"));
}
