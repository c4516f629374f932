//! A copy that takes the id of its source over, and what is left of the volume at its earlier node.

use hostloop::model::request::NodeStageVolume;
use hostloop::service::MOVED_TO;
use hostloop::wire::peer::VolumePresence as Presence;
use hostloop::wire::{csi, peer};
use tonic::{Code, Status};

use super::copied::{Blocks, Copied, SIZE, blocks};
use super::nodes::{Node, SOURCE, TARGET};
use super::orders;
use crate::cuts::from_volume;
use crate::life::*;
use crate::support::*;
use crate::walk::part::ways;
use hostloop::service::COPY;
use hostloop_fake_kernel::Kill;

/// A copy that has all of its source. No pod uses the source.
pub(super) fn sealed() -> Copied {
    let copied = Copied::new();
    copied.change(1);
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    assert!(copied.update().expect("the last pass").sealed);
    copied
}

/// Completes a copy at a node, under another id.
fn complete(
    copied: &Copied,
    node: &Node,
    (copy, becomes, generation): (&str, &str, u64),
) -> Result<(), Status> {
    let request = peer::CompleteCopyRequest {
        volume_id: copy.to_owned(),
        stale: false,
        source_volume_id: becomes.to_owned(),
        generation,
        ..Default::default()
    };
    copied.pair.runtime.block_on(node.peer.clone().complete_copy(request)).map(drop)
}

/// Completes the copy under the id of its source.
pub(super) fn succeed(copied: &Copied) -> Result<(), Status> {
    complete(copied, &copied.pair.target, (&copied.copy.id, &copied.vol.id, 1))
}

/// Completes the copy of a volume whose node is lost.
fn promote(copied: &Copied) {
    let request = peer::CompleteCopyRequest {
        volume_id: copied.copy.id.clone(),
        stale: true,
        source_volume_id: copied.vol.id.clone(),
        generation: 1,
        ..Default::default()
    };
    let target = &copied.pair.target;
    copied.pair.runtime.block_on(target.peer.clone().complete_copy(request)).expect("promoted");
}

/// Completes the copy of a volume that is known to have this size.
fn promote_with(copied: &Copied, least_bytes: u64) -> Result<u64, Status> {
    let target = &copied.pair.target;
    let request = peer::CompleteCopyRequest {
        volume_id: copied.copy.id.clone(),
        stale: true,
        source_volume_id: copied.vol.id.clone(),
        generation: 1,
        least_bytes,
    };
    copied.pair.runtime.block_on(target.peer.clone().complete_copy(request))?;
    Ok(get(copied, target, &copied.vol.id)?.capacity_bytes.unsigned_abs())
}

/// The volume was expanded, and its node was lost before the next pass.
#[test]
fn a_copy_grows_to_the_size_of_its_volume() {
    let size = SIZE as u64;
    for (least, has) in [(0, size), (size, size), (2 * size, 2 * size), (1 << 50, size)] {
        let copied = Copied::new();
        copied.rest();
        assert_eq!(promote_with(&copied, least).expect("promoted"), has, "{least}");
        assert_eq!(promote_with(&copied, least).expect("again"), has, "{least}");
    }
}

/// The record is not the data: a copy is never deleted because of a record alone.
#[test]
fn a_volume_without_its_data_is_told() {
    let copied = Copied::new();
    copied.rest();
    let source = &copied.pair.source;
    let unusable = || {
        let question = peer::FindVolumeRequest { volume_id: copied.vol.id.clone() };
        let found = copied.pair.runtime.block_on(source.peer.clone().find_volume(question));
        let found = found.expect("an answer").into_inner();
        assert_eq!((found.presence(), found.generation), (Presence::Held, Some(0)));
        found.unusable
    };
    assert_eq!(unusable(), "");
    source.kernel.remove_file(format!("{DATA}/volumes/{}/disk.img", copied.vol.id)).expect("it was there");
    assert!(unusable().contains("is missing"), "{}", unusable());
}

/// It would become a volume without data, and its source would be given up.
#[test]
fn a_copy_without_its_data_is_not_completed() {
    let copied = sealed();
    let target = &copied.pair.target;
    let image = format!("{DATA}/volumes/{}/disk.img", copied.copy.id);
    target.kernel.remove_file(image).expect("it was there");
    copied.refused(succeed(&copied), Code::Unavailable, "is missing");
    assert_eq!(get(&copied, target, &copied.vol.id).expect_err("it is no volume").code(), Code::NotFound);
}

#[test]
fn a_sealed_volume_is_not_modified() {
    let copied = sealed();
    let modify = |node: &Node| {
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: copied.vol.id.clone(),
            mutable_parameters: [("discard".to_owned(), "false".to_owned())].into(),
            ..Default::default()
        };
        copied.pair.runtime.block_on(node.controller.call(request)).map(drop)
    };
    copied.refused(modify(&copied.pair.source), Code::FailedPrecondition, "sealed");
    succeed(&copied).expect("it takes the id over");
    modify(&copied.pair.target).expect("it is a volume");
}

/// Retires the volume at a node. Returns the id of what is left.
pub(super) fn retire(copied: &Copied, node: &Node, generation: u64, by: &str) -> Result<String, Status> {
    let request =
        peer::RetireVolumeRequest { volume_id: copied.vol.id.clone(), generation, node_id: by.to_owned() };
    let answer = copied.pair.runtime.block_on(node.peer.clone().retire_volume(request))?;
    Ok(answer.into_inner().volume_id)
}

pub(super) fn get(copied: &Copied, node: &Node, id: &str) -> Result<csi::Volume, Status> {
    let request = csi::ControllerGetVolumeRequest { volume_id: id.to_owned() };
    let found = copied.pair.runtime.block_on(node.controller.call(request))?;
    Ok(found.volume.expect("a volume"))
}

fn delete(copied: &Copied, node: &Node, id: &str) -> Result<(), Status> {
    copied.pair.runtime.block_on(node.controller.call(crate::requests::delete(id))).map(drop)
}

pub(super) fn ids(node: &Node) -> Vec<String> {
    node.driver.store().volumes().iter().map(|volume| volume.id.to_string()).collect()
}

/// The data in the one directory of the target.
fn there(copied: &Copied) -> Blocks {
    let image = format!("{DATA}/volumes/{}/disk.img", copied.copy.id);
    blocks(&copied.pair.target.kernel, &image, SIZE)
}

/// What kubelet sends for a pod of the volume.
pub(super) fn stage(copied: &Copied) -> NodeStageVolume {
    NodeStageVolume {
        volume_id: copied.vol.id.clone(),
        staging_path: copied.vol.staging().into(),
        capability: hostloop::model::Capability {
            access: hostloop::model::AccessType::Block,
            mode: hostloop::model::AccessMode::SingleNodeWriter,
        },
        context: Default::default(),
    }
}

#[track_caller]
pub(super) fn has_moved(answer: Result<impl std::fmt::Debug, Status>, node: &str) {
    let status = answer.expect_err("it has moved");
    assert_eq!(status.code(), Code::FailedPrecondition, "{}", status.message());
    let told = status.metadata().get_bin(MOVED_TO).expect("where to").to_bytes().expect("bytes");
    assert_eq!(told, node.as_bytes());
}

#[test]
fn a_copy_becomes_the_volume_and_keeps_its_id() {
    let copied = sealed();
    let (before, id, copy) = (copied.source_bytes(), &copied.vol.id, &copied.copy.id);
    let (source, target) = (&copied.pair.source, &copied.pair.target);
    succeed(&copied).expect("it takes the id over");
    succeed(&copied).expect("again");
    let volume = get(&copied, target, id).expect("it is there");
    assert_eq!((volume.volume_id.as_str(), volume.content_source), (id.as_str(), None));
    assert_eq!(get(&copied, target, copy).expect_err("it has another id").code(), Code::NotFound);
    assert_eq!((ids(target), there(&copied)), (vec![id.clone()], before.clone()));

    let left = retire(&copied, source, 1, TARGET).expect("it is retired");
    assert_eq!(retire(&copied, source, 1, TARGET).expect("again"), left);
    assert_eq!((ids(source), copied.source_bytes()), (vec![left.clone()], before.clone()));
    has_moved(get(&copied, source, id), TARGET);
    has_moved(delete(&copied, source, id), TARGET);
    assert_eq!(copied.source_bytes(), before, "nothing was deleted");
    copied.release();
    let clone = csi::CreateVolumeRequest {
        volume_content_source: Some(from_volume(&left)),
        ..create("clone", block())
    };
    let clone = copied.pair.runtime.block_on(source.controller.call(clone)).expect("it can be copied");
    delete(&copied, source, &clone.volume.expect("a volume").volume_id).expect("deleted");
    delete(&copied, source, &left).expect("by its own id");
    assert_eq!((source.files(), source.cuts()), (Vec::new(), 0));
    delete(&copied, target, id).expect("deleted");
    assert_eq!((target.files(), ids(target)), (Vec::new(), Vec::new()));
}

#[test]
fn whatever_ends_a_completion_there_is_one_volume() {
    let copied = sealed();
    copied.pair.target.kernel.clear_steps();
    succeed(&copied).expect("it takes the id over");
    for n in 1..=copied.pair.target.kernel.steps().len() {
        for kill in ways(n, &[Kill::Before, Kill::Torn, Kill::After]) {
            let mut copied = sealed();
            let before = copied.source_bytes();
            copied.pair.target.kernel.kill_at(n, kill);
            let ended = succeed(&copied);
            copied.pair.power_cut_target();
            let after = ids(&copied.pair.target);
            let which = format!("step {n}, {kill:?}: {after:?}");
            assert!(ended.is_err() || after == [copied.vol.id.clone()], "{which}");
            assert!(after == [copied.vol.id.clone()] || after == [copied.copy.id.clone()], "{which}");
            succeed(&copied).unwrap_or_else(|status| panic!("{which}: {status}"));
            assert!(there(&copied) == before, "{which}");
            assert_eq!(ids(&copied.pair.target), [copied.vol.id.clone()], "{which}");
        }
    }
}

#[test]
fn whatever_ends_a_retirement_the_data_stay() {
    let copied = sealed();
    copied.pair.source.kernel.clear_steps();
    let left = retire(&copied, &copied.pair.source, 1, TARGET).expect("it is retired");
    for n in 1..=copied.pair.source.kernel.steps().len() {
        for kill in ways(n, &[Kill::Before, Kill::Torn, Kill::After]) {
            let mut copied = sealed();
            let before = copied.source_bytes();
            copied.pair.source.kernel.kill_at(n, kill);
            let ended = retire(&copied, &copied.pair.source, 1, TARGET);
            copied.pair.power_cut_source();
            let after = ids(&copied.pair.source);
            let which = format!("step {n}, {kill:?}: {after:?}");
            assert!(ended.is_err() || after == [left.clone()], "{which}");
            assert!(after == [left.clone()] || after == [copied.vol.id.clone()], "{which}");
            let again = retire(&copied, &copied.pair.source, 1, TARGET);
            assert_eq!(again.unwrap_or_else(|status| panic!("{which}: {status}")), left, "{which}");
            assert!(copied.source_bytes() == before, "{which}");
        }
    }
}

#[test]
fn an_id_is_taken_over_from_its_own_source_only() {
    let copied = sealed();
    let (pair, copy) = (&copied.pair, copied.copy.id.as_str());
    let other = pair.runtime.block_on(pair.target.controller.call(create("other", block())));
    let other = other.expect("a volume").volume.expect("a volume").volume_id;
    let taken = complete(&copied, &pair.target, (copy, &other, 1));
    copied.refused(taken, Code::FailedPrecondition, "is not a copy of volume");
    let plain = complete(&copied, &pair.target, (&other, &copied.vol.id, 1));
    copied.refused(plain, Code::FailedPrecondition, "is not a copy of volume");
    let first = complete(&copied, &pair.target, (copy, &copied.vol.id, 0));
    copied.refused(first, Code::InvalidArgument, "generation is missing");
    let nobody = complete(&copied, &pair.target, ("vol", &copied.vol.id, 1));
    copied.refused(nobody, Code::InvalidArgument, "volume_id \"vol\"");
    succeed(&copied).expect("by its own");
    let later = complete(&copied, &pair.target, (copy, &copied.vol.id, 2));
    copied.refused(later, Code::NotFound, copy);
}

#[test]
fn the_later_generation_is_not_retired() {
    let copied = sealed();
    let (source, target) = (&copied.pair.source, &copied.pair.target);
    let copy = peer::RetireVolumeRequest {
        volume_id: copied.copy.id.clone(),
        generation: 1,
        node_id: SOURCE.to_owned(),
    };
    let copy = copied.pair.runtime.block_on(target.peer.clone().retire_volume(copy));
    copied.refused(copy, Code::FailedPrecondition, "is a copy of");
    succeed(&copied).expect("it takes the id over");
    copied.refused(retire(&copied, target, 1, SOURCE), Code::FailedPrecondition, "has generation 1");
    copied.refused(retire(&copied, source, 0, TARGET), Code::InvalidArgument, "generation is missing");
    let left = retire(&copied, source, 1, TARGET).expect("the earlier one is");
    let unsealed =
        peer::SealVolumeRequest { volume_id: left, moved_to: String::new(), generation: 0, unsealed: 0 };
    let unsealed = copied.pair.runtime.block_on(source.peer.clone().seal_volume(unsealed));
    copied.refused(unsealed, Code::FailedPrecondition, "is what is left of volume");
}

/// The node of a promoted copy's source comes back while the pod still runs there.
#[test]
fn a_pod_of_a_retired_volume_can_leave() {
    let copied = Copied::new();
    let source = &copied.pair.source;
    promote(&copied);
    let left = retire(&copied, source, 1, TARGET).expect("also in use");
    let stage = stage(&copied);
    let staged = |request| source.driver.node_stage_volume(request).map(|_| ()).map_err(Status::from);
    has_moved(staged(stage.clone()), TARGET);
    // As kubelet takes a pod down: it knows the volume by its id.
    copied.rest();
    assert_eq!(source.kernel.loops().len(), 0, "nothing is attached");
    let stage = NodeStageVolume { volume_id: left, ..stage };
    copied.refused(staged(stage), Code::FailedPrecondition, "its data move to node \"node-b\"");
}

/// Brings a volume that is at the second node back to the first one, up to the completion. Returns the id of the copy.
fn brought_back(copied: &Copied) -> String {
    let (id, runtime) = (copied.vol.id.as_str(), &copied.pair.runtime);
    let (first, second) = (&copied.pair.source, &copied.pair.target);
    let request = csi::CreateVolumeRequest { name: "back".to_owned(), ..copied.request.clone() };
    let permit = orders::permit(&orders::grant(&request, TARGET, SOURCE));
    let mut order = orders::order(request, (TARGET, TARGET), Some(&permit));
    order.metadata_mut().insert(COPY, "1".parse().expect("a header"));
    let back = runtime.block_on(first.controller.send(order)).expect("a copy").volume.expect("a volume");
    let seal = peer::SealVolumeRequest {
        volume_id: id.to_owned(),
        moved_to: SOURCE.to_owned(),
        generation: 1,
        unsealed: 0,
    };
    runtime.block_on(second.peer.clone().seal_volume(seal)).expect("sealed");
    let update = peer::UpdateCopyRequest {
        volume_id: back.volume_id.clone(),
        source_node_id: TARGET.to_owned(),
        source_address: TARGET.to_owned(),
        permit: permit.as_bytes().to_vec(),
        ..Default::default()
    };
    assert!(runtime.block_on(first.peer.clone().update_copy(update)).expect("updated").into_inner().sealed);
    back.volume_id
}

/// kubelet unmounts a volume by its id, so two volumes of one id must not be mounted at one node.
#[test]
fn a_volume_does_not_come_back_beside_its_pod() {
    let copied = Copied::new();
    let first = &copied.pair.source;
    promote(&copied);
    retire(&copied, first, 1, TARGET).expect("also in use");
    let back = brought_back(&copied);
    let completed = complete(&copied, first, (&back, &copied.vol.id, 2));
    copied.refused(completed, Code::FailedPrecondition, "is in use");
    copied.rest();
    complete(&copied, first, (&back, &copied.vol.id, 2)).expect("its pod has left");
}

#[test]
fn a_volume_comes_back_to_its_first_node() {
    let copied = sealed();
    let id = copied.vol.id.as_str();
    let (first, second) = (&copied.pair.source, &copied.pair.target);
    succeed(&copied).expect("it takes the id over");
    let left = retire(&copied, first, 1, TARGET).expect("retired");
    copied.release();
    let data = there(&copied);

    let back = brought_back(&copied);
    complete(&copied, first, (&back, id, 2)).expect("it takes the id over");
    has_moved(
        {
            retire(&copied, second, 2, SOURCE).expect("retired");
            get(&copied, second, id)
        },
        SOURCE,
    );
    assert_eq!(get(&copied, first, id).expect("it is back").volume_id, id);
    let image = format!("{DATA}/volumes/{back}/disk.img");
    assert!(blocks(&first.kernel, &image, SIZE) == data);
    delete(&copied, first, id).expect("deleted");
    assert_eq!(ids(first), std::slice::from_ref(&left), "the first one is another volume");
    assert_eq!(get(&copied, first, id).expect_err("it was deleted here").code(), Code::NotFound);
    delete(&copied, first, &left).expect("deleted");
    assert_eq!(first.files(), Vec::<String>::new());
}

/// A controller may ask once more, such as after the status of an earlier move was lost. It deletes what the answer names.
#[test]
fn a_retirement_names_what_its_own_move_has_left() {
    let copied = sealed();
    let (first, second) = (&copied.pair.source, &copied.pair.target);
    succeed(&copied).expect("it takes the id over");
    let left = retire(&copied, first, 1, TARGET).expect("retired");
    copied.release();
    let back = brought_back(&copied);
    complete(&copied, first, (&back, &copied.vol.id, 2)).expect("it takes the id over");
    copied.refused(retire(&copied, first, 1, TARGET), Code::FailedPrecondition, "has generation 2");
    let later = retire(&copied, first, 3, "node-c").expect("it has moved on");
    assert_ne!(later, left);
    assert_eq!(retire(&copied, first, 3, "node-c").expect("again"), later);
    assert_eq!(retire(&copied, first, 1, TARGET).expect("again"), left);
    delete(&copied, first, &left).expect("deleted");
    copied.refused(retire(&copied, first, 1, TARGET), Code::NotFound, &left);
    assert_eq!(ids(first), [later], "what the later move has left");
    has_moved(get(&copied, first, &copied.vol.id), "node-c");
    retire(&copied, second, 2, SOURCE).expect("retired");
}

/// A provisioner that asks for the volume once more must not get another one.
#[test]
fn the_name_of_a_volume_that_has_moved_stays_taken() {
    let copied = sealed();
    succeed(&copied).expect("it takes the id over");
    let source = &copied.pair.source;
    retire(&copied, source, 1, TARGET).expect("retired");
    let again = copied.pair.runtime.block_on(source.controller.call(create("source", block())));
    has_moved(again, TARGET);
    // Nor one in the directory of the copy, which is that of the volume by now.
    let copy = copied.pair.runtime.block_on(copied.pair.target.controller.call(create("copy", block())));
    copied.refused(copy, Code::FailedPrecondition, &copied.vol.id);
    assert_eq!(found(&copied, source), (Presence::Held, None, TARGET.to_owned(), false));
    assert_eq!(found(&copied, &copied.pair.target), (Presence::Held, Some(1), String::new(), false));
}

/// Returns what a node answers to FindVolume.
fn found(copied: &Copied, node: &Node) -> (Presence, Option<u64>, String, bool) {
    let question = peer::FindVolumeRequest { volume_id: copied.vol.id.clone() };
    let found = copied.pair.runtime.block_on(node.peer.clone().find_volume(question));
    let found = found.expect("an answer").into_inner();
    (found.presence(), found.generation, found.moved_to, found.deleted)
}

fn forget(copied: &Copied, node: &Node) {
    let request = peer::ForgetVolumeRequest { volume_id: copied.vol.id.clone() };
    copied.pair.runtime.block_on(node.peer.clone().forget_volume(request)).expect("forgotten");
}

/// Otherwise a provisioner that asks for the volume once more would get a second volume with its id.
#[test]
fn a_node_remembers_a_move_of_which_nothing_is_left() {
    let mut copied = sealed();
    succeed(&copied).expect("it takes the id over");
    let left = retire(&copied, &copied.pair.source, 1, TARGET).expect("retired");
    delete(&copied, &copied.pair.source, &left).expect("deleted");
    // A cut is still there, and no sign of a deletion.
    for round in ["before a power cut", "after it"] {
        let source = &copied.pair.source;
        assert!(source.cuts() > 0 && ids(source).is_empty(), "{round}");
        assert_eq!(found(&copied, source), (Presence::Held, None, TARGET.to_owned(), false), "{round}");
        has_moved(get(&copied, source, &copied.vol.id), TARGET);
        has_moved(delete(&copied, source, &copied.vol.id), TARGET);
        has_moved(copied.pair.runtime.block_on(source.controller.call(create("source", block()))), TARGET);
        assert_eq!(retire(&copied, source, 1, TARGET).expect("again"), left, "{round}");
        // kubelet takes a pod down that could not start here.
        copied.rest();
        copied.pair.power_cut_source();
    }
    copied.release();
    let source = &copied.pair.source;
    delete(&copied, &copied.pair.target, &copied.vol.id).expect("deleted");
    for round in ["once", "again"] {
        forget(&copied, source);
        assert_eq!(found(&copied, source), (Presence::None, None, String::new(), false), "{round}");
    }
    let again = copied.pair.runtime.block_on(source.controller.call(create("source", block())));
    assert_eq!(again.expect("another one").volume.expect("a volume").volume_id, copied.vol.id);
}

/// kubelet unmounts what is left by the id of the volume.
#[test]
fn a_deleted_volume_is_forgotten_with_its_leftover() {
    let mut copied = sealed();
    let refused = delete(&copied, &copied.pair.source, &copied.vol.id);
    copied.refused(
        refused,
        Code::FailedPrecondition,
        "move to node \"node-b\"; delete it when that has ended",
    );
    succeed(&copied).expect("it takes the id over");
    let left = retire(&copied, &copied.pair.source, 1, TARGET).expect("retired");
    copied.release();
    delete(&copied, &copied.pair.target, &copied.vol.id).expect("deleted");
    forget(&copied, &copied.pair.source);
    for round in ["before a power cut", "after it"] {
        let source = &copied.pair.source;
        assert_eq!(found(&copied, source), (Presence::Held, None, String::new(), true), "{round}");
        delete(&copied, source, &copied.vol.id).expect("it is deleted");
        let again = copied.pair.runtime.block_on(source.controller.call(create("source", block())));
        copied.refused(again, Code::FailedPrecondition, &left);
        copied.pair.power_cut_source();
    }
    let source = &copied.pair.source;
    delete(&copied, source, &left).expect("deleted");
    assert_eq!(found(&copied, source), (Presence::None, None, String::new(), false));
}

/// A disk that was replaced by an empty one has no cut either, so it does not report a deletion.
#[test]
fn a_node_tells_that_a_volume_with_a_copy_was_deleted() {
    let mut copied = Copied::new();
    copied.rest();
    assert_eq!(found(&copied, &copied.pair.source), (Presence::Held, Some(0), String::new(), false));
    delete(&copied, &copied.pair.source, &copied.vol.id).expect("deleted");
    for round in ["before a power cut", "after it"] {
        let found = found(&copied, &copied.pair.source);
        assert_eq!(found, (Presence::None, None, String::new(), true), "{round}");
        copied.pair.power_cut_source();
    }
    copied.release();
    assert_eq!(found(&copied, &copied.pair.source), (Presence::None, None, String::new(), false));
}
