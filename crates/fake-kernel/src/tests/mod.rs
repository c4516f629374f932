//! The fake against what it claims: each test is a property that a test of the driver relies on.

mod copy_tree;
mod cruelty;
mod durability;
mod freezing;
mod mounting;
mod sharing;
mod stepping;

use std::path::{Path, PathBuf};

use super::*;
use hostloop_kernel::{AttachOptions, MakeOptions, OpenLoop, is_errno};
use hostloop_model::{FsType, MountFlags};

const MIB: u64 = 1 << 20;

fn p(path: &str) -> &Path {
    Path::new(path)
}

fn errno_is<T>(result: std::io::Result<T>, errno: Errno) {
    let error = result.err().unwrap_or_else(|| panic!("{errno} expected"));
    assert!(is_errno(&error, errno), "{errno} expected, got {error}");
}

/// A machine with a pool, and the image of a volume in it.
fn machine() -> (FakeKernel, Os, PathBuf) {
    let kernel = FakeKernel::new();
    kernel.create_directories("/pool");
    let os = kernel.os();
    let image = image(&os, "disk.img", 64 * MIB);
    (kernel, os, image)
}

/// A durable sparse image.
fn image(os: &Os, name: &str, size: u64) -> PathBuf {
    let image = p("/pool").join(name);
    os.files.create_file(&image).unwrap();
    os.images.set_size(&image, size).unwrap();
    os.files.sync_file(&image).unwrap();
    os.files.sync_directory(p("/pool")).unwrap();
    image
}

fn attach(os: &Os, image: &Path) -> OpenLoop {
    os.loops.attach(image, options(false)).unwrap()
}

fn options(read_only: bool) -> AttachOptions {
    AttachOptions { read_only, autoclear: true, direct_io: true, block_size: 4096, discard: false }
}

fn make(os: &Os, device: &OpenLoop, fs_type: FsType) -> std::io::Result<()> {
    os.filesystems.make(&device.device.path(), fs_type, &MakeOptions { extra: Vec::new(), zeroed: true })
}

fn read_only() -> MountFlags {
    MountFlags { read_only: true, ..MountFlags::default() }
}

/// Stages a volume at /stage: attach, format unless it is formatted, mount.
fn stage(kernel: &FakeKernel, os: &Os, image: &Path, format: bool) {
    kernel.create_directories("/stage");
    let device = attach(os, image);
    if format {
        make(os, &device, FsType::Ext4).unwrap();
    }
    os.mounts.mount(&device.device.path(), p("/stage"), FsType::Ext4, &MountFlags::default()).unwrap();
}
