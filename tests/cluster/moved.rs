//! Volumes that have moved: a controller finds them by the id that they keep.

use std::collections::BTreeSet;

use hostloop::app;
use hostloop::cluster::permit::{expiry, sign};
use hostloop::model::{Grant, NodeKey, VolumeId, VolumeSource};
use hostloop::selftest::client::Client;
use hostloop::service::{COPY, PERMIT, SOURCE_ADDRESS, SOURCE_NODE};
use hostloop::wire::{csi, peer};
use tonic::metadata::BinaryMetadataValue;
use tonic::{Code, Request, Status};

use crate::harness::process::{Certificates, Processes};
use crate::harness::{place, volume, within};
use crate::pki::controller;
use crate::requests::{MIB, MadeFrom, delete, group};

const SIZE: i64 = 512 * MIB;

/// Moves a volume from one node to another one, with the calls that a move makes.
async fn move_it(processes: &Processes, id: &str, (from, to): (&str, &str), generation: u64) {
    let by = processes.pki.tls("mover", &controller());
    let name = format!("copy-{generation}-of-{id}");
    let grant = Grant {
        source_node: from.to_owned(),
        target_node: to.to_owned(),
        source: VolumeSource::Volume(id.parse().unwrap()),
        target: VolumeId::of_name(&NodeKey::of(to), &name),
        expires: expiry(),
    };
    let permit = sign(&by, &grant).unwrap();
    let source_address = processes.node(from).address.clone();
    let mut copy = MadeFrom::Volume(id.to_owned()).source_of(volume(&name, SIZE, &[to]));
    copy.capacity_range = None;
    let mut copy = Request::new(copy);
    copy.metadata_mut().insert(SOURCE_ADDRESS, source_address.parse().unwrap());
    copy.metadata_mut().insert(SOURCE_NODE, from.parse().unwrap());
    copy.metadata_mut().insert(COPY, "1".parse().unwrap());
    copy.metadata_mut().insert_bin(PERMIT, BinaryMetadataValue::from_bytes(permit.as_bytes()));
    let connect = app::connector(by.clone());
    let target = connect(&processes.node(to).address, NodeKey::of(to).as_str()).await.unwrap();
    let made = within(Client::on(target).send(copy)).await.unwrap().volume.expect("a copy").volume_id;

    let (mut source, mut target) = (processes.peer(&by, from).await, processes.peer(&by, to).await);
    let seal = peer::SealVolumeRequest {
        volume_id: id.to_owned(),
        moved_to: to.to_owned(),
        generation: generation - 1,
        unsealed: 0,
    };
    source.seal_volume(seal).await.unwrap();
    let update = peer::UpdateCopyRequest {
        volume_id: made.clone(),
        source_node_id: from.to_owned(),
        source_address,
        permit: permit.as_bytes().to_vec(),
        ..Default::default()
    };
    assert!(target.update_copy(update).await.unwrap().into_inner().sealed);
    let complete = peer::CompleteCopyRequest {
        volume_id: made,
        source_volume_id: id.to_owned(),
        generation,
        ..Default::default()
    };
    target.complete_copy(complete).await.unwrap();
    let retire = peer::RetireVolumeRequest { volume_id: id.to_owned(), generation, node_id: to.to_owned() };
    source.retire_volume(retire).await.unwrap();
}

async fn get(controller: &Client, id: &str) -> Result<csi::Volume, Status> {
    let request = csi::ControllerGetVolumeRequest { volume_id: id.to_owned() };
    Ok(within(controller.call(request)).await?.volume.expect("a volume"))
}

async fn listed(controller: &Client) -> Vec<String> {
    let page = within(controller.call(csi::ListVolumesRequest::default())).await.unwrap();
    page.entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id).collect()
}

#[tokio::test]
async fn calls_find_a_volume_wherever_it_has_moved() {
    let processes = Processes::start(&["a", "b", "c"], Certificates::Named).await;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    for (way, generation) in [(("a", "b"), 1), (("b", "c"), 2)] {
        move_it(&processes, &id, way, generation).await;
        let found = get(&processes.controller, &id).await.expect("it is there");
        assert_eq!((found.volume_id.as_str(), place(&found)), (id.as_str(), way.1.to_owned()));
        assert_eq!(listed(&processes.controller).await.iter().filter(|listed| **listed == id).count(), 1);

        let snapshot = processes.snapshot(&format!("s-{generation}"), &id).await;
        assert_eq!(snapshot.source_volume_id, id);
        let bytes = SIZE * 2 * i64::try_from(generation).unwrap();
        let larger = csi::ControllerExpandVolumeRequest {
            volume_id: id.clone(),
            capacity_range: Some(csi::CapacityRange { required_bytes: bytes, limit_bytes: 0 }),
            ..Default::default()
        };
        assert_eq!(within(processes.controller.call(larger)).await.unwrap().capacity_bytes, bytes);
        let clone = MadeFrom::Volume(id.clone()).source_of(volume(&format!("w-{generation}"), bytes, &["a"]));
        assert_eq!(place(&processes.create(clone).await.expect("the data come from there")), "a");
    }
    let again = processes.create(volume("v", SIZE, &["a"])).await.expect_err("it is somewhere else");
    assert_eq!(again.code(), Code::FailedPrecondition, "{again:?}");
    within(processes.controller.call(delete(&id))).await.expect("deleted");
    assert_eq!(get(&processes.controller, &id).await.expect_err("it is gone").code(), Code::NotFound);
    assert!(!listed(&processes.controller).await.contains(&id));
}

#[tokio::test]
async fn a_volume_is_found_after_its_first_node_has_gone() {
    let processes = Processes::start(&["a", "b", "c"], Certificates::Named).await;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    let stays = processes.create(volume("w", SIZE, &["a"])).await.unwrap().volume_id;
    move_it(&processes, &id, ("a", "b"), 1).await;

    let (controller, _process) = processes.controller_of(&["b", "c"]).await;
    assert_eq!(place(&get(&controller, &id).await.expect("it is there")), "b");
    assert_eq!(get(&controller, &stays).await.expect_err("it was there").code(), Code::NotFound);
    let lost = within(controller.call(delete(&stays))).await.expect_err("its node may come back");
    assert_eq!(lost.code(), Code::Unavailable, "{lost:?}");
    within(controller.call(delete(&id))).await.expect("deleted");
    assert_eq!(get(&controller, &id).await.expect_err("it is gone").code(), Code::NotFound);

    // Only the node that it has moved to is missing.
    let id = processes.create(volume("x", SIZE, &["a"])).await.unwrap().volume_id;
    move_it(&processes, &id, ("a", "b"), 1).await;
    let (controller, _process) = processes.controller_of(&["a", "c"]).await;
    for status in [
        get(&controller, &id).await.expect_err("its node is away"),
        within(controller.call(delete(&id))).await.expect_err("its node is away"),
    ] {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("has moved to node \"b\""), "{}", status.message());
    }
}

#[tokio::test]
async fn pages_list_a_moved_volume_once() {
    let processes = Processes::start(&["a", "b"], Certificates::Named).await;
    let mut ids = Vec::new();
    for (node, other) in [("a", "b"), ("b", "a")] {
        for n in 0..3 {
            let made = processes.create(volume(&format!("{node}-{n}"), SIZE, &[node])).await.unwrap();
            if n == 1 {
                move_it(&processes, &made.volume_id, (node, other), 1).await;
            }
            ids.push(made.volume_id);
        }
    }
    let (mut all, mut token) = (Vec::new(), String::new());
    for _ in 0..20 {
        let request = csi::ListVolumesRequest { max_entries: 1, starting_token: token };
        let page = within(processes.controller.call(request)).await.unwrap();
        all.extend(page.entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    let distinct: BTreeSet<_> = all.iter().collect();
    assert_eq!((token.as_str(), distinct.len()), ("", all.len()), "{all:?}");
    assert!(ids.iter().all(|id| distinct.contains(id)), "{all:?}");
}

#[tokio::test]
async fn snapshots_of_a_moved_volume_are_all_listed() {
    let processes = Processes::start(&["a", "b", "c"], Certificates::Named).await;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    let other = processes.create(volume("w", SIZE, &["b"])).await.unwrap().volume_id;
    processes.snapshot("other", &other).await;
    let before = processes.snapshot("before", &id).await.snapshot_id;
    move_it(&processes, &id, ("a", "b"), 1).await;
    let after = processes.snapshot("after", &id).await.snapshot_id;
    let request = csi::ListSnapshotsRequest { source_volume_id: id, ..Default::default() };
    let page = within(processes.controller.call(request)).await.unwrap();
    let found = page.entries.into_iter().map(|entry| entry.snapshot.expect("a snapshot").snapshot_id);
    assert_eq!(found.collect::<BTreeSet<_>>(), BTreeSet::from([before, after]));
}

#[tokio::test]
async fn a_group_is_made_where_its_volumes_are_now() {
    let processes = Processes::start(&["a", "b"], Certificates::Named).await;
    let moved = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    let stays = processes.create(volume("w", SIZE, &["b"])).await.unwrap().volume_id;
    let left = processes.create(volume("x", SIZE, &["a"])).await.unwrap().volume_id;
    move_it(&processes, &moved, ("a", "b"), 1).await;
    let made = within(processes.controller.call(group("g", &[&moved, &stays]))).await.expect("both are on b");
    assert_eq!(made.group_snapshot.expect("a group").snapshots.len(), 2);
    let apart =
        within(processes.controller.call(group("h", &[&moved, &left]))).await.expect_err("on a and b");
    assert_eq!(apart.code(), Code::FailedPrecondition, "{apart:?}");
}

/// Deletes what a volume that has moved left at its earlier node.
async fn delete_left(processes: &Processes, id: &str, node: &str, generation: u64) {
    let left = VolumeId::of_retired(&NodeKey::of(node), &id.parse().unwrap(), generation);
    let request =
        peer::DeleteCopyRequest { volume_id: left.to_string(), source_volume_id: id.to_owned(), generation };
    processes
        .peer(&processes.pki.tls("mover", &controller()), node)
        .await
        .delete_copy(request)
        .await
        .unwrap();
}

/// The name is free again as soon as the volume itself is deleted, and not before.
#[tokio::test]
async fn a_moved_volume_is_not_made_twice() {
    let processes = Processes::start(&["a", "b", "c"], Certificates::Named).await;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    for (from, to, generation) in [("a", "b", 1), ("b", "c", 2)] {
        move_it(&processes, &id, (from, to), generation).await;
        delete_left(&processes, &id, from, generation).await;
    }
    let again = processes.create(volume("v", SIZE, &["a"])).await.expect_err("it is somewhere else");
    assert_eq!(again.code(), Code::FailedPrecondition, "{again:?}");
    assert_eq!(place(&get(&processes.controller, &id).await.expect("it is there")), "c");
    // A node on its way has left the cluster.
    let (controller, _process) = processes.controller_of(&["a", "c"]).await;
    assert_eq!(place(&get(&controller, &id).await.expect("it is there")), "c");
    for _ in 0..2 {
        within(processes.controller.call(delete(&id))).await.expect("deleted");
    }
    let again = processes.create(volume("v", SIZE, &["a"])).await.expect("another one");
    assert_eq!((again.volume_id.as_str(), place(&again)), (id.as_str(), "a".to_owned()));
}

/// The silent node may have a later generation.
#[tokio::test]
async fn a_search_that_misses_a_node_is_unavailable() {
    let mut processes = Processes::start(&["a", "b", "c"], Certificates::Named).await;
    let id = processes.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    move_it(&processes, &id, ("a", "b"), 1).await;
    let (controller, _process) = processes.controller_of(&["b", "c"]).await;
    assert_eq!(place(&get(&controller, &id).await.expect("it is there")), "b");
    processes.nodes.retain(|node| node.id != "c");
    for status in [
        get(&controller, &id).await.expect_err("c does not answer"),
        within(controller.call(delete(&id))).await.expect_err("c does not answer"),
    ] {
        assert_eq!(status.code(), Code::Unavailable, "{status:?}");
        assert!(status.message().contains("node \"c\""), "{}", status.message());
    }
}
