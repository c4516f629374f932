//! What a file has of the one with the same path in an earlier tree: see [`Basis`].

use std::collections::HashMap;
use std::ffi::CStr;
use std::ops::Range;
use std::os::fd::OwnedFd;

use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, fstat};
use nix::sys::uio::pread;
use nix::unistd::linkat;

use super::super::super::{Change, Disks, Extent, FileId, Reuse, Side, Sides, each_sent};
use super::super::copy::extents_of;
use super::super::open::{offset as signed, uninterrupted};
use super::super::walk::{open_below, open_to_read};
use super::super::{id_of, kind_bits};
use super::attributes::Attributes;
use super::content::{Content, set_size, unsigned};
use super::report::{Fault, Report, call};
use super::{open_source, path_of};
use hostloop_model::tree::{Basis, Item};

/// A regular file of the earlier tree, open.
pub(super) struct Earlier<'a> {
    file: OwnedFd,
    disks: Disks<'a>,
    size: u64,
    attributes: Attributes,
    /// It has one name.
    is_alone: bool,
    /// It can become the later file: no other file of the later tree becomes the same one, as another of its names could.
    is_free: bool,
}

/// The earlier files with several names, and the number of the first entry that has the name of one.
pub(super) type Owners = HashMap<FileId, u64>;

/// One of the two files.
struct File<'a>(&'a OwnedFd, Disks<'a>);

/// The same directory of the earlier tree, if it has one.
pub(super) fn directory(parent: &OwnedFd, name: &CStr) -> Result<Option<OwnedFd>, Fault> {
    match open_source(parent, name) {
        Err(Errno::ENOENT | Errno::ENOTDIR | Errno::ELOOP) => Ok(None),
        opened => opened.map(Some).map_err(call("open the earlier")),
    }
}

/// The regular file of this name, if there is one.
fn seen(parent: &OwnedFd, name: &CStr) -> Result<Option<(OwnedFd, FileStat)>, Fault> {
    let seen = match open_below(parent, name, OFlag::O_PATH) {
        Err(Errno::ENOENT) => return Ok(None),
        seen => seen.map_err(call("open the earlier"))?,
    };
    let stat = fstat(&seen).map_err(call("stat the earlier"))?;
    Ok((kind_bits(&stat) == libc::S_IFREG).then_some((seen, stat)))
}

/// Reports whether this entry of the later tree is the first one with a name of the earlier file, and remembers it. A reader that goes on
/// in the middle asks for each entry before, so that it says the same.
pub(super) fn owns(parent: &OwnedFd, name: &CStr, number: u64, owners: &mut Owners) -> Result<bool, Fault> {
    Ok(match seen(parent, name)? {
        Some((_, stat)) if stat.st_nlink > 1 => *owners.entry(id_of(&stat)).or_insert(number) == number,
        _ => true,
    })
}

impl<'a> Earlier<'a> {
    /// The regular file of this name, if there is one. `is_free` says whether it can become the later file.
    pub(super) fn find(
        parent: &OwnedFd,
        name: &CStr,
        (disks, is_free): (Disks<'a>, bool),
    ) -> Result<Option<Self>, Fault> {
        let opening = call("open the earlier");
        let Some((seen, stat)) = seen(parent, name)? else { return Ok(None) };
        let path = path_of(&seen);
        let file = open_to_read(|flags| openat(AT_FDCWD, path.as_str(), flags, Mode::empty()));
        let file = file.map_err(opening)?;
        let attributes = Attributes::read(&file, &stat)?;
        let (size, is_alone) = (unsigned(stat.st_size), stat.st_nlink == 1);
        Ok(Some(Earlier { file, disks, size, attributes, is_alone, is_free }))
    }

    /// What a later file has of it; `None` where whoever waits does not any more.
    pub(super) fn basis(
        &self,
        later: &OwnedFd,
        attributes: &Attributes,
        size: u64,
        emit: &mut dyn FnMut(Item) -> bool,
    ) -> Result<Option<Basis>, Fault> {
        if self.size == 0 && size > 0 {
            return Ok(Some(Basis::Nothing));
        }
        if !self.is_free || self.size != size || !self.attributes.are_as(attributes) {
            return Ok(Some(Basis::Content));
        }
        let (mut differs, mut waits) = (false, true);
        self.sides(later, size).each_change(0, &mut |change| {
            differs = matches!(change, Change::Differs { .. });
            waits = emit(Item::Alive);
            Ok(!differs && waits)
        })?;
        Ok(waits.then_some(if differs { Basis::Content } else { Basis::Everything }))
    }

    /// Tells what differs in a later file of so many bytes, from `begin` on. Whether whoever waits took all.
    pub(super) fn changes(
        &self,
        later: &OwnedFd,
        size: u64,
        begin: u64,
        emit: &mut dyn FnMut(Item) -> bool,
    ) -> Result<bool, Fault> {
        self.sides(later, size).each_change(begin, &mut |change| {
            Ok(match change {
                Change::None { .. } => emit(Item::Alive),
                Change::Differs { range, bytes } => {
                    each_sent(range.start, bytes, &mut |sent| emit(sent.into()))
                }
            })
        })
    }

    fn sides<'b>(&'b self, later: &'b OwnedFd, size: u64) -> Sides<File<'b>> {
        Sides::new((File(&self.file, self.disks), self.size), (File(later, self.disks), size))
    }
}

/// What is said where the earlier tree is not the one that it is taken for.
const NOT_THERE: Fault = Fault::Call("find the earlier", Errno::EBADMSG);

/// How a new file is opened.
const NEW: OFlag =
    OFlag::O_RDWR.union(OFlag::O_CREAT).union(OFlag::O_EXCL).union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);

impl Content {
    /// Makes a regular file of so many bytes, with what it has of the one with its name in a directory of the earlier tree.
    /// Open for what differs, unless it has everything.
    pub(super) fn make(
        &mut self,
        (base, basis, reuse): (Option<&OwnedFd>, Basis, Reuse),
        to: &OwnedFd,
        name: &CStr,
        (size, attributes): (u64, &Attributes),
    ) -> Result<Option<OwnedFd>, Fault> {
        let earlier = match (basis, base) {
            (Basis::Nothing, _) => None,
            (_, Some(base)) => Some((base, Earlier::find(base, name, (Disks::One, true))?.ok_or(NOT_THERE)?)),
            (_, None) => return Err(NOT_THERE),
        };
        if let Some((base, earlier)) = earlier.as_ref().filter(|_| basis == Basis::Everything) {
            if earlier.size != size {
                return Err(NOT_THERE);
            }
            if link(base, to, name)? {
                attributes.apply_access_time(&open_below(to, name, OFlag::O_PATH).map_err(call("open"))?)?;
                return Ok(None);
            }
        }
        // A file with several names may be several files later.
        let is_alone = |earlier: &Earlier<'_>| earlier.is_alone && reuse == Reuse::InPlace;
        if let Some((base, earlier)) = earlier.as_ref().filter(|(_, earlier)| is_alone(earlier))
            && link(base, to, name)?
        {
            let file = open_below(to, name, OFlag::O_RDWR).map_err(call("open"))?;
            earlier.attributes.remove_extended(&file)?;
            set_size(&file, size)?;
            return Ok(Some(file));
        }
        let file = openat(to, name, NEW, Mode::S_IRUSR | Mode::S_IWUSR).map_err(call("make"))?;
        attributes.prepare(&file);
        if let Some((_, Earlier { file: from, .. })) = &earlier {
            let stat = fstat(from).map_err(call("stat the earlier"))?;
            let mut no_progress = |_| Ok(());
            self.copy(from, &file, &stat, &mut Report::new(&mut no_progress))?;
        }
        set_size(&file, size)?;
        Ok(Some(file))
    }
}

/// Gives the earlier file its name in the new tree as well. Whether it did: not so where it has too many names, or where the
/// filesystem has no links.
fn link(base: &OwnedFd, to: &OwnedFd, name: &CStr) -> Result<bool, Fault> {
    match linkat(base, name, to, name, AtFlags::empty()) {
        Err(Errno::EMLINK | Errno::EPERM | Errno::EXDEV | Errno::EOPNOTSUPP) => Ok(false),
        linked => linked.map(|()| true).map_err(call("link the earlier")),
    }
}

/// Returns the parts of an extent, of which those in the changed ranges of the disk tell no place.
fn apart(extent: Extent, changed: &[Range<u64>]) -> Vec<Extent> {
    let begin = extent.physical;
    let end = begin.saturating_add(extent.length);
    if !extent.located {
        return vec![extent];
    }
    let part = |from: u64, to: u64, located| Extent {
        logical: extent.logical.saturating_add(from - begin),
        physical: from,
        length: to - from,
        located,
        ..extent
    };
    let (mut parts, mut at) = (Vec::new(), begin);
    let first = changed.partition_point(|range| range.end <= begin);
    for range in changed.iter().skip(first).take_while(|range| range.start < end) {
        let (from, to) = (range.start.max(at), range.end.min(end));
        parts.extend((at < from).then(|| part(at, from, true)));
        parts.push(part(from, to, false));
        at = to;
    }
    parts.extend((at < end).then(|| part(at, end, true)));
    parts
}

impl Side for File<'_> {
    type Error = Fault;

    fn extents(&self, at: u64, most: usize) -> Result<Option<Vec<Extent>>, Fault> {
        if self.1 == Disks::Unrelated {
            return Ok(None);
        }
        let found = match extents_of(self.0, at, most, true) {
            Err(Errno::EOPNOTSUPP) => return Ok(None),
            found => found.map_err(call("read the extents of"))?,
        };
        Ok(Some(match self.1 {
            Disks::Images(changed) => found.into_iter().flat_map(|extent| apart(extent, changed)).collect(),
            Disks::One | Disks::Unrelated => found,
        }))
    }

    fn read(&self, at: u64, len: usize) -> Result<Vec<u8>, Fault> {
        let mut bytes = vec![0; len];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            let position = at.saturating_add(filled as u64);
            match uninterrupted(|| pread(self.0, &mut *rest, signed(position)?)).map_err(call("read"))? {
                0 => break,
                count => filled += count,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }
}
