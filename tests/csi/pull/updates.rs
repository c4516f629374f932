//! Copies that are brought up to date with a volume of another node.

use std::collections::HashMap;
use std::time::Duration;

use hostloop::model::request::{NodeUnpublishVolume, NodeUnstageVolume};
use hostloop::os::fake::Kill;
use hostloop::service::COPY;
use hostloop::wire::{csi, peer};
use nix::errno::Errno;
use tonic::{Code, Request, Status};

use super::nodes::{Pair, SOURCE, TARGET};
use super::{disk_of, pattern};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;

const SIZE: usize = 64 << 20;

/// A volume in use on one node, and its copy on another one.
pub(super) struct Copied {
    pub(super) pair: Pair,
    pub(super) vol: Vol,
    /// Where its pod writes.
    pub(super) top: String,
    pub(super) copy: Vol,
    pub(super) request: csi::CreateVolumeRequest,
}

impl Copied {
    pub(super) fn new() -> Copied {
        Self::of(true, create("source", block()))
    }

    /// A copy of this volume, in a pool that shares blocks or does not.
    fn of(sharing: bool, request: csi::CreateVolumeRequest) -> Copied {
        let rig = Rig::new();
        rig.kernel.set_reflink(DATA, sharing);
        let parameters = request.parameters.clone();
        let (vol, top) = rig.in_use(request);
        if vol.is_block() {
            rig.kernel.write(&top, 0, &pattern(1 << 20, 1)).expect("write");
            rig.kernel.write(&top, 20 << 20, &pattern(1 << 20, 2)).expect("write");
        } else {
            rig.write(&vol, "text");
        }
        Self::between(Pair::with_patience(rig, Duration::from_millis(50)), (vol, top), parameters)
    }

    /// A copy of this volume of the pair's source, made with these parameters.
    pub(super) fn between(
        pair: Pair,
        (vol, top): (Vol, String),
        parameters: HashMap<String, String>,
    ) -> Copied {
        let capability = vol.capability.clone();
        let request = csi::CreateVolumeRequest {
            parameters,
            ..copy("copy", from_volume(&vol.id), capability.clone(), &[])
        };
        let info = made(&pair, &request).expect("a copy");
        let copy = Vol { id: info.volume_id.clone(), info, capability };
        Copied { pair, vol, top, copy, request }
    }

    pub(super) fn order(&self) -> peer::UpdateCopyRequest {
        peer::UpdateCopyRequest {
            volume_id: self.copy.id.clone(),
            source_address: SOURCE.to_owned(),
            permit: self.pair.permit(&self.request),
            ..Default::default()
        }
    }

    pub(super) fn update(&self) -> Result<peer::UpdateCopyResponse, Status> {
        self.send(self.order())
    }

    pub(super) fn send(&self, order: peer::UpdateCopyRequest) -> Result<peer::UpdateCopyResponse, Status> {
        let mut peer = self.pair.target.peer.clone();
        self.pair.runtime.block_on(peer.update_copy(order)).map(|answer| answer.into_inner())
    }

    pub(super) fn complete(&self, stale: bool) -> Result<(), Status> {
        let mut peer = self.pair.target.peer.clone();
        let request = peer::CompleteCopyRequest { volume_id: self.copy.id.clone(), stale };
        self.pair.runtime.block_on(peer.complete_copy(request)).map(drop)
    }

    pub(super) fn seal(&self, moved_to: &str) -> Result<(), Status> {
        let mut peer = self.pair.source.peer.clone();
        let request =
            peer::SealVolumeRequest { volume_id: self.vol.id.clone(), moved_to: moved_to.to_owned() };
        self.pair.runtime.block_on(peer.seal_volume(request)).map(drop)
    }

    pub(super) fn release(&self) {
        let mut peer = self.pair.source.peer.clone();
        let request = peer::ReleaseCutsRequest {
            volume_id: self.vol.id.clone(),
            target_volume_id: self.copy.id.clone(),
        };
        self.pair.runtime.block_on(peer.release_cuts(request)).expect("released");
    }

    /// Its pod leaves.
    pub(super) fn rest(&self) {
        let driver = &self.pair.source.driver;
        let (volume_id, target_path) = (self.vol.id.clone(), self.vol.target("pod").into());
        driver.node_unpublish_volume(NodeUnpublishVolume { volume_id, target_path }).expect("unpublished");
        let (volume_id, staging_path) = (self.vol.id.clone(), self.vol.staging().into());
        driver.node_unstage_volume(NodeUnstageVolume { volume_id, staging_path }).expect("unstaged");
    }

    pub(super) fn source_bytes(&self) -> Vec<u8> {
        self.pair.source.kernel.read(self.vol.image(), 0, SIZE).expect("read")
    }

    pub(super) fn copy_bytes(&self) -> Vec<u8> {
        self.pair.target.kernel.read(disk_of(&self.copy.id), 0, SIZE).expect("read")
    }

    /// What a pod changes, so that each round has something of everything: new data, other data, zeros.
    pub(super) fn change(&self, seed: u64) {
        let write = |offset, bytes: &[u8]| {
            self.pair.source.kernel.write(&self.top, offset, bytes).expect("write");
        };
        write(8192, &pattern(8192, seed));
        write((20 << 20) + 4096, &[0; 16384]);
        write((40 << 20) + (seed << 12), &pattern(4096, seed));
    }

    #[track_caller]
    pub(super) fn refused(&self, answer: Result<impl std::fmt::Debug, Status>, code: Code, why: &str) {
        let status = answer.expect_err("it is refused");
        assert_eq!(status.code(), code, "{}", status.message());
        assert!(status.message().contains(why), "{}", status.message());
    }
}

/// CreateVolume as a controller forwards it that wants a copy.
fn made(pair: &Pair, request: &csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
    let mut order: Request<_> = pair.order(request.clone(), SOURCE);
    order.metadata_mut().insert(COPY, "1".parse().expect("a header"));
    let answer = pair.runtime.block_on(pair.target.controller.send(order))?;
    Ok(answer.volume.expect("a volume"))
}

#[test]
fn a_copy_follows_a_volume_in_use_and_takes_its_place() {
    let copied = Copied::new();
    assert_eq!(copied.pair.source.cuts(), 1, "its cut stays");
    for seed in 1..=3 {
        copied.change(seed);
        copied.pair.network.mend();
        let before = copied.pair.network.passed();
        let updated = copied.update().expect("it is updated");
        assert!(copied.copy_bytes() == copied.source_bytes(), "round {seed}");
        assert!(!updated.sealed && updated.cut_ns > 0);
        let (data, zeros) = (8192 + 4096, if seed == 1 { 16384 } else { 0 });
        assert_eq!((updated.sent_bytes, updated.changed_bytes), (data, data + zeros), "{seed}");
        let passed = copied.pair.network.passed().saturating_sub(before);
        assert!(passed < 60_000, "{passed}");
        assert_eq!(copied.pair.source.cuts(), 1, "the earlier one goes");
    }
    copied.refused(copied.complete(false), Code::FailedPrecondition, "seal the source");
    copied.refused(copied.seal(TARGET), Code::FailedPrecondition, "in use");
    copied.change(4);
    takes_its_place(copied);
}

/// Everything is read and compared there.
#[test]
fn a_copy_follows_where_no_blocks_are_shared() {
    let mut request = create("source", block());
    request.parameters = map(&[("freeze", "false")]);
    let mut copied = Copied::of(true, request);
    copied.pair.source.kernel.set_reflink(DATA, false);
    copied.pair.restart_source();
    copied.change(1);
    copied.rest();
    takes_its_place(copied);
}

#[track_caller]
fn takes_its_place(copied: Copied) {
    if copied.pair.source.kernel.exists(copied.vol.target("pod")) {
        copied.rest();
    }
    copied.seal(TARGET).expect("it is sealed");
    copied.seal(TARGET).expect("again");
    let last = copied.update().expect("it is updated");
    assert!(last.sealed && copied.copy_bytes() == copied.source_bytes());
    copied.complete(false).expect("it is complete");
    copied.complete(false).expect("again");
    copied.refused(copied.update(), Code::FailedPrecondition, "has been completed");
    copied.release();
    copied.release();
    assert_eq!(copied.pair.source.cuts(), 0);
    let expected = copied.source_bytes();
    let Copied { pair, copy, .. } = copied;
    let rig = pair.into_target();
    rig.stage(&copy);
    let device = rig.publish(&copy, "pod");
    assert!(rig.kernel.read(device, 0, SIZE).expect("read") == expected);
    rig.rest(&copy);
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
}

#[test]
fn nobody_uses_a_copy_or_a_sealed_volume() {
    let copied = Copied::new();
    let target =
        |request| copied.pair.runtime.block_on(copied.pair.target.controller.send(Request::new(request)));
    let capability = copied.copy.capability.clone();
    let again = copy("again", from_volume(&copied.copy.id), capability.clone(), &[]);
    copied.refused(target(again), Code::FailedPrecondition, "being brought up to date");
    let controller = &copied.pair.target.controller;
    let on_copy = |why| (Code::FailedPrecondition, why);
    let snapshot = snapshot("cut", &copied.copy);
    let (code, why) = on_copy("being brought up to date");
    copied.refused(copied.pair.runtime.block_on(controller.call(snapshot)), code, why);
    let grow = copied.copy.expand_request(128 * MIB, 0);
    copied.refused(copied.pair.runtime.block_on(controller.call(grow)), code, why);
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    let source = &copied.pair.source.controller;
    let grow = copied.vol.expand_request(128 * MIB, 0);
    copied.refused(copied.pair.runtime.block_on(source.call(grow)), code, "its data move to node");
    copied.seal("").expect("not any more");
    copied.pair.runtime.block_on(source.call(copied.vol.expand_request(128 * MIB, 0))).expect("it grows");
    // Kubelet is told the same.
    let copy = Vol {
        id: copied.copy.id.clone(),
        info: copied.copy.info.clone(),
        capability: copied.copy.capability.clone(),
    };
    copied.seal(TARGET).expect("it is sealed");
    let (kernel, vol) = (copied.pair.source.kernel.clone(), copied.vol);
    let rig = copied.pair.into_target();
    rig.fails(Code::FailedPrecondition, rig.stage_request(&copy));
    drop(rig);
    kernel.kill();
    kernel.restart();
    let rig = Rig::on(kernel, &[]);
    let message = rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
    assert!(message.contains("its data move to node"), "{message}");
}

#[test]
fn a_copy_grows_with_its_source() {
    let copied = Copied::new();
    let source = &copied.pair.source.controller;
    copied.pair.runtime.block_on(source.call(copied.vol.expand_request(128 * MIB, 0))).expect("it grows");
    let write = |offset, bytes: &[u8]| {
        copied.pair.source.kernel.write(&copied.top, offset, bytes).expect("write");
    };
    write(100 << 20, &pattern(8192, 9));
    copied.update().expect("it is updated");
    let read =
        |kernel: &hostloop::os::fake::FakeKernel, path: String| kernel.read(path, 0, 2 * SIZE).expect("read");
    let there = read(&copied.pair.target.kernel, disk_of(&copied.copy.id));
    assert!(there.len() == 2 * SIZE && there == read(&copied.pair.source.kernel, copied.vol.image()));
    let listed = csi::ControllerGetVolumeRequest { volume_id: copied.copy.id.clone() };
    let got = copied.pair.runtime.block_on(copied.pair.target.controller.call(listed)).expect("it is there");
    assert_eq!(got.volume.expect("a volume").capacity_bytes, 128 * MIB);
}

#[test]
fn without_its_cut_a_copy_is_made_anew() {
    let copied = Copied::new();
    copied.pair.source.driver.remove_idle_sources(Duration::ZERO);
    assert_eq!(copied.pair.source.cuts(), 1, "ten minutes are not enough");
    copied.release();
    copied.refused(copied.update(), Code::NotFound, "make another one");
    copied.refused(copied.complete(false), Code::FailedPrecondition, "seal the source");
    let delete = csi::DeleteVolumeRequest { volume_id: copied.copy.id.clone(), ..Default::default() };
    copied.pair.runtime.block_on(copied.pair.target.controller.call(delete)).expect("deleted");
    made(&copied.pair, &copied.request).expect("another one");
    copied.change(1);
    copied.update().expect("it is updated");
    assert!(copied.copy_bytes() == copied.source_bytes());
    // What is left of a lost node is better than nothing.
    copied.complete(true).expect("it is complete");
}

/// Of a round that was cut off, the node of the source has only the later cut: no retry will ever make the copy whole.
#[test]
fn without_the_earlier_cut_of_half_a_round_a_copy_is_made_anew() {
    let mut copied = Copied::new();
    copied.change(1);
    // The record says what it is being given; then the image is written.
    let steps = steps().0;
    let half = (1..=steps).find(|n| {
        copied = Copied::new();
        copied.change(1);
        copied.pair.target.kernel.kill_at(*n, Kill::After);
        copied.update().expect_err("it ends");
        copied.pair.restart_target();
        copied.complete(true).is_err_and(|status| status.message().contains("has not all of cut"))
    });
    assert!(half.is_some(), "no step is in the middle of a round");
    let cuts = copied.pair.source.kept_cuts();
    assert_eq!(cuts.len(), 2);
    copied.pair.source.driver.close_source(&cuts[0].parse().expect("an id")).expect("closed");
    copied.refused(copied.update(), Code::NotFound, "make another one");
}

#[test]
fn a_filesystem_that_is_made_after_the_first_copy_comes_too() {
    let rig = Rig::new();
    let vol = rig.made(create("source", mount()));
    let request = copy("copy", from_volume(&vol.id), mount(), &[]);
    let pair = Pair::new(rig);
    let info = made(&pair, &request).expect("a copy of nothing");
    let copy = Vol { id: info.volume_id.clone(), info, capability: vol.capability.clone() };
    let kernel = pair.source.kernel.clone();
    kernel.kill();
    kernel.restart();
    let rig = Rig::on(kernel, &[]);
    rig.stage(&vol);
    rig.publish(&vol, "pod");
    rig.write(&vol, "text");
    let mut pair = pair;
    drop(rig);
    pair.restart_source();
    let copied = Copied { pair, top: String::new(), copy, request, vol };
    copied.update().expect("it is updated");
    let source = copied.pair.source.kernel.clone();
    let (image, from) = (disk_of(&copied.copy.id), copied.vol.image());
    copied.pair.target.kernel.adopt_files(image, &source, from).expect("the same bytes");
    copied.complete(true).expect("it is complete");
    let Copied { pair, copy, .. } = copied;
    let rig = pair.into_target();
    assert_eq!(rig.content(&copy, 4), "text");
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
}

#[test]
fn a_thick_copy_keeps_its_blocks() {
    let rig = Rig::new();
    let thick = [("provisioning", "thick")];
    let parameters = map(&thick);
    let vol = rig.made(csi::CreateVolumeRequest { parameters, ..create("source", block()) });
    rig.kernel.write(vol.image(), 0, &pattern(1 << 20, 1)).expect("write");
    let request = copy("copy", from_volume(&vol.id), block(), &thick);
    let pair = Pair::new(rig);
    let info = made(&pair, &request).expect("a copy");
    let copy = Vol { id: info.volume_id.clone(), info, capability: vol.capability.clone() };
    let copied = Copied { pair, vol, top: String::new(), copy, request };
    copied.pair.source.kernel.write(copied.vol.image(), 4096, &[0; 200_000]).expect("write");
    assert_eq!(copied.update().expect("it is updated").sent_bytes, 4096, "zeros are not sent");
    assert!(copied.copy_bytes() == copied.source_bytes());
    let stat = copied.pair.target.kernel.stat(disk_of(&copied.copy.id)).expect("an image");
    assert!(stat.allocated >= SIZE as u64, "{}", stat.allocated);
}

/// The steps of an update at the target and at the source.
fn steps() -> (usize, usize) {
    let copied = Copied::new();
    copied.change(1);
    copied.pair.source.kernel.clear_steps();
    copied.pair.target.kernel.clear_steps();
    copied.update().expect("it is updated");
    (copied.pair.target.kernel.steps().len(), copied.pair.source.kernel.steps().len())
}

#[test]
fn the_target_ends_at_any_step_of_an_update() {
    for n in 1..=steps().0 {
        for (kill, power) in [(Kill::Before, false), (Kill::Torn, true), (Kill::After, true)] {
            let mut copied = Copied::new();
            copied.change(1);
            copied.pair.target.kernel.kill_at(n, kill);
            let ended = copied.update();
            assert!(copied.pair.target.kernel.is_dead() && ended.is_err(), "step {n}");
            if power {
                copied.pair.power_cut_target()
            } else {
                copied.pair.restart_target()
            }
            // Another cut than the one that it was being given.
            copied.change(2);
            copied.update().unwrap_or_else(|status| panic!("step {n}, {kill:?}: {status}"));
            assert!(copied.copy_bytes() == copied.source_bytes(), "step {n}, {kill:?}");
            copied.rest();
            copied.seal(TARGET).expect("it is sealed");
            copied.update().expect("it is updated");
            copied.complete(false).expect("it is complete");
            copied.release();
            assert_eq!(copied.pair.source.cuts(), 0, "step {n}, {kill:?}");
        }
    }
}

#[test]
fn what_is_completed_has_one_cut_whole() {
    for n in 1..=steps().0 {
        for kill in [Kill::Torn, Kill::After] {
            let mut copied = Copied::new();
            let before = copied.source_bytes();
            copied.change(1);
            let after = copied.source_bytes();
            copied.pair.target.kernel.kill_at(n, kill);
            copied.update().expect_err("it ends");
            copied.pair.power_cut_target();
            if copied.complete(true).is_ok() {
                let there = copied.copy_bytes();
                assert!(there == before || there == after, "step {n}, {kill:?}: some of both");
            }
        }
    }
}

#[test]
fn a_step_of_an_update_fails() {
    let (target, source) = steps();
    for errno in [Errno::EIO, Errno::ENOSPC] {
        for (n, at_source) in (1..=target).map(|n| (n, false)).chain((1..=source).map(|n| (n, true))) {
            let copied = Copied::new();
            copied.change(1);
            let node = if at_source { &copied.pair.source } else { &copied.pair.target };
            node.kernel.fail_at(n, errno);
            if let Err(status) = copied.update() {
                let code = match errno {
                    _ if at_source => Code::Unavailable,
                    Errno::ENOSPC => Code::ResourceExhausted,
                    _ => Code::Internal,
                };
                assert_eq!(status.code(), code, "step {n}: {}", status.message());
            }
            copied.change(2);
            copied.update().unwrap_or_else(|status| panic!("step {n}, {errno}: {status}"));
            assert!(copied.copy_bytes() == copied.source_bytes(), "step {n}, {errno}");
            assert!(copied.pair.source.cuts() <= 2);
            copied.release();
            assert_eq!(copied.pair.source.cuts(), 0);
        }
    }
}

#[test]
fn the_source_ends_at_any_step_of_an_update() {
    for n in 1..=steps().1 {
        for kill in [Kill::Before, Kill::After] {
            let mut copied = Copied::new();
            copied.change(1);
            copied.pair.source.kernel.kill_at(n, kill);
            // It may end when all is there already, and only the earlier cut is to be removed.
            let _ = copied.update();
            assert!(copied.pair.source.kernel.is_dead(), "step {n}");
            copied.pair.restart_source();
            copied.change(2);
            copied.update().unwrap_or_else(|status| panic!("step {n}, {kill:?}: {status}"));
            assert!(copied.copy_bytes() == copied.source_bytes(), "step {n}, {kill:?}");
        }
    }
}

#[test]
fn only_a_volume_of_another_node_can_be_followed() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("source", block()));
    rig.rest(&vol);
    let cut = rig.cut("cut", &vol);
    let pair = Pair::new(rig);
    let of_snapshot = copy("copy", from_snapshot(&cut.snapshot_id), block(), &[]);
    let status = made(&pair, &of_snapshot).expect_err("it is refused");
    assert_eq!(status.code(), Code::InvalidArgument, "{}", status.message());
    assert!(status.message().contains("is not a volume of another node"), "{}", status.message());
    pair.assert_nothing_left();
    // One that is complete is followed no more, and an ordinary one never was.
    let request = copy("copy", from_volume(&vol.id), block(), &[]);
    pair.pulled(request.clone());
    assert_eq!(made(&pair, &request).expect_err("it is there").code(), Code::AlreadyExists);
}
