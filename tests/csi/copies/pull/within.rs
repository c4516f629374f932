//! A volume that moves to another pool of its node, which is both the source and the target: whatever ends the driver, there is one
//! volume with all of its data, and its pods get it.

use hostloop::model::request::{NodePublishVolume, NodeUnpublishVolume, NodeUnstageVolume};
use hostloop::model::{FsType, Settings};
use hostloop::service::COPY;
use hostloop::wire::{csi, peer};
use hostloop_fake_kernel::Kill;
use tonic::Status;

use super::copied::{Blocks, SIZE, blocks, unsealed};
use super::nodes::{Pair, SOURCE};
use super::orders;
use super::pattern;
use crate::cuts::*;
use crate::harness::{SHARING, SHARING_DIR, pool, settings};
use crate::life::*;
use crate::support::*;
use crate::walk::part::ways;

fn two_pools(node: &str) -> Settings {
    let own = settings();
    let pools = own.pools.iter().cloned().chain([pool(SHARING, SHARING_DIR)]).collect();
    Settings { node_id: node.to_owned(), pools, ..own }
}

/// A volume that is staged, which no pod has, and its copy in another pool of the node.
struct Within {
    pair: Pair,
    vol: Vol,
    request: csi::CreateVolumeRequest,
    copy: String,
    data: Blocks,
}

impl Within {
    fn new() -> Within {
        let rig = Rig::new();
        rig.kernel.set_reflink(DATA, true);
        let (vol, top) = rig.in_use(create("source", block()));
        rig.kernel.write(&top, 0, &pattern(1 << 20, 1)).expect("write");
        rig.kernel.add_disk(SHARING_DIR, FsType::Xfs, 100 << 30);
        let pair = Pair::with_settings(rig, std::time::Duration::from_millis(50), two_pools);
        let request = csi::CreateVolumeRequest {
            parameters: [("pool".to_owned(), SHARING.to_owned())].into(),
            ..copy("copy", from_volume(&vol.id), vol.capability.clone(), &[])
        };
        let permit = orders::permit(&orders::grant(&request, SOURCE, SOURCE));
        let mut order = orders::order(request.clone(), (SOURCE, SOURCE), Some(&permit));
        order.metadata_mut().insert(COPY, "1".parse().expect("a header"));
        let made = pair.runtime.block_on(pair.source.controller.send(order)).expect("a copy");
        let copy = made.volume.expect("a volume").volume_id;
        pair.source.kernel.write(&top, 5 << 20, &pattern(1 << 20, 2)).expect("write");
        let data = blocks(&pair.source.kernel, &vol.image(), SIZE);
        let within = Within { pair, vol, request, copy, data };
        within.unpublish("pod");
        within
    }

    fn peer(&self) -> peer::peer_client::PeerClient<tonic::transport::Channel> {
        self.pair.source.peer.clone()
    }

    fn unpublish(&self, pod: &str) {
        let (volume_id, target_path) = (self.vol.id.clone(), self.vol.target(pod).into());
        let unpublish = NodeUnpublishVolume { volume_id, target_path };
        self.pair.source.driver.node_unpublish_volume(unpublish).expect("unpublished");
    }

    fn seal(&self) -> Result<(), Status> {
        let volume_id = self.vol.id.clone();
        let unsealed = unsealed(&self.pair, &self.pair.source, &volume_id);
        let request =
            peer::SealVolumeRequest { volume_id, moved_to: SOURCE.to_owned(), generation: 0, unsealed };
        self.pair.runtime.block_on(self.peer().seal_volume(request)).map(drop)
    }

    fn update(&self) -> Result<(), Status> {
        let permit = orders::permit(&orders::grant(&self.request, SOURCE, SOURCE));
        let request = peer::UpdateCopyRequest {
            volume_id: self.copy.clone(),
            source_node_id: SOURCE.to_owned(),
            source_address: SOURCE.to_owned(),
            permit: permit.as_bytes().to_vec(),
            last_pass: true,
            ..Default::default()
        };
        self.pair.runtime.block_on(self.peer().update_copy(request)).map(drop)
    }

    fn complete(&self) -> Result<(), Status> {
        let request = peer::CompleteCopyRequest {
            volume_id: self.copy.clone(),
            source_volume_id: self.vol.id.clone(),
            generation: 1,
            ..Default::default()
        };
        self.pair.runtime.block_on(self.peer().complete_copy(request)).map(drop)
    }

    fn retire(&self) -> Result<String, Status> {
        let request = peer::RetireVolumeRequest {
            volume_id: self.vol.id.clone(),
            generation: 1,
            node_id: SOURCE.to_owned(),
        };
        Ok(self.pair.runtime.block_on(self.peer().retire_volume(request))?.into_inner().volume_id)
    }

    /// What a controller does from the moment in which no pod has the volume. Each step can be repeated.
    fn cut_over(&self) -> Result<String, Status> {
        if self.has_become() {
            return self.retire();
        }
        // A source that is retired cannot be sealed: the copy takes the id over next.
        if self.volume_is_there() {
            self.seal()?;
            self.update()?;
        }
        self.complete()?;
        self.retire()
    }

    fn volume_is_there(&self) -> bool {
        self.pair.source.driver.store().get(&self.vol.id.parse().expect("an id")).is_some()
    }

    fn has_become(&self) -> bool {
        let volume = self.pair.source.driver.store().get(&self.vol.id.parse().expect("an id"));
        volume.is_some_and(|volume| volume.generation == 1)
    }

    fn ids(&self) -> Vec<String> {
        super::identity::ids(&self.pair.source)
    }

    fn publish(&self, pod: &str) -> Result<(), hostloop::error::Error> {
        let kernel = &self.pair.source.kernel;
        let target = self.vol.target(pod);
        kernel.create_directories(target.rsplit_once('/').expect("a path").0);
        let driver = &self.pair.source.driver;
        let record = driver.store().get(&self.vol.id.parse().expect("an id")).expect("a volume");
        driver.node_publish_volume(NodePublishVolume {
            volume_id: self.vol.id.clone(),
            staging_path: Some(self.vol.staging().into()),
            target_path: target.into(),
            capability: record.capabilities[0].clone(),
            read_only: false,
            context: Default::default(),
            inline: None,
        })
    }

    /// Asserts that the next pod gets the volume, with all of its data, in the other pool.
    #[track_caller]
    fn is_moved(&self, left: &str, which: &str) {
        let mut ids = self.ids();
        ids.sort();
        let mut wanted = vec![self.vol.id.clone(), left.to_owned()];
        wanted.sort();
        assert_eq!(ids, wanted, "{which}");
        let image = format!("{SHARING_DIR}/volumes/{}/disk.img", self.copy);
        assert!(blocks(&self.pair.source.kernel, &image, SIZE) == self.data, "{which}");
        self.publish("next").unwrap_or_else(|error| panic!("{which}: {error}"));
        let top = self.vol.target("next");
        assert!(blocks(&self.pair.source.kernel, &top, SIZE) == self.data, "{which}");
        self.unpublish("next");
        let (volume_id, staging_path) = (self.vol.id.clone(), self.vol.staging().into());
        let unstage = NodeUnstageVolume { volume_id, staging_path };
        self.pair.source.driver.node_unstage_volume(unstage).expect("unstaged");
        assert!(self.pair.source.kernel.mounts().iter().all(|mount| !mount.target.starts_with(KUBELET)));
    }
}

/// A power cut takes what was staged, which kubelet stages again then.
#[test]
fn whatever_ends_a_move_within_a_node_there_is_one() {
    let within = Within::new();
    within.pair.source.kernel.clear_steps();
    let left = within.cut_over().expect("it has moved");
    let steps = within.pair.source.kernel.steps().len();
    within.is_moved(&left, "without a kill");
    for n in 1..=steps {
        for kill in ways(n, &[Kill::Before, Kill::Torn, Kill::After]) {
            let mut within = Within::new();
            within.pair.source.kernel.kill_at(n, kill);
            drop(within.cut_over());
            assert!(within.pair.source.kernel.is_dead(), "step {n}, {kill:?}");
            within.pair.restart_source();
            let which = format!("step {n}, {kill:?}: {:?}", within.ids());
            assert_eq!(within.ids().len(), 2, "{which}");
            let again = within.cut_over().unwrap_or_else(|status| panic!("{which}: {status}"));
            assert_eq!(again, left, "{which}");
            within.is_moved(&left, &which);
        }
    }
}

/// kubelet repeats NodePublishVolume, and sends no NodeStageVolume.
#[test]
fn whatever_ends_a_publish_stages_the_volume_again() {
    let within = Within::new();
    within.cut_over().expect("it has moved");
    within.pair.source.kernel.clear_steps();
    within.publish("next").expect("published");
    for n in 1..=within.pair.source.kernel.steps().len() {
        for kill in ways(n, &[Kill::Before, Kill::After]) {
            let mut within = Within::new();
            let left = within.cut_over().expect("it has moved");
            within.pair.source.kernel.kill_at(n, kill);
            drop(within.publish("next"));
            within.pair.restart_source();
            within.publish("next").unwrap_or_else(|error| panic!("step {n}, {kill:?}: {error}"));
            let volume = within.pair.source.driver.store().get(&within.vol.id.parse().expect("an id"));
            assert_eq!(volume.expect("a volume").staged_before, [""; 0], "step {n}, {kill:?}");
            within.is_moved(&left, &format!("step {n}, {kill:?}"));
        }
    }
}

/// kubelet keeps it staged for a pod that waits, and the pool of the volume has failed.
#[test]
fn a_copy_goes_on_if_the_earlier_disk_fails() {
    let within = Within::new();
    within.seal().expect("sealed");
    within.update().expect("the last pass");
    let volume_id = within.vol.id.clone();
    let unsealed = unsealed(&within.pair, &within.pair.source, &volume_id);
    let request = peer::SealVolumeRequest { volume_id, moved_to: String::new(), generation: 0, unsealed };
    within.pair.runtime.block_on(within.peer().seal_volume(request)).expect("opened");
    within.publish("pod").expect("staged again");
    within.unpublish("pod");
    within.pair.source.kernel.remove_file(within.vol.image()).expect("it was there");
    let request = peer::CompleteCopyRequest {
        volume_id: within.copy.clone(),
        source_volume_id: within.vol.id.clone(),
        generation: 1,
        stale: true,
        ..Default::default()
    };
    within.pair.runtime.block_on(within.peer().complete_copy(request)).expect("it takes the id over");
    let left = within.retire().expect("it is retired");
    within.is_moved(&left, "its pod gets the copy");
}

/// Only a copy that has taken over the id says that the earlier data may go.
#[test]
fn a_volume_is_not_retired_for_its_own_node() {
    let within = Within::new();
    within.seal().expect("sealed");
    let refused = within.retire().expect_err("its copy is a copy");
    assert!(refused.message().contains("has not taken over the id"), "{refused}");
    within.update().expect("the last pass");
    within.complete().expect("complete");
    let left = within.retire().expect("it is retired");
    let request = peer::DeleteCopyRequest {
        volume_id: left.clone(),
        source_volume_id: within.vol.id.clone(),
        generation: 1,
    };
    within.pair.runtime.block_on(within.peer().delete_copy(request)).expect("deleted");
    assert_eq!(within.retire().expect("again"), left, "also when it is gone");
}

/// The claim is deleted before the controller hears that the copy has taken over the id.
#[test]
fn data_left_by_a_deleted_volume_are_named() {
    let within = Within::new();
    within.seal().expect("sealed");
    within.update().expect("the last pass");
    within.complete().expect("complete");
    let volume_id = within.vol.id.clone();
    let unstage =
        NodeUnstageVolume { volume_id: volume_id.clone(), staging_path: within.vol.staging().into() };
    within.pair.source.driver.node_unstage_volume(unstage).expect("unstaged");
    let delete = crate::requests::delete(&volume_id);
    within.pair.runtime.block_on(within.pair.source.controller.call(delete)).expect("deleted");
    let left = within.retire().expect("it is retired");
    assert_eq!(within.ids(), std::slice::from_ref(&left));
    let request = peer::DeleteCopyRequest { volume_id: left, source_volume_id: volume_id, generation: 1 };
    within.pair.runtime.block_on(within.peer().delete_copy(request)).expect("deleted");
    assert_eq!(within.ids(), Vec::<String>::new());
    assert_eq!(within.retire().expect_err("nothing is left").code(), tonic::Code::NotFound);
}

/// Between the two records of a completion, the id is in use.
#[test]
fn an_id_is_never_free_during_a_completion() {
    let within = Within::new();
    within.seal().expect("sealed");
    within.update().expect("the last pass");
    within.pair.source.kernel.clear_steps();
    within.complete().expect("complete");
    let steps = within.pair.source.kernel.steps().len();
    let mut seen = 0;
    for n in 1..=steps {
        let mut within = Within::new();
        within.seal().expect("sealed");
        within.update().expect("the last pass");
        within.pair.source.kernel.kill_at(n, Kill::After);
        drop(within.complete());
        within.pair.restart_source();
        if within.volume_is_there() {
            continue;
        }
        seen += 1;
        let controller = &within.pair.source.controller;
        let again = within.pair.runtime.block_on(controller.call(create("source", block())));
        let refused = again.expect_err("the volume moves");
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "step {n}: {refused}");
        let delete = crate::requests::delete(&within.vol.id);
        let refused = within.pair.runtime.block_on(controller.call(delete)).expect_err("the volume moves");
        assert_eq!(refused.code(), tonic::Code::FailedPrecondition, "step {n}: {refused}");
        within.cut_over().unwrap_or_else(|status| panic!("step {n}: {status}"));
    }
    assert!(seen > 0, "there is such a moment");
}
