//! A volume in use on one node, and a copy of it on another one: what the tests of copies do with both.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use hostloop::model::request::{NodeUnpublishVolume, NodeUnstageVolume};
use hostloop::service::COPY;
use hostloop::wire::{csi, peer};
use hostloop_fake_kernel::FakeKernel;
use tonic::{Code, Request, Status};

use super::nodes::{Node, Pair, SOURCE};
use super::{disk_of, pattern};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;

pub const SIZE: usize = 64 << 20;

/// What a disk has, without its zeros: the blocks by where they are.
pub type Blocks = BTreeMap<u64, Vec<u8>>;

/// The first `len` bytes of a file or device.
pub fn blocks(kernel: &FakeKernel, path: &str, len: usize) -> Blocks {
    const BLOCK: usize = 64 << 10;
    let read = |at: usize| (at as u64, kernel.read(path, at as u64, BLOCK).expect("read"));
    (0..len).step_by(BLOCK).map(read).filter(|(_, block)| block.as_slice() != [0; BLOCK]).collect()
}

/// How often the seal of a volume was taken back.
pub fn unsealed(pair: &Pair, node: &Node, id: &str) -> u64 {
    let request = peer::FindVolumeRequest { volume_id: id.to_owned() };
    pair.runtime.block_on(node.peer.clone().find_volume(request)).expect("found").into_inner().unsealed
}

/// A volume in use on one node, and its copy on another one.
pub struct Copied {
    pub pair: Pair,
    pub vol: Vol,
    /// Where its pod writes.
    pub top: String,
    pub copy: Vol,
    pub request: csi::CreateVolumeRequest,
}

impl Copied {
    pub fn new() -> Copied {
        Self::of(true, create("source", block()))
    }

    /// A copy of this volume, in a pool that shares blocks or does not.
    pub fn of(sharing: bool, request: csi::CreateVolumeRequest) -> Copied {
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
    pub fn between(pair: Pair, (vol, top): (Vol, String), parameters: HashMap<String, String>) -> Copied {
        let capability = vol.capability.clone();
        let request = csi::CreateVolumeRequest {
            parameters,
            ..copy("copy", from_volume(&vol.id), capability.clone(), &[])
        };
        let info = made(&pair, &request).expect("a copy");
        let copy = Vol::new(info, capability);
        Copied { pair, vol, top, copy, request }
    }

    pub fn order(&self) -> peer::UpdateCopyRequest {
        peer::UpdateCopyRequest {
            volume_id: self.copy.id.clone(),
            source_node_id: SOURCE.to_owned(),
            source_address: SOURCE.to_owned(),
            permit: self.pair.permit(&self.request),
            ..Default::default()
        }
    }

    pub fn update(&self) -> Result<peer::UpdateCopyResponse, Status> {
        self.send(self.order())
    }

    pub fn send(&self, order: peer::UpdateCopyRequest) -> Result<peer::UpdateCopyResponse, Status> {
        let mut peer = self.pair.target.peer.clone();
        self.pair.runtime.block_on(peer.update_copy(order)).map(|answer| answer.into_inner())
    }

    pub fn complete(&self, stale: bool) -> Result<(), Status> {
        let mut peer = self.pair.target.peer.clone();
        let request =
            peer::CompleteCopyRequest { volume_id: self.copy.id.clone(), stale, ..Default::default() };
        self.pair.runtime.block_on(peer.complete_copy(request)).map(drop)
    }

    pub fn seal(&self, moved_to: &str) -> Result<(), Status> {
        let mut peer = self.pair.source.peer.clone();
        let (volume_id, moved_to) = (self.vol.id.clone(), moved_to.to_owned());
        let unsealed = unsealed(&self.pair, &self.pair.source, &volume_id);
        let request = peer::SealVolumeRequest { volume_id, moved_to, generation: 0, unsealed };
        self.pair.runtime.block_on(peer.seal_volume(request)).map(drop)
    }

    pub fn release(&self) {
        let mut peer = self.pair.source.peer.clone();
        let request = peer::ReleaseCutsRequest {
            volume_id: self.vol.id.clone(),
            target_volume_id: self.copy.id.clone(),
        };
        self.pair.runtime.block_on(peer.release_cuts(request)).expect("released");
    }

    /// Its pod leaves.
    pub fn rest(&self) {
        let driver = &self.pair.source.driver;
        let (volume_id, target_path) = (self.vol.id.clone(), self.vol.target("pod").into());
        driver.node_unpublish_volume(NodeUnpublishVolume { volume_id, target_path }).expect("unpublished");
        let (volume_id, staging_path) = (self.vol.id.clone(), self.vol.staging().into());
        driver.node_unstage_volume(NodeUnstageVolume { volume_id, staging_path }).expect("unstaged");
    }

    pub fn source_bytes(&self) -> Blocks {
        blocks(&self.pair.source.kernel, &self.vol.image(), SIZE)
    }

    pub fn copy_bytes(&self) -> Blocks {
        blocks(&self.pair.target.kernel, &disk_of(&self.copy.id), SIZE)
    }

    /// What a pod changes, so that each round has something of everything: new data, other data, zeros.
    pub fn change(&self, seed: u64) {
        let write = |offset, bytes: &[u8]| {
            self.pair.source.kernel.write(&self.top, offset, bytes).expect("write");
        };
        write(8192, &pattern(8192, seed));
        write((20 << 20) + 4096, &[0; 16384]);
        write((40 << 20) + (seed << 12), &pattern(4096, seed));
    }

    #[track_caller]
    pub fn refused(&self, answer: Result<impl std::fmt::Debug, Status>, code: Code, why: &str) {
        let status = answer.expect_err("it is refused");
        assert_eq!(status.code(), code, "{}", status.message());
        assert!(status.message().contains(why), "{}", status.message());
    }
}

/// CreateVolume as a controller forwards it that wants a copy.
pub fn made(pair: &Pair, request: &csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
    made_with(pair, request, &[COPY])
}

/// The same with these words for the node.
pub fn made_with(
    pair: &Pair,
    request: &csi::CreateVolumeRequest,
    headers: &[&'static str],
) -> Result<csi::Volume, Status> {
    let mut order: Request<_> = pair.order(request.clone(), SOURCE);
    for header in headers {
        order.metadata_mut().insert(*header, "1".parse().expect("a header"));
    }
    let answer = pair.runtime.block_on(pair.target.controller.send(order))?;
    Ok(answer.volume.expect("a volume"))
}
