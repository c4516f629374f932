//! What the traits of `kernel` promise, asserted through the traits alone, so that the real kernel and the fake one
//! are held to the same words. `dir` is an empty directory of the given `Os`, on a filesystem with room.

mod apart;
mod copies;
mod copy_tree;
mod cruel;
mod disks;
mod filesystems;
mod freeze;
mod identities;
mod in_place;
mod loops;
mod mounts;
mod protected;
pub mod quotas;
mod stacked;
mod tree_changes;
mod tree_stream;

use std::io;
use std::path::{Path, PathBuf};

use crate::wait::eventually;
use hostloop::kernel::{AttachOptions, LoopDevice, MakeOptions, OpenLoop, Os, errno_of};
use hostloop::model::{FsType, MountFlags};
use nix::errno::Errno;

pub use apart::apart;
pub use copies::copies;
pub use copy_tree::copy_tree;
pub use cruel::{failed_sync, let_go_late, working_program};
pub use disks::disks;
pub use filesystems::{filesystems, unknown_option};
pub use freeze::freeze;
pub use identities::identities;
pub use in_place::in_place;
pub use loops::loops;
pub use mounts::{mounts, propagated};
pub use protected::protected;
pub use stacked::stacked;
pub use tree_changes::tree_changes;
pub use tree_stream::{copy as copy_stream, tree_stream};

pub const MIB: u64 = 1 << 20;

/// Attached for a mount: as the driver does it for a filesystem volume.
pub const FOR_MOUNT: AttachOptions =
    AttachOptions { read_only: false, autoclear: true, direct_io: false, block_size: 512, discard: true };

/// Attached until it is detached: as the driver does it for a raw block volume.
pub const FOR_BLOCK: AttachOptions = AttachOptions { autoclear: false, ..FOR_MOUNT };

pub fn errno<T>(result: io::Result<T>) -> Option<Errno> {
    errno_of(&result.err().expect("an error"))
}

pub fn flags(words: &[&str]) -> MountFlags {
    MountFlags::parse(words.iter().copied()).expect("flags")
}

/// Makes a sparse image.
pub fn image(os: &Os, path: &Path, size: u64) {
    os.files.create_file(path).expect("create");
    os.images.set_size(path, size).expect("set size");
}

pub fn directory(os: &Os, path: PathBuf) -> PathBuf {
    os.files.create_directory(&path, 0o755).expect("mkdir");
    path
}

/// The devices of an image.
pub fn devices_of(os: &Os, image: &Path) -> Vec<LoopDevice> {
    let stat = os.files.stat(image).expect("stat").expect("there");
    os.loops.find(stat.id).expect("find")
}

/// Asserts that the image has no device. Somebody who looks at every device (another test's `find`, udev) may hold
/// one open for a moment after its last user has gone.
pub fn assert_gone(os: &Os, image: &Path) {
    eventually(&format!("{} has no device", image.display()), || devices_of(os, image).is_empty());
}

/// Undoes what a failed assertion leaves behind: mounts newest first, then devices.
pub struct Cleanup<'a> {
    os: &'a Os,
    root: PathBuf,
}

impl<'a> Cleanup<'a> {
    pub fn new(os: &'a Os, root: &Path) -> Self {
        Cleanup { os, root: os.files.canonicalize(root).expect("canonicalize") }
    }

    fn detach_images(&self, directory: &Path) {
        for name in self.os.files.list(directory).unwrap_or_default() {
            let Ok(Some(stat)) = self.os.files.stat(&directory.join(name)) else {
                continue;
            };
            for device in self.os.loops.find(stat.id).unwrap_or_default() {
                let _ = self.os.loops.detach(&device);
            }
        }
    }
}

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let entries = self.os.mounts.list().unwrap_or_default();
        let mut below: Vec<_> = entries.into_iter().filter(|m| m.target.starts_with(&self.root)).collect();
        below.reverse();
        for entry in below {
            if let Some(parent) = entry.target.parent() {
                self.detach_images(&entry.target);
                self.detach_images(parent);
            }
            let _ = self.os.mounts.unmount(&entry.target);
        }
        self.detach_images(&self.root);
    }
}

/// An image with a filesystem in it, attached with autoclear.
pub fn formatted(os: &Os, image_path: &Path, fs_type: FsType, size: u64) -> OpenLoop {
    image(os, image_path, size);
    let device = os.loops.attach(image_path, FOR_MOUNT).expect("attach");
    let options = MakeOptions { extra: Vec::new(), zeroed: true };
    os.filesystems.make(&device.device.path(), fs_type, &options).expect("make");
    device
}
