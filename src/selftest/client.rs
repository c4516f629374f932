//! A caller of the driver, as external-provisioner and kubelet are: one method for each RPC of a volume's life.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use tonic::Status;
use tonic::transport::{Channel, Endpoint, Error};

use crate::config::Check;
use crate::wire::csi;
use csi::controller_client::ControllerClient;
use csi::identity_client::IdentityClient;
use csi::node_client::NodeClient;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

/// No call of a life takes so long, unless the disk hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// A volume that [`Client::create`] made.
#[derive(Debug, Clone)]
pub struct Volume {
    /// Its id.
    pub id: String,
    /// Its size in bytes.
    pub bytes: u64,
    check: Check,
    context: HashMap<String, String>,
}

/// A snapshot that [`Client::snapshot`] made.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Its id.
    pub id: String,
    /// A volume can be made from it.
    pub is_ready: bool,
}

/// What a copy of a volume is made from.
#[derive(Debug, Clone, Copy)]
pub enum Origin<'a> {
    /// A snapshot of it.
    Snapshot(&'a Snapshot),
    /// The volume itself.
    Volume,
}

/// Speaks to one driver.
#[derive(Debug, Clone)]
pub struct Client {
    identity: IdentityClient<Channel>,
    controller: ControllerClient<Channel>,
    node: NodeClient<Channel>,
}

impl Client {
    /// A client of the driver at this socket; it connects with its first call, and again if it must.
    ///
    /// # Errors
    /// Where the path cannot be part of an address.
    pub fn new(socket: &Path) -> Result<Self, Error> {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        let channel = endpoint.timeout(DEADLINE).connect_lazy();
        Ok(Client {
            identity: IdentityClient::new(channel.clone()),
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel),
        })
    }

    /// Whether the driver answers that it is ready.
    pub async fn is_ready(&self) -> bool {
        let answer = self.identity.clone().probe(csi::ProbeRequest {}).await;
        answer.is_ok_and(|answer| answer.into_inner().ready.unwrap_or(true))
    }

    /// CreateVolume.
    ///
    /// # Errors
    /// What the driver answers; so for all that follow.
    pub async fn create(&self, name: &str, check: Check, bytes: u64) -> Result<Volume, Status> {
        let request = csi::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(range(bytes)),
            volume_capabilities: vec![capability(check)],
            parameters: parameters(check),
            ..Default::default()
        };
        self.create_as_asked(request, check).await
    }

    /// CreateVolume with the content of another volume, and its size.
    pub async fn copy(
        &self,
        name: &str,
        volume: &Volume,
        origin: Origin<'_>,
        freeze: bool,
    ) -> Result<Volume, Status> {
        use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
        let source = match origin {
            Origin::Snapshot(snapshot) => Type::Snapshot(SnapshotSource { snapshot_id: snapshot.id.clone() }),
            Origin::Volume => Type::Volume(VolumeSource { volume_id: volume.id.clone() }),
        };
        let mut parameters = parameters(volume.check);
        parameters.extend(freezing(freeze));
        let request = csi::CreateVolumeRequest {
            name: name.to_owned(),
            capacity_range: Some(range(volume.bytes)),
            volume_capabilities: vec![capability(volume.check)],
            parameters,
            volume_content_source: Some(csi::VolumeContentSource { r#type: Some(source) }),
            ..Default::default()
        };
        self.create_as_asked(request, volume.check).await
    }

    async fn create_as_asked(
        &self,
        request: csi::CreateVolumeRequest,
        check: Check,
    ) -> Result<Volume, Status> {
        let answer = self.controller.clone().create_volume(request).await?.into_inner();
        let volume = answer.volume.ok_or_else(|| Status::internal("the answer has no volume"))?;
        let bytes = u64::try_from(volume.capacity_bytes).unwrap_or_default();
        Ok(Volume { id: volume.volume_id, bytes, check, context: volume.volume_context })
    }

    /// DeleteVolume.
    pub async fn delete(&self, volume: &Volume) -> Result<(), Status> {
        self.delete_id(&volume.id).await
    }

    /// DeleteVolume of whatever has this id.
    pub async fn delete_id(&self, id: &str) -> Result<(), Status> {
        let request = csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() };
        self.controller.clone().delete_volume(request).await.map(drop)
    }

    /// CreateSnapshot.
    pub async fn snapshot(&self, name: &str, volume: &Volume, freeze: bool) -> Result<Snapshot, Status> {
        let request = csi::CreateSnapshotRequest {
            name: name.to_owned(),
            source_volume_id: volume.id.clone(),
            parameters: freezing(freeze),
            ..Default::default()
        };
        let answer = self.controller.clone().create_snapshot(request).await?.into_inner();
        let snapshot = answer.snapshot.ok_or_else(|| Status::internal("the answer has no snapshot"))?;
        Ok(Snapshot { id: snapshot.snapshot_id, is_ready: snapshot.ready_to_use })
    }

    /// DeleteSnapshot.
    pub async fn delete_snapshot(&self, snapshot: &Snapshot) -> Result<(), Status> {
        let request = csi::DeleteSnapshotRequest { snapshot_id: snapshot.id.clone(), ..Default::default() };
        self.controller.clone().delete_snapshot(request).await.map(drop)
    }

    /// NodeStageVolume.
    pub async fn stage(&self, volume: &Volume, staging: &Path) -> Result<(), Status> {
        let request = csi::NodeStageVolumeRequest {
            volume_id: volume.id.clone(),
            staging_target_path: text(staging),
            volume_capability: Some(capability(volume.check)),
            volume_context: volume.context.clone(),
            ..Default::default()
        };
        self.node.clone().node_stage_volume(request).await.map(drop)
    }

    /// NodeUnstageVolume.
    pub async fn unstage(&self, volume: &Volume, staging: &Path) -> Result<(), Status> {
        let request = csi::NodeUnstageVolumeRequest {
            volume_id: volume.id.clone(),
            staging_target_path: text(staging),
        };
        self.node.clone().node_unstage_volume(request).await.map(drop)
    }

    /// NodePublishVolume.
    pub async fn publish(&self, volume: &Volume, staging: &Path, target: &Path) -> Result<(), Status> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: volume.id.clone(),
            staging_target_path: text(staging),
            target_path: text(target),
            volume_capability: Some(capability(volume.check)),
            volume_context: volume.context.clone(),
            ..Default::default()
        };
        self.node.clone().node_publish_volume(request).await.map(drop)
    }

    /// NodeUnpublishVolume.
    pub async fn unpublish(&self, volume: &Volume, target: &Path) -> Result<(), Status> {
        let request =
            csi::NodeUnpublishVolumeRequest { volume_id: volume.id.clone(), target_path: text(target) };
        self.node.clone().node_unpublish_volume(request).await.map(drop)
    }

    /// NodeGetVolumeStats: bytes in all and bytes used.
    pub async fn stats(&self, volume: &Volume, target: &Path) -> Result<(u64, u64), Status> {
        use csi::volume_usage::Unit;
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: volume.id.clone(),
            volume_path: text(target),
            ..Default::default()
        };
        let answer = self.node.clone().node_get_volume_stats(request).await?.into_inner();
        let bytes = answer.usage.iter().find(|usage| usage.unit() == Unit::Bytes);
        let bytes = bytes.ok_or_else(|| Status::internal("the answer has no bytes"))?;
        Ok((u64::try_from(bytes.total).unwrap_or_default(), u64::try_from(bytes.used).unwrap_or_default()))
    }

    /// ControllerExpandVolume, and NodeExpandVolume where the answer asks for it. Returns the new size.
    pub async fn expand(&self, volume: &Volume, target: &Path, bytes: u64) -> Result<u64, Status> {
        let request = csi::ControllerExpandVolumeRequest {
            volume_id: volume.id.clone(),
            capacity_range: Some(range(bytes)),
            ..Default::default()
        };
        let answer = self.controller.clone().controller_expand_volume(request).await?.into_inner();
        if answer.node_expansion_required {
            let request = csi::NodeExpandVolumeRequest {
                volume_id: volume.id.clone(),
                volume_path: text(target),
                capacity_range: Some(range(bytes)),
                ..Default::default()
            };
            self.node.clone().node_expand_volume(request).await?;
        }
        Ok(u64::try_from(answer.capacity_bytes).unwrap_or_default())
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn range(bytes: u64) -> csi::CapacityRange {
    csi::CapacityRange { required_bytes: i64::try_from(bytes).unwrap_or(i64::MAX), limit_bytes: 0 }
}

fn capability(check: Check) -> csi::VolumeCapability {
    let mount =
        |fs_type: &str| AccessType::Mount(MountVolume { fs_type: fs_type.to_owned(), ..Default::default() });
    let access = match check {
        Check::Block => AccessType::Block(BlockVolume {}),
        Check::Directory => mount(""),
        Check::Ext4 | Check::Xfs | Check::Btrfs => mount(check.as_str()),
    };
    let mode = AccessMode { mode: Mode::SingleNodeWriter.into() };
    csi::VolumeCapability { access_mode: Some(mode), access_type: Some(access) }
}

fn parameters(check: Check) -> HashMap<String, String> {
    match check {
        Check::Directory => HashMap::from([("backend".to_owned(), "directory".to_owned())]),
        Check::Ext4 | Check::Xfs | Check::Btrfs | Check::Block => HashMap::new(),
    }
}

/// The default is left out, as in most classes.
fn freezing(freeze: bool) -> HashMap<String, String> {
    match freeze {
        true => HashMap::new(),
        false => HashMap::from([("freeze".to_owned(), "false".to_owned())]),
    }
}
