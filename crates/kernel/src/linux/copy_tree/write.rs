//! A tree made from a stream of entries: see [`Trees::write`](super::super::super::Trees::write).

#[cfg(test)]
mod tests;

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate, open};
use nix::sys::stat::{Mode, SFlag, fstat, mknodat};
use nix::sys::uio::pwrite;
use nix::unistd::{symlinkat, syncfs};

use super::super::super::{FileId, Reuse, TreeWriter};
use super::super::open::{offset as signed, uninterrupted};
use super::super::trees::split;
use super::super::walk::{open_below, open_to_read};
use super::super::{at, id_of};
use super::attributes::{self, Attributes};
use super::basis;
use super::content::{Content, write_back};
use super::links::Links;
use super::make_directory;
use super::memory::Memory;
use super::report::{Fault, call};
use hostloop_model::pull::Piece;
use hostloop_model::tree::{Entry, Kind};

/// Levels that stay open; the others are opened again through `..` on the way up.
const MAX_OPEN: usize = 64;

/// The limit for extended attributes that wait until their directories are filled, in bytes. The ACLs
/// and labels of all directories on one path usually take a small part of it. Nodes in wrong hands can have 15 such trees
/// written at a time.
const MAX_WAITING: usize = 1 << 20;

/// The bytes of memory that a directory of the way takes in addition to its name, and a file with several names, with what
/// collections and the allocator add. A directory that leads to such a file is kept as long as the file is.
const LEVEL: usize = 320;
const LINKED: usize = 112;
const LEADS: usize = 80;

/// The longest path in a message, in bytes: PATH_MAX.
const LONGEST_PATH: usize = 4096;

/// A directory that is not finished.
struct Level {
    name: CString,
    number: u64,
    directory: Option<OwnedFd>,
    id: FileId,
    /// Given to it when nothing is made in it any more. The top has none before its entry came.
    attributes: Option<Attributes>,
    /// The bytes of the extended attributes that wait until the directory is filled.
    extended: usize,
    place: Option<usize>,
    /// The same directory of the earlier tree.
    base: Option<OwnedFd>,
}

pub(in super::super) struct Writer {
    target: PathBuf,
    /// From the top to the current directory.
    levels: Vec<Level>,
    reuse: Reuse,
    /// By the number of an entry.
    links: Links<u64>,
    /// Open for the data that follow the last entry, where that is a file.
    file: Option<(OwnedFd, Attributes)>,
    content: Content,
    memory: Memory,
}

impl Level {
    /// The bytes of memory that it takes.
    fn bytes(&self) -> usize {
        LEVEL + self.name.as_bytes().len() + self.extended
    }

    fn new(name: CString, number: u64, directory: OwnedFd, base: Option<OwnedFd>) -> nix::Result<Self> {
        let id = id_of(&fstat(&directory)?);
        let (directory, attributes, extended, place) = (Some(directory), None, 0, None);
        Ok(Level { name, number, directory, id, attributes, extended, place, base })
    }

    /// Records the attributes of the directory, and sets those that need not wait.
    fn have(&mut self, mut attributes: Attributes) -> Result<(), Fault> {
        if let Some(directory) = &self.directory {
            self.extended = attributes.apply_early(directory)?;
        }
        self.attributes = Some(attributes);
        Ok(())
    }
}

impl Writer {
    /// Makes the top.
    ///
    /// # Errors
    /// EEXIST where something is there.
    pub(in super::super) fn new(target: &Path, base: Option<(&Path, Reuse)>) -> io::Result<Self> {
        let (base, reuse) = base.unzip();
        let reuse = reuse.unwrap_or(Reuse::Share);
        let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
        let open_base = |base: &Path| {
            open_to_read(|read| open(base, read | flags, Mode::empty())).map_err(at("open", base))
        };
        let base = base.map(open_base).transpose()?;
        let (parent, name) = split(target).map_err(at("open the parent of", target))?;
        let top = make_directory(&parent, &name).map_err(at("mkdir", target))?;
        // A default ACL of the parent is not one of the copy; what is made below would inherit it.
        attributes::remove_acls(&top).map_err(at("remove the inherited ACL of", target))?;
        // It reports errors of writing back from here on, so it has to be open before anything is written.
        let root = top.try_clone().map_err(at("open", target))?;
        let level = Level::new(CString::default(), 0, top, base).map_err(at("stat", target))?;
        let (target, links, content) = (target.to_owned(), Links::new(root), Content::new(true));
        let memory = Memory::new();
        Ok(Writer { target, levels: vec![level], reuse, links, file: None, content, memory })
    }

    fn fault(&self, name: &[u8]) -> impl Fn(Fault) -> io::Error + use<> {
        use std::os::unix::ffi::OsStrExt;
        let mut path = self.target.clone();
        let names = self.levels.iter().map(|level| level.name.to_bytes()).chain([name]);
        for name in names.filter(|name| !name.is_empty()) {
            if path.as_os_str().len() > LONGEST_PATH {
                path.push("…");
                break;
            }
            path.push(std::ffi::OsStr::from_bytes(name));
        }
        move |fault| fault.at(&path)
    }

    /// Goes up to the directory with this number.
    fn go_to(&mut self, parent: u64) -> Result<(), Fault> {
        while self.levels.last().is_some_and(|level| level.number != parent) {
            self.leave()?;
        }
        if self.levels.is_empty() { Err(Fault::Call("find the directory of", Errno::EINVAL)) } else { Ok(()) }
    }

    /// Gives the current directory its attributes and goes up.
    fn leave(&mut self) -> Result<(), Fault> {
        let stale = || Fault::Call("find", Errno::ESTALE);
        let Some(done) = self.levels.pop() else { return Ok(()) };
        if !self.levels.is_empty() {
            self.memory.give_back(done.bytes());
        }
        let here = done.directory.ok_or_else(stale)?;
        if let Some(attributes) = &done.attributes {
            attributes.apply(&here)?;
        }
        let Some(above) = self.levels.last_mut() else { return Ok(()) };
        if above.directory.is_none() {
            let opened = open_below(&here, c"..", OFlag::O_RDONLY | OFlag::O_DIRECTORY);
            let opened = opened.map_err(call("open above"))?;
            if id_of(&fstat(&opened).map_err(call("stat above"))?) != above.id {
                return Err(stale());
            }
            above.directory = Some(opened);
        }
        Ok(())
    }

    /// Gives the file that was written last its attributes.
    fn close_file(&mut self) -> Result<(), Fault> {
        self.file.take().map_or(Ok(()), |(file, attributes)| attributes.apply(&file))
    }

    fn make(&mut self, entry: Entry, name: &CStr) -> Result<(), Fault> {
        let invalid = |errno| Fault::Call("take over the attributes of", errno);
        let kind = match &entry.kind {
            Kind::Directory => libc::S_IFDIR,
            Kind::File { .. } => libc::S_IFREG,
            Kind::Symlink { .. } => libc::S_IFLNK,
            Kind::Special { file_type, .. } => *file_type,
            Kind::Link { .. } => 0,
        };
        let attributes = Attributes::of(kind, entry.attributes).map_err(invalid)?;
        let to = self.levels.last().and_then(|level| level.directory.as_ref());
        let to = to.ok_or(Fault::Call("find the directory of", Errno::ESTALE))?;
        match &entry.kind {
            Kind::Directory => return self.enter(entry.number, name, attributes),
            Kind::Link { entry } => {
                return match self.links.link(to, entry, name)? {
                    true => Ok(()),
                    false => Err(Fault::Call("find what is linked as", Errno::EINVAL)),
                };
            }
            Kind::File { size } => {
                let base = self.levels.last().and_then(|level| level.base.as_ref());
                let basis = (base, entry.basis, self.reuse);
                if let Some(made) = self.content.make(basis, to, name, (*size, &attributes))? {
                    self.file = Some((made, attributes));
                }
            }
            Kind::Symlink { target } => {
                symlinkat(target.as_slice(), to, name).map_err(call("make"))?;
                attributes.apply(&open_below(to, name, OFlag::O_PATH).map_err(call("open"))?)?;
            }
            Kind::Special { file_type, rdev } => {
                if ![libc::S_IFIFO, libc::S_IFSOCK, libc::S_IFCHR, libc::S_IFBLK].contains(file_type) {
                    return Err(Fault::Call("make", Errno::EINVAL));
                }
                let kind = SFlag::from_bits_truncate(*file_type);
                mknodat(to, name, kind, Mode::S_IRUSR | Mode::S_IWUSR, *rdev).map_err(call("make"))?;
                attributes.apply(&open_below(to, name, OFlag::O_PATH).map_err(call("open"))?)?;
            }
        }
        if entry.linked {
            let new = self.levels.iter().skip(1).filter(|level| level.place.is_none());
            let leads: usize = new.map(|level| LEADS + level.name.as_bytes().len()).sum();
            self.memory.take(LINKED + name.to_bytes().len() + leads)?;
            let way = self.levels.iter_mut().skip(1);
            let way = way.map(|level| (level.name.as_c_str(), &mut level.place));
            self.links.remember(way, entry.number, name);
        }
        Ok(())
    }

    fn enter(&mut self, number: u64, name: &CStr, attributes: Attributes) -> Result<(), Fault> {
        if number == 0 {
            return self.levels.first_mut().map_or(Ok(()), |top| top.have(attributes));
        }
        let deep = self.levels.len() >= MAX_OPEN;
        // As whoever reads the tree does.
        let base = self.levels.last().and_then(|level| level.base.as_ref()).filter(|_| !deep);
        let base = base.map_or(Ok(None), |base| basis::directory(base, name))?;
        let Some(above) = self.levels.last_mut() else { return Ok(()) };
        let Some(to) = &above.directory else { return Err(Fault::Call("find", Errno::ESTALE)) };
        let made = make_directory(to, name).map_err(call("make"))?;
        if deep {
            above.directory = None;
        }
        let mut level = Level::new(name.to_owned(), number, made, base).map_err(call("stat"))?;
        level.have(attributes)?;
        self.memory.take(level.bytes())?;
        self.levels.push(level);
        match self.levels.iter().map(|level| level.extended).sum::<usize>() {
            waiting if waiting > MAX_WAITING => Err(Fault::Call("keep the ACLs and labels of", Errno::E2BIG)),
            _ => Ok(()),
        }
    }
}

impl TreeWriter for Writer {
    fn entry(&mut self, entry: Entry) -> io::Result<()> {
        let fault = self.fault(&entry.name);
        let made = self.close_file().and_then(|()| self.go_to(entry.parent)).and_then(|()| {
            let name = CString::new(entry.name.as_slice());
            let name = name.map_err(|_| Fault::Call("make", Errno::EINVAL))?;
            self.make(entry, &name)
        });
        made.map_err(fault)
    }

    fn copied_bytes(&self) -> u64 {
        self.content.copied_bytes()
    }

    fn data(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let fault = self.fault(b"");
        let written =
            self.file.as_ref().ok_or(Fault::Call("write a file in", Errno::EINVAL)).and_then(|(file, _)| {
                let (mut position, mut left) = (offset, bytes);
                while !left.is_empty() {
                    match uninterrupted(|| pwrite(file, left, signed(position)?))
                        .map_err(call("write a file in"))?
                    {
                        0 => return Err(Fault::Call("write a file in", Errno::EIO)),
                        count => {
                            left = left.get(count..).unwrap_or_default();
                            position += count as u64;
                        }
                    }
                }
                if bytes.len() >= Piece::MOST {
                    write_back(file, offset, bytes.len() as u64);
                }
                Ok(())
            });
        written.map_err(fault)
    }

    fn zeros(&mut self, offset: u64, len: u64) -> io::Result<()> {
        let fault = self.fault(b"");
        let file = self.file.as_ref().ok_or(Fault::Call("write a file in", Errno::EINVAL));
        let erased = file.and_then(|(file, _)| {
            let mode = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
            match uninterrupted(|| fallocate(file, mode, signed(offset)?, signed(len)?)) {
                Err(Errno::EOPNOTSUPP) => Ok(false),
                erased => erased.map(|()| true).map_err(call("write zeros to a file in")),
            }
        });
        if erased.map_err(&fault)? {
            return Ok(());
        }
        let zeros = vec![0; Piece::MOST];
        let (mut at, end) = (offset, offset.saturating_add(len));
        while at < end {
            let count = usize::try_from(end - at).unwrap_or(zeros.len()).min(zeros.len());
            self.data(at, zeros.get(..count).unwrap_or_default())?;
            at += count as u64;
        }
        Ok(())
    }

    fn finish(mut self: Box<Self>) -> io::Result<()> {
        let fault = self.fault(b"");
        let mut finished = self.close_file();
        while finished.is_ok() && !self.levels.is_empty() {
            finished = self.leave();
        }
        finished.map_err(fault)?;
        syncfs(self.links.root()).map_err(at("syncfs", &self.target))
    }
}
