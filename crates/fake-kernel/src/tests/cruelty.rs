//! What a kernel does beyond what it was asked: parts are lost, faults last, programs and devices outlive their users.

use std::collections::BTreeSet;

use super::*;

const SEEDS: std::ops::Range<u64> = 0..100;

#[test]
fn names_are_lost_from_the_last_one_on() {
    let mut seen = BTreeSet::new();
    for seed in SEEDS {
        let (kernel, os, image) = machine();
        for name in ["a", "b"] {
            os.files.create_file(&p("/pool").join(name)).unwrap();
        }
        os.files.rename(p("/pool/a"), p("/pool/c")).unwrap();
        os.files.remove_file(&image).unwrap();
        assert_eq!(kernel.unsynced().len(), 5, "of a rename there are two names");
        kernel.power_cut_losing(Loss::Some(seed));
        let names: Vec<_> = kernel.tree("/pool").iter().map(|path| path.replace("/pool/", "")).collect();
        seen.insert(names.join(" "));
        assert!(kernel.unsynced().is_empty());
    }
    let prefixes = ["a b disk.img", "a disk.img", "b c", "b c disk.img", "disk.img"];
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), prefixes);
}

#[test]
fn unsynced_data_are_lost_block_by_block() {
    let mut seen = BTreeSet::new();
    for seed in SEEDS {
        let (kernel, os, image) = machine();
        os.images.write_at(&image, 0, &[1; 8192]).unwrap();
        os.files.sync_file(&image).unwrap();
        os.images.write_at(&image, 4096, &[2; 8192]).unwrap();
        let os = kernel.power_cut_losing(Loss::Some(seed));
        let at = |offset| os.images.read_at(&image, offset, 1).unwrap()[0];
        seen.insert((at(0), at(4096), at(8192)));
    }
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(1, 1, 0), (1, 1, 2), (1, 2, 0), (1, 2, 2)]);
}

#[test]
fn a_seed_says_it_all() {
    let tree = |seed| {
        let (kernel, os, image) = machine();
        for n in 0..20 {
            os.files.create_file(&p("/pool").join(n.to_string())).unwrap();
        }
        os.images.write_at(&image, 0, &[1; 40960]).unwrap();
        let os = kernel.power_cut_losing(Loss::Some(seed));
        (kernel.tree("/pool"), os.images.read_at(&image, 0, 40960).unwrap())
    };
    assert!(SEEDS.take(5).all(|seed| tree(seed) == tree(seed)));
}

#[test]
fn nothing_may_be_lost_either() {
    let (kernel, os, image) = machine();
    stage(&kernel, &os, &image, true);
    kernel.write_file("/stage/late", b"x").unwrap();
    os.files.create_file(p("/pool/new")).unwrap();
    let os = kernel.power_cut_losing(Loss::Nothing);
    assert!(kernel.exists("/pool/new") && kernel.mounts().is_empty());
    stage(&kernel, &os, &image, false);
    assert!(kernel.exists("/stage/late"));
}

#[test]
fn every_call_of_a_name_fails_until_it_is_healed() {
    let (kernel, os, _) = machine();
    kernel.fail_every("create_file", Errno::EROFS);
    kernel.fail_every("stat", Errno::EIO);
    let fails = |os: &Os| {
        errno_is(os.files.create_file(p("/pool/1")), Errno::EROFS);
        errno_is(os.files.stat(p("/pool")), Errno::EIO);
    };
    fails(&os);
    fails(&os);
    fails(&kernel.restart());
    kernel.heal();
    kernel.os().files.create_file(p("/pool/1")).unwrap();
    kernel.os().files.stat(p("/pool")).unwrap();
}

#[test]
fn looks_are_counted_apart_and_fail_once() {
    let (kernel, os, _) = machine();
    kernel.clear_steps();
    kernel.watch_looks(true);
    os.files.stat(p("/pool")).unwrap();
    os.files.space(p("/pool")).unwrap();
    os.mounts.list().unwrap();
    let names: Vec<_> = kernel.looks().iter().map(|look| (look.number, look.name)).collect();
    assert_eq!(names, [(1, "stat"), (2, "statvfs"), (3, "read")]);
    assert!(kernel.steps().is_empty());
    kernel.fail_look_at(2, Errno::EIO);
    os.files.stat(p("/pool")).unwrap();
    os.files.create_file(p("/pool/1")).unwrap();
    errno_is(os.files.list(p("/pool")), Errno::EIO);
    os.files.list(p("/pool")).unwrap();
}

#[test]
fn an_open_device_has_a_page_cache() {
    let (kernel, os, image) = machine();
    let device =
        os.loops.attach(&image, AttachOptions { autoclear: false, ..options(false) }).unwrap().device;
    let (path, in_image) = (device.path(), || os.images.read_at(&image, 0, 1).unwrap()[0]);
    kernel.write(&path, 0, &[1]).unwrap();
    assert_eq!(in_image(), 1, "the writer was the last user, too");
    let pod = kernel.open(&path).unwrap();
    kernel.write(&path, 0, &[2]).unwrap();
    assert_eq!((in_image(), kernel.read(&path, 0, 2).unwrap()), (1, vec![2, 0]));
    os.loops.flush(&device).unwrap();
    assert_eq!(in_image(), 2);
    kernel.write(&path, 0, &[3]).unwrap();
    kernel.fail_at(1, Errno::EIO);
    errno_is(os.loops.flush(&device), Errno::EIO);
    os.loops.flush(&device).unwrap();
    assert_eq!(in_image(), 2, "the failed write is not made again");
    kernel.write(&path, 0, &[4]).unwrap();
    drop(pod);
    assert_eq!(in_image(), 4);
}

#[test]
fn a_program_outlives_its_process() {
    let (kernel, os, image) = machine();
    let device = attach(&os, &image);
    kernel.set_program_time(1000);
    kernel.kill_at(1, Kill::Left);
    errno_is(make(&os, &device, FsType::Ext4), Errno::EIO);
    let os = kernel.restart();
    drop(device);
    let left = kernel.loops().remove(0);
    assert!(os.files.block_device(&left.path()).unwrap().held && kernel.formats().is_empty());
    let again = os.loops.open(&left).unwrap();
    errno_is(make(&os, &again, FsType::Xfs), Errno::EBUSY);
    assert_eq!(kernel.pending(), 1);
    kernel.settle();
    assert_eq!(kernel.formats().len(), 1);
    drop(again);
    assert!(kernel.loops().is_empty(), "it goes with its last user");
}

#[test]
fn a_device_may_be_let_go_late() {
    let (kernel, os, image) = machine();
    kernel.set_late_loops(2);
    stage(&kernel, &os, &image, true);
    os.mounts.unmount(p("/stage")).unwrap();
    assert_eq!(kernel.loops().len(), 1);
    let id = os.files.stat(&image).unwrap().unwrap().id;
    assert_eq!(os.loops.find(id).unwrap().len(), 0, "two calls later");
}
