//! Mounts that are copies of another one. What is mounted below a shared mount appears below its peers and slaves as well,
//! and is unmounted there as well (mount_namespaces(7), "Shared subtrees").

use std::path::PathBuf;

use crate::kernel::MountEntry;

/// Returns whether the kernel unmounts `other` when it unmounts `ours`: both show the same, at the same place of two
/// mounts of which the one sends mounts to the other. Their own peer groups do not decide: a publish is a bind, and so a
/// peer, of the staged mount. If a mount that this needs is not in the table, the answer is no.
pub(super) fn goes_with(table: &[MountEntry], ours: &MountEntry, other: &MountEntry) -> bool {
    let by_id = |id: u64| table.iter().find(|mount| mount.id == id);
    let Some((around, other_around)) = by_id(ours.parent).zip(by_id(other.parent)) else { return false };
    let is_same_place = around.id != other_around.id
        && (ours.dev, &ours.root) == (other.dev, &other.root)
        && around.dev == other_around.dev
        && place_in(around, ours).is_some_and(|place| place_in(other_around, other) == Some(place));
    // A copy in which something is mounted stays, unless it goes as well.
    let has_inside = |mount: &MountEntry| table.iter().any(|inner| inner.parent == mount.id);
    is_same_place && sends_to(table, around, other_around) && (has_inside(ours) || !has_inside(other))
}

/// Returns the path of a mount point within the filesystem that it is in.
fn place_in(around: &MountEntry, mount: &MountEntry) -> Option<PathBuf> {
    mount.target.strip_prefix(&around.target).ok().map(|below| around.root.join(below))
}

/// Returns whether what is mounted below the one appears below the other.
fn sends_to(table: &[MountEntry], from: &MountEntry, to: &MountEntry) -> bool {
    let Some(group) = from.propagation.peers else { return false };
    let mut groups = vec![group];
    let receives = |mount: &MountEntry, groups: &[u64]| {
        let propagation = mount.propagation;
        [propagation.master, propagation.from].into_iter().flatten().any(|group| groups.contains(&group))
    };
    loop {
        if to.propagation.peers.is_some_and(|peers| groups.contains(&peers)) || receives(to, &groups) {
            return true;
        }
        // A slave that is shared sends on what it receives.
        let more =
            table.iter().filter(|mount| receives(mount, &groups)).filter_map(|mount| mount.propagation.peers);
        match more.into_iter().find(|peers| !groups.contains(peers)) {
            Some(peers) => groups.push(peers),
            None => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Propagation;

    /// `id parent root target`, and its propagation.
    fn entry(id: u64, parent: u64, root: &str, target: &str, propagation: Propagation) -> MountEntry {
        MountEntry {
            id,
            parent,
            dev: 1,
            root: root.into(),
            target: target.into(),
            fs_type: "ext4".to_owned(),
            source: "/dev/vda".to_owned(),
            read_only: false,
            flags: Vec::new(),
            superblock_read_only: false,
            propagation,
        }
    }

    fn shared(peers: u64) -> Propagation {
        Propagation { peers: Some(peers), ..Propagation::default() }
    }

    fn slave(master: u64) -> Propagation {
        Propagation { master: Some(master), ..Propagation::default() }
    }

    /// The volume is mounted at /k/x (4) and at /d/x (5): of /k (2) and /d (3), which show /dir, this is the propagation.
    fn table(k: Propagation, d: Propagation) -> Vec<MountEntry> {
        let volume = |id, parent, target| MountEntry { dev: 7, ..entry(id, parent, "/", target, shared(9)) };
        vec![
            entry(1, 0, "/", "/", shared(1)),
            entry(2, 1, "/dir", "/k", k),
            entry(3, 1, "/dir", "/d", d),
            volume(4, 2, "/k/x"),
            volume(5, 3, "/d/x"),
        ]
    }

    fn goes(table: &[MountEntry]) -> [bool; 2] {
        let (ours, other) = (&table[3], &table[4]);
        [goes_with(table, ours, other), goes_with(table, other, ours)]
    }

    #[test]
    fn copies_in_peers_and_slaves_go_with_it() {
        let both = Propagation { peers: Some(3), ..slave(2) };
        assert_eq!(goes(&table(shared(2), shared(2))), [true, true]);
        assert_eq!(goes(&table(shared(2), slave(2))), [true, false]);
        assert_eq!(goes(&table(shared(2), both)), [true, false]);
        let far = Propagation { from: Some(2), ..slave(8) };
        assert_eq!(goes(&table(shared(2), far)), [true, false], "slave of a slave that is not seen");
        let mut chain = table(shared(2), slave(3));
        assert_eq!(goes(&chain), [false, false]);
        chain.push(entry(6, 1, "/dir", "/between", both));
        assert_eq!(goes(&chain), [true, false], "slave of a slave");
    }

    #[test]
    fn a_mount_that_only_looks_like_a_copy_is_a_use() {
        let none = Propagation::default();
        for (k, d) in [(none, none), (none, shared(2)), (shared(2), shared(3)), (slave(2), slave(2))] {
            assert_eq!(goes(&table(k, d)), [false, false], "{k:?} {d:?}");
        }
        let changed = |change: &dyn Fn(&mut Vec<MountEntry>)| {
            let mut table = table(shared(2), shared(2));
            change(&mut table);
            goes(&table)[0]
        };
        assert!(changed(&|_| ()));
        assert!(!changed(&|table| table[4].target = "/d/y".into()), "another place");
        assert!(!changed(&|table| table[2].root = "/other".into()), "another directory");
        assert!(!changed(&|table| table[2].dev = 2), "another filesystem");
        assert!(!changed(&|table| table[4].root = "/part".into()), "a part of the volume");
        assert!(!changed(&|table| table[4].dev = 8), "another volume");
        assert!(!changed(&|table| table[4].parent = 77), "on a mount that is not known");
        let inside = entry(6, 5, "/", "/d/x/inside", none);
        assert!(!changed(&|table| table.push(inside.clone())), "it would stay");
        let ours = MountEntry { parent: 4, id: 7, ..inside.clone() };
        assert!(changed(&|table| table.extend([inside.clone(), ours.clone()])));
    }

    #[test]
    fn the_same_place_is_found_from_other_directories() {
        let mut table = table(shared(2), shared(2));
        table[1].root = "/dir/sub".into();
        table[4].target = "/d/sub/x".into();
        assert_eq!(goes(&table), [true, true]);
    }
}
