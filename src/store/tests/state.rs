//! What the store remembers, and what it makes of files that are not its own.

use super::*;
use crate::model::{
    Consistency, GroupSnapshot, GroupSnapshotId, Moved, PoolName, Snapshot, SnapshotId, Timestamp,
};
use crate::store::record::{self, FORMAT};
use crate::store::writer::Writer;
use crate::store::{Durability, SLACK, Totals, load};

#[test]
fn changes_survive_a_restart() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    assert!(store.is_empty());
    for number in 0..5 {
        assert_eq!(store.put(volume(number, 10)).unwrap().id, id(number));
    }
    store.put(volume(3, 20)).unwrap();
    store.delete(&id(1), Durability::Synced).unwrap();
    store.delete(&id(77), Durability::Synced).unwrap();
    let before = store.volumes();
    disk.power_cut();
    let store = open(&disk).unwrap();
    assert_eq!(store.volumes(), before);
    assert_eq!((store.len(), store.get(&id(3)).unwrap().capacity_bytes, store.get(&id(1))), (4, 20, None));
    assert!(before.is_sorted_by_key(|volume| volume.id.clone()));
}

#[test]
fn the_file_is_json_a_line_in_the_documented_form() {
    let text = String::from_utf8(sample(2)).unwrap();
    let lines: Vec<serde_json::Value> =
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 3);
    assert_eq!(
        (&lines[0]["hostloop"], &lines[0]["node"], &lines[0]["first"]),
        (&1.into(), &"node-a".into(), &1.into())
    );
    assert_eq!((&lines[2]["seq"], &lines[2]["synced"]), (&2.into(), &1.into()));
    assert_eq!(lines[2]["put"]["volume"]["name"], "pvc-1");
    for (line, json) in text.lines().zip(&lines) {
        let (covered, crc) = line.rsplit_once(",\"crc\":\"").unwrap();
        assert_eq!(crc, format!("{:08x}\"}}", crc32fast::hash(covered.as_bytes())));
        assert_eq!(format!("{}\"}}", json["crc"].as_str().unwrap()), crc);
    }
}

#[test]
fn a_lazy_delete_is_synced_with_the_next_change() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(0, 1)).unwrap();
    let syncs = disk.syncs();
    store.delete(&id(0), Durability::Lazy).unwrap();
    assert_eq!((disk.syncs(), store.len()), (syncs, 0));
    // A synced delete of what a lazy one has removed makes that one durable.
    store.delete(&id(0), Durability::Synced).unwrap();
    assert_eq!(disk.syncs(), syncs + 1);
    store.delete(&id(0), Durability::Synced).unwrap();
    assert_eq!(disk.syncs(), syncs + 1);
    disk.power_cut();
    assert!(open(&disk).unwrap().is_empty());
}

#[test]
fn pages_follow_the_order_of_ids() {
    let store = open(&Disk::new()).unwrap();
    for number in 0..25 {
        store.put(volume(number, number as u64)).unwrap();
    }
    let even = |volume: &Volume| volume.capacity_bytes.is_multiple_of(2);
    let all: Vec<_> = store.volumes().into_iter().filter(|volume| even(volume)).collect();
    let (mut seen, mut after) = (Vec::new(), None);
    loop {
        let (page, more) = store.page(after.as_ref(), Some(4), even);
        assert_eq!(page.len(), 4.min(all.len() - seen.len()));
        after = page.last().map(|volume| volume.id.clone());
        seen.extend(page);
        assert_eq!(more, seen.len() < all.len());
        if !more {
            break;
        }
    }
    assert_eq!(seen, all);
    assert_eq!(store.page(None, None, even), (all, false));
    assert!(!store.page(None, Some(13), even).1);
    assert_eq!(store.page(None, Some(0), even), (Vec::new(), true));
}

#[test]
fn totals_follow_every_change() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    let pool = PoolName::default();
    store.put(with(volume(0, 10), BackendKind::Loop, Provisioning::Thin)).unwrap();
    store.put(with(volume(1, 100), BackendKind::Loop, Provisioning::Thick)).unwrap();
    store.put(with(volume(2, 1000), BackendKind::Directory, Provisioning::Thin)).unwrap();
    assert_eq!(store.totals(&pool), Totals { thin_bytes: 10, thick_bytes: 100, snapshot_bytes: 0 });
    store.put(Volume { phase: Phase::Deleting, ..volume(0, 30) }).unwrap();
    assert_eq!(store.totals(&pool).thin_bytes, 30);
    store.delete(&id(1), Durability::Synced).unwrap();
    let expected = Totals { thin_bytes: 30, ..Totals::default() };
    assert_eq!(store.totals(&pool), expected);
    assert_eq!(store.totals(&"other".parse().unwrap()), Totals::default());
    assert_eq!(open(&disk).unwrap().totals(&pool), expected);
    for number in 10..13 {
        store.put(volume(number, u64::MAX)).unwrap();
    }
    assert_eq!(store.totals(&pool).thin_bytes, u64::MAX);
}

#[test]
fn compaction_keeps_everything_and_shrinks() {
    let disk = Disk::new();
    let store = open_with(&disk, 10).unwrap();
    let mut longest = 0;
    for round in 0..200u64 {
        store.put(volume(round as usize % 5, round)).unwrap();
        longest = longest.max(disk.read().iter().filter(|byte| **byte == b'\n').count());
    }
    assert!((20..=22).contains(&longest), "{longest} lines");
    let expected: Model = (0..5).map(|number| (id(number), 195 + number as u64)).collect();
    assert_eq!(model(&store), expected);
    disk.power_cut();
    assert_eq!(model(&open(&disk).unwrap()), expected);
    assert_eq!(disk.names(), [file(), previous()]);
}

#[test]
fn ten_thousand_volumes_load() {
    let lines = (0..10_000).map(|number| put_line(number as u64 + 1, number as u64, number));
    let disk = Disk::holding(&[sample(0), lines.collect::<Vec<_>>().concat()].concat());
    for _ in 0..2 {
        let start = std::time::Instant::now();
        let store = open(&disk).unwrap();
        println!("10,000 volumes, {} bytes: {:?}", disk.read().len(), start.elapsed());
        let sum = (0..10_000).map(|number| 1000 + number).sum();
        assert_eq!((store.len(), store.totals(&PoolName::default()).thin_bytes), (10_000, sum));
    }
}

#[test]
fn a_file_of_someone_else_is_refused_and_left_alone() {
    let bytes = sample(1);
    let disk = Disk::holding(&bytes);
    let start = |driver: &str, node: &str| {
        let identity = Identity { driver: driver.to_owned(), node_id: node.to_owned() };
        Store::open(disk.files(), Path::new(DIR), identity).err().unwrap().to_string()
    };
    let text = start("hostloop.test", "node-b");
    assert!(text.contains("node \"node-a\"") && text.contains("--node-id node-a"), "{text}");
    let text = start("other.test", "node-a");
    assert!(text.contains("--driver-name hostloop.test"), "{text}");
    assert_eq!((disk.read(), disk.steps()), (bytes, 0));
}

#[test]
fn a_later_format_is_named_as_such() {
    let disk = Disk::holding(b"{\"hostloop\":2,\"anything\":[]}\n");
    let error = open(&disk).err().unwrap();
    assert!(matches!(error, StoreError::Version { found: 2, supported: FORMAT, .. }), "{error}");
}

/// Lines of this version never follow the header of an earlier one, which reads them by what that says.
#[test]
fn a_file_of_an_earlier_format_is_renewed_or_left() {
    let disk = Disk::holding(&sample(3));
    drop(open(&disk).unwrap());
    let before = disk.read();
    let take_over = || {
        let mut loaded = load::load(&disk.read(), &identity(), &file(), || None).unwrap();
        loaded.format -= 1;
        Writer::new(disk.files(), Path::new(DIR), identity(), SLACK).take_over(&loaded)
    };
    disk.set_room(Some(0));
    take_over().unwrap_err();
    assert_eq!(disk.read(), before, "there is no room for another file");
    disk.set_room(None);
    take_over().unwrap();
    assert_ne!(disk.read(), before);
    assert_eq!(model(&open(&disk).unwrap()), sample_model(3));
}

#[test]
fn a_record_of_an_unknown_kind_stops_the_start() {
    for members in [
        "\"put\":{\"snapshot\":{}}",
        "\"patch\":{}",
        "\"delete\":{\"group\":\"x\"}",
        "\"extra\":1,\"delete\":{\"volume\":\"vol-1\"}",
    ] {
        let mut bytes = sample(1);
        bytes.extend(record::line(2, 1, members).bytes());
        let error = open(&Disk::holding(&bytes)).err().unwrap();
        assert!(matches!(error, StoreError::Unknown { line: 3, .. }), "{members}: {error}");
    }
}

#[test]
fn a_start_keeps_a_file_that_nothing_was_written_to() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    assert!(store.is_empty());
    store.put(volume(1, 1000)).unwrap();
    assert!(!store.is_empty());
    drop(store);
    drop(open(&disk).unwrap());
    let fresh = disk.read();
    drop(open(&disk).unwrap());
    assert_eq!(disk.read(), fresh);
}

#[test]
fn a_change_is_of_the_record_with_its_id() {
    let put = Change::Put(Put::Volume(Arc::new(volume(1, 1000))));
    let delete = Change::Delete(record::Delete::Volume(id(1)));
    let rename = Change::Rename(record::Rename { from: id(1), to: Arc::new(volume(2, 1000)) });
    for change in [put, rename, delete] {
        assert_eq!(change.id(), id(1).as_str());
    }
}

/// A volume and the record of its move have the same id.
#[test]
fn the_place_a_volume_went_to_is_its_own_record() {
    let moved = Moved {
        id: id(1),
        left: id(2),
        by: 3,
        node_id: "node-b".to_owned(),
        deleted: false,
        deleted_here: None,
    };
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(1, 1000)).unwrap();
    store.put_moved(moved.clone()).unwrap();
    drop(store);
    let store = open(&disk).unwrap();
    assert_eq!((store.len(), store.moved(&id(2))), (1, None));
    assert_eq!((store.get(&id(1)).is_some(), store.moved(&id(1)).as_deref()), (true, Some(&moved)));
    store.delete(&id(1), Durability::Synced).unwrap();
    drop(store);
    let store = open(&disk).unwrap();
    assert_eq!((store.get(&id(1)), store.moved(&id(1)).as_deref()), (None, Some(&moved)));
    let put = Change::Put(record::Put::Moved(Arc::new(moved)));
    let delete = Change::Delete(record::Delete::Moved(id(1)));
    assert_eq!((put.id(), delete.id()), (id(1).as_str(), id(1).as_str()));
    store.delete_moved(&id(1), Durability::Synced).unwrap();
    drop(store);
    assert_eq!(open(&disk).unwrap().moved(&id(1)), None);
}

#[test]
fn a_volume_that_returns_ends_the_record_of_its_move() {
    let moved = || Moved {
        id: id(1),
        left: id(2),
        by: 3,
        node_id: "node-b".to_owned(),
        deleted: false,
        deleted_here: None,
    };
    let of = |generation| Volume { generation, ..volume(1, 1000) };
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(7, 1000)).unwrap();
    store.put_moved(moved()).unwrap();
    store.put(of(2)).unwrap();
    assert_eq!(store.moved(&id(1)).as_deref(), Some(&moved()), "it has not left yet");
    store.delete(&id(1), Durability::Synced).unwrap();
    // A copy takes over the id, in one line.
    store.rename(&id(7), of(4)).unwrap();
    assert_eq!((store.len(), store.moved(&id(1))), (1, None));
    disk.power_cut();
    let store = open(&disk).unwrap();
    assert_eq!((store.get(&id(1)).map(|there| there.generation), store.moved(&id(1))), (Some(4), None));
}

#[test]
fn a_renamed_volume_counts_once_and_is_found_later() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(1, 1000)).unwrap();
    store.put(volume(2, 500)).unwrap();
    let renamed = Volume { directory: Some(id(1)), generation: 3, ..volume(7, 4000) };
    assert_eq!(*store.rename(&id(1), renamed.clone()).unwrap(), renamed);
    for store in [store, open(&disk).unwrap()] {
        assert_eq!((store.get(&id(1)), store.len()), (None, 2));
        assert_eq!(store.get(&id(7)).as_deref(), Some(&renamed));
        assert_eq!(store.totals(&PoolName::default()).thin_bytes, 4500);
    }
    let line = String::from_utf8(disk.read()).unwrap();
    assert!(line.contains("\"directory\"") && line.contains("\"generation\":3"), "{line}");
}

#[test]
fn snapshots_groups_and_cuts_are_found() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(1, 1000)).unwrap();
    let node = NodeKey::of("node-a");
    store.put_snapshot(snapshot("node-a", "snap")).unwrap();
    assert!(!store.has_cut(&id(1)), "a snapshot is no cut");
    let cut = Snapshot { pulled_for: Some(id(2)), ..snapshot("node-a", "cut") };
    store.put_snapshot(cut).unwrap();
    let group = GroupSnapshot {
        id: GroupSnapshotId::of_name(&node, "group"),
        name: "group".to_owned(),
        phase: Phase::Ready,
        created: Timestamp::now(),
        sources: vec![id(1)],
        snapshots: vec![SnapshotId::of_name(&node, "snap")],
        consistency: Consistency::default(),
        handover: None,
    };
    store.put_group(group.clone()).unwrap();
    for store in [store, open(&disk).unwrap()] {
        assert_eq!((store.has_cut(&id(1)), store.has_cut(&id(2)), store.snapshots().len()), (true, false, 2));
        assert_eq!(store.groups(), [Arc::new(group.clone())]);
    }
}
