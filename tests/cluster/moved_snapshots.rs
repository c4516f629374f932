//! Snapshots that have moved to another node: a controller finds them by the id that they keep.

mod silent;

use std::collections::BTreeSet;

use hostloop::model::SnapshotId;
use hostloop::wire::{csi, peer};
use tonic::{Code, Status};

use crate::harness::{Cluster, Controller, Fault, Way, address, fails, place, volume, within};
use crate::requests::{MIB, MadeFrom, delete_group, delete_snapshot, group};
use crate::wait::until_answered;

const IDS: [&str; 3] = ["a", "b", "c"];

/// A volume of node `a`, and its snapshot.
struct Moving {
    cluster: Cluster,
    volume: String,
    snapshot: csi::Snapshot,
}

impl Moving {
    async fn new() -> Moving {
        let cluster = Cluster::copying(&IDS).await;
        let volume = cluster.controller.create(volume("v", 64 * MIB, &["a"])).await.unwrap().volume_id;
        let snapshot = cluster.controller.snapshot("s", &volume).await.unwrap();
        Moving { cluster, volume, snapshot }
    }

    fn id(&self) -> &str {
        &self.snapshot.snapshot_id
    }

    async fn move_once(&self, from: &str, to: &str) -> Result<(), Status> {
        let request = peer::MoveSnapshotRequest {
            snapshot_id: self.id().to_owned(),
            node_id: from.to_owned(),
            target_node_id: to.to_owned(),
        };
        within(self.cluster.controller.client.call(request)).await.map(drop)
    }

    /// Moves it, as often as it takes.
    async fn move_it(&self, from: &str, to: &str) {
        let moved = until_answered(&[Code::Unavailable, Code::Aborted], || self.move_once(from, to)).await;
        moved.unwrap_or_else(|status| panic!("{from} to {to}: {status:?}"));
    }

    async fn delete(&self) -> Result<(), Status> {
        within(self.cluster.controller.client.call(delete_snapshot(self.id()))).await.map(drop)
    }

    async fn get(&self) -> Result<csi::Snapshot, Status> {
        let request = csi::GetSnapshotRequest { snapshot_id: self.id().to_owned(), ..Default::default() };
        Ok(within(self.cluster.controller.client.call(request)).await?.snapshot.expect("a snapshot"))
    }

    async fn listed(&self, request: csi::ListSnapshotsRequest) -> Vec<String> {
        let page = within(self.cluster.controller.client.call(request)).await.unwrap();
        page.entries.into_iter().map(|entry| entry.snapshot.expect("a snapshot").snapshot_id).collect()
    }

    /// The node does not answer, or does again.
    fn set_way(&self, node: &str, way: Way) {
        self.cluster.net.set_way(&address(node), way);
        self.cluster.net.cut(&address(node));
    }

    /// Each call that looks for the snapshot fails, and names the node that may have it.
    async fn is_unknown(&self, node: &str) {
        let hint = format!("has moved to node {node:?}");
        fails(self.get().await, Code::Unavailable, &hint);
        let by_id = csi::ListSnapshotsRequest { snapshot_id: self.id().to_owned(), ..Default::default() };
        fails(within(self.cluster.controller.client.call(by_id)).await, Code::Unavailable, &hint);
        let restored = MadeFrom::Snapshot(self.id().to_owned()).source_of(volume_of(node));
        fails(self.cluster.controller.create(restored).await, Code::Unavailable, &hint);
        fails(self.delete().await, Code::Unavailable, node);
    }

    /// The nodes that have its files.
    fn holders(&self) -> Vec<&str> {
        let place = format!("/var/lib/hostloop/snapshots/{}", self.id());
        let has = |node: &&crate::harness::Node| node.kernel.exists(&place);
        self.cluster.nodes.iter().filter(has).map(|node| node.id.as_str()).collect()
    }
}

#[tokio::test]
async fn a_moved_snapshot_is_listed_restored_and_deleted() {
    let moving = Moving::new().await;
    let controller = &moving.cluster.controller;
    for (from, to) in [("a", "b"), ("b", "c"), ("c", "a"), ("a", "b")] {
        for _ in 0..2 {
            moving.move_it(from, to).await;
        }
        assert_eq!(moving.holders(), [to]);
        let found = moving.get().await.expect("it is found");
        assert_eq!(
            (found.source_volume_id, found.creation_time, found.size_bytes),
            (moving.volume.clone(), moving.snapshot.creation_time, moving.snapshot.size_bytes)
        );
        let by_volume =
            csi::ListSnapshotsRequest { source_volume_id: moving.volume.clone(), ..Default::default() };
        let by_id = csi::ListSnapshotsRequest { snapshot_id: moving.id().to_owned(), ..Default::default() };
        for request in [csi::ListSnapshotsRequest::default(), by_volume, by_id] {
            assert_eq!(moving.listed(request).await, [moving.id()]);
        }
        let restored = format!("restored-{to}-{from}");
        let restored =
            MadeFrom::Snapshot(moving.id().to_owned()).source_of(volume(&restored, 64 * MIB, &["c"]));
        assert_eq!(place(&controller.create(restored).await.unwrap()), "c");
    }
    moving.delete().await.unwrap();
    assert_eq!(moving.get().await.expect_err("it is gone").code(), Code::NotFound);
    assert!(moving.holders().is_empty());
    moving.delete().await.expect("once more");
}

/// external-snapshotter repeats the call until it has heard of the snapshot.
#[tokio::test]
async fn a_moved_snapshot_is_not_made_twice() {
    let moving = Moving::new().await;
    moving.move_it("a", "b").await;
    let again = moving.cluster.controller.snapshot("s", &moving.volume).await.expect_err("it has moved");
    assert_eq!(again.code(), Code::FailedPrecondition, "{again:?}");
    assert_eq!(moving.listed(csi::ListSnapshotsRequest::default()).await, [moving.id()]);
    let other = moving.cluster.controller.create(volume("w", 64 * MIB, &["c"])).await.unwrap().volume_id;
    let of_other = moving.cluster.controller.snapshot("t", &other).await.unwrap();
    assert_ne!(of_other.snapshot_id, moving.id());
}

/// The controller, or the connection to a node, ends at each call of a move.
#[tokio::test]
async fn a_lost_answer_in_a_move_is_made_up_for() {
    for (node, rpc) in
        [("b", "TakeSnapshot"), ("a", "OpenSource"), ("a", "ReleaseSnapshot"), ("b", "KeepSnapshot")]
    {
        let moving = Moving::new().await;
        moving.cluster.node(node).fault(rpc, Fault::LoseAnswer);
        moving.move_once("a", "b").await.expect_err(rpc);
        assert!(!moving.holders().is_empty(), "{rpc}");
        moving.cluster.node(node).heal();
        assert_eq!(moving.listed(csi::ListSnapshotsRequest::default()).await, [moving.id()], "{rpc}");
        moving.move_it("a", "b").await;
        assert_eq!(moving.holders(), ["b"], "{rpc}");
        until_answered(&[Code::Unavailable], || moving.delete()).await.expect(rpc);
        assert!(moving.holders().is_empty(), "{rpc}");
    }
}

#[tokio::test]
async fn a_deletion_in_the_middle_deletes_both() {
    for rpc in ["ReleaseSnapshot", "KeepSnapshot"] {
        let moving = Moving::new().await;
        let node = if rpc == "ReleaseSnapshot" { "a" } else { "b" };
        moving.cluster.node(node).fault(rpc, Fault::Begins);
        let stopped =
            tokio::time::timeout(std::time::Duration::from_secs(2), moving.move_once("a", "b")).await;
        assert!(stopped.is_err() || stopped.is_ok_and(|answer| answer.is_err()), "{rpc}");
        moving.cluster.node(node).heal();
        until_answered(&[Code::Unavailable], || moving.delete()).await.expect(rpc);
        assert!(moving.holders().is_empty(), "{rpc}");
        fails(moving.move_once("a", "b").await, Code::NotFound, "has snapshot");
        assert!(moving.holders().is_empty(), "{rpc}");
    }
}

/// The target may have a copy.
#[tokio::test]
async fn a_silent_target_keeps_a_snapshot_from_deletion() {
    let moving = Moving::new().await;
    moving.cluster.node("a").fault("ReleaseSnapshot", Fault::Begins);
    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), moving.move_once("a", "b")).await;
    moving.cluster.node("a").heal();
    moving.cluster.net.set_way(&address("b"), Way::Refused);
    moving.cluster.net.cut(&address("b"));
    for _ in 0..2 {
        fails(moving.delete().await, Code::Unavailable, "node \"b\"");
    }
    moving.cluster.net.set_way(&address("b"), Way::Open);
    until_answered(&[Code::Unavailable], || moving.delete()).await.expect("both are gone");
    assert!(moving.holders().is_empty());
}

#[tokio::test]
async fn a_move_that_has_begun_can_go_to_another_node() {
    let moving = Moving::new().await;
    moving.cluster.node("a").fault("ReleaseSnapshot", Fault::Begins);
    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), moving.move_once("a", "b")).await;
    moving.cluster.node("a").heal();
    assert_eq!(moving.holders(), ["a", "b"]);
    moving.move_it("a", "c").await;
    assert_eq!(moving.holders(), ["c"]);
    moving.delete().await.unwrap();
    assert!(moving.holders().is_empty());
}

/// The target was away when its move was given up, and is to be emptied itself.
#[tokio::test]
async fn an_earlier_target_loses_what_was_given_up() {
    for to in ["a", "c"] {
        let moving = Moving::new().await;
        moving.cluster.node("a").fault("ReleaseSnapshot", Fault::Begins);
        let _ = tokio::time::timeout(std::time::Duration::from_secs(2), moving.move_once("a", "b")).await;
        moving.cluster.node("a").heal();
        moving.cluster.net.set_way(&address("b"), Way::Refused);
        moving.cluster.net.cut(&address("b"));
        fails(moving.move_once("a", "c").await, Code::Unavailable, "node \"b\"");
        assert_eq!(moving.holders(), ["a", "b"]);
        moving.cluster.net.set_way(&address("b"), Way::Open);
        match to {
            "c" => {
                let answer = until_answered(&[Code::Unavailable], || moving.move_once("b", "c")).await;
                fails(answer, Code::FailedPrecondition, "is on node \"a\"");
            }
            to => moving.move_it("b", to).await,
        }
        assert_eq!(moving.holders(), ["a"]);
        moving.move_it("a", "c").await;
        assert_eq!(moving.holders(), ["c"]);
    }
}

/// What the target has so far is of no use without the source.
#[tokio::test]
async fn a_snapshot_on_its_way_does_not_move_on() {
    let moving = Moving::new().await;
    moving.cluster.node("a").fault("PullBlocks", Fault::Begins);
    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), moving.move_once("a", "b")).await;
    fails(moving.move_once("b", "c").await, Code::Aborted, "is being copied");
    assert!(moving.holders().contains(&"a"));
    moving.cluster.node("a").heal();
    moving.cluster.net.cut(&address("a"));
    moving.move_it("a", "b").await;
    moving.move_it("b", "c").await;
    assert_eq!(moving.holders(), ["c"]);
}

#[tokio::test]
async fn a_full_target_leaves_the_snapshot_where_it_is() {
    let moving = Moving::new().await;
    let image = moving.cluster.node("a").kernel.tree(format!("/var/lib/hostloop/snapshots/{}", moving.id()));
    assert!(!image.is_empty());
    moving.cluster.node("b").kernel.set_space_at("/var/lib/hostloop", 1 << 30, 0);
    let (code, message) = crate::harness::refused(moving.move_once("a", "b").await);
    assert_eq!(code, Code::ResourceExhausted, "{message}");
    assert_eq!(moving.holders(), ["a"]);
    // Nothing of the offer is left: it can be deleted while the target is away.
    moving.cluster.net.set_way(&address("b"), Way::Refused);
    moving.cluster.net.cut(&address("b"));
    moving.delete().await.expect("no other node has it");
}

#[tokio::test]
async fn a_member_moves_with_its_group_only() {
    let mut moving = Moving::new().await;
    let (client, volume) = (moving.cluster.controller.client.clone(), moving.volume.clone());
    let made = within(client.call(group("g", &[volume.as_str()]))).await.unwrap().group_snapshot.unwrap();
    let member = made.snapshots[0].snapshot_id.clone();
    moving.snapshot.snapshot_id = member.clone();
    fails(moving.move_once("a", "b").await, Code::FailedPrecondition, "moves as a whole");
    moving.snapshot.snapshot_id = made.group_snapshot_id.clone();
    for (from, to) in [("a", "b"), ("b", "c")] {
        moving.cluster.node(from).fault("ReleaseSnapshot", Fault::LoseAnswer);
        moving.move_once(from, to).await.expect_err("the answer is lost");
        moving.cluster.node(from).heal();
        moving.move_it(from, to).await;
        let asked = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: made.group_snapshot_id.clone(),
            ..Default::default()
        };
        let found = within(client.call(asked)).await.unwrap().group_snapshot.unwrap();
        assert_eq!(found.snapshots.len(), 1);
        assert_eq!(
            (&found.snapshots[0].snapshot_id, found.creation_time, found.ready_to_use),
            (&member, made.creation_time, true)
        );
        let restored = MadeFrom::Snapshot(member.clone()).source_of(volume_of(to));
        moving.cluster.controller.create(restored).await.unwrap();
    }
    within(client.call(delete_group(&made.group_snapshot_id))).await.unwrap();
    let by_id = csi::ListSnapshotsRequest { snapshot_id: member, ..Default::default() };
    assert!(moving.listed(by_id).await.is_empty());
    fails(moving.move_once("c", "a").await, Code::NotFound, "has group snapshot");
}

fn volume_of(node: &str) -> csi::CreateVolumeRequest {
    volume(&format!("restored-{node}"), 64 * MIB, &["c"])
}

#[tokio::test]
async fn a_move_to_nowhere_is_refused() {
    let mut moving = Moving::new().await;
    fails(moving.move_once("a", "a").await, Code::InvalidArgument, "another node");
    fails(moving.move_once("a", "x").await, Code::NotFound, "node \"x\"");
    moving.snapshot.snapshot_id = SnapshotId::of_name(&hostloop::model::NodeKey::of("a"), "none").to_string();
    fails(moving.move_once("a", "b").await, Code::NotFound, "has snapshot");
    moving.snapshot.snapshot_id = "x".to_owned();
    fails(moving.move_once("a", "b").await, Code::InvalidArgument, "is not the id");
}

/// Each page lists it once while two nodes have it.
#[tokio::test]
async fn a_page_lists_a_moving_snapshot_once() {
    let moving = Moving::new().await;
    let other = moving.cluster.controller.snapshot("other", &moving.volume).await.unwrap().snapshot_id;
    moving.cluster.node("a").fault("ReleaseSnapshot", Fault::Begins);
    let _ = tokio::time::timeout(std::time::Duration::from_secs(2), moving.move_once("a", "b")).await;
    moving.cluster.node("a").heal();
    assert_eq!(moving.holders(), ["a", "b"]);
    let listed = moving.listed(csi::ListSnapshotsRequest::default()).await;
    assert_eq!(listed.len(), 2);
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), BTreeSet::from([moving.id().to_owned(), other]));
}

#[tokio::test]
async fn snapshots_on_two_nodes_are_not_compared() {
    let moving = Moving::new().await;
    let controller = &moving.cluster.controller;
    let later = controller.snapshot("later", &moving.volume).await.unwrap().snapshot_id;
    let delta = async |target: &str| {
        let request = csi::GetMetadataDeltaRequest {
            base_snapshot_id: moving.id().to_owned(),
            target_snapshot_id: target.to_owned(),
            ..Default::default()
        };
        let mut stream = controller.client.open(tonic::Request::new(request)).await?;
        stream.message().await.map(drop)
    };
    delta(&later).await.expect("they are on one node");
    moving.move_it("a", "b").await;
    fails(delta(&later).await, Code::FailedPrecondition, "on the nodes");
    let other = controller.create(volume("w", 64 * MIB, &["c"])).await.unwrap().volume_id;
    let other = controller.snapshot("o", &other).await.unwrap().snapshot_id;
    fails(delta(&other).await, Code::InvalidArgument, "different volumes");
    let moved =
        Moving { snapshot: csi::Snapshot { snapshot_id: later.clone(), ..Default::default() }, ..moving };
    moved.move_it("a", "b").await;
}
