//! What a crash leaves is dropped; what no crash explains stops the start.

use super::*;
use crate::store::load;
use proptest::prelude::*;

/// Returns the first damaged line of a file, and the records that a start reads.
fn damaged_at(bytes: &[u8]) -> (u64, Model) {
    let disk = Disk::holding(bytes);
    let store = open(&disk).unwrap();
    let damage = store.damage().expect("damage").clone();
    // A later start reads what this one wrote.
    store.put(volume(77, 77)).unwrap();
    let mut found = model(&store);
    drop(store);
    let again = open(&disk).unwrap();
    assert_eq!(model(&again), found);
    found.remove(&id(77)).expect("the volume that was put");
    (damage.line, found)
}

/// All but the record of one line.
fn without(count: usize, line: usize) -> Model {
    sample_model(count).into_iter().filter(|(volume, _)| line == 0 || *volume != id(line - 1)).collect()
}

/// The line number that the start stops at.
fn stopped_at(bytes: &[u8]) -> u64 {
    match open(&Disk::holding(bytes)).err() {
        Some(StoreError::Damaged { line, advice, .. }) => {
            assert!(advice.contains("backup"));
            line
        }
        other => panic!("{other:?}"),
    }
}

fn loaded(bytes: &[u8]) -> Model {
    let disk = Disk::holding(bytes);
    let found = model(&open(&disk).unwrap());
    // What was dropped stays dropped.
    disk.power_cut();
    assert_eq!(model(&open(&disk).unwrap()), found);
    found
}

/// Where each line starts, and the end.
fn starts(bytes: &[u8]) -> Vec<usize> {
    let ends = bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    std::iter::once(0).chain(ends).collect()
}

#[test]
fn a_last_line_torn_anywhere_is_dropped() {
    let bytes = sample(4);
    let last = starts(&bytes)[4];
    for end in last..bytes.len() {
        assert_eq!(loaded(&bytes[..end]), sample_model(3), "cut at {end} of {}", bytes.len());
    }
    assert_eq!(loaded(&bytes), sample_model(4));
}

#[test]
fn a_damaged_last_line_is_dropped() {
    let bytes = sample(4);
    for at in starts(&bytes)[4]..bytes.len() {
        for value in [0, b'\n', bytes[at] ^ 1] {
            let mut bytes = bytes.clone();
            if bytes[at] != value {
                bytes[at] = value;
                assert_eq!(loaded(&bytes), sample_model(3), "byte {at} is {value}");
            }
        }
    }
}

#[test]
fn zeros_at_the_end_are_dropped() {
    let bytes = sample(3);
    for zeros in [1, 511, 4096, 70_000] {
        let mut bytes = bytes.clone();
        bytes.resize(bytes.len() + zeros, 0);
        assert_eq!(loaded(&bytes), sample_model(3));
    }
    let mut half = bytes.clone();
    half[starts(&bytes)[3] + 20..].fill(0);
    assert_eq!(loaded(&half), sample_model(2));
}

#[test]
fn damage_costs_the_records_that_it_hits_alone() {
    let bytes = sample(4);
    let starts = starts(&bytes);
    for line in 0..4 {
        for at in starts[line]..starts[line + 1] {
            for value in [0, b'\n', bytes[at] ^ 1] {
                let mut bytes = bytes.clone();
                if bytes[at] == value {
                    continue;
                }
                bytes[at] = value;
                let (found, records) = damaged_at(&bytes);
                assert_eq!(found, line as u64 + 1, "byte {at} is {value}");
                assert_eq!(records, without(4, line), "byte {at} is {value}");
            }
        }
    }
}

#[test]
fn damage_tells_what_a_line_may_have_said() {
    let mut bytes = sample(4);
    let lost = |bytes: &[u8]| {
        let damage = open(&Disk::holding(bytes)).unwrap().damage().cloned().expect("damage");
        (damage.lost, damage.words)
    };
    let starts = starts(&bytes);
    let without_second = [&bytes[..starts[2]], &bytes[starts[3]..]].concat();
    assert_eq!(lost(&without_second), (1, Default::default()), "nothing is left of it");
    bytes[starts[2] + 5] ^= 1;
    let (count, words) = lost(&bytes);
    assert!(count == 1 && words.contains(id(1).as_str()), "{count}, {words:?}");
}

#[test]
fn lines_behind_a_bad_header_are_never_cut_off() {
    let disk = Disk::holding(&sample(4));
    drop(open(&disk).unwrap());
    // Only the header says that the lines of a fresh file are on disk.
    let mut bytes = disk.read();
    let starts = starts(&bytes);
    bytes[5] ^= 1;
    bytes[starts[2] + 5] ^= 1;
    let others: Model =
        sample_model(4).into_iter().enumerate().filter(|(at, _)| *at != 1).map(|(_, it)| it).collect();
    assert_eq!(damaged_at(&bytes), (1, others));
    // Nor is a line without its end.
    let (found, _) = damaged_at(&bytes[..bytes.len() - 1]);
    assert_eq!(found, 1);
    let disk = Disk::holding(&bytes[..bytes.len() - 1]);
    open(&disk).unwrap().put(volume(9, 9)).unwrap();
    assert!(disk.read().starts_with(&bytes[..bytes.len() - 1]));
}

#[test]
fn a_damaged_file_is_not_replaced_after_a_failed_sync() {
    let mut bytes = sample(4);
    let at = starts(&bytes)[2] + 5;
    bytes[at] ^= 1;
    let disk = Disk::holding(&bytes);
    let store = open(&disk).unwrap();
    // The append succeeds, and its sync does not.
    disk.fail(1, Fault::Once(nix::errno::Errno::EIO), hostloop_fake_kernel::Kill::Before);
    assert!(store.put(volume(7, 7)).is_err());
    let error = store.put(volume(8, 8)).unwrap_err();
    assert!(error.to_string().contains("hostloop state repair"), "{error}");
    assert!(disk.read().starts_with(&bytes));
    assert!(store.get(&id(3)).is_some(), "what is whole is read");
}

#[test]
fn a_damaged_file_is_kept_and_appended_to() {
    let mut bytes = sample(4);
    let at = starts(&bytes)[2] + 5;
    bytes[at] ^= 1;
    let disk = Disk::holding(&bytes);
    let store = open_with(&disk, 0).unwrap();
    for size in 0..20 {
        store.put(volume(1, size)).unwrap();
    }
    assert!(disk.read().starts_with(&bytes), "it is not written anew");
}

#[test]
fn lines_in_the_wrong_place_stop_the_start() {
    let bytes = sample(4);
    let starts = starts(&bytes);
    let line = |number: usize| &bytes[starts[number]..starts[number + 1]];
    assert_eq!(damaged_at(&[line(0), line(1), line(3)].concat()), (3, [(id(0), 1000), (id(2), 1002)].into()));
    assert_eq!(damaged_at(&[line(1), line(2)].concat()), (1, sample_model(2)), "without a header");
    assert_eq!(stopped_at(&[line(0), line(1), line(1)].concat()), 3);
    assert_eq!(stopped_at(&[line(0), line(1), line(0)].concat()), 3);
    assert_eq!(stopped_at(b""), 1);
    assert_eq!(stopped_at(&line(0)[..line(0).len() - 1]), 1);
    assert_eq!(stopped_at(b"{\"hostloop\":0}\n"), 1);
    // Without a header, nothing but the ids says whose the lines are.
    let theirs = Identity { node_id: "node-b".to_owned(), ..identity() };
    let headless = [line(1), line(2)].concat();
    assert!(matches!(
        load::load(&headless, &theirs, &file(), || None),
        Err(StoreError::Damaged { line: 1, .. })
    ));
}

#[test]
fn a_header_with_senseless_numbers_stops_the_start() {
    let header = |format, first, synced| {
        let mut header = record::Header::new(&identity(), first, 0);
        (header.hostloop, header.synced) = (format, synced);
        header.line().unwrap().into_bytes()
    };
    assert_eq!(loaded(&header(record::FORMAT, 5, 4)), Model::new());
    for (format, first, synced) in [(0, 5, 4), (record::FORMAT, 5, 3), (record::FORMAT, 5, u64::MAX)] {
        assert_eq!(stopped_at(&header(format, first, synced)), 1, "{format}, {first}, {synced}");
    }
}

#[test]
fn a_file_is_settled_until_something_is_written_to_it() {
    let is_settled = |bytes: &[u8]| load::load(bytes, &identity(), &file(), || None).unwrap().is_settled();
    let disk = Disk::holding(&sample(4));
    drop(open(&disk).unwrap());
    assert!(is_settled(&disk.read()), "the start has written it anew");
    assert!(!is_settled(&[disk.read(), b"{".to_vec()].concat()), "a torn line");
    open(&disk).unwrap().put(volume(7, 1000)).unwrap();
    assert!(!is_settled(&disk.read()), "a further record");
}

#[test]
fn a_header_vouches_for_each_line_of_a_fresh_file() {
    let disk = Disk::holding(&sample(4));
    drop(open(&disk).unwrap());
    let bytes = disk.read();
    let starts = starts(&bytes);
    assert_eq!(starts.len(), 6);
    let in_order = || sample_model(4).into_iter();
    for line in 1..5 {
        let before: Model = in_order().take(line - 1).collect();
        assert_eq!(damaged_at(&bytes[..starts[line]]), (line as u64 + 1, before.clone()));
        // Without its newline it is read, and gets one.
        let with_it: Model = in_order().take(line).collect();
        let bare = &bytes[..starts[line + 1] - 1];
        assert_eq!(damaged_at(bare), (line as u64 + 1, with_it));
        let mut bytes = bytes.clone();
        bytes[starts[line] + 3] ^= 1;
        let others = in_order().enumerate().filter(|(at, _)| at + 1 != line).map(|(_, record)| record);
        assert_eq!(damaged_at(&bytes), (line as u64 + 1, others.collect()));
    }
}

#[test]
fn a_batch_whose_blocks_came_out_of_order_is_dropped() {
    // Volumes 2, 3 and 4 are one batch, appended when records 1 and 2 were on disk.
    let batch: Vec<Vec<u8>> = (2..5).map(|number| put_line(number as u64 + 1, 2, number)).collect();
    let sound = sample(2);
    assert_eq!(loaded(&[sound.clone(), batch.concat()].concat()), sample_model(5));
    for bad in 0..3 {
        let mut batch = batch.clone();
        batch[bad].fill(0);
        let bytes = [sound.clone(), batch.concat()].concat();
        assert_eq!(loaded(&bytes), sample_model(2 + bad), "line {bad} of the batch");
        // The next batch proves that the former one was on disk.
        let bytes = [bytes, put_line(6, 5, 5)].concat();
        let (line, records) = damaged_at(&bytes);
        assert_eq!((line as usize, records), (4 + bad, without(6, 3 + bad)));
    }
}

proptest! {
    #[test]
    fn no_bytes_panic(at in 0usize..2000, noise in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut bytes = sample(3);
        let at = at.min(bytes.len());
        bytes.splice(at.., noise);
        if let Ok(store) = open(&Disk::holding(&bytes)) {
            prop_assert!(model(&store).iter().all(|(id, size)| sample_model(3).get(id) == Some(size)));
        }
    }
}
