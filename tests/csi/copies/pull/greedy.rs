//! Sources whose node takes more memory, disk, time or turns of the copy's node than the copy needs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostloop::driver::Driver;
use hostloop::error::{Error, Result};
use hostloop::model::copy_of::{CompleteCopy, DeleteCopy, UpdateCopy};
use hostloop::model::pull::{Blocks, Changes, Piece, Placed, Way};
use hostloop::model::request::{CreateVolume, Source};
use hostloop::model::tree::{Attributes, Basis, Entry, Item, Kind, Position};
use hostloop::model::{Consistency, Limits, NodeKey, Permit, SizeRange, VolumeId, VolumeSource};
use hostloop::wire::peer;
use nix::errno::Errno;
use tonic::Code;

use super::copied::Copied;
use super::nodes::SOURCE;
use super::scripted::{SIZE, Script, Target};
use crate::harness::{DATA_DIR, DIRECTORIES_DIR};
use crate::wait::eventually;

const LARGE: u64 = 4 << 20;

fn changed(after: u64, offset: u64, len: usize) -> Placed<u64, Changes> {
    Placed { after, message: Changes::Data(Piece::new(offset, vec![9; len])) }
}

fn no_more(after: u64, sent_bytes: u64) -> Placed<u64, Changes> {
    Placed { after, message: Changes::End { sent_bytes } }
}

/// A copy that is all sevens, and a source that sends scripted changes.
struct Copy {
    target: Target,
    id: VolumeId,
}

impl Copy {
    fn new(size: u64, scripts: Vec<Vec<Placed<u64, Changes>>>) -> Copy {
        Self::with(size, scripts, Duration::MAX, Limits::default())
    }

    fn with(
        size: u64,
        scripts: Vec<Vec<Placed<u64, Changes>>>,
        longest_pass: Duration,
        limits: Limits,
    ) -> Copy {
        let piece = |at: u64| Piece::new(at, vec![7; 1 << 20]);
        let mut all: Vec<_> = (0..size)
            .step_by(1 << 20)
            .map(|at| Placed { after: at, message: Blocks::Data(piece(at)) })
            .collect();
        all.push(Placed { after: size, message: Blocks::End { sent_bytes: size } });
        let scripts = [Script::Blocks(all)].into_iter().chain(scripts.into_iter().map(Script::Changes));
        let target = Target::with(scripts.collect(), size, longest_pass, limits);
        let id = target.driver.create_volume(of_volume(&target, "v")).expect("a copy").id.clone();
        Copy { target, id }
    }

    fn order(&self) -> UpdateCopy {
        UpdateCopy {
            volume_id: self.id.to_string(),
            consistency: Consistency::default(),
            way: Way { node_key: NodeKey::of(SOURCE), address: SOURCE.to_owned(), permit: Permit::default() },
            whole: true,
            most_bytes: None,
            last_pass: false,
        }
    }

    fn update(&self) -> Result<()> {
        self.target.driver.update_copy(&self.order()).map(drop)
    }

    fn bytes(&self) -> Vec<u8> {
        self.target.kernel.read_file(format!("{DATA_DIR}/volumes/{}/disk.img", self.id)).expect("its data")
    }

    /// Returns the files of the copy.
    fn files(&self) -> Vec<String> {
        self.target.kernel.tree(format!("{DATA_DIR}/volumes/{}", self.id))
    }
}

/// Returns the request for a copy of the other node's volume with this name.
pub(super) fn of_volume(target: &Target, name: &str) -> CreateVolume {
    let source = VolumeId::of_name(&NodeKey::of(SOURCE), name).to_string();
    CreateVolume {
        name: format!("copy-of-{name}"),
        source: Some(Source::Volume(source)),
        as_copy: true,
        ..target.request()
    }
}

#[test]
fn a_piece_that_is_too_large_leaves_the_copy_usable() {
    let too_large = changed(0, 0, Piece::MOST + 1);
    let good = vec![changed(0, 4096, Piece::MOST), no_more(4096 + (1 << 20), 1 << 20)];
    let copy = Copy::new(LARGE, vec![vec![too_large.clone()], vec![too_large], good]);
    let error = copy.update().expect_err("it is refused");
    assert_eq!(error.errno(), Some(Errno::EBADMSG), "{error}");
    assert!(error.to_string().contains("in a piece that is too large, twice"), "{error}");
    assert!(copy.bytes().iter().all(|byte| *byte == 7));
    copy.update().expect("the next one is a good one");
    let bytes = copy.bytes();
    assert_eq!(bytes.iter().filter(|byte| **byte == 9).count(), Piece::MOST);
    assert!(bytes[4096..4096 + Piece::MOST].iter().all(|byte| *byte == 9));
}

/// Each entry of the file of changes has a header of 24 bytes.
#[test]
fn short_runs_take_no_more_than_the_volume() {
    let mut runs: Vec<_> = (0..SIZE / 2).map(|n| changed((2 * n).saturating_sub(1), 2 * n, 1)).collect();
    runs.push(no_more(SIZE - 1, SIZE / 2));
    let copy = Copy::new(SIZE, vec![runs, vec![changed(0, 0, 10), no_more(10, 10)]]);
    let files = copy.files();
    let error = copy.update().expect_err("it is refused");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(error.to_string().contains("take more than 1.0 MiB"), "{error}");
    assert!(error.to_string().contains("runs that are too short"), "{error}");
    assert_eq!(copy.files(), files);
    copy.update().expect("the next one is a good one");
    assert_eq!(copy.bytes().iter().filter(|byte| **byte == 9).count(), 10);
}

#[test]
fn runs_of_a_sector_fit_beside_the_volume() {
    let sectors = SIZE / 512;
    let mut runs: Vec<_> = (0..sectors).map(|n| changed(n * 512, n * 512, 512)).collect();
    runs.push(no_more(SIZE, SIZE));
    let copy = Copy::new(SIZE, vec![runs]);
    copy.update().expect("it is updated");
    assert!(copy.bytes().iter().all(|byte| *byte == 9));
}

#[test]
fn a_source_that_is_too_large_does_not_grow_its_copy() {
    let copy = Copy::new(SIZE, vec![vec![no_more(0, 0)]]);
    let update = |most_bytes| copy.target.driver.update_copy(&UpdateCopy { most_bytes, ..copy.order() });
    let error = update(Some(SIZE - 1)).expect_err("it is refused");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(error.to_string().contains("says that it has 1 MiB"), "{error}");
    assert_eq!(copy.bytes().len() as u64, SIZE);
    update(Some(SIZE)).expect("it may have so many");
}

#[test]
fn a_first_copy_keeps_to_the_limit_of_its_size() {
    let copy = Copy::new(SIZE, Vec::new());
    let size = SizeRange { required: SIZE / 2, limit: SIZE - 1 };
    let request = CreateVolume { size, ..of_volume(&copy.target, "w") };
    let error = copy.target.driver.create_volume(request).expect_err("the source says that it is larger");
    assert!(matches!(error, Error::OutOfRange(_)), "{error}");
    assert_eq!(copy.target.driver.store().len(), 1, "nothing is left");
}

/// A source says what it was requested with, and that request is enough for its copy: it must not say how much larger it is.
#[test]
fn a_copy_is_about_as_large_as_its_request() {
    let end = || vec![Script::Blocks(vec![Placed { after: 0, message: Blocks::End { sent_bytes: 0 } }])];
    let make = |size: u64| {
        let target = Target::of(end(), (size, Some(SIZE)), Duration::MAX, Limits::default());
        let size = SizeRange { required: SIZE, limit: 0 };
        let made = target.driver.create_volume(CreateVolume { size, ..of_volume(&target, "v") });
        made.map(|volume| volume.capacity_bytes)
    };
    assert_eq!(make(16 * SIZE).expect("a node may round up"), 16 * SIZE);
    let error = make(64 * SIZE).expect_err("it is far larger than the request");
    assert!(matches!(error, Error::OutOfRange(_)), "{error}");
}

/// A source that sends a byte now and then cannot extend a pass.
#[test]
fn a_pass_that_takes_too_long_ends() {
    let scripts = vec![(0..1000).map(|n| changed(n, n, 1)).collect()];
    let longest = Duration::from_millis(200);
    let copy = Copy::with(SIZE, scripts, longest, Limits::default());
    let slowly = || std::thread::sleep(Duration::from_millis(20));
    assert!(copy.target.source.behind.set(Box::new(slowly)).is_ok());
    let error = copy.update().expect_err("it takes too long");
    assert!(matches!(error, Error::Unavailable(_)), "{error}");
    assert!(error.to_string().contains("has not sent it within"), "{error}");
    assert!(copy.bytes().iter().all(|byte| *byte == 7));
}

/// CompleteCopy of a copy whose source is lost.
fn stale(id: &str) -> CompleteCopy {
    CompleteCopy { volume_id: id.parse().expect("an id"), stale: true, becomes: None, least_bytes: 0 }
}

/// DeleteCopy of this copy.
fn deletion(driver: &Driver, id: &str) -> DeleteCopy {
    let volume_id = id.parse().expect("an id");
    let copy = driver.store().get(&volume_id).expect("a copy");
    let Some(VolumeSource::Volume(source)) = copy.source.clone() else { panic!("{copy:?}") };
    DeleteCopy { volume_id, source, generation: 0 }
}

/// The first call ends the update and fails with ABORTED; its retry succeeds.
#[test]
fn completion_and_deletion_end_an_update() {
    let calls: [fn(&Driver, &str) -> Result<()>; 3] = [
        |driver, id| driver.complete_copy(&stale(id)),
        |driver, id| driver.delete_volume(id),
        |driver, id| driver.delete_copy(&deletion(driver, id)),
    ];
    for call in calls {
        let copy = Copy::new(SIZE, vec![vec![changed(0, 0, 10), no_more(10, 10)]]);
        let (driver, id) = (Arc::clone(&copy.target.driver), copy.id.to_string());
        let said = Arc::new(Mutex::new(None));
        let heard = Arc::clone(&said);
        let during = move || *heard.lock().unwrap() = Some(call(&driver, &id));
        assert!(copy.target.source.behind.set(Box::new(during)).is_ok());
        copy.update().expect("this source does not listen");
        assert!(matches!(said.lock().unwrap().take(), Some(Err(Error::Busy(_)))));
        assert_eq!(copy.target.source.ended.load(Ordering::Relaxed), 2, "once for each message");
        call(&copy.target.driver, copy.id.as_str()).expect("nothing runs");
        assert_eq!(copy.target.source.ended.load(Ordering::Relaxed), 2, "only what runs is ended");
    }
}

/// An update whose source has stopped sending ends when the copy is completed.
#[test]
fn an_update_that_waits_for_its_source_ends_at_once() {
    let copied = Copied::new();
    copied.change(1);
    copied.pair.network.stall_after(100 << 10);
    let (done, code) = (AtomicBool::new(false), Mutex::new(None));
    let update = || copied.send(peer::UpdateCopyRequest { whole: true, ..copied.order() });
    // More than the stream's window.
    copied.pair.source.kernel.write(&copied.top, 0, &super::pattern(8 << 20, 9)).expect("write");
    std::thread::scope(|scope| {
        scope.spawn(|| {
            *code.lock().unwrap() = Some(update().expect_err("it is ended"));
            done.store(true, Ordering::Relaxed);
        });
        eventually("the stream stalls", || copied.pair.network.passed() >= 100 << 10);
        // The update runs, so that the first call finds the lock taken.
        copied.refused(copied.complete(true), Code::Aborted, "");
        eventually("the update ends", || {
            let _ = copied.complete(true);
            done.load(Ordering::Relaxed)
        });
    });
    let status = code.lock().unwrap().take().expect("an answer");
    assert_eq!(status.code(), Code::Unavailable, "{}", status.message());
    assert!(status.message().contains("the pull was ended"), "{}", status.message());
    copied.complete(true).expect("the copy is as it was");
}

/// Copies from one node take at most half of the turns.
#[test]
fn a_source_leaves_turns_for_others() {
    let limits = Limits { copies: 2, ..Limits::default() };
    let copy = Copy::with(SIZE, vec![vec![changed(0, 0, 10), no_more(10, 10)]], Duration::MAX, limits);
    let (driver, said) = (Arc::clone(&copy.target.driver), Arc::new(Mutex::new(Vec::new())));
    let (second, heard) = (of_volume(&copy.target, "w"), Arc::clone(&said));
    let own = CreateVolume { name: "own".to_owned(), source: None, ..copy.target.request() };
    let own = copy.target.driver.create_volume(own).expect("a volume").id.to_string();
    let during = move || {
        let of_own = CreateVolume {
            name: "clone".to_owned(),
            source: Some(Source::Volume(own.clone())),
            as_copy: false,
            way: None,
            ..second.clone()
        };
        let mut heard = heard.lock().unwrap();
        heard.push(driver.create_volume(second.clone()).map(drop));
        heard.push(driver.create_volume(of_own).map(drop));
    };
    assert!(copy.target.source.behind.set(Box::new(during)).is_ok());
    copy.update().expect("it is updated");
    let said = said.lock().unwrap();
    assert!(matches!(&said[0], Err(Error::Crowded(why)) if why.contains("one other node")), "{:?}", said[0]);
    assert!(said[1].is_ok(), "a clone within this node: {:?}", said[1]);
}

/// Attributes do not use room that other volumes were promised.
#[test]
fn attributes_take_reserved_room() {
    let entry = |number: u64, kind: Kind, bytes: usize| {
        let extended = vec![(b"user.a".to_vec(), vec![0; bytes])];
        let (name, attributes) =
            (format!("e{number}").into_bytes(), Attributes { extended, ..Attributes::default() });
        let name = if number == 0 { Vec::new() } else { name };
        let after = Position { entry: number, offset: 0 };
        let entry = Entry { number, parent: 0, name, kind, linked: false, attributes, basis: Basis::Nothing };
        Placed { after, message: Item::Entry(entry) }
    };
    let mut messages = vec![entry(0, Kind::Directory, 0)];
    messages.extend((1..2000).map(|number| entry(number, Kind::File { size: 0 }, 60_000)));
    let target = Target::new(vec![Script::Tree(messages)]);
    target.kernel.set_space_at(DIRECTORIES_DIR, 64 << 20, 60 << 20);
    let error = target.driver.create_volume(target.request()).expect_err("there is no room");
    assert!(matches!(error, Error::Exhausted(_)), "{error}");
    assert!(error.to_string().contains("has room for a file of what changes"), "{error}");
}

/// A tree with one file of this number of pieces.
fn tree_of(pieces: u64, piece: usize) -> Script {
    let part = |entry, offset, message| Placed { after: Position { entry, offset }, message };
    let entry = |number: u64, kind: Kind| {
        let name = if number == 0 { Vec::new() } else { b"file".to_vec() };
        let (attributes, basis) = (Attributes::default(), Basis::Nothing);
        Item::Entry(Entry { number, parent: 0, name, kind, linked: false, attributes, basis })
    };
    let (bytes, top) = (pieces * piece as u64, part(0, 0, entry(0, Kind::Directory)));
    if pieces == 0 {
        return Script::Tree(vec![top, part(1, 0, Item::End { entries: 1, sent_bytes: 0 })]);
    }
    let file = part(1, 0, entry(1, Kind::File { size: bytes }));
    let data = (0..pieces).map(|n| n * piece as u64);
    let data = data.map(|at| part(2, at, Item::Data(Piece::new(at, vec![9; piece]))));
    let end = part(2, bytes, Item::End { entries: 2, sent_bytes: bytes });
    Script::Tree([top, file].into_iter().chain(data).chain([end]).collect())
}

/// The room for its data is reserved until the end, when they are on the disk as well.
#[test]
fn a_tree_of_more_than_half_of_the_room_is_taken() {
    let target = Target::with(vec![tree_of(40, 1 << 20)], 40 << 20, Duration::MAX, Limits::default());
    target.kernel.set_space_at(DIRECTORIES_DIR, 64 << 20, 60 << 20);
    target.driver.create_volume(of_volume(&target, "v")).expect("a copy");
}

/// No quota applies while a directory has two trees.
#[test]
fn a_tree_larger_than_its_volume_is_refused() {
    let tree = |mib: u64| tree_of(mib, 1 << 20);
    let scripts = vec![tree(0), tree(64), tree(18), tree(16), tree(16), tree(18)];
    let target = Target::with(scripts, 16 << 20, Duration::MAX, Limits::default()).with_quotas();
    let request = of_volume(&target, "v");
    let id = target.driver.create_volume(request).expect("a copy").id.clone();
    let copy = Copy { target, id };
    let before = copy.target.tree(&copy.id);
    for _ in 0..2 {
        let error = copy.update().expect_err("it is refused");
        assert!(matches!(error, Error::OutOfRange(_)), "{error}");
        assert!(error.to_string().contains("has 16 MiB for them; expand the volume"), "{error}");
        assert_eq!(copy.target.tree(&copy.id), before, "nothing is left of it");
    }
    copy.update().expect("what fits is taken");
    copy.update().expect("it fits beside an earlier tree that takes as much");
    let error = copy.update().expect_err("it is larger than the volume");
    assert!(matches!(error, Error::OutOfRange(_)), "{error}");
}

/// The copy is refused before all of the tree has arrived: it may take a twentieth more than its size, and a twentieth may
/// arrive between two counts.
#[test]
fn a_tree_too_large_for_a_small_copy_ends_early() {
    let (size, piece) = (4 << 20, 64 << 10);
    let scripts = vec![tree_of(0, piece), tree_of(192, piece)];
    let target = Target::with(scripts, size, Duration::MAX, Limits::default()).with_quotas();
    let id = target.driver.create_volume(of_volume(&target, "v")).expect("a copy").id.clone();
    let copy = Copy { target, id };
    let taken = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&taken);
    let behind = move || {
        count.fetch_add(piece as u64, Ordering::Relaxed);
    };
    assert!(copy.target.source.behind.set(Box::new(behind)).is_ok());
    let error = copy.update().expect_err("it is refused");
    assert!(error.to_string().contains("has 4 MiB for them; expand the volume"), "{error}");
    let taken = taken.load(Ordering::Relaxed);
    let most = size + size / 10 + 2 * piece as u64;
    assert!((size..most).contains(&taken), "{taken} of 12 MiB for a tree of 4 MiB");
}
