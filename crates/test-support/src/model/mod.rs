//! Many clients, few names, and a model that must explain every answer; on the fake kernel and on the real one.
//!
//! Clients make calls of every RPC, valid and not, and note when each began and ended. A sequential specification says what
//! one call after the other does to a volume, a snapshot or a group (`volume`, `snapshot`); the history of each of them is then
//! checked for linearizability (`lin`). A call that was cut off by a kill may have had its effect or not. A call that copies
//! one thing to another is in the histories of both.

mod call;
mod choose;
mod client;
mod fake;
mod history;
mod lin;
mod random;
mod rpc;
mod rpc_volume;
mod snapshot;
mod volume;

use std::collections::{BTreeMap, HashMap};
use std::io;

use hostloop::model::{GroupSnapshotId, NodeKey, SnapshotId, VolumeId};

pub use crate::client::Kind;
pub use client::Clients;
pub use history::{Ending, Epoch, History};
pub use hostloop::selftest::client::Client as Rpc;
pub use random::{Random, seed};

/// A name of volumes.
#[derive(Debug, Clone)]
pub struct Name {
    pub name: String,
    pub kind: Kind,
    /// Of the StorageClass.
    pub parameters: HashMap<String, String>,
    /// The size that it is made with.
    pub bytes: u64,
}

impl Name {
    pub fn new(kind: Kind, number: usize, bytes: u64, pool: Option<&str>) -> Name {
        let mut parameters = crate::client::parameters(kind.backend());
        parameters.extend(pool.map(|pool| ("pool".to_owned(), pool.to_owned())));
        Name { name: format!("{kind:?}-{number}").to_lowercase(), kind, parameters, bytes }
    }
}

/// What all clients know.
#[derive(Debug, Clone)]
pub struct Setup {
    pub node: String,
    pub volumes: Vec<Name>,
    pub snapshots: usize,
    pub groups: usize,
    pub pods: usize,
    /// By so much volumes grow, up to three times.
    pub step: u64,
    /// A mounted ext4 grows, for which the driver needs CAP_SYS_RESOURCE.
    pub ext4_grows: bool,
}

impl Setup {
    fn key(&self) -> NodeKey {
        NodeKey::of(&self.node)
    }

    /// The id that CreateVolume gives a name.
    pub fn id_of(&self, name: &str) -> String {
        VolumeId::of_name(&self.key(), name).to_string()
    }

    pub fn volume_id(&self, v: usize) -> String {
        self.id_of(&self.volumes[v].name)
    }

    pub fn snapshot_name(s: usize) -> String {
        format!("snapshot-{s}")
    }

    pub fn snapshot_id(&self, s: usize) -> String {
        SnapshotId::of_name(&self.key(), &Self::snapshot_name(s)).to_string()
    }

    pub fn group_name(g: usize) -> String {
        format!("group-{g}")
    }

    pub fn group_id(&self, g: usize) -> String {
        GroupSnapshotId::of_name(&self.key(), &Self::group_name(g)).to_string()
    }

    pub fn member_id(&self, g: usize, v: usize) -> String {
        let (group, source) = (self.group_id(g), self.volume_id(v));
        let (group, source) = (group.parse().expect("a group"), source.parse().expect("a volume"));
        SnapshotId::of_member(&group, &self.key(), &source).to_string()
    }
}

/// The machine on which pods run.
pub trait Machine: Send + Sync + 'static {
    /// Where a volume is staged. kubelet makes the directory.
    fn staging(&self, id: &str) -> String;
    /// Where a volume is published for a pod.
    fn target(&self, id: &str, pod: usize) -> String;
    /// Makes the staging directory.
    fn prepare(&self, id: &str);
    /// Whether the driver was killed.
    fn is_gone(&self) -> bool;
    /// The path of each mount, and whether it is read-only.
    fn mounts(&self) -> BTreeMap<String, bool>;
    /// Writes a number durably through what is published at a path.
    ///
    /// # Errors
    /// EAGAIN where the filesystem is frozen and the writer has to come again.
    fn write(&self, id: &str, kind: Kind, target: &str, value: u32) -> io::Result<()>;
    /// Reads it; 0 where none was written.
    ///
    /// # Errors
    /// As read(2).
    fn read(&self, kind: Kind, target: &str) -> io::Result<u32>;
}

/// A number as a pod writes it.
pub fn text_of(value: u32) -> String {
    format!("{value:010}")
}

/// The number in what a pod has read; a raw device begins with zeros.
pub fn value_of(bytes: &[u8]) -> u32 {
    std::str::from_utf8(bytes).ok().and_then(|text| text.trim_matches('\0').parse().ok()).unwrap_or_default()
}

/// What is mounted of each volume, by the kernel.
pub fn mounted(setup: &Setup, machine: &dyn Machine) -> Vec<history::Mounted> {
    let mounts = machine.mounts();
    let of = |v| {
        let id = setup.volume_id(v);
        let pods = (0..setup.pods).filter_map(|pod| Some((pod, *mounts.get(&machine.target(&id, pod))?)));
        (pods.collect(), mounts.get(&machine.staging(&id)).copied())
    };
    (0..setup.volumes.len()).map(of).collect()
}
