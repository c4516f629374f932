//! Reading and writing through loop devices, and their page cache.

use nix::errno::Errno;

use super::Outcome;
use super::loops::LoopBacking;
use super::world::World;

impl World {
    /// What a user of the device reads.
    pub(super) fn device_read(&self, number: u32, offset: u64, len: usize) -> Outcome<Vec<u8>> {
        let device = self.loops.get(&number).ok_or(Errno::ENXIO)?;
        let len = device.size.saturating_sub(offset).min(len as u64);
        let mut bytes = self.content(self.image_of(number)?)?.read(offset, len as usize);
        for (at, newer) in &device.dirty {
            for (byte, place) in newer.iter().zip(*at..) {
                let index = place.checked_sub(offset).and_then(|index| usize::try_from(index).ok());
                if let Some(old) = index.and_then(|index| bytes.get_mut(index)) {
                    *old = *byte;
                }
            }
        }
        Ok(bytes)
    }

    /// A write as a user of the device does it: into its page cache, until somebody flushes the device or its last user
    /// closes it (blkdev_put, sync_blockdev).
    pub(super) fn device_write_cached(&mut self, number: u32, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let open = self.is_open(number);
        let device = self.loops.get_mut(&number).ok_or(Errno::ENXIO)?;
        let fits = offset.saturating_add(bytes.len() as u64) <= device.size;
        if !open || device.read_only || !fits {
            return self.device_write(number, offset, bytes);
        }
        device.dirty.push((offset, bytes.to_vec()));
        Ok(())
    }

    /// What is in the page cache of a device goes to its image. An error is lost here, as after a close.
    pub(super) fn write_back(&mut self, number: u32) {
        let dirty = self.loops.get_mut(&number).map(|device| std::mem::take(&mut device.dirty));
        for (offset, bytes) in dirty.unwrap_or_default() {
            let _ = self.device_write(number, offset, &bytes);
        }
    }

    /// A write-back that failed: the pages count as clean and go.
    pub(super) fn lose_cache(&mut self, number: u32) {
        if let Some(device) = self.loops.get_mut(&number) {
            device.dirty.clear();
        }
    }

    pub(super) fn device_write(&mut self, number: u32, offset: u64, bytes: &[u8]) -> Outcome<()> {
        self.write_back(number);
        let device = self.loops.get(&number).ok_or(Errno::ENXIO)?;
        if device.read_only {
            return Err(Errno::EPERM);
        }
        if offset.saturating_add(bytes.len() as u64) > device.size {
            return Err(Errno::ENOSPC);
        }
        match device.backing {
            // What goes wrong beneath a device is an I/O error on it.
            LoopBacking::File(node) => self.write_at(node, offset, bytes).map_err(|_| Errno::EIO),
            LoopBacking::Loop(below) => self.device_write(below, offset, bytes),
        }
    }
}
