//! Making, growing, repairing and checking filesystems.

use std::path::Path;

use nix::errno::Errno;

use super::resolve::Last;
use super::seam::Effect;
use super::superblock;
use super::tree::{Backing, Filesystem, NodeRef};
use super::world::World;
use super::{Outcome, Process};
use hostloop_kernel::{Filesystems, MakeOptions};
use hostloop_model::FsType;

/// A program that works on a loop device.
#[derive(Clone)]
pub(super) struct Program {
    pub(super) device: u32,
    work: Work,
}

#[derive(Clone)]
enum Work {
    Make(FsType, MakeOptions),
    Grow,
    RenewIdentity,
}

impl World {
    /// A program does its work.
    pub(super) fn finish(&mut self, program: &Program) -> Outcome<()> {
        match &program.work {
            Work::Make(fs_type, options) => self.make_on(program.device, *fs_type, options, Effect::Whole),
            Work::Grow => self.grow_on(program.device),
            Work::RenewIdentity => self.renew_identity_on(program.device),
        }
    }

    /// Does the work of a program, or leaves it to one that goes on.
    fn run(&mut self, program: Program, how: Effect) -> Outcome<()> {
        match how {
            Effect::Left => self.leave_program(program),
            _ => self.finish(&program),
        }
    }

    /// A device that a program can claim: it is not mounted, and no other works on it.
    fn claimable(&self, number: u32) -> Outcome<()> {
        if self.is_mounted(number) || self.has_program(number) { Err(Errno::EBUSY) } else { Ok(()) }
    }

    /// The filesystem in an image by its signature, and its size.
    pub(super) fn signature(&self, image: NodeRef) -> Option<(FsType, u64)> {
        superblock::probe(self.content(image).ok()?)
    }

    pub(super) fn filesystem_size(&self, image: NodeRef) -> u64 {
        self.signature(image).map(|(_, size)| size).unwrap_or(0)
    }

    fn new_uuid(&mut self) -> [u8; 16] {
        let mut uuid = [0xF5; 16];
        uuid[8..].copy_from_slice(&self.unique().to_be_bytes());
        uuid
    }

    fn tools(&self, fs_type: FsType) -> Outcome<()> {
        if self.missing_tools.contains(&fs_type) { Err(Errno::ENOENT) } else { Ok(()) }
    }

    fn make(&mut self, device: &Path, fs_type: FsType, options: &MakeOptions, how: Effect) -> Outcome<()> {
        self.tools(fs_type)?;
        let number = self.loop_at(device)?;
        self.claimable(number)?;
        if self.loops[&number].size < fs_type.minimum_bytes() {
            return Err(Errno::EINVAL);
        }
        match how {
            Effect::Failed => Err(Errno::EIO),
            Effect::Left => {
                self.leave_program(Program { device: number, work: Work::Make(fs_type, options.clone()) })
            }
            // It writes much, and does not see that the superblock fails.
            Effect::Whole if self.blind_tools.contains(&fs_type) => {
                self.device_write(number, 1 << 20, b"tables")
            }
            Effect::Whole | Effect::Torn => self.make_on(number, fs_type, options, how),
        }
    }

    fn make_on(&mut self, number: u32, fs_type: FsType, options: &MakeOptions, how: Effect) -> Outcome<()> {
        let device = self.loops.get(&number).ok_or(Errno::ENXIO)?;
        let (size, sector) = (device.size, device.block_size);
        let image = self.image_of(number)?;
        let uuid = self.new_uuid();
        let (at, bytes) = match how {
            Effect::Whole => superblock::build(fs_type, size, uuid),
            _ => superblock::torn(fs_type),
        };
        self.device_write(number, at, &bytes)?;
        if how == Effect::Torn {
            self.content_mut(image)?.image = None;
            return Ok(());
        }
        // The tool clears what other filesystems may have left.
        self.content_mut(image)?.zero(0, superblock::REGION);
        self.device_write(number, at, &bytes)?;
        let mut filesystem = Filesystem::new(fs_type.as_str(), Backing::Image(image));
        filesystem.sector = sector;
        filesystem.reflink = fs_type != FsType::Ext4;
        self.filesystems.push(filesystem);
        self.content_mut(image)?.image = Some(self.filesystems.len() - 1);
        self.sync(image);
        let made = self.loops[&number].id;
        self.formats.push((made, fs_type));
        self.make_options.push(options.clone());
        Ok(())
    }

    fn grow(&mut self, fs_type: FsType, device: &Path, mount_point: &Path) -> Outcome<()> {
        self.tools(fs_type)?;
        let number = self.loop_at(device)?;
        let place = self.walk(mount_point, Last::Keep)?;
        let mount = &self.mounts[&place.mount];
        if mount.loop_number != Some(number) || mount.root != place.node {
            return Err(Errno::EINVAL);
        }
        self.writable(&place)?;
        let image = self.image_of(number)?;
        let (found, size) = self.signature(image).ok_or(Errno::EINVAL)?;
        let new = self.loops[&number].size / 4096 * 4096;
        if found != fs_type || new < size {
            return Err(Errno::EINVAL);
        }
        if fs_type == FsType::Ext4 && new > size && !self.sys_resource {
            return Err(Errno::EPERM);
        }
        for (at, bytes) in superblock::size_fields(fs_type, new) {
            self.device_write(number, at, &bytes)?;
        }
        Ok(())
    }

    /// The image behind a device that is not mounted and holds this filesystem.
    fn unmounted(&self, fs_type: FsType, device: &Path) -> Outcome<(u32, NodeRef)> {
        self.tools(fs_type)?;
        let number = self.loop_at(device)?;
        self.claimable(number)?;
        let image = self.image_of(number)?;
        match self.signature(image) {
            Some((found, _)) if found == fs_type => Ok((number, image)),
            _ => Err(Errno::EUCLEAN),
        }
    }

    fn grow_unmounted(&mut self, fs_type: FsType, device: &Path, how: Effect) -> Outcome<()> {
        if fs_type != FsType::Ext4 {
            return Err(Errno::EOPNOTSUPP);
        }
        let (number, image) = self.unmounted(fs_type, device)?;
        if how == Effect::Torn {
            // Half of the tables are those of before.
            let tree = self.content(image)?.image.ok_or(Errno::EUCLEAN)?;
            self.filesystems[tree].damaged = true;
            return Ok(());
        }
        self.run(Program { device: number, work: Work::Grow }, how)
    }

    fn grow_on(&mut self, number: u32) -> Outcome<()> {
        let image = self.image_of(number)?;
        let fs_type = FsType::Ext4;
        let new = self.loops[&number].size / 4096 * 4096;
        for (at, bytes) in superblock::size_fields(fs_type, new) {
            self.device_write(number, at, &bytes)?;
        }
        if let Some(tree) = self.content(image)?.image {
            self.filesystems[tree].needs_recovery = false; // the check has replayed the journal
        }
        self.sync(image);
        Ok(())
    }

    fn renew_identity(&mut self, device: &Path, how: Effect) -> Outcome<()> {
        let (number, _) = self.unmounted(FsType::Btrfs, device)?;
        self.run(Program { device: number, work: Work::RenewIdentity }, how)
    }

    fn renew_identity_on(&mut self, number: u32) -> Outcome<()> {
        let image = self.image_of(number)?;
        let (at, uuid) = (superblock::uuid_at(FsType::Btrfs), self.new_uuid());
        self.device_write(number, at, &uuid)?;
        self.sync(image);
        Ok(())
    }

    fn check(&self, fs_type: FsType, device: &Path) -> Outcome<()> {
        let (_, image) = self.unmounted(fs_type, device)?;
        // Half of a copy has no files, and what a journal still holds looks like damage.
        let tree = self.content(image)?.image.ok_or(Errno::EUCLEAN)?;
        let filesystem = &self.filesystems[tree];
        let errors = fs_type == FsType::Ext4
            && self.content(image)?.read(superblock::EXT4_STATE, 2) != 1u16.to_le_bytes();
        if filesystem.damaged || filesystem.needs_recovery || errors { Err(Errno::EUCLEAN) } else { Ok(()) }
    }

    fn repair(&mut self, fs_type: FsType, device: &Path) -> Outcome<()> {
        self.tools(fs_type)?;
        let number = self.loop_at(device)?;
        self.claimable(number)?;
        let image = self.image_of(number)?;
        if self.signature(image).map(|(found, _)| found) != Some(fs_type) {
            return Err(Errno::EINVAL);
        }
        if fs_type == FsType::Ext4 {
            self.device_write(number, superblock::EXT4_STATE, &1u16.to_le_bytes())?;
            self.sync(image);
        }
        Ok(())
    }
}

impl Filesystems for Process {
    fn make(&self, device: &Path, fs_type: FsType, options: &MakeOptions) -> std::io::Result<()> {
        self.step_in_every_way("make", format!("{fs_type} on {}", device.display()), |world, how| {
            world.make(device, fs_type, options, how)
        })
    }

    fn grow(&self, fs_type: FsType, device: &Path, mount_point: &Path) -> std::io::Result<()> {
        self.step("grow", mount_point.display(), |world| world.grow(fs_type, device, mount_point))
    }

    fn grow_unmounted(&self, fs_type: FsType, device: &Path) -> std::io::Result<()> {
        self.step_in_every_way("grow_unmounted", device.display(), |world, how| match how {
            Effect::Failed => Err(Errno::EIO),
            how => world.grow_unmounted(fs_type, device, how),
        })
    }

    fn repair(&self, fs_type: FsType, device: &Path) -> std::io::Result<()> {
        self.step("repair", device.display(), |world| world.repair(fs_type, device))
    }

    fn renew_identity(&self, fs_type: FsType, device: &Path) -> std::io::Result<()> {
        match fs_type {
            FsType::Ext4 | FsType::Xfs => Ok(()),
            FsType::Btrfs => {
                self.step_in_every_way("renew_identity", device.display(), |world, how| match how {
                    Effect::Failed | Effect::Torn => Err(Errno::EIO),
                    how => world.renew_identity(device, how),
                })
            }
        }
    }

    fn check(&self, fs_type: FsType, device: &Path) -> std::io::Result<()> {
        self.look("check", device.display(), |world| world.check(fs_type, device))
    }

    /// Its tools are at once done.
    fn working_on(&self, _device: &Path) -> Option<String> {
        None
    }

    fn check_tools(&self, fs_type: FsType) -> std::io::Result<()> {
        let (tool, package) = match fs_type {
            FsType::Ext4 => ("mkfs.ext4", "e2fsprogs"),
            FsType::Xfs => ("mkfs.xfs", "xfsprogs"),
            FsType::Btrfs => ("mkfs.btrfs", "btrfs-progs"),
        };
        self.look("look for", format!("{tool} (package {package})"), |world| world.tools(fs_type))
    }
}
