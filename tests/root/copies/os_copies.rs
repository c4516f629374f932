//! Copies of filesystems on the real kernel, where the fake one has no say: what is in a superblock, what a tool finds,
//! what a device does.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::contract::{
    Cleanup, FOR_BLOCK, FOR_MOUNT, MIB, assert_gone, directory, errno, flags, formatted, image,
};
use hostloop::kernel::linux::{Tools, os};
use hostloop::kernel::{MakeOptions, OpenLoop, Os};
use hostloop::model::FsType;
use nix::errno::Errno;

/// Where the superblock of btrfs lies, and in it the address of its log tree.
const SUPERBLOCK: u64 = 64 << 10;
const LOG_ROOT: usize = 0x60;

/// An xfs pool, mounted, with a directory for each of two mounts.
struct Pool {
    os: Os,
    path: PathBuf,
    source: PathBuf,
    target: PathBuf,
    _temp: tempfile::TempDir,
}

impl Pool {
    fn new() -> Self {
        let (temp, dir) = crate::harness::new_directory("hostloop copies ");
        let os = os(Tools::find());
        let (path, source, target) =
            (directory(&os, dir.join("pool")), directory(&os, dir.join("s")), directory(&os, dir.join("t")));
        let open = formatted(&os, &dir.join("pool.img"), FsType::Xfs, 2 << 30);
        os.mounts.mount(&open.device.path(), &path, FsType::Xfs, &flags(&[])).expect("mount");
        Pool { os, path, source, target, _temp: temp }
    }

    fn attach(&self, file: &Path) -> OpenLoop {
        self.os.loops.attach(file, FOR_MOUNT).expect("attach")
    }

    fn clone(&self, source: &Path, name: &str) -> PathBuf {
        let target = self.path.join(name);
        self.os.files.create_file(&target).expect("create");
        self.os.images.reflink(source, &target).expect("reflink");
        target
    }

    fn mount(&self, open: &OpenLoop, at: &Path, fs_type: FsType) {
        let words: &[&str] = if fs_type == FsType::Xfs { &["nouuid"] } else { &[] };
        self.os.mounts.mount(&open.device.path(), at, fs_type, &flags(words)).expect("mount");
    }

    /// A volume, mounted, with a file that a sync has put in the log only.
    fn volume(&self, fs_type: FsType, extra: &[&str]) -> PathBuf {
        let file = self.path.join("source.img");
        image(&self.os, &file, 512 * MIB);
        let open = self.attach(&file);
        let options =
            MakeOptions { extra: extra.iter().map(|word| (*word).to_owned()).collect(), zeroed: true };
        self.os.filesystems.make(&open.device.path(), fs_type, &options).expect("make");
        self.mount(&open, &self.source, fs_type);
        assert!(Command::new("sync").arg("-f").arg(&self.source).status().expect("sync").success());
        std::fs::write(self.source.join("synced"), vec![7; 300_000]).expect("write");
        std::fs::File::open(self.source.join("synced")).expect("open").sync_all().expect("fsync");
        file
    }

    fn unmount(&self, at: &Path) {
        self.os.mounts.unmount(at).expect("unmount");
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let root = self.path.parent().expect("parent");
        drop(Cleanup::new(&self.os, root));
    }
}

fn superblock(image: &Path) -> [u8; 4096] {
    let mut bytes = [0; 4096];
    let file = std::fs::File::open(image).expect("open");
    file.read_exact_at(&mut bytes, SUPERBLOCK).expect("read");
    bytes
}

fn log_root(image: &Path) -> u64 {
    u64::from_le_bytes(superblock(image)[LOG_ROOT..LOG_ROOT + 8].try_into().expect("eight bytes"))
}

fn overwrite(file: &Path, offset: u64, bytes: &[u8]) {
    let file = std::fs::File::options().write(true).open(file).expect("open");
    file.write_all_at(bytes, offset).expect("write");
    file.sync_all().expect("fsync");
}

/// The log holds what was synced last; a renewal that was interrupted at its worst moment is repeated.
#[test]
fn a_renewed_btrfs_keeps_its_log() {
    let pool = Pool::new();
    let volume = pool.volume(FsType::Btrfs, &[]);
    let copy = pool.clone(&volume, "copy.img");
    let log = log_root(&copy);
    assert_ne!(log, 0, "there is a log to be kept");
    let device = pool.attach(&copy);
    let renew = || pool.os.filesystems.renew_identity(FsType::Btrfs, &device.device.path()).expect("renew");
    renew();
    assert_eq!(log_root(&copy), log);
    overwrite(&device.device.path(), SUPERBLOCK + 512, &[0xFF; 3584]);
    renew();
    assert_eq!(log_root(&copy), log);
    pool.mount(&device, &pool.target, FsType::Btrfs);
    assert_eq!(std::fs::read(pool.target.join("synced")).expect("read"), vec![7; 300_000]);
    pool.unmount(&pool.target);
    pool.os.filesystems.check(FsType::Btrfs, &device.device.path()).expect("nothing is wrong");
    drop(device);
    pool.unmount(&pool.source);
}

/// What mkfsOptions may have chosen.
#[test]
fn a_btrfs_with_other_checksums_is_cloned() {
    let pool = Pool::new();
    let volume = pool.volume(FsType::Btrfs, &["--csum", "xxhash"]);
    let in_use = pool.clone(&volume, "in-use.img");
    assert_ne!(log_root(&in_use), 0);
    let before = superblock(&in_use);
    let device = pool.attach(&in_use);
    let error = pool.os.filesystems.renew_identity(FsType::Btrfs, &device.device.path()).expect_err("log");
    assert!(error.to_string().contains("checksums"), "{error}");
    assert_eq!(errno(Err::<(), _>(error)), Some(Errno::EOPNOTSUPP));
    drop(device);
    assert!(superblock(&in_use) == before, "nothing was changed");

    pool.unmount(&pool.source);
    let source = pool.attach(&volume);
    let copy = pool.attach(&pool.clone(&volume, "copy.img"));
    pool.mount(&source, &pool.source, FsType::Btrfs);
    pool.os.filesystems.renew_identity(FsType::Btrfs, &copy.device.path()).expect("renew");
    pool.mount(&copy, &pool.target, FsType::Btrfs);
    assert_eq!(std::fs::read(pool.target.join("synced")).expect("read"), vec![7; 300_000]);
    drop((source, copy));
    pool.unmount(&pool.target);
    pool.unmount(&pool.source);
}

#[test]
fn clones_of_frozen_filesystems_have_the_data() {
    for fs_type in FsType::ALL {
        let pool = Pool::new();
        let volume = pool.volume(fs_type, &[]);
        std::fs::write(pool.source.join("written"), "not synced").expect("write");
        let freeze = |flag| Command::new("fsfreeze").arg(flag).arg(&pool.source).status().expect("fsfreeze");
        assert!(freeze("-f").success());
        let copy = pool.clone(&volume, "copy.img");
        assert!(freeze("-u").success());
        if fs_type == FsType::Btrfs {
            assert_eq!(log_root(&copy), 0, "a frozen one has everything in its trees");
        }
        let device = pool.attach(&copy);
        pool.os.filesystems.renew_identity(fs_type, &device.device.path()).expect("renew");
        pool.mount(&device, &pool.target, fs_type);
        assert_eq!(std::fs::read(pool.target.join("written")).expect("read"), b"not synced");
        std::fs::write(pool.target.join("own"), "x").expect("write");
        assert!(!pool.source.join("own").exists());
        pool.unmount(&pool.target);
        pool.os.filesystems.check(fs_type, &device.device.path()).expect("nothing is wrong");
        drop(device);
        pool.unmount(&pool.source);
    }
}

/// Changes a name wherever the metadata has it.
fn damage_names(os: &Os, image: &Path, device: &Path) {
    let mut at = 0;
    while let Some((start, end)) = os.images.next_data(image, at).expect("next data") {
        let bytes = os.images.read_at(image, start, (end - start) as usize).expect("read");
        let places = bytes.windows(6).enumerate().filter(|(_, window)| window == b"synced");
        places.for_each(|(at, _)| overwrite(device, start + at as u64, b"XXXXXX"));
        at = end;
    }
}

#[test]
fn a_check_tells_damage() {
    for fs_type in FsType::ALL {
        let pool = Pool::new();
        let volume = pool.volume(fs_type, &[]);
        pool.unmount(&pool.source);
        let device = pool.attach(&volume);
        let check = || pool.os.filesystems.check(fs_type, &device.device.path());
        check().expect("nothing is wrong yet");
        match fs_type {
            // Bitmaps and the inode table of the first group.
            FsType::Ext4 => overwrite(&device.device.path(), 256 << 10, &vec![0xFF; 256 << 10]),
            FsType::Xfs => overwrite(&device.device.path(), 0, &[0; 4096]),
            FsType::Btrfs => damage_names(&pool.os, &volume, &device.device.path()),
        }
        let error = check().expect_err("damage");
        eprintln!("{fs_type}: {error}");
        assert_eq!(errno(Err::<(), _>(error)), Some(Errno::EUCLEAN), "{fs_type}");
        drop(device);
        assert_gone(&pool.os, &volume);
    }
}

#[test]
fn a_device_that_stops_to_discard() {
    let pool = Pool::new();
    let file = pool.path.join("d.img");
    image(&pool.os, &file, 0);
    pool.os.images.allocate(&file, 16 * MIB).expect("allocate");
    let device = pool.os.loops.attach(&file, FOR_BLOCK).expect("attach").device;
    let discard = |length: &str| {
        let done = Command::new("blkdiscard").args(["-l", length]).arg(device.path()).output();
        done.expect("blkdiscard").status.success()
    };
    assert!(discard("4M"));
    pool.os.loops.stop_discard(&device).expect("stop");
    let before = pool.os.files.stat(&file).expect("stat").expect("there").allocated;
    assert!((12 * MIB..13 * MIB).contains(&before), "{before}");
    assert!(!discard("16M"));
    assert_eq!(pool.os.files.stat(&file).expect("stat").expect("there").allocated, before);
    pool.os.loops.detach(&device).expect("detach");
}
