//! Which filesystem a device holds, and whether it can be mounted.

use std::path::PathBuf;

use nix::errno::Errno;

use super::tree::{Backing, FsId, NodeRef, ROOT};
use super::world::World;
use super::{Outcome, superblock};
use hostloop_model::{FsType, MountFlags};

impl World {
    /// What a mount of the filesystem shows: its top, but for a subvolume that the option `subvol=` or the default of a
    /// btrfs names. A directory does for a subvolume.
    pub(super) fn mounted_root(
        &self,
        fs: FsId,
        fs_type: FsType,
        flags: &MountFlags,
    ) -> Outcome<(NodeRef, PathBuf)> {
        let named = flags.data.iter().find_map(|word| word.strip_prefix("subvol="));
        let name = named.map(PathBuf::from).unwrap_or_else(|| self.filesystems[fs].default.clone());
        let (mut ino, mut path) = (ROOT, PathBuf::from("/"));
        if fs_type == FsType::Btrfs {
            for name in name.iter().filter_map(|name| name.to_str()).filter(|name| *name != "/") {
                ino = *self.filesystems[fs].entries(ino)?.get(name).ok_or(Errno::ENOENT)?;
                path.push(name);
            }
        }
        Ok((NodeRef { fs, ino }, path))
    }

    /// Whether this filesystem can be mounted from the device, and which it is.
    pub(super) fn mountable(&mut self, number: u32, fs_type: FsType, flags: &MountFlags) -> Outcome<usize> {
        let device = &self.loops[&number];
        let read_only = device.read_only;
        if read_only && !flags.read_only {
            return Err(Errno::EACCES);
        }
        if self.has_program(number) {
            return Err(Errno::EBUSY);
        }
        let image = self.image_of(number)?;
        let (found, size) = self.signature(image).ok_or(Errno::EINVAL)?;
        let fs = self.content(image)?.image.ok_or(Errno::EINVAL)?;
        let too_coarse = fs_type == FsType::Xfs && device.block_size > self.filesystems[fs].sector;
        if found != fs_type || size > device.size || too_coarse {
            return Err(Errno::EINVAL);
        }
        for other in self.mounts.values().filter(|mount| mount.root.fs == fs) {
            if other.loop_number == Some(number) {
                if other.superblock_read_only != flags.read_only {
                    return Err(Errno::EBUSY);
                }
            } else if fs_type != FsType::Ext4 && !flags.data.iter().any(|word| word == "nouuid") {
                // The same UUID is mounted already.
                return Err(if fs_type == FsType::Btrfs { Errno::EEXIST } else { Errno::EINVAL });
            } else if !(other.superblock_read_only && flags.read_only) {
                self.hazards.push(format!(
                    "one image mounted by two devices, /dev/loop{number} and {}",
                    other.source
                ));
            }
        }
        let own = !flags.data.iter().any(|word| word == "nouuid");
        if own && fs_type != FsType::Ext4 && self.is_mounted_elsewhere(fs, fs_type, image) {
            return Err(if fs_type == FsType::Btrfs { Errno::EEXIST } else { Errno::EINVAL });
        }
        if self.filesystems[fs].needs_recovery {
            // The journal is replayed even for a read-only mount, so that the device must be writable.
            if read_only && !flags.data.iter().any(|word| matches!(word.as_str(), "noload" | "norecovery")) {
                return Err(Errno::EROFS);
            }
            self.filesystems[fs].needs_recovery = read_only;
        }
        Ok(fs)
    }

    /// Whether another filesystem that has the same UUID, a copy, is mounted.
    fn is_mounted_elsewhere(&self, fs: FsId, fs_type: FsType, image: NodeRef) -> bool {
        let uuid_in = |image| self.content(image).map(|content| superblock::uuid(fs_type, content));
        self.mounts.values().filter(|mount| mount.root.fs != fs).any(|mount| {
            let other = &self.filesystems[mount.root.fs];
            match other.backing {
                Backing::Image(at) if other.fs_type == fs_type.as_str() => uuid_in(at) == uuid_in(image),
                _ => false,
            }
        })
    }
}

/// Whether the filesystem takes this word as mount data; it refuses any other with EINVAL.
pub(super) fn is_known(fs_type: FsType, word: &str) -> bool {
    const EVERY: &str = "context fscontext defcontext rootcontext seclabel discard nodiscard";
    let known = match fs_type {
        FsType::Ext4 => {
            "acl barrier commit data debug delalloc errors init_itable journal_checksum lazytime nobarrier \
             nodelalloc noinit_itable noload norecovery prjquota stripe user_xattr"
        }
        FsType::Xfs => {
            "allocsize attr2 gquota inode32 inode64 largeio logbsize logbufs norecovery nouuid pquota prjquota \
             sunit swalloc swidth uquota wsync"
        }
        FsType::Btrfs => {
            "acl autodefrag commit compress compress-force degraded flushoncommit noacl nodatacow nossd rescue \
             skip_balance space_cache ssd subvol user_subvol_rm_allowed"
        }
    };
    let key = word.split('=').next().unwrap_or(word);
    EVERY.split(' ').chain(known.split(' ')).any(|known| known == key)
}
