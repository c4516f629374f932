//! Nodes, the net between them and a controller, and the clients that call it.
//!
//! No volume here comes to kubelet, so that the tests lead none through a life: they need the shared requests alone.

mod net;
pub mod node;
pub mod process;

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hostloop::app;
use hostloop::app::Outside;
use hostloop::cluster::peers::{Known, Member, Members, Peers};
use hostloop::cluster::permit;
use hostloop::config::{ControllerSettings, Discovery, OperationConfig, ServerConfig};
use hostloop::model::{NodeKey, Settings, VolumeId};
use hostloop::selftest::client::{self, Client};
use hostloop::server::Endpoint;
use hostloop::shutdown::{Shutdown, Trigger};
use hostloop::wire::csi;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Channel;
use tonic::{Code, Status};

use crate::orders::CERTIFICATES;
pub use net::{Net, Way};
pub use node::{Fault, Node, settings};

pub const DRIVER: &str = "hostloop.csi.dev";
pub const GIB: i64 = 1 << 30;
/// Nothing here takes so long, however busy the machine is.
pub const LONG: Duration = Duration::from_secs(60);

/// Discovery by hand.
pub struct Directory(watch::Sender<Option<Arc<Members>>>);

impl Peers for Directory {
    fn known(&self) -> Known {
        self.0.subscribe()
    }
}

impl Directory {
    pub fn new() -> Self {
        Directory(watch::Sender::new(None))
    }

    /// Pairs of node id and address; a node without one is there, and no process of the driver on it. `machines` are
    /// those of which no more is known than that they are there.
    pub fn set(&self, nodes: &[(&str, Option<&str>)], machines: &[&str]) {
        let member = |(node_id, address): &(&str, Option<&str>)| Member {
            node_id: (*node_id).to_owned(),
            address: address.map(str::to_owned),
        };
        let machines: BTreeSet<String> = machines.iter().map(|id| (*id).to_owned()).collect();
        self.0.send_replace(Some(Arc::new(Members::new(nodes.iter().map(member), machines))));
    }
}

/// How a server is reached in these tests.
pub fn server(dir: &TempDir) -> ServerConfig {
    ServerConfig {
        endpoint: Endpoint::Unix(dir.path().join("csi.sock")),
        socket_mode: 0o600,
        shutdown_timeout: Duration::from_secs(5),
    }
}

/// A controller, and a connection to its socket.
pub struct Controller {
    pub channel: Channel,
    pub client: Client,
    trigger: Trigger,
    serving: JoinHandle<()>,
    _dir: TempDir,
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.trigger.pull();
        self.serving.abort();
    }
}

impl Controller {
    pub async fn start(net: &Net, directory: &Directory, forget_nodes: &[&str]) -> Controller {
        Controller::start_with(net, directory, forget_nodes, None).await
    }

    /// A cluster whose controllers have a port for `hostloop volumes`.
    pub async fn start_with(
        net: &Net,
        directory: &Directory,
        forget_nodes: &[&str],
        inspect: Option<(SocketAddr, bool)>,
    ) -> Controller {
        let dir = tempfile::tempdir().unwrap();
        let settings = ControllerSettings {
            moves: None,
            move_limits: Default::default(),
            events: None,
            driver_name: DRIVER.to_owned(),
            attach: true,
            tls_dir: PathBuf::from("/nowhere"),
            inspect_listen: inspect.map(|(address, _)| address),
            inspect_fix: inspect.is_some_and(|(_, fix)| fix),
            discovery: Discovery::Static(Vec::new()),
            forget_nodes: forget_nodes.iter().map(|id| (*id).to_owned()).collect(),
        };
        let (trigger, shutdown) = Shutdown::new();
        let peers = Directory(directory.0.clone());
        let outside = Outside {
            server: server(&dir),
            operation: OperationConfig::default(),
            shutdown,
            certificate: None,
            api: None,
        };
        let (connect, signer) = (Box::new(net.clone()), permit::signer(CERTIFICATES.controller.clone()));
        let serving = tokio::spawn(async move {
            let ended = app::run_controller(settings, outside, &peers, connect, signer).await;
            assert!(ended.is_ok_and(|ended| ended.failure.is_none()));
        });
        let endpoint = client::endpoint(&dir.path().join("csi.sock")).unwrap();
        let channel = loop {
            match endpoint.connect().await {
                Ok(channel) => break channel,
                Err(error) => assert!(!serving.is_finished(), "{error}"),
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        };
        Controller { client: Client::on(channel.clone()), channel, trigger, serving, _dir: dir }
    }

    pub async fn create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
        let made = within(self.client.call(request)).await?;
        Ok(made.volume.expect("a volume"))
    }

    pub async fn delete(&self, id: &str) -> Result<(), Status> {
        within(self.client.call(crate::requests::delete(id))).await.map(drop)
    }

    pub async fn get(&self, id: &str) -> Result<csi::Volume, Status> {
        let request = csi::ControllerGetVolumeRequest { volume_id: id.to_owned() };
        let found = within(self.client.call(request)).await?;
        Ok(found.volume.expect("a volume"))
    }

    pub async fn snapshot(&self, name: &str, volume_id: &str) -> Result<csi::Snapshot, Status> {
        let request = crate::requests::snapshot(name, volume_id);
        let made = within(self.client.call(request)).await?;
        Ok(made.snapshot.expect("a snapshot"))
    }

    /// One page of volumes: their ids and the token.
    pub async fn list(&self, max_entries: i32, token: &str) -> Result<(Vec<String>, String), Status> {
        let request = csi::ListVolumesRequest { max_entries, starting_token: token.to_owned() };
        let page = within(self.client.call(request)).await?;
        let ids = page.entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id);
        Ok((ids.collect(), page.next_token))
    }

    /// The available and the largest and smallest capacity, for a class of defaults.
    pub async fn capacity(&self, node: Option<&str>) -> Result<csi::GetCapacityResponse, Status> {
        let accessible_topology = node.map(topology);
        let request = csi::GetCapacityRequest { accessible_topology, ..Default::default() };
        within(self.client.call(request)).await
    }
}

/// Some nodes, all of them known to a controller.
pub struct Cluster {
    pub net: Net,
    pub directory: Directory,
    pub nodes: Vec<Node>,
    pub controller: Controller,
}

impl Cluster {
    /// Nodes with these ids, each reached at an address that is its id with `:9443`.
    pub async fn start(ids: &[&str]) -> Cluster {
        Cluster::with_room(ids, 1 << 40).await
    }

    /// The same with pools of so many bytes.
    pub async fn with_room(ids: &[&str], bytes: u64) -> Cluster {
        Cluster::on(Net::default(), ids, bytes).await
    }

    /// Starts a cluster whose nodes read each other's data.
    pub async fn copying(ids: &[&str]) -> Cluster {
        Cluster::on(Net::copying(), ids, 1 << 40).await
    }

    async fn on(net: Net, ids: &[&str], bytes: u64) -> Cluster {
        let directory = Directory::new();
        let mut nodes = Vec::new();
        for id in ids {
            nodes.push(Node::start(&net, id, &address(id), bytes).await);
        }
        let controller = Controller::start(&net, &directory, &[]).await;
        let cluster = Cluster { net, directory, nodes, controller };
        cluster.introduce();
        cluster
    }

    /// Tells discovery of every node.
    pub fn introduce(&self) {
        let known: Vec<(&str, Option<&str>)> =
            self.nodes.iter().map(|node| (node.id.as_str(), Some(node.address.as_str()))).collect();
        self.directory.set(&known, &[]);
    }

    pub fn node(&self, id: &str) -> &Node {
        self.nodes.iter().find(|node| node.id == id).expect("a node")
    }

    /// Fills a node's pool but for less than a volume of the tests.
    pub async fn fill(&self, id: &str) {
        let left = self.controller.capacity(Some(id)).await.unwrap().maximum_volume_size.unwrap();
        let mut request = volume(&format!("fills {id}"), left - 64 * crate::requests::MIB, &[]);
        request.accessibility_requirements = Some(strictly(id));
        self.controller.create(request).await.unwrap();
    }

    /// The nodes that have a volume with this name, as they say themselves.
    pub async fn holders(&self, name: &str) -> Vec<String> {
        let mut holders = Vec::new();
        for node in &self.nodes {
            let id = id_on(&node.id, name);
            if node.volumes().await.contains(&id) {
                holders.push(node.id.clone());
            }
        }
        holders
    }
}

/// Waits for a call, which no test lets hang.
pub async fn within<T>(call: impl Future<Output = Result<T, Status>>) -> Result<T, Status> {
    tokio::time::timeout(LONG, call).await.expect("the call ends")
}

pub fn address(id: &str) -> String {
    format!("{id}:9443")
}

/// The id that a volume with this name has on a node.
pub fn id_on(node_id: &str, name: &str) -> String {
    VolumeId::of_name(&NodeKey::of(node_id), name).to_string()
}

/// Node ids in the order of their keys, which is that of lists.
pub fn by_key<'a>(ids: &[&'a str]) -> Vec<&'a str> {
    let mut ids = ids.to_vec();
    ids.sort_by_key(|id| NodeKey::of(id).to_string());
    ids
}

pub fn topology(node_id: &str) -> csi::Topology {
    csi::Topology { segments: [(Settings::TOPOLOGY_KEY.to_owned(), node_id.to_owned())].into() }
}

/// What external-provisioner sends: all of these nodes will do, in this order of preference.
pub fn preferring(ids: &[&str]) -> csi::TopologyRequirement {
    let terms: Vec<csi::Topology> = ids.iter().map(|id| topology(id)).collect();
    csi::TopologyRequirement { requisite: terms.clone(), preferred: terms }
}

/// This node only.
pub fn strictly(id: &str) -> csi::TopologyRequirement {
    preferring(&[id])
}

/// ControllerPublishVolume to the node `a`.
pub fn attach(id: &str, capability: csi::VolumeCapability) -> csi::ControllerPublishVolumeRequest {
    hostloop_test_support::client::attach(id, "a", capability)
}

/// ControllerUnpublishVolume from the node `a`.
pub fn detach(id: &str) -> csi::ControllerUnpublishVolumeRequest {
    hostloop_test_support::client::detach(id, "a")
}

/// A block volume of at least so many bytes that may be on these nodes.
pub fn volume(name: &str, bytes: i64, nodes: &[&str]) -> csi::CreateVolumeRequest {
    use crate::requests::{Kind, Spec};
    let request = Spec { bytes, ..Spec::new(Kind::Block) }.create(name);
    let accessibility_requirements = (!nodes.is_empty()).then(|| preferring(nodes));
    csi::CreateVolumeRequest { accessibility_requirements, ..request }
}

/// The node that a volume says it is on.
pub fn place(volume: &csi::Volume) -> String {
    volume.accessible_topology[0].segments[Settings::TOPOLOGY_KEY].clone()
}

/// The code and message of a call that must fail.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.expect_err("an error");
    (status.code(), status.message().to_owned())
}

/// A call that must fail with this code, and a message that has this in it.
#[track_caller]
pub fn fails<T: std::fmt::Debug>(answer: Result<T, Status>, code: Code, hint: &str) {
    let (found, message) = refused(answer);
    assert!(found == code && message.contains(hint), "{found:?}: {message}");
}
