//! The fence of a volume that moves away, and what a node deletes beside its volumes.

use hostloop::error::Error;
use hostloop::model::request::{NodePublishVolume, NodeUnpublishVolume, NodeUnstageVolume};
use hostloop::wire::peer;
use tonic::{Code, Status};

use super::copied::Copied;
use super::nodes::{Node, TARGET};
use crate::life::*;

fn publish(copied: &Copied, pod: &str) -> Result<(), Error> {
    let driver = &copied.pair.source.driver;
    let record = driver.store().get(&copied.vol.id.parse().expect("an id")).expect("a volume");
    driver.node_publish_volume(NodePublishVolume {
        volume_id: copied.vol.id.clone(),
        staging_path: Some(copied.vol.staging().into()),
        target_path: copied.vol.target(pod).into(),
        capability: record.capabilities[0].clone(),
        read_only: false,
        context: Default::default(),
        inline: None,
    })
}

fn delete_copy(
    copied: &Copied,
    node: &Node,
    id: &str,
    (source, generation): (&str, u64),
) -> Result<(), Status> {
    let request =
        peer::DeleteCopyRequest { volume_id: id.to_owned(), source_volume_id: source.to_owned(), generation };
    copied.pair.runtime.block_on(node.peer.clone().delete_copy(request)).map(drop)
}

/// A pod that is made again on the same node may come before kubelet has unstaged the volume.
#[test]
fn a_fence_keeps_other_pods_away_at_once() {
    let copied = Copied::new();
    copied.refused(copied.seal(TARGET), Code::FailedPrecondition, "is in use");
    publish(&copied, "pod").expect("it is published");
    let refused = publish(&copied, "pod-again").expect_err("it moves");
    assert!(refused.to_string().contains("its data move to node"), "{refused}");
    copied.change(1);
    assert!(!copied.update().expect("updated").sealed, "its pod may still write");
    copied.change(2);
    copied.refused(copied.complete(false), Code::FailedPrecondition, "may have been written to");
    copied.rest();
    copied.seal(TARGET).expect("nothing uses it");
    assert!(copied.update().expect("updated").sealed);
    assert!(copied.copy_bytes() == copied.source_bytes());
    copied.complete(false).expect("complete");
}

#[test]
fn a_fence_that_is_taken_back_lets_pods_in() {
    let copied = Copied::new();
    copied.refused(copied.seal(TARGET), Code::FailedPrecondition, "is in use");
    copied.seal("").expect("unfenced");
    let (volume_id, target_path) = (copied.vol.id.clone(), copied.vol.target("pod").into());
    let unpublish = NodeUnpublishVolume { volume_id, target_path };
    copied.pair.source.driver.node_unpublish_volume(unpublish).expect("unpublished");
    publish(&copied, "pod-again").expect("it is published");
}

#[test]
fn a_fence_is_for_one_generation() {
    let copied = Copied::new();
    copied.rest();
    let peer = &copied.pair.source.peer;
    for moved_to in [TARGET, ""] {
        let request = peer::SealVolumeRequest {
            volume_id: copied.vol.id.clone(),
            moved_to: moved_to.to_owned(),
            generation: 1,
        };
        let refused = copied.pair.runtime.block_on(peer.clone().seal_volume(request));
        copied.refused(refused, Code::FailedPrecondition, "has generation 0 of volume");
    }
    copied.seal(TARGET).expect("it is sealed");
}

#[test]
fn a_copy_cannot_skip_a_generation() {
    let copied = Copied::new();
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    copied.update().expect("updated");
    let complete = |generation| {
        let request = peer::CompleteCopyRequest {
            volume_id: copied.copy.id.clone(),
            stale: false,
            source_volume_id: copied.vol.id.clone(),
            generation,
            ..Default::default()
        };
        let mut peer = copied.pair.target.peer.clone();
        copied.pair.runtime.block_on(peer.complete_copy(request)).map(drop)
    };
    copied.refused(complete(2), Code::FailedPrecondition, "is of generation 0");
    complete(1).expect("the next one");
}

/// What a tenant can write must never make a node delete a volume.
#[test]
fn only_a_copy_of_the_named_source_is_deleted() {
    let copied = Copied::new();
    let (source, target) = (&copied.pair.source, &copied.pair.target);
    let (id, copy) = (copied.vol.id.as_str(), copied.copy.id.as_str());
    let other = copied.pair.runtime.block_on(target.controller.call(create("other", block())));
    let other = other.expect("a volume").volume.expect("a volume").volume_id;
    let before = (copied.source_bytes(), copied.copy_bytes(), target.files());
    for (node, volume, of) in [
        (source, id, (id, 0)),
        (target, other.as_str(), (id, 0)),
        (target, other.as_str(), (other.as_str(), 0)),
        (target, copy, (other.as_str(), 0)),
        (target, copy, (id, 1)),
        (target, copy, (copy, 0)),
    ] {
        let refused = delete_copy(&copied, node, volume, of);
        copied.refused(refused, Code::FailedPrecondition, "nothing was deleted");
    }
    assert!(before == (copied.source_bytes(), copied.copy_bytes(), target.files()));
    delete_copy(&copied, target, copy, (id, 0)).expect("it is a copy of this one");
    delete_copy(&copied, target, copy, (id, 0)).expect("again");
    assert_eq!(target.driver.store().volumes().iter().map(|v| v.id.to_string()).collect::<Vec<_>>(), [other]);
}

#[test]
fn a_retired_volume_is_deleted_by_its_generation() {
    let copied = Copied::new();
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    copied.update().expect("updated");
    let (source, target, id) = (&copied.pair.source, &copied.pair.target, copied.vol.id.as_str());
    let request = peer::CompleteCopyRequest {
        volume_id: copied.copy.id.clone(),
        stale: false,
        source_volume_id: id.to_owned(),
        generation: 1,
        ..Default::default()
    };
    copied.pair.runtime.block_on(target.peer.clone().complete_copy(request)).expect("complete");
    let request =
        peer::RetireVolumeRequest { volume_id: id.to_owned(), generation: 1, node_id: TARGET.to_owned() };
    let left = copied.pair.runtime.block_on(source.peer.clone().retire_volume(request)).expect("retired");
    let left = left.into_inner().volume_id;
    for of in [(id, 0), (id, 2), (left.as_str(), 1)] {
        let refused = delete_copy(&copied, source, &left, of);
        copied.refused(refused, Code::FailedPrecondition, "nothing was deleted");
    }
    let refused = delete_copy(&copied, target, id, (id, 1));
    copied.refused(refused, Code::FailedPrecondition, "nothing was deleted");
    copied.release();
    delete_copy(&copied, source, &left, (id, 1)).expect("it is left of this one");
    assert_eq!(source.files(), Vec::<String>::new());
}

/// Pods come to the node of the copy before the last pass, and the move can still be cancelled. kubelet takes such a pod down by
/// the id of the volume, which the copy does not have.
#[test]
fn a_pod_that_came_too_early_can_leave() {
    let copied = Copied::new();
    let driver = &copied.pair.target.driver;
    let staged = driver.node_stage_volume(super::identity::stage(&copied)).map_err(Status::from);
    copied.refused(staged, Code::NotFound, "does not exist");
    let (volume_id, target_path) = (copied.vol.id.clone(), copied.vol.target("pod").into());
    driver.node_unpublish_volume(NodeUnpublishVolume { volume_id, target_path }).expect("unpublished");
    let (volume_id, staging_path) = (copied.vol.id.clone(), copied.vol.staging().into());
    driver.node_unstage_volume(NodeUnstageVolume { volume_id, staging_path }).expect("unstaged");
}
