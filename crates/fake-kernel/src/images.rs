//! The bytes and blocks of images.

use std::io;
use std::path::Path;

use super::resolve::Last;
use super::seam::Effect;
use super::tree::{Backing, Node};
use super::world::World;
use super::{Outcome, Process};
use hostloop_kernel::{Extent, Images, Upkeep};

impl World {
    /// Bytes of a file or, through its loop device, of a block device.
    pub(super) fn read_at(&self, file: &Path, offset: u64, len: usize) -> Outcome<Vec<u8>> {
        let place = self.walk(file, Last::Follow)?;
        match self.inode(place.node).node {
            Node::Device { block: true, .. } => self.device_read(self.loop_at(file)?, offset, len),
            _ => Ok(self.content(place.node)?.read(offset, len)),
        }
    }

    fn next_data(&self, file: &Path, offset: u64) -> Outcome<Option<(u64, u64)>> {
        let place = self.walk(file, Last::Keep)?;
        if let Node::Device { block: true, .. } = self.inode(place.node).node {
            // A block device has no holes.
            let size = self.loops[&self.loop_at(file)?].size;
            return Ok((offset < size).then_some((offset, size)));
        }
        Ok(self.content(place.node)?.next_data(offset))
    }
}

impl Images for Process {
    fn read_at(&self, file: &Path, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        self.look("read", file.display(), |world| world.read_at(file, offset, len))
    }

    fn write_at(&self, file: &Path, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let subject = format!("{} at {offset}", file.display());
        self.step_torn("write_at", subject, |world, how| {
            let node = world.writable_file(file)?.node;
            let count = if how == Effect::Torn { bytes.len() / 2 } else { bytes.len() };
            world.write_at(node, offset, bytes.get(..count).unwrap_or_default())
        })
    }

    fn next_data(&self, file: &Path, offset: u64) -> io::Result<Option<(u64, u64)>> {
        self.look("seek", file.display(), |world| world.next_data(file, offset))
    }

    fn extents(&self, file: &Path, offset: u64, max: usize, sync: bool) -> io::Result<Vec<Extent>> {
        self.look("map", file.display(), |world| world.extents(file, offset, max, sync))
    }

    fn set_size(&self, file: &Path, size: u64) -> io::Result<()> {
        self.step("set_size", file.display(), |world| {
            let node = world.writable_file(file)?.node;
            world.set_size(node, size)
        })
    }

    fn allocate(&self, file: &Path, size: u64) -> io::Result<()> {
        self.step_torn("allocate", file.display(), |world, how| {
            let node = world.writable_file(file)?.node;
            world.allocate(node, if how == Effect::Torn { size / 2 } else { size })
        })
    }

    fn erase(&self, file: &Path) -> io::Result<()> {
        self.step("erase", file.display(), |world| {
            let node = world.writable_file(file)?.node;
            world.shrink(node, |content| content.erase())
        })
    }

    fn erase_range(&self, file: &Path, offset: u64, len: u64) -> io::Result<()> {
        self.step("erase", format!("{} at {offset}", file.display()), |world| {
            let node = world.writable_file(file)?.node;
            world.shrink(node, |content| content.erase_range(offset, offset.saturating_add(len)))
        })
    }

    fn zero(&self, file: &Path) -> io::Result<()> {
        self.step("zero", file.display(), |world| {
            let node = world.writable_file(file)?.node;
            world.shrink(node, |content| content.clear())
        })
    }

    fn copy_range(&self, source: &Path, target: &Path, offset: u64, len: u64) -> io::Result<()> {
        let subject = format!("{} to {} at {offset}", source.display(), target.display());
        self.step_torn("copy_range", subject, |world, how| {
            world.copy_range((source, target), offset, len, how)
        })
    }

    fn largest_file(&self, directory: &Path) -> io::Result<u64> {
        self.look("truncate in", directory.display(), |world| {
            let fs = world.walk(directory, Last::Follow)?.node.fs;
            world.room_for_a_file(fs)?;
            Ok(world.largest_file(fs))
        })
    }

    fn can_reflink(&self, directory: &Path) -> io::Result<bool> {
        self.look("clone in", directory.display(), |world| {
            let fs = world.walk(directory, Last::Follow)?.node.fs;
            world.room_for_a_file(fs)?;
            Ok(world.filesystems[fs].reflink)
        })
    }

    fn reflink(&self, source: &Path, target: &Path) -> io::Result<()> {
        let subject = format!("{} to {}", source.display(), target.display());
        self.step_torn("reflink", subject, |world, how| world.reflink(source, target, how))
    }

    fn unshare(&self, file: &Path) -> io::Result<()> {
        self.step_torn("unshare", file.display(), |world, how| world.unshare(file, how))
    }

    fn write_in_place(&self, file: &Path) -> io::Result<bool> {
        self.step("write_in_place", file.display(), |world| {
            let node = world.writable_file(file)?.node;
            world.write_in_place(node)
        })
    }

    fn is_in_place(&self, file: &Path) -> io::Result<bool> {
        self.look("flags of", file.display(), |world| {
            let node = world.walk(file, Last::Keep)?.node;
            Ok(world.content(node)?.in_place || world.filesystems[node.fs].fs_type != "btrfs")
        })
    }

    fn direct_io_alignment(&self, directory: &Path) -> io::Result<Option<u32>> {
        self.look("statx", directory.display(), |world| {
            let id = world.walk(directory, Last::Follow)?.node.fs;
            world.room_for_a_file(id)?;
            let fs = &world.filesystems[id];
            // Within an image it is what the image's device asks for.
            let sector = if matches!(fs.backing, Backing::Image(_)) { fs.sector } else { 0 };
            let alignment = world.direct_io.filter(|_| fs.backing != Backing::Memory);
            Ok(alignment.map(|alignment| alignment.max(sector)))
        })
    }

    fn upkeep(&self, directory: &Path) -> io::Result<Upkeep> {
        self.look("statfs", directory.display(), |world| {
            Ok(world.filesystems[world.walk(directory, Last::Follow)?.node.fs].upkeep)
        })
    }
}
