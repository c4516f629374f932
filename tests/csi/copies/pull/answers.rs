//! A node whose streams are at odds with themselves: what is taken of them, what is asked for again, and what is refused.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostloop::error::{Error, Result};
use hostloop::model::copy_of::UpdateCopy;
use hostloop::model::pull::{Blocks, Changes, Piece, Placed, Way, Zeros};
use hostloop::model::request::{CreateVolume, Source};
use hostloop::model::tree::{Basis, Entry, Item, Kind, Position};
use hostloop::model::{Consistency, NodeKey, Permit, VolumeId};
use nix::errno::Errno;

use super::nodes::SOURCE;
use super::scripted::{Block, Part, SIZE, Script, Target};
use crate::harness::DATA_DIR;

fn data(after: u64, offset: u64, len: usize) -> Block {
    Placed { after, message: Blocks::Data(Piece::new(offset, vec![7; len])) }
}

fn end(after: u64, sent_bytes: u64) -> Block {
    Placed { after, message: Blocks::End { sent_bytes } }
}

/// It arrived twice, and is no volume.
fn assert_damaged(script: Script, what: &str) {
    let (error, streams) = Target::new(vec![script]).refused();
    assert_eq!((error.errno(), streams), (Some(Errno::EBADMSG), 2), "{error}");
    let said = error.to_string();
    assert!(said.contains(what) && said.contains("twice; check the memory and the disks"), "{said}");
}

#[test]
fn an_image_that_is_not_what_was_sent_is_no_volume() {
    for (messages, what) in [
        (vec![end(0, 1)], "0 B arrived of 1 B that were sent"),
        (vec![data(4096, 4096, 100)], "bytes 0 to 4096 were left out on the way"),
        (vec![data(0, 0, 0)], "bytes 0 to 0 arrived out of their place"),
        (vec![data(0, SIZE - 1, 2)], "arrived out of their place"),
        (vec![data(0, u64::MAX, 2)], "arrived out of their place"),
    ] {
        assert_damaged(Script::Blocks(messages), what);
    }
    // The second one begins within the first one. What came before it is there, so that it is asked for no more.
    let overlap = Script::Blocks(vec![data(0, 0, 100), data(100, 99, 2)]);
    let (error, _) = Target::new(vec![overlap, Script::Blocks(vec![data(100, 99, 2)])]).refused();
    assert!(error.to_string().contains("bytes 99 to 101 arrived out of their place, twice"), "{error}");
}

#[test]
fn a_piece_may_end_where_the_image_does() {
    let messages = vec![data(0, 0, 100), data(100, SIZE - 1, 1), end(SIZE, 101)];
    let (bytes, streams) = Target::new(vec![Script::Blocks(messages)]).made().expect("a volume");
    assert_eq!((bytes.len() as u64, streams), (SIZE, 1));
    assert_eq!(bytes.iter().filter(|byte| **byte == 7).count(), 101);
}

/// More arrived than was sent, or less.
#[test]
fn an_end_that_tells_of_other_bytes_is_no_end() {
    for sent in [0, 99, 101] {
        let scripts = [vec![data(0, 0, 100), end(100, sent)], vec![data(100, 100, 50), end(150, 50)]];
        let (bytes, streams) = Target::new(scripts.map(Script::Blocks).to_vec()).made().expect("a volume");
        assert_eq!((bytes.iter().filter(|byte| **byte == 7).count(), streams), (150, 2), "{sent}");
    }
}

/// As long as something arrives in between, each part may be damaged once.
#[test]
fn damage_in_one_place_says_nothing_of_another() {
    let scripts = [
        vec![data(0, 0, 100), data(0, 0, 0)],
        vec![data(100, 100, 100), data(0, 0, 0)],
        vec![data(200, 200, 100), end(300, 100)],
    ];
    let target = Target::new(scripts.map(Script::Blocks).to_vec());
    assert_eq!(target.made().expect("a volume").1, 3);
}

/// Each wait is twice as long as the one before, and none is begun that does not end in time.
#[test]
fn a_stream_without_an_end_is_retried_for_a_time() {
    for script in [Script::Blocks(vec![data(0, 0, 100)]), Script::Tree(vec![part((0, 0), top())])] {
        let began = std::time::Instant::now();
        let target = Target::new(vec![script.clone(), nothing_of(&script)]);
        let (error, streams) = target.refused();
        let said = error.to_string();
        assert!(matches!(error, Error::Unavailable(_)), "{said}");
        assert!(said.contains("the stream ended early; a retry starts again"), "{said}");
        // 100 and 200 ms fit; 400 ms more do not.
        assert!((2..=3).contains(&streams), "{streams}");
        assert!(began.elapsed() >= Duration::from_millis(100), "it waits");
    }
}

fn nothing_of(script: &Script) -> Script {
    match script {
        Script::Blocks(_) => Script::Blocks(Vec::new()),
        Script::Tree(_) => Script::Tree(Vec::new()),
        Script::Changes(_) => Script::Changes(Vec::new()),
    }
}

#[test]
fn a_source_is_closed_once_and_let_go_of() {
    let whole = Script::Blocks(vec![end(0, 0)]);
    let broken = Script::Blocks(vec![data(0, 0, 0)]);
    for (script, is_made) in [(whole, true), (broken, false)] {
        let target = Target::new(vec![script]);
        assert_eq!(target.made().is_ok(), is_made);
        assert_eq!(target.source.closed.load(Ordering::Relaxed), 1);
        // This test has it, and the node that opened it.
        assert_eq!(Arc::strong_count(&target.source), 2);
    }
}

fn part(after: (u64, u64), message: Item) -> Part {
    Placed { after: Position { entry: after.0, offset: after.1 }, message }
}

fn entry(number: u64, name: &str, kind: Kind) -> Item {
    let (name, attributes) = (name.as_bytes().to_vec(), hostloop::model::tree::Attributes::default());
    Item::Entry(Entry { number, parent: 0, name, kind, linked: false, attributes, basis: Basis::Nothing })
}

fn top() -> Item {
    entry(0, "", Kind::Directory)
}

fn file(number: u64) -> Item {
    entry(number, "file", Kind::File { size: 100 })
}

fn of_file(offset: u64, len: usize) -> Item {
    Item::Data(Piece::new(offset, vec![7; len]))
}

fn end_of_tree(entries: u64, sent_bytes: u64) -> Item {
    Item::End { entries, sent_bytes }
}

#[test]
fn a_tree_that_is_not_what_was_sent_is_no_volume() {
    for (messages, what) in [
        (vec![part((0, 0), file(0))], "entry 0 arrived instead of 0"),
        (vec![part((0, 0), entry(1, "d", Kind::Directory))], "entry 1 arrived instead of 0"),
        (vec![part((1, 0), top())], "what lies between byte 0 before entry 0 and byte 0 before entry 1"),
        (vec![part((0, 0), of_file(0, 1))], "bytes 0 to 1 of entry 0 arrived out of their place"),
        (vec![part((0, 0), end_of_tree(1, 0))], "0 entries arrived of 1 that were sent, or less data"),
        (vec![part((0, 0), end_of_tree(0, 1))], "0 entries arrived of 0 that were sent, or less data"),
    ] {
        assert_damaged(Script::Tree(messages), what);
    }
    let begun = || vec![part((0, 0), top()), part((1, 0), file(1))];
    for (rest, what) in [
        (part((2, 0), of_file(99, 2)), "bytes 99 to 101 of entry 1 arrived out of their place, twice"),
        (part((2, 0), file(1)), "entry 1 arrived instead of 2, twice"),
        (part((2, 0), end_of_tree(3, 0)), "2 entries arrived of 3 that were sent, or less data, twice"),
    ] {
        let first = begun().into_iter().chain([rest.clone()]).collect();
        let target = Target::new(vec![Script::Tree(first), Script::Tree(vec![rest])]);
        let (error, streams) = target.refused();
        assert!(error.to_string().contains(what) && streams == 2, "{error}");
    }
    // A directory has no data.
    let directory = vec![part((0, 0), top()), part((1, 0), of_file(0, 1))];
    let target = Target::new(vec![Script::Tree(directory), Script::Tree(vec![part((1, 0), of_file(0, 1))])]);
    assert!(target.refused().0.to_string().contains("bytes 0 to 1 of entry 0 arrived out of their place"));
}

#[test]
fn a_tree_is_read_on_from_where_it_is() {
    let scripts = [
        vec![part((0, 0), top()), part((1, 0), file(1)), part((2, 0), of_file(0, 10))],
        vec![part((2, 10), of_file(10, 90)), part((2, 100), end_of_tree(2, 90))],
    ];
    let target = Target::new(scripts.map(Script::Tree).to_vec());
    let (bytes, streams) = target.made().expect("a volume");
    assert_eq!((bytes, streams), (vec![7; 100], 2));
}

/// Whoever calls again hears how far it is.
#[test]
fn a_pull_tells_how_far_it_is() {
    let image = vec![data(0, 0, 1024), data(1024, 4096, 2048), end(6144, 3072)];
    let tree = [top(), file(1), of_file(0, 30), of_file(30, 60), end_of_tree(2, 90)];
    let places = [(0, 0), (1, 0), (2, 0), (2, 30), (2, 90)];
    let tree = places.into_iter().zip(tree).map(|(after, item)| part(after, item)).collect();
    for (script, expected) in [
        (Script::Blocks(image), &["1 KiB", "3 KiB", "3 KiB"][..]),
        (Script::Tree(tree), &["0 B", "0 B", "30 B", "90 B", "90 B"]),
    ] {
        let target = Target::new(vec![script]);
        let said = Arc::new(Mutex::new(Vec::new()));
        let (driver, request, heard) = (Arc::clone(&target.driver), target.request(), Arc::clone(&said));
        let retry = move || {
            let error = driver.create_volume(request.clone()).expect_err("it is being made");
            assert!(matches!(error, Error::Busy(_)), "{error}");
            heard.lock().unwrap().push(error.to_string());
        };
        assert!(target.source.behind.set(Box::new(retry)).is_ok());
        target.made().expect("a volume");
        let said = said.lock().unwrap();
        assert_eq!(said.len(), expected.len());
        for (said, done) in said.iter().zip(expected) {
            assert!(said.contains(&format!("{done} of 1 MiB copied")), "{said}: {done}");
        }
    }
}

/// Makes a copy that is all sevens, and has it updated with these messages: what it holds then, and how many streams there
/// were.
fn updated(scripts: Vec<Vec<Placed<u64, Changes>>>) -> (Result<Vec<u8>>, usize) {
    let all = vec![data(0, 0, SIZE as usize), end(SIZE, SIZE)];
    let scripts = scripts.into_iter().map(Script::Changes);
    let target = Target::new([Script::Blocks(all)].into_iter().chain(scripts).collect());
    let source = VolumeId::of_name(&NodeKey::of(SOURCE), "v");
    let request =
        CreateVolume { source: Some(Source::Volume(source.to_string())), as_copy: true, ..target.request() };
    let id = target.driver.create_volume(request).expect("a copy").id.clone();
    let way = Way { node_key: NodeKey::of(SOURCE), address: SOURCE.to_owned(), permit: Permit::default() };
    let order = UpdateCopy {
        volume_id: id.to_string(),
        consistency: Consistency::default(),
        way,
        whole: false,
        most_bytes: None,
        last_pass: false,
    };
    let updated = target
        .driver
        .update_copy(&order)
        .map(|_| target.kernel.read_file(format!("{DATA_DIR}/volumes/{id}/disk.img")).expect("its data"));
    (updated, target.source.streams.load(Ordering::Relaxed) - 1)
}

fn changes(after: u64, message: Changes) -> Placed<u64, Changes> {
    Placed { after, message }
}

fn changed(after: u64, offset: u64, len: usize) -> Placed<u64, Changes> {
    changes(after, Changes::Data(Piece::new(offset, vec![9; len])))
}

fn zeros(after: u64, offset: u64, len: u64) -> Placed<u64, Changes> {
    changes(after, Changes::Zeros(Zeros::new(offset, len)))
}

fn no_more(after: u64, sent_bytes: u64) -> Placed<u64, Changes> {
    changes(after, Changes::End { sent_bytes })
}

#[test]
fn changes_are_applied_at_their_offsets() {
    let unchanged = |after, end| changes(after, Changes::Unchanged { end });
    let messages = vec![
        changed(0, 4096, 100),
        zeros(4196, 8192, 4096),
        unchanged(12288, 16384),
        changed(16384, SIZE - 1, 1),
        no_more(SIZE, 101),
    ];
    let (bytes, streams) = updated(vec![messages]);
    let bytes = bytes.expect("it is updated");
    let count = |byte| bytes.iter().filter(|there| **there == byte).count();
    assert_eq!((count(9), count(0), count(7), streams), (101, 4096, SIZE as usize - 4197, 1));
    assert!(
        bytes[4096..4196].iter().all(|byte| *byte == 9) && bytes[8192..12288].iter().all(|byte| *byte == 0)
    );
}

#[test]
fn damaged_changes_are_asked_for_again() {
    let good = || vec![changed(0, 0, 100), no_more(100, 100)];
    let wrong = |piece| changes(0, Changes::Data(Piece { crc32: 7, ..piece }));
    for bad in [
        no_more(0, 1),
        changed(4096, 4096, 100),
        changed(0, 0, 0),
        changed(0, SIZE - 1, 2),
        changed(0, u64::MAX, 2),
        wrong(Piece::new(0, vec![1; 10])),
        zeros(0, SIZE, 1),
        zeros(0, 0, 0),
        zeros(0, u64::MAX, u64::MAX),
        changes(0, Changes::Zeros(Zeros { crc32: 7, ..Zeros::new(0, 10) })),
        changes(0, Changes::Unchanged { end: 0 }),
        changes(0, Changes::Unchanged { end: SIZE + 1 }),
    ] {
        let (bytes, streams) = updated(vec![vec![bad.clone()], good()]);
        let bytes = bytes.expect("it came the second time");
        assert_eq!((bytes.iter().filter(|byte| **byte == 9).count(), streams), (100, 2), "{bad:?}");
        let (error, _) = updated(vec![vec![bad.clone()]]);
        assert_eq!(error.expect_err("twice").errno(), Some(Errno::EBADMSG), "{bad:?}");
    }
    // Something after the end.
    let (bytes, _) = updated(vec![vec![no_more(0, 0), changed(0, 0, 100)], vec![no_more(0, 0)]]);
    assert!(bytes.expect("it came the second time").iter().all(|byte| *byte == 7));
}
