//! kernel::Mounts, where several mounts lie on top of each other: each call is about exactly one of them.

use std::path::Path;

use hostloop::kernel::{MountEntry, Os};
use hostloop::model::{FsType, VfsFlag};
use nix::errno::Errno;

use super::{Cleanup, MIB, assert_gone, directory, errno, flags, formatted};

fn at(os: &Os, target: &Path) -> Vec<MountEntry> {
    os.mounts.list().expect("list").into_iter().filter(|m| m.target == target).collect()
}

/// Asserts what the trait promises.
pub fn stacked(os: &Os, dir: &Path) {
    let dir = &directory(os, dir.join("stacked"));
    let _cleanup = Cleanup::new(os, dir);
    let (staged, over) = (directory(os, dir.join("staged")), directory(os, dir.join("over")));
    let image = dir.join("stacked.img");
    let open = formatted(os, &image, FsType::Ext4, 32 * MIB);
    let around = os.mounts.mount_at(&staged).expect("the mount around");
    os.mounts.mount(&open.device.path(), &staged, FsType::Ext4, &flags(&[])).expect("mount");
    drop(open);
    let [own] = at(os, &staged).try_into().expect("one");
    assert_eq!((os.mounts.mount_at(&staged).expect("it"), own.parent), (own.id, around));
    assert_eq!(os.mounts.mount_at(dir).expect("the mount around"), around);
    assert_eq!(errno(os.mounts.mount_at(&dir.join("no"))), Some(Errno::ENOENT));
    os.files.create_file(&staged.join("own")).expect("create");
    let pinned = os.mounts.pin(&own).expect("pin");
    os.mounts.bind(&over, &staged, &flags(&[])).expect("bind over it");
    let [_, strange] = at(os, &staged).try_into().expect("two");
    assert_eq!((strange.parent, os.mounts.mount_at(&staged).expect("it")), (own.id, strange.id));
    // What was held before is what it was.
    assert!(os.files.stat(&pinned.path().join("own")).expect("stat").is_some());
    assert!(os.files.stat(&staged.join("own")).expect("stat").is_none());
    assert!(os.files.space(pinned.path()).expect("space").total < 32 * MIB + 1);
    let target = directory(os, dir.join("bound"));
    os.mounts.bind(pinned.path(), &target, &flags(&[])).expect("bind what is held");
    assert!(os.files.stat(&target.join("own")).expect("stat").is_some());
    os.mounts.unmount(&target).expect("unmount");
    drop(pinned);
    // What is hidden cannot be had by its path, and nothing happens to what hides it.
    assert_eq!(errno(os.mounts.pin(&own)), Some(Errno::ESTALE));
    assert_eq!(errno(os.mounts.unmount_exactly(&own)), Some(Errno::ESTALE));
    assert_eq!(errno(os.mounts.detach(&own)), Some(Errno::ESTALE));
    assert_eq!(errno(os.mounts.tighten(&own, &flags(&["ro"]))), Some(Errno::ESTALE));
    assert_eq!(at(os, &staged), [own.clone(), strange.clone()]);
    os.mounts.unmount_exactly(&strange).expect("unmount");
    os.mounts.unmount_exactly(&strange).expect("it is gone");
    assert_eq!(at(os, &staged), std::slice::from_ref(&own));
    tightened(os, &target, &staged);
    busy(os, &own);
    assert_eq!(at(os, &staged), []);
    assert_gone(os, &image);
}

fn tightened(os: &Os, target: &Path, staged: &Path) {
    os.mounts.bind(staged, target, &flags(&["nodev"])).expect("bind");
    let [bound] = at(os, target).try_into().expect("one");
    os.mounts.tighten(&bound, &flags(&["ro", "nosuid"])).expect("tighten");
    let [now] = at(os, target).try_into().expect("one");
    assert!(now.read_only && [VfsFlag::NoSuid, VfsFlag::NoDev].iter().all(|flag| now.flags.contains(flag)));
    assert_eq!(errno(os.files.create_file(&target.join("other"))), Some(Errno::EROFS));
    os.files.create_file(&staged.join("other")).expect("the other mount is what it was");
    os.mounts.unmount_exactly(&now).expect("unmount");
}

/// What is held is busy, and can be detached all the same; it ends with its last user. A hold that ends soon only delays.
fn busy(os: &Os, own: &MountEntry) {
    let looked_at = directory(os, own.target.with_extension("looked-at"));
    for exactly in [true, false] {
        os.mounts.bind(&own.target, &looked_at, &flags(&[])).expect("bind");
        let [bound] = at(os, &looked_at).try_into().expect("one");
        let pinned = os.mounts.pin(&bound).expect("pin");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                drop(pinned);
            });
            let unmounted =
                if exactly { os.mounts.unmount_exactly(&bound) } else { os.mounts.unmount(&looked_at) };
            unmounted.expect("the look ends");
        });
    }
    os.files.remove_directory(&looked_at).expect("rmdir");
    let pinned = os.mounts.pin(own).expect("pin");
    os.mounts.tighten(own, &flags(&["ro"])).expect("nobody writes through it");
    assert_eq!(errno(os.mounts.unmount_exactly(own)), Some(Errno::EBUSY));
    os.mounts.detach(own).expect("detach");
    assert_eq!(at(os, &own.target), []);
    assert!(os.files.stat(&pinned.path().join("own")).expect("stat").is_some(), "it is still there");
    drop(pinned);
}
