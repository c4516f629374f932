//! Every call on one volume or snapshot goes to its node, and what is nowhere has the code that a node gives.

use hostloop::wire::csi;
use tonic::{Code, Status};

use crate::harness::{Cluster, GIB, attach, detach, fails, id_on, place, volume};
use crate::requests::{
    Kind, MIB, Spec, delete, delete_group, delete_snapshot, expand, group, modify, snapshot,
};

const SIZE: i64 = 512 * MIB;

#[tokio::test]
async fn a_volume_lives_on_its_node() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let client = &cluster.controller.client;
    let made = cluster.controller.create(volume("v", SIZE, &["b"])).await.unwrap();
    let id = made.volume_id.as_str();
    assert_eq!((id, place(&made).as_str()), (id_on("b", "v").as_str(), "b"));
    assert_eq!(cluster.controller.get(id).await.unwrap(), made);

    let grown = client.call(expand(id, GIB)).await.unwrap();
    assert_eq!(grown.capacity_bytes, GIB);
    client.call(modify(id, &[("discard", "false")])).await.unwrap();
    let capability = Spec::new(Kind::Block).capability();
    let confirm = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    assert!(client.call(confirm).await.unwrap().confirmed.is_some());

    let to_b =
        csi::ControllerPublishVolumeRequest { node_id: "b".to_owned(), ..attach(id, capability.clone()) };
    client.call(to_b).await.unwrap();
    fails(cluster.controller.delete(id).await, Code::FailedPrecondition, "published");
    let to_a = client.call(attach(id, capability)).await;
    assert!(to_a.is_err(), "the volume cannot be used on a");
    let from_b = csi::ControllerUnpublishVolumeRequest { node_id: "b".to_owned(), ..detach(id) };
    client.call(from_b).await.unwrap();

    let cut = cluster.controller.snapshot("s", id).await.unwrap();
    let found = csi::GetSnapshotRequest { snapshot_id: cut.snapshot_id.clone(), ..Default::default() };
    let found = client.call(found).await.unwrap().snapshot.unwrap();
    assert_eq!(found, cut);
    client.call(delete_snapshot(&cut.snapshot_id)).await.unwrap();
    cluster.controller.delete(id).await.unwrap();
    assert!(cluster.node("b").volumes().await.is_empty());
    assert!(cluster.node("a").calls("ControllerGetVolume").is_empty(), "a was asked nothing");
}

/// What each call answers about this volume, snapshot or group.
async fn about(cluster: &Cluster, id: &str) -> Vec<(&'static str, Result<(), Status>)> {
    fn done<T>(answer: Result<T, Status>) -> Result<(), Status> {
        answer.map(drop)
    }
    let client = &cluster.controller.client;
    let capability = Spec::new(Kind::Block).capability();
    let confirm = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: id.to_owned(),
        volume_capabilities: vec![capability.clone()],
        ..Default::default()
    };
    let get_snapshot = csi::GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
    let get_group =
        csi::GetVolumeGroupSnapshotRequest { group_snapshot_id: id.to_owned(), ..Default::default() };
    vec![
        ("delete", done(client.call(delete(id)).await)),
        ("unpublish", done(client.call(detach(id)).await)),
        ("delete snapshot", done(client.call(delete_snapshot(id)).await)),
        ("delete group", done(client.call(delete_group(id)).await)),
        ("get", cluster.controller.get(id).await.map(drop)),
        ("publish", done(client.call(attach(id, capability)).await)),
        ("validate", done(client.call(confirm).await)),
        ("expand", done(client.call(expand(id, GIB)).await)),
        ("modify", done(client.call(modify(id, &[("discard", "true")])).await)),
        ("snapshot", done(client.call(snapshot("s", id)).await)),
        ("get snapshot", done(client.call(get_snapshot).await)),
        ("group", done(client.call(group("g", &[id])).await)),
        ("get group", done(client.call(get_group).await)),
    ]
}

/// The calls that end something come first in [`about`].
const ENDING: usize = 4;

#[tokio::test]
async fn an_unknown_id_is_not_found_and_may_be_ended() {
    let cluster = Cluster::start(&["a", "b"]).await;
    // No id at all, and one of a volume that its node does not have.
    for id in ["reallyfakevolumeid", "vol-x", "../../etc", &id_on("a", "none")] {
        for (number, (call, answer)) in about(&cluster, id).await.into_iter().enumerate() {
            match number < ENDING {
                true => answer.unwrap_or_else(|status| panic!("{call} {id}: {status:?}")),
                false => assert_eq!(answer.expect_err(call).code(), Code::NotFound, "{call} {id}"),
            }
        }
    }
}

#[tokio::test]
async fn a_volume_on_an_unknown_node_is_not_deleted() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let id = id_on("x", "v");
    for (call, answer) in about(&cluster, &id).await {
        let code = answer.map_or_else(|status| status.code(), |()| Code::Ok);
        let expected = match call {
            "delete" | "unpublish" => Code::Unavailable,
            // To these it is not an id.
            "delete snapshot" | "delete group" => Code::Ok,
            _ => Code::NotFound,
        };
        assert_eq!(code, expected, "{call}");
    }
}

#[tokio::test]
async fn a_request_without_an_id_is_invalid_without_a_node() {
    let cluster = Cluster::start(&["a"]).await;
    for (call, answer) in about(&cluster, "").await {
        assert_eq!(answer.expect_err(call).code(), Code::InvalidArgument, "{call}");
    }
    assert!(cluster.node("a").calls("DeleteVolume").is_empty());
}

#[tokio::test]
async fn a_controller_announces_what_its_nodes_do() {
    let cluster = Cluster::start(&["a"]).await;
    let capabilities =
        cluster.controller.client.call(csi::ControllerGetCapabilitiesRequest {}).await.unwrap();
    assert_eq!(capabilities.capabilities.len(), 17);
    let services = cluster.controller.client.call(csi::GetPluginCapabilitiesRequest {}).await.unwrap();
    assert_eq!(services.capabilities.len(), 6);
    let groups = csi::GroupControllerGetCapabilitiesRequest {};
    let groups = cluster.controller.client.call(groups).await.unwrap();
    assert_eq!(groups.capabilities.len(), 1);
}
