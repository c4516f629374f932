//! The life of the machine and its processes.

use std::path::Path;

use super::loops::rdev;
use super::losses::Loss;
use super::mounts::Mount;
use super::tree::{Backing, Filesystem, Node, NodeRef, ROOT};
use super::world::World;

/// The directories of a new machine's disk.
const DIRECTORIES: [&str; 5] = ["/dev", "/run", "/tmp", "/var/lib", "/sys"];

impl World {
    /// Mounts what is always mounted, on a disk that is as it is.
    pub(super) fn boot(&mut self) {
        self.mounts.clear();
        self.detached.clear();
        self.pins.clear();
        self.covered.clear();
        let root = NodeRef { fs: 0, ino: ROOT };
        let dev = libc::makedev(254, 1);
        self.mount_base(Path::new("/"), root, "/dev/vda1", (dev, dev));
        for directory in DIRECTORIES {
            self.make_directories(Path::new(directory)).expect("a directory of the root");
        }
        for (target, fs_type, source, minor) in
            [("/dev", "devtmpfs", "devtmpfs", 6), ("/run", "tmpfs", "tmpfs", 25)]
        {
            self.filesystems.push(Filesystem::new(fs_type, Backing::Memory));
            let root = NodeRef { fs: self.filesystems.len() - 1, ino: ROOT };
            let dev = libc::makedev(0, minor);
            self.mount_base(Path::new(target), root, source, (dev, dev));
        }
        let control = Node::Device { rdev: libc::makedev(10, 237), block: false };
        let dev = self.dev();
        self.fs_mut(dev.fs).add(dev.ino, "loop-control", control, 0o660).expect("a new /dev");
        let disk = Node::Device { rdev: libc::makedev(254, 1), block: true };
        self.fs_mut(dev.fs).add(dev.ino, "vda1", disk, 0o660).expect("a new /dev");
        self.make_node(0);
        for disk in 1..self.disks.len() {
            self.mount_disk(disk);
        }
    }

    /// Makes the node of a further disk and mounts its filesystem.
    pub(super) fn mount_disk(&mut self, number: usize) {
        let (fs, target) = (self.disks[number].filesystem, self.disks[number].target.clone());
        let dev = libc::makedev(254, 16 * number as u32);
        let name = format!("vd{}", char::from(b'a' + number as u8));
        let node = Node::Device { rdev: dev, block: true };
        let root_of_dev = self.dev();
        self.fs_mut(root_of_dev.fs).add(root_of_dev.ino, &name, node, 0o660).expect("a disk of its own");
        // Btrfs has a number of its own for the superblock and one for each subvolume.
        let shown = if self.filesystems[fs].fs_type == "btrfs" {
            (libc::makedev(0, 60 + 2 * number as u32), libc::makedev(0, 61 + 2 * number as u32))
        } else {
            (dev, dev)
        };
        self.mount_base(&target, NodeRef { fs, ino: ROOT }, &format!("/dev/{name}"), shown);
    }

    fn mount_base(&mut self, target: &Path, root: NodeRef, source: &str, (dev, st_dev): (u64, u64)) {
        let at = self.mounts.first_key_value().map(|_| {
            let place = self.walk(target, super::resolve::Last::Keep).expect("a directory of the root");
            (place.mount, place.node)
        });
        let mount = Mount {
            at,
            target: target.to_owned(),
            root,
            root_path: "/".into(),
            dev,
            st_dev,
            source: source.to_owned(),
            loop_number: None,
            read_only: false,
            superblock_read_only: false,
            flags: Default::default(),
            propagation: self.new_peers(),
            base: true,
        };
        self.add_mount(mount);
    }

    /// The root of /dev.
    pub(super) fn dev(&self) -> NodeRef {
        let mount = self.mounts.values().find(|mount| mount.base && mount.target == Path::new("/dev"));
        mount.expect("/dev is mounted").root
    }

    /// Makes the node of a loop device where /dev lacks it.
    pub(super) fn make_node(&mut self, number: u32) {
        let dev = self.dev();
        let node = Node::Device { rdev: rdev(number), block: true };
        // EEXIST: it is there already.
        let _ = self.fs_mut(dev.fs).add(dev.ino, &format!("loop{number}"), node, 0o660);
    }

    /// Ends a process: the kernel closes its descriptors.
    pub(super) fn kill(&mut self, generation: u64) {
        self.alive.remove(&generation);
        self.kill_helpers(generation);
        let of_it =
            |(id, open): (&u64, &super::world::Open)| (open.generation == Some(generation)).then_some(*id);
        for id in self.opens.iter().filter_map(of_it).collect::<Vec<_>>() {
            self.close(id);
        }
    }

    pub(super) fn spawn(&mut self) -> u64 {
        self.generation += 1;
        self.alive.insert(self.generation);
        self.generation
    }

    pub(super) fn restart(&mut self) -> u64 {
        for generation in std::mem::take(&mut self.alive) {
            self.kill(generation);
        }
        self.seam.clear_plans();
        self.spawn()
    }

    pub(super) fn power_cut(&mut self, loss: Loss) -> u64 {
        let written: Vec<_> =
            self.mounts.values().filter(|mount| !mount.superblock_read_only).map(|m| m.root.fs).collect();
        for fs in written {
            self.filesystems[fs].needs_recovery = true;
        }
        self.lose(loss);
        self.start_again()
    }

    pub(super) fn reboot(&mut self) -> u64 {
        self.lose(Loss::Nothing);
        self.start_again()
    }

    pub(super) fn image_is_there(&self, fs: usize) -> bool {
        match self.filesystems[fs].backing {
            Backing::Image(image) => self.filesystems[image.fs].inodes.contains_key(&image.ino),
            _ => true,
        }
    }

    fn start_again(&mut self) -> u64 {
        self.alive.clear();
        self.opens.clear();
        self.loops.clear();
        self.stuck.clear();
        self.freezes.forget();
        self.forget_later();
        self.boot();
        self.seam.clear_plans();
        self.spawn()
    }
}
