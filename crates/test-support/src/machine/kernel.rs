//! What the kernel says, read without the driver's code.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// One line of mountinfo.
#[derive(Debug, Clone)]
pub struct Mount {
    pub target: PathBuf,
    /// Options of the mount and of the superblock.
    pub options: String,
}

fn unescape(field: &str) -> PathBuf {
    PathBuf::from(field.replace("\\040", " "))
}

/// The mounts of a process at or below a directory, in mount order.
pub fn mounts_of(process: &str, below: &Path) -> Vec<Mount> {
    let text = std::fs::read_to_string(format!("/proc/{process}/mountinfo")).expect("mountinfo");
    let parse = |line: &str| {
        let (left, right) = line.split_once(" - ").expect("a separator");
        let (left, right): (Vec<_>, Vec<_>) = (left.split(' ').collect(), right.split(' ').collect());
        let options = format!("{},{}", left[5], right[2]);
        Mount { target: unescape(left[4]), options }
    };
    text.lines().map(parse).filter(|mount| mount.target.starts_with(below)).collect()
}

/// Our own mounts at or below a directory.
pub fn mounts(below: &Path) -> Vec<Mount> {
    mounts_of("self", below)
}

/// The loop devices whose backing file is at or below a path, also one that was deleted.
pub fn loops(below: &Path) -> Vec<u32> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/sys/block").expect("sysfs") {
        let name = entry.expect("sysfs").file_name().into_string().expect("text");
        let Some(number) = name.strip_prefix("loop").and_then(|n| n.parse().ok()) else { continue };
        let file = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        if file.is_ok_and(|file| Path::new(file.trim_end()).starts_with(below)) {
            found.push(number);
        }
    }
    found.sort_unstable();
    found
}

/// A file of a loop device in sysfs.
pub fn loop_attribute(number: u32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/sys/block/loop{number}/loop/{name}")).expect("sysfs");
    text.trim().to_owned()
}

/// The size in bytes of a device: where its end is.
pub fn device_size(device: &Path) -> u64 {
    File::open(device).expect("open the device").seek(SeekFrom::End(0)).expect("seek")
}

/// Size and free bytes of a filesystem.
pub fn space(path: &Path) -> (u64, u64) {
    let stat = nix::sys::statvfs::statvfs(path).expect("statvfs");
    (stat.blocks() * stat.fragment_size(), stat.blocks_available() * stat.fragment_size())
}

/// Bytes allocated for a file.
pub fn allocated(path: &Path) -> u64 {
    path.metadata().expect("stat").blocks() * 512
}

/// Bytes that tell one place from another.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = vec![0; len];
    // No chain of iterators: without optimisation a test would take longer here than for all that it tests.
    for word in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
    }
    bytes
}

/// Writes durably at an offset of an existing device, or of a file, which is made.
pub fn write_at(path: &Path, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
    let device = path.exists();
    let file = File::options().write(true).create(!device).truncate(false).open(path)?;
    file.write_all_at(bytes, offset)?;
    file.sync_all()
}

/// Reads from the storage, not from the page cache of before.
pub fn read_at(path: &Path, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    File::open(path).expect("open").read_exact_at(&mut bytes, offset).expect("read");
    bytes
}

/// Writes zero bytes until the first error. Returns how many were written, and the error.
pub fn fill(path: &Path) -> (u64, std::io::Error) {
    let chunk = vec![0x5a; 1 << 20];
    let mut file = File::options().write(true).create(true).truncate(false).open(path).expect("open");
    let mut written = 0;
    loop {
        match file.write(&chunk).and_then(|n| file.sync_data().map(|()| n)) {
            Ok(n) => written += n as u64,
            Err(error) => return (written, error),
        }
    }
}

/// A digest of all bytes of a sparse file, good enough to see a change.
pub fn digest(path: &Path) -> u64 {
    use std::hash::{DefaultHasher, Hasher};
    let mut file = File::options().read(true).custom_flags(0).open(path).expect("open");
    let (mut hasher, mut chunk, mut at) = (DefaultHasher::new(), vec![0; 1 << 20], 0u64);
    loop {
        let n = file.read(&mut chunk).expect("read");
        if n == 0 {
            hasher.write_u64(at);
            return hasher.finish();
        }
        if chunk[..n].iter().any(|b| *b != 0) {
            hasher.write_u64(at);
            hasher.write(&chunk[..n]);
        }
        at += n as u64;
    }
}
