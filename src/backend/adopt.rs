//! What becomes the data of a volume, and was made by others: an image or a directory somewhere on this node. Its path leads through
//! a directory that is held open, see `driver/adopt`.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::copy::copy_extents;
use super::image::resize;
use super::{OnProgress, Place, Shape, VolumePaths, record};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{Base, Os};
use crate::model::tree::{Basis, Item, Kind, Position};

/// Bytes that are compared at a time.
const CHUNK: u64 = 1 << 20;

/// Makes the place of a volume whose data come by a rename, with the record in it, and gives an image at `from` the size of the volume.
/// All of it is durable on return.
pub(crate) fn prepare_place(place: Place<'_>, from: &Path, new_record: &[u8]) -> Result<()> {
    let Place { os, paths, volume } = place;
    let preparing = || format!("prepare {}", paths.directory.display());
    os.files.create_directory(&paths.directory, 0o700).doing(preparing)?;
    if let Shape::Blocks(_) = paths.shape() {
        let size = os.files.stat(from).doing(preparing)?.map_or(0, |stat| stat.size);
        if size > volume.capacity_bytes {
            return Err(Error::Unavailable("the image has grown meanwhile; try again".to_owned()));
        }
        // Before the rename: data that are shorter than their record are taken for damaged.
        resize(place, from, volume.capacity_bytes).doing(|| format!("give {} its size", volume.id))?;
        os.files.sync_file(from).doing(preparing)?;
    }
    record::write_new(os, paths, new_record)?;
    os.files.sync_directory(&paths.directory).doing(preparing)?;
    os.files.sync_directory(&paths.parent).doing(preparing)
}

/// Prepares an image that was renamed for writes in place, as far as its filesystem does so.
pub(crate) fn prepare_renamed(place: Place<'_>) {
    if let Shape::Blocks(image) = place.paths.shape()
        && let Err(error) = place.os.images.write_in_place(&image)
    {
        // The next attachment tries again.
        tracing::warn!(volume.id = %place.volume.id, %error, "the image cannot be prepared for writing in place");
    }
}

/// Copies what is at `from` into the prepared files of a volume, or shares its blocks.
///
/// # Errors
/// The kernel's, and those of `progress`.
pub(crate) fn copy_in(
    os: &Os,
    from: &Path,
    to: &VolumePaths,
    share: bool,
    progress: OnProgress<'_>,
) -> Result<()> {
    let copying = || format!("copy to {}", to.directory.display());
    match to.shape() {
        Shape::Blocks(image) if share => os.images.reflink(from, &image).doing(copying),
        Shape::Blocks(image) => copy_extents(os, from, &image, copying, progress),
        Shape::Tree(tree) => {
            let mut stopped = None;
            let mut report = |done: u64| {
                progress(done).map_err(|error| {
                    stopped = Some(error);
                    io::Error::from_raw_os_error(Errno::ECANCELED as i32)
                })
            };
            let copied = os.trees.copy(from, &tree, share, &mut report);
            stopped.map_or_else(|| copied.doing(copying), Err)
        }
    }
}

/// Compares a copy with its source, byte by byte.
///
/// # Errors
/// UNAVAILABLE if they differ: the source was written to meanwhile.
pub(crate) fn expect_same(os: &Os, from: &Path, to: &VolumePaths) -> Result<()> {
    let same = match to.shape() {
        Shape::Blocks(image) => is_same_image(os, from, &image)?,
        Shape::Tree(tree) => is_same_tree(os, from, &tree)?,
    };
    match same {
        true => Ok(()),
        false => Err(Error::Unavailable(
            "the copy differs from its source, which was written to meanwhile; end what uses it, and try again".to_owned(),
        )),
    }
}

/// The copy is new, so that it has data only where the source had some.
fn is_same_image(os: &Os, from: &Path, copy: &Path) -> Result<bool> {
    let comparing = || format!("compare with {}", copy.display());
    let mut at = 0;
    while let Some((start, end)) = os.images.next_data(from, at).doing(comparing)? {
        at = start;
        while at < end {
            let len = usize::try_from((end - at).min(CHUNK)).unwrap_or_default();
            let [read, copied] = [from, copy].map(|file| os.images.read_at(file, at, len).doing(comparing));
            let read = read?;
            if read.is_empty() || read != copied? {
                return Ok(false);
            }
            at += read.len() as u64;
        }
    }
    Ok(true)
}

fn is_same_tree(os: &Os, from: &Path, copy: &Path) -> Result<bool> {
    let comparing = || format!("compare with {}", copy.display());
    let mut seen = Seen { same: true, above: Vec::new(), deep: false };
    let mut look = |item: Item| {
        seen.look(&item);
        seen.same
    };
    let entries =
        os.trees.read(from, Some(Base::beside(copy)), Position::default(), &mut look).doing(comparing)?;
    if !seen.same {
        return Ok(false);
    }
    let behind = Position { entry: u64::MAX, offset: 0 };
    Ok(os.trees.read(copy, None, behind, &mut |_| true).doing(comparing)? == entries)
}

/// The number of levels below which [`Trees::read`](crate::kernel::Trees::read) compares nothing.
const COMPARED: usize = 60;

/// What was seen of a tree beside its copy.
struct Seen {
    same: bool,
    /// The numbers of the directories above the entry.
    above: Vec<u64>,
    /// The entry is too deep to be compared.
    deep: bool,
}

impl Seen {
    fn look(&mut self, item: &Item) {
        match item {
            Item::Entry(entry) => {
                while self.above.last().is_some_and(|last| *last != entry.parent) {
                    self.above.pop();
                }
                self.deep = self.above.len() > COMPARED;
                match entry.kind {
                    Kind::Directory => self.above.push(entry.number),
                    Kind::File { size } if !self.deep => {
                        self.same &= entry.basis != Basis::Nothing || size == 0;
                    }
                    _ => {}
                }
            }
            Item::Alive | Item::End { .. } => {}
            Item::Data(_) | Item::Zeros(_) => self.same &= self.deep,
        }
    }
}
