//! The accesses themselves, as a pod makes them.
//!
//! What keeps the figures honest:
//!
//! - Reads and plain writes use O_DIRECT, so that memory answers none of them: neither that of the volume's filesystem nor,
//!   as the loop devices of hostloop use direct I/O as well, that of the disk's. A filesystem without direct I/O is
//!   refused. What a disk, or the host of a virtual machine, caches itself is in all figures alike.
//! - The whole file was written and synced before: a read finds data and no holes, and an overwrite allocates nothing, also
//!   in a thin volume. What is written never repeats, so that no layer can leave it out.
//! - Positions come from the turn, so in one turn they are the same in each place.
//! - What a measurement leaves to be written is synced before the next one begins.
#![allow(
    clippy::disallowed_types,
    reason = "a client's own data, not the driver's: the kernel boundary is not for it"
)]

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::pattern::{LARGE, Pattern, SMALL};
use crate::kernel::Files;
use crate::kernel::host::O_DIRECT;

/// Alignment in memory that every device is content with.
const ALIGNMENT: usize = 4096;
/// One new file for so many bytes of the volume at most: ext4 has an inode for each 16 KiB.
const BYTES_PER_FILE: u64 = 64 << 10;

/// A file or a raw device that is read and written, and the directory for new files.
#[derive(Debug, Clone)]
pub(super) struct Ground {
    /// A directory, or a device.
    path: PathBuf,
    device: bool,
    /// How much of it is used, a multiple of [`LARGE`].
    bytes: u64,
}

/// How long something is measured.
#[derive(Debug, Clone, Copy)]
pub(super) struct Slice<'a> {
    /// At least one access is made.
    pub(super) time: Duration,
    /// Decides about positions.
    pub(super) seed: u64,
    /// Ends it early.
    pub(super) stop: &'a AtomicBool,
}

impl Ground {
    /// In a directory, or on a raw device, of which `bytes` are used.
    pub(super) fn new(path: PathBuf, device: bool, bytes: u64) -> Self {
        Ground { path, device, bytes: (bytes / LARGE as u64).max(1) * LARGE as u64 }
    }

    pub(super) fn is_device(&self) -> bool {
        self.device
    }

    /// Writes everything that will be read and overwritten, and syncs it.
    ///
    /// # Errors
    /// Those of writing; EINVAL where the filesystem has no direct I/O.
    pub(super) fn prepare(&self, stop: &AtomicBool) -> io::Result<()> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(!self.device)
            .custom_flags(O_DIRECT)
            .open(self.data())?;
        let mut noise = Noise(self.bytes);
        let mut block = Block::new(LARGE);
        for position in (0..self.bytes).step_by(LARGE) {
            noise.fill(block.bytes());
            file.write_all_at(block.bytes(), position)?;
            if stop.load(Ordering::Relaxed) {
                break;
            }
        }
        file.sync_all()
    }

    /// What is reached in this pattern: accesses in a second, or MiB in a second.
    ///
    /// # Errors
    /// Those of the accesses.
    pub(super) fn measure(&self, files: &dyn Files, pattern: Pattern, slice: Slice<'_>) -> io::Result<f64> {
        match pattern {
            Pattern::CreateSync => self.create(files, slice),
            _ => self.access(pattern, slice),
        }
    }

    fn access(&self, pattern: Pattern, slice: Slice<'_>) -> io::Result<f64> {
        let reads = matches!(pattern, Pattern::RandomRead | Pattern::Read);
        let cached = pattern == Pattern::WriteSync;
        let large = matches!(pattern, Pattern::Read | Pattern::Write);
        let size = if large { LARGE } else { SMALL };
        let flags = if cached { 0 } else { O_DIRECT };
        let file = OpenOptions::new().read(reads).write(!reads).custom_flags(flags).open(self.data())?;
        let mut noise = Noise(slice.seed);
        let mut block = Block::new(size);
        noise.fill(block.bytes());
        let places = self.bytes / size as u64;
        let mut next = 0;
        let rate = repeat(slice, u64::MAX, || {
            let place = if large { next } else { noise.next() % places };
            next = (place + 1) % places;
            let position = place * size as u64;
            if reads {
                return file.read_exact_at(block.bytes(), position);
            }
            block.mark(noise.next());
            file.write_all_at(block.bytes(), position)?;
            if cached { file.sync_all() } else { Ok(()) }
        })?;
        if !reads {
            file.sync_all()?;
        }
        Ok(if large { rate * LARGE as f64 / f64::from(1 << 20) } else { rate })
    }

    /// In a directory of its own, which is removed afterwards.
    fn create(&self, files: &dyn Files, slice: Slice<'_>) -> io::Result<f64> {
        let dir = self.path.join("files");
        files.create_directory(&dir, 0o700)?;
        let mut noise = Noise(slice.seed);
        let mut block = Block::new(SMALL);
        noise.fill(block.bytes());
        let mut made = 0_u64;
        let done = repeat(slice, (self.bytes / BYTES_PER_FILE).max(1), || {
            let file = OpenOptions::new().write(true).create_new(true).open(dir.join(made.to_string()))?;
            made += 1;
            block.mark(noise.next());
            file.write_all_at(block.bytes(), 0)?;
            file.sync_all()
        });
        // Also after an error, such as a full disk.
        let removed = (0..made).try_for_each(|number| files.remove_file(&dir.join(number.to_string())));
        let removed = removed.and_then(|()| files.remove_directory(&dir));
        let removed = removed.and_then(|()| files.sync_directory(&self.path));
        done.and_then(|rate| removed.map(|()| rate))
    }

    fn data(&self) -> PathBuf {
        if self.device { self.path.clone() } else { self.path.join("data") }
    }

    /// Whether files here can be read past the page cache.
    ///
    /// # Errors
    /// Those of making a file.
    pub(super) fn has_direct_io(files: &dyn Files, dir: &Path) -> io::Result<bool> {
        let file = dir.join("direct");
        files.create_file(&file)?;
        let opened = OpenOptions::new().write(true).custom_flags(O_DIRECT).open(&file).and_then(|file| {
            // Some filesystems take the flag and refuse the access.
            file.write_all_at(Block::new(SMALL).bytes(), 0)
        });
        files.remove_file(&file)?;
        Ok(opened.is_ok())
    }
}

/// Does it again and again, `most` times at most; how often in a second.
fn repeat(slice: Slice<'_>, most: u64, mut work: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let (started, mut count) = (Instant::now(), 0_u64);
    loop {
        work()?;
        count += 1;
        if count >= most || started.elapsed() >= slice.time || slice.stop.load(Ordering::Relaxed) {
            return Ok(count as f64 / started.elapsed().as_secs_f64().max(f64::EPSILON));
        }
    }
}

/// Memory for direct I/O.
struct Block {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Block {
    fn new(len: usize) -> Self {
        let memory = vec![0; len + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT).min(ALIGNMENT);
        Block { memory, start, len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        self.memory.get_mut(self.start..self.start + self.len).unwrap_or_default()
    }

    /// Makes it differ from what was written before.
    fn mark(&mut self, mark: u64) {
        if let Some(first) = self.bytes().first_chunk_mut() {
            *first = mark.to_le_bytes();
        }
    }
}

/// Numbers without a pattern that a disk could use (SplitMix64).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for word in bytes.chunks_mut(8) {
            word.copy_from_slice(self.next().to_le_bytes().get(..word.len()).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    static NEVER: AtomicBool = AtomicBool::new(false);

    #[test]
    fn work_is_done_once_and_as_often_as_allowed() {
        let mut count = 0;
        let slice = Slice { time: Duration::ZERO, seed: 0, stop: &NEVER };
        repeat(slice, 10, || {
            count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 1);
        let slice = Slice { time: Duration::from_secs(3600), ..slice };
        let rate = repeat(slice, 10, || {
            count += 1;
            Ok(())
        })
        .unwrap();
        assert!(count == 11 && rate > 0.0, "{count} {rate}");
        let stop = AtomicBool::new(true);
        repeat(Slice { stop: &stop, ..slice }, 10, || {
            count += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(count, 12);
        assert!(repeat(slice, 10, || Err(io::Error::other("no"))).is_err());
    }

    #[test]
    fn memory_is_aligned_and_marks_differ() {
        for len in [SMALL, LARGE] {
            let mut block = Block::new(len);
            assert_eq!((block.bytes().len(), block.bytes().as_ptr().addr() % ALIGNMENT), (len, 0));
            block.mark(7);
            assert_eq!(block.bytes()[..9], [7, 0, 0, 0, 0, 0, 0, 0, 0]);
        }
        let mut noise = Noise(1);
        let numbers: HashSet<u64> = (0..1000).map(|_| noise.next()).collect();
        assert_eq!(numbers.len(), 1000);
        let mut odd = [0; 13];
        noise.fill(&mut odd);
        assert!(odd[8..].iter().any(|byte| *byte != 0));
    }

    #[test]
    fn each_pattern_leaves_the_file_and_nothing_else() {
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let files = crate::kernel::linux::os(crate::kernel::linux::Tools::find()).files;
        assert!(Ground::has_direct_io(&*files, dir.path()).unwrap(), "the tests need a disk with direct I/O");
        let ground = Ground::new(dir.path().to_owned(), false, (3 << 20) + 5);
        ground.prepare(&NEVER).unwrap();
        let read = || files.read(&dir.path().join("data")).unwrap();
        let first = read();
        assert_eq!(first.len(), 3 << 20);
        for pattern in Pattern::ALL {
            let before = read();
            let slice = Slice { time: Duration::from_millis(1), seed: pattern as u64, stop: &NEVER };
            let rate = ground.measure(&*files, pattern, slice).unwrap();
            assert!(rate > 0.0 && rate.is_finite(), "{pattern:?}: {rate}");
            let writes = !matches!(pattern, Pattern::RandomRead | Pattern::Read | Pattern::CreateSync);
            assert_eq!(read() != before, writes, "{pattern:?}");
            assert_eq!(read().len(), first.len());
            assert_eq!(files.list(dir.path()).unwrap(), ["data"], "{pattern:?} leaves files");
        }
    }
}
