//! Whose a state file is if its header is damaged.

use super::*;
use crate::model::{Handover, Moved, Side};
use crate::store::Durability;

/// Damages the header.
fn behead(disk: &Disk) {
    let mut bytes = disk.read();
    bytes[5] ^= 1;
    disk.write(&bytes);
}

fn stops_at_its_header(opened: Result<Store, StoreError>) -> bool {
    matches!(opened.err(), Some(StoreError::Damaged { line: 1, .. }))
}

/// A volume that was here is gone, so that nothing but a snapshot of node-b is left.
fn with_moved_in_snapshot() -> Disk {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put_snapshot(snapshot("node-b", "snap")).unwrap();
    drop(store);
    drop(open(&disk).unwrap());
    disk
}

#[test]
fn headless_file_of_moved_in_snapshots_is_read() {
    let disk = with_moved_in_snapshot();
    behead(&disk);
    let store = open(&disk).unwrap();
    assert_eq!(store.damage().map(|damage| damage.line), Some(1));
    assert_eq!(store.snapshots().len(), 1);
    let found = Store::salvage(disk.files().as_ref(), Path::new(DIR), &identity()).unwrap().unwrap();
    assert_eq!(found.records.snapshots.len(), 1, "hostloop state reads it, too");
}

#[test]
fn headless_file_of_another_node_is_refused() {
    let disk = with_moved_in_snapshot();
    behead(&disk);
    let other = Identity { node_id: "node-c".to_owned(), ..identity() };
    assert!(stops_at_its_header(Store::open(disk.files(), Path::new(DIR), other)));
}

#[test]
fn headless_file_without_any_witness_is_refused() {
    let disk = with_moved_in_snapshot();
    disk.files().remove_file(&previous()).unwrap();
    behead(&disk);
    assert!(stops_at_its_header(open(&disk)), "nothing says whose it is");
}

#[test]
fn headless_file_with_a_bad_previous_is_refused() {
    let disk = with_moved_in_snapshot();
    disk.write_to(&previous(), b"{\"hostloop\":1}\n");
    behead(&disk);
    assert!(stops_at_its_header(open(&disk)));
}

#[test]
fn snapshot_taken_from_a_node_is_no_proof_for_it() {
    let disk = Disk::new();
    let other = Identity { node_id: "node-b".to_owned(), ..identity() };
    let store = Store::open(disk.files(), Path::new(DIR), other.clone()).unwrap();
    let taken = Handover { side: Side::Taken, node_id: "node-a".to_owned(), number: 1 };
    store.put_snapshot(Snapshot { handover: Some(taken), ..snapshot("node-a", "snap") }).unwrap();
    drop(store);
    behead(&disk);
    assert!(stops_at_its_header(open(&disk)), "node-b has it, and node-a has not");
}

#[test]
fn headless_file_of_moved_out_volumes_is_read() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(1, 1000)).unwrap();
    let moved = Moved {
        id: id(1),
        left: id(2),
        by: 1,
        node_id: "node-b".to_owned(),
        deleted: false,
        deleted_here: None,
    };
    store.put_moved(moved).unwrap();
    store.delete(&id(1), Durability::Synced).unwrap();
    drop(store);
    drop(open(&disk).unwrap());
    disk.files().remove_file(&previous()).unwrap();
    behead(&disk);
    let store = open(&disk).unwrap();
    assert!(store.is_empty() && store.moved(&id(1)).is_some());
}
