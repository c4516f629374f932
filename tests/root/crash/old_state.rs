//! An old state file is restored: its records say `creating`, `deleting` or `formatting` of what has come to hold data
//! since. Nothing of that is erased. What carries the mark of an interrupted call is.

use std::path::Path;

use hostloop::kernel::linux::{Tools, os};
use hostloop::model::{Content, Format, GroupSnapshot, Phase, Snapshot, Volume};
use hostloop::store::{Durability, Identity, Store};
use hostloop::wire::csi;
use tonic::Code;

use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::process::node_of;
use crate::harness::{Kind, Vol, World};

const LEN: usize = 1 << 16;

/// Stops the driver, and rewrites its records as an older state file has them.
fn restore(world: &mut World, rewrite: impl FnOnce(&Store)) {
    world.take_driver().stop();
    let identity = Identity { driver: "hostloop.csi.dev".to_owned(), node_id: node_of(&world.data) };
    rewrite(&Store::open(os(Tools::find()).files, &world.data, identity).expect("the state file"));
    world.start();
}

fn record(store: &Store, id: &str) -> Volume {
    (*store.get(&id.parse().expect("an id")).expect("a record")).clone()
}

/// The record with another phase and, of a filesystem, another format.
fn put(store: &Store, id: &str, phase: Phase, format: Option<Format>) {
    let mut volume = Volume { phase, ..record(store, id) };
    if let (Content::Filesystem { fs_type, .. }, Some(format)) = (&volume.content, format) {
        volume.content = Content::Filesystem { fs_type: *fs_type, format };
    }
    store.put(volume).expect("put");
}

/// A volume with data in it, which nobody uses.
fn written(world: &World, kind: Kind, name: &str) -> csi::Volume {
    let vol = Vol::create(world, kind, name, kind.size(), &[]);
    write(&vol);
    vol.info.clone()
}

fn write(vol: &Vol<'_>) {
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
    vol.down();
}

/// The volume has its data; then it goes.
fn assert_whole(world: &World, kind: Kind, volume: csi::Volume, what: &str) {
    let vol = Vol::of(world, kind, volume);
    vol.up();
    assert!(read_at(&vol.file("a"), 0, LEN) == pattern(1, LEN), "{kind:?} {what}: its data");
    vol.remove();
}

/// Whether a file with these data lies below the directory.
fn holds(directory: &Path, file: &str) -> bool {
    directory.join(file).exists()
}

#[test]
fn a_volume_recorded_as_being_made_is_kept() {
    for kind in Kind::ALL {
        let mut world = World::for_kind(kind, &[]);
        let volume = written(&world, kind, "volume");
        let id = volume.volume_id.clone();
        restore(&mut world, |store| put(store, &id, Phase::Creating, Some(Format::Blank)));
        assert_whole(&world, kind, volume, "that was being made");
        world.finish();
    }
}

#[test]
fn a_copy_that_is_recorded_as_being_made_is_kept() {
    for kind in [Kind::Ext4, Kind::Block, Kind::Directory] {
        let mut world = World::for_kind(kind, &[]);
        let source = written(&world, kind, "source");
        let vol = Vol::of(&world, kind, source.clone());
        let freeze: &[_] = if kind == Kind::Directory { &[("freeze", "false")] } else { &[] };
        let copy = vol.copy(&world, "copy", freeze).info.clone();
        vol.remove();
        let id = copy.volume_id.clone();
        restore(&mut world, |store| put(store, &id, Phase::Creating, Some(Format::Copied)));
        // A retry of its call finds it, too.
        assert_whole(&world, kind, copy, "that was being copied");
        world.finish();
    }
}

/// The state file is older than the volume. A later one brings it back.
#[test]
fn a_volume_without_its_record_stays() {
    for kind in Kind::ALL {
        let mut world = World::for_kind(kind, &[]);
        let volume = written(&world, kind, "volume");
        let (id, mut later) = (volume.volume_id.clone(), None);
        Vol::of(&world, kind, volume.clone()).up();
        restore(&mut world, |store| {
            later = Some(record(store, &id));
            store.delete(&id.parse().expect("an id"), Durability::Synced).expect("delete");
        });
        // Its pod can end.
        Vol::of(&world, kind, volume.clone()).down();
        let volumes = world.data.join("volumes");
        for record in [volumes.join(&id).join("volume.json"), volumes.join(format!("{id}.json"))] {
            let _ = std::fs::remove_file(record);
        }
        let refused = world.csi.delete(&id).expect_err("its data are there");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{kind:?} {refused}");
        restore(&mut world, |store| drop(store.put(later.take().expect("a record")).expect("put")));
        assert_whole(&world, kind, volume, "without its record");
        world.finish();
    }
}

#[test]
fn a_volume_recorded_as_being_deleted_is_kept() {
    for kind in Kind::ALL {
        let mut world = World::for_kind(kind, &[]);
        let volume = written(&world, kind, "volume");
        let id = volume.volume_id.clone();
        restore(&mut world, |store| put(store, &id, Phase::Deleting, None));
        assert_whole(&world, kind, volume, "that was being deleted");
        world.finish();
    }
}

#[test]
fn a_volume_recorded_as_blank_is_not_formatted() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let mut world = World::new(&[]);
        let volume = written(&world, kind, "volume");
        let id = volume.volume_id.clone();
        let mark = world.volume_directory(&id).join("formatted");
        std::fs::remove_file(&mark).expect("the mark");
        restore(&mut world, |store| put(store, &id, Phase::Ready, Some(Format::Blank)));
        let refused = Vol::of(&world, kind, volume.clone()).stage().expect_err("nobody can tell");
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "{refused}");
        std::fs::write(&mark, "").expect("the mark");
        assert_whole(&world, kind, volume, "that was blank");
        world.finish();
    }
}

fn put_snapshot(store: &Store, id: &str, change: impl FnOnce(Snapshot) -> Snapshot) {
    let there = store.snapshot(&id.parse().expect("an id")).expect("a record");
    store.put_snapshot(change((*there).clone())).expect("put");
}

#[test]
fn snapshots_and_groups_are_kept() {
    for phase in [Phase::Creating, Phase::Deleting] {
        let mut world = World::new(&[]);
        let source = written(&world, Kind::Ext4, "source");
        let snapshot = world.csi.snapshot("alone", &source.volume_id, &[]).expect("CreateSnapshot");
        let group = world.csi.group("group", &[&source.volume_id]).expect("CreateVolumeGroupSnapshot");
        let member = group.snapshots[0].clone();
        restore(&mut world, |store| {
            put_snapshot(store, &snapshot.snapshot_id, |snapshot| Snapshot { phase, ..snapshot });
            put_snapshot(store, &member.snapshot_id, |snapshot| Snapshot { phase, ..snapshot });
            let there = store.group(&group.group_snapshot_id.parse().expect("an id")).expect("a record");
            store.put_group(GroupSnapshot { phase, ..(*there).clone() }).expect("put");
        });
        for (name, of) in [("of one", &snapshot), ("of a member", &member)] {
            let bytes = u64::try_from(of.size_bytes).expect("a size");
            let vol = Vol::restore(&world, Kind::Ext4, name, bytes, of, &[]);
            assert_whole(&world, Kind::Ext4, vol.info.clone(), name);
        }
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
        world.csi.delete_group(&group.group_snapshot_id).expect("DeleteVolumeGroupSnapshot");
        Vol::of(&world, Kind::Ext4, source).remove();
        world.finish();
    }
}

/// One member is whole, one carries a mark, and one is not in the records: nobody can tell, and nothing goes.
#[test]
fn an_undecided_group_stays_until_it_is_deleted() {
    let mut world = World::new(&[]);
    let sources = ["a", "b", "c"].map(|name| written(&world, Kind::Block, name));
    let ids = sources.each_ref().map(|source| source.volume_id.as_str());
    let group = world.csi.group("group", &ids).expect("CreateVolumeGroupSnapshot");
    let places: Vec<_> =
        group.snapshots.iter().map(|member| world.data.join("snapshots").join(&member.snapshot_id)).collect();
    std::fs::write(places[1].join("making"), "").expect("mark");
    let lost = std::fs::read(places[2].join("disk.img")).expect("read");
    restore(&mut world, |store| {
        let phase = Phase::Creating;
        for member in &group.snapshots {
            put_snapshot(store, &member.snapshot_id, |snapshot| Snapshot { phase, ..snapshot });
        }
        let last = group.snapshots[2].snapshot_id.parse().expect("an id");
        store.delete_snapshot(&last, Durability::Synced).expect("delete");
        let there = store.group(&group.group_snapshot_id.parse().expect("an id")).expect("a record");
        store.put_group(GroupSnapshot { phase, ..(*there).clone() }).expect("put");
    });
    for place in &places {
        assert!(read_at(&place.join("disk.img"), 0, LEN) == lost[..LEN], "{}", place.display());
    }
    assert_eq!(world.csi.list_snapshots().expect("ListSnapshots"), [], "callers see none of it");
    world.csi.delete_group(&group.group_snapshot_id).expect("DeleteVolumeGroupSnapshot");
    assert!(!places[0].exists() && !places[1].exists());
    std::fs::remove_dir_all(&places[2]).expect("what has no record is nobody's");
    for source in sources {
        Vol::of(&world, Kind::Block, source).remove();
    }
    world.finish();
}

/// Where record and mark agree, what a crash has left goes.
#[test]
fn a_marked_record_is_finished() {
    let mut world = World::new(&[]);
    let source = Vol::create(&world, Kind::Ext4, "source", Kind::Ext4.size(), &[]);
    write(&source);
    let copy = source.copy(&world, "copy", &[]).info.clone();
    let (deleted, formatted) =
        (written(&world, Kind::Block, "deleted"), written(&world, Kind::Ext4, "formatted"));
    let source = source.info.clone();
    for (volume, mark) in [(&copy, "making"), (&deleted, "deleting"), (&formatted, "formatting")] {
        std::fs::write(world.volume_directory(&volume.volume_id).join(mark), "").expect("mark");
    }
    std::fs::remove_file(world.volume_directory(&formatted.volume_id).join("formatted"))
        .expect("no mark yet");
    restore(&mut world, |store| {
        put(store, &copy.volume_id, Phase::Creating, None);
        put(store, &deleted.volume_id, Phase::Deleting, None);
        put(store, &formatted.volume_id, Phase::Ready, Some(Format::Blank));
    });
    for gone in [&copy, &deleted] {
        assert!(!world.volume_directory(&gone.volume_id).exists(), "{}", gone.volume_id);
    }
    let vol = Vol::of(&world, Kind::Ext4, formatted);
    vol.up();
    assert!(!vol.file("a").exists(), "it was formatted anew");
    assert!(!holds(&world.volume_directory(vol.id()), "formatting"));
    vol.remove();
    assert_whole(&world, Kind::Ext4, source, "beside them");
    world.finish();
}

/// A mark that a power cut brought back behind its record is taken away before data come.
#[test]
fn a_mark_behind_its_record_goes() {
    let mut world = World::new(&[]);
    let source = Vol::create(&world, Kind::Ext4, "source", Kind::Ext4.size(), &[]);
    write(&source);
    let copy = source.copy(&world, "copy", &[]);
    assert!(!holds(&world.volume_directory(copy.id()), "making"), "it is gone when the call is answered");
    let (source, copy) = (source.info.clone(), copy.info.clone());
    for (volume, mark) in [(&copy, "making"), (&source, "formatting")] {
        std::fs::write(world.volume_directory(&volume.volume_id).join(mark), "").expect("mark");
    }
    restore(&mut world, |_| {});
    for (volume, mark) in [(&copy, "making"), (&source, "formatting")] {
        let vol = Vol::of(&world, Kind::Ext4, volume.clone());
        vol.up();
        assert!(read_at(&vol.file("a"), 0, LEN) == pattern(1, LEN));
        assert!(!holds(&world.volume_directory(vol.id()), mark));
        vol.remove();
    }
    world.finish();
}
