//! The client of these tests. Each call has a connection of its own, as kubelet does it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use futures_util::TryStreamExt;
use hostloop::selftest::client::{self, Client};
use hostloop::wire::csi;
use hostloop::wire::rpc::{Streaming, Unary};
use tokio::runtime::Runtime;
use tonic::{Request, Status};

use crate::client::*;

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

    async fn connect(&self) -> Answer<Client> {
        let channel = client::endpoint(&self.socket).expect("a path").connect().await;
        let channel = channel.map_err(|e| Status::unavailable(format!("cannot connect: {e:?}")))?;
        Ok(Client::on(channel))
    }

    pub fn call<Q: Unary>(&self, request: Q) -> Answer<Q::Reply> {
        self.runtime.block_on(async { self.connect().await?.call(request).await })
    }

    /// Every message of a stream.
    pub fn all<Q: Streaming>(&self, request: Q) -> Answer<Vec<Q::Reply>> {
        self.runtime
            .block_on(async { self.connect().await?.open(Request::new(request)).await?.try_collect().await })
    }

    /// Answered at once, or not at all.
    pub fn probe(&self) -> Answer<csi::ProbeResponse> {
        self.runtime.block_on(async {
            let client = self.connect().await?;
            let answer = tokio::time::timeout(Duration::from_secs(60), client.call(csi::ProbeRequest {}));
            answer.await.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer to Probe")))
        })
    }

    pub fn create(&self, request: csi::CreateVolumeRequest) -> Answer<csi::Volume> {
        Ok(self.call(request)?.volume.expect("a volume"))
    }

    pub fn delete(&self, volume_id: &str) -> Answer<()> {
        self.call(delete(volume_id)).map(drop)
    }

    /// The available capacity of GetCapacity.
    pub fn capacity(&self, class: &[(&str, &str)]) -> Answer<i64> {
        self.room(class).map(|(available, _)| available)
    }

    pub fn list(&self, max_entries: i32, token: &str) -> Answer<csi::ListVolumesResponse> {
        let request = csi::ListVolumesRequest { max_entries, starting_token: token.to_owned() };
        // More than tonic's 4 MiB, as every sidecar allows it.
        self.runtime.block_on(async { self.connect().await?.accepting(64 << 20).call(request).await })
    }

    pub fn health(&self, volume_id: &str) -> Answer<csi::VolumeHealth> {
        let volume_id = volume_id.to_owned();
        let request = csi::ControllerGetVolumeHealthRequest { volume_id, ..Default::default() };
        Ok(self.call(request)?.volume_health.expect("health"))
    }

    /// `available_capacity` and `maximum_volume_size` of GetCapacity.
    pub fn room(&self, class: &[(&str, &str)]) -> Answer<(i64, i64)> {
        let request = csi::GetCapacityRequest { parameters: parameters(class), ..Default::default() };
        let answer = self.call(request)?;
        Ok((answer.available_capacity, answer.maximum_volume_size.unwrap_or_default()))
    }

    /// The volumes that ControllerListVolumeHealth lists.
    pub fn unhealthy(&self) -> Answer<Vec<String>> {
        let answer = self.call(csi::ControllerListVolumeHealthRequest::default())?;
        Ok(answer.entries.into_iter().map(|volume| volume.volume_id).collect())
    }

    pub fn node_health(&self, volume_id: &str, target: &Path, staging: &Path) -> Answer<csi::VolumeHealth> {
        let request = csi::NodeGetVolumeHealthRequest {
            volume_id: volume_id.to_owned(),
            volume_publish_path: super::text(target).to_owned(),
            staging_target_path: super::text(staging).to_owned(),
        };
        Ok(self.call(request)?.volume_health.expect("health"))
    }

    /// The reasons of NodeGetStorageHealth.
    pub fn storage_health(&self) -> Answer<Vec<String>> {
        Ok(self.storage_troubles()?.into_iter().map(|(reason, _)| reason).collect())
    }

    /// The reasons and messages of NodeGetStorageHealth.
    pub fn storage_troubles(&self) -> Answer<Vec<(String, String)>> {
        let answer = self.call(csi::NodeGetStorageHealthRequest::default())?;
        Ok(answer.backend_health.into_iter().map(|entry| (entry.reason, entry.message)).collect())
    }

    pub fn snapshot(&self, name: &str, volume_id: &str, class: &[(&str, &str)]) -> Answer<csi::Snapshot> {
        let request =
            csi::CreateSnapshotRequest { parameters: parameters(class), ..snapshot(name, volume_id) };
        Ok(self.call(request)?.snapshot.expect("a snapshot"))
    }

    pub fn delete_snapshot(&self, snapshot_id: &str) -> Answer<()> {
        self.call(delete_snapshot(snapshot_id)).map(drop)
    }

    pub fn list_snapshots(&self) -> Answer<Vec<csi::Snapshot>> {
        let answer = self.call(csi::ListSnapshotsRequest::default())?;
        Ok(answer.entries.into_iter().map(|entry| entry.snapshot.expect("a snapshot")).collect())
    }

    pub fn modify(&self, volume_id: &str, changed: &[(&str, &str)]) -> Answer<()> {
        self.call(modify(volume_id, changed)).map(drop)
    }

    pub fn group(&self, name: &str, volume_ids: &[&str]) -> Answer<csi::VolumeGroupSnapshot> {
        Ok(self.call(group(name, volume_ids))?.group_snapshot.expect("a group"))
    }

    pub fn delete_group(&self, group_snapshot_id: &str) -> Answer<()> {
        self.call(delete_group(group_snapshot_id)).map(drop)
    }

    /// Offset and length of each range of GetMetadataAllocated.
    pub fn allocated(&self, snapshot_id: &str) -> Answer<Vec<(u64, u64)>> {
        let messages = self.all(allocated(snapshot_id))?;
        Ok(messages.iter().flat_map(|message| &message.block_metadata).map(place).collect())
    }

    /// Offset and length of each range of GetMetadataDelta, a few in a message.
    pub fn delta(&self, base: &str, target: &str) -> Answer<Vec<(u64, u64)>> {
        let messages = self.all(csi::GetMetadataDeltaRequest { max_results: 7, ..delta(base, target) })?;
        Ok(messages.iter().flat_map(|message| &message.block_metadata).map(place).collect())
    }

    pub fn publish(&self, request: csi::NodePublishVolumeRequest) -> Answer<()> {
        self.call(request).map(drop)
    }

    pub fn unpublish(&self, volume_id: &str, target: &Path) -> Answer<()> {
        self.call(unpublish(volume_id, target)).map(drop)
    }

    pub fn stats(&self, volume_id: &str, path: &Path) -> Answer<csi::NodeGetVolumeStatsResponse> {
        self.call(stats(volume_id, path))
    }
}

fn place(range: &csi::BlockMetadata) -> (u64, u64) {
    (range.byte_offset as u64, range.size_bytes as u64)
}
