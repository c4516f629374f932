//! SnapshotMetadata: a snapshot is what is allocated, or another one and what has changed since, byte for byte.

use std::ops::Range;

use hostloop::wire::csi;
use nix::errno::Errno;
use proptest::prelude::*;
use tonic::Code;

use crate::client::{allocated, delta};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::wait::answered;

const PAGE: u64 = 4096;
/// Small, so that comparing all of it is quick.
const SMALL: i64 = 4 * MIB;

/// A message of either stream.
trait Message {
    fn parts(&self) -> (i32, i64, &[csi::BlockMetadata]);
}

impl Message for csi::GetMetadataAllocatedResponse {
    fn parts(&self) -> (i32, i64, &[csi::BlockMetadata]) {
        (self.block_metadata_type, self.volume_capacity_bytes, &self.block_metadata)
    }
}

impl Message for csi::GetMetadataDeltaResponse {
    fn parts(&self) -> (i32, i64, &[csi::BlockMetadata]) {
        (self.block_metadata_type, self.volume_capacity_bytes, &self.block_metadata)
    }
}

/// The ranges of a stream of a volume of this size, checked for what the contract says of every stream.
fn ranges(messages: &[impl Message], capacity: i64, start: i64, most: usize) -> Vec<Range<u64>> {
    assert!(!messages.is_empty(), "a stream tells the size at least");
    let mut all: Vec<Range<u64>> = Vec::new();
    for (kind, bytes, blocks) in messages.iter().map(Message::parts) {
        assert_eq!((kind, bytes), (csi::BlockMetadataType::VariableLength.into(), capacity));
        assert!(blocks.len() <= most && (messages.len() == 1 || !blocks.is_empty()));
        all.extend(blocks.iter().map(|block| {
            block.byte_offset as u64..u64::try_from(block.byte_offset + block.size_bytes).expect("an end")
        }));
    }
    assert!(all.iter().all(|range| !range.is_empty() && range.end <= capacity as u64), "{all:?}");
    assert!(all.windows(2).all(|pair| pair[0].end <= pair[1].start), "{all:?}");
    assert!(all.first().is_none_or(|first| first.end > start as u64), "{all:?}");
    all
}

/// One range, as a list.
fn one(range: Range<u64>) -> Vec<Range<u64>> {
    vec![range]
}

fn block_volume(rig: &Rig, name: &str, pool: &str, bytes: i64) -> Vol {
    let request = csi::CreateVolumeRequest { capacity_range: range(bytes, 0), ..create(name, block()) };
    rig.made(csi::CreateVolumeRequest { parameters: map(&[("pool", pool)]), ..request })
}

/// Puts a volume to use, writes to it, syncs it and cuts it at rest.
fn written(rig: &Rig, vol: &Vol, name: &str, writes: &[(u64, Vec<u8>)]) -> csi::Snapshot {
    rig.stage(vol);
    let target = rig.publish(vol, "pod");
    for (at, bytes) in writes {
        rig.kernel.write(&target, *at, bytes).expect("write");
    }
    rig.kernel.sync(rig.directory(vol)).expect("sync");
    rig.rest(vol);
    rig.cut(name, vol)
}

/// The bytes of a snapshot, as a volume restored from it has them.
fn bytes_of(rig: &Rig, cut: &csi::Snapshot, pool: &str) -> Vec<u8> {
    let name = format!("all of {}", cut.snapshot_id);
    let vol = rig.made(copy(&name, from_snapshot(&cut.snapshot_id), block(), &[("pool", pool)]));
    rig.stage(&vol);
    let target = rig.publish(&vol, "pod");
    let bytes = rig.kernel.read(target, 0, cut.size_bytes as usize).expect("read");
    rig.rest(&vol);
    rig.ok(vol.delete_request());
    bytes
}

/// Puts these ranges of the target over the base.
fn apply(mut base: Vec<u8>, target: &[u8], ranges: &[Range<u64>]) -> Vec<u8> {
    base.resize(target.len(), 0);
    for range in ranges {
        let range = range.start as usize..range.end as usize;
        base[range.clone()].copy_from_slice(&target[range]);
    }
    base
}

/// Writes anywhere, of any length; some write what is there already.
fn writes() -> impl Strategy<Value = Vec<(u64, Vec<u8>)>> {
    let write = (0..SMALL as u64 - 70_000, 1..70_000usize, 0..4u8);
    proptest::collection::vec(write.prop_map(|(at, len, value)| (at, vec![value; len])), 0..6)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn base_and_delta_are_the_target(
        rounds in proptest::collection::vec(writes(), 2..5), fast in any::<bool>(),
        start in 0..SMALL, most in 1..5i32,
    ) {
        let (rig, pool) = (both_pools(), if fast { "fast" } else { "default" });
        let vol = block_volume(&rig, "v", pool, SMALL);
        let cuts: Vec<_> =
            rounds.iter().enumerate().map(|(n, writes)| written(&rig, &vol, &n.to_string(), writes)).collect();
        rig.ok(vol.delete_request());
        let bytes: Vec<Vec<u8>> = cuts.iter().map(|cut| bytes_of(&rig, cut, pool)).collect();
        for (target, whole) in cuts.iter().zip(&bytes) {
            let all = ranges(&rig.ok(All(allocated(&target.snapshot_id))), SMALL, 0, usize::MAX);
            prop_assert!(apply(vec![0; whole.len()], whole, &all) == *whole);
            for (base, before) in cuts.iter().zip(&bytes) {
                let request = delta(&base.snapshot_id, &target.snapshot_id);
                let changed = ranges(&rig.ok(All(request.clone())), SMALL, 0, usize::MAX);
                prop_assert!(apply(before.clone(), whole, &changed) == *whole);
                // And no more than that, to the block.
                for page in changed.iter().flat_map(|range| range.start / PAGE..range.end.div_ceil(PAGE)) {
                    let page = (page * PAGE) as usize..((page + 1) * PAGE) as usize;
                    prop_assert!(whole[page.clone()] != before[page]);
                }
                // From the middle on, in small messages.
                let part = csi::GetMetadataDeltaRequest { starting_offset: start, max_results: most, ..request };
                let rest = ranges(&rig.ok(All(part)), SMALL, start, most as usize);
                let from = start as usize;
                let mut mixed = whole[..from].to_vec();
                mixed.extend(&before[from..]);
                prop_assert!(apply(mixed, whole, &rest) == *whole);
            }
        }
        prop_assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
    }
}

#[test]
fn a_stream_goes_on_where_another_ended() {
    let rig = both_pools();
    let vol = block_volume(&rig, "v", "fast", SMALL);
    let base = written(&rig, &vol, "base", &[]);
    let places: Vec<u64> = (0..20).map(|n| n * 16 * PAGE).collect();
    let writes: Vec<(u64, Vec<u8>)> = places.iter().map(|at| (*at, vec![1; PAGE as usize])).collect();
    let target = written(&rig, &vol, "target", &writes);
    let expected: Vec<Range<u64>> = places.iter().map(|at| *at..at + PAGE).collect();
    for most in [1, 3, 20, 1000] {
        let (mut start, mut got) = (0, Vec::new());
        loop {
            let request = csi::GetMetadataDeltaRequest {
                starting_offset: start,
                max_results: most,
                ..delta(&base.snapshot_id, &target.snapshot_id)
            };
            let all = rig.ok(All(request));
            let first = ranges(&all[..1], SMALL, start, most as usize);
            let Some(last) = first.last() else { break };
            start = last.end as i64;
            got.extend(first);
            if start == SMALL {
                break;
            }
        }
        assert_eq!(got, expected);
        let request =
            csi::GetMetadataAllocatedRequest { max_results: most, ..allocated(&target.snapshot_id) };
        assert_eq!(ranges(&rig.ok(All(request)), SMALL, 0, most as usize), expected);
    }
}

#[test]
fn an_offset_within_a_range_starts_there() {
    let rig = Rig::new();
    let vol = block_volume(&rig, "v", "default", SMALL);
    let base = written(&rig, &vol, "base", &[]);
    let target = written(&rig, &vol, "target", &[(0, vec![1; 4 * PAGE as usize])]);
    let middle = 2 * PAGE as i64;
    let request =
        csi::GetMetadataAllocatedRequest { starting_offset: middle, ..allocated(&target.snapshot_id) };
    assert_eq!(ranges(&rig.ok(All(request)), SMALL, middle, 1024), one(2 * PAGE..4 * PAGE));
    let request = csi::GetMetadataDeltaRequest {
        starting_offset: middle,
        ..delta(&base.snapshot_id, &target.snapshot_id)
    };
    assert_eq!(ranges(&rig.ok(All(request.clone())), SMALL, middle, 1024), one(2 * PAGE..4 * PAGE));
    let end = csi::GetMetadataDeltaRequest { starting_offset: SMALL, ..request };
    assert_eq!(ranges(&rig.ok(All(end)), SMALL, SMALL, 1024), []);
    let end = csi::GetMetadataAllocatedRequest { starting_offset: SMALL, ..allocated(&target.snapshot_id) };
    assert_eq!(ranges(&rig.ok(All(end)), SMALL, SMALL, 1024), []);
}

#[test]
fn a_grown_volume_has_changed_beyond_the_base() {
    for pool in ["default", "fast"] {
        let rig = both_pools();
        let vol = block_volume(&rig, "v", pool, SMALL);
        let base = written(&rig, &vol, "base", &[(0, vec![1; PAGE as usize])]);
        rig.ok(vol.expand_request(2 * SMALL, 0));
        let target = written(&rig, &vol, "target", &[(SMALL as u64 + PAGE, vec![2; PAGE as usize])]);
        let changed = ranges(&rig.ok(All(delta(&base.snapshot_id, &target.snapshot_id))), 2 * SMALL, 0, 1024);
        assert_eq!(changed, one(SMALL as u64 + PAGE..SMALL as u64 + 2 * PAGE));
        // The other way round, all of it lies beyond the end.
        let back = ranges(&rig.ok(All(delta(&target.snapshot_id, &base.snapshot_id))), SMALL, 0, 1024);
        assert_eq!(back, []);
    }
}

#[test]
fn the_same_bytes_written_anew_are_no_change() {
    let rig = both_pools();
    let vol = block_volume(&rig, "v", "fast", 64 * MIB);
    let base = written(&rig, &vol, "base", &[(0, vec![1; 32 << 20])]);
    // Written anew with the same bytes: the extent maps differ, and the bytes do not.
    let same = (8 << 20, vec![1; 1 << 20]);
    let target = written(&rig, &vol, "target", &[same, (16 << 20, vec![2; PAGE as usize])]);
    let changed = ranges(&rig.ok(All(delta(&base.snapshot_id, &target.snapshot_id))), 64 * MIB, 0, 1024);
    assert_eq!(changed, one(16 << 20..(16 << 20) + PAGE));
}

/// The extent maps tell that it is the same, so that nothing of it is read.
#[test]
fn shared_extents_and_holes_are_not_read() {
    let rig = both_pools();
    let vol = block_volume(&rig, "v", "fast", 64 * MIB);
    let base = written(&rig, &vol, "base", &[(0, vec![1; 8 << 20])]);
    let target = written(&rig, &vol, "target", &[(16 << 20, vec![2; PAGE as usize])]);
    rig.kernel.watch_looks(true);
    let changed = ranges(&rig.ok(All(delta(&base.snapshot_id, &target.snapshot_id))), 64 * MIB, 0, 1024);
    let is_read =
        |look: &&hostloop_fake_kernel::Step| look.name == "read" && look.subject.ends_with("disk.img");
    let reads = rig.kernel.looks().iter().filter(is_read).count();
    assert_eq!((changed, reads), (one(16 << 20..(16 << 20) + PAGE), 2), "one piece of either side");
}

/// Blocks that were allocated and never written are holes to whoever reads them.
#[test]
fn unwritten_blocks_are_not_read() {
    let rig = both_pools();
    let vol = block_volume(&rig, "v", "fast", SMALL);
    let base = rig.cut("base", &vol);
    for provisioning in ["thick", "thin"] {
        rig.ok(csi::ControllerModifyVolumeRequest {
            volume_id: vol.id.clone(),
            mutable_parameters: map(&[("provisioning", provisioning)]),
            ..Default::default()
        });
    }
    let target = rig.cut("target", &vol);
    rig.kernel.watch_looks(true);
    assert_eq!(ranges(&rig.ok(All(delta(&base.snapshot_id, &target.snapshot_id))), SMALL, 0, 1024), []);
    let looks = rig.kernel.looks();
    assert!(looks.iter().all(|look| look.name != "read" || !look.subject.ends_with("disk.img")), "{looks:?}");
}

#[test]
fn every_byte_is_compared_without_extent_maps() {
    let rig = both_pools();
    let vol = block_volume(&rig, "v", "fast", SMALL);
    let base = written(&rig, &vol, "base", &[(0, vec![1; 1 << 20])]);
    let target = written(&rig, &vol, "target", &[(PAGE, vec![2; PAGE as usize])]);
    let request = || All(delta(&base.snapshot_id, &target.snapshot_id));
    rig.kernel.fail_every("map", Errno::EIO);
    let message = rig.fails(Code::Internal, request());
    assert!(message.contains("read the extents"), "{message}");
    rig.kernel.fail_every("map", Errno::EOPNOTSUPP);
    assert_eq!(ranges(&rig.ok(request()), SMALL, 0, 1024), one(PAGE..2 * PAGE));
}

#[test]
fn filesystems_have_blocks_as_well() {
    let rig = both_pools();
    for (fs_type, pool) in [("ext4", "default"), ("ext4", "fast"), ("xfs", "default"), ("btrfs", "fast")] {
        let name = format!("{fs_type} in {pool}");
        let request =
            csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create(&name, fs(fs_type)) };
        let (vol, _) = rig.in_use(csi::CreateVolumeRequest { parameters: map(&[("pool", pool)]), ..request });
        let cuts = ["one", "two"].map(|text| {
            rig.write(&vol, text);
            rig.cut(&format!("{name} {text}"), &vol)
        });
        for cut in &cuts {
            assert!(!ranges(&rig.ok(All(allocated(&cut.snapshot_id))), GIB, 0, 1024).is_empty());
        }
        ranges(&rig.ok(All(delta(&cuts[0].snapshot_id, &cuts[1].snapshot_id))), GIB, 0, 1024);
        let itself = ranges(&rig.ok(All(delta(&cuts[0].snapshot_id, &cuts[0].snapshot_id))), GIB, 0, 1024);
        assert_eq!(itself, []);
    }
}

#[test]
fn metadata_errors_have_the_codes_of_csi() {
    let rig = Rig::new();
    let (vol, other) = (block_volume(&rig, "v", "default", SMALL), rig.volume("w", mount()));
    let directory = rig.made(create_with("d", &[("backend", "directory"), ("pool", "directories")]));
    let [base, target] = ["base", "target"].map(|name| rig.cut(name, &vol).snapshot_id);
    let foreign = rig.cut("foreign", &other).snapshot_id;
    let trees = ["tree", "tree again"].map(|name| rig.cut(name, &directory).snapshot_id);

    assert!(rig.fails(Code::InvalidArgument, All(allocated(""))).contains("snapshot_id"));
    assert!(rig.fails(Code::InvalidArgument, All(delta("", &target))).contains("base_snapshot_id"));
    assert!(rig.fails(Code::InvalidArgument, All(delta(&base, ""))).contains("target_snapshot_id"));
    for id in ["none", "../x", vol.id.as_str()] {
        assert!(rig.fails(Code::NotFound, All(allocated(id))).contains(id));
        assert!(rig.fails(Code::NotFound, All(delta(id, &target))).contains(id));
        assert!(rig.fails(Code::NotFound, All(delta(&base, id))).contains(id));
    }
    for starting_offset in [-1, i64::MIN, SMALL + 1, i64::MAX] {
        let request = csi::GetMetadataAllocatedRequest { starting_offset, ..allocated(&base) };
        assert!(rig.fails(Code::OutOfRange, All(request)).contains("starting_offset"));
        let request = csi::GetMetadataDeltaRequest { starting_offset, ..delta(&base, &target) };
        assert!(rig.fails(Code::OutOfRange, All(request)).contains("starting_offset"));
    }
    for max_results in [-1, i32::MIN] {
        let request = csi::GetMetadataAllocatedRequest { max_results, ..allocated(&base) };
        assert!(rig.fails(Code::InvalidArgument, All(request)).contains("max_results"));
        let request = csi::GetMetadataDeltaRequest { max_results, ..delta(&base, &target) };
        assert!(rig.fails(Code::InvalidArgument, All(request)).contains("max_results"));
    }
    let message = rig.fails(Code::InvalidArgument, All(delta(&base, &foreign)));
    assert!(message.contains("different volumes"), "{message}");
    assert!(rig.fails(Code::InvalidArgument, All(allocated(&trees[0]))).contains("directory"));
    let message = rig.fails(Code::FailedPrecondition, All(delta(&trees[0], &trees[1])));
    assert!(message.contains("directory"), "{message}");
}

/// A caller who leaves holds nothing up.
#[test]
fn a_snapshot_with_an_abandoned_stream_is_deleted() {
    let rig = Rig::new();
    let vol = block_volume(&rig, "v", "default", SMALL);
    let writes: Vec<(u64, Vec<u8>)> = (0..200).map(|n| (n * 4 * PAGE, vec![1; PAGE as usize])).collect();
    let cut = written(&rig, &vol, "s", &writes);
    let server = rig.server();
    let request = csi::GetMetadataAllocatedRequest { max_results: 1, ..allocated(&cut.snapshot_id) };
    let first = server.block_on(async {
        let mut messages = server.client.open(tonic::Request::new(request)).await.expect("a stream");
        messages.message().await.expect("a message")
    });
    assert!(first.is_some());
    answered(&[Code::Aborted], || rig.call(delete_snapshot(&cut.snapshot_id))).expect("the stream has ended");
    rig.assert_no_snapshot();
}
