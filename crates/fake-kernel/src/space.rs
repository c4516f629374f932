//! Space: which blocks of a disk a file has, and what is left.

use std::sync::Arc;

use nix::errno::Errno;

use super::Outcome;
use super::blocks::{Fresh, Ranges};
use super::content::{BLOCK, Content};
use super::superblock;
use super::tree::{Backing, FsId, NodeRef};
use super::world::World;

/// The largest file of ext4 with blocks of 4 KiB.
const LARGEST_OF_EXT4: u64 = (16 << 40) - 4096;

/// What xfs takes at once for a write to a shared block, unless the file says otherwise (XFS_DEFAULT_COWEXTSZ_HINT).
const COW_PREALLOCATION: u64 = 128 << 10;

/// The blocks that hold `len` bytes at `offset`, start to end.
pub(super) fn blocks(offset: u64, len: u64) -> (u64, u64) {
    let end = if len == 0 { offset / BLOCK } else { (offset + len).div_ceil(BLOCK) };
    (offset / BLOCK, end)
}

/// What a change needs.
struct Demand {
    /// Blocks of the disk that the file shares with others.
    shared: Ranges,
    /// Blocks that it will get.
    fresh: Fresh,
    bytes: u64,
    /// The bytes of that by which the file comes to have more.
    more: u64,
}

impl World {
    /// The size of a filesystem and what of it is still free.
    pub(super) fn room(&self, fs: FsId) -> (u64, u64) {
        let filesystem = &self.filesystems[fs];
        let (total, taken) = match filesystem.backing {
            Backing::Disk(disk) => {
                let disk = &self.disks[disk];
                let metadata = filesystem.metadata();
                (disk.total, filesystem.used.saturating_add(disk.other).saturating_add(metadata))
            }
            Backing::Memory => (1 << 30, filesystem.used),
            Backing::Image(image) => (self.filesystem_size(image), filesystem.used),
        };
        (total, total.saturating_sub(taken))
    }

    /// Whether a file can be made only to ask something of it: as on xfs, where that takes a block.
    pub(super) fn room_for_a_file(&self, fs: FsId) -> Outcome<()> {
        if self.room(fs).1 < BLOCK { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    /// What it takes to write to these blocks: one for each that has no place, and for each that other files have too.
    fn demand(&self, file: NodeRef, (start, end): (u64, u64)) -> Outcome<Demand> {
        let filesystem = &self.filesystems[file.fs];
        let places = self.content(file)?.places();
        let shared = filesystem.blocks_of_others(file.ino);
        let again =
            places.among(start, end, &shared, true).iter().map(|run| run.end - run.start).sum::<u64>();
        let missing = places.missing(start, end);
        let fresh = Fresh::new(filesystem.free_blocks(missing + again));
        Ok(Demand { shared, fresh, bytes: (missing + again) * BLOCK, more: missing * BLOCK })
    }

    /// How many bytes of the disk it takes to write to these blocks.
    fn needed(&self, file: NodeRef, blocks: (u64, u64)) -> Outcome<u64> {
        Ok(self.demand(file, blocks)?.bytes)
    }

    /// Gives these blocks of a file places of its own.
    fn place(&mut self, file: NodeRef, blocks: (u64, u64), mut demand: Demand) -> Outcome<()> {
        let filesystem = self.fs_mut(file.fs);
        filesystem.give(demand.bytes / BLOCK);
        filesystem.used += demand.bytes;
        filesystem.content_mut(file.ino)?.place(blocks, &demand.shared, &mut demand.fresh);
        filesystem.recount_shared();
        Ok(())
    }

    fn demand_that_fits(&self, file: NodeRef, blocks: (u64, u64)) -> Outcome<Demand> {
        let demand = self.demand(file, blocks)?;
        let beside = self.taken_beside(file, blocks, &demand)?;
        if demand.bytes + beside > 0 && self.left_for_files(file.fs) < demand.bytes + beside {
            return Err(Errno::ENOSPC);
        }
        self.filesystems[file.fs].more_bytes(file.ino, demand.more)?;
        Ok(demand)
    }

    /// What can still be given to files.
    fn left_for_files(&self, fs: FsId) -> u64 {
        let upkeep = self.filesystems[fs].upkeep;
        // The next extent needs its place in a map too.
        self.room(fs).1.saturating_sub(upkeep.unusable).saturating_sub(upkeep.per_block)
    }

    /// What a write takes for a moment beside the blocks that it keeps, where the file was not prepared to be written
    /// in place: btrfs puts every block elsewhere, and xfs takes 128 KiB around each that other files have.
    fn taken_beside(&self, file: NodeRef, blocks: (u64, u64), demand: &Demand) -> Outcome<u64> {
        let content = self.content(file)?;
        Ok(match self.filesystems[file.fs].fs_type {
            _ if content.in_place => 0,
            "btrfs" => content.written_among(blocks) * BLOCK,
            "xfs" if !content.places().among(blocks.0, blocks.1, &demand.shared, true).is_empty() => {
                (COW_PREALLOCATION - BLOCK) * (blocks.1 - blocks.0).div_ceil(COW_PREALLOCATION / BLOCK)
            }
            _ => 0,
        })
    }

    /// [`Images::write_in_place`](hostloop_kernel::Images::write_in_place)
    pub(super) fn write_in_place(&mut self, file: NodeRef) -> Outcome<bool> {
        let fs_type = self.filesystems[file.fs].fs_type;
        let content = self.content_mut(file)?;
        match fs_type {
            "btrfs" if !content.in_place && (content.size() > 0 || content.allocated_bytes() > 0) => {
                Ok(false)
            }
            "btrfs" | "xfs" => {
                content.in_place = true;
                Ok(true)
            }
            _ => Ok(true),
        }
    }

    pub(super) fn write_at(&mut self, file: NodeRef, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let len = bytes.len() as u64;
        let _end =
            offset.checked_add(len).filter(|end| *end <= self.largest_file(file.fs)).ok_or(Errno::EFBIG)?;
        let range = blocks(offset, len);
        let demand = self.demand_that_fits(file, range)?;
        if let Backing::Image(image) = self.filesystems[file.fs].backing {
            let kept = self.content(file)?.places().among(range.0, range.1, &demand.shared, false);
            let kept = kept.iter().map(|run| (run.physical, run.physical + (run.end - run.start)));
            let runs: Vec<_> = kept.chain(demand.fresh.runs()).collect();
            // A thin image that its pool has no room for: the loop device knows no other error.
            self.write_through(image, &runs).map_err(|_| Errno::EIO)?;
        }
        self.place(file, range, demand)?;
        self.content_mut(file)?.write(offset, bytes);
        Ok(())
    }

    /// A filesystem writes to blocks of its own: the image changes at the same place, though its bytes there only say
    /// that they have changed, since files are a tree of their own.
    fn write_through(&mut self, image: NodeRef, runs: &[(u64, u64)]) -> Outcome<()> {
        let first = superblock::REGION / BLOCK;
        let size = (self.filesystem_size(image) / BLOCK).saturating_sub(first);
        let mut bytes = vec![0; BLOCK as usize];
        bytes[..8].copy_from_slice(&self.unique().to_be_bytes());
        let bytes = Arc::new(bytes);
        for (start, end) in runs {
            // Metadata takes no place, so that every block of data has one.
            let range = (first + (*start).min(size), first + (*end).min(size));
            let demand = self.demand_that_fits(image, range)?;
            self.place(image, range, demand)?;
            self.content_mut(image)?.stamp(range, &bytes);
        }
        Ok(())
    }

    /// How many of `len` bytes at `offset` there is room for.
    pub(super) fn fitting(&self, file: NodeRef, offset: u64, len: u64) -> Outcome<u64> {
        let needed = self.needed(file, blocks(offset, len))?;
        let free = self.room(file.fs).1 / BLOCK * BLOCK;
        Ok(if needed <= free { len } else { len.saturating_sub(needed - free) })
    }

    /// The most bytes that a file can have there.
    pub(super) fn largest_file(&self, fs: FsId) -> u64 {
        match self.filesystems[fs].fs_type {
            "ext4" => LARGEST_OF_EXT4,
            _ => i64::MAX as u64,
        }
    }

    pub(super) fn allocate(&mut self, file: NodeRef, size: u64) -> Outcome<()> {
        if size == 0 {
            return Ok(());
        }
        if size > self.largest_file(file.fs) {
            return Err(Errno::EFBIG);
        }
        self.set_aside(file, 0, size)?;
        self.content_mut(file)?.extend(size);
        Ok(())
    }

    /// Allocates without making the file longer.
    pub(super) fn set_aside(&mut self, file: NodeRef, offset: u64, len: u64) -> Outcome<()> {
        // What other files have too is allocated: fallocate(2) leaves it shared.
        let range = blocks(offset, len);
        let count = self.content(file)?.places().missing(range.0, range.1);
        let fresh = Fresh::new(self.filesystems[file.fs].free_blocks(count));
        let bytes = count * BLOCK;
        let demand = Demand { shared: Ranges::default(), fresh, bytes, more: bytes };
        if demand.bytes > 0 && self.left_for_files(file.fs) < demand.bytes {
            return Err(Errno::ENOSPC);
        }
        self.filesystems[file.fs].more_bytes(file.ino, demand.bytes)?;
        self.place(file, range, demand)
    }

    /// Gives a file blocks of its own, also where it had none.
    pub(super) fn separate(&mut self, file: NodeRef, size: u64) -> Outcome<()> {
        let demand = self.demand_that_fits(file, blocks(0, size))?;
        self.place(file, blocks(0, size), demand)
    }

    /// A change that frees blocks or none.
    pub(super) fn shrink(&mut self, file: NodeRef, change: impl FnOnce(&mut Content)) -> Outcome<()> {
        let before = self.content(file)?.allocated_bytes();
        change(self.content_mut(file)?);
        let freed = before - self.content(file)?.allocated_bytes();
        let filesystem = self.fs_mut(file.fs);
        filesystem.used -= freed.min(filesystem.used);
        filesystem.recount_shared();
        Ok(())
    }

    pub(super) fn set_size(&mut self, file: NodeRef, size: u64) -> Outcome<()> {
        if size > self.largest_file(file.fs) {
            return Err(Errno::EFBIG);
        }
        self.shrink(file, |content| content.set_size(size))
    }
}
