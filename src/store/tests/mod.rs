//! Tests of the store, on the disk of the fake kernel.

mod damage;
mod disk;
mod faults;
mod group;
mod owner;
mod room;
mod state;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use self::disk::{Disk, Fault};
use super::record::{self, Change, Put};
use super::{Identity, Store, StoreError};
use crate::model::{
    AccessMode, AccessType, BackendKind, Capability, Content, NodeKey, Phase, PoolName, Provisioning,
    Snapshot, SnapshotId, Timestamp, Volume, VolumeId, VolumeParameters,
};

const DIR: &str = "/data";

fn file() -> PathBuf {
    Path::new(DIR).join(super::writer::FILE)
}

fn previous() -> PathBuf {
    Path::new(DIR).join(super::writer::PREVIOUS_FILE)
}

fn identity() -> Identity {
    Identity { driver: "hostloop.test".to_owned(), node_id: "node-a".to_owned() }
}

fn open(disk: &Disk) -> Result<Store, StoreError> {
    open_with(disk, super::SLACK)
}

fn open_with(disk: &Disk, slack: u64) -> Result<Store, StoreError> {
    Store::open_with(disk.files(), Path::new(DIR), identity(), slack)
}

fn id(number: usize) -> VolumeId {
    VolumeId::of_name(&NodeKey::of("node-a"), &format!("pvc-{number}"))
}

/// A thin block volume of a pool.
fn volume(number: usize, capacity_bytes: u64) -> Volume {
    Volume {
        name: format!("pvc-{number}"),
        capacity_bytes,
        capabilities: vec![Capability { access: AccessType::Block, mode: AccessMode::SingleNodeWriter }],
        block_size: 512,
        ..Volume::new(id(number), Phase::Ready, Content::Block, VolumeParameters::default())
    }
}

/// A snapshot of the first volume of a node.
fn snapshot(node: &str, name: &str) -> Snapshot {
    let node = NodeKey::of(node);
    Snapshot {
        id: SnapshotId::of_name(&node, name),
        name: name.to_owned(),
        phase: Phase::Ready,
        source: VolumeId::of_name(&node, "pvc-1"),
        created: Timestamp::from_nanos(1),
        size_bytes: 1000,
        requested_bytes: None,
        allocated_bytes: 1000,
        content: Content::Block,
        pool: PoolName::default(),
        block_size: 512,
        group: None,
        pulled_for: None,
        kept: false,
        sealed: false,
        generation: 0,
        object: None,
        handover: None,
    }
}

fn with(mut volume: Volume, backend: BackendKind, provisioning: Provisioning) -> Volume {
    (volume.parameters.backend, volume.parameters.provisioning) = (backend, provisioning);
    volume
}

/// The state as a plain map from id to size.
type Model = BTreeMap<VolumeId, u64>;

fn model(store: &Store) -> Model {
    store.volumes().iter().map(|volume| (volume.id.clone(), volume.capacity_bytes)).collect()
}

/// A state file of a header and one line each for the volumes 0..n, none of which was compacted away.
fn sample(n: usize) -> Vec<u8> {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    for number in 0..n {
        store.put(volume(number, 1000 + number as u64)).unwrap();
    }
    disk.read()
}

fn sample_model(n: usize) -> Model {
    (0..n).map(|number| (id(number), 1000 + number as u64)).collect()
}

/// The line that puts volume `number`, as [`sample`] has it.
fn put_line(seq: u64, synced: u64, number: usize) -> Vec<u8> {
    let change = Change::Put(Put::Volume(Arc::new(volume(number, 1000 + number as u64))));
    record::line(seq, synced, &change.members().unwrap()).into_bytes()
}
