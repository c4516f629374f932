//! The calls by which a controller moves a snapshot or a group from the source to the target.

use hostloop::model::{Grant, NodeKey, SnapshotId, VolumeId, VolumeSource};
use hostloop::wire::peer;
use hostloop_fake_kernel::FakeKernel;
use peer::take_snapshot_request::Member;
use tonic::{Code, Status};

use super::nodes::{Node, Pair, SOURCE, TARGET};
use super::{image_of, orders};
use crate::wait::answered;

impl Pair {
    /// Has the target take a snapshot, or these members of a group, with permits that expire then (seconds since the epoch). Returns the
    /// number of the offer.
    pub fn take(&self, id: &str, members: &[String], expires: u64) -> Result<u64, Status> {
        let member = |id: &String| Member { snapshot_id: id.clone(), permit: permit(id, expires) };
        let request = peer::TakeSnapshotRequest {
            snapshot_id: id.to_owned(),
            source_address: SOURCE.to_owned(),
            source_node_id: SOURCE.to_owned(),
            permit: if members.is_empty() { permit(id, expires) } else { Vec::new() },
            members: members.iter().map(member).collect(),
        };
        let mut target = self.target.peer.clone();
        self.runtime.block_on(target.take_snapshot(request)).map(|answer| answer.into_inner().number)
    }

    pub fn release(&self, at: &Node, id: &str, other: &str, number: u64) -> Result<(), Status> {
        let (snapshot_id, node_id) = (id.to_owned(), other.to_owned());
        let request = peer::ReleaseSnapshotRequest { snapshot_id, node_id, number };
        let mut peer = at.peer.clone();
        self.runtime.block_on(peer.release_snapshot(request)).map(drop)
    }

    pub fn keep(&self, at: &Node, id: &str, other: &str, (number, alone): (u64, bool)) -> Result<(), Status> {
        let (snapshot_id, node_id) = (id.to_owned(), other.to_owned());
        let request = peer::KeepSnapshotRequest { snapshot_id, node_id, number, alone };
        let mut peer = at.peer.clone();
        self.runtime.block_on(peer.keep_snapshot(request)).map(drop)
    }

    /// Moves it, whatever an earlier try has done. Returns the number of the offer.
    pub fn hand_over(&self, id: &str, take: impl Fn() -> Result<u64, Status>) -> u64 {
        let number = answered(&[Code::Unavailable, Code::Aborted], take).expect("it is taken");
        self.release(&self.source, id, TARGET, number).expect("it is released");
        self.keep(&self.target, id, SOURCE, (number, true)).expect("it is alone");
        number
    }
}

/// Returns the names of the nodes for which this holds.
pub fn nodes(pair: &Pair, has: impl Fn(&Node) -> bool) -> Vec<&'static str> {
    let nodes = [(SOURCE, &pair.source), (TARGET, &pair.target)];
    nodes.into_iter().filter(|(_, node)| has(node)).map(|(name, _)| name).collect()
}

/// Returns the size, the allocated bytes and a checksum of the image of a snapshot.
pub fn image(kernel: &FakeKernel, snapshot: &str) -> String {
    let path = image_of(snapshot);
    let stat = kernel.stat(&path).expect("an image");
    let crc = crc32fast::hash(&kernel.read(&path, 0, stat.size as usize).expect("it is read"));
    format!("{} {} {crc}", stat.size, stat.allocated)
}

fn permit(snapshot: &str, expires: u64) -> Vec<u8> {
    let id: SnapshotId = snapshot.parse().expect("an id");
    let grant = Grant {
        source_node: SOURCE.to_owned(),
        target_node: TARGET.to_owned(),
        target: VolumeId::of_taken(&NodeKey::of(TARGET), &id),
        source: VolumeSource::Snapshot(id),
        expires,
    };
    orders::permit(&grant).as_bytes().to_vec()
}
