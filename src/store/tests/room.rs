//! A full disk: removals are written in room of their own, and nothing else gets at it.

use super::*;
use crate::kernel::is_full;
use crate::model::Attachment;
use crate::store::Durability;
use crate::store::memory::Memory;
use hostloop_fake_kernel::Kill;
use nix::errno::Errno;

/// Files take whole ones.
const BLOCK: u64 = 4096;

fn is_refused(result: Result<Arc<Volume>, StoreError>) {
    match result {
        Err(StoreError::Io(error)) => assert!(is_full(&error), "{error}"),
        other => panic!("{other:?}"),
    }
}

/// A volume with this phase and as many attachments.
fn as_it_goes(number: usize, phase: Phase, attachments: usize) -> Volume {
    let capability = Capability { access: AccessType::Block, mode: AccessMode::SingleNodeWriter };
    let attachment = |node: usize| Attachment {
        node_id: format!("node-{node}"),
        read_only: false,
        capability: capability.clone(),
    };
    let attachments = (0..attachments).map(attachment).collect();
    Volume { phase, attachments, ..volume(number, 1000) }
}

/// The longest way out, for each volume.
fn remove(store: &Store, number: usize) {
    store.put(as_it_goes(number, Phase::Ready, 0)).expect("detached");
    store.put(as_it_goes(number, Phase::Deleting, 0)).expect("deleting");
    store.delete(&id(number), Durability::Synced).expect("gone");
}

/// The longest lines that the way out of a record can be, which have the largest numbers, and not much more than that.
#[test]
fn the_way_out_of_a_record_is_as_long_as_its_lines() {
    let change = |phase| Change::Put(Put::Volume(Arc::new(as_it_goes(1, phase, 0))));
    let longest = |change: &Change| record::line(u64::MAX, u64::MAX, &change.members().unwrap()).len() as u64;
    let lines =
        [change(Phase::Ready), change(Phase::Deleting), Change::Delete(record::Delete::Volume(id(1)))];
    let lines: u64 = lines.iter().map(longest).sum();
    let way_out = Put::Volume(Arc::new(as_it_goes(1, Phase::Ready, 0))).way_out();
    assert!((lines..lines + 256).contains(&way_out), "{way_out} bytes for lines of {lines}");
}

#[test]
fn a_change_needs_the_room_that_its_record_gains() {
    let put = |attachments| Change::Put(Put::Volume(Arc::new(as_it_goes(1, Phase::Ready, attachments))));
    let way_out = |attachments| Put::Volume(Arc::new(as_it_goes(1, Phase::Ready, attachments))).way_out();
    let mut memory = Memory::default();
    assert_eq!(memory.longer_by(&put(1)), way_out(1));
    memory.apply(&put(1));
    assert!(way_out(2) > way_out(1));
    assert_eq!(memory.longer_by(&put(2)), way_out(2) - way_out(1));
    assert_eq!(memory.longer_by(&put(0)), 0);
    assert_eq!(memory.longer_by(&Change::Delete(record::Delete::Volume(id(1)))), 0);
    let rename = |to: usize, attachments| {
        let to = Arc::new(as_it_goes(to, Phase::Ready, attachments));
        Change::Rename(record::Rename { from: id(1), to })
    };
    assert_eq!(memory.longer_by(&rename(2, 2)), way_out(2) - way_out(1));
    assert!(!memory.leads_out(&rename(2, 0)), "no room is set aside for it");
}

/// What is set aside is for all records together, and for none that is gone.
#[test]
fn the_way_out_is_the_sum_of_all_records() {
    let put = |number, attachments| Put::Volume(Arc::new(as_it_goes(number, Phase::Ready, attachments)));
    let mut memory = Memory::default();
    assert_eq!(memory.way_out(), 0);
    memory.apply(&Change::Put(put(1, 1)));
    memory.apply(&Change::Put(put(2, 2)));
    assert_eq!(memory.way_out(), put(1, 1).way_out() + put(2, 2).way_out());
    memory.apply(&Change::Put(put(1, 3)));
    assert_eq!(memory.way_out(), put(1, 3).way_out() + put(2, 2).way_out());
    let to = Arc::new(as_it_goes(3, Phase::Ready, 0));
    memory.apply(&Change::Rename(record::Rename { from: id(2), to }));
    assert_eq!(memory.way_out(), put(1, 3).way_out() + put(3, 0).way_out());
    memory.apply(&Change::Delete(record::Delete::Volume(id(1))));
    assert_eq!(memory.way_out(), put(3, 0).way_out());
}

/// A broken disk is not reported as a full one: to free space would not help.
#[test]
fn room_that_cannot_be_had_says_what_failed() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(0, 1000)).unwrap();
    disk.set_room(Some(0));
    while store.put(volume(0, 1000)).is_ok() {}
    // A change that finds too little room asks for more first.
    let at = disk.fail(0, Fault::Once(Errno::EIO), Kill::Before);
    let error = store.put(volume(1, 1000)).unwrap_err();
    assert_eq!(disk.steps_since(at), ["reserve"]);
    assert_eq!(crate::error::Error::from(error).errno(), Some(Errno::EIO));
    assert!(store.get(&id(1)).is_none());
}

#[test]
fn every_volume_can_be_removed_from_a_full_disk() {
    for (count, slack) in [(1, 1000), (300, 1000), (300, 10)] {
        let disk = Disk::new();
        let store = open_with(&disk, slack).unwrap();
        for number in 0..count {
            store.put(as_it_goes(number, Phase::Ready, 1)).unwrap();
        }
        disk.set_room(Some(0));
        // The next start has no room for a new file either.
        drop(store);
        let store = open_with(&disk, slack).unwrap();
        assert_eq!(store.len(), count);
        // Other changes use up what is there for them, and no more.
        let mut changes = 0;
        while store.put(as_it_goes(0, Phase::Ready, 1)).is_ok() {
            changes += 1;
        }
        assert!(changes > 100, "{changes}");
        is_refused(store.put(volume(count, 1000)));
        is_refused(store.put(as_it_goes(0, Phase::Ready, 1)));
        for number in 0..count {
            remove(&store, number);
        }
        drop(store);
        assert!(open_with(&disk, slack).unwrap().is_empty());
    }
}

/// A refused change is not made, and the others of its batch are.
#[test]
fn a_refused_change_leaves_no_trace() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(0, 1000)).unwrap();
    disk.set_room(Some(0));
    while store.put(volume(0, 1000)).is_ok() {}
    let before = disk.read();
    is_refused(store.put(volume(1, 1000)));
    assert_eq!(disk.read(), before);
    disk.set_sync_time(std::time::Duration::from_millis(20));
    std::thread::scope(|scope| {
        let put = scope.spawn(|| is_refused(store.put(volume(1, 1000))));
        store.put(as_it_goes(0, Phase::Deleting, 0)).expect("deleting");
        put.join().expect("refused");
    });
    drop(store);
    let store = open(&disk).unwrap();
    assert_eq!(store.get(&id(0)).map(|volume| volume.phase), Some(Phase::Deleting));
    assert!(store.get(&id(1)).is_none());
}

#[test]
fn the_room_comes_back_with_the_disks() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(0, 1000)).unwrap();
    let whole = disk.reserved();
    disk.set_room(Some(0));
    while store.put(volume(0, 1000)).is_ok() {}
    assert!(disk.reserved() < whole / 2);
    disk.set_room(None);
    store.put(volume(1, 1000)).expect("there is room again");
    assert!(disk.reserved() >= whole, "{} of {whole}", disk.reserved());
}

/// A compaction takes room for a second file. Where there is none, the file that has room stays.
#[test]
fn a_compaction_does_not_lose_the_room() {
    let disk = Disk::new();
    let store = open_with(&disk, 10).unwrap();
    for number in 0..50 {
        store.put(volume(number, 1000)).unwrap();
    }
    let whole = disk.reserved();
    // Enough for the lines of the new file, but not for what is to be behind them.
    disk.set_room(Some(disk.read().len() as u64 + BLOCK));
    for _ in 0..300 {
        store.put(volume(0, 1000)).unwrap();
    }
    assert!(disk.reserved() > whole / 2, "{} of {whole}", disk.reserved());
    for number in 0..50 {
        remove(&store, number);
    }
    assert!(store.is_empty());
}

/// A file from a backup has no room behind it: the next start sets some aside, if there is any.
#[test]
fn a_restored_file_gets_room_when_there_is_some() {
    let disk = Disk::holding(&sample(3));
    disk.set_room(Some(0));
    drop(open(&disk).unwrap());
    assert!(disk.reserved() < BLOCK);
    disk.set_room(None);
    drop(open(&disk).unwrap());
    assert!(disk.reserved() > 1 << 20);
}
