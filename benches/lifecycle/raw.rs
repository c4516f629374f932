//! The same work as bare system calls: nothing is looked at, written down or undone.

use std::path::Path;
use std::time::{Duration, Instant};

use hostloop::config::Check;
use hostloop::kernel::{AttachOptions, MakeOptions, OpenLoop, Os};
use hostloop::model::{FsType, MountFlags};

use super::BYTES;

/// One life; the time it took.
pub fn life(os: &Os, check: Check, dir: &Path) -> Duration {
    let started = Instant::now();
    match check {
        Check::Ext4 => filesystem(os, FsType::Ext4, dir),
        Check::Xfs => filesystem(os, FsType::Xfs, dir),
        Check::Btrfs => filesystem(os, FsType::Btrfs, dir),
        Check::Block => block(os, dir),
        Check::Directory | Check::DirectoryEnforced => directory(os, dir),
    }
    started.elapsed()
}

fn image(os: &Os, dir: &Path, autoclear: bool) -> OpenLoop {
    let image = dir.join("raw.img");
    os.files.create_file(&image).unwrap();
    os.images.set_size(&image, BYTES).unwrap();
    os.files.sync_file(&image).unwrap();
    let options =
        AttachOptions { read_only: false, autoclear, direct_io: true, block_size: 512, discard: true };
    os.loops.attach(&image, options).unwrap()
}

fn remove(os: &Os, dir: &Path) {
    os.files.remove_file(&dir.join("raw.img")).unwrap();
    os.files.sync_directory(dir).unwrap();
}

fn filesystem(os: &Os, fs_type: FsType, dir: &Path) {
    let (staging, target) = (dir.join("raw-staging"), dir.join("raw-target"));
    let flags = MountFlags::default();
    let open = image(os, dir, true);
    let device = open.device.path();
    os.filesystems.make(&device, fs_type, &MakeOptions { extra: Vec::new(), zeroed: true }).unwrap();
    os.files.create_directory(&staging, 0o750).unwrap();
    os.mounts.mount(&device, &staging, fs_type, &flags).unwrap();
    drop(open);
    os.files.create_directory(&target, 0o750).unwrap();
    os.mounts.bind(&staging, &target, &flags).unwrap();
    os.mounts.unmount(&target).unwrap();
    os.files.remove_directory(&target).unwrap();
    os.mounts.unmount(&staging).unwrap();
    os.files.remove_directory(&staging).unwrap();
    remove(os, dir);
}

fn block(os: &Os, dir: &Path) {
    let target = dir.join("raw-target");
    let OpenLoop { device, hold } = image(os, dir, false);
    drop(hold);
    os.files.create_file(&target).unwrap();
    os.mounts.bind(&device.path(), &target, &MountFlags::default()).unwrap();
    os.mounts.unmount(&target).unwrap();
    os.files.remove_file(&target).unwrap();
    os.loops.detach(&device).unwrap();
    remove(os, dir);
}

fn directory(os: &Os, dir: &Path) {
    let (data, staging, target) = (dir.join("raw-data"), dir.join("raw-staging"), dir.join("raw-target"));
    let flags = MountFlags::default();
    for path in [&data, &staging, &target] {
        os.files.create_directory(path, 0o750).unwrap();
    }
    os.files.sync_directory(dir).unwrap();
    os.mounts.bind(&data, &staging, &flags).unwrap();
    os.mounts.bind(&staging, &target, &flags).unwrap();
    os.mounts.unmount(&target).unwrap();
    os.mounts.unmount(&staging).unwrap();
    for path in [&target, &staging, &data] {
        os.files.remove_directory(path).unwrap();
    }
    os.files.sync_directory(dir).unwrap();
}
