//! Moved snapshots whose nodes do not answer, or have left the cluster.

use super::*;

/// Its first node knows its new node.
#[tokio::test]
async fn a_snapshot_of_a_silent_node_is_not_missing() {
    let moving = Moving::new().await;
    for (from, to) in [("a", "b"), ("b", "c")] {
        moving.move_it(from, to).await;
        moving.set_way(to, Way::Refused);
        moving.is_unknown(to).await;
        moving.set_way(to, Way::Open);
        until_answered(&[Code::Unavailable], || moving.get()).await.expect("it is there");
        assert_eq!(moving.holders(), [to]);
    }
    // A node on its way may be off.
    moving.set_way("b", Way::Refused);
    moving.get().await.expect("it is on c");
    moving.set_way("b", Way::Open);
    moving.move_it("c", "a").await;
    moving.set_way("b", Way::Refused);
    moving.delete().await.expect("it has come back");
    fails(moving.get().await, Code::NotFound, moving.id());
}

#[tokio::test]
async fn a_group_of_a_silent_node_is_not_missing() {
    let mut moving = Moving::new().await;
    let (client, volume) = (moving.cluster.controller.client.clone(), moving.volume.clone());
    let made = within(client.call(group("g", &[volume.as_str()]))).await.unwrap().group_snapshot.unwrap();
    moving.snapshot.snapshot_id = made.group_snapshot_id.clone();
    moving.move_it("a", "b").await;
    moving.set_way("b", Way::Refused);
    let get = || {
        client.call(csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: made.group_snapshot_id.clone(),
            ..Default::default()
        })
    };
    fails(within(get()).await, Code::Unavailable, "has moved to node \"b\"");
    moving.set_way("b", Way::Open);
    until_answered(&[Code::Unavailable], || within(get())).await.expect("it is there");
}

/// Only an administrator knows that the node will not come back.
#[tokio::test]
async fn a_moved_snapshot_of_a_lost_node_is_given_up() {
    let moving = Moving::new().await;
    moving.move_it("a", "b").await;
    let members = |ids: &[&str]| {
        let known: Vec<(&str, String)> = ids.iter().map(|id| (*id, address(id))).collect();
        let known: Vec<(&str, Option<&str>)> =
            known.iter().map(|(id, address)| (*id, Some(address.as_str()))).collect();
        moving.cluster.directory.set(&known, &[]);
    };
    members(&["a", "c"]);
    moving.is_unknown("b").await;
    assert_eq!(moving.holders(), ["b"]);
    let forgetting = Controller::start(&moving.cluster.net, &moving.cluster.directory, &["b"]).await;
    within(forgetting.client.call(delete_snapshot(moving.id()))).await.expect("its node is given up");

    // After its first node has left as well, no node knows its new one.
    members(&["c"]);
    fails(moving.delete().await, Code::Unavailable, "was made on a node that is not part of the cluster");
    let deleted = within(forgetting.client.call(delete_snapshot(moving.id()))).await;
    fails(deleted, Code::Unavailable, "also if the snapshot had moved to another node");
}

#[tokio::test]
async fn a_snapshot_of_a_lost_node_may_be_on_a_silent_one() {
    let moving = Moving::new().await;
    moving.move_it("a", "b").await;
    moving.cluster.directory.set(&[("b", Some(&address("b"))), ("c", Some(&address("c")))], &[]);
    moving.get().await.expect("it is on b");
    moving.set_way("b", Way::Refused);
    fails(moving.get().await, Code::Unavailable, "node \"b\"");
    let by_id = csi::ListSnapshotsRequest { snapshot_id: moving.id().to_owned(), ..Default::default() };
    fails(within(moving.cluster.controller.client.call(by_id)).await, Code::Unavailable, "node \"b\"");
}
