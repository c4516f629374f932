//! A number by which a change of a file or a tree is seen.

use std::ffi::CStr;
use std::io;
use std::path::Path;

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, open};
use nix::sys::stat::{FileStat, Mode, fstat, fstatat};

use super::kind_bits;
use super::walk::{Visit, walk};

/// See [`Trees::fingerprint`](crate::Trees::fingerprint).
pub(super) fn fingerprint(path: &Path) -> io::Result<u64> {
    let top = fstatat(AT_FDCWD, path, AtFlags::AT_SYMLINK_NOFOLLOW)?;
    let mut visit = Sum { total: of_top(&top), directory: 0, is_below: false };
    if kind_bits(&top) == libc::S_IFDIR {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        walk(Dir::from_fd(open(path, flags, Mode::empty())?)?, &mut visit)?;
    }
    Ok(visit.total)
}

/// Entries are added up, so that the order in which a directory lists them does not matter.
struct Sum {
    total: u64,
    /// The inode number of the directory that is read.
    directory: u64,
    /// It is below the top.
    is_below: bool,
}

impl Sum {
    fn add(&mut self, hash: Hash) {
        self.total = self.total.wrapping_add(hash.0);
    }
}

impl Visit for Sum {
    fn entry(&mut self, parent: &Dir, name: &CStr, kind: Option<Type>) -> nix::Result<bool> {
        let named = Hash::new().number(self.directory).bytes(name.to_bytes());
        if kind == Some(Type::Directory) {
            self.add(named);
            return Ok(true); // the rest is added in enter
        }
        let stat = match fstatat(parent, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => return Ok(false),
            result => result?,
        };
        let is_directory = kind_bits(&stat) == libc::S_IFDIR;
        self.add(if is_directory { named } else { with_times(named, &stat) });
        Ok(is_directory)
    }

    fn enter(&mut self, directory: &Dir) -> nix::Result<()> {
        let stat = fstat(directory)?;
        self.directory = stat.st_ino;
        if self.is_below {
            self.add(with_times(Hash::new(), &stat));
        }
        self.is_below = true;
        Ok(())
    }

    fn refused(&mut self, _: &Dir, _: &CStr, errno: Errno) -> nix::Result<()> {
        match errno {
            Errno::EXDEV => Err(errno),
            // Another file has its name now, and the directory another time.
            _ => Ok(()),
        }
    }

    fn leave(&mut self, _: &Dir, _: &CStr) -> nix::Result<bool> {
        Ok(false)
    }
}

/// A rename changes the ctime of the top.
fn of_top(stat: &FileStat) -> u64 {
    with_content(Hash::new(), stat).0
}

fn with_content(hash: Hash, stat: &FileStat) -> Hash {
    let owners = hash
        .number(stat.st_ino)
        .number(stat.st_mode.into())
        .number(stat.st_uid.into())
        .number(stat.st_gid.into());
    owners.signed(stat.st_size).signed(stat.st_mtime).signed(stat.st_mtime_nsec)
}

fn with_times(hash: Hash, stat: &FileStat) -> Hash {
    with_content(hash, stat).signed(stat.st_ctime).signed(stat.st_ctime_nsec)
}

/// FNV-1a of 64 bits: records keep what comes of it, and it has to be the same in each release.
#[derive(Clone, Copy)]
struct Hash(u64);

impl Hash {
    fn new() -> Self {
        Hash(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        Hash(bytes.iter().fold(self.0, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)))
    }

    fn number(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    fn signed(self, number: i64) -> Self {
        self.bytes(&number.to_le_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_its_publication() {
        assert_eq!(Hash::new().bytes(b"foobar").0, 0x8594_4171_f739_67e8);
    }
}
