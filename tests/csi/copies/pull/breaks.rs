//! Connections that break, and bytes that change on the way.

use std::time::Duration;

use hostloop::error::Error;
use hostloop::model::pull::{Keep, OpenSource};
use hostloop::model::{Consistency, NodeKey, Timestamp, VolumeId, VolumeSource};
use tonic::Code;

use super::nodes::{Pair, SOURCE, TARGET};
use super::{directory, disk_of, image_of, pattern, scattered, tree_of};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::wait::{answered, until};

const WHOLE: usize = 64 << 20;

fn same_image(pair: &Pair, volume: &str, snapshot: &str) -> bool {
    let target = pair.target.kernel.read(disk_of(volume), 0, WHOLE).expect("read");
    target == pair.source.kernel.read(image_of(snapshot), 0, WHOLE).expect("read")
}

#[test]
fn an_image_goes_on_where_the_connection_broke() {
    let rig = Rig::new();
    let (_, cut, data) = scattered(&rig);
    let pair = Pair::new(rig);
    // In the middle of a piece, twice without any progress, and near the end.
    let cuts = vec![300_000, 2_500_000, 2_600_000, 2_700_000, 4 << 20, data];
    pair.network.cut_after(cuts);
    let pulled = pair.pulled(copy("pulled", from_snapshot(&cut.snapshot_id), block(), &[]));
    assert!(pair.network.is_spent());
    assert!(same_image(&pair, &pulled.id, &cut.snapshot_id));
    let stat = pair.target.kernel.stat(disk_of(&pulled.id)).expect("an image");
    assert_eq!(stat.allocated, data);
    // Each break costs at most a piece of 1 MiB and what was under way behind it.
    assert!(pair.network.passed() < data + 6 * (2 << 20), "{}", pair.network.passed());
}

#[test]
fn a_tree_goes_on_where_the_connection_broke() {
    let rig = Rig::new();
    let (_, cut) = directory(&rig);
    let pair = Pair::new(rig);
    let source = tree_of(&pair.source.kernel, &format!("snapshots/{}", cut.snapshot_id));
    for (n, at) in (0..24).map(|n| (n, 600 + n * 140_000)) {
        pair.network.cut_after(vec![at, at + 700]);
        let name = format!("pulled-{n}");
        let request = copy(
            &name,
            from_snapshot(&cut.snapshot_id),
            mount(),
            &[("backend", "directory"), ("pool", "directories")],
        );
        let pulled = pair.pulled(request);
        assert_eq!(tree_of(&pair.target.kernel, &format!("volumes/{}", pulled.id)), source, "cut at {at}");
    }
}

#[test]
fn a_byte_that_changed_is_asked_for_again() {
    let rig = Rig::new();
    let (_, cut, _) = scattered(&rig);
    let pair = Pair::new(rig);
    let request = |name: &str| copy(name, from_snapshot(&cut.snapshot_id), block(), &[]);
    pair.network.flip(1_700_123, 1);
    let pulled = pair.pulled(request("once"));
    assert!(pair.network.is_spent() && same_image(&pair, &pulled.id, &cut.snapshot_id));
    pair.target.driver.delete_volume(&pulled.id).expect("deleted");
    // Whenever it is sent.
    pair.network.flip(300_123, usize::MAX);
    let message = pair.fails(Code::Internal, request("always"));
    assert!(message.contains("bytes 0 to 1048576 arrived with a wrong checksum, twice"), "{message}");
    pair.assert_nothing_left();
}

#[test]
fn a_tree_with_a_byte_that_changed_is_asked_for_again() {
    let rig = Rig::new();
    let (_, cut) = directory(&rig);
    let pair = Pair::new(rig);
    let source = tree_of(&pair.source.kernel, &format!("snapshots/{}", cut.snapshot_id));
    let request = |name: &str| {
        copy(
            name,
            from_snapshot(&cut.snapshot_id),
            mount(),
            &[("backend", "directory"), ("pool", "directories")],
        )
    };
    // A file's name, or another part of an entry; and its data.
    for at in (400..1500).step_by(50).chain([1_500_000]) {
        pair.network.flip(at, 1);
        let pulled = pair.pulled(request(&format!("flip-{at}")));
        assert_eq!(tree_of(&pair.target.kernel, &format!("volumes/{}", pulled.id)), source, "byte {at}");
        pair.target.driver.delete_volume(&pulled.id).expect("deleted");
    }
    pair.network.flip(300_123, usize::MAX);
    let message = pair.fails(Code::Internal, request("always"));
    assert!(message.contains("wrong checksum"), "{message}");
    pair.assert_nothing_left();
}

/// What was left of a pull that failed, and whose end its node could not tell, is not what a later one is made from.
#[test]
fn a_later_pull_has_what_the_volume_holds_by_then() {
    let rig = Rig::new();
    let (vol, ..) = scattered(&rig);
    let mut pair = Pair::with_patience(rig, Duration::from_millis(400));
    let request = || copy("pulled", from_volume(&vol.id), block(), &[]);
    for restarts in [false, true] {
        pair.network.cut_after((1..1000).map(|n| 1_000_000 + n).collect());
        pair.fails(Code::Unavailable, request());
        assert_eq!(pair.source.cuts(), 1, "it could not be told");
        pair.network.mend();
        if restarts {
            pair.restart_source();
        }
        let written = pattern(4096, 77 + u64::from(restarts));
        pair.source.kernel.write(disk_of(&vol.id), 1 << 20, &written).expect("write");
        let pulled = pair.pulled(request());
        let read = pair.target.kernel.read(disk_of(&pulled.id), 1 << 20, 4096).expect("read");
        assert!(read == written, "restarts: {restarts}");
        pair.target.driver.delete_volume(&pulled.id).expect("deleted");
        pair.assert_nothing_left();
    }
}

/// The answer to OpenSource is lost: the cut was made, and the retry takes it.
#[test]
fn a_retry_takes_the_cut_that_was_made_for_it() {
    let rig = Rig::new();
    let (vol, ..) = scattered(&rig);
    let pair = Pair::new(rig);
    let source = VolumeSource::Volume(vol.id.parse().expect("an id"));
    let target = VolumeId::of_name(&NodeKey::of(TARGET), "pulled");
    let open = |began: u64| {
        let request = OpenSource {
            by_file: false,
            source: source.clone(),
            target: target.clone(),
            consistency: Consistency::default(),
            began: Timestamp::from_nanos(began),
            keep: Keep::Nothing,
        };
        pair.source.driver.open_source(&request, None).map(|opened| opened.handle)
    };
    let first = open(1).expect("OpenSource");
    let same = |began| assert_eq!(open(began).expect("OpenSource").created, first.created, "the same cut");
    let mut while_it_is_read = |_| {
        same(1);
        let status = open(2).expect_err("it is read");
        assert!(matches!(status, Error::Busy(_)), "{status:?}");
        false
    };
    pair.source.driver.pull_blocks(&first, 0, &mut while_it_is_read).expect("PullBlocks");
    same(1);
    assert_ne!(open(2).expect("OpenSource").created, first.created, "another one");
    assert_eq!(pair.source.cuts(), 1);
}

#[test]
fn a_node_that_stays_away_is_given_up() {
    let rig = Rig::new();
    let (vol, cut, _) = scattered(&rig);
    let pair = Pair::with_patience(rig, Duration::from_millis(400));
    for source in [from_snapshot(&cut.snapshot_id), from_volume(&vol.id)] {
        pair.network.cut_after((1..1000).map(|n| 1_000_000 + n).collect());
        let message = pair.fails(Code::Unavailable, copy("pulled", source, block(), &[]));
        assert!(message.contains("a retry starts again"), "{message}");
    }
    assert_eq!(pair.target.files(), Vec::<String>::new());
    // The source could not be told; it finds out by itself.
    pair.network.mend();
    pair.source.driver.remove_idle_sources(Duration::ZERO);
    pair.assert_nothing_left();
    pair.pulled(copy("pulled", from_volume(&vol.id), block(), &[]));
}

#[test]
fn a_caller_who_comes_back_joins_the_pull() {
    let rig = Rig::new();
    let (_, cut, _) = scattered(&rig);
    let pair = Pair::new(rig);
    let request = copy("pulled", from_snapshot(&cut.snapshot_id), block(), &[]);
    pair.target.kernel.hold("write_at");
    let controller = pair.target.controller.clone();
    let first = pair.order(request.clone(), SOURCE);
    pair.runtime.block_on(async {
        let call = tokio::spawn(async move { controller.send(first).await });
        until("it writes", async || pair.target.kernel.waiting() > 0).await;
        call.abort();
    });
    for _ in 0..3 {
        let message = pair.fails(Code::Aborted, request.clone());
        assert!(message.contains("copied"), "it says how far it is: {message}");
    }
    let source = pair.source.controller.clone();
    let deleted = pair.runtime.block_on(source.call(delete_snapshot(&cut.snapshot_id)));
    assert_eq!(deleted.expect_err("it is read").code(), Code::Aborted);
    pair.target.kernel.release();
    let pulled = answered(&[Code::Aborted], || pair.pull(request.clone())).expect("a volume");
    assert!(same_image(&pair, &pulled.volume_id, &cut.snapshot_id));
    let writes = pair.target.kernel.steps().iter().filter(|step| step.name == "write_at").count();
    assert_eq!(writes, 3 + 1 + 3 + 1, "the work is done once");
    pair.runtime.block_on(source.call(delete_snapshot(&cut.snapshot_id))).expect("deleted");
    assert_eq!(pulled.accessible_topology, [topology(TARGET)]);
}
