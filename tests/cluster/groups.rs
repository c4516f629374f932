//! Groups of snapshots: on one node, at one point in time.

use hostloop::wire::csi;
use tonic::{Code, Status};

use crate::harness::{Cluster, fails, id_on, volume, within};
use crate::requests::{MIB, delete_group, group};

async fn made(cluster: &Cluster, name: &str, node: &str) -> String {
    let request = volume(name, 512 * MIB, &[node]);
    cluster.controller.create(request).await.unwrap().volume_id
}

async fn cut(cluster: &Cluster, name: &str, ids: &[&str]) -> Result<csi::VolumeGroupSnapshot, Status> {
    let call = within(cluster.controller.client.call(group(name, ids))).await;
    Ok(call?.group_snapshot.expect("a group"))
}

#[tokio::test]
async fn a_group_lives_on_the_node_of_its_volumes() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let (one, two) = (made(&cluster, "1", "b").await, made(&cluster, "2", "b").await);
    let there = cut(&cluster, "g", &[&one, &two]).await.unwrap();
    assert_eq!(there.snapshots.len(), 2);
    assert_eq!(cut(&cluster, "g", &[&two, &one]).await.unwrap(), there);
    let get = csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: there.group_snapshot_id.clone(),
        ..Default::default()
    };
    let client = &cluster.controller.client;
    let found = client.call(get).await.unwrap();
    assert_eq!(found.group_snapshot, Some(there.clone()));
    client.call(delete_group(&there.group_snapshot_id)).await.unwrap();
    client.call(delete_group(&there.group_snapshot_id)).await.unwrap();
    assert!(cluster.node("a").calls("CreateVolumeGroupSnapshot").is_empty());
}

#[tokio::test]
async fn volumes_of_several_nodes_are_no_group() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let (one, two) = (made(&cluster, "1", "a").await, made(&cluster, "2", "b").await);
    let apart = cut(&cluster, "g", &[&one, &two]).await;
    fails(apart, Code::FailedPrecondition, "must be on one node");
    for node in &cluster.nodes {
        assert!(node.calls("CreateVolumeGroupSnapshot").is_empty());
    }
    let (unknown, missing) = (id_on("x", "3"), id_on("a", "3"));
    fails(cut(&cluster, "g", &[&one, &two, &unknown]).await, Code::NotFound, &unknown);
    fails(cut(&cluster, "g", &[&unknown]).await, Code::NotFound, &unknown);
    fails(cut(&cluster, "g", &[&one, &unknown]).await, Code::NotFound, &unknown);
    fails(cut(&cluster, "g", &[&one, &missing]).await, Code::NotFound, &missing);
    fails(cut(&cluster, "g", &[&one, "no-id"]).await, Code::NotFound, "no-id");
}
