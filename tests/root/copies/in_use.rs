//! Snapshots, restores and clones of volumes in use, in pools that share blocks and in one that does not.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use tonic::Code;

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, clone_request, eventually};

const LEN: usize = 1 << 20;
const GIB: u64 = 1 << 30;

/// A pool of each kind.
fn worlds() -> [(&'static str, World); 3] {
    [
        ("ext4", World::new(&[])),
        ("xfs", World::on("xfs", 4 * GIB, &["--overcommit", "4"])),
        ("btrfs", World::on("btrfs", 4 * GIB, &["--overcommit", "4"])),
    ]
}

#[test]
fn every_kind_is_copied_while_it_is_in_use() {
    for (pool, mut world) in worlds() {
        for kind in Kind::ALL {
            eprintln!("{kind:?} on {pool}");
            world.serve(kind);
            copies(&world, kind, pool != "ext4");
        }
        world.finish();
    }
}

/// The parameters with which this kind can be copied in use.
fn in_use(world: &World, vol: &Vol<'_>, shares: bool) -> &'static [(&'static str, &'static str)] {
    let unstoppable = vol.kind == Kind::Directory || (vol.kind == Kind::Block && !shares);
    if !unstoppable {
        return &[];
    }
    let refused = world.csi.snapshot("refused", vol.id(), &[]).expect_err("nothing holds the writes back");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    assert!(refused.message().contains("freeze: \"false\""), "{refused:?}");
    &[("freeze", "false")]
}

fn copies(world: &World, kind: Kind, shares: bool) {
    let source = Vol::create(world, kind, &format!("source {kind:?}"), kind.size(), &[]);
    source.up();
    let file = source.file("a");
    write_at(&file, 0, &pattern(1, LEN)).expect("write");
    sync(&file);
    let parameters = in_use(world, &source, shares);
    let snapshot = world.csi.snapshot("snapshot", source.id(), parameters).expect("CreateSnapshot");
    assert!(snapshot.ready_to_use);
    assert_eq!(snapshot.size_bytes as u64, kind.size());
    assert_eq!(world.csi.snapshot("snapshot", source.id(), parameters).expect("again"), snapshot);

    write_at(&file, 0, &pattern(2, LEN)).expect("write after the cut");
    sync(&file);
    let clone = source.copy(world, "clone", parameters);
    write_at(&file, 0, &pattern(3, LEN)).expect("write after the copy");
    let restored = Vol::restore(world, kind, "restored", kind.size(), &snapshot, &[]);
    let larger = Vol::restore(world, kind, "larger", kind.size() + 32 * MIB, &snapshot, &[]);
    assert_eq!(larger.bytes(), kind.size() + 32 * MIB);

    // All at once beside the source.
    let copies = [(&clone, 2), (&restored, 1), (&larger, 1)];
    for (copy, seed) in copies {
        copy.up();
        assert_eq!(read_at(&copy.file("a"), 0, LEN), pattern(seed, LEN), "{kind:?}");
    }
    assert_grown(&larger, &restored);
    for ((copy, _), seed) in copies.into_iter().zip(10..) {
        write_at(&copy.file("a"), 0, &pattern(seed, LEN)).expect("write to a copy");
        sync(&copy.file("a"));
    }
    assert_eq!(read_at(&file, 0, LEN), pattern(3, LEN), "the source has its own data");
    for ((copy, _), seed) in copies.into_iter().zip(10..) {
        copy.down();
        copy.up();
        assert_eq!(read_at(&copy.file("a"), 0, LEN), pattern(seed, LEN), "each copy has its own data");
    }
    for copy in [clone, restored, larger] {
        copy.remove();
    }
    source.remove();
    let late = Vol::restore(world, kind, "after its source", kind.size(), &snapshot, &[]);
    late.up();
    assert_eq!(read_at(&late.file("a"), 0, LEN), pattern(1, LEN), "the snapshot outlives its source");
    late.remove();
    world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot again");
}

fn sync(path: &Path) {
    File::open(path).and_then(|file| file.sync_all()).expect("fsync");
}

/// The filesystem or device is larger than that of a copy of the old size, where this machine lets it grow.
fn assert_grown(larger: &Vol<'_>, exact: &Vol<'_>) {
    let size = |vol: &Vol<'_>| match vol.kind {
        Kind::Block => kernel::device_size(&vol.target("a")),
        _ => kernel::space(&vol.target("a")).0,
    };
    if larger.kind != Kind::Directory && crate::volumes::life::can_grow(larger.kind) {
        let grown = size(larger) - size(exact);
        assert!((24 * MIB..=32 * MIB).contains(&grown), "{grown}");
    }
}

/// Appends to a file of the volume and syncs, again and again.
fn write_on(file: &Path, stop: &AtomicBool, writes: &AtomicU64) {
    let mut file = File::create(file).expect("create");
    while !stop.load(Ordering::Relaxed) {
        file.write_all(&[7; 4096]).and_then(|()| file.sync_data()).expect("write");
        writes.fetch_add(1, Ordering::Relaxed);
    }
}

/// The driver dies in the middle of a copy, with the volume's filesystem frozen: it thaws, the application goes on,
/// and the next driver finds nothing of the snapshot.
#[test]
fn a_killed_driver_leaves_no_freeze_or_half_snapshot() {
    let mut world = World::new(&[]);
    let id;
    {
        let source = Vol::create(&world, Kind::Ext4, "source", 2 * GIB, &[]);
        source.up();
        std::io::copy(
            &mut std::io::Read::take(File::open("/dev/urandom").expect("random"), 512 * MIB),
            &mut File::create(source.target("a").join("data")).expect("create"),
        )
        .expect("fill");
        sync(&source.target("a").join("data"));
        id = source.id().to_owned();
    }
    let log = world.directory(&id).join("a/log");
    let (stop, writes) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| write_on(&log, &stop, &writes));
        let parameters = [("freezeTimeout", "5m")];
        let (pid, csi) = (world.driver().pid(), &world.csi);
        let call = scope.spawn(move || csi_snapshot(csi, &id, &parameters));
        let snapshots = world.data.join("snapshots");
        let copied = || images(&snapshots).iter().any(|image| kernel::allocated(image) > 16 * MIB);
        while !copied() && !call.is_finished() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!call.is_finished(), "the copy was too fast to be cut off");
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid as i32), Signal::SIGKILL).expect("kill");
        let (killed, before) = (Instant::now(), writes.load(Ordering::Relaxed));
        eventually("the filesystem is writable again", || writes.load(Ordering::Relaxed) > before + 1);
        eprintln!("writable again {} ms after kill -9", killed.elapsed().as_millis());
        assert!(call.join().expect("the call").is_err());
        stop.store(true, Ordering::Relaxed);
    });
    world.take_driver().kill();
    world.start();
    assert!(images(&world.data.join("snapshots")).is_empty());
    assert!(world.csi.list_snapshots().expect("ListSnapshots").is_empty());
    let volume = world.csi.list(0, "").expect("ListVolumes").entries.remove(0).volume.expect("a volume");
    let source = Vol::of(&world, Kind::Ext4, volume);
    let parameters = [("freezeTimeout", "5m")];
    let snapshot = world.csi.snapshot("snapshot", source.id(), &parameters).expect("a retry");
    world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    source.remove();
    world.finish();
}

fn csi_snapshot(
    csi: &crate::harness::Csi,
    id: &str,
    parameters: &[(&str, &str)],
) -> Result<(), tonic::Status> {
    csi.snapshot("snapshot", id, parameters).map(drop)
}

fn images(snapshots: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(snapshots).expect("list");
    entries
        .map(|entry| entry.expect("entry").path().join("disk.img"))
        .filter(|image| image.exists())
        .collect()
}

/// A thick volume keeps its blocks to itself, whatever is copied: it can be rewritten on a full disk.
#[test]
fn a_thick_volume_keeps_its_promise_after_a_snapshot() {
    let world = World::on("xfs", GIB, &[]);
    let size = 128 * MIB;
    let thick = Vol::create(&world, Kind::Block, "thick", size, &[("provisioning", "thick")]);
    thick.up();
    write_at(&thick.file("a"), 0, &pattern(1, LEN)).expect("write");
    sync(&thick.file("a"));
    thick.down();
    let snapshot = world.csi.snapshot("snapshot", thick.id(), &[]).expect("CreateSnapshot");
    let restored =
        Vol::restore(&world, Kind::Block, "restored", size, &snapshot, &[("provisioning", "thick")]);
    kernel::fill(&world.data.join("filler"));
    for vol in [&thick, &restored] {
        vol.up();
        for at in (0..size).step_by(LEN) {
            write_at(&vol.file("a"), at, &pattern(at + 2, LEN)).expect("write on a full disk");
        }
        sync(&vol.file("a"));
        assert_eq!(read_at(&vol.file("a"), size - LEN as u64, LEN), pattern(size - LEN as u64 + 2, LEN));
    }
    std::fs::remove_file(world.data.join("filler")).expect("unlink");
    thick.remove();
    restored.remove();
    world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    world.finish();
}

/// What does not fit is refused before it starts.
#[test]
fn a_copy_that_does_not_fit_leaves_nothing() {
    let world = World::on("ext4", 512 * MIB, &["--overcommit", "10"]);
    let source = Vol::create(&world, Kind::Block, "source", 320 * MIB, &[]);
    source.up();
    for at in (0..300 * MIB).step_by(LEN) {
        write_at(&source.file("a"), at, &pattern(at, LEN)).expect("write");
    }
    sync(&source.file("a"));
    source.down();
    let refused = world.csi.snapshot("snapshot", source.id(), &[]).expect_err("no room");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    let request = crate::harness::clone_request(Kind::Block, "clone", source.bytes(), source.id(), &[]);
    let refused = world.csi.create(request).expect_err("no room");
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
    assert!(images(&world.data.join("snapshots")).is_empty());
    source.delete().expect("DeleteVolume");
    world.finish();
}

/// A size is rounded up, and each filesystem has a minimum: external-provisioner compares the claim with `size_bytes`.
#[test]
fn the_request_of_a_source_makes_its_copies() {
    let world = World::new(&[]);
    for (kind, asked) in [
        (Kind::Ext4, 20_000_001),
        (Kind::Ext4, MIB),
        (Kind::Xfs, 100 * MIB),
        (Kind::Btrfs, 100 * MIB),
        (Kind::Block, 5_000_001),
    ] {
        let name = |what: &str| format!("{what} {kind:?} {asked}");
        let vol = Vol::create(&world, kind, &name("source"), asked, &[]);
        assert!(vol.bytes() > asked, "{}", name("rounded"));
        vol.up();
        vol.down();
        let snapshot = world.csi.snapshot(&name("s"), vol.id(), &[]).expect("CreateSnapshot");
        assert_eq!(snapshot.size_bytes as u64, asked, "{}", name("restoreSize"));
        let cloned = world.csi.create(clone_request(kind, &name("clone"), asked, vol.id(), &[]));
        let cloned = Vol::of(&world, kind, cloned.expect("CreateVolume from a volume"));
        let restored = Vol::restore(&world, kind, &name("restored"), asked, &snapshot, &[]);
        for copied in [cloned, restored] {
            assert_eq!(copied.bytes(), vol.bytes(), "{}", name("copy"));
            copied.up();
            copied.remove();
        }
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}
