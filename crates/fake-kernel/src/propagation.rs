//! Where mounts and unmounts go besides the place that they are made at (mount_namespaces(7), "Shared subtrees").

use std::collections::BTreeMap;

use super::mounts::Mount;
use super::world::World;
use hostloop_kernel::Propagation;

impl World {
    /// A new peer group.
    pub(super) fn new_peers(&mut self) -> Propagation {
        self.next_peers += 1;
        Propagation { peers: Some(self.next_peers), ..Propagation::default() }
    }

    /// Makes mounts shared, each by itself, or private.
    pub(super) fn set_shared(&mut self, which: impl Fn(&Mount) -> bool, shared: bool) {
        let numbers: Vec<u64> =
            self.mounts.iter().filter(|(_, mount)| which(mount)).map(|(number, _)| *number).collect();
        for number in numbers {
            let propagation = if shared { self.new_peers() } else { Propagation::default() };
            self.mounts.entry(number).and_modify(|mount| mount.propagation = propagation);
        }
    }

    /// What a new mount gets: a bind is a peer of its source, and below a shared mount each one is shared.
    pub(super) fn propagation_below(&mut self, around: u64, source: Propagation) -> Propagation {
        match source.peers.or(self.mounts[&around].propagation.peers) {
            Some(_) if source.peers.is_none() => Propagation { peers: self.new_peers().peers, ..source },
            _ => source,
        }
    }

    /// Adds a mount, and its copies below the peers and slaves of the mount that it is on.
    pub(super) fn attach_mount(&mut self, mount: Mount) {
        let mut copies = Vec::new();
        if let Some((around, node)) = mount.at {
            let below = mount.target.strip_prefix(&self.mounts[&around].target).unwrap_or(&mount.target);
            let inner = self.mounts[&around].root_path.join(below);
            for (other, propagation) in self.receivers(around, mount.propagation) {
                let there = &self.mounts[&other];
                let is_seen = there.root.fs == node.fs && !self.covered.contains_key(&(other, node));
                if let (true, Ok(below)) = (is_seen, inner.strip_prefix(&there.root_path)) {
                    let (at, target) = (Some((other, node)), there.target.join(below));
                    copies.push(Mount { at, target, propagation, ..mount.clone() });
                }
            }
        }
        self.add_mount(mount);
        copies.into_iter().for_each(|copy| self.add_mount(copy));
    }

    /// The copies that are unmounted with a mount; one in which something is mounted stays.
    pub(super) fn copies_of(&mut self, number: u64) -> Vec<u64> {
        let mount = &self.mounts[&number];
        let Some((around, node)) = mount.at else { return Vec::new() };
        // Of what propagation they are does not matter here.
        let receivers = self.receivers(around, Propagation { peers: Some(0), ..Propagation::default() });
        let copies = receivers.into_iter().filter_map(|(other, _)| self.covered.get(&(other, node)).copied());
        copies.filter(|copy| !self.has_below(*copy)).collect()
    }

    pub(super) fn has_below(&self, number: u64) -> bool {
        self.mounts.values().any(|other| other.at.is_some_and(|(on, _)| on == number))
    }

    /// The mounts to which what is mounted on `around` goes, each with the propagation of its copy of a mount with
    /// `copied`.
    fn receivers(&mut self, around: u64, copied: Propagation) -> Vec<(u64, Propagation)> {
        let (Some(peers), Some(copied)) = (self.mounts[&around].propagation.peers, copied.peers) else {
            return Vec::new();
        };
        let of = |world: &World, which: &dyn Fn(Propagation) -> bool| {
            let found =
                world.mounts.iter().filter(|(number, mount)| **number != around && which(mount.propagation));
            found.map(|(number, mount)| (*number, mount.propagation.peers)).collect::<Vec<_>>()
        };
        let own = Propagation { peers: Some(copied), ..Propagation::default() };
        let mut found: Vec<(u64, Propagation)> = of(self, &|other| other.peers == Some(peers))
            .into_iter()
            .map(|(number, _)| (number, own))
            .collect();
        let mut groups = BTreeMap::from([(peers, copied)]);
        let mut todo = vec![peers];
        while let Some(group) = todo.pop() {
            let master = groups.get(&group).copied();
            for (number, peers) in of(self, &|other| other.master == Some(group)) {
                let peers = peers.map(|peers| {
                    let next_peers = &mut self.next_peers;
                    *groups.entry(peers).or_insert_with(|| {
                        *next_peers += 1;
                        todo.push(peers);
                        *next_peers
                    })
                });
                found.push((number, Propagation { peers, master, from: None }));
            }
        }
        found
    }
}
