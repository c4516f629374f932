//! The life of a volume, as the sidecars and kubelet lead it, with the time of each call.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use crate::config::Check;
use crate::kernel::Files;
use crate::selftest::client::Client;
use crate::selftest::requests;
use crate::selftest::volume::Volume;
use crate::wire::csi;
use crate::wire::rpc::Unary;

/// How often a call is repeated whose effect is not known, and how long to wait in between.
const TRIES: usize = 20;
const PAUSE: Duration = Duration::from_millis(500);

/// A call of a life, in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rpc {
    CreateVolume,
    ControllerPublishVolume,
    NodeStageVolume,
    NodePublishVolume,
    NodeUnpublishVolume,
    NodeUnstageVolume,
    ControllerUnpublishVolume,
    DeleteVolume,
}

impl Rpc {
    /// Every call.
    pub const ALL: [Rpc; 8] = [
        Rpc::CreateVolume,
        Rpc::ControllerPublishVolume,
        Rpc::NodeStageVolume,
        Rpc::NodePublishVolume,
        Rpc::NodeUnpublishVolume,
        Rpc::NodeUnstageVolume,
        Rpc::ControllerUnpublishVolume,
        Rpc::DeleteVolume,
    ];

    /// As the specification writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Rpc::CreateVolume => "CreateVolume",
            Rpc::ControllerPublishVolume => "ControllerPublishVolume",
            Rpc::NodeStageVolume => "NodeStageVolume",
            Rpc::NodePublishVolume => "NodePublishVolume",
            Rpc::NodeUnpublishVolume => "NodeUnpublishVolume",
            Rpc::NodeUnstageVolume => "NodeUnstageVolume",
            Rpc::ControllerUnpublishVolume => "ControllerUnpublishVolume",
            Rpc::DeleteVolume => "DeleteVolume",
        }
    }
}

/// How long the calls of one life took, each in its turn. Calls that the driver does not have are missing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Times(pub Vec<(Rpc, Duration)>);

impl Times {
    /// All calls together, without what was done between them.
    pub fn whole(&self) -> Duration {
        self.0.iter().map(|(_, time)| time).sum()
    }

    /// One of them.
    pub fn of(&self, rpc: Rpc) -> Option<Duration> {
        self.0.iter().find(|(of, _)| *of == rpc).map(|(_, time)| *time)
    }
}

/// Why a life ended early.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The driver's answer.
    #[error("{} answered {code:?}: {message}", .rpc.as_str())]
    Answer { rpc: Rpc, code: Code, message: String },
    /// A staging path, which is kubelet's to make and to remove.
    #[error("{0}")]
    Path(#[from] io::Error),
    /// What went wrong, and that something could not be undone.
    #[error("{0}; {1}")]
    Left(Box<Failure>, String),
}

/// What is asked of CreateVolume.
#[derive(Debug, Clone)]
pub struct Order {
    pub bytes: u64,
    pub capability: csi::VolumeCapability,
    /// Of the StorageClass.
    pub parameters: HashMap<String, String>,
    /// Where it has to be reached, for drivers to which that matters.
    pub topology: Option<csi::Topology>,
}

impl Order {
    /// A volume of hostloop of this kind.
    pub fn of(check: Check, bytes: u64) -> Self {
        let parameters = requests::create_kind("", bytes, check).parameters;
        Order { bytes, capability: requests::writer(check), parameters, topology: None }
    }

    fn request(&self, name: &str) -> csi::CreateVolumeRequest {
        csi::CreateVolumeRequest {
            parameters: self.parameters.clone(),
            accessibility_requirements: self.topology.clone().map(|topology| csi::TopologyRequirement {
                requisite: vec![topology.clone()],
                preferred: vec![topology],
            }),
            ..requests::create(name, self.bytes, self.capability.clone())
        }
    }
}

/// Leads volumes of one order through their lives. Cheap to clone.
#[derive(Clone)]
pub struct Caller {
    pub client: Client,
    /// Where staging and target paths are made.
    pub files: Arc<dyn Files>,
    pub order: Order,
    /// The driver has NodeStageVolume.
    pub stages: bool,
    /// The node's id, where the driver has ControllerPublishVolume.
    pub node: Option<String>,
}

/// A volume that is published, or as far as it came.
#[derive(Debug)]
pub struct InUse {
    name: String,
    volume: Option<Volume>,
    staging: PathBuf,
    target: PathBuf,
}

impl InUse {
    /// Where a pod has it: a directory, or a raw device.
    pub fn target(&self) -> &Path {
        &self.target
    }
}

impl Caller {
    /// A caller of a driver of ours without `--attach`.
    pub fn new(client: Client, files: Arc<dyn Files>, order: Order) -> Self {
        Caller { client, files, order, stages: true, node: None }
    }

    /// A volume from CreateVolume to DeleteVolume. `place` is a directory that no other volume uses now.
    ///
    /// # Errors
    /// [`Failure`]; the volume is gone then, unless the failure says otherwise.
    pub async fn life(&self, name: &str, place: &Path) -> Result<Times, Failure> {
        let mut times = Times::default();
        let volume = self.begin(name, place, &mut times).await?;
        self.end(volume, &mut times).await?;
        Ok(times)
    }

    /// The first half of a life, up to NodePublishVolume.
    ///
    /// # Errors
    /// As for [`life`](Self::life).
    pub async fn begin(&self, name: &str, place: &Path, times: &mut Times) -> Result<InUse, Failure> {
        let (staging, target) = (place.join("staging"), place.join("target"));
        let mut volume = InUse { name: name.to_owned(), volume: None, staging, target };
        match self.publish(&mut volume, times).await {
            Ok(()) => Ok(volume),
            Err(failure) => Err(self.undo(volume, failure).await),
        }
    }

    /// The second half, from NodeUnpublishVolume on.
    ///
    /// # Errors
    /// As for [`life`](Self::life).
    pub async fn end(&self, volume: InUse, times: &mut Times) -> Result<(), Failure> {
        match self.remove(&volume, times).await {
            Ok(()) => Ok(()),
            Err(failure) => Err(self.undo(volume, failure).await),
        }
    }

    /// CreateVolume alone; the volume's id.
    ///
    /// # Errors
    /// As for [`life`](Self::life).
    pub async fn create(&self, name: &str) -> Result<String, Failure> {
        match self.create_once(name).await {
            Err(failure) if failure.is_open() => self.id_of(name, failure).await.map(|(id, _)| id),
            done => done,
        }
    }

    /// Whether there is a volume after an answer that leaves it open, only the same call can say: it answers with the id
    /// of the volume that it made.
    async fn id_of(&self, name: &str, failure: Failure) -> Result<(String, Failure), Failure> {
        for _ in 0..TRIES {
            match self.create_once(name).await {
                Ok(id) => return Ok((id, failure)),
                // Such as ABORTED, while the first call still runs.
                Err(again) if again.is_open() => tokio::time::sleep(PAUSE).await,
                Err(_) => break,
            }
        }
        Err(Failure::Left(Box::new(failure), format!("the volume {name} may be left behind")))
    }

    async fn create_once(&self, name: &str) -> Result<String, Failure> {
        let made = self.call(Rpc::CreateVolume, self.order.request(name), &mut Times::default()).await?;
        Ok(made.volume.unwrap_or_default().volume_id)
    }

    /// DeleteVolume alone.
    ///
    /// # Errors
    /// What the driver answers.
    pub async fn delete(&self, id: &str) -> Result<(), Failure> {
        self.call(Rpc::DeleteVolume, requests::delete(id), &mut Times::default()).await.map(drop)
    }

    async fn publish(&self, used: &mut InUse, times: &mut Times) -> Result<(), Failure> {
        let made = self.call(Rpc::CreateVolume, self.order.request(&used.name), times).await?;
        let volume = used.volume.insert(self.volume(made.volume.unwrap_or_default(), &used.staging));
        if let Some(node) = &self.node {
            let request = volume.attach_request(node, false);
            let answer = self.call(Rpc::ControllerPublishVolume, request, times).await?;
            volume.publish_context = answer.publish_context;
        }
        // kubelet makes the staging directory before the call, and removes it after NodeUnstageVolume.
        self.files.create_directory(&used.staging, 0o750)?;
        if self.stages {
            self.call(Rpc::NodeStageVolume, volume.stage_request(), times).await?;
        }
        self.call(Rpc::NodePublishVolume, volume.publish_request(&used.target), times).await.map(drop)
    }

    fn volume(&self, info: csi::Volume, staging: &Path) -> Volume {
        let staging = if self.stages { staging } else { Path::new("") };
        Volume::new(info, self.order.capability.clone(), staging)
    }

    /// The calls of the second half, up to the first that fails.
    async fn remove(&self, used: &InUse, times: &mut Times) -> Result<(), Failure> {
        let Some(volume) = &used.volume else { return Ok(()) };
        self.call(Rpc::NodeUnpublishVolume, volume.unpublish_request(&used.target), times).await?;
        if self.stages {
            self.call(Rpc::NodeUnstageVolume, volume.unstage_request(), times).await?;
        }
        self.files.remove_directory(&used.staging)?;
        if let Some(node) = &self.node {
            self.call(Rpc::ControllerUnpublishVolume, volume.detach_request(node), times).await?;
        }
        self.call(Rpc::DeleteVolume, volume.delete_request(), times).await.map(drop)
    }

    /// After a failure: every call of the second half, whatever came of the one before.
    async fn undo(&self, mut used: InUse, mut failure: Failure) -> Failure {
        if used.volume.is_none() && failure.is_open() {
            match self.id_of(&used.name, failure).await {
                Ok((volume_id, cause)) => {
                    let info = csi::Volume { volume_id, ..Default::default() };
                    (used.volume, failure) = (Some(self.volume(info, &used.staging)), cause);
                }
                Err(failure) => return failure,
            }
        }
        let Some(volume) = &used.volume else { return failure };
        let times = &mut Times::default();
        let _ = self.call(Rpc::NodeUnpublishVolume, volume.unpublish_request(&used.target), times).await;
        if self.stages {
            let _ = self.call(Rpc::NodeUnstageVolume, volume.unstage_request(), times).await;
        }
        let _ = self.files.remove_directory(&used.staging);
        if let Some(node) = &self.node {
            let _ = self.call(Rpc::ControllerUnpublishVolume, volume.detach_request(node), times).await;
        }
        match self.delete(&volume.id).await {
            Ok(()) => failure,
            Err(why) => {
                Failure::Left(Box::new(failure), format!("the volume {} is left behind: {why}", volume.id))
            }
        }
    }

    async fn call<Q: Unary>(&self, rpc: Rpc, request: Q, times: &mut Times) -> Result<Q::Reply, Failure> {
        // Boxed, so that the code of each call, which is large, is not here as well as in the self-test.
        let call: Pin<Box<dyn Future<Output = _> + Send + '_>> = Box::pin(self.client.call(request));
        let started = Instant::now();
        let answer = call.await.map_err(|status| Failure::of(rpc, &status))?;
        times.0.push((rpc, started.elapsed()));
        Ok(answer)
    }
}

impl Failure {
    fn of(rpc: Rpc, status: &Status) -> Self {
        Failure::Answer { rpc, code: status.code(), message: status.message().to_owned() }
    }

    /// Whether the call may have had its effect all the same.
    fn is_open(&self) -> bool {
        let codes = [
            Code::Aborted,
            Code::Cancelled,
            Code::DeadlineExceeded,
            Code::Internal,
            Code::Unavailable,
            Code::Unknown,
        ];
        matches!(self, Failure::Answer { code, .. } if codes.contains(code))
    }
}

impl fmt::Debug for Caller {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Caller")
            .field("order", &self.order)
            .field("stages", &self.stages)
            .finish_non_exhaustive()
    }
}
