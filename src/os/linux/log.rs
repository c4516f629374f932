//! The append-only file.
#![allow(clippy::disallowed_types, reason = "implements os::Disks")]

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;

use super::super::{LogFile, errno_error};
use super::at;

/// A file open for appending.
struct Log {
    file: File,
    path: PathBuf,
}

/// Opens (or makes) the file for appending, after cutting it to `len` bytes.
///
/// # Errors
/// EINVAL where the file is shorter than `len`: the caller has read more of it than there is now, and a hole
/// would read as zeros.
pub(super) fn open_log(path: &Path, len: u64) -> io::Result<Box<dyn LogFile>> {
    let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_APPEND | OFlag::O_CLOEXEC | OFlag::O_NOFOLLOW;
    let file = File::from(open(path, flags, Mode::from_bits_truncate(0o600)).map_err(at("open", path))?);
    let size = file.metadata().map_err(at("stat", path))?.len();
    if size < len {
        let context = format!("open {}: it has {size} bytes, expected at least {len}", path.display());
        return Err(errno_error(Errno::EINVAL, context));
    }
    if size > len {
        file.set_len(len).map_err(at("truncate", path))?;
    }
    Ok(Box::new(Log { file, path: path.to_owned() }))
}

impl LogFile for Log {
    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes).map_err(at("append to", &self.path))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data().map_err(at("fdatasync", &self.path))
    }
}
