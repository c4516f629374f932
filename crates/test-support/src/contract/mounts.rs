//! kernel::Mounts

use std::path::Path;

use hostloop::kernel::{MountEntry, Os, Propagation};
use hostloop::model::{FsType, VfsFlag};
use nix::errno::Errno;

use super::{Cleanup, MIB, assert_gone, devices_of, directory, errno, flags, formatted};

/// What is mounted there, with and without a look at all mounts.
fn at(os: &Os, target: &Path) -> Vec<MountEntry> {
    let is_there = |mount: &MountEntry| mount.target == target;
    let found: Vec<_> = os.mounts.list().expect("list").into_iter().filter(is_there).collect();
    assert_eq!(os.mounts.matching(&is_there).expect("ask"), found);
    found
}

/// Asserts what the trait promises.
pub fn mounts(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    let (staged, image) = (directory(os, dir.join("staged")), dir.join("m.img"));
    let open = formatted(os, &image, FsType::Ext4, 32 * MIB);
    let device = open.device.clone();
    words(os);
    let missing = os.mounts.mount(&device.path(), &dir.join("no"), FsType::Ext4, &flags(&[]));
    assert_eq!(errno(missing), Some(Errno::ENOENT));
    assert_eq!(
        errno(os.mounts.mount(&device.path(), &image, FsType::Ext4, &flags(&[]))),
        Some(Errno::ENOTDIR)
    );
    os.mounts.mount(&device.path(), &staged, FsType::Ext4, &flags(&["nosuid", "noatime"])).expect("mount");
    drop(open);
    let entries = at(os, &staged);
    assert_eq!(entries.len(), 1);
    let entry = &entries[0];
    assert_eq!(
        (entry.dev, entry.fs_type.as_str(), entry.root.as_path()),
        (device.rdev, "ext4", Path::new("/"))
    );
    assert_eq!(Path::new(&entry.source), device.path());
    assert!(!entry.read_only && !entry.superblock_read_only);
    assert_eq!(entry.flags, [VfsFlag::NoAtime, VfsFlag::NoSuid]);
    assert_eq!(devices_of(os, &image), [device], "the mount holds the device");
    assert_eq!(errno(os.files.remove_directory(&staged)), Some(Errno::EBUSY));
    binds(os, dir, &staged);
    trees(os, dir, &staged);
    os.mounts.unmount(&staged).expect("unmount");
    assert_eq!(at(os, &staged), []);
    assert_eq!(errno(os.mounts.unmount(&staged)), Some(Errno::EINVAL));
    assert_gone(os, &image);
}

/// The kernel knows the words of a filesystem without a device. Before Linux 6.8 it does not tell those of btrfs.
fn words(os: &Os) {
    for fs_type in [FsType::Ext4, FsType::Xfs, FsType::Btrfs] {
        let refused = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            os.mounts.refused_option(fs_type, &words).map(|name| name.to_string())
        };
        let tells = refused(&["no_such_word"]).is_some();
        assert!(tells || fs_type == FsType::Btrfs, "{fs_type}");
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(&["discard", "nodiscard"]), None, "{fs_type}");
        let named = tells.then(|| "\"no_such_word\"".to_owned());
        assert_eq!(refused(&["discard", "no_such_word=a", "other"]), named, "{fs_type}");
    }
}

/// What is mounted in one of two peers is mounted in the other, and unmounted with it; to a slave it goes one way only.
/// `shared` and `slave` change the propagation of the mount at a path, as mount(8) does.
pub fn propagated(os: &Os, dir: &Path, shared: &dyn Fn(&Path), slave: &dyn Fn(&Path)) {
    let dir = &directory(os, dir.join("propagated"));
    let _cleanup = Cleanup::new(os, dir);
    let [one, two, source] = ["one", "two", "source"].map(|name| directory(os, dir.join(name)));
    os.mounts.bind(&one, &one, &flags(&[])).expect("bind");
    shared(&one);
    os.mounts.bind(&one, &two, &flags(&[])).expect("bind");
    let [in_one, in_two] = [&one, &two].map(|base| base.join("x"));
    directory(os, in_one.clone());
    let propagation = |path: &Path| {
        let [mount] = at(os, path).try_into().expect("one mount");
        mount.propagation
    };
    let peers = propagation(&one);
    assert!(peers.peers.is_some() && propagation(&two) == peers, "{peers:?}");
    for (here, there) in [(&in_one, &in_two), (&in_two, &in_one)] {
        os.mounts.bind(&source, here, &flags(&["nodev"])).expect("bind");
        let [[own], [copy]] =
            [here, there].map(|path| <[MountEntry; 1]>::try_from(at(os, path)).expect("one"));
        assert_eq!((own.dev, &own.root, &own.flags), (copy.dev, &copy.root, &copy.flags));
        assert!(own.is_shared() && own.propagation == copy.propagation && own.parent != copy.parent);
        let pinned = os.mounts.pin(&copy).expect("pin");
        assert_eq!(errno(os.mounts.unmount_exactly(&own)), Some(Errno::EBUSY), "the copy is in use");
        drop(pinned);
        os.mounts.unmount_exactly(&own).expect("unmount");
        assert_eq!((at(os, here), at(os, there)), (vec![], vec![]));
    }
    slave(&two);
    assert_eq!(propagation(&two), Propagation { master: peers.peers, ..Propagation::default() });
    os.mounts.bind(&source, &in_two, &flags(&[])).expect("bind");
    assert_eq!((at(os, &in_one).len(), at(os, &in_two).len()), (0, 1));
    os.mounts.unmount(&in_two).expect("unmount");
    os.mounts.bind(&source, &in_one, &flags(&[])).expect("bind");
    assert_eq!((propagation(&in_two).master, propagation(&in_two).peers), (propagation(&in_one).peers, None));
    os.mounts.unmount(&in_one).expect("unmount");
    assert_eq!((at(os, &in_one).len(), at(os, &in_two).len()), (0, 0));
    // A copy in which something is mounted stays.
    os.mounts.bind(&source, &in_one, &flags(&[])).expect("bind");
    let inside = directory(os, source.join("inside"));
    os.mounts.bind(dir, &in_two.join("inside"), &flags(&[])).expect("bind");
    os.mounts.unmount(&in_one).expect("unmount");
    assert_eq!((at(os, &in_one).len(), at(os, &in_two).len()), (0, 1));
    os.mounts.unmount(&in_two.join("inside")).expect("unmount");
    os.mounts.unmount(&in_two).expect("unmount");
    os.files.remove_directory(&inside).expect("rmdir");
}

fn binds(os: &Os, dir: &Path, staged: &Path) {
    let target = directory(os, dir.join("target"));
    os.mounts.bind(staged, &target, &flags(&[])).expect("bind");
    os.files.create_file(&target.join("file")).expect("writable");
    assert!(os.files.stat(&staged.join("file")).expect("stat").is_some());
    // On top of the other: read-only, and with what the source's mount has.
    os.mounts.bind(staged, &target, &flags(&["ro", "nodev"])).expect("bind");
    let entries = at(os, &target);
    assert_eq!(entries.len(), 2);
    assert!(entries[1].read_only && !entries[1].superblock_read_only && !entries[0].read_only);
    assert_eq!(entries[1].flags, [VfsFlag::NoAtime, VfsFlag::NoSuid, VfsFlag::NoDev]);
    assert_eq!(errno(os.files.create_file(&target.join("other"))), Some(Errno::EROFS));
    os.mounts.unmount(&target).expect("unmount the topmost");
    os.files.create_file(&target.join("other")).expect("writable again");
    os.mounts.unmount(&target).expect("unmount");
    assert_eq!(errno(os.mounts.bind(&dir.join("no"), &target, &flags(&["ro"]))), Some(Errno::ENOENT));
    assert_eq!(errno(os.mounts.bind(staged, &dir.join("no"), &flags(&["ro"]))), Some(Errno::ENOENT));
    // A file on a file, but a directory not on a file.
    let file = dir.join("a-file");
    os.files.create_file(&file).expect("create");
    assert_eq!(errno(os.mounts.bind(staged, &file, &flags(&[]))), Some(Errno::ENOTDIR));
    os.mounts.bind(&staged.join("file"), &file, &flags(&["ro"])).expect("bind a file");
    assert_eq!(errno(os.images.set_size(&file, 1)), Some(Errno::EROFS));
    os.mounts.unmount(&file).expect("unmount");
    assert_eq!(at(os, &target), []);
}

/// A tree is neither removed nor counted through a mount, also not a bind of the same filesystem.
fn trees(os: &Os, dir: &Path, staged: &Path) {
    let tree = directory(os, dir.join("tree"));
    let point = directory(os, directory(os, tree.join("a")).join("point"));
    let precious = directory(os, dir.join("precious"));
    os.files.create_file(&precious.join("data")).expect("create");
    os.files.create_file(&staged.join("data")).expect("create");
    let before = os.trees.usage(&tree).expect("usage");
    for source in [precious.as_path(), staged] {
        os.mounts.bind(source, &point, &flags(&[])).expect("bind");
        let error = errno(os.trees.remove(&tree));
        assert!(matches!(error, Some(Errno::EBUSY | Errno::EXDEV)), "{error:?}");
        let error = errno(os.trees.remove(&point));
        assert!(matches!(error, Some(Errno::EBUSY | Errno::EXDEV)), "{error:?}");
        assert!(os.files.stat(&source.join("data")).expect("stat").is_some());
        // The mount point itself is hidden by what lies on it.
        assert_eq!(os.trees.usage(&tree).expect("usage").inodes, before.inodes - 1);
        os.mounts.unmount(&point).expect("unmount");
    }
    os.trees.remove(&tree).expect("remove");
}
