//! The processes of a cluster as `hostloop serve` runs them: nodes on fake kernels and a controller, each on a port of
//! this machine and with a certificate of its own.

use std::path::PathBuf;
use std::time::Duration;

use hostloop::app::{self, Ended, StartError};
use hostloop::cluster::peers::Fixed;
use hostloop::cluster::permit;
use hostloop::cluster::router::{Router, RouterSettings};
use hostloop::cluster::tls::Tls;
use hostloop::config::{
    Config, ControllerSettings, Discovery, OperationConfig, PeerPort, Role, ServerConfig, StaticPeer,
};
use hostloop::model::FsType;
use hostloop::model::{NodeKey, PoolSettings, Settings};
use hostloop::selftest::client::Client;
use hostloop::shutdown::{Shutdown, Trigger};
use hostloop::telemetry::{LogFormat, LogLevel, Logging};
use hostloop::wire::csi;
use hostloop::wire::peer::peer_client::PeerClient;
use hostloop_fake_kernel::FakeKernel;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tonic::Status;
use tonic::transport::Channel;

use super::node::{DATA_DIR, settings};
use super::{DRIVER, server, within};
use crate::pki::{Pki, controller, node};
use crate::wait::until;

/// The directory of the second pool.
pub const FAST_DIR: &str = "/mnt/fast";

/// Whether each node has a certificate that names it, or all of them share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certificates {
    Named,
    Shared,
}

/// A process that runs in a task.
pub struct Process {
    trigger: Trigger,
    running: JoinHandle<Result<Ended, StartError>>,
    dir: TempDir,
}

impl Drop for Process {
    fn drop(&mut self) {
        self.trigger.pull();
        self.running.abort();
    }
}

impl Process {
    fn start(role: Role, kernel: Option<FakeKernel>) -> Process {
        let dir = tempfile::tempdir().unwrap();
        let server = ServerConfig { shutdown_timeout: Duration::from_secs(5), ..server(&dir) };
        let logging = Logging { level: LogLevel::Info, format: LogFormat::Text };
        let config = Config { role, server, operation: OperationConfig::default(), logging };
        let (trigger, shutdown) = Shutdown::new();
        let os = move || kernel.expect("a role with volumes").os();
        let running = tokio::spawn(async move { app::run(config, os, shutdown).await });
        Process { trigger, running, dir }
    }
}

/// A node with its machine.
pub struct NodeProcess {
    pub id: String,
    pub address: String,
    pub kernel: FakeKernel,
    process: Process,
}

/// Nodes and a controller of one CA.
pub struct Processes {
    pub pki: Pki,
    pub nodes: Vec<NodeProcess>,
    pub controller: Client,
    certificates: Certificates,
    _process: Process,
}

/// An address on which nobody listens.
fn free_address() -> std::net::SocketAddr {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// Starts a controller that knows some of the nodes.
fn start_controller(
    pki: &Pki,
    nodes: &[NodeProcess],
    knows: impl Fn(&NodeProcess) -> bool,
) -> (Client, Process) {
    let known = |node: &NodeProcess| StaticPeer { node_id: node.id.clone(), address: node.address.clone() };
    let settings = ControllerSettings {
        moves: None,
        move_limits: Default::default(),
        events: None,
        driver_name: DRIVER.to_owned(),
        attach: true,
        tls_dir: pki.path("controller"),
        inspect_listen: None,
        inspect_fix: false,
        discovery: Discovery::Static(nodes.iter().filter(|node| knows(node)).map(known).collect()),
        forget_nodes: Default::default(),
    };
    let process = Process::start(Role::Controller(settings), None);
    let controller = Client::new(&process.dir.path().join("csi.sock")).unwrap();
    (controller, process)
}

impl Processes {
    pub async fn start(ids: &[&str], certificates: Certificates) -> Processes {
        Processes::start_with(ids, certificates, |_, _| {}).await
    }

    /// Starts nodes that have a second pool `fast` on a disk of its own.
    pub async fn with_two_pools(ids: &[&str]) -> Processes {
        let add = |kernel: &FakeKernel, settings: &mut Settings| {
            kernel.add_disk(FAST_DIR, FsType::Xfs, 1 << 40);
            [DATA_DIR, FAST_DIR].iter().for_each(|pool| kernel.set_quotas(pool, true));
            let (name, path) = ("fast".parse().unwrap(), FAST_DIR.into());
            settings.pools.extend(settings.pools.first().cloned().map(|pool| PoolSettings {
                name,
                path,
                ..pool
            }));
        };
        Processes::start_with(ids, Certificates::Named, add).await
    }

    async fn start_with(
        ids: &[&str],
        certificates: Certificates,
        change: impl Fn(&FakeKernel, &mut Settings),
    ) -> Processes {
        let pki = Pki::new();
        let mut nodes = Vec::new();
        for id in ids {
            let kernel = FakeKernel::new();
            kernel.create_directories("/var/lib");
            kernel.add_disk(DATA_DIR, FsType::Xfs, 1 << 40);
            let listen = free_address();
            let tls_dir = Self::issue(&pki, id, certificates);
            let mut settings = settings(id);
            change(&kernel, &mut settings);
            let role = Role::Node(settings, PeerPort { listen, tls_dir });
            let process = Process::start(role, Some(kernel.clone()));
            let address = listen.to_string();
            nodes.push(NodeProcess { id: (*id).to_owned(), address, kernel, process });
        }
        pki.tls("controller", &controller());
        let (controller, process) = start_controller(&pki, &nodes, |_| true);
        let processes = Processes { pki, nodes, controller, certificates, _process: process };
        processes.all_answer().await;
        processes
    }

    /// Starts another controller, which knows only these nodes.
    pub async fn controller_of(&self, ids: &[&str]) -> (Client, Process) {
        let (controller, process) =
            start_controller(&self.pki, &self.nodes, |node| ids.contains(&node.id.as_str()));
        let list = async || controller.call(csi::ListVolumesRequest::default()).await.is_ok();
        until("it starts", list).await;
        (controller, process)
    }

    fn issue(pki: &Pki, id: &str, certificates: Certificates) -> PathBuf {
        let named = (certificates == Certificates::Named).then_some(id);
        pki.tls(id, &node(named));
        pki.path(id)
    }

    /// Waits for the controller, and for every node behind it.
    async fn all_answer(&self) {
        let list = async || self.controller.call(csi::ListVolumesRequest::default()).await.is_ok();
        until("they start", list).await;
    }

    pub fn node(&self, id: &str) -> &NodeProcess {
        self.nodes.iter().find(|node| node.id == id).expect("a node")
    }

    /// Returns a router to these nodes, such as a controller has.
    pub fn router(&self, ids: &[&str]) -> Router {
        let known = self.nodes.iter().filter(|node| ids.contains(&node.id.as_str()));
        let peers = Fixed::new(known.map(|node| (node.id.clone(), node.address.clone())));
        let settings =
            RouterSettings { driver_name: DRIVER.to_owned(), attach: true, forget_nodes: Default::default() };
        let tls = self.pki.tls("router", &controller());
        Router::new(settings, &peers, Box::new(app::Secure(tls.clone())), permit::signer(tls))
    }

    /// Serves a router, and returns a client of it.
    pub async fn served(&self, router: &Router) -> Client {
        let address = free_address();
        let routes = router.routes();
        tokio::spawn(tonic::transport::Server::builder().add_routes(routes).serve(address));
        let endpoint = tonic::transport::Endpoint::try_from(format!("http://{address}")).unwrap();
        until("it serves", async || endpoint.connect().await.is_ok()).await;
        Client::on(endpoint.connect().await.unwrap())
    }

    /// Ends the process of a node.
    pub fn lose(&mut self, id: &str) {
        self.nodes.retain(|node| node.id != id);
    }

    /// The certificates of a node.
    pub fn tls(&self, id: &str) -> Tls {
        Tls::open(&self.pki.path(id), DRIVER, hostloop::cluster::identity::PeerRole::Node).unwrap()
    }

    /// What somebody with the certificate of `caller` can call on a node.
    pub async fn peer(&self, caller: &Tls, id: &str) -> PeerClient<Channel> {
        let node = self.node(id);
        let connect = app::connector(caller.clone());
        let channel = connect(&node.address, NodeKey::of(id).as_str()).await;
        PeerClient::new(channel.expect("a connection"))
    }

    pub async fn create(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
        let made = within(self.controller.call(request)).await?;
        Ok(made.volume.expect("a volume"))
    }

    pub async fn snapshot(&self, name: &str, volume_id: &str) -> csi::Snapshot {
        let request = crate::requests::snapshot(name, volume_id);
        let made = within(self.controller.call(request)).await.unwrap();
        made.snapshot.expect("a snapshot")
    }

    pub fn certificates(&self) -> Certificates {
        self.certificates
    }
}

impl NodeProcess {
    /// Returns a client on its Unix socket, such as kubelet.
    pub fn kubelet(&self) -> Client {
        Client::new(&self.process.dir.path().join("csi.sock")).unwrap()
    }

    /// Where the image of a volume is.
    pub fn image(&self, volume_id: &str) -> String {
        format!("{DATA_DIR}/volumes/{volume_id}/disk.img")
    }

    /// The snapshots and cuts on its disk.
    pub fn snapshots(&self) -> Vec<String> {
        self.kernel.tree(format!("{DATA_DIR}/snapshots"))
    }
}
