//! What can be read of a tree, so that two can be compared.

use std::collections::BTreeMap;
use std::ffi::{CString, OsString};
use std::io::{Read, Seek};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::Mode;
use nix::unistd::{Whence, lseek};
use rustix::fs::{IFlags, ioctl_getflags, lgetxattr, llistxattr};

/// What lstat(2) tells and a copy keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    pub mode: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub rdev: u64,
    pub atime: (i64, i64),
    pub mtime: (i64, i64),
    pub links: u64,
    /// The first name of the same file.
    pub same_as: PathBuf,
}

/// What is in a file, and what it takes.
#[derive(Debug, Clone, Default)]
pub struct Contents {
    pub extended: BTreeMap<CString, Vec<u8>>,
    pub flags: Option<IFlags>,
    pub link: Option<PathBuf>,
    /// Where data is, and all bytes.
    pub data: Vec<(u64, u64)>,
    pub bytes: Vec<u8>,
    /// `st_blocks`
    pub blocks: u64,
}

/// By the path below the root, which is the empty path itself.
pub type Metas = BTreeMap<PathBuf, Meta>;

/// The names in a directory, whose access time stays as it is.
fn names(directory: &Path) -> Vec<OsString> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_NOATIME;
    let mut opened = nix::dir::Dir::open(directory, flags, Mode::empty()).expect("open a directory");
    let all = opened
        .iter()
        .map(|entry| OsString::from_vec(entry.expect("an entry").file_name().to_bytes().to_vec()));
    all.filter(|name| name != "." && name != "..").collect()
}

/// Everything below a directory. Nothing is read that would change a time. What is written is on the disk
/// afterwards, so that blocks are what they will be.
pub fn metas(root: &Path) -> Metas {
    nix::unistd::syncfs(std::fs::File::open(root).expect("open")).expect("syncfs");
    let (mut found, mut files) = (Metas::new(), BTreeMap::<_, Vec<PathBuf>>::new());
    let mut todo = vec![PathBuf::new()];
    while let Some(path) = todo.pop() {
        let full = root.join(&path);
        let stat = std::fs::symlink_metadata(&full).expect("lstat");
        if stat.is_dir() {
            todo.extend(names(&full).iter().map(|name| path.join(name)));
        }
        let meta = Meta {
            mode: stat.mode(),
            owner: (stat.uid(), stat.gid()),
            // Those of a directory are its filesystem's affair.
            size: if stat.is_dir() { 0 } else { stat.size() },
            links: if stat.is_dir() { 0 } else { stat.nlink() },
            rdev: stat.rdev(),
            atime: (stat.atime(), stat.atime_nsec()),
            mtime: (stat.mtime(), stat.mtime_nsec()),
            same_as: PathBuf::new(),
        };
        files.entry((stat.dev(), stat.ino())).or_default().push(path.clone());
        found.insert(path, meta);
    }
    for names in files.into_values() {
        let least = names.iter().min().expect("a name").clone();
        for name in names {
            found.get_mut(&name).expect("an entry").same_as = least.clone();
        }
    }
    found
}

fn extended(path: &Path) -> BTreeMap<CString, Vec<u8>> {
    let mut buffer = vec![0; 65536];
    let length = llistxattr(path, &mut buffer[..]).expect("llistxattr");
    let list = buffer[..length].to_vec();
    // xfs shows how it keeps ACLs beside the ACLs themselves.
    let shown = |name: &&[u8]| !name.is_empty() && !name.starts_with(b"trusted.SGI_ACL");
    let names = list.split(|byte| *byte == 0).filter(shown);
    let mut found = BTreeMap::new();
    for name in names.map(|name| CString::new(name).expect("a name")) {
        let length = lgetxattr(path, name.as_c_str(), &mut buffer[..]).expect("lgetxattr");
        found.insert(name, buffer[..length].to_vec());
    }
    found
}

fn data(file: &std::fs::File, size: u64) -> Vec<(u64, u64)> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < size as i64 {
        let start = match lseek(file, at, Whence::SeekData) {
            Err(Errno::ENXIO) => break,
            start => start.expect("SEEK_DATA"),
        };
        at = lseek(file, start, Whence::SeekHole).expect("SEEK_HOLE");
        found.push((start as u64, at as u64));
    }
    found
}

/// What is in one file.
pub fn contents(path: &Path) -> Contents {
    let stat = std::fs::symlink_metadata(path).expect("lstat");
    let mut found = Contents { extended: extended(path), blocks: stat.blocks(), ..Contents::default() };
    if stat.is_symlink() {
        found.link = Some(std::fs::read_link(path).expect("readlink"));
    }
    if stat.is_file() || stat.is_dir() {
        let file =
            std::fs::OpenOptions::new().read(true).custom_flags(libc::O_NOATIME).open(path).expect("open");
        found.flags = ioctl_getflags(&file).ok();
        if stat.is_file() {
            found.data = data(&file, stat.size());
            (&file).rewind().expect("seek");
            (&file).read_to_end(&mut found.bytes).expect("read");
        }
    }
    found
}

/// Asserts that `copy` equals `source`, whose metadata was read before it was copied.
#[track_caller]
pub fn assert_equal(before: &Metas, source: &Path, copy: &Path) {
    let copied = metas(copy);
    assert_eq!(copied.keys().collect::<Vec<_>>(), before.keys().collect::<Vec<_>>());
    for (path, meta) in before {
        assert_eq!(&copied[path], meta, "{}", path.display());
        let (from, to) = (contents(&source.join(path)), contents(&copy.join(path)));
        // Spares a message of megabytes.
        assert!(from.bytes == to.bytes, "the bytes of {}", path.display());
        assert_eq!((&to.extended, &to.link), (&from.extended, &from.link), "{}", path.display());
        // Filesystems allocate more than they were asked for here and there: a hole stays one, at least.
        let is_data = |run: &(u64, u64)| from.data.iter().any(|of| of.0 <= run.0 && run.1 <= of.1);
        assert!(to.data.iter().all(is_data), "{}: {:?} and {:?}", path.display(), to.data, from.data);
        assert_eq!(kept(to.flags), kept(from.flags), "the flags of {}", path.display());
        if meta.size > 0 {
            assert!(to.blocks <= from.blocks + 16, "{}: {} and {}", path.display(), to.blocks, from.blocks);
        }
    }
}

fn kept(flags: Option<IFlags>) -> Option<IFlags> {
    let kept = IFlags::NODUMP | IFlags::NOATIME | IFlags::SYNC | IFlags::DIRSYNC | IFlags::NOCOW;
    flags.map(|flags| flags.intersection(kept))
}
