//! The calls that a move makes, on real connections: each does what it says, and an error says whose it is.

use hostloop::cluster::moves::copies::{Access, NewCopy};
use hostloop::cluster::moves::nodes::{NodeError, Nodes, PassRequest, Presence};
use hostloop::cluster::moves::places::Places;
use hostloop::cluster::moves::resources::{ClaimId, ObjectId, Purpose, VolumeReplicaSpec};
use hostloop::cluster::notices::Asks as _;
use hostloop::model::{NodeKey, VolumeId};
use hostloop::wire::csi::{ControllerGetVolumeRequest, CreateSnapshotRequest, DeleteSnapshotRequest};
use hostloop::wire::peer::ForgetVolumeRequest;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::runtime::watcher::Event;
use serde_json::json;
use tonic::Code;

use crate::harness::process::{Certificates, Processes};
use crate::harness::{place, volume, within};
use crate::pki::controller;
use crate::requests::{MIB, delete};
use crate::wait::until;

const SIZE: i64 = 512 * MIB;

pub fn replica(volume_id: &str, name: &str, (from, to): (&str, &str), generation: u64) -> VolumeReplicaSpec {
    VolumeReplicaSpec {
        driver: "hostloop.csi.dev".to_owned(),
        volume_id: volume_id.to_owned(),
        generation,
        persistent_volume: ObjectId { name: "pvc-1".to_owned(), uid: "1".to_owned() },
        claim: ClaimId { namespace: "default".to_owned(), name: "data".to_owned(), uid: "3".to_owned() },
        source_node: from.to_owned(),
        target_node: to.to_owned(),
        source_pool: None,
        target_pool: None,
        target_class: None,
        copy_name: name.to_owned(),
        copy_id: VolumeId::of_name(&NodeKey::of(to), name).to_string(),
        purpose: Purpose::Move,
        keep_source: false,
        requested_by: None,
    }
}

/// A copy like the volumes of these tests.
fn copy(replica: &VolumeReplicaSpec) -> NewCopy {
    NewCopy {
        convert: false,
        name: replica.copy_name.clone(),
        source: replica.volume_id.clone(),
        source_node: replica.source_node.clone(),
        generation: replica.generation,
        target: replica.target_node.clone(),
        bytes: SIZE as u64,
        access: Access {
            block: true,
            fs_type: String::new(),
            mount_options: Vec::new(),
            modes: vec!["ReadWriteOnce".to_owned()],
        },
        parameters: Default::default(),
        mutable_parameters: Default::default(),
    }
}

fn pass() -> PassRequest {
    PassRequest { parameters: Default::default(), whole: true, most_bytes: 2 * SIZE as u64, last: false }
}

/// Makes the copy. A call says that it goes on if that takes longer than it waits.
async fn create(nodes: &dyn Nodes, copy: &NewCopy) {
    while let Err(error) = nodes.create(copy).await {
        assert!(matches!(error, NodeError::Running(_)), "{error:?}");
    }
}

/// The cuts on the disks of all nodes.
fn cuts(processes: &Processes) -> Vec<String> {
    processes.nodes.iter().flat_map(|node| node.snapshots()).collect()
}

#[tokio::test]
async fn volume_that_moves_keeps_its_creation() {
    let processes = Processes::start(&["a", "b"], Certificates::Named).await;
    let router = processes.router(&["a", "b"]);
    let nodes: &dyn Nodes = &router;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    let created = async |node: &str| {
        let answers = router.ask().await.unwrap();
        let (_, answer) = answers.into_iter().find(|(name, _)| name == node).unwrap();
        answer.unwrap().volumes.into_iter().find(|volume| volume.id == id).unwrap().created
    };
    let made = created("a").await;
    assert!(made.is_some());
    let replica = replica(&id, "copy", ("a", "b"), 0);
    create(nodes, &copy(&replica)).await;
    nodes.fence(&replica).await.unwrap();
    nodes.update(&replica, &pass()).await.unwrap();
    nodes.complete(&replica, false, 0).await.unwrap();
    assert_eq!(created("b").await, made);
}

#[tokio::test]
async fn a_move_leaves_one_volume_with_its_id() {
    let processes = Processes::start(&["a", "b"], Certificates::Named).await;
    let router = processes.router(&["a", "b"]);
    let nodes: &dyn Nodes = &router;
    let mut members = nodes.members().expect("they are known");
    members.sort();
    assert_eq!(members, ["a", "b"]);
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    for (way, generation) in [(("a", "b"), 0), (("b", "a"), 1), (("a", "b"), 2)] {
        let replica = replica(&id, &format!("copy-{generation}"), way, generation);
        assert!(nodes.room(&copy(&replica)).await.unwrap() > SIZE as u64);
        create(nodes, &copy(&replica)).await;
        let updated = nodes.update(&replica, &pass()).await.unwrap();
        assert!(updated.source_in_use && updated.cut_ns > 0, "it is not fenced");
        let early = nodes.complete(&replica, false, 0).await.unwrap_err();
        assert!(matches!(early, NodeError::InUse(_)), "{early:?}");
        nodes.fence(&replica).await.unwrap();
        assert!(!nodes.update(&replica, &pass()).await.unwrap().source_in_use);
        for _ in 0..2 {
            nodes.complete(&replica, false, 0).await.unwrap();
        }
        let class = [("discard".to_owned(), "false".to_owned())].into();
        nodes.modify(&replica, &class).await.unwrap();
        let left = nodes.retire(&replica).await.unwrap();
        assert_eq!(nodes.find(way.0, &id).await, Ok(Presence::Nothing));
        assert_eq!(nodes.find(way.1, &id).await, Ok(Presence::Has(generation + 1)));
        let found = processes.controller.call(ControllerGetVolumeRequest { volume_id: id.clone() });
        assert_eq!(place(&found.await.unwrap().volume.unwrap()), way.1);
        let never = nodes.delete_left(&replica, &id).await;
        assert_eq!(never, Ok(()), "the earlier node has nothing of that id");
        nodes.release(&replica).await.unwrap();
        let other = VolumeReplicaSpec { generation: generation + 1, ..replica.clone() };
        assert!(matches!(nodes.delete_left(&other, &left).await, Err(NodeError::InUse(_))));
        nodes.delete_left(&replica, &left).await.unwrap();
        assert_eq!(nodes.find(way.1, &id).await, Ok(Presence::Has(generation + 1)));
        assert_eq!(cuts(&processes), Vec::<String>::new());
    }
    // Its first node has nothing left of it, and would answer that it is deleted. Its last node says so from then on.
    within(processes.controller.call(delete(&id))).await.unwrap();
    assert_eq!(nodes.find("a", &id).await, Ok(Presence::Nothing));
    assert_eq!(nodes.find("b", &id).await, Ok(Presence::Deleted));
}

/// The first node of a volume remembers nothing of it, as if its disk were replaced, and a third one does not answer.
#[tokio::test]
async fn a_moved_volume_is_not_taken_for_a_deleted_one() {
    let mut processes = Processes::start(&["a", "b", "c"], Certificates::Named).await;
    let router = processes.router(&["a", "b"]);
    let nodes: &dyn Nodes = &router;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    let replica = replica(&id, "copy", ("a", "b"), 0);
    create(nodes, &copy(&replica)).await;
    nodes.fence(&replica).await.unwrap();
    nodes.update(&replica, &pass()).await.unwrap();
    nodes.complete(&replica, false, 0).await.unwrap();
    let left = nodes.retire(&replica).await.unwrap();
    nodes.release(&replica).await.unwrap();
    nodes.delete_left(&replica, &left).await.unwrap();
    let by = processes.pki.tls("controller", &controller());
    let forget = ForgetVolumeRequest { volume_id: id.clone() };
    processes.peer(&by, "a").await.forget_volume(forget).await.unwrap();

    processes.lose("c");
    let get = ControllerGetVolumeRequest { volume_id: id.clone() };
    assert_eq!(place(&within(processes.controller.call(get)).await.unwrap().volume.unwrap()), "b");
    let unknown =
        async || within(processes.controller.call(delete(&id))).await.err().map(|status| status.code());
    until("node c does not answer", async || unknown().await == Some(Code::Unavailable)).await;
    assert_eq!(nodes.find("b", &id).await, Ok(Presence::Has(1)), "c may have a later one");
}

#[tokio::test]
async fn a_move_that_is_given_up_leaves_the_volume() {
    let processes = Processes::start(&["a", "b"], Certificates::Named).await;
    let router = processes.router(&["a", "b"]);
    let nodes: &dyn Nodes = &router;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    let replica = replica(&id, "copy", ("a", "b"), 0);
    create(nodes, &copy(&replica)).await;
    nodes.fence(&replica).await.unwrap();
    let other = VolumeReplicaSpec { generation: 1, ..replica.clone() };
    for refused in [nodes.unfence(&other).await, nodes.delete_copy(&other).await] {
        assert!(matches!(refused, Err(NodeError::InUse(_))), "{refused:?}");
    }
    nodes.unfence(&replica).await.unwrap();
    nodes.release(&replica).await.unwrap();
    for _ in 0..2 {
        nodes.delete_copy(&replica).await.unwrap();
    }
    assert_eq!(nodes.find("a", &id).await, Ok(Presence::Has(0)));
    let gone = nodes.update(&replica, &pass()).await.unwrap_err();
    assert!(matches!(gone, NodeError::NotFound(_)), "{gone:?}");
    assert_eq!(cuts(&processes), Vec::<String>::new());
}

/// Only the source's own silence may lead to a promotion.
#[tokio::test]
async fn silence_is_told_from_errors_by_the_node_asked() {
    let mut processes = Processes::start(&["a", "b"], Certificates::Named).await;
    let router = processes.router(&["a", "b"]);
    let nodes: &dyn Nodes = &router;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    let replica = replica(&id, "copy", ("a", "b"), 0);
    create(nodes, &copy(&replica)).await;
    let nowhere = VolumeReplicaSpec { source_node: "c".to_owned(), ..replica.clone() };
    assert!(matches!(nodes.fence(&nowhere).await, Err(NodeError::Silent(_))));
    let unknown = VolumeReplicaSpec { volume_id: replica.copy_id.clone(), ..replica.clone() };
    assert!(matches!(nodes.fence(&unknown).await, Err(NodeError::NotFound(_))));

    processes.lose("a");
    let is_silent = async || matches!(nodes.fence(&replica).await, Err(NodeError::Silent(_)));
    until("the process has ended", is_silent).await;
    assert!(matches!(nodes.find("a", &id).await, Err(NodeError::Silent(_))));
    // The copy's node answers, and says that it does not reach the source.
    let update = nodes.update(&replica, &pass()).await.unwrap_err();
    assert!(!matches!(update, NodeError::Silent(_)), "{update:?}");
    nodes.complete(&replica, true, 0).await.unwrap();
    assert_eq!(nodes.find("b", &id).await, Ok(Presence::Has(1)));
}

/// Another node may say that it has the volume: it is in wrong hands, or an earlier state file was restored there.
#[tokio::test]
async fn a_copy_is_made_from_the_named_node_only() {
    let processes = Processes::start(&["a", "b", "c"], Certificates::Named).await;
    let router = processes.router(&["a", "b", "c"]);
    let nodes: &dyn Nodes = &router;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    let replica = replica(&id, "copy", ("a", "b"), 0);
    let elsewhere = NewCopy { source_node: "c".to_owned(), ..copy(&replica) };
    let missing = nodes.create(&elsewhere).await.unwrap_err();
    assert!(matches!(&missing, NodeError::NotFound(_)), "node c does not have it: {missing:?}");
    let later = NewCopy { generation: 1, ..copy(&replica) };
    let refused = nodes.create(&later).await.unwrap_err();
    assert!(matches!(&refused, NodeError::InUse(why) if why.contains("has generation 0")), "{refused:?}");
    let nowhere = NewCopy { source_node: "d".to_owned(), ..copy(&replica) };
    assert!(matches!(nodes.create(&nowhere).await, Err(NodeError::Silent(_))));
    assert_eq!(nodes.find("b", &replica.copy_id).await, Ok(Presence::Nothing));
    assert_eq!(cuts(&processes), Vec::<String>::new());
    create(nodes, &copy(&replica)).await;
}

fn persistent_volume(id: &str, node: &str) -> PersistentVolume {
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": [node]}]}]}});
    let csi = json!({"driver": "hostloop.csi.dev", "volumeHandle": id});
    let object = json!({"metadata": {"name": "pvc-1"}, "spec": {"csi": csi, "nodeAffinity": affinity}});
    serde_json::from_value(object).unwrap()
}

/// The earlier node of a promoted copy is back, and has not heard of the promotion.
#[tokio::test]
async fn a_volume_is_where_its_object_says() {
    let processes = Processes::start(&["a", "b"], Certificates::Named).await;
    let nodes = processes.router(&["a", "b"]);
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    let replica = replica(&id, "copy", ("a", "b"), 0);
    nodes.create(&copy(&replica)).await.unwrap();
    nodes.complete(&replica, true, 0).await.unwrap();

    let places = Places::watched();
    let client = processes.served(&nodes.clone().with_places(places.clone())).await;
    let get = async || {
        let request = ControllerGetVolumeRequest { volume_id: id.clone() };
        within(client.call(request)).await.map(|answer| place(&answer.volume.expect("a volume")))
    };
    assert_eq!(get().await.expect_err("it may be on either node").code(), Code::Unavailable);
    let show = |event| places.apply(event, "hostloop.csi.dev");
    show(Event::Init);
    show(Event::InitDone);
    assert_eq!(get().await.expect("it is on the node of its id"), "a");
    show(Event::Apply(persistent_volume(&id, "b")));
    assert_eq!(get().await.expect("its object names the other node"), "b");
    let snapshot =
        CreateSnapshotRequest { source_volume_id: id.clone(), name: "s".to_owned(), ..Default::default() };
    let snapshot = within(client.call(snapshot)).await.unwrap().snapshot.expect("a snapshot").snapshot_id;
    assert!(snapshot.contains(NodeKey::of("b").as_str()), "{snapshot}");
    within(client.call(DeleteSnapshotRequest { snapshot_id: snapshot.clone(), ..Default::default() }))
        .await
        .unwrap();
    within(client.call(delete(&id))).await.expect("deleted");
    assert_eq!(nodes_with(&processes, &id).await, ["a"], "nothing else was deleted");
    // An object that names a node without the volume changes nothing.
    assert_eq!(get().await.expect("the earlier node has it"), "a");
}

/// The nodes that have a volume.
async fn nodes_with(processes: &Processes, id: &str) -> Vec<&'static str> {
    let router = processes.router(&["a", "b"]);
    let mut all = Vec::new();
    for node in ["a", "b"] {
        if matches!(router.find(node, id).await, Ok(Presence::Has(_))) {
            all.push(node);
        }
    }
    all
}
