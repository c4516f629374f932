//! Loop devices.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{MutexGuard, PoisonError};

use nix::errno::Errno;

use super::resolve::Last;
use super::seam::Effect;
use super::tree::{Node, NodeRef};
use super::world::{Open, Opened, World};
use super::{Descriptor, Outcome, Process};
use hostloop_kernel::{AttachOptions, FileId, LoopDevice, LoopDevices, OpenLoop, SPARE};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LoopBacking {
    File(NodeRef),
    /// Another loop device, as kubelet stacks them.
    Loop(u32),
}

pub(super) struct Loop {
    number: u32,
    /// Which attachment of any device since the machine started this is.
    attachment: u64,
    pub(super) backing: LoopBacking,
    /// The identity of the backing file when it was attached, and the mount and path that it was opened through: the
    /// path as the tree showed it, and counted from the root of the mount.
    pub(super) id: FileId,
    path: PathBuf,
    below: PathBuf,
    pub(super) mount: u64,
    pub(super) read_only: bool,
    autoclear: bool,
    direct_io: bool,
    pub(super) block_size: u32,
    pub(super) discard: bool,
    pub(super) size: u64,
    /// What was written to the device and is not in the image: the page cache of the device.
    pub(super) dirty: Vec<(u64, Vec<u8>)>,
}

/// The device number of /dev/loopN.
pub(super) fn rdev(number: u32) -> u64 {
    libc::makedev(7, number)
}

impl Loop {
    pub(super) fn rdev(&self) -> u64 {
        rdev(self.number)
    }
}

impl World {
    /// What LOOP_GET_STATUS64 and sysfs tell of a device.
    pub(super) fn status(&self, device: &Loop) -> LoopDevice {
        // The former asks the filesystem, which answers nothing any more once it has shut down.
        let failed = matches!(device.backing, LoopBacking::File(node) if self.failed.contains(&node.fs));
        LoopDevice {
            number: device.number,
            backing: (!failed).then_some(device.id),
            known_as: failed.then(|| self.backing_path(device)),
            rdev: device.rdev(),
            read_only: device.read_only,
            autoclear: device.autoclear,
            direct_io: device.direct_io,
        }
    }

    /// The name of the backing file as sysfs shows it.
    fn backing_path(&self, device: &Loop) -> PathBuf {
        let shown = if self.mounts.contains_key(&device.mount) { &device.path } else { &device.below };
        match device.backing {
            LoopBacking::File(node) if self.inode(node).links == 0 => {
                PathBuf::from(format!("{} (deleted)", shown.display()))
            }
            _ => shown.clone(),
        }
    }

    /// The numbers that there are, in order: who attaches the first makes it, and it stays.
    fn loop_numbers(&self) -> Vec<u32> {
        let dev = self.dev();
        let names = self.filesystems[dev.fs].entries(dev.ino).into_iter().flatten();
        let numbers = names.filter_map(|(name, _)| name.strip_prefix("loop")?.parse().ok());
        let mut numbers: Vec<u32> = numbers.collect();
        numbers.sort_unstable();
        numbers
    }

    /// The attached device with this device number.
    pub(super) fn loop_of_rdev(&self, number: u64) -> Outcome<u32> {
        self.loops
            .values()
            .find(|device| device.rdev() == number)
            .map(|device| device.number)
            .ok_or(Errno::ENXIO)
    }

    pub(super) fn attach(&mut self, image: &Path, options: AttachOptions) -> Outcome<LoopDevice> {
        let AttachOptions { read_only, autoclear, direct_io, block_size, discard } = options;
        if !block_size.is_power_of_two() || !(512..=4096).contains(&block_size) {
            return Err(Errno::EINVAL);
        }
        let place = self.walk(image, Last::Follow)?;
        let backing = match &self.inode(place.node).node {
            Node::File { .. } if !read_only => {
                self.writable(&place)?;
                LoopBacking::File(place.node)
            }
            Node::File { .. } => LoopBacking::File(place.node),
            Node::Directory { .. } => return Err(Errno::EISDIR),
            Node::Device { rdev, block: true } => LoopBacking::Loop(self.loop_of_rdev(*rdev)?),
            _ => return Err(Errno::EINVAL),
        };
        let number = (0..).find(|number| !self.loops.contains_key(number)).ok_or(Errno::ENOSPC)?;
        if let LoopBacking::File(node) = backing {
            self.fs_mut(node.fs).opened(node.ino);
        }
        let (id, size) = (self.file_id(place.mount, place.node), self.backing_size(backing)?);
        let direct_io = direct_io && self.direct_io.is_some_and(|alignment| alignment <= block_size);
        let mount = place.mount;
        let discard = discard && !self.stuck.contains(&number);
        let from = &self.mounts[&mount].root_path;
        let below = Path::new("/").join(place.inner.strip_prefix(from).unwrap_or(&place.inner));
        let path = place.path;
        let device = Loop {
            number,
            attachment: self.attached,
            backing,
            id,
            path,
            below,
            mount,
            read_only,
            autoclear,
            direct_io,
            block_size,
            discard,
            size,
            dirty: Vec::new(),
        };
        let status = self.status(&device);
        self.loops.insert(number, device);
        self.attached += 1;
        self.make_node(number);
        Ok(status)
    }

    /// The size of what is behind a device, in whole sectors.
    fn backing_size(&self, backing: LoopBacking) -> Outcome<u64> {
        let size = match backing {
            LoopBacking::File(node) => self.content(node)?.size(),
            LoopBacking::Loop(below) => self.loops[&below].size,
        };
        Ok(size / 512 * 512)
    }

    /// The image file behind a device, however many devices lie between.
    pub(super) fn image_of(&self, number: u32) -> Outcome<NodeRef> {
        match self.loops.get(&number).ok_or(Errno::ENXIO)?.backing {
            LoopBacking::File(node) => Ok(node),
            LoopBacking::Loop(below) => self.image_of(below),
        }
    }

    /// A device that is still the one that the caller knows.
    fn same(&self, device: &LoopDevice) -> Outcome<&Loop> {
        let same = |now: &&Loop| {
            let now = self.status(now);
            (now.backing, now.known_as) == (device.backing, device.known_as.clone())
        };
        self.loops.get(&device.number).filter(same).ok_or(Errno::ENXIO)
    }

    fn same_mut(&mut self, device: &LoopDevice) -> Outcome<&mut Loop> {
        self.same(device)?;
        self.loops.get_mut(&device.number).ok_or(Errno::ENXIO)
    }

    /// What follows when a device has lost a user: with autoclear it goes with its last one.
    pub(super) fn settle(&mut self, number: u32) {
        let autoclear = self.loops.get(&number).is_some_and(|device| device.autoclear);
        if autoclear && !self.is_open(number) && !self.is_mounted(number) && !self.lingers(number) {
            self.clear(number);
        }
    }

    fn clear(&mut self, number: u32) {
        self.write_back(number);
        let Some(device) = self.loops.remove(&number) else { return };
        if !device.discard {
            self.stuck.insert(number);
        }
        match device.backing {
            LoopBacking::File(node) => self.fs_mut(node.fs).closed(node.ino),
            LoopBacking::Loop(below) => self.settle(below),
        }
        self.end_if_unused(device.mount);
    }

    pub(super) fn detach(&mut self, number: u32) {
        if self.is_open(number) || self.is_mounted(number) {
            // LOOP_CLR_FD on a device in use succeeds and means: with the last user.
            if let Some(device) = self.loops.get_mut(&number) {
                device.autoclear = true;
            }
        } else {
            self.clear(number);
        }
    }
}

impl Process {
    /// The attachments that the process has made or seen; `None` before it has looked at all devices.
    fn seen(&self) -> MutexGuard<'_, Option<BTreeSet<u64>>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opened_loop(&self, (device, id): (LoopDevice, u64)) -> OpenLoop {
        OpenLoop { device, hold: Box::new(Descriptor { kernel: self.kernel.clone(), id }) }
    }

    fn open_loop(&self, world: &mut World, number: u32) -> u64 {
        world.open(Open { generation: Some(self.generation), mount: None, what: Opened::Loop(number) })
    }
}

impl LoopDevices for Process {
    fn attach(&self, image: &Path, options: AttachOptions) -> std::io::Result<OpenLoop> {
        // As with LOOP_CONFIGURE, the device discards until it is told not to.
        let opened = self.step("attach", image.display(), |world| {
            let all = world.loop_numbers();
            self.other_loops.get_or_init(|| BTreeSet::from_iter(all));
            let device = world.attach(image, AttachOptions { discard: true, ..options })?;
            // The driver replaces a device that cannot.
            world.stuck.remove(&device.number);
            world.same_mut(&device)?.discard = true;
            let id = self.open_loop(world, device.number);
            let attachment = world.loops[&device.number].attachment;
            self.seen().iter_mut().for_each(|seen| seen.extend([attachment]));
            Ok((device, id))
        })?;
        let open = self.opened_loop(opened);
        if !options.discard
            && let Err(error) = self.stop_discard(&open.device)
        {
            self.kernel.lock().detach(open.device.number);
            return Err(error);
        }
        Ok(open)
    }

    fn find(&self, backing: FileId) -> std::io::Result<Vec<LoopDevice>> {
        self.look("find loop of", format!("{backing:?}"), |world| {
            let all = world.loops.values().map(|device| world.status(device));
            Ok(all.filter(|device| device.backing == Some(backing)).collect())
        })
    }

    fn backing_path(&self, device: &LoopDevice) -> std::io::Result<Option<PathBuf>> {
        self.look("look at the file of", device.path().display(), |world| {
            Ok(world.same(device).ok().map(|device| world.backing_path(device)))
        })
    }

    /// Opening changes nothing that outlives the process, so that it is not a step.
    fn open(&self, device: &LoopDevice) -> std::io::Result<OpenLoop> {
        let name = device.path();
        self.look("open", name.display(), |world| world.same(device).map(drop))?;
        let mut world = self.kernel.lock();
        // Both may have changed since: another thread can have been faster.
        let status = match world.same(device).map(|device| world.status(device)) {
            Ok(status) if world.alive.contains(&self.generation) => status,
            _ => {
                return Err(hostloop_kernel::errno_error(Errno::ENXIO, format!("open {}", name.display())));
            }
        };
        world.make_node(device.number);
        let id = self.open_loop(&mut world, device.number);
        drop(world);
        Ok(self.opened_loop((status, id)))
    }

    fn detach(&self, device: &LoopDevice) -> std::io::Result<()> {
        self.step("detach", device.path().display(), |world| {
            if world.same(device).is_ok() {
                world.detach(device.number);
                world.stuck.remove(&device.number);
            }
            Ok(())
        })
    }

    fn keep(&self, device: &LoopDevice) -> std::io::Result<OpenLoop> {
        let opened = self.step("keep", device.path().display(), |world| {
            let number = world.same(device)?.number;
            if let Some(device) = world.loops.get_mut(&number) {
                device.autoclear = false;
            }
            let id = self.open_loop(world, number);
            let status = world.loops.get(&number).map(|device| world.status(device));
            status.map(|status| (status, id)).ok_or(Errno::ENXIO)
        })?;
        Ok(self.opened_loop(opened))
    }

    fn holders(&self, device: &LoopDevice) -> std::io::Result<Vec<String>> {
        self.look("read", device.path().display(), |world| {
            let on_it = |other: &&Loop| other.backing == LoopBacking::Loop(device.number);
            let loops = world.loops.values().filter(on_it);
            let mut found: Vec<String> =
                loops.map(|other| format!("/dev/loop{} is attached to it", other.number)).collect();
            if world.opens.values().any(|open| open.what == Opened::Loop(device.number)) {
                found.push("process 1 (fake) has it open".to_owned());
            }
            Ok(found)
        })
    }

    fn update_size(&self, device: &LoopDevice) -> std::io::Result<()> {
        self.step("update_size", device.path().display(), |world| {
            let backing = world.same(device)?.backing;
            let size = world.backing_size(backing)?;
            if let Some(device) = world.loops.get_mut(&device.number) {
                device.size = size;
            }
            Ok(())
        })
    }

    fn size(&self, device: &LoopDevice) -> std::io::Result<u64> {
        self.look("size", device.path().display(), |world| Ok(world.same(device)?.size))
    }

    fn list(&self) -> std::io::Result<Vec<LoopDevice>> {
        let (found, attachments) = self.look("list", "loop devices", |world| {
            let found: Vec<_> = world.loops.values().map(|device| world.status(device)).collect();
            Ok((found, world.loops.values().map(|device| device.attachment).collect()))
        })?;
        *self.seen() = Some(attachments);
        Ok(found)
    }

    /// Of those that were attached since by another process, it tells nothing.
    fn seen(&self, backing: Option<FileId>, directory: &Path) -> std::io::Result<Vec<LoopDevice>> {
        let Some(seen) = self.seen().clone() else { return self.list() };
        self.look("ask loops of", directory.display(), |world| {
            let may_be = |device: &&Loop| {
                let is_in_directory = device.path.parent().is_some_and(|parent| parent.ends_with(directory));
                Some(device.id) == backing || is_in_directory
            };
            let known = world.loops.values().filter(|device| seen.contains(&device.attachment));
            Ok(known.filter(may_be).map(|device| world.status(device)).collect())
        })
    }

    fn set_direct_io(&self, device: &LoopDevice, on: bool) -> std::io::Result<()> {
        self.step("set_direct_io", device.path().display(), |world| {
            let alignment = world.direct_io;
            let device = world.same_mut(device)?;
            if on && alignment.is_none_or(|alignment| alignment > device.block_size) {
                return Err(Errno::EINVAL);
            }
            device.direct_io = on;
            Ok(())
        })
    }

    fn stop_discard(&self, device: &LoopDevice) -> std::io::Result<()> {
        self.step("stop_discard", device.path().display(), |world| {
            world.same_mut(device)?.discard = false;
            Ok(())
        })
    }

    fn set_block_size(&self, device: &LoopDevice, bytes: u32) -> std::io::Result<()> {
        let name = device.path();
        let same = |world: &World| Ok(world.same(device)?.block_size == bytes);
        if self.look("block_size", name.display(), same)? {
            return Ok(());
        }
        self.step("set_block_size", name.display(), |world| {
            if world.is_mounted(device.number) {
                return Err(Errno::EBUSY);
            }
            world.same_mut(device)?.block_size = bytes;
            Ok(())
        })
    }

    fn give_back(&self, device: &LoopDevice) -> std::io::Result<()> {
        let number = device.number;
        if !self.look("stuck", device.path().display(), |world| Ok(world.stuck.contains(&number)))? {
            return Ok(());
        }
        self.step("give_back", device.path().display(), |world| {
            world.stuck.remove(&number);
            Ok(())
        })
    }

    fn give_back_all(&self) -> std::io::Result<Vec<u32>> {
        if self.look("stuck", "loop devices", |world| Ok(world.stuck.is_empty()))? {
            return Ok(Vec::new());
        }
        self.step("give_back_all", "loop devices", |world| {
            Ok(std::mem::take(&mut world.stuck).into_iter().collect())
        })
    }

    fn remove_unused(&self) -> std::io::Result<Vec<u32>> {
        let Some(others) = self.other_loops.get() else { return Ok(Vec::new()) };
        let unused = self.look("look for unused devices", "loop devices", |world| {
            let is_unused = |number: &u32| !others.contains(number) && !world.loops.contains_key(number);
            Ok(world.loop_numbers().into_iter().filter(is_unused).skip(SPARE).collect::<Vec<_>>())
        })?;
        for number in unused.iter().rev() {
            self.step("remove_device", format!("/dev/loop{number}"), |world| {
                let dev = world.dev();
                world.stuck.remove(number);
                world.fs_mut(dev.fs).unlink(dev.ino, &format!("loop{number}"))
            })?;
        }
        Ok(unused.into_iter().rev().collect())
    }

    fn written(&self, device: &LoopDevice) -> std::io::Result<Option<u64>> {
        self.look("read", device.path().display(), |world| {
            world.same(device)?;
            Ok(world.freezes.thaws_of(device.number))
        })
    }

    fn flush(&self, device: &LoopDevice) -> std::io::Result<()> {
        self.step_in_every_way("flush", device.path().display(), |world, how| {
            world.same(device)?;
            world.make_node(device.number);
            let image = world.image_of(device.number)?;
            match how {
                Effect::Whole => {
                    world.write_back(device.number);
                    world.sync(image);
                }
                Effect::Failed => {
                    world.lose_cache(device.number);
                    world.lose_writeback(image);
                }
                Effect::Torn | Effect::Left => {}
            }
            Ok(())
        })
    }
}
