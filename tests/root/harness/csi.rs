//! The generated clients. Each call has a connection of its own, as kubelet does it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostloop::wire::csi::controller_client::ControllerClient;
use hostloop::wire::csi::group_controller_client::GroupControllerClient;
use hostloop::wire::csi::identity_client::IdentityClient;
use hostloop::wire::csi::node_client::NodeClient;
use hostloop::wire::csi::snapshot_metadata_client::SnapshotMetadataClient;
use hostloop::wire::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume, access_mode};
use hostloop::wire::csi::{self, VolumeCapability};
use tokio::runtime::Runtime;
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

/// What a volume is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
    Block,
    Directory,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block, Kind::Directory];

    /// Those in an image, which can be in one pool.
    pub const LOOP: [Kind; 4] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block];

    /// A size that it can have, and be grown from.
    pub fn size(self) -> u64 {
        let mib = match self {
            Kind::Ext4 | Kind::Block | Kind::Directory => 64,
            Kind::Xfs => 304,
            Kind::Btrfs => 256,
        };
        mib * super::MIB
    }

    pub fn fs_type(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::Block | Kind::Directory => "",
        }
    }

    pub fn capability(self, mode: access_mode::Mode, flags: &[&str]) -> VolumeCapability {
        let mount_flags = flags.iter().map(|f| (*f).to_owned()).collect();
        let mount = MountVolume { fs_type: self.fs_type().to_owned(), mount_flags, ..Default::default() };
        let access_type = match self {
            Kind::Block => AccessType::Block(BlockVolume {}),
            _ => AccessType::Mount(mount),
        };
        let access_mode = Some(AccessMode { mode: mode.into() });
        VolumeCapability { access_mode, access_type: Some(access_type) }
    }
}

pub fn map(pairs: &[(&str, &str)]) -> HashMap<String, String> {
    pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
}

async fn collect<M>(
    mut stream: tonic::Streaming<M>,
    ranges: fn(M) -> Vec<csi::BlockMetadata>,
) -> Answer<Vec<csi::BlockMetadata>> {
    let mut all = Vec::new();
    while let Some(message) = stream.message().await? {
        all.extend(ranges(message));
    }
    Ok(all)
}

/// A client of the driver behind a socket.
pub struct Csi {
    socket: PathBuf,
    runtime: Runtime,
}

type Answer<T> = Result<T, Status>;

impl Csi {
    pub fn new(socket: &Path) -> Csi {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        Csi { socket: socket.to_owned(), runtime }
    }

    fn call<T>(&self, f: impl AsyncFnOnce(Channel) -> Answer<Response<T>>) -> Answer<T> {
        self.runtime.block_on(async {
            let endpoint = Endpoint::try_from(format!("unix://{}", self.socket.display())).expect("a path");
            let channel = endpoint.connect().await;
            let channel = channel.map_err(|e| Status::unavailable(format!("cannot connect: {e:?}")))?;
            Ok(f(channel).await?.into_inner())
        })
    }

    /// Answered at once, or not at all.
    pub fn probe(&self) -> Answer<csi::ProbeResponse> {
        self.call(async |c| {
            let mut identity = IdentityClient::new(c);
            let answer = tokio::time::timeout(Duration::from_secs(20), identity.probe(csi::ProbeRequest {}));
            answer.await.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer to Probe")))
        })
    }

    pub fn info(&self) -> Answer<csi::GetPluginInfoResponse> {
        self.call(async |c| IdentityClient::new(c).get_plugin_info(csi::GetPluginInfoRequest {}).await)
    }

    pub fn get_capacity(&self, request: csi::GetCapacityRequest) -> Answer<csi::GetCapacityResponse> {
        self.call(async |c| ControllerClient::new(c).get_capacity(request).await)
    }

    pub fn create(&self, request: csi::CreateVolumeRequest) -> Answer<csi::Volume> {
        let answer = self.call(async |c| ControllerClient::new(c).create_volume(request).await)?;
        Ok(answer.volume.expect("a volume"))
    }

    pub fn delete(&self, volume_id: &str) -> Answer<()> {
        let request = csi::DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..Default::default() };
        self.call(async |c| ControllerClient::new(c).delete_volume(request).await).map(drop)
    }

    /// The available capacity of GetCapacity.
    pub fn capacity(&self, parameters: &[(&str, &str)]) -> Answer<i64> {
        let request = csi::GetCapacityRequest { parameters: map(parameters), ..Default::default() };
        let answer = self.call(async |c| ControllerClient::new(c).get_capacity(request).await)?;
        Ok(answer.available_capacity)
    }

    pub fn list(&self, max_entries: i32, token: &str) -> Answer<csi::ListVolumesResponse> {
        let request = csi::ListVolumesRequest { max_entries, starting_token: token.to_owned() };
        // More than tonic's 4 MiB, as every sidecar allows it.
        self.call(async |c| {
            ControllerClient::new(c).max_decoding_message_size(64 << 20).list_volumes(request).await
        })
    }

    pub fn health(&self, volume_id: &str) -> Answer<csi::VolumeHealth> {
        let volume_id = volume_id.to_owned();
        let request = csi::ControllerGetVolumeHealthRequest { volume_id, ..Default::default() };
        let answer =
            self.call(async |c| ControllerClient::new(c).controller_get_volume_health(request).await)?;
        Ok(answer.volume_health.expect("health"))
    }

    /// `available_capacity` and `maximum_volume_size` of GetCapacity.
    pub fn room(&self, parameters: &[(&str, &str)]) -> Answer<(i64, i64)> {
        let request = csi::GetCapacityRequest { parameters: map(parameters), ..Default::default() };
        let answer = self.call(async |c| ControllerClient::new(c).get_capacity(request).await)?;
        Ok((answer.available_capacity, answer.maximum_volume_size.unwrap_or_default()))
    }

    /// The volumes that ControllerListVolumeHealth lists.
    pub fn unhealthy(&self) -> Answer<Vec<String>> {
        let request = csi::ControllerListVolumeHealthRequest::default();
        let answer =
            self.call(async |c| ControllerClient::new(c).controller_list_volume_health(request).await)?;
        Ok(answer.entries.into_iter().map(|volume| volume.volume_id).collect())
    }

    pub fn node_health(&self, volume_id: &str, publish: &Path, staging: &Path) -> Answer<csi::VolumeHealth> {
        let request = csi::NodeGetVolumeHealthRequest {
            volume_id: volume_id.to_owned(),
            volume_publish_path: super::text(publish).to_owned(),
            staging_target_path: super::text(staging).to_owned(),
        };
        let answer = self.call(async |c| NodeClient::new(c).node_get_volume_health(request).await)?;
        Ok(answer.volume_health.expect("health"))
    }

    /// The reasons of NodeGetStorageHealth.
    pub fn storage_health(&self) -> Answer<Vec<String>> {
        Ok(self.storage_troubles()?.into_iter().map(|(reason, _)| reason).collect())
    }

    /// The reasons and messages of NodeGetStorageHealth.
    pub fn storage_troubles(&self) -> Answer<Vec<(String, String)>> {
        let request = csi::NodeGetStorageHealthRequest::default();
        let answer = self.call(async |c| NodeClient::new(c).node_get_storage_health(request).await)?;
        Ok(answer.backend_health.into_iter().map(|entry| (entry.reason, entry.message)).collect())
    }

    pub fn expand(
        &self,
        request: csi::ControllerExpandVolumeRequest,
    ) -> Answer<csi::ControllerExpandVolumeResponse> {
        self.call(async |c| ControllerClient::new(c).controller_expand_volume(request).await)
    }

    pub fn snapshot(
        &self,
        name: &str,
        volume_id: &str,
        parameters: &[(&str, &str)],
    ) -> Answer<csi::Snapshot> {
        let request = csi::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume_id.to_owned(),
            parameters: map(parameters),
            ..Default::default()
        };
        let answer = self.call(async |c| ControllerClient::new(c).create_snapshot(request).await)?;
        Ok(answer.snapshot.expect("a snapshot"))
    }

    pub fn delete_snapshot(&self, snapshot_id: &str) -> Answer<()> {
        let request =
            csi::DeleteSnapshotRequest { snapshot_id: snapshot_id.to_owned(), ..Default::default() };
        self.call(async |c| ControllerClient::new(c).delete_snapshot(request).await).map(drop)
    }

    pub fn list_snapshots(&self) -> Answer<Vec<csi::Snapshot>> {
        let request = csi::ListSnapshotsRequest::default();
        let answer = self.call(async |c| ControllerClient::new(c).list_snapshots(request).await)?;
        Ok(answer.entries.into_iter().map(|entry| entry.snapshot.expect("a snapshot")).collect())
    }

    pub fn modify(&self, volume_id: &str, parameters: &[(&str, &str)]) -> Answer<()> {
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: volume_id.to_owned(),
            mutable_parameters: map(parameters),
            ..Default::default()
        };
        self.call(async |c| ControllerClient::new(c).controller_modify_volume(request).await).map(drop)
    }

    pub fn group(&self, name: &str, volume_ids: &[&str]) -> Answer<csi::VolumeGroupSnapshot> {
        let request = csi::CreateVolumeGroupSnapshotRequest {
            name: name.to_owned(),
            source_volume_ids: volume_ids.iter().map(|id| (*id).to_owned()).collect(),
            ..Default::default()
        };
        let answer =
            self.call(async |c| GroupControllerClient::new(c).create_volume_group_snapshot(request).await)?;
        Ok(answer.group_snapshot.expect("a group"))
    }

    pub fn delete_group(&self, group_snapshot_id: &str) -> Answer<()> {
        let group_snapshot_id = group_snapshot_id.to_owned();
        let request = csi::DeleteVolumeGroupSnapshotRequest { group_snapshot_id, ..Default::default() };
        self.call(async |c| GroupControllerClient::new(c).delete_volume_group_snapshot(request).await)
            .map(drop)
    }

    /// Offset and length of each range of GetMetadataAllocated.
    pub fn allocated(&self, snapshot_id: &str) -> Answer<Vec<(u64, u64)>> {
        let request =
            csi::GetMetadataAllocatedRequest { snapshot_id: snapshot_id.to_owned(), ..Default::default() };
        self.ranges(async |c| {
            let stream = SnapshotMetadataClient::new(c).get_metadata_allocated(request).await?.into_inner();
            collect(stream, |message| message.block_metadata).await
        })
    }

    /// Offset and length of each range of GetMetadataDelta, a few in a message.
    pub fn delta(&self, base: &str, target: &str) -> Answer<Vec<(u64, u64)>> {
        let request = csi::GetMetadataDeltaRequest {
            base_snapshot_id: base.to_owned(),
            target_snapshot_id: target.to_owned(),
            max_results: 7,
            ..Default::default()
        };
        self.ranges(async |c| {
            let stream = SnapshotMetadataClient::new(c).get_metadata_delta(request).await?.into_inner();
            collect(stream, |message| message.block_metadata).await
        })
    }

    fn ranges(
        &self,
        f: impl AsyncFnOnce(Channel) -> Answer<Vec<csi::BlockMetadata>>,
    ) -> Answer<Vec<(u64, u64)>> {
        let all = self.call(async |c| Ok(Response::new(f(c).await?)))?;
        Ok(all.iter().map(|range| (range.byte_offset as u64, range.size_bytes as u64)).collect())
    }

    pub fn stage(&self, request: csi::NodeStageVolumeRequest) -> Answer<()> {
        self.call(async |c| NodeClient::new(c).node_stage_volume(request).await).map(drop)
    }

    pub fn unstage(&self, request: csi::NodeUnstageVolumeRequest) -> Answer<()> {
        self.call(async |c| NodeClient::new(c).node_unstage_volume(request).await).map(drop)
    }

    pub fn publish(&self, request: csi::NodePublishVolumeRequest) -> Answer<()> {
        self.call(async |c| NodeClient::new(c).node_publish_volume(request).await).map(drop)
    }

    pub fn unpublish(&self, volume_id: &str, target: &Path) -> Answer<()> {
        let (volume_id, target_path) = (volume_id.to_owned(), super::text(target).to_owned());
        let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
        self.call(async |c| NodeClient::new(c).node_unpublish_volume(request).await).map(drop)
    }

    pub fn stats(&self, volume_id: &str, path: &Path) -> Answer<csi::NodeGetVolumeStatsResponse> {
        let (volume_id, volume_path) = (volume_id.to_owned(), super::text(path).to_owned());
        let request = csi::NodeGetVolumeStatsRequest { volume_id, volume_path, ..Default::default() };
        self.call(async |c| NodeClient::new(c).node_get_volume_stats(request).await)
    }

    pub fn node_expand(
        &self,
        request: csi::NodeExpandVolumeRequest,
    ) -> Answer<csi::NodeExpandVolumeResponse> {
        self.call(async |c| NodeClient::new(c).node_expand_volume(request).await)
    }
}
