//! Volumes made from what another node has.

mod answers;
mod breaks;
mod converts;
pub mod copied;
mod ended_updates;
mod ends;
mod fences;
mod greedy;
mod handovers;
mod identity;
mod last_passes;
mod left_out;
mod moved_groups;
mod moved_snapshots;
pub mod nodes;
mod rates;
mod reclaims;
pub use hostloop_test_support::orders;
mod permits;
mod scripted;
mod standby;
mod streams;
mod tamper;
mod trees;
mod updates;
mod within;
mod wrong_hands;

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use hostloop::wire::csi;
use tonic::Code;

use crate::cuts::*;
use crate::harness::DIRECTORIES_DIR;
use crate::life::*;
use crate::support::*;
use nodes::{Pair, SOURCE, TARGET};

/// Where the image of a snapshot is.
fn image_of(snapshot: &str) -> String {
    format!("{DATA}/snapshots/{snapshot}/disk.img")
}

/// Where the image of a volume is.
fn disk_of(volume: &str) -> String {
    format!("{DATA}/volumes/{volume}/disk.img")
}

/// Large enough for every filesystem.
const BYTES: i64 = 512 * MIB;

/// How to make a volume of each kind.
fn kinds() -> Vec<csi::CreateVolumeRequest> {
    let sized = |request: csi::CreateVolumeRequest| csi::CreateVolumeRequest {
        capacity_range: range(BYTES, 0),
        ..request
    };
    let directory = [("backend", "directory"), ("pool", "directories")];
    let requests = [
        create("ext4", fs("ext4")),
        create("xfs", fs("xfs")),
        create("btrfs", fs("btrfs")),
        create("block", block()),
        create_with("directory", &directory),
    ];
    requests.map(sized).to_vec()
}

/// The same kind of volume, made from something.
fn from(request: &csi::CreateVolumeRequest, source: csi::VolumeContentSource) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        name: "pulled".to_owned(),
        volume_content_source: Some(source),
        capacity_range: None,
        ..request.clone()
    }
}

fn is_directory(request: &csi::CreateVolumeRequest) -> bool {
    request.parameters.get("backend").is_some_and(|backend| backend == "directory")
}

/// Bytes that differ from place to place. Each is computed once: the tests that end every step ask for the same ones.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    static KNOWN: Mutex<BTreeMap<(usize, u64), Vec<u8>>> = Mutex::new(BTreeMap::new());
    let word = |n: u64| (n.wrapping_add(seed)).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23);
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = || (0..len as u64 / 8).flat_map(|n| word(n).to_le_bytes()).collect();
    known.entry((len, seed)).or_insert_with(bytes).clone()
}

/// A raw device with data here and there, its snapshot, and how many bytes of data it has.
pub fn scattered(rig: &Rig) -> (Vol, csi::Snapshot, u64) {
    let (vol, device) = rig.in_use(create("source", block()));
    let runs = [(0, 3 << 20), (10 << 20, 4096), (32 << 20, (2 << 20) + 8192), ((64 << 20) - 4096, 4096)];
    for (offset, len) in runs {
        rig.kernel.write(&device, offset, &pattern(len, offset)).expect("write");
    }
    rig.rest(&vol);
    let cut = rig.cut("cut", &vol);
    (vol, cut, runs.iter().map(|(_, len)| *len as u64).sum())
}

/// A directory with a tree in it, its snapshot.
pub fn directory(rig: &Rig) -> (Vol, csi::Snapshot) {
    let (vol, top) = rig.in_use(create_with("source", &[("backend", "directory"), ("pool", "directories")]));
    let kernel = &rig.kernel;
    kernel.create_directories(format!("{top}/a/b/c"));
    kernel.create_directories(format!("{top}/empty"));
    kernel.write_file(format!("{top}/file"), b"first").expect("write");
    kernel.write_file(format!("{top}/a/large"), &pattern(3 << 20, 1)).expect("write");
    kernel.write_file(format!("{top}/a/b/sparse"), b"").expect("write");
    kernel.write(format!("{top}/a/b/sparse"), 40 << 20, &pattern(8192, 2)).expect("write");
    kernel.link(format!("{top}/a/large"), format!("{top}/a/b/c/same")).expect("link");
    kernel.symlink("../file", format!("{top}/a/symlink"));
    kernel.write_file(format!("{top}/z"), &pattern(4096, 3)).expect("write");
    rig.rest(&vol);
    let cut = rig.cut("cut", &vol);
    (vol, cut)
}

/// The tree of a directory volume or snapshot, as text: names, sizes, what is allocated, and all bytes.
pub fn tree_of(kernel: &hostloop_fake_kernel::FakeKernel, place: &str) -> Vec<String> {
    let top = format!("{DIRECTORIES_DIR}/{place}/data");
    let describe = |path: String| {
        let stat = kernel.stat(&path).expect("it is listed");
        let name = path.strip_prefix(&top).expect("below").to_owned();
        let crc = match stat.kind {
            hostloop::kernel::FileKind::File => {
                crc32fast::hash(&kernel.read(&path, 0, stat.size as usize).expect("read"))
            }
            _ => 0,
        };
        format!("{name} {:?} {} {} {:?} {crc}", stat.kind, stat.size, stat.allocated, kernel.mode(&path))
    };
    kernel.tree(&top).into_iter().map(describe).collect()
}

#[test]
fn every_kind_of_volume_is_pulled_from_a_snapshot() {
    for request in kinds() {
        let rig = Rig::new();
        let (vol, _) = rig.in_use(request.clone());
        rig.write(&vol, "text");
        rig.rest(&vol);
        let cut = rig.cut("cut", &vol);
        let pair = Pair::new(rig);
        let again = from(&request, from_snapshot(&cut.snapshot_id));
        let pulled = pair.pulled(again.clone());
        assert_eq!(pulled.info.capacity_bytes, BYTES, "{}", request.name);
        assert_eq!(pulled.info.content_source, again.volume_content_source);
        assert_eq!(pulled.info.accessible_topology, [topology(TARGET)]);
        assert_eq!(pair.pulled(again).info, pulled.info, "a retry gets it");
        let files = !pulled.is_block() && !is_directory(&request);
        if files {
            let (image, source) = (disk_of(&pulled.id), image_of(&cut.snapshot_id));
            pair.target.kernel.adopt_files(image, &pair.source.kernel, source).expect("the same bytes");
        }
        let rig = pair.into_target();
        assert_eq!(rig.content(&pulled, 4), "text", "{}", request.name);
        assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
        rig.ok(pulled.delete_request());
        rig.assert_clean();
    }
}

#[test]
fn every_kind_of_volume_is_pulled_from_a_volume() {
    for (request, sharing) in
        kinds().into_iter().flat_map(|request| [(request.clone(), false), (request, true)])
    {
        let rig = Rig::new();
        rig.kernel.set_reflink(DATA, sharing);
        let (vol, _) = rig.in_use(request.clone());
        rig.write(&vol, "text");
        // A directory in use cannot be cut, nor a device without sharing its blocks.
        let in_use = !is_directory(&request) && (sharing || !vol.is_block());
        if !in_use {
            rig.rest(&vol);
        }
        let pair = Pair::new(rig);
        let grown = csi::CreateVolumeRequest {
            capacity_range: range(2 * BYTES, 0),
            ..from(&request, from_volume(&vol.id))
        };
        let pulled = pair.pulled(grown);
        assert_eq!(pulled.info.capacity_bytes, 2 * BYTES);
        assert_eq!(pair.source.cuts(), 0);
        assert_eq!(pair.source.kernel.tree(format!("{DATA}/snapshots")), Vec::<String>::new());
        let (source, target) = (pair.source.kernel.clone(), disk_of(&pulled.id));
        if !pulled.is_block() && !is_directory(&request) {
            pair.target.kernel.adopt_files(target, &source, vol.image()).expect("the same bytes");
        }
        let rig = pair.into_target();
        assert_eq!(rig.content(&pulled, 4), "text", "{}", request.name);
        assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
    }
}

#[test]
fn holes_stay_holes_and_only_data_are_sent() {
    let rig = Rig::new();
    let (_, cut, data) = scattered(&rig);
    let pair = Pair::new(rig);
    let pulled = pair.pulled(copy("pulled", from_snapshot(&cut.snapshot_id), block(), &[]));
    let (image, source) = (disk_of(&pulled.id), image_of(&cut.snapshot_id));
    let stat = pair.target.kernel.stat(&image).expect("an image");
    assert_eq!((stat.size, stat.allocated), (64 << 20, data));
    assert!((data..data + data / 20).contains(&pair.network.passed()), "{} of {data}", pair.network.passed());
    let read =
        |kernel: &hostloop_fake_kernel::FakeKernel, path: &str| kernel.read(path, 0, 64 << 20).expect("read");
    assert!(read(&pair.target.kernel, &image) == read(&pair.source.kernel, &source));
}

#[test]
fn a_tree_is_pulled_with_its_links_and_holes() {
    let rig = Rig::new();
    let (vol, cut) = directory(&rig);
    let pair = Pair::new(rig);
    let source = tree_of(&pair.source.kernel, &format!("snapshots/{}", cut.snapshot_id));
    assert_eq!(source.len(), 10, "{source:?}");
    for (name, content) in [("s", from_snapshot(&cut.snapshot_id)), ("v", from_volume(&vol.id))] {
        pair.network.mend();
        let pulled =
            pair.pulled(copy(name, content, mount(), &[("backend", "directory"), ("pool", "directories")]));
        assert_eq!(tree_of(&pair.target.kernel, &format!("volumes/{}", pulled.id)), source);
        let top = format!("{DIRECTORIES_DIR}/volumes/{}/data", pulled.id);
        let id = |name: &str| pair.target.kernel.stat(format!("{top}/{name}")).expect("a file").id;
        assert_eq!(id("a/large"), id("a/b/c/same"), "two names of one file");
        assert!(pair.network.passed() < 4 << 20, "{}", pair.network.passed());
    }
}

#[test]
fn the_request_of_a_source_makes_a_pulled_copy() {
    const GB: i64 = 1_000_000_000;
    for request in [create("source", mount()), create("source", block())] {
        let capability = request.volume_capabilities[0].clone();
        let request = csi::CreateVolumeRequest { capacity_range: range(GB, 0), ..request };
        let copied = copied::Copied::of(true, request.clone());
        copied.rest();
        let (pair, vol) = (&copied.pair, &copied.vol);
        let bytes = vol.info.capacity_bytes;
        let node = pair.source.controller.clone();
        let cut = pair.runtime.block_on(node.call(snapshot("s", vol))).expect("a snapshot").snapshot;
        let cut = cut.expect("a snapshot").snapshot_id;
        for (name, source) in [("pulled", from_volume(&vol.id)), ("restored", from_snapshot(&cut))] {
            let request = csi::CreateVolumeRequest {
                capacity_range: range(GB, 0),
                ..copy(name, source, capability.clone(), &[])
            };
            let pulled = pair.pulled(request.clone());
            assert_eq!(pulled.info.capacity_bytes, bytes);
            assert_eq!(requested(pair, &pulled), GB, "{name}");
            let smaller = csi::CreateVolumeRequest {
                name: "smaller".to_owned(),
                capacity_range: range(GB - 4096, 0),
                ..request
            };
            pair.fails(Code::OutOfRange, smaller);
        }
        assert_eq!(requested(pair, &copied.copy), GB, "a copy that is brought up to date");
        let node = pair.source.controller.clone();
        let grown = pair.runtime.block_on(node.call(vol.expand_request(2 * GB, 0))).expect("it grows");
        assert!(grown.capacity_bytes > 2 * GB);
        for _ in 0..2 {
            copied.update().expect("it is updated");
            assert_eq!(requested(pair, &copied.copy), 2 * GB, "it grew with its source");
        }
    }
}

/// What the record of a volume on the target says that was asked for.
fn requested(pair: &Pair, vol: &Vol) -> i64 {
    let volumes = pair.target.driver.store().volumes();
    let volume = volumes.into_iter().find(|volume| volume.id.as_str() == vol.id).expect("a record");
    i64::try_from(volume.requested()).expect("a size")
}

#[test]
fn an_impossible_copy_is_refused_as_on_one_node() {
    let rig = Rig::new();
    let (vol, cut, _) = scattered(&rig);
    let pair = Pair::new(rig);
    let source = || from_snapshot(&cut.snapshot_id);
    let copy = |capability, parameters: &[(&str, &str)]| copy("pulled", source(), capability, parameters);
    let message = pair.fails(Code::InvalidArgument, copy(mount(), &[]));
    assert!(message.contains("a raw device"), "{message}");
    pair.fails(Code::InvalidArgument, copy(mount(), &[("backend", "directory"), ("pool", "directories")]));
    let smaller = csi::CreateVolumeRequest { capacity_range: range(MIB, 2 * MIB), ..copy(block(), &[]) };
    pair.fails(Code::OutOfRange, smaller);
    // Without an address a source of another node is unknown.
    let status = pair.pull_from(copy(block(), &[]), None).expect_err("not an address");
    assert_eq!(status.code(), Code::NotFound);
    // Another node has got the address.
    let status = pair.pull_from(copy(block(), &[]), Some(TARGET)).expect_err("another node");
    assert_eq!(status.code(), Code::Unavailable, "{}", status.message());
    assert!(status.message().contains(TARGET), "{}", status.message());
    let status = pair.pull_from(copy(block(), &[]), Some("nowhere")).expect_err("nobody");
    assert_eq!(status.code(), Code::Unavailable, "{}", status.message());
    let gone = pair.source.controller.clone();
    pair.runtime.block_on(gone.call(delete_snapshot(&cut.snapshot_id))).expect("deleted");
    pair.fails(Code::NotFound, copy(block(), &[]));
    pair.runtime.block_on(gone.call(vol.delete_request())).expect("deleted");
    pair.fails(
        Code::NotFound,
        csi::CreateVolumeRequest { volume_content_source: Some(from_volume(&vol.id)), ..copy(block(), &[]) },
    );
    pair.assert_nothing_left();
}

#[test]
fn a_full_node_says_so_before_anything_is_sent() {
    let rig = Rig::new();
    let (_, cut, data) = scattered(&rig);
    let mut pair = Pair::new(rig);
    pair.target.kernel.set_space(1 << 40, data / 2);
    let request = copy("pulled", from_snapshot(&cut.snapshot_id), block(), &[]);
    pair.fails(Code::ResourceExhausted, request.clone());
    assert!(pair.network.passed() < 10_000, "{}", pair.network.passed());
    pair.assert_nothing_left();
    pair.target.kernel.set_space(1 << 40, 1 << 39);
    pair.restart_target(); // it measures anew
    pair.pulled(request);
}

/// The caller is told of the node that is full, and not to put the pod elsewhere.
#[test]
fn a_full_source_node_is_named_as_unavailable() {
    let rig = Rig::new();
    let (vol, _, data) = scattered(&rig);
    let mut pair = Pair::new(rig);
    pair.source.kernel.set_space(1 << 40, data / 2);
    pair.restart_source(); // it measures anew
    let request = copy("pulled", from_volume(&vol.id), block(), &[]);
    let message = pair.fails(Code::Unavailable, request.clone());
    assert!(message.contains(&format!("node {SOURCE:?}")) && message.contains("room"), "{message}");
    assert!(message.contains("free some space there"), "{message}");
    pair.assert_nothing_left();
    pair.source.kernel.set_space(1 << 40, 1 << 39);
    pair.restart_source();
    pair.pulled(request);
}

#[test]
fn a_cut_is_nobody_elses() {
    use hostloop::wire::peer::open_source_request::Source;
    use hostloop::wire::peer::{CloseSourceRequest, OpenSourceRequest};

    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("source", mount()));
    rig.write(&vol, "text");
    let pair = Pair::new(rig);
    let (mut peer, controller) = (pair.source.peer.clone(), pair.source.controller.clone());
    let target = hostloop::model::VolumeId::of_name(&hostloop::model::NodeKey::of(TARGET), "pulled");
    let open = OpenSourceRequest {
        source: Some(Source::VolumeId(vol.id.clone())),
        target_volume_id: target.to_string(),
        permit: pair.permit(&copy("pulled", from_volume(&vol.id), mount(), &[])),
        ..Default::default()
    };
    let permit = open.permit.clone();
    let opened = pair.runtime.block_on(peer.open_source(open.clone())).expect("opened").into_inner();
    let again = pair.runtime.block_on(peer.open_source(open.clone())).expect("opened").into_inner();
    assert_eq!(opened, again, "a retry finds the cut");
    let listed = pair.runtime.block_on(controller.call(csi::ListSnapshotsRequest::default()));
    assert!(listed.expect("a list").entries.is_empty());
    let got = pair.runtime.block_on(controller.call(get_snapshot(&opened.handle)));
    assert_eq!(got.expect_err("it is hidden").code(), Code::NotFound);
    let restore = copy("restored", from_snapshot(&opened.handle), mount(), &[]);
    let restored = pair.runtime.block_on(controller.call(restore));
    assert_eq!(restored.expect_err("it is hidden").code(), Code::NotFound);
    pair.runtime.block_on(controller.call(delete_snapshot(&opened.handle))).expect("deleted");
    assert_eq!(pair.source.cuts(), 1, "it stays");
    // A pull for this volume takes it, and takes it away.
    let pulled = pair.pulled(copy("pulled", from_volume(&vol.id), mount(), &[]));
    assert_eq!((pulled.id.as_str(), pair.source.cuts()), (target.as_str(), 0));
    // One that nobody reads is removed.
    pair.runtime.block_on(peer.open_source(open)).expect("opened");
    assert_eq!(pair.source.driver.remove_idle_sources(hostloop::app::IDLE_SOURCES), 0);
    assert_eq!(
        (pair.source.driver.remove_idle_sources(std::time::Duration::ZERO), pair.source.cuts()),
        (1, 0)
    );
    let close = CloseSourceRequest { handle: opened.handle, permit };
    pair.runtime.block_on(peer.close_source(close)).expect("closing again is fine");
    assert_eq!(pair.source.kernel.tree(format!("{DATA}/snapshots")), Vec::<String>::new());
    let hello = pair.runtime.block_on(peer.hello(hostloop::wire::peer::HelloRequest {})).expect("hello");
    assert_eq!((hello.get_ref().node_id.as_str(), hello.get_ref().ready), (SOURCE, true));
}
