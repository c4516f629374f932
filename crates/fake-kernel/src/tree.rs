//! A filesystem: inodes, each with what the page cache holds and what would survive a power cut.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use nix::errno::Errno;

use super::Outcome;
use super::blocks::Ranges;
use super::content::{BLOCK, Content};
use super::quotas::Limits;
use hostloop_kernel::Upkeep;

/// Number of a filesystem in the world.
pub(super) type FsId = usize;

/// The inode of every filesystem's root, as on ext4.
pub(super) const ROOT: u64 = 2;

/// An inode of some filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct NodeRef {
    pub(super) fs: FsId,
    pub(super) ino: u64,
}

/// Where a filesystem keeps its blocks.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Backing {
    /// The number of a disk of the machine.
    Disk(usize),
    /// Memory: gone at a power cut.
    Memory,
    /// The file behind a loop device.
    Image(NodeRef),
}

pub(super) type Entries = BTreeMap<String, u64>;

#[derive(Clone, PartialEq)]
pub(super) enum Node {
    File {
        now: Content,
        durable: Content,
        /// Blocks that a failed sync has left clean and not on the disk, with what they held then.
        lost: BTreeMap<u64, Arc<Vec<u8>>>,
    },
    Directory {
        now: Entries,
        durable: Entries,
    },
    Symlink(PathBuf),
    /// A device node; `block` or character.
    Device {
        rdev: u64,
        block: bool,
    },
}

#[derive(Clone, PartialEq)]
pub(super) struct Inode {
    pub(super) node: Node,
    pub(super) mode: u32,
    /// Names it has now, not counting the durable ones.
    pub(super) links: u32,
    /// Open descriptors and loop devices on it.
    pub(super) open: u32,
    /// The number that it counts under; 0 for none.
    pub(super) project: u32,
    /// The same on the disk.
    pub(super) durable_project: u32,
    /// Its attributes (chattr(1)).
    pub(super) immutable: bool,
    pub(super) append_only: bool,
}

/// A name that changed, and may not be on the disk.
#[derive(Clone)]
pub(super) struct Change {
    pub(super) directory: u64,
    pub(super) name: String,
    /// The inode that it names since then; none where it was removed.
    pub(super) to: Option<u64>,
    /// The call that changed it.
    pub(super) call: u64,
}

#[derive(Clone)]
pub(super) struct Filesystem {
    pub(super) backing: Backing,
    pub(super) fs_type: &'static str,
    pub(super) inodes: BTreeMap<u64, Inode>,
    /// Bytes allocated by files that have a name or are open.
    pub(super) used: u64,
    /// Sector size of the device that it was made on.
    pub(super) sector: u32,
    /// It was mounted for writing when the power went: its journal must be replayed.
    pub(super) needs_recovery: bool,
    /// A check finds something wrong.
    pub(super) damaged: bool,
    /// Its files can share blocks.
    pub(super) reflink: bool,
    /// The subvolume that a mount shows where it names none, as a path from the top.
    pub(super) default: PathBuf,
    /// What it takes for itself.
    pub(super) upkeep: Upkeep,
    /// What it limits.
    pub(super) limits: Limits,
    /// Some did.
    shares: bool,
    /// In the order of the calls.
    pub(super) changes: Vec<Change>,
    calls: u64,
    next: u64,
    /// The first block that no file ever had.
    next_block: u64,
}

impl Inode {
    /// With one name.
    fn new(node: Node, mode: u32, project: u32) -> Self {
        let (durable_project, immutable, append_only) = (project, false, false);
        Inode { node, mode, links: 1, open: 0, project, durable_project, immutable, append_only }
    }
}

impl Node {
    pub(super) fn file() -> Self {
        Node::File { now: Content::default(), durable: Content::default(), lost: BTreeMap::new() }
    }

    pub(super) fn directory() -> Self {
        Node::Directory { now: Entries::new(), durable: Entries::new() }
    }
}

impl Filesystem {
    pub(super) fn new(fs_type: &'static str, backing: Backing) -> Self {
        let root = Inode::new(Node::directory(), 0o755, 0);
        let inodes = BTreeMap::from([(ROOT, root)]);
        Filesystem {
            backing,
            fs_type,
            inodes,
            used: 0,
            sector: 512,
            needs_recovery: false,
            damaged: false,
            reflink: false,
            default: PathBuf::from("/"),
            upkeep: Upkeep::default(),
            limits: Limits::default(),
            shares: false,
            changes: Vec::new(),
            calls: 0,
            next: ROOT + 1,
            next_block: 1,
        }
    }

    pub(super) fn inode(&self, ino: u64) -> &Inode {
        self.inodes.get(&ino).expect("a reference to an inode of this filesystem")
    }

    pub(super) fn inode_mut(&mut self, ino: u64) -> &mut Inode {
        self.inodes.get_mut(&ino).expect("a reference to an inode of this filesystem")
    }

    pub(super) fn entries(&self, ino: u64) -> Outcome<&Entries> {
        match &self.inode(ino).node {
            Node::Directory { now, .. } => Ok(now),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn entries_mut(&mut self, ino: u64) -> Outcome<&mut Entries> {
        match &mut self.inode_mut(ino).node {
            Node::Directory { now, .. } => Ok(now),
            _ => Err(Errno::ENOTDIR),
        }
    }

    pub(super) fn content(&self, ino: u64) -> Outcome<&Content> {
        match &self.inode(ino).node {
            Node::File { now, .. } => Ok(now),
            Node::Directory { .. } => Err(Errno::EISDIR),
            Node::Symlink(_) => Err(Errno::ELOOP),
            Node::Device { .. } => Err(Errno::EINVAL),
        }
    }

    pub(super) fn content_mut(&mut self, ino: u64) -> Outcome<&mut Content> {
        self.content(ino)?;
        match &mut self.inode_mut(ino).node {
            Node::File { now, .. } => Ok(now),
            _ => Err(Errno::EINVAL),
        }
    }

    /// Gives a new inode a name.
    pub(super) fn add(&mut self, directory: u64, name: &str, node: Node, mode: u32) -> Outcome<u64> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        let ino = self.next;
        if self.entries(directory)?.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let project = self.inode(directory).project;
        self.one_more(project)?;
        let entries = self.entries_mut(directory)?;
        entries.insert(name.to_owned(), ino);
        self.changed(directory, name, Some(ino));
        self.next += 1;
        self.inodes.insert(ino, Inode::new(node, mode, project));
        Ok(ino)
    }

    /// Gives an inode that is there another name, or takes `name` from what had it.
    pub(super) fn link(&mut self, directory: u64, name: &str, ino: u64) -> Outcome<()> {
        if name.len() > 255 {
            return Err(Errno::ENAMETOOLONG);
        }
        let old = self.entries_mut(directory)?.insert(name.to_owned(), ino);
        self.changed(directory, name, Some(ino));
        self.inode_mut(ino).links += 1;
        if let Some(old) = old {
            self.drop_link(old);
        }
        Ok(())
    }

    /// Takes a name away. The inode stays as long as it is open, and its durable copy as long as the name is
    /// on disk.
    pub(super) fn unlink(&mut self, directory: u64, name: &str) -> Outcome<()> {
        let ino = self.entries_mut(directory)?.remove(name).ok_or(Errno::ENOENT)?;
        self.changed(directory, name, None);
        self.drop_link(ino);
        Ok(())
    }

    /// rename(2): both names change at once.
    pub(super) fn rename(&mut self, from: (u64, &str), to: (u64, &str), ino: u64) -> Outcome<()> {
        self.link(to.0, to.1, ino)?;
        let call = self.calls;
        self.unlink(from.0, from.1)?;
        self.calls = call;
        self.changes.iter_mut().filter(|change| change.call > call).for_each(|change| change.call = call);
        Ok(())
    }

    fn changed(&mut self, directory: u64, name: &str, to: Option<u64>) {
        if self.backing != Backing::Memory {
            self.calls += 1;
            self.changes.push(Change { directory, name: name.to_owned(), to, call: self.calls });
        }
    }

    fn drop_link(&mut self, ino: u64) {
        self.inode_mut(ino).links -= 1;
        self.release_if_unused(ino);
    }

    pub(super) fn opened(&mut self, ino: u64) {
        self.inode_mut(ino).open += 1;
    }

    pub(super) fn closed(&mut self, ino: u64) {
        self.inode_mut(ino).open -= 1;
        self.release_if_unused(ino);
    }

    fn release_if_unused(&mut self, ino: u64) {
        let inode = self.inode(ino);
        if inode.links == 0 && inode.open == 0 {
            let freed = self.content(ino).map(Content::allocated_bytes).unwrap_or(0);
            self.used -= freed.min(self.used);
            self.recount_shared();
        }
    }

    // Blocks.

    pub(super) fn files(&self) -> impl Iterator<Item = (u64, &Inode, &Content, &Content)> {
        self.inodes.iter().filter_map(|(ino, inode)| match &inode.node {
            Node::File { now, durable, .. } => Some((*ino, inode, now, durable)),
            _ => None,
        })
    }

    /// The bytes that files with a name or a user take, shared blocks once.
    pub(super) fn count(&self) -> u64 {
        let used = self.files().filter(|(_, inode, ..)| inode.links > 0 || inode.open > 0);
        if !self.shares {
            return used.map(|(_, _, now, _)| now.allocated_bytes()).sum();
        }
        let mut blocks = Ranges::default();
        used.for_each(|(_, _, now, _)| add(now, &mut blocks));
        blocks.total() * BLOCK
    }

    /// What the maps of files' blocks take beside them. They are looked at only where that is not nothing.
    pub(super) fn metadata(&self) -> u64 {
        if self.upkeep.per_block == 0 {
            return 0;
        }
        let used = self.files().filter(|(_, inode, ..)| inode.links > 0 || inode.open > 0);
        used.map(|(_, _, now, _)| now.places().count()).sum::<u64>() * self.upkeep.per_block
    }

    /// Where files share blocks, what is used is not a sum.
    pub(super) fn recount_shared(&mut self) {
        if self.shares {
            self.used = self.count();
        }
    }

    /// From here on a block may be in several files.
    pub(super) fn begin_sharing(&mut self) {
        self.shares = true;
        self.recount_shared();
    }

    /// The blocks that other files have, or would have after a power cut.
    pub(super) fn blocks_of_others(&self, but: u64) -> Ranges {
        let mut blocks = Ranges::default();
        if !self.shares {
            return blocks;
        }
        for (_, _, now, durable) in self.files().filter(|(ino, ..)| *ino != but) {
            add(now, &mut blocks);
            add(durable, &mut blocks);
        }
        blocks
    }

    /// Blocks that no file has. On a disk they are ones that no file ever had, so that a block's number says whose
    /// bytes it holds; in an image, whose blocks are to be used again, the lowest.
    pub(super) fn free_blocks(&self, count: u64) -> Vec<(u64, u64)> {
        if count == 0 {
            return Vec::new();
        }
        if !matches!(self.backing, Backing::Image(_)) {
            return vec![(self.next_block, self.next_block + count)];
        }
        let mut blocks = Ranges::default();
        let live = self.files().filter(|(_, inode, ..)| inode.links > 0 || inode.open > 0);
        live.for_each(|(_, _, now, _)| add(now, &mut blocks));
        blocks.lowest_free(count)
    }

    /// That many of the [`free_blocks`](Self::free_blocks) were given out.
    pub(super) fn give(&mut self, count: u64) {
        self.next_block += count;
    }
}

fn add(content: &Content, blocks: &mut Ranges) {
    content.places().all().for_each(|run| blocks.insert(run.physical, run.physical + (run.end - run.start)));
}
