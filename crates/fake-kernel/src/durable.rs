//! What part of a filesystem is on its disk: syncs, and what a power cut leaves (see [`losses`](super::losses)).

use std::collections::BTreeSet;

use super::chance::Chance;
use super::tree::{Change, Filesystem, Node, ROOT};

impl Filesystem {
    /// fsync(2): of a file its contents, of a directory its entries.
    pub(super) fn sync(&mut self, ino: u64) {
        self.limits.sync();
        let inode = self.inode_mut(ino);
        inode.durable_project = inode.project;
        match &mut self.inode_mut(ino).node {
            Node::File { now, durable, lost } => {
                let before = std::mem::replace(durable, now.clone());
                // What was written since is dirty again.
                lost.retain(|block, bytes| now.holds(*block, bytes));
                durable.restore(lost.keys(), &before);
            }
            Node::Directory { now, durable } => {
                *durable = now.clone();
                self.changes.retain(|change| change.directory != ino);
            }
            Node::Symlink(_) | Node::Device { .. } => {}
        }
    }

    /// Makes one name durable, and nothing else of its directory.
    pub(super) fn sync_entry(&mut self, directory: u64, name: String, ino: u64) {
        self.changes.retain(|change| (change.directory, &change.name) != (directory, &name));
        if let Node::Directory { durable, .. } = &mut self.inode_mut(directory).node {
            durable.insert(name, ino);
        }
    }

    /// The blocks of a file that are dirty are clean, and not on the disk.
    pub(super) fn lose_writeback(&mut self, ino: u64) {
        if let Node::File { now, durable, lost } = &mut self.inode_mut(ino).node {
            lost.extend(now.unlike(durable));
        }
    }

    /// A part of what is not synced comes to the disk.
    pub(super) fn keep_some(&mut self, chance: &mut Chance) {
        let calls: BTreeSet<u64> = self.changes.iter().map(|change| change.call).collect();
        let kept = calls.iter().nth(chance.below(calls.len() + 1)).copied().unwrap_or(u64::MAX);
        for change in std::mem::take(&mut self.changes).into_iter().filter(|change| change.call < kept) {
            if let Node::Directory { durable, .. } = &mut self.inode_mut(change.directory).node {
                match change.to {
                    Some(ino) => durable.insert(change.name, ino),
                    None => durable.remove(&change.name),
                };
            }
        }
        for inode in self.inodes.values_mut() {
            if inode.project != inode.durable_project && chance.flip() {
                inode.durable_project = inode.project;
            }
            if let Node::File { now, durable, lost } = &mut inode.node
                && *now != *durable
            {
                let all = now.unlike(durable).map(|(block, _)| block).collect::<Vec<_>>();
                *durable = match chance.below(3) {
                    0 => continue,
                    1 => now.with(lost.keys(), durable),
                    _ => now
                        .with(all.iter().filter(|block| lost.contains_key(block) || chance.flip()), durable),
                };
            }
        }
    }

    /// See [`FakeKernel::unsynced`](super::FakeKernel::unsynced).
    pub(super) fn unsynced(&self) -> impl Iterator<Item = String> {
        let names = self.changes.iter().map(|change| {
            let Change { directory, name, to, .. } = change;
            format!("{name} in {directory} is {to:?}")
        });
        let files = self.files().filter(|(_, _, now, durable)| now != durable);
        let projects = self.inodes.iter().filter(|(_, inode)| inode.project != inode.durable_project);
        let projects = projects.map(|(ino, _)| format!("project of {}", self.name_of(*ino)));
        names.chain(files.map(|(ino, ..)| format!("data of {}", self.name_of(ino)))).chain(projects)
    }

    fn name_of(&self, ino: u64) -> &str {
        let entries = self.inodes.keys().filter_map(|directory| self.entries(*directory).ok()).flatten();
        entries.into_iter().find(|(_, other)| **other == ino).map_or("nothing", |(name, _)| name.as_str())
    }

    /// syncfs(2). What has no name any more is gone for good.
    pub(super) fn sync_all(&mut self) {
        self.inodes.retain(|_, inode| inode.links > 0 || inode.open > 0);
        for ino in self.inodes.keys().copied().collect::<Vec<_>>() {
            self.sync(ino);
        }
    }

    /// A power cut: what was not synced is lost, and so is every inode that no durable directory names.
    pub(super) fn lose_unsynced(&mut self) {
        self.changes.clear();
        self.limits.lose_unsynced();
        for inode in self.inodes.values_mut() {
            (inode.links, inode.open) = (0, 0);
            inode.project = inode.durable_project;
            match &mut inode.node {
                Node::File { now, durable, lost } => {
                    *now = durable.clone();
                    lost.clear();
                }
                Node::Directory { now, durable } => *now = durable.clone(),
                Node::Symlink(_) | Node::Device { .. } => {}
            }
        }
        self.inode_mut(ROOT).links = 1;
        let (mut todo, mut seen) = (vec![ROOT], BTreeSet::from([ROOT]));
        while let Some(directory) = todo.pop() {
            let children: Vec<u64> =
                self.entries(directory).map(|e| e.values().copied().collect()).unwrap_or_default();
            for child in children {
                self.inode_mut(child).links += 1;
                if seen.insert(child) {
                    todo.push(child);
                }
            }
        }
        self.inodes.retain(|ino, _| seen.contains(ino));
        self.used = self.count();
    }
}
