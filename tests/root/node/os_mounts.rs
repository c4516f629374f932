//! Mounts on the real kernel: the contract of `kernel::Mounts` (crates/test-support/src/contract), and what only a real kernel can show.

use std::path::Path;
use std::process::Command;

use crate::contract::{Cleanup, MIB, directory, errno, flags, formatted};
use crate::harness::calls::Calls;
use crate::harness::text;
use crate::node::old_kernels::NEWER;
use crate::os_contract::setup;
use hostloop::model::FsType;
use nix::errno::Errno;

#[test]
fn mounts_keep_their_contract() {
    let (os, _temp, dir) = setup();
    crate::contract::mounts(&os, &dir);
    crate::contract::stacked(&os, &dir);
}

/// What only one process sees, and what is made of the trees in images.
#[test]
fn mounts_apart_keep_their_contract() {
    let (os, _temp, dir) = setup();
    crate::contract::apart(&os, &dir);
}

fn propagated_with(missing: &[i64]) {
    let (os, _temp, dir) = setup();
    let mount = |words: &[&str], path: &Path| {
        assert!(Command::new("mount").args(words).arg(path).status().expect("mount").success(), "{words:?}");
    };
    // As systemd has it, the mount around is shared, and what is mounted here would come there as well.
    mount(&["--bind", text(&dir)], &dir);
    mount(&["--make-private"], &dir);
    let change = |how: &'static str| move |path: &Path| mount(&[how], path);
    Calls::hold(&[Calls::missing(missing)], || {
        crate::contract::propagated(&os, &dir, &change("--make-shared"), &change("--make-slave"));
    });
    assert!(Command::new("umount").arg(&dir).status().expect("umount").success());
}

#[test]
fn copies_come_and_go_with_a_mount() {
    propagated_with(&[]);
}

#[test]
fn older_kernels_tell_of_copies_as_well() {
    propagated_with(&[457, 458]); // statmount(2), listmount(2)
}

/// The contract is the same on older kernels: those before Linux 6.8 have no listmount(2) and statmount(2).
#[test]
fn older_kernels_keep_the_contract() {
    const SYS_STATMOUNT: i64 = 457;
    const SYS_LISTMOUNT: i64 = 458;
    for missing in [&[][..], NEWER[0], NEWER[1]] {
        let (os, _temp, dir) = setup();
        Calls::hold(&[Calls::missing(&[missing, &[SYS_STATMOUNT, SYS_LISTMOUNT]].concat())], || {
            crate::contract::mounts(&os, &dir);
            crate::contract::stacked(&os, &dir);
        });
    }
}

/// Linux 5.12 has mount_setattr(2), and 5.14 the flag.
#[test]
fn nosymfollow_is_set_by_mount_2_before_linux_5_14() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let (source, target) = (directory(&os, dir.join("source")), directory(&os, dir.join("target")));
    let shown = || {
        let all = os.mounts.list().expect("mountinfo");
        let mount = all.into_iter().find(|mount| mount.target == target).expect("it is there");
        (mount.flags.iter().map(|flag| flag.as_str()).collect::<Vec<_>>(), mount)
    };
    Calls::hold(&[Calls::failing(&[libc::SYS_mount_setattr], libc::EINVAL)], || {
        os.mounts.bind(&source, &target, &flags(&["nosymfollow", "nodev"])).expect("bind");
        assert_eq!(shown().0, ["relatime", "nodev", "nosymfollow"]);
        let refused = os.mounts.tighten(&shown().1, &flags(&["nosuid"]));
        assert_eq!(errno(refused), Some(Errno::EINVAL), "it is not for the flag");
        os.mounts.unmount(&target).expect("unmount");
        os.mounts.bind(&source, &target, &flags(&[])).expect("bind");
        os.mounts.tighten(&shown().1, &flags(&["nosymfollow"])).expect("tighten");
        assert_eq!(shown().0, ["relatime", "nosymfollow"]);
    });
    Calls::hold(&[Calls::missing(&[libc::SYS_mount_setattr])], || {
        os.mounts.tighten(&shown().1, &flags(&["nosuid"])).expect("tighten");
    });
    assert_eq!(shown().0, ["relatime", "nosuid", "nosymfollow"], "it is kept");
    os.mounts.unmount(&target).expect("unmount");
}

/// Longer than the first look at it takes, and less than it is waited for.
#[test]
fn a_use_of_a_mount_that_ends_soon_is_waited_for() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let (source, target) = (directory(&os, dir.join("source")), directory(&os, dir.join("target")));
    for exactly in [true, false] {
        os.mounts.bind(&source, &target, &flags(&[])).expect("bind");
        let mounts = os.mounts.list().expect("mountinfo");
        let mount = mounts.iter().find(|mount| mount.target == target).expect("it is there");
        let pinned = os.mounts.pin(mount).expect("pin");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_millis(300));
                drop(pinned);
            });
            match exactly {
                true => os.mounts.unmount_exactly(mount),
                false => os.mounts.unmount(&target),
            }
            .expect("unmount");
        });
        assert!(!os.mounts.list().expect("mountinfo").contains(mount));
    }
}

/// Its id is known, and where it was: that it is somewhere else by now has to be seen.
#[test]
fn a_mount_moved_over_another_is_not_unmounted() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let base = directory(&os, dir.join("base"));
    let run = |arguments: &[&str], paths: &[&Path]| {
        let done = Command::new("mount").args(arguments).args(paths).status();
        assert!(done.expect("mount").success(), "{arguments:?}");
    };
    // Below a mount that is shared nothing can be moved.
    run(&["-t", "tmpfs", "tmpfs"], &[&base]);
    run(&["--make-private"], &[&base]);
    let [source, one, two] = ["source", "one", "two"].map(|name| directory(&os, base.join(name)));
    os.mounts.bind(&source, &one, &flags(&[])).expect("bind");
    os.mounts.bind(&source, &two, &flags(&[])).expect("bind");
    let below =
        |mount: &hostloop::kernel::MountEntry| mount.target.starts_with(&base) && mount.target != base;
    let seen = os.mounts.matching(&below).expect("ask");
    let [ours, other] = &seen[..] else { panic!("{seen:?}") };
    run(&["--move"], &[&two, &one]);
    assert_eq!(errno(os.mounts.unmount_exactly(ours)), Some(Errno::ESTALE));
    let all = os.mounts.list().expect("list");
    let now: Vec<u64> = all.iter().filter(|mount| below(mount)).map(|mount| mount.id).collect();
    assert_eq!(now, [ours.id, other.id], "both are there");
    os.mounts.unmount(&one).expect("unmount the other");
    os.mounts.unmount_exactly(ours).expect("unmount");
    os.mounts.unmount_exactly(ours).expect("it is gone");
}

/// What is known of it is where it was: it is not gone for that.
#[test]
fn a_mount_whose_parent_was_renamed_is_still_there() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let before = directory(&os, dir.join("before"));
    let (source, target) = (directory(&os, dir.join("source")), directory(&os, before.join("target")));
    os.mounts.bind(&source, &target, &flags(&[])).expect("bind");
    assert_eq!(os.mounts.matching(&|mount| mount.target == target).expect("ask").len(), 1);
    os.files.rename(&before, &dir.join("after")).expect("rename");
    let there = |mount: &hostloop::kernel::MountEntry| mount.target == dir.join("after/target");
    let [now] = os
        .mounts
        .list()
        .expect("list")
        .into_iter()
        .filter(there)
        .collect::<Vec<_>>()
        .try_into()
        .expect("one");
    os.mounts.unmount_exactly(&now).expect("unmount");
    assert!(!os.mounts.list().expect("list").iter().any(there), "it said that it is gone");
}

/// However the kernel is asked for them: all mounts of this machine, while others come and go.
#[test]
fn both_ways_show_the_same_mounts() {
    let (os, _temp, _) = setup();
    for _ in 0..1000 {
        let (before, all) = (os.mounts.list().expect("list"), os.mounts.matching(&|_| true).expect("ask"));
        if os.mounts.list().expect("list") == before {
            assert_eq!(all, before);
            return;
        }
    }
    panic!("the mounts change all the time");
}

#[test]
fn no_link_is_followed_by_a_mount() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let (real, link) = (directory(&os, dir.join("real")), dir.join("link"));
    std::os::unix::fs::symlink(&real, &link).expect("symlink");
    let open = formatted(&os, &dir.join("m.img"), FsType::Ext4, 32 * MIB);
    let to_link = os.mounts.mount(&open.device.path(), &link, FsType::Ext4, &flags(&[]));
    assert!(matches!(errno(to_link), Some(Errno::ELOOP | Errno::ENOTDIR)));
    assert_eq!(errno(os.mounts.bind(&dir, &link, &flags(&["ro"]))), Some(Errno::ELOOP));
    assert_eq!(errno(os.mounts.bind(&link, &real, &flags(&["ro"]))), Some(Errno::ELOOP));
    assert!(os.mounts.list().expect("list").iter().all(|m| !m.target.starts_with(&dir)));
}
