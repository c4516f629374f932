//! Data directories of earlier releases: what they made is whole in the hands of this one.
//!
//! `tests/golden/VERSION.tar.gz` is the data directory of a driver of that release after [`make`]. A release adds its
//! own: `HOSTLOOP_GOLDEN=VERSION cargo test --test root golden::make -- --ignored`, with the driver
//! of `HOSTLOOP_GOLDEN_DRIVER` or else the one that was just built.

use std::path::{Path, PathBuf};

use hostloop::wire::csi;

use crate::harness::kernel::{allocated, pattern, read_at, write_at};
use crate::harness::process::{binary, command};
use crate::harness::volume::{create_request, restore_request};
use crate::harness::{Kind, MIB, Vol, World, run, text};

const LEN: usize = 16 << 10;
const NODE: &str = "node-golden";

type Parameters = &'static [(&'static str, &'static str)];

/// The volumes that hold data: their kind, and the parameters of their class.
const WRITTEN: [(Kind, Parameters); 6] = [
    (Kind::Ext4, &[]),
    (Kind::Xfs, &[("discard", "false")]),
    (Kind::Btrfs, &[("directIO", "false")]),
    (Kind::Block, &[]),
    (Kind::Directory, &[]),
    (Kind::Ext4, &[("provisioning", "thick")]),
];

fn name(index: usize) -> String {
    format!("written {index}")
}

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// Starts a driver that calls itself [`NODE`].
fn start(world: &mut World, driver: &str) {
    let mut arguments = world.arguments();
    let node = arguments.iter().position(|flag| flag == "--node-id").expect("the flag");
    arguments[node + 1] = NODE.to_owned();
    world.start_as(command(driver).args(arguments));
}

fn snapshot_of<'a>(all: &'a [csi::Snapshot], volume: &Vol<'_>, grouped: bool) -> &'a csi::Snapshot {
    let is_it =
        |s: &&csi::Snapshot| s.source_volume_id == volume.id() && s.group_snapshot_id.is_empty() != grouped;
    all.iter().find(is_it).expect("a snapshot")
}

/// The requests that [`make`] made; to a driver that knows them they give what is there.
fn written(world: &World) -> Vec<Vol<'_>> {
    let vol = |(index, (kind, parameters)): (usize, &(Kind, Parameters))| {
        Vol::create(world, *kind, &name(index), kind.size(), parameters)
    };
    WRITTEN.iter().enumerate().map(vol).collect()
}

fn never_staged(world: &World) -> csi::Volume {
    world.csi.create(create_request(Kind::Ext4, "never staged", 32 * MIB, &[])).expect("CreateVolume")
}

/// A restore that no node has staged yet, larger than its source.
fn restored<'a>(world: &'a World, snapshot: &csi::Snapshot) -> Vol<'a> {
    let bytes = Kind::Xfs.size() + 64 * MIB;
    let request = restore_request(Kind::Xfs, "restored", bytes, &snapshot.snapshot_id, &[]);
    Vol::of(world, Kind::Xfs, world.csi.create(request).expect("CreateVolume from a snapshot"))
}

#[test]
#[ignore = "it writes a file of the repository, once for each release"]
fn make() {
    let version = std::env::var("HOSTLOOP_GOLDEN").expect("HOSTLOOP_GOLDEN names the release");
    let driver = std::env::var("HOSTLOOP_GOLDEN_DRIVER").unwrap_or_else(|_| binary().to_owned());
    // Beside promises the directory can be only where other flags made it before them.
    let mut world = World::empty(&["--directories"]);
    start(&mut world, &driver);
    for (index, (kind, parameters)) in WRITTEN.iter().enumerate() {
        if *kind == Kind::Directory {
            Vol::create(&world, *kind, &name(index), kind.size(), parameters);
        }
    }
    world.take_driver().stop();
    world.set_flags(&[]);
    start(&mut world, &driver);
    let volumes = written(&world);
    for (seed, vol) in (1..).zip(&volumes) {
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(seed, LEN)).expect("write");
        vol.down();
    }
    volumes[3].expand(96 * MIB).expect("ControllerExpandVolume");
    never_staged(&world);
    let deleted = world.csi.create(create_request(Kind::Block, "deleted", MIB, &[])).expect("CreateVolume");
    world.csi.delete(&deleted.volume_id).expect("DeleteVolume");
    for vol in &volumes[..5] {
        let parameters: &[_] = if vol.kind == Kind::Directory { &[("freeze", "false")] } else { &[] };
        world.csi.snapshot(&format!("of {}", vol.id()), vol.id(), parameters).expect("CreateSnapshot");
    }
    let members = [volumes[0].id(), volumes[3].id()];
    world.csi.group("group", &members).expect("CreateVolumeGroupSnapshot");
    let all = world.csi.list_snapshots().expect("ListSnapshots");
    restored(&world, snapshot_of(&all, &volumes[1], false));
    drop(volumes);
    world.take_driver().stop();
    let archive = directory().join(format!("{version}.tar.gz"));
    let flags = ["--create", "--gzip", "--sparse", "--numeric-owner", "--exclude=./lock"];
    let (data, archive) = (text(&world.data), text(&archive));
    run("tar", &[flags.as_slice(), &["--file", archive, "--directory", data, "."]].concat());
}

#[test]
fn volumes_of_earlier_releases_are_whole() {
    let archives = std::fs::read_dir(directory()).expect("tests/golden");
    let archives: Vec<PathBuf> = archives.map(|entry| entry.expect("list").path()).collect();
    assert!(!archives.is_empty());
    for archive in archives.iter().filter(|path| path.extension().is_some_and(|end| end == "gz")) {
        eprintln!("{}", archive.display());
        takes_over(archive);
    }
}

fn takes_over(archive: &Path) {
    let mut world = World::empty(&[]);
    std::fs::create_dir(&world.data).expect("mkdir");
    run("tar", &["--extract", "--gzip", "--file", text(archive), "--directory", text(&world.data)]);
    start(&mut world, binary());
    let listed = |world: &World| world.csi.list(0, "").expect("ListVolumes").entries.len();
    let known = WRITTEN.len() + 2;
    assert_eq!(listed(&world), known);
    let snapshots = world.csi.list_snapshots().expect("ListSnapshots");
    assert_eq!(snapshots.len(), 7);
    check_volumes(&world, &snapshots);
    assert_eq!(listed(&world), known, "each request gave what was there");
    check_copies(&world, &snapshots);
    for entry in world.csi.list(0, "").expect("ListVolumes").entries {
        world.csi.delete(&entry.volume.expect("a volume").volume_id).expect("DeleteVolume");
    }
    let groups: Vec<_> = snapshots.iter().map(|s| &s.group_snapshot_id).filter(|g| !g.is_empty()).collect();
    world.csi.delete_group(groups[0]).expect("DeleteVolumeGroupSnapshot");
    for snapshot in snapshots.iter().filter(|s| s.group_snapshot_id.is_empty()) {
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    }
    world.finish();
}

/// Every volume has its size and its data, and can be used, grown and copied.
fn check_volumes(world: &World, snapshots: &[csi::Snapshot]) {
    for (seed, vol) in (1..).zip(written(world)) {
        vol.up();
        assert_eq!(read_at(&vol.file("a"), 0, LEN), pattern(seed, LEN), "{:?}", vol.kind);
        write_at(&vol.file("a"), LEN as u64, &pattern(seed, LEN)).expect("write");
        vol.down();
        if vol.kind == Kind::Block {
            assert_eq!(vol.bytes(), 96 * MIB, "its expansion");
        }
        let thick = WRITTEN[usize::try_from(seed - 1).expect("small")].1.contains(&("provisioning", "thick"));
        assert!(!thick || allocated(&world.image(vol.id())) >= vol.bytes(), "it is thick again");
        let bytes = vol.bytes() + 64 * MIB;
        assert_eq!(vol.expand(bytes).expect("ControllerExpandVolume").0, bytes);
    }
    let blank = Vol::of(world, Kind::Ext4, never_staged(world));
    blank.up();
    write_at(&blank.file("a"), 0, &pattern(9, LEN)).expect("write");
    blank.down();
    let copy = restored(world, snapshot_of(snapshots, &written(world)[1], false));
    copy.up();
    assert_eq!(read_at(&copy.file("a"), 0, LEN), pattern(2, LEN));
    copy.down();
}

/// Snapshots, those of a group among them, hold what they held, and volumes are copied anew.
fn check_copies(world: &World, snapshots: &[csi::Snapshot]) {
    let volumes = written(world);
    for (seed, vol) in (1..).zip(&volumes[..5]) {
        let grouped = [false, true];
        let wanted = grouped.iter().filter(|grouped| !**grouped || seed == 1 || seed == 4);
        for grouped in wanted {
            // What a directory may be restored to is the administrator's choice.
            if vol.kind == Kind::Directory {
                continue;
            }
            let snapshot = snapshot_of(snapshots, vol, *grouped);
            let bytes = vol.bytes().max(u64::try_from(snapshot.size_bytes).expect("a size"));
            let name = format!("restore of {} {grouped}", vol.id());
            let copy = Vol::restore(world, vol.kind, &name, bytes, snapshot, &[]);
            copy.up();
            assert_eq!(read_at(&copy.file("a"), 0, LEN), pattern(seed, LEN), "{:?}", vol.kind);
            copy.remove();
        }
    }
    let clone = volumes[0].copy(world, "clone", &[]);
    clone.up();
    assert_eq!(read_at(&clone.file("a"), LEN as u64, LEN), pattern(1, LEN));
    clone.remove();
}
