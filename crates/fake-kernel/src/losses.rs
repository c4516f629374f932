//! What happens to what was not synced: at a power cut, and after a failed sync.
//!
//! A power cut loses a part of it, within what the filesystems that pools are on promise:
//!
//! - Names change in the order of the calls, and none is kept without those before it on the same filesystem: ext4 and
//!   xfs write all metadata to one journal in order (the kernel's Documentation/filesystems/ext4/journal.rst and
//!   xfs/xfs-delayed-logging-design.rst), and btrfs commits whole trees. What an fsync brought to the disk before its turn
//!   is there as well. btrfs may take a few more names with it (its log trees), which is left out, because no call of the
//!   driver depends on a name that is not there.
//! - rename(2) is one change: never both names or none.
//! - The data of each file are independent, block by block, and a name says nothing about them: with delayed allocation
//!   they come later than the journal (ext4.rst, `delalloc`), and nothing relies on `auto_da_alloc`. Lost data read as
//!   before, or as zeros if there were none. A size that has reached the disk may have lost blocks before it.
//! - What was synced is there: rename(2) after fsync(2) gives the whole file.
//!
//! Anything else that a disk does (torn sectors, lost flushes) is not part of this model.

use super::FakeKernel;
use super::chance::Chance;
use super::tree::{Backing, FsId, NodeRef, ROOT};
use super::world::World;

/// What of the unsynced is lost at a power cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// All of it.
    All,
    /// None of it: all had been written just before.
    Nothing,
    /// A part, which this seed chooses.
    Some(u64),
}

impl World {
    /// The power goes.
    pub(super) fn lose(&mut self, loss: Loss) {
        match loss {
            Loss::All => {}
            // Innermost first: a filesystem comes after the one that its image is in.
            Loss::Nothing => (0..self.filesystems.len()).rev().for_each(|fs| {
                if self.is_on_a_disk(fs) {
                    self.sync_filesystem(fs);
                }
            }),
            Loss::Some(seed) => {
                let mut chance = Chance::new(seed);
                for fs in 0..self.filesystems.len() {
                    if self.is_on_a_disk(fs) {
                        self.fs_mut(fs).keep_some(&mut chance);
                    }
                }
            }
        }
        self.filesystems.iter_mut().for_each(|filesystem| filesystem.lose_unsynced());
    }

    fn is_on_a_disk(&self, fs: FsId) -> bool {
        self.filesystems[fs].backing != Backing::Memory
            && self.filesystems[fs].inodes.contains_key(&ROOT)
            && self.image_is_there(fs)
    }

    /// A sync that failed: as on Linux, the pages count as clean from now on, so that they are never written unless they
    /// change, and the next sync succeeds without them ("PostgreSQL's fsync() surprise", LWN 752063; errseq_t in the
    /// kernel's Documentation/core-api/errseq.rst). The entries of a directory are in a journal, which is stopped by an
    /// error (jbd2, xfs_log) or repeats its flush, so that a later success is a true one.
    pub(super) fn lose_writeback(&mut self, node: NodeRef) {
        self.fs_mut(node.fs).lose_writeback(node.ino);
    }
}

impl FakeKernel {
    /// What would be lost at a power cut, each thing that may be lost by itself: the names that changed, in their order, and
    /// the files whose data did. Whether a file has a name is not looked at.
    pub fn unsynced(&self) -> Vec<String> {
        let world = self.lock();
        let disks = (0..world.filesystems.len()).filter(|fs| world.is_on_a_disk(*fs));
        disks
            .flat_map(|fs| world.filesystems[fs].unsynced().map(move |what| format!("{fs}: {what}")))
            .collect()
    }
}
