//! Allocated bytes of several images, with shared ones counted once.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use crate::error::{OsContext, Result};
use crate::kernel::{Extent, Os, is_errno};

/// Extents asked for at a time.
const BATCH: usize = 1024;

pub(crate) struct Tally<'a> {
    os: &'a Os,
    /// The images may share blocks, so that their extents have to be looked at.
    shares: bool,
    own: u64,
    /// What is allocated beside the extents: the tree of a file's extents, where the filesystem counts it so.
    metadata: u64,
    extents: u64,
    /// Start and end on the disk of what has been seen of shared blocks; sorted and apart after `total`.
    shared: Vec<(u64, u64)>,
}

impl<'a> Tally<'a> {
    pub(crate) fn new(os: &'a Os, shares: bool) -> Self {
        Tally { os, shares, own: 0, metadata: 0, extents: 0, shared: Vec::new() }
    }

    /// Adds an image; nothing if it is not there, since it may be going at this moment.
    pub(crate) fn add(&mut self, image: &Path) -> Result<()> {
        self.look_at(image, false)
    }

    /// The same of an image that is written to: of what has no place on the disk yet the kernel tells where the older
    /// bytes lie, so that it is given one first.
    pub(crate) fn add_written(&mut self, image: &Path) -> Result<()> {
        self.look_at(image, true)
    }

    fn look_at(&mut self, image: &Path, sync: bool) -> Result<()> {
        let looking = || format!("look at {}", image.display());
        if !self.shares {
            self.own += self.os.files.stat(image).doing(looking)?.map_or(0, |stat| stat.allocated);
            return Ok(());
        }
        let (own, shared, extents) = (&mut self.own, &mut self.shared, &mut self.extents);
        let mut mapped = 0u64;
        each_extent(self.os, image, sync, |extent| {
            (*extents, mapped) = (*extents + 1, mapped.saturating_add(extent.length));
            match extent.shared && extent.located {
                true => shared.push((extent.physical, extent.physical.saturating_add(extent.length))),
                false => *own = own.saturating_add(extent.length),
            }
        })
        .doing(looking)?;
        let allocated = self.os.files.stat(image).doing(looking)?.map_or(0, |stat| stat.allocated);
        self.metadata = self.metadata.saturating_add(allocated.saturating_sub(mapped));
        Ok(())
    }

    /// What the images have allocated beside their extents, as far as the filesystem tells.
    pub(crate) fn metadata(&self) -> u64 {
        self.metadata
    }

    /// How many extents the images have.
    pub(crate) fn extents(&self) -> u64 {
        self.extents
    }

    /// What of the sum is in blocks that other files have too.
    pub(crate) fn shared(&mut self) -> u64 {
        self.merge();
        self.shared.iter().fold(0, |total, (from, to)| total.saturating_add(to - from))
    }

    fn merge(&mut self) {
        self.shared.sort_unstable();
        self.shared.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
    }

    pub(crate) fn total(&mut self) -> u64 {
        self.own.saturating_add(self.shared())
    }
}

/// Calls `see` for each extent of an image, if it is there.
pub(crate) fn each_extent(os: &Os, image: &Path, sync: bool, mut see: impl FnMut(&Extent)) -> io::Result<()> {
    let mut at = 0;
    loop {
        let extents = match os.images.extents(image, at, BATCH, sync) {
            Err(error) if is_errno(&error, Errno::ENOENT) => return Ok(()),
            extents => extents?,
        };
        let Some(last) = extents.last() else { return Ok(()) };
        at = last.logical.saturating_add(last.length.max(1));
        extents.iter().for_each(&mut see);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloop_fake_kernel::FakeKernel;

    #[test]
    fn shared_extents_count_once() {
        let kernel = FakeKernel::new();
        kernel.set_reflink("/", true);
        for (name, pages) in [("/one", 3), ("/two", 2)] {
            kernel.write_file(name, &vec![1; pages * 4096]).unwrap();
        }
        let os = kernel.spawn();
        os.files.create_file(Path::new("/copy")).unwrap();
        os.images.reflink(Path::new("/one"), Path::new("/copy")).unwrap();
        kernel.sync("/").unwrap();
        let sum = |shares| {
            let mut tally = Tally::new(&os, shares);
            for name in ["/one", "/two", "/copy", "/none"] {
                tally.add(Path::new(name)).unwrap();
            }
            [tally.total(), tally.shared(), tally.extents(), tally.metadata()]
        };
        assert_eq!(sum(true), [5 * 4096, 3 * 4096, 3, 0]);
        assert_eq!(sum(false), [8 * 4096, 0, 0, 0]);
        kernel.fail_every("map", Errno::EIO);
        assert!(Tally::new(&kernel.spawn(), true).add(Path::new("/one")).is_err());
    }
}
