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
    id: Option<String>,
    volume_context: HashMap<String, String>,
    publish_context: HashMap<String, String>,
    staging: PathBuf,
    target: PathBuf,
}

impl InUse {
    /// Where a pod has it: a directory, or a raw device.
    pub fn target(&self) -> &Path {
        &self.target
    }

    fn id(&self) -> &str {
        self.id.as_deref().unwrap_or_default()
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
        let mut volume = InUse {
            name: name.to_owned(),
            id: None,
            volume_context: HashMap::new(),
            publish_context: HashMap::new(),
            staging: place.join("staging"),
            target: place.join("target"),
        };
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

    async fn publish(&self, volume: &mut InUse, times: &mut Times) -> Result<(), Failure> {
        let capability = &self.order.capability;
        let made = self.call(Rpc::CreateVolume, self.order.request(&volume.name), times).await?;
        let made = made.volume.unwrap_or_default();
        (volume.id, volume.volume_context) = (Some(made.volume_id), made.volume_context);
        let id = volume.id();
        if let Some(node) = &self.node {
            let request = csi::ControllerPublishVolumeRequest {
                volume_id: id.to_owned(),
                node_id: node.clone(),
                volume_capability: Some(capability.clone()),
                volume_context: volume.volume_context.clone(),
                ..Default::default()
            };
            let answer = self.call(Rpc::ControllerPublishVolume, request, times).await?;
            volume.publish_context = answer.publish_context;
        }
        let id = volume.id();
        // kubelet makes the staging directory before the call, and removes it after NodeUnstageVolume.
        self.files.create_directory(&volume.staging, 0o750)?;
        if self.stages {
            let request = csi::NodeStageVolumeRequest {
                publish_context: volume.publish_context.clone(),
                volume_context: volume.volume_context.clone(),
                ..requests::stage(id, &volume.staging, capability.clone())
            };
            self.call(Rpc::NodeStageVolume, request, times).await?;
        }
        let request = csi::NodePublishVolumeRequest {
            publish_context: volume.publish_context.clone(),
            volume_context: volume.volume_context.clone(),
            ..requests::publish(id, &volume.staging, &volume.target, capability.clone())
        };
        let request = match self.stages {
            true => request,
            false => csi::NodePublishVolumeRequest { staging_target_path: String::new(), ..request },
        };
        self.call(Rpc::NodePublishVolume, request, times).await.map(drop)
    }

    async fn remove(&self, volume: &InUse, times: &mut Times) -> Result<(), Failure> {
        let id = volume.id();
        self.call(Rpc::NodeUnpublishVolume, requests::unpublish(id, &volume.target), times).await?;
        if self.stages {
            self.call(Rpc::NodeUnstageVolume, requests::unstage(id, &volume.staging), times).await?;
        }
        self.files.remove_directory(&volume.staging)?;
        if let Some(node) = &self.node {
            let (volume_id, node_id) = (id.to_owned(), node.clone());
            let request = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
            self.call(Rpc::ControllerUnpublishVolume, request, times).await?;
        }
        self.call(Rpc::DeleteVolume, requests::delete(id), times).await.map(drop)
    }

    /// After a failure: every call of the second half, whatever came of the one before.
    async fn undo(&self, mut volume: InUse, mut failure: Failure) -> Failure {
        if volume.id.is_none() && failure.is_open() {
            match self.id_of(&volume.name, failure).await {
                Ok((id, cause)) => (volume.id, failure) = (Some(id), cause),
                Err(failure) => return failure,
            }
        }
        let Some(id) = &volume.id else { return failure };
        let times = &mut Times::default();
        let unpublish = requests::unpublish(id, &volume.target);
        let _ = self.call(Rpc::NodeUnpublishVolume, unpublish, times).await;
        if self.stages {
            let _ = self.call(Rpc::NodeUnstageVolume, requests::unstage(id, &volume.staging), times).await;
        }
        let _ = self.files.remove_directory(&volume.staging);
        if let Some(node) = &self.node {
            let (volume_id, node_id) = (id.clone(), node.clone());
            let request = csi::ControllerUnpublishVolumeRequest { volume_id, node_id, ..Default::default() };
            let _ = self.call(Rpc::ControllerUnpublishVolume, request, times).await;
        }
        match self.delete(id).await {
            Ok(()) => failure,
            Err(why) => Failure::Left(Box::new(failure), format!("the volume {id} is left behind: {why}")),
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
