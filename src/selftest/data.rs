//! Data as a pod would write and read it: bytes that differ at each place and for each volume.
#![allow(
    clippy::disallowed_types,
    reason = "a client's own data, not the driver's: the kernel boundary is not for it"
)]

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::kernel::host::{O_DIRECT, drop_cache};

/// Bytes that are written or read at once.
const CHUNK: usize = 1 << 20;
/// Alignment in memory that every device is content with.
const ALIGNMENT: usize = 4096;

/// Where the data of a volume is, and which.
#[derive(Debug, Clone)]
pub(super) struct Data {
    /// A file or device.
    pub(super) path: PathBuf,
    /// It is a device.
    pub(super) device: bool,
    /// Tells the data of one volume from that of another.
    pub(super) seed: u64,
    /// Bytes, a multiple of 4096.
    pub(super) len: u64,
}

impl Data {
    /// Writes it all, to a new file or the device; on disk when this returns.
    pub(super) fn write(&self) -> io::Result<()> {
        self.fill(OpenOptions::new().write(true).create_new(!self.device).open(&self.path)?)
    }

    /// Writes it all over what is there.
    pub(super) fn rewrite(&self) -> io::Result<()> {
        self.fill(OpenOptions::new().write(true).open(&self.path)?)
    }

    fn fill(&self, mut file: File) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK];
        for (position, len) in self.chunks() {
            let part = chunk.get_mut(..len).unwrap_or_default();
            fill(part, position, self.seed);
            file.write_all(part)?;
        }
        file.sync_all()
    }

    /// Reads it through a fresh descriptor and past the page cache, and compares.
    ///
    /// # Errors
    /// Those of reading, and one that names the first chunk that differs.
    pub(super) fn verify(&self) -> io::Result<()> {
        let flags = if self.device { O_DIRECT } else { 0 };
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
        if !self.device {
            // It was synced, so its pages are clean and go.
            drop_cache(&file)?;
        }
        let mut memory = vec![0; CHUNK + ALIGNMENT];
        let start = memory.as_ptr().align_offset(ALIGNMENT);
        let mut expected = vec![0; CHUNK];
        for (position, len) in self.chunks() {
            let read = memory.get_mut(start..start + len).unwrap_or_default();
            file.read_exact(read)?;
            let expected = expected.get_mut(..len).unwrap_or_default();
            fill(expected, position, self.seed);
            if read != expected {
                return Err(io::Error::other(format!(
                    "{} bytes from {position} on are not what was written",
                    len
                )));
            }
        }
        Ok(())
    }

    /// Position and length of each chunk.
    fn chunks(&self) -> impl Iterator<Item = (u64, usize)> + use<> {
        let len = self.len;
        let chunk = CHUNK as u64;
        (0..len.div_ceil(chunk)).map(move |n| (n * chunk, (len - n * chunk).min(chunk) as usize))
    }
}

/// The length of a file or device.
pub(super) fn length(path: &Path) -> io::Result<u64> {
    File::open(path)?.seek(SeekFrom::End(0))
}

/// Numbers without a pattern that a disk could repeat (SplitMix64).
fn fill(bytes: &mut [u8], position: u64, seed: u64) {
    for (word, at) in bytes.chunks_mut(8).zip((position / 8)..) {
        let mut x = (seed << 56).wrapping_add(at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word.copy_from_slice((x ^ (x >> 31)).to_le_bytes().get(..word.len()).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_wrong_byte_is_seen() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let data = Data { path: path.clone(), device: false, seed: 3, len: (1 << 20) + 4096 };
        data.write().unwrap();
        data.verify().unwrap();
        assert_eq!(length(&path).unwrap(), data.len);
        let changed = Data { seed: 4, ..data.clone() };
        assert!(changed.verify().is_err());
        assert_eq!(changed.write().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        changed.rewrite().unwrap();
        changed.verify().unwrap();
        data.rewrite().unwrap();
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"x", (1 << 20) + 9).unwrap();
        let error = data.verify().unwrap_err().to_string();
        assert!(error.contains("4096 bytes from 1048576 on"), "{error}");
        file.set_len(1 << 20).unwrap();
        assert_eq!(data.verify().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }
}
