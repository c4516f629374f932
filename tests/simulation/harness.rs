//! The cluster: the whole driver in its roles, on fake kernels, with real certificates over the net in memory.

use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostloop::app::{self, OtherNodes, Outside};
use hostloop::cluster::certs::Authority;
use hostloop::cluster::identity::{PeerIdentity, PeerRole};
use hostloop::cluster::peers::{Known, Member, Members, Peers};
use hostloop::cluster::permit::{self, Checked, Signer};
use hostloop::cluster::pull;
use hostloop::cluster::router::{self, Connect};
use hostloop::cluster::tls::Tls;
use hostloop::config::{ControllerSettings, Discovery, OperationConfig, ServerConfig};
use hostloop::model::{Grant, NodeKey};
use hostloop::server::Endpoint;
use hostloop::service::Permits;
use hostloop::shutdown::{Shutdown, Trigger};
use hyper_util::rt::TokioIo;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use crate::gate;
use crate::machine::{Listed, Machine, machine, settings};
use crate::moves::{self, Moves};
use crate::net::{Host, Net};
use crate::pki::{DRIVER, Pki, controller, minutes, node};
use crate::random::Random;
use crate::{run, schedule};

pub const KUBELET: &str = "/var/lib/kubelet";
pub const DIRECTORIES: &str = "directories";
pub const DATA_DIR: &str = "/var/lib/hostloop";
pub const DIRECTORIES_DIR: &str = "/var/lib/directories";
pub const NODES: usize = 5;
pub const CONTROLLERS: usize = 2;

/// How far the clock of a machine is ahead, in nanoseconds.
pub type Clock = Arc<AtomicI64>;

/// Runs something by this clock.
fn by<T>(clock: &Clock, work: impl FnOnce() -> T) -> T {
    let before = schedule::set_ahead(clock.load(Ordering::Relaxed));
    let done = work();
    schedule::set_ahead(before);
    done
}

/// Where the nodes are, as one controller has been told.
struct Told(watch::Sender<Option<Arc<Members>>>);

impl Peers for Told {
    fn known(&self) -> Known {
        self.0.subscribe()
    }
}

/// Permits by a node's own clock.
struct ByClock(Checked, Clock);

impl Permits for ByClock {
    fn open(&self, permit: &[u8]) -> Result<Grant, String> {
        by(&self.1, || self.0.open(permit))
    }
}

/// Connections of one process.
#[derive(Clone)]
struct Wire {
    net: Net,
    host: Host,
    tls: Tls,
}

#[tonic::async_trait]
impl Connect for Wire {
    async fn connect(&self, address: &str, node_id: &str) -> std::io::Result<Box<dyn router::Stream>> {
        let stream = self.net.dial(&self.host, address).await?;
        let stream = self.tls.connect(stream, PeerRole::Node, node_id).await;
        Ok(Box::new(stream.map_err(std::io::Error::other)?))
    }
}

impl Wire {
    /// How a node reaches the others: `app::connector` with this net below it.
    fn connector(self) -> pull::Connector {
        Arc::new(move |address: &str, node_key: &str| {
            let (wire, address, node_key) = (self.clone(), address.to_owned(), node_key.to_owned());
            Box::pin(async move {
                let dial = tower::service_fn(move |_: http::Uri| {
                    let (wire, address, node_key) = (wire.clone(), address.clone(), node_key.clone());
                    async move {
                        let stream = wire.net.dial(&wire.host, &address).await?;
                        let stream = wire.tls.connect(stream, PeerRole::Node, None).await;
                        let stream = stream.map_err(std::io::Error::other)?;
                        match &stream.identity().node_id {
                            Some(id) if NodeKey::of(id).as_str() != node_key => {
                                Err(std::io::Error::other("the certificate is of another node"))
                            }
                            _ => Ok(TokioIo::new(stream)),
                        }
                    }
                });
                pull::endpoint().connect_with_connector(dial).await.map_err(|error| format!("{error:?}"))
            })
        })
    }
}

/// A running process.
pub struct Process {
    pub host: Host,
    pub socket: PathBuf,
    trigger: Trigger,
    serving: JoinHandle<()>,
    _dir: TempDir,
}

impl Process {
    /// It is killed: nothing that it still does gets anywhere.
    fn kill(&self, net: &Net) {
        self.host.end();
        self.serving.abort();
        net.cut(&self.host.name);
    }

    pub async fn channel(&self) -> Result<Channel, tonic::Status> {
        let address = format!("unix://{}", self.socket.display());
        let endpoint = tonic::transport::Endpoint::try_from(address).unwrap();
        endpoint.connect().await.map_err(|error| tonic::Status::unavailable(format!("{error:?}")))
    }
}

pub struct Cluster {
    pub net: Net,
    pub random: Mutex<Random>,
    pub machines: Vec<Machine>,
    pub controllers: Vec<Mutex<Arc<Process>>>,
    controller_clocks: Vec<Clock>,
    told: Vec<Told>,
    pki: Pki,
    /// Whether certificates are looked at again while they are used.
    pub renews: bool,
    pub faults: Arc<gate::Faults>,
    /// Where volumes move.
    pub moves: Option<Arc<Moves>>,
}

fn identity(name: &str) -> (PeerIdentity, PeerRole) {
    match name.starts_with('c') {
        true => (controller(), PeerRole::Controller),
        false => (node(Some(name)), PeerRole::Node),
    }
}

fn pki() -> Pki {
    let dir = tempfile::tempdir_in(run::directory()).unwrap();
    let ca = Authority::create(&dir.path().join("ca"), DRIVER, minutes(-60 * 24, 60 * 24 * 365)).unwrap();
    Pki { dir, ca }
}

impl Cluster {
    pub async fn start(mut random: Random, moves: Option<Arc<Moves>>) -> Arc<Cluster> {
        let net = Net::new(random.fork());
        let pace = Arc::new(Mutex::new(random.fork()));
        let machines = (0..NODES).map(|n| machine(&format!("n{n}"), &net, &pace)).collect();
        let told = (0..CONTROLLERS).map(|_| Told(watch::Sender::new(None))).collect();
        let faults = Arc::new(gate::Faults::new(random.fork(), moves.clone()));
        let mut cluster = Cluster {
            net,
            machines,
            controllers: Vec::new(),
            controller_clocks: (0..CONTROLLERS).map(|_| Clock::default()).collect(),
            told,
            pki: pki(),
            renews: random.one_in(2),
            faults,
            moves,
            random: Mutex::new(random),
        };
        for number in 0..NODES {
            cluster.issue(&cluster.machines[number].id);
            cluster.start_node(number, false).await;
        }
        for number in 0..CONTROLLERS {
            cluster.issue(&format!("c{number}"));
            cluster.tell(number);
            let process = cluster.start_controller(number);
            cluster.controllers.push(Mutex::new(Arc::new(process)));
        }
        Arc::new(cluster)
    }

    pub fn below(&self, limit: usize) -> usize {
        self.random.lock().unwrap().below(limit)
    }

    pub fn between(&self, from: u64, to: u64) -> u64 {
        self.random.lock().unwrap().between(from, to)
    }

    /// Gives a process a new certificate, which it finds by itself.
    pub fn issue(&self, name: &str) {
        self.pki.issue(name, &identity(name).0, minutes(-600, 60 * 24));
    }

    fn tls(&self, name: &str) -> Tls {
        Tls::open(&self.pki.path(name), DRIVER, identity(name).1).expect("good certificates")
    }

    /// Tells a controller where the nodes are now.
    pub fn tell(&self, number: usize) {
        let member = |machine: &Machine| {
            let address = match *machine.listed.lock().unwrap() {
                Listed::Here => Some(machine.address()),
                Listed::WithoutAddress => None,
                Listed::Nowhere => return None,
            };
            Some(Member { node_id: machine.id.clone(), address })
        };
        let members = Members::new(self.machines.iter().filter_map(member), Default::default());
        self.told[number].0.send_replace(Some(Arc::new(members)));
    }

    fn outside(&self, dir: &TempDir) -> (Trigger, Outside) {
        let (trigger, shutdown) = Shutdown::new();
        let server = ServerConfig {
            endpoint: Endpoint::Unix(dir.path().join("csi.sock")),
            socket_mode: 0o600,
            shutdown_timeout: Duration::from_secs(5),
        };
        (
            trigger,
            Outside { server, operation: OperationConfig::default(), shutdown, certificate: None, api: None },
        )
    }

    fn watch(&self, tls: &Tls, outside: &Outside) {
        if self.renews {
            tokio::spawn(tls.clone().watch(outside.shutdown.clone()));
        }
    }

    fn start_controller(&self, number: usize) -> Process {
        let name = format!("c{number}");
        let dir = tempfile::tempdir_in(run::directory()).unwrap();
        let (host, tls) = (Host::new(&name, None), self.tls(&name));
        let settings = ControllerSettings {
            move_limits: self.moves.as_ref().map(|moves| moves.limits).unwrap_or_default(),
            events: None,
            moves: self.moves.is_some().then(|| "hostloop".to_owned()),
            driver_name: DRIVER.to_owned(),
            attach: false,
            tls_dir: PathBuf::from("/nowhere"),
            inspect_listen: None,
            inspect_fix: false,
            discovery: Discovery::Static(Vec::new()),
            forget_nodes: Default::default(),
        };
        let (trigger, outside) = self.outside(&dir);
        self.watch(&tls, &outside);
        let outside =
            Outside { api: self.moves.as_ref().map(|moves| moves::client(moves, &host)), ..outside };
        let (signs, clock) = (permit::signer(tls.clone()), self.controller_clocks[number].clone());
        let signer: Signer = Arc::new(move |grant| {
            // When it ends was said by the router, by no clock of its own.
            let expires = grant.expires.saturating_add_signed(clock.load(Ordering::Relaxed) / 1_000_000_000);
            by(&clock, || signs(&Grant { expires, ..grant.clone() }))
        });
        let connect = Wire { net: self.net.clone(), host: host.clone(), tls };
        let peers = Told(self.told[number].0.clone());
        let serving = tokio::spawn(async move {
            let _ = app::run_controller(settings, outside, &peers, Box::new(connect), signer).await;
        });
        Process { host, socket: dir.path().join("csi.sock"), trigger, serving, _dir: dir }
    }

    /// Kills a controller and starts it again.
    pub fn restart_controller(&self, number: usize) {
        self.controllers[number].lock().unwrap().kill(&self.net);
        let process = Arc::new(self.start_controller(number));
        *self.controllers[number].lock().unwrap() = process;
    }

    pub fn set_clock(&self, number: usize, ahead: i64) {
        match number.checked_sub(NODES) {
            Some(controller) => self.controller_clocks[controller].store(ahead, Ordering::Relaxed),
            None => self.machines[number].clock.store(ahead, Ordering::Relaxed),
        }
    }

    /// Kills the driver of a node, if it still runs; with the power of its machine, what was not synced is lost.
    pub fn kill_node(&self, number: usize, power: bool) {
        let machine = &self.machines[number];
        if let Some(process) = machine.process.lock().unwrap().take() {
            process.kill(&self.net);
        }
        match power {
            true => drop(machine.kernel.power_cut()),
            false => machine.kernel.kill(),
        }
        machine.kernel.kill();
    }

    /// Starts the driver of a node, perhaps at another address, of which the controllers are not told by this.
    pub async fn start_node(&self, number: usize, moves: bool) {
        let machine = &self.machines[number];
        if moves {
            *machine.moves.lock().unwrap() += 1;
        }
        let dir = tempfile::tempdir_in(run::directory()).unwrap();
        let os = machine.kernel.restart();
        let (host, tls) = (Host::new(&machine.id, Some(machine.kernel.clone())), self.tls(&machine.id));
        let (trigger, outside) = self.outside(&dir);
        self.watch(&tls, &outside);
        let accepted = self.net.listen(&host, &machine.address());
        let wire = Wire { net: self.net.clone(), host: host.clone(), tls: tls.clone() };
        let permits = Arc::new(ByClock(Checked::new(tls.clone()), machine.clock.clone()));
        let others = OtherNodes { connector: wire.connector(), permits };
        let (settings, faults, net, id) =
            (settings(&machine.id), self.faults.clone(), self.net.clone(), machine.id.clone());
        let serve_peers = move |routes, stop, _| gate::serve(accepted, tls, routes, stop, faults, net, id);
        let serving = tokio::spawn(async move {
            let ended = app::run_node(settings, outside, os, Some(others), serve_peers).await;
            if let Err(error) = ended {
                schedule::note(&format!("a node ends: {error}"));
            }
        });
        let process = Process { host, socket: dir.path().join("csi.sock"), trigger, serving, _dir: dir };
        *machine.process.lock().unwrap() = Some(Arc::new(process));
    }

    /// Ends the controllers as SIGTERM does.
    pub async fn stop_controllers(&self) {
        for controller in &self.controllers {
            let process = controller.lock().unwrap().clone();
            process.trigger.pull();
            process.kill(&self.net);
        }
    }
}
