//! The pools that are compared: each a filesystem of its own in an image, but ext4, which is the disk itself.

use std::path::{Path, PathBuf};
use std::process::Command;

use hostloop::kernel::linux::{self, Tools};
use hostloop::kernel::{AttachOptions, MakeOptions, Os};
use hostloop::model::{FsType, MountFlags};

use super::GIB;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum PoolKind {
    Xfs,
    Btrfs,
    Ext4,
    Managed,
}

impl PoolKind {
    pub const ALL: [PoolKind; 4] = [PoolKind::Xfs, PoolKind::Btrfs, PoolKind::Ext4, PoolKind::Managed];

    pub fn name(self) -> &'static str {
        match self {
            PoolKind::Xfs => "xfs",
            PoolKind::Btrfs => "btrfs",
            PoolKind::Ext4 => "ext4",
            PoolKind::Managed => "managed",
        }
    }
}

/// A disk of one kind, with the driver's data directory on it.
pub struct Disk {
    os: Os,
    kind: PoolKind,
    place: PathBuf,
    image_bytes: u64,
}

pub fn run(program: &str, args: &[&str]) {
    let done = Command::new(program).args(args).output().unwrap();
    assert!(done.status.success(), "{program}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Disk {
    /// Makes it in `place`, with room for a volume that holds so many bytes, a snapshot of it whose every block is written
    /// anew, and what a filesystem needs for itself. The file is sparse.
    pub fn make(place: &Path, kind: PoolKind, held: u64) -> Self {
        let os = linux::os(Tools::find());
        let disk = Disk { os, kind, place: place.to_owned(), image_bytes: 2 * held + 8 * GIB };
        std::fs::create_dir(place.join("data")).unwrap();
        match kind {
            PoolKind::Xfs => disk.mount(FsType::Xfs),
            PoolKind::Btrfs => disk.mount(FsType::Btrfs),
            PoolKind::Ext4 | PoolKind::Managed => {}
        }
        disk
    }

    fn mount(&self, fs_type: FsType) {
        let image = self.place.join("disk.img");
        self.os.files.create_file(&image).unwrap();
        self.os.images.set_size(&image, self.image_bytes).unwrap();
        let options = AttachOptions {
            read_only: false,
            autoclear: true,
            direct_io: true,
            block_size: 4096,
            discard: true,
        };
        let open = self.os.loops.attach(&image, options).unwrap();
        let device = open.device.path();
        self.os.filesystems.make(&device, fs_type, &MakeOptions { extra: Vec::new(), zeroed: true }).unwrap();
        self.os.mounts.mount(&device, &self.place.join("data"), fs_type, &MountFlags::default()).unwrap();
    }

    /// What the driver needs to be told. Sizes are promised many times over: two volumes that share their blocks do
    /// not fit otherwise.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec!["--overcommit".to_owned(), "10".to_owned()];
        if self.kind == PoolKind::Managed {
            let (image, bytes) = (self.place.join("managed.img"), self.image_bytes);
            flags.extend([
                "--pool".to_owned(),
                format!("managed={},kind=image,size={bytes},fs=xfs", image.display()),
            ]);
        }
        flags
    }

    pub fn pool(&self) -> Option<&'static str> {
        (self.kind == PoolKind::Managed).then_some("managed")
    }

    /// Where `volumes/` is.
    pub fn directory(&self) -> PathBuf {
        match self.kind {
            PoolKind::Managed => self.place.join("data/pools/managed"),
            _ => self.place.join("data"),
        }
    }

    /// Bytes in use on its filesystem, with everything written back.
    pub fn used(&self) -> u64 {
        run("sync", &["-f", self.directory().to_str().unwrap()]);
        self.os.files.space(&self.directory()).unwrap().used
    }

    pub fn remove(self) {
        if self.kind != PoolKind::Ext4 {
            self.os.mounts.unmount(&self.directory()).unwrap();
        }
    }
}
