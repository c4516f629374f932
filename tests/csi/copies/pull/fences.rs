//! The fence of a volume that moves away, and what a node deletes beside its volumes.

use hostloop::error::Error;
use hostloop::model::Volume;
use hostloop::model::request::{NodePublishVolume, NodeUnpublishVolume, NodeUnstageVolume};
use hostloop::wire::{csi, peer};
use tonic::{Code, Status};

use super::copied::Copied;
use super::nodes::{Node, TARGET};
use crate::life::*;
use crate::support::*;

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
            unsealed: 0,
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
fn a_copy_of_another_source_is_not_deleted() {
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

/// csi-resizer asks again until it has an answer. Its PersistentVolume has the earlier size until then.
#[test]
fn a_fenced_volume_says_that_it_was_expanded() {
    let copied = Copied::new();
    let source = &copied.pair.source;
    let expand = |bytes| {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: copied.vol.id.clone(),
            capacity_range: range(bytes, 0),
            ..Default::default()
        };
        copied.pair.runtime.block_on(source.controller.call(request)).map(|expanded| expanded.capacity_bytes)
    };
    assert_eq!(expand(128 * MIB).expect("it grows"), 128 << 20);
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    assert_eq!(expand(128 * MIB).expect("it was expanded"), 128 << 20);
    copied.refused(expand(256 * MIB), Code::FailedPrecondition, "is sealed");
}

/// Nothing else tells a deletion from a disk that was replaced: what the volume has left elsewhere may be all that there is.
#[test]
fn a_node_remembers_that_a_moved_volume_was_deleted() {
    let copied = Copied::new();
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    copied.update().expect("updated");
    let (target, runtime) = (&copied.pair.target, &copied.pair.runtime);
    let is_deleted = |id: &str| {
        let request = peer::FindVolumeRequest { volume_id: id.to_owned() };
        runtime.block_on(target.peer.clone().find_volume(request)).expect("found").into_inner().deleted
    };
    let delete = |id: &str| {
        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        runtime.block_on(target.controller.call(request)).expect("deleted")
    };
    let other = runtime.block_on(target.controller.call(create("other", block()))).expect("a volume");
    let other = other.volume.expect("a volume").volume_id;
    delete(&other);
    assert!(!is_deleted(&other) && !is_deleted(&copied.vol.id), "it has not moved there");
    let request = peer::CompleteCopyRequest {
        volume_id: copied.copy.id.clone(),
        source_volume_id: copied.vol.id.clone(),
        generation: 1,
        ..Default::default()
    };
    runtime.block_on(target.peer.clone().complete_copy(request)).expect("complete");
    assert!(!is_deleted(&copied.vol.id));
    delete(&copied.vol.id);
    assert!(is_deleted(&copied.vol.id));
    delete(&copied.vol.id);
    assert_eq!(target.files(), Vec::<String>::new());
    // Every node is asked to forget where the volume went.
    let request = peer::ForgetVolumeRequest { volume_id: copied.vol.id.clone() };
    runtime.block_on(target.peer.clone().forget_volume(request)).expect("forgotten");
    assert!(is_deleted(&copied.vol.id));
}

/// A node that stood still may carry out requests that a controller has given up. Without this, the fence of a move that is over would
/// never end, and a pod could write in the middle of the next move.
#[test]
fn a_fence_that_comes_late_is_not_set() {
    let copied = Copied::new();
    copied.rest();
    let late = |moved_to: &str| {
        let (volume_id, moved_to) = (copied.vol.id.clone(), moved_to.to_owned());
        let request = peer::SealVolumeRequest { volume_id, moved_to, generation: 0, unsealed: 0 };
        copied.pair.runtime.block_on(copied.pair.source.peer.clone().seal_volume(request)).map(drop)
    };
    let sealed = || copied.pair.source.driver.store().volumes()[0].moved_to.clone();
    copied.seal("").expect("the fence may have been set");
    copied.refused(late(TARGET), Code::Aborted, "was taken back 1 times");
    assert_eq!(sealed(), None);
    copied.seal(TARGET).expect("the next move");
    copied.refused(late(""), Code::Aborted, "was taken back 1 times");
    assert_eq!(sealed().as_deref(), Some(TARGET));
}

/// A node in wrong hands says what it likes. Room that its copies take on other nodes has to be given back nevertheless.
#[test]
fn a_pass_cannot_change_the_generation_of_a_copy() {
    let copied = Copied::new();
    let (source, target) = (&copied.pair.source, &copied.pair.target);
    let id = copied.vol.id.as_str();
    let record = source.driver.store().get(&id.parse().expect("an id")).expect("a volume");
    source.driver.store().put(Volume { generation: 5, ..(*record).clone() }).expect("recorded");
    copied.change(1);
    copied.refused(copied.update(), Code::FailedPrecondition, "has generation 5");
    delete_copy(&copied, target, &copied.copy.id, (id, 0)).expect("it is a copy of this one");
    assert_eq!(target.files(), Vec::<String>::new());
}
