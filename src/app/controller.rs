//! The role `controller`.

use std::convert::Infallible;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use futures_util::FutureExt as _;
use futures_util::future::{FusedFuture as _, join};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::timeout;

use super::node::{Watching, certificates, expiry};
use super::{Ended, Outside, StartError, listen, operation, stop};
use crate::cluster::identity::PeerRole;
use crate::cluster::moves::figures::Figures;
use crate::cluster::moves::places::Places;
use crate::cluster::moves::resources::ReplicaPhase;
use crate::cluster::moves::run::{Candidate, Client};
use crate::cluster::notices::Teller;
use crate::cluster::peers::{Fixed, Peers, Service};
use crate::cluster::permit::{self, Signer};
use crate::cluster::router::{Connect, Router, RouterSettings, Stream};
use crate::cluster::tls::Tls;
use crate::config::{ControllerSettings, Discovery, StaticPeer};
use crate::kernel::host::host_name;
use crate::metrics::{Health, MoveFigures};
use crate::model::MoveLimits;
use crate::server::{self, Listener, Observer, Stop};
use crate::shutdown::Shutdown;
use crate::version::{self, Origin};

/// Serves the whole cluster until the end, over mutual TLS.
///
/// # Errors
/// [`StartError`] where the controller cannot serve.
pub(super) async fn run(settings: ControllerSettings, outside: Outside) -> Result<Ended, StartError> {
    let tls = certificates(&settings.driver_name, &settings.tls_dir, PeerRole::Controller).await?;
    let _watching = Watching::new(&tls, &outside.shutdown);
    let peers = discover(&settings).await?;
    let outside = Outside { certificate: Some(expiry(&tls)), ..outside };
    let signer = permit::signer(tls.clone());
    run_controller(settings, outside, peers.as_ref(), Box::new(Secure(tls)), signer).await
}

/// Begins to look for the nodes.
async fn discover(settings: &ControllerSettings) -> Result<Box<dyn Peers>, StartError> {
    match &settings.discovery {
        Discovery::Static(peers) => {
            let pair = |peer: &StaticPeer| (peer.node_id.clone(), peer.address.clone());
            Ok(Box::new(Fixed::new(peers.iter().map(pair))))
        }
        Discovery::Service { namespace, name } => {
            let watched = Service::watch(namespace, name, &settings.driver_name).await;
            let wrong =
                |e| StartError::Discovery(format!("--peer-service: cannot reach the API server: {e}"));
            Ok(Box::new(watched.map_err(wrong)?))
        }
    }
}

/// Serves with the nodes of `peers`, which are reached by `connect`, and are let read each other's data by what `signer`
/// signs.
///
/// # Errors
/// [`StartError`] where the controller cannot serve.
pub async fn run_controller(
    settings: ControllerSettings,
    outside: Outside,
    peers: &dyn Peers,
    connect: Box<dyn Connect>,
    signer: Signer,
) -> Result<Ended, StartError> {
    let Outside { server, operation, shutdown, certificate, api } = outside;
    let ControllerSettings { driver_name, attach, forget_nodes, moves, move_limits, events, .. } = settings;
    let (inspect_listen, inspect_fix) = (settings.inspect_listen, settings.inspect_fix);
    let Origin { commit, tree } = version::origin();
    tracing::info!(version = version::VERSION, commit, tree, driver = driver_name, "starting a controller");
    let driver = driver_name.clone();
    let places = if moves.is_some() { Places::watched() } else { Places::default() };
    let router = Router::new(RouterSettings { driver_name, attach, forget_nodes }, peers, connect, signer)
        .with_places(places.clone());
    let figures = Arc::new(Figures::default());
    let client = client(moves.is_some() || events.is_some(), api).await?;
    let telling = telling(client.clone().zip(events), &driver, &router, &shutdown);
    let parts = (client.zip(moves), move_limits);
    let moving = join(moving(parts, &driver, &router, (&figures, places), &shutdown), telling);
    let probed = router.clone();
    let health: Health = Arc::new(move || match probed.is_ready() {
        true => Ok(()),
        false => Err("the nodes are not known yet".to_owned()),
    });
    let metrics = operation::listen(&operation, health, certificate).await?;
    if let Some(metrics) = metrics.metrics() {
        metrics.attach_moves(Arc::new(move || counted(&figures)));
    }
    let inspected = inspect_listener(inspect_listen).await?;
    let listener = listen(&server).await?;
    let (_running, end) = Shutdown::new();
    let inspected = (inspected, inspect_fix);
    let inspecting = serve_inspection(inspected, &router, stop(&server, &shutdown, &end), metrics.observer());
    let serving =
        server::serve(listener, router.routes(), stop(&server, &shutdown, &end), metrics.observer());
    let mut moving = pin!(moving.fuse());
    let served = async {
        tokio::select! {
            stopped = serving => stopped,
            never = metrics.serve() => match never {},
            never = inspecting => match never {},
        }
    };
    // The leader releases its Lease while running calls end. The process waits for both.
    let mut served = pin!(served);
    let stopped = tokio::select! {
        stopped = &mut served => stopped,
        _ = &mut moving => served.await,
    };
    if !moving.is_terminated() {
        let _ = timeout(GIVEN_BACK, moving).await;
    }
    Ok(Ended { stopped, failure: None, data_dir: None })
}

/// Listens where people ask what is on the nodes.
async fn inspect_listener(address: Option<SocketAddr>) -> Result<Option<Listener>, StartError> {
    let Some(address) = address else { return Ok(None) };
    let wrong = |source| StartError::InspectListen { address, source };
    let listener = TcpListener::bind(address).await.map_err(wrong)?;
    let address = listener.local_addr().map_err(wrong)?;
    tracing::info!(%address, "listening for those who look at the cluster");
    Ok(Some(Listener::of_tcp(listener)))
}

/// Answers people until it is dropped: their calls are short, and nothing is lost with them.
async fn serve_inspection(
    (listener, fixes): (Option<Listener>, bool),
    router: &Router,
    stop: Stop,
    observer: Option<Arc<dyn Observer>>,
) -> Infallible {
    if let Some(listener) = listener {
        server::serve(listener, router.details_routes(fixes), stop, observer).await;
    }
    pending().await
}

/// The time that the end of the process waits for the release of the Lease.
const GIVEN_BACK: Duration = Duration::from_secs(2);

/// Returns a client of the API server, if one is wanted: this one, or that of the pod or of a kubeconfig.
///
/// # Errors
/// If there is no way to it.
async fn client(is_wanted: bool, given: Option<Client>) -> Result<Option<Client>, StartError> {
    match given.filter(|_| is_wanted) {
        None if is_wanted => {
            let connected = Candidate::connect().await;
            connected.map(Some).map_err(|why| StartError::Discovery(format!("--move and --events: {why}")))
        }
        given => Ok(given),
    }
}

/// Returns the name of this process among the candidates. Two containers of one pod, one after the other, are two.
fn identity() -> String {
    let started = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    format!("{}_{started:x}", host_name().unwrap_or_default())
}

/// Writes Events of claims, if there is a client, with the Lease in this namespace, until shutdown is requested.
fn telling(
    client: Option<(Client, String)>,
    driver: &str,
    router: &Router,
    shutdown: &Shutdown,
) -> impl Future<Output = ()> + use<> {
    let (driver, nodes, shutdown) = (driver.to_owned(), Arc::new(router.clone()), shutdown.clone());
    async move {
        match client {
            Some((client, namespace)) => {
                Teller { client, driver, nodes }.run(&namespace, identity(), shutdown).await;
            }
            None => shutdown.requested().await,
        }
    }
}

/// Moves volumes, if there is a client, with the Lease in this namespace, until shutdown is requested.
fn moving(
    (client, limits): (Option<(Client, String)>, MoveLimits),
    driver: &str,
    router: &Router,
    (figures, places): (&Arc<Figures>, Places),
    shutdown: &Shutdown,
) -> impl Future<Output = ()> + use<> {
    let candidate = client.map(|(client, namespace)| {
        let candidate = Candidate {
            client,
            driver: driver.to_owned(),
            nodes: Arc::new(router.clone()),
            figures: Arc::clone(figures),
            limits,
        };
        (candidate, namespace)
    });
    let shutdown = shutdown.clone();
    async move {
        match candidate {
            Some((candidate, namespace)) => {
                let watch = places.watch(candidate.client.clone(), candidate.driver.clone());
                tokio::select! {
                    never = watch => match never {},
                    () = candidate.run(&namespace, identity(), shutdown) => {}
                }
            }
            None => shutdown.requested().await,
        }
    }
}

/// The figures of moves as the metrics have them.
fn counted(figures: &Figures) -> MoveFigures {
    let (under_way, (done, given_up)) = (figures.under_way(), figures.ends());
    let count = |phase: ReplicaPhase| (phase.as_str(), under_way.get(&phase).copied().unwrap_or(0));
    let (passes, sent_bytes, changed_bytes) = figures.traffic();
    MoveFigures {
        under_way: ReplicaPhase::ALL.map(count).to_vec(),
        done,
        given_up,
        passes,
        sent_bytes,
        changed_bytes,
        failures: figures.failures(),
        standby: figures.standby(),
        cutovers: figures.cutovers().into_iter().map(|(claim, phase)| (claim, phase.as_str())).collect(),
    }
}

/// The way of a controller to a node: TLS with certificates on both sides.
pub struct Secure(pub Tls);

#[tonic::async_trait]
impl Connect for Secure {
    async fn connect(&self, address: &str, node_id: &str) -> io::Result<Box<dyn Stream>> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        let stream = self.0.connect(stream, PeerRole::Node, node_id).await;
        Ok(Box::new(stream.map_err(io::Error::other)?))
    }
}
