//! Volumes that have moved: a controller finds them by the id that they keep.

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
use crate::requests::{MIB, MadeFrom, delete};

const SIZE: i64 = 512 * MIB;

/// Moves a volume from one node to another one, with the calls that a move makes.
async fn move_it(processes: &Processes, id: &str, (from, to): (&str, &str), generation: u64) {
    let by = processes.pki.tls("mover", &controller());
    let name = format!("copy-{generation}");
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
    let seal = peer::SealVolumeRequest { volume_id: id.to_owned(), moved_to: to.to_owned() };
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
