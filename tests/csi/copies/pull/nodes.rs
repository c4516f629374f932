//! Two nodes on two fake machines, each with its own driver.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hostloop::app;
use hostloop::cluster::pull::Pull;
use hostloop::driver::Driver;
use hostloop::kernel::Os;
use hostloop::model::FsType;
use hostloop::model::Settings;
use hostloop::selftest::client::{self, Client};
use hostloop::wire::csi;
use hostloop::wire::peer::peer_client::PeerClient;
use hostloop_fake_kernel::FakeKernel;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};

use super::orders;
use super::tamper::Network;
use crate::harness::{DIRECTORIES_DIR, KUBELET, settings};
use crate::life::*;
use crate::support::*;

/// Nodes, which are also their addresses.
pub const SOURCE: &str = NODE;
pub const TARGET: &str = "node-b";

/// A driver that serves other nodes and controllers.
pub struct Node {
    pub kernel: FakeKernel,
    pub driver: Arc<Driver>,
    pub controller: Client,
    pub peer: PeerClient<Channel>,
    name: &'static str,
    serving: JoinHandle<()>,
}

/// A node with a volume's source, one that pulls, and the network between them.
pub struct Pair {
    pub network: Network,
    pub source: Node,
    pub target: Node,
    patience: Duration,
    sockets: TempDir,
    pub runtime: Runtime,
    /// Of the nodes, by their names.
    settings: fn(&str) -> Settings,
}

fn settings_of(name: &str) -> Settings {
    Settings { node_id: name.to_owned(), ..settings() }
}

fn new_socket(directory: &TempDir) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    directory.path().join(format!("{}.sock", NEXT.fetch_add(1, Ordering::Relaxed)))
}

impl Node {
    /// A new process of the driver on this machine.
    fn start(
        runtime: &Runtime,
        (kernel, os): (&FakeKernel, Os),
        (name, settings): (&'static str, Settings),
        socket: PathBuf,
        network: &Network,
        patience: Duration,
    ) -> Node {
        let driver = app::driver(settings, os).expect("the state can be used");
        let pull = Pull::new(network.connector(), runtime.handle().clone()).with_patience(patience);
        let driver = Arc::new(driver.with_remote_sources(Arc::new(pull)));
        let found = driver.recover();
        assert_eq!(found.damaged, 0, "{found:?}");
        let _entered = runtime.enter();
        let listener = UnixListener::bind(&socket).expect("a socket");
        let routes = app::peer_routes(&driver, orders::permits());
        let serving = runtime.spawn(async move {
            let served = Server::builder().add_routes(routes);
            served.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("it serves");
        });
        network.listens(name, socket.clone());
        let channel = client::endpoint(&socket).expect("an address").connect_lazy();
        let (controller, peer) = (Client::on(channel.clone()), PeerClient::new(channel));
        Node { kernel: kernel.clone(), driver, controller, peer, name, serving }
    }

    /// Files of volumes and snapshots, without those that are whole.
    pub fn files(&self) -> Vec<String> {
        ["volumes", "snapshots"]
            .iter()
            .flat_map(|place| [DATA, DIRECTORIES_DIR].map(|pool| format!("{pool}/{place}")))
            .flat_map(|place| self.kernel.tree(place))
            .collect()
    }

    /// Ids of the cuts for other nodes, the earliest first.
    pub fn kept_cuts(&self) -> Vec<String> {
        let mut cuts: Vec<_> = self.driver.store().snapshots();
        cuts.retain(|snapshot| snapshot.pulled_for.is_some());
        cuts.sort_by_key(|snapshot| snapshot.created);
        cuts.iter().map(|snapshot| snapshot.id.to_string()).collect()
    }

    /// Cuts for other nodes.
    pub fn cuts(&self) -> usize {
        self.driver.store().snapshots().iter().filter(|snapshot| snapshot.pulled_for.is_some()).count()
    }
}

impl Pair {
    /// The node that `rig` was goes on as the source.
    pub fn new(rig: Rig) -> Pair {
        Self::with_patience(rig, Duration::from_secs(20))
    }

    pub fn with_patience(rig: Rig, patience: Duration) -> Pair {
        Self::with_settings(rig, patience, settings_of)
    }

    /// Both nodes get these settings, by their names.
    pub fn with_settings(rig: Rig, patience: Duration, settings: fn(&str) -> Settings) -> Pair {
        let kernel = rig.kernel.clone();
        kernel.kill();
        drop(rig);
        let other = FakeKernel::new();
        other.create_directories(KUBELET);
        other.create_directories(DATA);
        for disk in settings(TARGET).pools.iter().skip(1) {
            other.add_disk(&disk.path, FsType::Ext4, 100 << 30);
        }
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        let (runtime, network) = (runtime.expect("a runtime"), Network::default());
        let sockets = tempfile::tempdir().expect("a directory for sockets");
        let start = |kernel: &FakeKernel, name| {
            let machine = (kernel, kernel.restart());
            Node::start(&runtime, machine, (name, settings(name)), new_socket(&sockets), &network, patience)
        };
        let (source, target) = (start(&kernel, SOURCE), start(&other, TARGET));
        Pair { source, target, network, patience, sockets, runtime, settings }
    }

    /// The path of a socket that nobody has.
    pub fn new_socket(&self) -> PathBuf {
        new_socket(&self.sockets)
    }

    fn again(&self, node: &Node, power_cut: bool) -> Node {
        node.serving.abort();
        node.kernel.kill();
        let os = if power_cut { node.kernel.power_cut() } else { node.kernel.restart() };
        let socket = new_socket(&self.sockets);
        let who = (node.name, (self.settings)(node.name));
        Node::start(&self.runtime, (&node.kernel, os), who, socket, &self.network, self.patience)
    }

    /// Ends the source's process and starts it again, at another address.
    pub fn restart_source(&mut self) {
        self.source = self.again(&self.source, false);
    }

    /// Cuts the source's power.
    pub fn power_cut_source(&mut self) {
        self.source = self.again(&self.source, true);
    }

    /// The same, at another address, and nobody at the old one.
    pub fn move_source(&mut self, address: &str) {
        let before = self.network.clone();
        before.leaves(self.source.name);
        self.source = self.again(&self.source, false);
        self.network.moves(self.source.name, address);
    }

    pub fn restart_target(&mut self) {
        self.target = self.again(&self.target, false);
    }

    /// Cuts the target's power.
    pub fn power_cut_target(&mut self) {
        self.target = self.again(&self.target, true);
    }

    /// CreateVolume at the target, as a controller forwards it.
    pub fn pull(&self, request: csi::CreateVolumeRequest) -> Result<csi::Volume, Status> {
        self.pull_from(request, Some(SOURCE))
    }

    /// The same, ready to be sent.
    pub fn order(
        &self,
        request: csi::CreateVolumeRequest,
        address: &str,
    ) -> Request<csi::CreateVolumeRequest> {
        let permit = orders::permit(&orders::grant(&request, SOURCE, TARGET));
        orders::order(request, (SOURCE, address), Some(&permit))
    }

    /// What lets the target make a volume as this request wants it, encoded.
    pub fn permit(&self, request: &csi::CreateVolumeRequest) -> Vec<u8> {
        orders::permit(&orders::grant(request, SOURCE, TARGET)).as_bytes().to_vec()
    }

    pub fn pull_from(
        &self,
        request: csi::CreateVolumeRequest,
        address: Option<&str>,
    ) -> Result<csi::Volume, Status> {
        let request = match address {
            Some(address) => self.order(request, address),
            None => Request::new(request),
        };
        let answer = self.runtime.block_on(self.target.controller.send(request))?;
        Ok(answer.volume.expect("a volume"))
    }

    #[track_caller]
    pub fn fails(&self, code: Code, request: csi::CreateVolumeRequest) -> String {
        match self.pull(request) {
            Ok(_) => panic!("OK instead of {code:?}"),
            Err(status) => {
                assert_eq!(status.code(), code, "{}", status.message());
                status.message().to_owned()
            }
        }
    }

    /// The pulled volume.
    #[track_caller]
    pub fn pulled(&self, request: csi::CreateVolumeRequest) -> Vol {
        let capability = request.volume_capabilities[0].clone();
        match self.pull(request) {
            Ok(info) => Vol::new(info, capability),
            Err(status) => panic!("{:?}: {}", status.code(), status.message()),
        }
    }

    /// Nothing of a volume is left at the target, and no cut at the source.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        assert_eq!(self.target.files(), Vec::<String>::new());
        assert!(self.target.driver.store().volumes().is_empty());
        assert_eq!(self.source.cuts(), 0);
    }

    /// The target as a node that kubelet calls; the source's machine stays as it is.
    pub fn into_target(self) -> Rig {
        self.target.kernel.kill();
        self.runtime.shutdown_background();
        self.target.kernel.restart();
        Rig::on(self.target.kernel.clone(), &["--node-id", TARGET])
    }
}
