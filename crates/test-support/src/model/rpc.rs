//! The calls as requests, and what the model looks at of their answers.

use hostloop::wire::csi;
use tonic::Status;

use csi::volume_capability::access_mode::Mode as M;

use super::call::{Answer, Call, From, Listed, Mode, Outcome, Wanted};
use super::volume::{HUGE, TOO_LARGE};
use super::{Kind, Machine, Rpc, Setup};
use crate::client::{self, MadeFrom};

/// The answer of one call.
pub(super) type Sent = Result<Answer, Status>;

/// A capability of a volume of this kind.
pub fn capability(kind: Kind, wanted: Wanted) -> csi::VolumeCapability {
    let mode = match wanted.mode {
        Mode::Writer => M::SingleNodeWriter,
        Mode::Reader => M::SingleNodeReaderOnly,
        Mode::MultiWriter => M::SingleNodeMultiWriter,
        Mode::MultiNode => M::MultiNodeMultiWriter,
    };
    let (own, other) = (kind.fs_type(), if kind == Kind::Block { Some("") } else { None });
    client::capability(if wanted.other_access { other } else { own }, mode)
}

pub(super) fn range(bytes: u64, limit: u64) -> Option<csi::CapacityRange> {
    Some(csi::CapacityRange { required_bytes: bytes as i64, limit_bytes: limit as i64 })
}

pub(super) fn bytes(bytes: i64) -> Answer {
    Answer { bytes: bytes as u64, ..Answer::default() }
}

fn nanos(time: Option<prost_types::Timestamp>) -> u64 {
    time.map_or(0, |time| time.seconds as u64 * 1_000_000_000 + time.nanos as u64)
}

pub(super) fn nothing<T>(_: T) -> Answer {
    Answer::default()
}

/// The calls of one client.
pub struct Caller<'a> {
    pub setup: &'a Setup,
    pub machine: &'a dyn Machine,
    pub rpc: Rpc,
}

impl Caller<'_> {
    fn source(&self, from: From) -> MadeFrom {
        match from {
            From::Snapshot(s) => MadeFrom::Snapshot(self.setup.snapshot_id(s)),
            From::Member(g, v) => MadeFrom::Snapshot(self.setup.member_id(g, v)),
            From::Volume(v) => MadeFrom::Volume(self.setup.volume_id(v)),
        }
    }

    /// What a snapshot shows of itself.
    pub fn snapshot(&self, snapshot: Option<csi::Snapshot>) -> Answer {
        let snapshot = snapshot.expect("a snapshot");
        let volumes = 0..self.setup.volumes.len();
        let source = volumes.clone().find(|v| self.setup.volume_id(*v) == snapshot.source_volume_id);
        Answer {
            bytes: snapshot.size_bytes as u64,
            created: nanos(snapshot.creation_time),
            source: source.unwrap_or(volumes.end),
            ..Answer::default()
        }
    }

    /// Makes a call that is not a list.
    pub async fn send(&self, call: &Call) -> Sent {
        match call.volume() {
            Some(v) => self.send_to_volume(call, v).await,
            None => self.send_other(call).await,
        }
    }

    /// A request for a volume that may be the name's or a probe's.
    pub fn create_request(
        &self,
        v: usize,
        name: &str,
        (bytes, limit): (u64, u64),
        from: Option<From>,
        wanted: Wanted,
    ) -> csi::CreateVolumeRequest {
        let of = &self.setup.volumes[v];
        let request = csi::CreateVolumeRequest {
            capacity_range: range(bytes, limit),
            parameters: of.parameters.clone(),
            ..client::create(name, bytes, capability(of.kind, wanted))
        };
        from.map_or(request.clone(), |from| self.source(from).source_of(request))
    }

    async fn send_other(&self, call: &Call) -> Sent {
        let setup = self.setup;
        let rpc = &self.rpc;
        let wrong = |wrong: bool| if wrong { vec![setup.snapshot_id(0)] } else { Vec::new() };
        match *call {
            Call::Snapshot { s, v } => {
                let request = client::snapshot(&Setup::snapshot_name(s), &setup.volume_id(v));
                Ok(self.snapshot(rpc.call(request).await?.snapshot))
            }
            Call::DeleteSnapshot(s) => self.delete_snapshot(setup.snapshot_id(s)).await,
            Call::DeleteMember { g, v } => self.delete_snapshot(setup.member_id(g, v)).await,
            Call::GetSnapshot(s) => self.get_snapshot(setup.snapshot_id(s)).await,
            Call::GetMember { g, v } => self.get_snapshot(setup.member_id(g, v)).await,
            Call::Group { g, volumes } => {
                let ids = volumes.map(|v| setup.volume_id(v));
                let request = client::group(&Setup::group_name(g), &ids.each_ref().map(String::as_str));
                let answer = rpc.call(request).await?;
                let group = answer.group_snapshot.expect("a group");
                assert_eq!(group.snapshots.len(), 2);
                Ok(Answer { created: nanos(group.creation_time), ..Answer::default() })
            }
            Call::DeleteGroup { g, wrong_members } => {
                let snapshot_ids = wrong(wrong_members);
                let request = client::delete_group(&setup.group_id(g));
                let request = csi::DeleteVolumeGroupSnapshotRequest { snapshot_ids, ..request };
                rpc.call(request).await.map(nothing)
            }
            Call::GetGroup { g, wrong_members } => {
                let request = csi::GetVolumeGroupSnapshotRequest {
                    group_snapshot_id: setup.group_id(g),
                    snapshot_ids: wrong(wrong_members),
                    ..Default::default()
                };
                let answer = rpc.call(request).await?;
                let created = nanos(answer.group_snapshot.expect("a group").creation_time);
                Ok(Answer { created, ..Answer::default() })
            }
            Call::Other(n) => self.other(n).await,
            Call::Invalid(n) => self.invalid(n).await,
            _ => unreachable!("{call:?} is more than one call"),
        }
    }

    async fn delete_snapshot(&self, snapshot_id: String) -> Sent {
        self.rpc.call(client::delete_snapshot(&snapshot_id)).await.map(nothing)
    }

    async fn get_snapshot(&self, snapshot_id: String) -> Sent {
        let request = csi::GetSnapshotRequest { snapshot_id, ..Default::default() };
        Ok(self.snapshot(self.rpc.call(request).await?.snapshot))
    }

    /// Calls that only look.
    async fn other(&self, n: usize) -> Sent {
        let rpc = &self.rpc;
        match n % Self::OTHERS {
            0 => rpc.call(csi::GetCapacityRequest::default()).await.map(nothing),
            1 => rpc.call(csi::ControllerGetCapabilitiesRequest {}).await.map(nothing),
            2 => rpc.call(csi::NodeGetInfoRequest {}).await.map(nothing),
            3 => rpc.call(csi::NodeGetCapabilitiesRequest {}).await.map(nothing),
            4 => rpc.call(csi::ProbeRequest {}).await.map(nothing),
            5 => rpc.call(csi::NodeGetStorageHealthRequest::default()).await.map(nothing),
            6 => rpc.call(csi::ControllerListVolumeHealthRequest::default()).await.map(nothing),
            _ => rpc.call(csi::GroupControllerGetCapabilitiesRequest::default()).await.map(nothing),
        }
    }

    pub const OTHERS: usize = 8;

    /// Calls that are wrong by themselves, whatever is there.
    async fn invalid(&self, n: usize) -> Sent {
        let volume_id = self.setup.volume_id(0);
        let fine = Wanted { mode: Mode::Writer, other_access: false };
        let create = self.create_request(0, "invalid", (1 << 20, 0), None, fine);
        let rpc = &self.rpc;
        match n % Self::INVALID {
            0 => {
                let request = csi::CreateVolumeRequest { name: String::new(), ..create };
                rpc.call(request).await.map(nothing)
            }
            1 => {
                let request = csi::CreateVolumeRequest { volume_capabilities: Vec::new(), ..create };
                rpc.call(request).await.map(nothing)
            }
            2 => {
                let parameters = [("colour".to_owned(), "blue".to_owned())].into();
                let request = csi::CreateVolumeRequest { parameters, ..create };
                rpc.call(request).await.map(nothing)
            }
            3 => rpc.call(csi::DeleteVolumeRequest::default()).await.map(nothing),
            4 => {
                let request = csi::ControllerExpandVolumeRequest { volume_id, ..Default::default() };
                rpc.call(request).await.map(nothing)
            }
            5 => {
                let request = csi::NodeStageVolumeRequest { volume_id, ..Default::default() };
                rpc.call(request).await.map(nothing)
            }
            6 => {
                let request = csi::NodePublishVolumeRequest { volume_id, ..Default::default() };
                rpc.call(request).await.map(nothing)
            }
            7 => {
                let request = csi::CreateSnapshotRequest { name: "s".to_owned(), ..Default::default() };
                rpc.call(request).await.map(nothing)
            }
            8 => {
                let request = csi::CreateVolumeGroupSnapshotRequest::default();
                rpc.call(request).await.map(nothing)
            }
            _ => {
                let request = client::stage(&volume_id, "relative", capability(Kind::Ext4, fine));
                rpc.call(request).await.map(nothing)
            }
        }
    }

    pub const INVALID: usize = 10;

    /// All pages of a list of volumes.
    pub async fn list_volumes(&self, max_entries: i32, now: impl Fn() -> u64) -> Result<Outcome, Status> {
        let (mut all, mut starting_token) = (Vec::new(), String::new());
        loop {
            let start = now();
            let request = csi::ListVolumesRequest { max_entries, starting_token };
            let page = self.rpc.call(request).await?;
            let end = now();
            assert!(max_entries == 0 || page.entries.len() <= max_entries as usize, "a page is too long");
            for entry in page.entries {
                let attached = entry.status.is_some_and(|status| !status.published_node_ids.is_empty());
                let volume = entry.volume.expect("a volume");
                let answer = Answer { attached, ..bytes(volume.capacity_bytes) };
                all.push(Listed { id: volume.volume_id, start, end, answer });
            }
            starting_token = page.next_token;
            if starting_token.is_empty() {
                return Ok(Outcome::List(all));
            }
        }
    }

    /// All pages of a list of snapshots.
    pub async fn list_snapshots(&self, max_entries: i32, now: impl Fn() -> u64) -> Result<Outcome, Status> {
        let (mut all, mut starting_token) = (Vec::new(), String::new());
        loop {
            let start = now();
            let request = csi::ListSnapshotsRequest { max_entries, starting_token, ..Default::default() };
            let page = self.rpc.call(request).await?;
            let end = now();
            for entry in page.entries {
                let id = entry.snapshot.as_ref().expect("a snapshot").snapshot_id.clone();
                all.push(Listed { id, start, end, answer: self.snapshot(entry.snapshot) });
            }
            starting_token = page.next_token;
            if starting_token.is_empty() {
                return Ok(Outcome::List(all));
            }
        }
    }
}

/// Sizes that no volume gets.
pub const IMPOSSIBLE: [u64; 2] = [HUGE, TOO_LARGE];
