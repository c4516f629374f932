//! What a node takes of memory, disk and time when it copies from a node in wrong hands: on the real kernel, with the process
//! that Cargo built. `CARGO_BIN_EXE_hostloop` names another one, such as that of a release.
//!
//! docs/security.md has what these tests print as a table.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostloop::model::pull::Piece;
use hostloop::model::tree::{Item, Kind as Of};
use hostloop::wire::peer;
use hostloop_test_support::hostile::sends;
use tonic::Code;

use super::attacked::{Attacked, on_disk};
use super::hostile_source::{
    SIZE, assert_little_memory, changed, codes, entry, large_trees, names, no_more, of_tree, source,
};
use crate::directories::quotas::{POOL, place, with_simple_quotas};
use crate::harness::volume::create_request;
use crate::harness::{Kind, MIB, Vol, World, clone_request, run, text};

/// Measures something again and again until it is dropped.
struct Watched {
    done: Arc<AtomicBool>,
    watching: Option<std::thread::JoinHandle<u64>>,
}

impl Watched {
    fn new(measure: impl Fn() -> u64 + Send + 'static) -> Watched {
        let done = Arc::new(AtomicBool::new(false));
        let is_done = Arc::clone(&done);
        let watching = std::thread::spawn(move || {
            let mut most = 0;
            while !is_done.load(Ordering::Relaxed) {
                most = measure().max(most);
                std::thread::sleep(Duration::from_millis(1));
            }
            most
        });
        Watched { done, watching: Some(watching) }
    }

    /// The most that was measured.
    fn most(mut self) -> u64 {
        self.done.store(true, Ordering::Relaxed);
        self.watching.take().expect("it runs").join().expect("no panic")
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

#[test]
fn large_messages_take_little_memory() {
    for (attack, len) in [("pieces of 15 MiB", 15 << 20), ("a piece of 1 MiB and a byte", Piece::MOST + 1)] {
        let (mut source, _) = source(peer::SourceContent::Block);
        let good = Arc::new(AtomicBool::new(false));
        let is_good = Arc::clone(&good);
        source.changes = sends(move || match is_good.load(Ordering::Relaxed) {
            true => vec![changed(0, 4096, 4096), no_more(8192, 4096)].into_iter(),
            false => vec![changed(0, 0, len)].into_iter(),
        });
        let node = Attacked::by(&source, World::empty(&[]), &[]);
        for name in names() {
            node.create(&name, Kind::Block, SIZE, &[]).expect("a copy");
        }
        let ended = node.update_all(&names(), SIZE);
        // The node has no turn for the others.
        assert_eq!((codes(&ended, Code::Internal), codes(&ended, Code::Aborted)), (8, 4), "{ended:?}");
        assert_little_memory(&node, attack);
        // Each copy is unchanged, and takes a right update.
        good.store(true, Ordering::Relaxed);
        for name in names() {
            node.runtime.block_on(node.update(&name, SIZE)).expect("an update");
            let image = std::fs::read(node.world.image(node.id_of(&name).as_str())).expect("its data");
            assert!(image[4096..8192].iter().all(|byte| *byte == 9));
            assert_eq!(image.iter().filter(|byte| **byte != 0).count(), 4096, "{name}");
            node.delete(&name);
        }
        node.finish();
    }
}

#[test]
fn many_attributes_take_little_memory() {
    for (attack, tree) in large_trees() {
        let (mut source, _) = source(peer::SourceContent::Directory);
        let (first, bad) = (Arc::clone(&source.tree), Arc::new(AtomicBool::new(false)));
        let (is_bad, bombs) = (Arc::clone(&bad), sends(move || tree().into_iter()));
        source.tree = Arc::new(move || if is_bad.load(Ordering::Relaxed) { bombs() } else { first() });
        let node = Attacked::by(&source, World::empty_for(Kind::Directory, &[]), &[]);
        for name in names() {
            node.create(&name, Kind::Directory, SIZE, &[]).expect("a copy");
        }
        bad.store(true, Ordering::Relaxed);
        let ended = node.update_all(&names(), SIZE);
        assert_eq!((codes(&ended, Code::Internal), codes(&ended, Code::Aborted)), (8, 4), "{ended:?}");
        assert_little_memory(&node, attack);
        for name in names() {
            node.delete(&name);
        }
        node.finish();
    }
}

#[test]
fn short_runs_take_little_of_the_disk() {
    let (mut source, _) = source(peer::SourceContent::Block);
    // 24 bytes describe each byte.
    let run = |n: u64| changed((2 * n).saturating_sub(1), 2 * n, 1);
    source.changes = sends(move || (0..SIZE / 2).map(run));
    let node = Attacked::by(&source, World::empty(&[]), &[]);
    node.create("copy", Kind::Block, SIZE, &[]).expect("a copy");
    let directory = node.world.volume_directory(node.id_of("copy").as_str());
    let measured = directory.clone();
    let watched = Watched::new(move || on_disk(&measured));
    let refused = node.runtime.block_on(node.update("copy", SIZE)).expect_err("it is refused");
    assert!(refused.message().contains("in runs that are too short"), "{refused:?}");
    let most = watched.most();
    println!("runs of a byte: {} KiB on the disk at most, for a volume of {} KiB", most >> 10, SIZE >> 10);
    assert!(most <= SIZE + SIZE / 20 + (64 << 10), "{most}");
    assert_little_memory(&node, "runs of a byte");
    assert!(on_disk(&directory) < MIB, "nothing is left of them");
    node.delete("copy");
    node.finish();
}

#[test]
fn a_size_that_is_not_ordered_takes_no_disk() {
    let (source, says) = source(peer::SourceContent::Block);
    let node = Attacked::by(&source, World::empty(&[]), &[]);
    node.create("copy", Kind::Block, SIZE, &[]).expect("a copy");
    let image = node.world.image(node.id_of("copy").as_str());
    says.change(|says| says.size_bytes = 1 << 40);
    let refused = node.runtime.block_on(node.update("copy", SIZE)).expect_err("it is refused");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    assert_eq!(std::fs::metadata(&image).expect("its data").len(), SIZE);
    let refused = node.create("other", Kind::Block, SIZE, &[]).expect_err("it is refused");
    assert_eq!(refused.code(), Code::OutOfRange, "{refused:?}");
    let data = on_disk(&node.world.data);
    println!(
        "a size of 1 TiB: the image has {} KiB, and all data {} KiB on the disk",
        SIZE >> 10,
        data >> 10
    );
    assert!(data < 4 * MIB, "{data}");
    says.change(|says| says.size_bytes = SIZE);
    node.delete("copy");
    node.finish();
}

/// A tree that never ends: files of 1 MiB.
fn of_data(number: u64) -> Vec<peer::PullTreeResponse> {
    let data = Item::Data(Piece::new(0, vec![9; MIB as usize]));
    vec![entry(number, 0, Of::File { size: MIB }, Vec::new()), of_tree((number + 1, 0), data)]
}

/// The same of what lies beside the data of files: attributes, and targets of links.
fn of_metadata(number: u64) -> Vec<peer::PullTreeResponse> {
    let attributes = vec![(b"user.a".to_vec(), vec![7; 15_000])];
    vec![match number % 2 {
        0 => entry(number, 0, Of::Symlink { target: vec![b'x'; 4000] }, Vec::new()),
        _ => entry(number, 0, Of::File { size: 0 }, attributes),
    }]
}

/// The same of files with as many attributes as a message may have. Each is an item of its own on btrfs.
fn of_small_attributes(number: u64) -> Vec<peer::PullTreeResponse> {
    let attributes = (0..10_000).map(|n| (format!("user.{n:04x}").into_bytes(), Vec::new())).collect();
    vec![entry(number, 0, Of::File { size: 0 }, attributes)]
}

/// A tree that never ends: files with one byte in each block.
fn of_parts(number: u64) -> Vec<peer::PullTreeResponse> {
    let part = |n: u64| of_tree((number + 1, 0), Item::Data(Piece::new(n * 4096, vec![9])));
    let file = entry(number, 0, Of::File { size: MIB }, Vec::new());
    std::iter::once(file).chain((0..256).map(part)).collect()
}

fn a_large_tree(attack: &str, (of, copies): (fn(u64) -> Vec<peer::PullTreeResponse>, u64)) {
    let Some(disk) = with_simple_quotas() else { return };
    let (mut source, says) = source(peer::SourceContent::Directory);
    let size = 64 * MIB;
    says.change(|says| says.size_bytes = size);
    let (first, bad) = (Arc::clone(&source.tree), Arc::new(AtomicBool::new(false)));
    let is_bad = Arc::clone(&bad);
    let top = || entry(0, 0, Of::Directory, Vec::new());
    // Each message says where the data before it ended.
    let many = sends(move || {
        let all = (1..).flat_map(of).scan(0, |offset, mut message: peer::PullTreeResponse| {
            message.after.as_mut().expect("a place").offset = *offset;
            *offset = match &message.message {
                Some(peer::pull_tree_response::Message::Data(piece)) => {
                    piece.offset + piece.data.len() as u64
                }
                _ => 0,
            };
            Some(message)
        });
        std::iter::once(top()).chain(all)
    });
    source.tree = Arc::new(move || if is_bad.load(Ordering::Relaxed) { many() } else { first() });
    let flag = format!("limited={},reserve=0", text(&place(&disk, "pool")));
    let node = Attacked::by(&source, World::empty(&[]), &["--pool", &flag]);
    node.create("copy", Kind::Directory, size, &POOL).expect("a copy");
    let other = node.call(create_request(Kind::Directory, "other", 256 * MIB, &POOL)).expect("CreateVolume");
    let other = Vol::of(&node.world, Kind::Directory, other.volume.expect("a volume"));
    other.up();
    bad.store(true, Ordering::Relaxed);
    let used = |path: &Path| {
        let space = nix::sys::statvfs::statvfs(path).expect("statvfs");
        (space.blocks() - space.blocks_free()) * space.fragment_size()
    };
    let (before, path) = (used(&disk.path), disk.path.clone());
    let watched = Watched::new(move || used(&path));
    let refused = node.runtime.block_on(node.update("copy", size)).expect_err("it is refused");
    assert!([Code::OutOfRange, Code::ResourceExhausted].contains(&refused.code()), "{refused:?}");
    let most = watched.most() - before;
    println!(
        "{attack}: {} MiB on the disk at most, for a volume of {} MiB: {}",
        most / MIB,
        size / MIB,
        refused.message()
    );
    // 5 % for what filesystems count differently, and as much between two counts. btrfs has metadata twice.
    assert!(most <= copies * (size + size / 10), "{most}");
    assert_little_memory(&node, attack);
    // What the other volume was promised is there.
    let file = other.target("a").join("file");
    let all =
        ["if=/dev/zero", &format!("of={}", text(&file)), "bs=1M", "count=250", "conv=fsync", "status=none"];
    run("dd", &all);
    other.down();
    node.delete("other");
    node.delete("copy");
    node.finish();
}

#[test]
fn a_tree_of_data_leaves_others_their_room() {
    a_large_tree("a tree with too many data", (of_data, 1));
}

#[test]
fn a_tree_of_metadata_leaves_others_their_room() {
    a_large_tree("a tree with too many attributes and links", (of_metadata, 2));
}

#[test]
fn a_tree_of_attributes_leaves_others_their_room() {
    a_large_tree("a tree with too many small attributes", (of_small_attributes, 2));
}

#[test]
fn a_tree_of_parts_of_blocks_leaves_others_room() {
    a_large_tree("a tree with one byte in each block", (of_parts, 1));
}

#[test]
fn a_slow_source_keeps_no_other_copy_waiting() {
    let (mut source, _) = source(peer::SourceContent::Block);
    // A byte now and then, for ever.
    source.changes = Arc::new(|| {
        let bytes = futures_util::stream::unfold(0, |n: u64| async move {
            tokio::time::sleep(Duration::from_millis(200)).await;
            Some((Ok(changed(n, n, 1)), n + 1))
        });
        let bytes: tonic::codegen::BoxStream<_> = Box::pin(bytes);
        Box::pin(async { Ok(tonic::Response::new(bytes)) })
    });
    let node = Attacked::by(&source, World::empty(&[]), &[]);
    for name in names() {
        node.create(&name, Kind::Block, SIZE, &[]).expect("a copy");
    }
    let own = node.call(create_request(Kind::Ext4, "own", Kind::Ext4.size(), &[])).expect("CreateVolume");
    let own = own.volume.expect("a volume");
    let updates: Vec<_> = names().iter().map(|name| node.runtime.spawn(node.update(name, SIZE))).collect();
    crate::harness::eventually("it sends", || source.calls("PullChanges") == 8);
    let began = Instant::now();
    let clone = clone_request(Kind::Ext4, "clone", Kind::Ext4.size(), &own.volume_id, &[]);
    node.call(clone).expect("a clone");
    println!("8 slow sources: a clone of another volume is made in {} ms", began.elapsed().as_millis());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    let ended: Vec<Duration> = names().iter().map(|name| node.delete(name)).collect();
    let longest = ended.iter().max().expect("some");
    println!("8 slow sources: a copy is deleted in {} ms at most", longest.as_millis());
    assert!(*longest < Duration::from_secs(10), "{longest:?}");
    for update in updates {
        node.runtime.block_on(update).expect("no panic").expect_err("it was ended");
    }
    node.delete("clone");
    node.delete("own");
    node.finish();
}

#[test]
fn the_source_of_another_node_is_refused_at_once() {
    let (source, says) = source(peer::SourceContent::Block);
    let other = hostloop::model::SnapshotId::of_name(&hostloop::model::NodeKey::of("node-c"), "s");
    says.change(|says| says.handle = other.to_string());
    let node = Attacked::by(&source, World::empty(&[]), &[]);
    let began = Instant::now();
    let refused = node.create("copy", Kind::Block, SIZE, &[]).expect_err("it is refused");
    println!("a source of another node: refused in {} ms", began.elapsed().as_millis());
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    assert!(refused.message().contains("of another node"), "{refused:?}");
    assert_eq!(source.calls("PullBlocks"), 0);
    node.finish();
}
