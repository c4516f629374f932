//! Directories with an enforced size on btrfs with full qgroups, which every kernel has: each is a subvolume, and its copies
//! share everything.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use hostloop::kernel::{Enforceable, Qgroups, errno_of};
use nix::errno::Errno;
use tonic::Code;

use crate::contract::quotas::{Pod as _, number, quotas};
use crate::directories::quotas::{
    Disk, POOL, Unprivileged, disk, fill, kernel, lives, place, sync, world_on,
};
use crate::harness::volume::clone_request;
use crate::harness::{Kind, MIB, Vol, World, run, text};

/// A btrfs with full qgroups.
pub fn with_full_qgroups() -> Disk {
    let mut disk = disk("btrfs", &[], "loop").expect("mount");
    kernel().quotas.switch_on(&disk.path, Qgroups::Full).expect("every kernel has them");
    disk.copies_in_one_step = true;
    disk
}

#[test]
fn full_qgroups_of_btrfs_keep_their_promises() {
    let disk = with_full_qgroups();
    let os = kernel();
    os.quotas.switch_on(&disk.path, Qgroups::Full).expect("they are on");
    assert_eq!(os.quotas.enforceable(&disk.path).expect("ask"), Enforceable::Bytes(Qgroups::Full));
    let refused = os.quotas.switch_on(&disk.path, Qgroups::Simple).expect_err("the others are on");
    assert!(matches!(errno_of(&refused), Some(Errno::EINVAL | Errno::EOPNOTSUPP)), "{refused}");
    quotas(&os, &place(&disk, "bytes"), &Unprivileged, &|| sync(&disk.path));
}

/// What a pod makes in its volume as a subvolume is not limited, and is seen.
#[test]
fn a_nested_subvolume_escapes_full_qgroups() {
    let disk = with_full_qgroups();
    let (os, id, volume) = (kernel(), number("nested"), disk.path.join("volume"));
    let limits = hostloop::kernel::QuotaLimits { bytes: 64 * MIB, inodes: 0 };
    os.quotas.create_directory(&volume, 0o755, id, limits).expect("make");
    let has_others = || os.quotas.subvolume(&volume, false).expect("look").expect("a subvolume").has_others;
    assert!(!has_others());
    let nested = volume.join("nested");
    run("btrfs", &["-q", "subvolume", "create", text(&nested)]);
    assert!(has_others());
    assert!(!os.quotas.counts(&volume, &nested, id).expect("ask"));
    assert!(!os.quotas.remove_at_once(&volume).expect("remove at once"), "the other one is in it");
    os.trees.remove(&volume).expect("remove");
    assert_eq!(os.quotas.subvolume(&volume, false).expect("look"), None);
}

/// What two subvolumes have counts for both, and is neither's own.
#[test]
fn shared_extents_are_nobodys_own() {
    let disk = with_full_qgroups();
    let (os, id, volume) = (kernel(), number("shared"), disk.path.join("volume"));
    let limits = hostloop::kernel::QuotaLimits { bytes: 64 * MIB, inodes: 0 };
    os.quotas.create_directory(&volume, 0o755, id, limits).expect("make");
    Unprivileged.append(&volume.join("file"), &vec![7; 40 << 20]).expect("write");
    sync(&disk.path);
    let before = os.quotas.quota(&volume, id).expect("quota");
    assert!(before.bytes >= 40 * MIB && before.own_bytes == before.bytes, "{before:?}");
    run("btrfs", &["-q", "subvolume", "snapshot", text(&volume), text(&disk.path.join("snapshot"))]);
    let after = os.quotas.quota(&volume, id).expect("quota");
    assert!(after.bytes >= 40 * MIB && after.own_bytes < MIB, "{after:?}");
    assert_eq!(after.limits, limits);
}

#[test]
fn a_directory_on_btrfs_with_full_qgroups_lives() {
    lives("btrfs", &with_full_qgroups());
}

/// Writes a file in small extents, as a program does that syncs.
fn write(path: &Path, mib: u64) {
    let mut file = File::create(path).expect("create");
    for _ in 0..mib * 4 {
        file.write_all(&[7; 256 << 10]).and_then(|()| file.sync_data()).expect("write");
    }
}

/// Writes over all of it.
fn rewrite(path: &Path) {
    let file = File::options().write(true).open(path).expect("open");
    let bytes = file.metadata().expect("stat").len();
    for at in (0..bytes).step_by(1 << 20) {
        file.write_all_at(&[8; 1 << 20], at)
            .and_then(|()| file.sync_data())
            .expect("what it has is promised");
    }
}

/// After a snapshot the volume shares its blocks with that, and needs as many again. It finds them, and so do its neighbours
/// what they were promised, although the pool has promised all that it has.
#[test]
fn every_promise_is_kept_after_a_snapshot() {
    let disk = with_full_qgroups();
    let world = world_on(&disk);
    let vol = Vol::create(&world, Kind::Directory, "v", 200 * MIB, &POOL);
    let thick = Vol::create(&world, Kind::Ext4, "thick", 96 * MIB, &[POOL[0], ("provisioning", "thick")]);
    [&vol, &thick].iter().for_each(|vol| vol.up());
    write(&vol.file("a"), 150);
    sync(&disk.path);
    let room = || world.csi.room(&[POOL[0], ("backend", "directory")]).expect("GetCapacity").1 as u64;
    let before = room();
    let cut = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot, in use");
    let all = room();
    assert!(before - all > 140 * MIB, "what it shares it needs again: {before}, then {all}");
    let thin = Vol::create(&world, Kind::Directory, "thin", all / MIB * MIB, &POOL);
    thin.up();
    let refused = world.csi.snapshot("t", thin.id(), &[]);
    world.csi.delete_snapshot(&refused.expect("there is nothing in it").snapshot_id).expect("DeleteSnapshot");
    rewrite(&vol.file("a"));
    let more = fill(&vol.target("a").join("more"));
    assert!((48 * MIB..=50 * MIB).contains(&more), "{more} of 50 MiB");
    let written = fill(&thin.file("a"));
    assert!(written >= thin.bytes() - thin.bytes() / 50, "{written} of {}", thin.bytes());
    write(&thick.file("a"), 60);
    // Now nothing is left for what the next one would need.
    let refused = world.csi.snapshot("full", vol.id(), &[]).expect_err("it could not be rewritten");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
    [vol, thick, thin].into_iter().for_each(Vol::remove);
    world.finish();
}

/// A restore and a clone have what the volume had at one moment, limits of their own, and outlive it.
#[test]
fn copies_of_a_volume_in_use_are_its_own() {
    let disk = with_full_qgroups();
    let mut world = world_on(&disk);
    let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &POOL);
    vol.up();
    write(&vol.file("a"), 20);
    std::fs::write(vol.target("a").join("text"), "before").expect("write");
    let cut = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot");
    std::fs::write(vol.target("a").join("text"), "after").expect("write");
    let clone = world.csi.create(clone_request(Kind::Directory, "c", 96 * MIB, vol.id(), &POOL));
    let volumes = [vol.info.clone(), clone.expect("CreateVolume, of a volume in use")];
    world.restart_after_kill();
    let [vol, clone] = volumes.map(|volume| Vol::of(&world, Kind::Directory, volume));
    vol.down();
    vol.delete().expect("DeleteVolume");
    let restored = Vol::restore(&world, Kind::Directory, "r", 64 * MIB, &cut, &POOL);
    world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
    for (vol, read, bytes) in [(&restored, "before", 64 * MIB), (&clone, "after", 96 * MIB)] {
        vol.up();
        assert_eq!(std::fs::read_to_string(vol.target("a").join("text")).expect("read"), read);
        let more = fill(&vol.target("a").join("more"));
        assert!((bytes - 22 * MIB..=bytes - 20 * MIB).contains(&more), "{more} of {bytes}");
        let health = world.csi.node_health(vol.id(), &vol.target("a"), &vol.staging()).expect("health");
        assert_eq!(health.health_statuses, []);
    }
    [restored, clone].into_iter().for_each(Vol::remove);
    world.finish();
}

/// The subvolumes of a pod would be left out.
#[test]
fn a_volume_with_subvolumes_is_not_cut_in_use() {
    let disk = with_full_qgroups();
    let world = world_on(&disk);
    let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &POOL);
    vol.up();
    let nested = vol.target("a").join("nested");
    run("btrfs", &["-q", "subvolume", "create", text(&nested)]);
    let refused = world.csi.snapshot("s", vol.id(), &[]).expect_err("it is in use");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("subvolumes in it"), "{refused}");
    let health = world.csi.node_health(vol.id(), &vol.target("a"), &vol.staging()).expect("health");
    assert_eq!(
        health.health_statuses.iter().map(|it| it.reason.as_str()).collect::<Vec<_>>(),
        ["SizeNotEnforced"]
    );
    run("btrfs", &["-q", "subvolume", "delete", text(&nested)]);
    let cut = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot");
    world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
    vol.remove();
    world.finish();
}

/// A managed pool has them from the first directory with an enforced size on.
#[test]
fn a_managed_btrfs_pool_limits_directories() {
    let mut world = World::empty(&[]);
    let image = world.dir.join("own.img");
    world.set_flags(&["--pool", &format!("own={},kind=image,size=1Gi,fs=btrfs", text(&image))]);
    world.start();
    let (own, place) = ([("pool", "own")], world.data.join("pools/own"));
    Vol::create(&world, Kind::Block, "loop", 64 * MIB, &own).delete().expect("DeleteVolume");
    let enforceable = || kernel().quotas.enforceable(&place).expect("ask");
    assert!(matches!(enforceable(), Enforceable::Off(_)), "{:?}", enforceable());
    let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &own);
    assert_eq!(enforceable(), Enforceable::Bytes(Qgroups::Full));
    vol.up();
    let written = fill(&vol.file("a"));
    assert!((63 * MIB..=64 * MIB).contains(&written), "{written}");
    let cut = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot, in use");
    world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
    vol.remove();
    world.take_driver().stop();
    run("umount", &[text(&place)]);
    world.assert_nothing_left();
}
