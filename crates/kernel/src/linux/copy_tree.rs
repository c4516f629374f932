//! Copying a whole tree, with everything of its files that can be read and set again.
//!
//! The source may be in use by a pod, which may also be hostile. Every name is opened relative to its directory with
//! openat2(2), never through a link and never across a mount, and as a bare reference (O_PATH) until it is known what it
//! is, so that no device is opened. The target is new and nobody else's.
//!
//! Two stacks of directories are walked in step. As in [`walk`](super::walk), only the upper levels stay open; the others
//! are opened again through `..` on the way up.
//!
//! One syncfs(2) at the end makes the copy durable. An fsync(2) for each file would wait for the disk and commit the
//! journal once for each, which takes several times as long as the whole copy. syncfs(2) also waits for what others have
//! written to the filesystem, which is bounded by how much the kernel allows to be dirty. It reports errors of writing
//! back since the descriptor was opened (Linux 5.8), so the descriptor is opened before the first byte is written. An
//! error of somebody else's file fails the copy too, which costs a retry and no data.

mod attributes;
mod basis;
mod content;
mod levels;
mod lift;
mod links;
mod memory;
mod read;
mod report;
mod write;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat, mknodat};
use nix::unistd::{symlinkat, syncfs};

use self::attributes::Attributes;
use self::content::Content;
use self::levels::{Level, Levels, Opened};
use self::links::Links;
use self::report::{Fault, Report, call};
use super::super::FileId;
use super::trees::split;
use super::walk::{open_below, open_to_read};
use super::{at, id_of, kind_bits};

pub(super) use lift::lift;
pub(super) use read::read_tree;
pub(super) use write::Writer;

/// Opens a directory below an open one, on the same mount.
fn open_source(parent: impl AsFd, name: &CStr) -> nix::Result<OwnedFd> {
    open_to_read(|flags| open_below(&parent, name, flags | OFlag::O_DIRECTORY))
}

/// The file that a descriptor stands for, whatever it is, as a path: the kernel goes to the file itself, and does not
/// follow it if it is a link (proc_pid_fd(5)).
fn path_of(file: impl AsFd) -> String {
    use std::os::fd::AsRawFd;
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

/// Makes a directory of the target and opens it. Nobody but root gets in before it has its own mode.
fn make_directory(parent: impl AsFd, name: &CStr) -> nix::Result<OwnedFd> {
    mkdirat(&parent, name, Mode::S_IRWXU)?;
    open_below(&parent, name, OFlag::O_RDONLY | OFlag::O_DIRECTORY)
}

/// Copies the directory `source` to `target`: see [`Trees::copy`](super::super::Trees::copy).
///
/// # Errors
/// EEXIST where `target` is there, EXDEV at a mount inside `source`, EINVAL where `target` lies inside `source`, what
/// `progress` returns, and those of the system calls. What was made by then stays.
pub(super) fn copy_tree(
    source: &Path,
    target: &Path,
    share: bool,
    progress: &mut dyn FnMut(u64) -> io::Result<()>,
) -> io::Result<()> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let from = open_to_read(|read| open(source, read | flags, Mode::empty())).map_err(at("open", source))?;
    let (parent, name) = split(target).map_err(at("open the parent of", target))?;
    let to = make_directory(&parent, &name).map_err(at("mkdir", target))?;
    // A default ACL of the parent is not one of the copy; what is made below would inherit it.
    attributes::remove_acls(&to).map_err(at("remove the inherited ACL of", target))?;
    // It reports errors from here on, so it has to be open before anything is written.
    let root = to.try_clone().map_err(at("open", target))?;
    let mut copy = Copy {
        source,
        root_id: id_of(&fstat(&root).map_err(at("stat", target))?),
        links: Links::new(root),
        content: Content::new(share),
        report: Report::new(progress),
    };
    copy.tree(from, to)?;
    copy.report.now().map_err(|fault| fault.at(source))?;
    syncfs(copy.links.root()).map_err(at("syncfs", target))
}

/// What an entry turned out to be.
#[derive(PartialEq, Eq)]
enum Met {
    /// A directory, which is not copied yet.
    Directory,
    /// Anything else: it is copied, or it was gone.
    Done,
}

/// One copy on its way.
struct Copy<'a> {
    source: &'a Path,
    /// The target, which must not be met in the source.
    root_id: FileId,
    links: Links<FileId>,
    content: Content,
    report: Report<'a>,
}

impl Copy<'_> {
    fn tree(&mut self, source: OwnedFd, target: OwnedFd) -> io::Result<()> {
        let root = Opened { source, target };
        let mut levels = Levels::new(Level::new(CString::default(), root).map_err(|f| f.at(self.source))?);
        self.read(&mut levels)?;
        loop {
            if let Some(name) = levels.next_directory() {
                self.directory(&mut levels, name)?;
                continue;
            }
            match levels.finish() {
                Ok(true) => {}
                Ok(false) => return Ok(()),
                Err((name, fault)) => return Err(fault.at(&self.path(&levels, &name))),
            }
        }
    }

    /// The path of an entry of the current directory, for messages.
    fn path(&self, levels: &Levels, name: &CStr) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let mut path = self.source.to_owned();
        let names = levels.names().chain([name]).filter(|name| !name.is_empty());
        path.extend(names.map(|name| std::ffi::OsStr::from_bytes(name.to_bytes())));
        path
    }

    /// Enters a directory of the current one and copies what is in it but for directories.
    fn directory(&mut self, levels: &mut Levels, name: CString) -> io::Result<()> {
        match self.enter(levels, &name).map_err(|fault| fault.at(&self.path(levels, &name)))? {
            Some(level) => {
                levels.push(level);
                self.read(levels)
            }
            None => Ok(()),
        }
    }

    /// Opens a directory and its copy; nothing where it is gone or no directory any more.
    fn enter(&mut self, levels: &mut Levels, name: &CStr) -> Result<Option<Level>, Fault> {
        self.report.entry()?;
        let Some(here) = levels.here() else {
            return Ok(None);
        };
        let source = match open_source(here.source, name) {
            Err(Errno::ENOENT) => return Ok(None),
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                // It was one a moment ago. If it is one again, somebody plays; it is left out then.
                return self.entry(levels, name).map(|_| None);
            }
            result => result.map_err(call("open"))?,
        };
        if id_of(&fstat(&source).map_err(call("stat"))?) == self.root_id {
            return Err(Fault::Call("copy a directory into itself:", Errno::EINVAL));
        }
        match make_directory(here.target, name) {
            // The same name was met twice: a file took the place of another while the directory was read.
            Err(Errno::EEXIST) => Ok(None),
            result => {
                let target = result.map_err(call("make the copy of"))?;
                Level::new(name.to_owned(), Opened { source, target }).map(Some)
            }
        }
    }

    /// Reads the current directory: what is a directory is noted for later, all else is copied at once.
    fn read(&mut self, levels: &mut Levels) -> io::Result<()> {
        let Some(here) = levels.here() else {
            return Ok(());
        };
        // Through a second description: the iterator borrows its own.
        let reader = open_source(here.source, c".").and_then(Dir::from_fd).map_err(call("open"));
        let mut reader = reader.map_err(|fault| fault.at(&self.path(levels, c"")))?;
        for entry in reader.iter() {
            let entry = match entry {
                // The directory itself was removed.
                Err(Errno::ENOENT) => break,
                entry => entry.map_err(|errno| call("read")(errno).at(&self.path(levels, c"")))?,
            };
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            let met = match entry.file_type() {
                Some(Type::Directory) => Ok(Met::Directory),
                _ => self.report.entry().and_then(|()| self.entry(levels, name)),
            };
            if met.map_err(|fault| fault.at(&self.path(levels, name)))? == Met::Directory {
                levels.later(name.to_owned());
            }
        }
        Ok(())
    }

    /// Copies an entry of the current directory unless it is a directory.
    fn entry(&mut self, levels: &mut Levels, name: &CStr) -> Result<Met, Fault> {
        let Some(here) = levels.here() else {
            return Ok(Met::Done);
        };
        let file = match open_below(here.source, name, OFlag::O_PATH) {
            Err(Errno::ENOENT) => return Ok(Met::Done),
            result => result.map_err(call("open"))?,
        };
        let stat = fstat(&file).map_err(call("stat"))?;
        if kind_bits(&stat) == libc::S_IFDIR {
            return Ok(Met::Directory);
        }
        if stat.st_nlink > 1 && self.links.link(here.target, &id_of(&stat), name)? {
            return Ok(Met::Done);
        }
        let made = match levels.here() {
            Some(here) => self.file(&file, &stat, here.target, name)?,
            None => false,
        };
        if made && stat.st_nlink > 1 {
            self.links.remember(levels.way(), id_of(&stat), name);
        }
        Ok(Met::Done)
    }

    /// Copies anything but a directory; whether it did, which it does not where the name was met before.
    fn file(&mut self, file: &OwnedFd, stat: &FileStat, to: &OwnedFd, name: &CStr) -> Result<bool, Fault> {
        let made = match kind_bits(stat) {
            libc::S_IFREG => return self.regular(file, to, name),
            libc::S_IFLNK => readlinkat(file, c"").and_then(|link| symlinkat(link.as_os_str(), to, name)),
            kind => {
                let kind = SFlag::from_bits_truncate(kind);
                mknodat(to, name, kind, Mode::S_IRUSR | Mode::S_IWUSR, stat.st_rdev)
            }
        };
        match made {
            Err(Errno::EEXIST) => return Ok(false),
            made => made.map_err(call("make the copy of"))?,
        }
        let attributes = Attributes::read(file, stat)?;
        let target = open_below(to, name, OFlag::O_PATH).map_err(call("open the copy of"))?;
        attributes.apply(&target)?;
        Ok(true)
    }

    fn regular(&mut self, file: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<bool, Fault> {
        let path = path_of(file);
        // Not by its name, which may mean something else by now.
        let source = open_to_read(|flags| openat(AT_FDCWD, path.as_str(), flags, Mode::empty()));
        let source = source.map_err(call("open"))?;
        let stat = fstat(&source).map_err(call("stat"))?;
        let attributes = Attributes::read(&source, &stat)?;
        let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let target = match openat(to, name, flags, Mode::S_IRUSR | Mode::S_IWUSR) {
            Err(Errno::EEXIST) => return Ok(false),
            result => result.map_err(call("make the copy of"))?,
        };
        attributes.prepare(&target);
        self.content.copy(&source, &target, &stat, &mut self.report)?;
        attributes.apply(&target)?;
        Ok(true)
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files of the test")]
mod tests {
    use super::*;

    /// A file took the place of another while the directory was read, so that the name was met twice. What lies there by
    /// now may be a link, or a file with several names.
    #[test]
    fn a_name_that_was_met_before_is_left_as_it_is() {
        let temp = tempfile::tempdir().expect("tempdir");
        let [from, to] = ["from", "to"].map(|name| temp.path().join(name));
        for directory in [&from, &to] {
            std::fs::create_dir(directory).expect("mkdir");
        }
        let opened = |path: &Path| OwnedFd::from(std::fs::File::open(path).expect("open"));
        let (source, target) = (opened(&from), opened(&to));
        let outside = temp.path().join("outside");
        std::fs::write(&outside, b"of somebody else").expect("write");
        std::fs::write(to.join("file"), b"the first").expect("write");
        std::os::unix::fs::symlink(&outside, to.join("link")).expect("link");
        std::os::unix::fs::symlink(temp.path().join("nothing"), to.join("dangling")).expect("link");
        let mut progress = |_| Ok(());
        let mut copy = Copy {
            source: &from,
            root_id: id_of(&fstat(&target).expect("stat")),
            links: Links::new(opened(&to)),
            content: Content::new(false),
            report: Report::new(&mut progress),
        };
        for name in [c"file", c"link", c"dangling"] {
            std::fs::write(from.join(name.to_str().expect("a name")), b"the second").expect("write");
            let file = open_below(&source, name, OFlag::O_PATH).expect("open");
            let made = copy.file(&file, &fstat(&file).expect("stat"), &target, name);
            assert!(matches!(made, Ok(false)), "{name:?}");
        }
        assert_eq!(std::fs::read(to.join("file")).expect("read"), b"the first");
        assert_eq!(std::fs::read(&outside).expect("read"), b"of somebody else");
        assert!(!temp.path().join("nothing").exists());
    }
}
