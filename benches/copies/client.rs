//! The calls that are measured, as the sidecars make them.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use hostloop::wire::csi;
use tonic::transport::{Channel, Endpoint};

use csi::controller_client::ControllerClient;
use csi::node_client::NodeClient;
use csi::snapshot_metadata_client::SnapshotMetadataClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use csi::volume_content_source::{SnapshotSource, Type as SourceType, VolumeSource};

/// Speaks to one driver about volumes of one kind.
#[derive(Clone)]
pub struct Caller {
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
    metadata: SnapshotMetadataClient<Channel>,
    pool: Option<String>,
    block: bool,
}

pub fn from_snapshot(id: &str) -> csi::VolumeContentSource {
    let source = SnapshotSource { snapshot_id: id.to_owned() };
    csi::VolumeContentSource { r#type: Some(SourceType::Snapshot(source)) }
}

pub fn from_volume(id: &str) -> csi::VolumeContentSource {
    csi::VolumeContentSource { r#type: Some(SourceType::Volume(VolumeSource { volume_id: id.to_owned() })) }
}

impl Caller {
    pub fn new(socket: &Path, pool: Option<&str>) -> Self {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display())).unwrap();
        let channel = endpoint.connect_lazy();
        Caller {
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel.clone()),
            metadata: SnapshotMetadataClient::new(channel),
            pool: pool.map(str::to_owned),
            block: false,
        }
    }

    pub fn for_block(self) -> Self {
        Caller { block: true, ..self }
    }

    fn capability(&self) -> csi::VolumeCapability {
        let access = match self.block {
            true => AccessType::Block(BlockVolume {}),
            false => AccessType::Mount(MountVolume { fs_type: "ext4".to_owned(), ..Default::default() }),
        };
        let mode = AccessMode { mode: Mode::SingleNodeWriter.into() };
        csi::VolumeCapability { access_mode: Some(mode), access_type: Some(access) }
    }

    pub async fn create(&self, name: &str, bytes: u64, source: Option<csi::VolumeContentSource>) -> String {
        let mut parameters: HashMap<String, String> =
            self.pool.iter().map(|pool| ("pool".to_owned(), pool.clone())).collect();
        parameters.insert("freezeTimeout".to_owned(), "5m".to_owned());
        let request = csi::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(csi::CapacityRange { required_bytes: bytes as i64, limit_bytes: 0 }),
            volume_capabilities: vec![self.capability()],
            parameters,
            volume_content_source: source,
            ..Default::default()
        };
        self.controller.clone().create_volume(request).await.unwrap().into_inner().volume.unwrap().volume_id
    }

    pub async fn delete(&self, id: &str) {
        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.controller.clone().delete_volume(request).await.unwrap();
    }

    pub async fn snapshot(&self, name: &str, volume: &str, freeze: &str) -> String {
        let request = csi::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.to_owned(),
            parameters: [("freezeTimeout", "5m"), ("freeze", freeze)]
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
            ..Default::default()
        };
        self.controller
            .clone()
            .create_snapshot(request)
            .await
            .unwrap()
            .into_inner()
            .snapshot
            .unwrap()
            .snapshot_id
    }

    pub async fn delete_snapshot(&self, id: &str) {
        let request = csi::DeleteSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() };
        self.controller.clone().delete_snapshot(request).await.unwrap();
    }

    /// Stages a volume and publishes a raw one; gives the path of its data.
    pub async fn stage(&self, id: &str, place: &Path) -> PathBuf {
        let (staging, target) = (place.join("staging"), place.join("target"));
        let request = csi::NodeStageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.to_str().unwrap().to_owned(),
            volume_capability: Some(self.capability()),
            ..Default::default()
        };
        self.node.clone().node_stage_volume(request).await.unwrap();
        if !self.block {
            return staging;
        }
        let request = csi::NodePublishVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.to_str().unwrap().to_owned(),
            target_path: target.to_str().unwrap().to_owned(),
            volume_capability: Some(self.capability()),
            ..Default::default()
        };
        self.node.clone().node_publish_volume(request).await.unwrap();
        target
    }

    pub async fn unstage(&self, id: &str, place: &Path) {
        let (staging, target) = (place.join("staging"), place.join("target"));
        if self.block {
            let request = csi::NodeUnpublishVolumeRequest {
                volume_id: id.to_owned(),
                target_path: target.to_str().unwrap().to_owned(),
            };
            self.node.clone().node_unpublish_volume(request).await.unwrap();
        }
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: id.to_owned(),
            staging_target_path: staging.to_str().unwrap().to_owned(),
        };
        self.node.clone().node_unstage_volume(request).await.unwrap();
    }

    /// The ranges in which two snapshots differ: how many, and how many bytes.
    pub async fn delta(&self, base: &str, target: &str) -> (usize, u64) {
        let request = csi::GetMetadataDeltaRequest {
            base_snapshot_id: base.to_owned(),
            target_snapshot_id: target.to_owned(),
            ..Default::default()
        };
        let mut stream = self.metadata.clone().get_metadata_delta(request).await.unwrap().into_inner();
        let (mut count, mut bytes) = (0, 0);
        while let Some(message) = stream.message().await.unwrap() {
            count += message.block_metadata.len();
            bytes += message.block_metadata.iter().map(|range| range.size_bytes as u64).sum::<u64>();
        }
        (count, bytes)
    }
}
