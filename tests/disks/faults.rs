//! Disks that fail and hang, under one pool of two and under the state.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::volume::create_request;
use crate::harness::{Csi, Kind, MIB, Vol, World, eventually, mount_loop, output, run, text};
use crate::server::{ALWAYS, Disks, Fault, Trouble};

/// Of a disk, in bytes.
const SIZE: u64 = 512 * MIB;
/// A call that answers with a code takes no longer.
const BOUND: Duration = Duration::from_secs(30);
const SICK: [(&str, &str); 1] = [("pool", "sick")];

/// A disk with a filesystem on it.
struct Place {
    disks: Disks,
    mount_point: PathBuf,
    fs_type: &'static str,
}

impl Place {
    fn new(world: &World, mount_point: PathBuf) -> Place {
        Place::with("ext4", world, mount_point)
    }

    fn with(fs_type: &'static str, world: &World, mount_point: PathBuf) -> Place {
        let disks = Disks::new(&world.dir.join("disks"), 1, SIZE);
        std::fs::create_dir(&mount_point).expect("mkdir");
        run(&format!("mkfs.{fs_type}"), &["-q", text(&disks.path(0))]);
        let place = Place { disks, mount_point, fs_type };
        place.mount();
        place
    }

    fn mount(&self) {
        mount_loop(&self.disks.path(0), &self.mount_point);
    }

    fn unmount(&self) {
        run("umount", &[text(&self.mount_point)]);
    }

    /// Checks the filesystem, which is not mounted, and mends what a loss of power may leave.
    fn check(&self) {
        let disk = self.disks.path(0);
        let checked = match self.fs_type {
            "ext4" => output("e2fsck", &["-fp", text(&disk)]),
            "xfs" => {
                // Its log is replayed by a mount only.
                self.mount();
                self.unmount();
                output("xfs_repair", &["-n", text(&disk)])
            }
            _ => output("btrfs", &["check", "--readonly", "--force", text(&disk)]),
        };
        // e2fsck: 1 and 2 are mended errors.
        let whole = if self.fs_type == "ext4" { 0..4 } else { 0..1 };
        assert!(checked.status.code().is_some_and(|code| whole.contains(&code)), "{checked:?}");
    }
}

/// Asserts that a call ends in time, whatever it says.
#[track_caller]
fn in_time<T>(what: &str, call: impl FnOnce() -> Result<T, Status>) -> Result<T, Status> {
    let started = Instant::now();
    let answer = call();
    assert!(started.elapsed() < BOUND, "{what} took {} s", started.elapsed().as_secs());
    answer
}

/// The pool `default` goes on, and the driver answers.
#[track_caller]
fn others_go_on(world: &World, name: &str) {
    let probe = in_time("Probe", || world.csi.probe()).expect("Probe");
    assert_eq!(probe.ready, Some(true));
    for kind in [Kind::Ext4, Kind::Block] {
        let request = create_request(kind, &format!("{name}-{kind:?}"), 32 * MIB, &[]);
        let vol = Vol::of(
            world,
            kind,
            in_time("CreateVolume", || world.csi.create(request)).expect("CreateVolume"),
        );
        in_time("NodeStageVolume", || vol.stage()).expect("NodeStageVolume");
        in_time("NodePublishVolume", || vol.publish("a")).expect("NodePublishVolume");
        write_at(&vol.file("a"), 0, &pattern(7, 4096)).expect("write");
        in_time("NodeGetVolumeStats", || vol.stats("a")).expect("NodeGetVolumeStats");
        in_time("NodeUnpublishVolume", || vol.unpublish("a")).expect("NodeUnpublishVolume");
        in_time("NodeUnstageVolume", || vol.unstage()).expect("NodeUnstageVolume");
        in_time("DeleteVolume", || vol.delete()).expect("DeleteVolume");
    }
    in_time("GetCapacity", || world.csi.capacity(&[])).expect("GetCapacity");
    in_time("ListVolumes", || world.csi.list(0, "")).expect("ListVolumes");
}

/// Two volumes in use, with data.
fn volumes(world: &World) -> Vec<Vol<'_>> {
    let make = |kind| {
        let vol = Vol::create(world, kind, &format!("{kind:?}"), 32 * MIB, &SICK);
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(1, 4096)).expect("write");
        vol
    };
    [Kind::Ext4, Kind::Block].map(make).into()
}

/// What kubelet and the sidecars ask: whatever the answer is, there is one.
fn ask(world: &World, vol: &Vol<'_>) {
    let _ = in_time("NodeGetVolumeStats", || vol.stats("a"));
    let _ = in_time("NodePublishVolume", || vol.publish("b"));
    let _ = in_time("ControllerExpandVolume", || vol.expand(48 * MIB));
    let _ = in_time("CreateSnapshot", || world.csi.snapshot("during", vol.id(), &[]));
    let _ = in_time("ControllerGetVolumeHealth", || world.csi.health(vol.id()));
}

/// Volumes have their data, and everything goes.
fn all_is_well(world: &World, name: &str, vols: Vec<(Kind, hostloop::wire::csi::Volume)>) {
    for snapshot in world.csi.list_snapshots().expect("ListSnapshots") {
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    }
    for (kind, volume) in vols {
        let vol = Vol::of(world, kind, volume);
        vol.up();
        assert_eq!(read_at(&vol.file("a"), 0, 4096), pattern(1, 4096), "{name}: {kind:?}");
        vol.remove();
    }
    for entry in world.csi.list(0, "").expect("ListVolumes").entries {
        world.csi.delete(&entry.volume.expect("a volume").volume_id).expect("DeleteVolume");
    }
}

#[test]
fn a_disk_that_fails_costs_its_own_pool_only() {
    costs_its_own_pool_only(
        "ext4",
        &[
            ("reads", Trouble { reads: ALWAYS, ..Trouble::default() }),
            ("writes", Trouble { writes: ALWAYS, ..Trouble::default() }),
            ("one-write", Trouble { writes: Fault::Fails(1), ..Trouble::default() }),
            ("flushes", Trouble { flushes: ALWAYS, ..Trouble::default() }),
            ("one-flush", Trouble { flushes: Fault::Fails(1), ..Trouble::default() }),
            ("everything", Trouble::all(ALWAYS)),
        ],
    );
}

#[test]
fn a_disk_that_fails_on_xfs_or_btrfs_costs_its_pool() {
    for fs_type in ["xfs", "btrfs"] {
        costs_its_own_pool_only(
            fs_type,
            &[
                ("writes", Trouble { writes: ALWAYS, ..Trouble::default() }),
                ("everything", Trouble::all(ALWAYS)),
            ],
        );
    }
}

fn costs_its_own_pool_only(fs_type: &'static str, fails: &[(&str, Trouble)]) {
    let mut world = World::empty(&[]);
    let place = Place::with(fs_type, &world, world.dir.join("sick"));
    world.set_flags(&["--pool", &format!("sick={}", text(&place.mount_point))]);
    for &(name, trouble) in fails {
        let name = &format!("{fs_type}, {name}");
        world.start();
        let vols = volumes(&world);
        let failed = place.disks.failed(0);
        place.disks.trouble(0, trouble);
        // What kubelet and the sidecars ask, on the sick pool.
        let request = create_request(Kind::Ext4, "during", 32 * MIB, &SICK);
        let during = in_time("CreateVolume", || world.csi.create(request.clone()));
        vols.iter().for_each(|vol| ask(&world, vol));
        others_go_on(&world, name);
        assert!(place.disks.failed(0) > failed, "{name}: nothing failed");
        let troubles = in_time("NodeGetStorageHealth", || world.csi.storage_troubles()).expect("an answer");
        // What is read is in the page cache, mostly. After a write that failed, ext4 stops.
        if !name.ends_with("reads") {
            during.as_ref().expect_err("nothing can be made");
        }
        // xfs shuts down: it answers nothing any more.
        let unreadable = trouble.reads == ALWAYS || fs_type == "xfs";
        let reason = if unreadable { "PoolUnreadable" } else { "PoolReadOnly" };
        // The one write that fails can be that of a record, after which ext4 goes on: the volume is not made, and that is all.
        let goes_on = trouble.writes == Fault::Fails(1) && troubles.is_empty();
        assert!(goes_on || troubles.iter().any(|(found, _)| found == reason), "{name}: {troubles:?}");
        // The pod goes: its mounts can be taken away from a disk that fails.
        for vol in &vols {
            let _ = in_time("NodeUnpublishVolume", || vol.unpublish("b"));
            in_time("NodeUnpublishVolume", || vol.unpublish("a")).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            in_time("NodeUnstageVolume", || vol.unstage()).unwrap_or_else(|e| panic!("{name}: {e:?}"));
        }

        // The disk is well again: checked and mounted anew, as its filesystem has stopped.
        place.disks.trouble(0, Trouble::default());
        let vols: Vec<_> = vols.into_iter().map(|vol| (vol.kind, vol.info.clone())).collect();
        world.take_driver().stop();
        place.unmount();
        place.check();
        place.mount();
        world.start();
        eventually("it is healthy", || world.csi.storage_health().expect("NodeGetStorageHealth").is_empty());
        if let Ok(made) = during {
            let again = world.csi.create(request).expect("CreateVolume again");
            assert_eq!(again.volume_id, made.volume_id);
        }
        all_is_well(&world, name, vols);
        world.take_driver().stop();
    }
    place.unmount();
    drop(place);
    world.assert_nothing_left();
}

/// What a call on a hung disk may be answered.
#[track_caller]
fn refused_or_done<T>(what: &str, answer: Result<T, Status>) {
    let known = [Code::Unavailable, Code::Aborted, Code::ResourceExhausted];
    if let Err(status) = answer {
        assert!(known.contains(&status.code()), "{what}: {status:?}");
    }
}

/// Kubelet and the sidecars get a code for everything that they ask of a disk that does not answer, again and again.
fn everything_is_answered(socket: &Path, volumes: &[(Kind, hostloop::wire::csi::Volume)], world: &World) {
    std::thread::scope(|scope| {
        for number in 0..40 {
            let csi = Csi::new(socket);
            scope.spawn(move || {
                let request = create_request(Kind::Ext4, &format!("hung-{number}"), 16 * MIB, &SICK);
                refused_or_done("CreateVolume", in_time("CreateVolume", || csi.create(request)));
            });
        }
        for (kind, volume) in volumes {
            scope.spawn(move || {
                let vol = Vol::of(world, *kind, volume.clone());
                for _ in 0..2 {
                    ask(world, &vol);
                    refused_or_done(
                        "NodeExpandVolume",
                        in_time("NodeExpandVolume", || vol.node_expand("a", 48 * MIB)),
                    );
                    for pod in ["b", "a"] {
                        let unpublished = in_time("NodeUnpublishVolume", || vol.unpublish(pod));
                        refused_or_done("NodeUnpublishVolume", unpublished);
                    }
                    refused_or_done("NodeUnstageVolume", in_time("NodeUnstageVolume", || vol.unstage()));
                }
            });
        }
        others_go_on(world, "hang");
    });
}

/// More calls than the driver has threads wait for a disk that does not answer.
#[test]
fn a_disk_that_hangs_costs_its_own_pool_only() {
    let mut world = World::empty(&[]);
    let place = Place::new(&world, world.dir.join("sick"));
    world.set_flags(&["--pool", &format!("sick={}", text(&place.mount_point))]);
    world.start();
    let vols: Vec<_> = volumes(&world).into_iter().map(|vol| (vol.kind, vol.info.clone())).collect();
    place.disks.trouble(0, Trouble::all(Fault::Hangs));
    let checked = place.disks.well_after(0, || {
        everything_is_answered(&world.socket, &vols, &world);
        let troubles = in_time("NodeGetStorageHealth", || world.csi.storage_troubles()).expect("an answer");
        assert!(troubles.iter().any(|(reason, _)| reason == "PoolUnreadable"), "{troubles:?}");
        let health = in_time("ControllerGetVolumeHealth", || world.csi.health(&vols[0].1.volume_id));
        assert!(!health.expect("an answer").health_statuses.is_empty(), "its volumes are not healthy");
        // What is new is refused at once.
        let request = create_request(Kind::Ext4, "refused", 16 * MIB, &SICK);
        let status = world.csi.create(request).expect_err("the disk does not answer");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        assert!(status.message().contains("has not answered for"), "{status:?}");
    });
    assert!(checked > 0, "nothing waited for the disk");
    eventually("it is healthy", || world.csi.storage_health().expect("NodeGetStorageHealth").is_empty());
    // What went on by itself ends, and the retries find it.
    for (kind, volume) in &vols {
        let vol = Vol::of(&world, *kind, volume.clone());
        eventually("it is unpublished", || vol.unpublish("b").is_ok() && vol.unpublish("a").is_ok());
        eventually("it is unstaged", || vol.unstage().is_ok());
    }
    all_is_well(&world, "hang", vols);
    world.take_driver().stop();
    place.unmount();
    drop(place);
    world.assert_nothing_left();
}

/// A pool whose disk hangs does not keep the driver from its start, and is there again when the disk is.
#[test]
fn a_disk_that_hangs_at_the_start_costs_its_own_pool() {
    let mut world = World::empty(&[]);
    let place = Place::new(&world, world.dir.join("sick"));
    world.set_flags(&["--pool", &format!("sick={}", text(&place.mount_point))]);
    world.start();
    let vols: Vec<_> = volumes(&world).into_iter().map(|vol| (vol.kind, vol.info.clone())).collect();
    for (kind, volume) in &vols {
        Vol::of(&world, *kind, volume.clone()).down();
    }
    world.take_driver().stop();
    place.disks.trouble(0, Trouble::all(Fault::Hangs));
    place.disks.well_after(0, || {
        world.start();
        others_go_on(&world, "start");
        let request = create_request(Kind::Ext4, "refused", 16 * MIB, &SICK);
        let status = in_time("CreateVolume", || world.csi.create(request)).expect_err("it hangs");
        assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
        let troubles = world.csi.storage_troubles().expect("NodeGetStorageHealth");
        assert!(troubles.iter().any(|(reason, _)| reason == "PoolUnavailable"), "{troubles:?}");
    });
    eventually("the pool is there again", || {
        let request = create_request(Kind::Ext4, "again", 16 * MIB, &SICK);
        world.csi.create(request).is_ok()
    });
    all_is_well(&world, "start", vols);
    world.take_driver().stop();
    place.unmount();
    drop(place);
    world.assert_nothing_left();
}

/// What is acknowledged after a sync of the state failed is there after a loss of power; what failed is not.
#[test]
fn a_failed_sync_of_the_state_is_not_acknowledged() {
    for times in [Fault::Fails(1), Fault::Fails(3), ALWAYS] {
        let mut world = World::empty(&[]);
        let place = Place::new(&world, world.data.clone());
        world.start();
        let create = |world: &World, name: &str| {
            let request = create_request(Kind::Block, name, 16 * MIB, &[]);
            in_time("CreateVolume", || world.csi.create(request)).map(|volume| volume.volume_id)
        };
        let before = create(&world, "before").expect("CreateVolume");
        place.disks.trouble(0, Trouble { flushes: times, ..Trouble::default() });
        let mut acknowledged = vec![before];
        let mut refused = 0;
        for number in 0..8 {
            match create(&world, &format!("volume-{number}")) {
                Ok(id) => acknowledged.push(id),
                Err(_) => refused += 1,
            }
        }
        assert!(refused > 0, "{times:?}: a sync failed, and everything was acknowledged");
        // The power goes: only what was flushed stays.
        world.take_driver().kill();
        place.disks.trouble(0, Trouble::default());
        let left = world.dir.join("left");
        place.disks.recording.leave(place.disks.recording.position(), &[&left], SIZE, || false);
        place.unmount();
        mount_loop(&left, &place.mount_point);
        world.start();
        let listed = world.csi.list(0, "").expect("ListVolumes").entries;
        let listed: Vec<_> =
            listed.into_iter().map(|entry| entry.volume.expect("a volume").volume_id).collect();
        for id in &acknowledged {
            assert!(listed.contains(id), "{times:?}: {id} was acknowledged: {listed:?}");
        }
        for id in listed {
            world.csi.delete(&id).expect("DeleteVolume");
        }
        world.take_driver().stop();
        run("umount", &[text(&place.mount_point)]);
        drop(place);
        world.assert_nothing_left();
    }
}
