//! What a crash leaves is dropped; what no crash explains stops the start.

use super::*;
use crate::store::load;
use proptest::prelude::*;

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
fn damage_before_the_last_line_stops_the_start() {
    let bytes = sample(4);
    let starts = starts(&bytes);
    for line in 0..4 {
        for at in starts[line]..starts[line + 1] {
            for value in [0, b'\n', bytes[at] ^ 1] {
                let mut bytes = bytes.clone();
                if bytes[at] != value {
                    bytes[at] = value;
                    assert_eq!(stopped_at(&bytes), line as u64 + 1, "byte {at} is {value}");
                }
            }
        }
    }
}

#[test]
fn damage_leaves_the_file_as_it_is() {
    let mut bytes = sample(4);
    let at = starts(&bytes)[2] + 5;
    bytes[at] ^= 1;
    let disk = Disk::holding(&bytes);
    assert!(open(&disk).is_err());
    assert_eq!((disk.read(), disk.steps()), (bytes, 0));
}

#[test]
fn lines_in_the_wrong_place_stop_the_start() {
    let bytes = sample(4);
    let starts = starts(&bytes);
    let line = |number: usize| &bytes[starts[number]..starts[number + 1]];
    assert_eq!(stopped_at(&[line(0), line(1), line(3)].concat()), 3);
    assert_eq!(stopped_at(&[line(0), line(1), line(1)].concat()), 3);
    assert_eq!(stopped_at(&[line(0), line(1), line(0)].concat()), 3);
    assert_eq!(stopped_at(&[line(1), line(2)].concat()), 1);
    assert_eq!(stopped_at(b""), 1);
    assert_eq!(stopped_at(&line(0)[..line(0).len() - 1]), 1);
    assert_eq!(stopped_at(b"{\"hostloop\":0}\n"), 1);
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
    let is_settled = |bytes: &[u8]| load::load(bytes, &identity(), &file()).unwrap().is_settled();
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
    for line in 1..5 {
        assert_eq!(stopped_at(&bytes[..starts[line]]), line as u64 + 1);
        assert_eq!(stopped_at(&bytes[..starts[line + 1] - 1]), line as u64 + 1);
        let mut bytes = bytes.clone();
        bytes[starts[line] + 3] ^= 1;
        assert_eq!(stopped_at(&bytes), line as u64 + 1);
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
        assert_eq!(stopped_at(&bytes) as usize, 4 + bad);
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
