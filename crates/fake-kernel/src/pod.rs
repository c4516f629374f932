//! What a test does in the place of somebody other than the driver: a pod, kubelet or the administrator. None of it is a
//! step, and none of it depends on which process of the driver lives.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::resolve::Last;
use super::superblock::EXT4_STATE;
use super::tree::{Node, NodeRef};
use super::world::{Open, Opened, World};
use super::{Descriptor, FakeKernel, Outcome};
use hostloop_kernel::{
    AttachOptions, FileId, FileStat, LoopDevice, MakeOptions, MountEntry, Propagation, errno_error,
};
use hostloop_model::FsType;

/// Something that a pod has open; closed when dropped.
pub struct PodHandle {
    _open: Descriptor,
}

impl World {
    /// Makes a directory and its parents, durable at once.
    pub(super) fn make_directories(&mut self, path: &Path) -> Outcome<()> {
        for ancestor in path.ancestors().collect::<Vec<_>>().into_iter().rev().skip(1) {
            match self.create(ancestor, Node::directory(), 0o755) {
                Err(Errno::EEXIST) => self.list(ancestor).map(drop)?,
                other => drop(other?),
            }
            self.sync_entry(ancestor)?;
        }
        Ok(())
    }

    /// Makes the one name of this path durable, and nothing else of its directory.
    fn sync_entry(&mut self, path: &Path) -> Outcome<()> {
        let (parent, name) = self.parent(path)?;
        let child = self.bare_child(&parent, &name)?;
        self.fs_mut(child.fs).sync_entry(parent.node.ino, name, child.ino);
        Ok(())
    }

    fn pod_write(&mut self, path: &Path, offset: u64, bytes: &[u8]) -> Outcome<()> {
        let place = self.walk(path, Last::Follow)?;
        if let Node::Device { block: true, .. } = self.inode(place.node).node {
            // A read-only mount does not keep anybody from writing to a device whose node is in it.
            return self.device_write_cached(self.loop_at(path)?, offset, bytes);
        }
        let size = self.content(place.node)?.size();
        self.writable(&place)?;
        match self.inode(place.node) {
            inode if inode.immutable || (inode.append_only && offset != size) => Err(Errno::EPERM),
            _ => self.write_at(place.node, offset, bytes),
        }
    }

    fn pod_write_file(&mut self, path: &Path, bytes: &[u8]) -> Outcome<()> {
        match self.walk(path, Last::Follow) {
            Err(Errno::ENOENT) => drop(self.create(path, Node::file(), 0o644)?),
            Err(errno) => return Err(errno),
            Ok(place) if matches!(self.inode(place.node).node, Node::File { .. }) => {
                self.writable(&place)?;
                if self.inode(place.node).immutable || self.inode(place.node).append_only {
                    return Err(Errno::EPERM);
                }
                self.set_size(place.node, 0)?;
            }
            Ok(_) => {}
        }
        self.pod_write(path, 0, bytes)
    }

    fn tree(&self, path: &Path) -> Vec<String> {
        let Ok(top) = self.walk(path, Last::Follow) else {
            return Vec::new();
        };
        let (mut found, mut todo) = (Vec::new(), vec![top]);
        while let Some(place) = todo.pop() {
            if let Node::Directory { now, .. } = &self.inode(place.node).node {
                for child in now.keys().filter_map(|name| self.child(&place, name).ok()) {
                    found.push(child.path.display().to_string());
                    todo.push(child);
                }
            }
        }
        found.sort();
        found
    }
}

impl FakeKernel {
    pub(super) fn outside<T>(
        &self,
        what: &str,
        path: &Path,
        act: impl FnOnce(&mut World) -> Outcome<T>,
    ) -> io::Result<T> {
        let outcome = act(&mut self.lock());
        outcome.map_err(|errno| errno_error(errno, format!("{what} {}", path.display())))
    }

    /// Makes a directory and its parents, durable at once.
    ///
    /// # Panics
    /// Where something else is in the way: the test is wrong.
    pub fn create_directories(&self, path: impl AsRef<Path>) {
        let path = path.as_ref();
        self.outside("mkdir", path, |world| world.make_directories(path)).unwrap();
    }

    /// Makes a symbolic link `to` that points to `from` (ln -s FROM TO), durable at once.
    ///
    /// # Panics
    /// Where something is in the way: the test is wrong.
    pub fn symlink(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) {
        let (from, to) = (from.as_ref(), to.as_ref());
        let link = |world: &mut World| {
            world.create(to, Node::Symlink(from.to_owned()), 0o777)?;
            world.sync_entry(to)
        };
        self.outside("symlink", to, link).unwrap();
    }

    /// Gives a file another name (a hard link).
    pub fn link(&self, file: impl AsRef<Path>, name: impl AsRef<Path>) -> io::Result<()> {
        let (file, name) = (file.as_ref(), name.as_ref());
        self.outside("link", name, |world| {
            let node = world.walk(file, Last::Keep)?;
            world.content(node.node)?;
            let (directory, name) = world.writable_parent(name)?;
            if world.bare_child(&directory, &name).is_ok() {
                return Err(Errno::EEXIST);
            }
            if directory.mount != node.mount {
                return Err(Errno::EXDEV);
            }
            world.can_get_entry(directory.node)?;
            if world.inode(node.node).immutable || world.inode(node.node).append_only {
                return Err(Errno::EPERM);
            }
            world.fs_mut(node.node.fs).link(directory.node.ino, &name, node.node.ino)
        })
    }

    /// Writes to a file that is there or to a block device: EROFS through a read-only mount, EPERM on a
    /// read-only device, ENXIO on one that is not attached, ENOSPC beyond its end, and EAGAIN on a frozen filesystem,
    /// where on a real machine the writer waits.
    pub fn write(&self, path: impl AsRef<Path>, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let path = path.as_ref();
        self.outside("write", path, |world| world.pod_write(path, offset, bytes))
    }

    /// Reads from a file or a block device, less at its end.
    pub fn read(&self, path: impl AsRef<Path>, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let path = path.as_ref();
        self.outside("read", path, |world| world.read_at(path, offset, len))
    }

    /// Gives a file these contents, made if need be; like [`write`](Self::write) on a block device.
    pub fn write_file(&self, path: impl AsRef<Path>, bytes: &[u8]) -> io::Result<()> {
        let path = path.as_ref();
        self.outside("write", path, |world| world.pod_write_file(path, bytes))
    }

    /// Reads a whole file, links followed.
    pub fn read_file(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        let path = path.as_ref();
        self.outside("read", path, |world| {
            let content = world.content(world.walk(path, Last::Follow)?.node)?;
            Ok(content.read(0, content.size() as usize))
        })
    }

    /// Removes a file, as a pod or an administrator does.
    pub fn remove_file(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        self.outside("remove", path, |world| {
            let (directory, name) = world.writable_parent(path)?;
            let node = world.bare_child(&directory, &name)?;
            if matches!(world.inode(node).node, Node::Directory { .. }) {
                return Err(Errno::EISDIR);
            }
            world.can_lose_name(directory.node, node)?;
            world.fs_mut(node.fs).unlink(directory.node.ino, &name)
        })
    }

    /// Makes a file or directory immutable, append-only, both or neither (chattr(1)), at once also on the disk.
    ///
    /// # Panics
    /// If the file is missing, the test is wrong.
    pub fn set_attributes(&self, path: impl AsRef<Path>, immutable: bool, append_only: bool) {
        let mut world = self.lock();
        let node = world.walk(path.as_ref(), Last::Keep).expect("a path").node;
        let inode = world.fs_mut(node.fs).inode_mut(node.ino);
        (inode.immutable, inode.append_only) = (immutable, append_only);
    }

    /// syncfs(2) of the filesystem that holds a path.
    pub fn sync(&self, path: impl AsRef<Path>) -> io::Result<()> {
        let path = path.as_ref();
        self.outside("sync", path, |world| {
            let fs = world.walk(path, Last::Follow)?.node.fs;
            world.sync_filesystem(fs);
            Ok(())
        })
    }

    /// Opens something and keeps it open: a mount with it cannot be unmounted, a loop device stays.
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<PodHandle> {
        let path = path.as_ref();
        let id = self.outside("open", path, |world| {
            let place = world.walk(path, Last::Follow)?;
            let open = match world.inode(place.node).node {
                Node::Device { block: true, .. } => {
                    Open { generation: None, mount: None, what: Opened::Loop(world.loop_at(path)?) }
                }
                _ => Open { generation: None, mount: Some(place.mount), what: Opened::File(place.node) },
            };
            Ok(world.open(open))
        })?;
        Ok(PodHandle { _open: Descriptor { kernel: self.clone(), id } })
    }

    /// Attaches a loop device as somebody else does (kubelet, for a raw block volume), without a hold on it.
    pub fn attach_foreign(&self, path: impl AsRef<Path>, read_only: bool) -> io::Result<LoopDevice> {
        let path = path.as_ref();
        let (autoclear, direct_io) = (false, false);
        let options = AttachOptions { read_only, autoclear, direct_io, block_size: 512, discard: true };
        self.outside("attach", path, |world| world.attach(path, options))
    }

    /// Detaches a loop device behind the driver's back.
    pub fn detach_foreign(&self, number: u32) {
        self.lock().detach(number);
    }

    /// Unmounts behind the driver's back.
    pub fn unmount_foreign(&self, target: impl AsRef<Path>) -> io::Result<()> {
        let target = target.as_ref();
        self.outside("unmount", target, |world| world.unmount(target))
    }

    /// Unmounts with everything below it, also while it is in use (umount -l): it ends with its last user.
    pub fn unmount_lazily(&self, target: impl AsRef<Path>) -> io::Result<()> {
        let target = target.as_ref();
        self.outside("unmount", target, |world| {
            let number = world.mount_point(target)?;
            world.detach_mount(number);
            Ok(())
        })
    }

    /// Mounts a filesystem of the machine's memory as somebody else does.
    pub fn mount_tmpfs(&self, target: impl AsRef<Path>) -> io::Result<()> {
        let target = target.as_ref();
        self.outside("mount", target, |world| world.mount_memory(target))
    }

    /// Sets when what has this path has changed last. Otherwise that was in 2001.
    pub fn set_changed(&self, path: impl AsRef<Path>, time: std::time::SystemTime) {
        self.lock().changed.insert(path.as_ref().to_owned(), time);
    }

    /// Whether there is anything at this path; a link is not followed.
    pub fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.lock().walk(path.as_ref(), Last::Keep).is_ok()
    }

    /// lstat(2).
    pub fn stat(&self, path: impl AsRef<Path>) -> Option<FileStat> {
        self.lock().stat(path.as_ref()).ok().flatten()
    }

    /// The mode that a file or directory was made with.
    pub fn mode(&self, path: impl AsRef<Path>) -> Option<u32> {
        let world = self.lock();
        let place = world.walk(path.as_ref(), Last::Keep).ok()?;
        Some(world.inode(place.node).mode)
    }

    /// The paths of everything below, in mounts too, sorted; none where nothing is there.
    pub fn tree(&self, path: impl AsRef<Path>) -> Vec<String> {
        self.lock().tree(path.as_ref())
    }

    /// What direct I/O on the disk needs; `None` where it is not possible.
    pub fn set_direct_io(&self, alignment: Option<u32>) {
        self.lock().direct_io = alignment;
    }

    /// Whether mounts below `/` reach other mount namespaces; they do from the start.
    pub fn set_shared(&self, shared: bool) {
        self.lock().set_shared(|_| true, shared);
    }

    /// The same for the mounts at one target.
    pub fn set_shared_at(&self, target: impl AsRef<Path>, shared: bool) {
        self.lock().set_shared(|mount| mount.target == target.as_ref(), shared);
    }

    /// Makes the mounts at one target slaves of their peers: they receive mounts and send none.
    pub fn set_slave_at(&self, target: impl AsRef<Path>) {
        let mut world = self.lock();
        for mount in world.mounts.values_mut().filter(|mount| mount.target == target.as_ref()) {
            let Propagation { peers, master, .. } = mount.propagation;
            mount.propagation = Propagation { peers: None, master: peers.or(master), from: None };
        }
    }

    /// Lets mkfs of this filesystem fail to write its superblock, and say that all is well; or heals that.
    pub fn set_blind_mkfs(&self, fs_type: FsType, blind: bool) {
        let mut world = self.lock();
        if blind {
            world.blind_tools.insert(fs_type)
        } else {
            world.blind_tools.remove(&fs_type)
        };
    }

    /// Takes the tools of a filesystem away, or brings them back.
    pub fn set_tools(&self, fs_type: FsType, present: bool) {
        let mut world = self.lock();
        if present {
            world.missing_tools.remove(&fs_type)
        } else {
            world.missing_tools.insert(fs_type)
        };
    }

    /// Takes CAP_SYS_RESOURCE away from processes, or gives it to them.
    pub fn set_sys_resource(&self, has: bool) {
        self.lock().sys_resource = has;
    }

    /// Marks the ext4 filesystem in an image as having errors.
    pub fn mark_errors(&self, image: impl AsRef<Path>) -> io::Result<()> {
        let image = image.as_ref();
        self.outside("mark", image, |world| {
            let node: NodeRef = world.walk(image, Last::Follow)?.node;
            world.write_at(node, EXT4_STATE, &3u16.to_le_bytes())
        })
    }

    /// The attached loop devices, foreign ones too.
    pub fn loops(&self) -> Vec<LoopDevice> {
        let world = self.lock();
        world.loops.values().map(|device| world.status(device)).collect()
    }

    /// How many loop devices were ever attached.
    pub fn attach_count(&self) -> u64 {
        self.lock().attached
    }

    /// Whether a loop device may give blocks back; false also where it is not attached.
    pub fn loop_discards(&self, number: u32) -> bool {
        self.lock().loops.get(&number).is_some_and(|device| device.discard)
    }

    /// What was mounted since the machine started, in order; without `/`, /dev and /run.
    pub fn mounts(&self) -> Vec<MountEntry> {
        let world = self.lock();
        let mounted = world.mounts.iter().filter(|(_, mount)| !mount.base && !mount.is_apart());
        mounted.map(|(number, mount)| world.entry(*number, mount)).collect()
    }

    /// Every filesystem that was ever made, by its image, in order.
    pub fn formats(&self) -> Vec<(FileId, FsType)> {
        self.lock().formats.clone()
    }

    /// The options of every filesystem that was ever made, in order.
    pub fn make_options(&self) -> Vec<MakeOptions> {
        self.lock().make_options.clone()
    }

    /// What no error told the driver of, but would have cost data on a real machine; to be asserted empty.
    pub fn hazards(&self) -> Vec<String> {
        self.lock().hazards.clone()
    }
}
