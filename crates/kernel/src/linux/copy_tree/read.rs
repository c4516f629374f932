//! A tree as a stream of entries: see [`Trees::read`](super::super::super::Trees::read).
//!
//! The tree is a copy that nobody else can reach, so reading it twice gives the same twice. All the same, every name is
//! opened relative to its directory, never through a link and never across a mount.
//!
//! Beside an earlier tree, the directories of both are walked in step, as long as both have them. Below [`MAX_OPEN`] levels
//! nothing is looked for in the earlier one: so deep, files are sent whole.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::sys::uio::pread;

use super::super::super::{Base, Disks, FileId, Runs};
use super::super::open::{offset as signed, uninterrupted};
use super::super::walk::{open_below, open_to_read};
use super::super::{at, id_of, kind_bits};
use super::attributes::Attributes;
use super::basis::{self, Earlier, Owners};
use super::content::{next_data, unsigned};
use super::report::{Fault, call};
use super::{open_source, path_of};
use hostloop_model::pull::Piece;
use hostloop_model::tree::{Basis, Entry, Item, Kind, Position};

/// Levels that stay open; the others are opened again through `..` on the way up.
const MAX_OPEN: usize = 64;

struct Level {
    name: CString,
    directory: Option<OwnedFd>,
    id: FileId,
    number: u64,
    /// What is still to do, the next one last.
    names: Vec<CString>,
    /// The same directory of the earlier tree.
    base: Option<OwnedFd>,
}

struct Walk<'a> {
    source: &'a Path,
    /// Where the blocks of the earlier tree are.
    disks: Disks<'a>,
    from: Position,
    emit: &'a mut dyn FnMut(Item) -> bool,
    levels: Vec<Level>,
    /// Number of the next entry.
    next: u64,
    /// The numbers of files with several names.
    linked: HashMap<FileId, u64>,
    owners: Owners,
}

/// Whether to go on.
type Going = Result<bool, Fault>;

/// Reads the tree below `source`; how many entries it has.
///
/// # Errors
/// EXDEV at a mount, and those of the system calls.
pub(in super::super) fn read_tree(
    source: &Path,
    base: Option<Base<'_>>,
    from: Position,
    emit: &mut dyn FnMut(Item) -> bool,
) -> io::Result<u64> {
    let disks = base.map_or(Disks::Unrelated, |base| base.disks);
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let open_top =
        |top: &Path| open_to_read(|read| open(top, read | flags, Mode::empty())).map_err(at("open", top));
    let (top, base) = (open_top(source)?, base.map(|base| open_top(base.path)).transpose()?);
    let (levels, linked, owners) = (Vec::new(), HashMap::new(), Owners::new());
    let mut walk = Walk { source, disks, from, emit, levels, next: 0, linked, owners };
    let mut going = walk.directory(CString::default(), (top, base), 0).map_err(|fault| fault.at(source))?;
    while going {
        let Some(name) = walk.levels.last_mut().and_then(|level| level.names.pop()) else {
            match walk.up().map_err(|fault| fault.at(&walk.path(c"")))? {
                true => continue,
                false => break,
            }
        };
        going = walk.entry(&name).map_err(|fault| fault.at(&walk.path(&name)))?;
    }
    Ok(walk.next)
}

impl Walk<'_> {
    /// The path of an entry of the current directory, for messages.
    fn path(&self, name: &CStr) -> PathBuf {
        use std::os::unix::ffi::OsStrExt;
        let names = self.levels.iter().map(|level| level.name.as_c_str()).chain([name]);
        let names = names.filter(|name| !name.is_empty());
        let mut path = self.source.to_owned();
        path.extend(names.map(|name| std::ffi::OsStr::from_bytes(name.to_bytes())));
        path
    }

    /// Emits a directory and reads its names.
    fn directory(&mut self, name: CString, (opened, base): (OwnedFd, Option<OwnedFd>), parent: u64) -> Going {
        let stat = fstat(&opened).map_err(call("stat"))?;
        let number = self.next;
        self.next += 1;
        if number >= self.from.entry {
            let attributes = Attributes::read(&opened, &stat)?.to_send();
            let name = name.to_bytes().to_vec();
            let (kind, linked, basis) = (Kind::Directory, false, Basis::Nothing);
            if !(self.emit)(Item::Entry(Entry { number, parent, name, kind, linked, attributes, basis })) {
                return Ok(false);
            }
        }
        let names = names(&opened).map_err(call("read"))?;
        if self.levels.len() >= MAX_OPEN
            && let Some(above) = self.levels.last_mut()
        {
            above.directory = None;
        }
        self.levels.push(Level { name, directory: Some(opened), id: id_of(&stat), number, names, base });
        Ok(true)
    }

    /// Leaves the current directory. Whether there is anything above.
    fn up(&mut self) -> Going {
        let Some(done) = self.levels.pop() else { return Ok(false) };
        let Some(above) = self.levels.last_mut() else { return Ok(false) };
        if above.directory.is_none() {
            let here = done.directory.ok_or(Fault::Call("find", Errno::ESTALE))?;
            let opened = open_source(&here, c"..").map_err(call("open above"))?;
            if id_of(&fstat(&opened).map_err(call("stat above"))?) != above.id {
                return Err(Fault::Call("find above", Errno::ESTALE));
            }
            above.directory = Some(opened);
        }
        Ok(true)
    }

    /// An entry of the current directory, with what is in it unless it is a directory.
    fn entry(&mut self, name: &CStr) -> Going {
        let beside = self.levels.len() < MAX_OPEN;
        let Some((parent, directory, base)) = self.levels.last().and_then(|level| {
            Some((level.number, level.directory.as_ref()?, level.base.as_ref().filter(|_| beside)))
        }) else {
            return Err(Fault::Call("find", Errno::ESTALE));
        };
        let file = open_below(directory, name, OFlag::O_PATH).map_err(call("open"))?;
        let stat = fstat(&file).map_err(call("stat"))?;
        if kind_bits(&stat) == libc::S_IFDIR {
            let opened = open_source(directory, name).map_err(call("open"))?;
            let base = base.map_or(Ok(None), |base| basis::directory(base, name))?;
            return self.directory(name.to_owned(), (opened, base), parent);
        }
        let number = self.next;
        self.next += 1;
        let first = (stat.st_nlink > 1).then(|| *self.linked.entry(id_of(&stat)).or_insert(number));
        let is_file = kind_bits(&stat) == libc::S_IFREG && first.is_none_or(|first| first == number);
        let base = base.filter(|_| is_file);
        let is_free = base.map_or(Ok(true), |base| basis::owns(base, name, number, &mut self.owners))?;
        if number + 1 < self.from.entry {
            return Ok(true);
        }
        let entry = Entry {
            number,
            parent,
            name: name.to_bytes().to_vec(),
            kind: Kind::Link { entry: first.unwrap_or(number) },
            linked: first == Some(number),
            attributes: Default::default(),
            basis: Basis::Nothing,
        };
        match kind_bits(&stat) {
            _ if first.is_some_and(|first| first < number) => {
                Ok(self.has(number) || (self.emit)(Item::Entry(entry)))
            }
            libc::S_IFREG => {
                let how = (self.disks, is_free);
                let earlier = base.map_or(Ok(None), |base| Earlier::find(base, name, how))?;
                self.regular(&file, entry, earlier)
            }
            kind => {
                if self.has(number) {
                    return Ok(true);
                }
                let kind = match kind {
                    libc::S_IFLNK => {
                        use std::os::unix::ffi::OsStringExt;
                        let target = readlinkat(&file, c"").map_err(call("read the link"))?.into_vec();
                        Kind::Symlink { target }
                    }
                    file_type => Kind::Special { file_type, rdev: stat.st_rdev },
                };
                let attributes = Attributes::read(&file, &stat)?.to_send();
                Ok((self.emit)(Item::Entry(Entry { kind, attributes, ..entry })))
            }
        }
    }

    /// Whether the reader has this entry already; its data may still be wanted.
    fn has(&self, number: u64) -> bool {
        number < self.from.entry
    }

    fn regular(&mut self, file: &OwnedFd, entry: Entry, earlier: Option<Earlier<'_>>) -> Going {
        let path = path_of(file);
        let opened = open_to_read(|flags| openat(AT_FDCWD, path.as_str(), flags, Mode::empty()));
        let opened = opened.map_err(call("open"))?;
        let stat = fstat(&opened).map_err(call("stat"))?;
        let size = unsigned(stat.st_size);
        let attributes = Attributes::read(&opened, &stat)?;
        let basis = match &earlier {
            None => Basis::Nothing,
            Some(earlier) => match earlier.basis(&opened, &attributes, size, self.emit)? {
                Some(basis) => basis,
                None => return Ok(false),
            },
        };
        let begin = if self.has(entry.number) { self.from.offset } else { 0 };
        let kind = Kind::File { size };
        if !self.has(entry.number)
            && !(self.emit)(Item::Entry(Entry { kind, attributes: attributes.to_send(), basis, ..entry }))
        {
            return Ok(false);
        }
        match (basis, &earlier) {
            (Basis::Everything, _) => Ok(true),
            (Basis::Content, Some(earlier)) => earlier.changes(&opened, size, begin, self.emit),
            _ => self.data(&opened, &stat, begin),
        }
    }

    fn data(&mut self, file: &OwnedFd, stat: &FileStat, begin: u64) -> Going {
        let size = unsigned(stat.st_size);
        let mut runs = Runs::new(begin, |at| if at < size { next_data(file, at, size) } else { Ok(None) });
        while let Some((start, end)) = runs.next_run()? {
            let mut at = start;
            while at < end {
                let want = usize::try_from(end - at).unwrap_or(Piece::MOST).min(Piece::MOST);
                let mut data = vec![0; want];
                let count = uninterrupted(|| pread(file, &mut data, signed(at)?)).map_err(call("read"))?;
                if count == 0 {
                    return Err(Fault::Call("read to the end of", Errno::EIO));
                }
                data.truncate(count);
                let piece = Piece::new(at, data);
                at += count as u64;
                if !(self.emit)(Item::Data(piece)) {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }
}

/// Returns the names in a directory in descending order.
pub(super) fn names(directory: &OwnedFd) -> nix::Result<Vec<CString>> {
    // Through a second description: the iterator borrows its own.
    let mut reader = open_source(directory, c".").and_then(Dir::from_fd)?;
    let mut names = Vec::new();
    for entry in reader.iter() {
        let entry = entry?;
        let name = entry.file_name();
        if name != c"." && name != c".." {
            names.push(name.to_owned());
        }
    }
    names.sort_unstable_by(|one, other| other.cmp(one));
    Ok(names)
}
