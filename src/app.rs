//! The composition root: everything is constructed here and passed down.
//!
//! [`run`] is the life of the driver in order: take the data directory, listen, serve, open the state and the pools,
//! recover, stop. A controller has nothing to open: it starts to look for its nodes, listens and serves.

mod anchor;
mod checks;
mod controller;
mod node;
mod operation;
mod start_error;
#[cfg(test)]
mod tests;
mod watch;

use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tonic::service::Routes;

use crate::cluster::moves::run::Client;
use crate::config::{Config, OperationConfig, Role, ServerConfig};
use crate::driver::{Driver, Pools, Recovered};
use crate::kernel::{Os, linux};
use crate::metrics::{Expiry, Health};
use crate::model::{Limits, PoolKind, Settings};
use crate::server::{self, Endpoint, Listener, Observer, Stop, Stopped};
pub use crate::service::add_peer_services;
use crate::service::{
    Behind, Gate, Permits, Starting, add_controller_services, add_details_service, add_node_services,
};
use crate::shutdown::Shutdown;
use crate::store::{Identity, Store};
use crate::version;

use self::anchor::Anchors;
pub use self::checks::DataDir;
pub use self::controller::{Secure, run_controller};
pub use self::node::{OtherNodes, connector, run_node};
pub use self::start_error::StartError;
pub use self::watch::{IDLE_SOURCES, ORPHANED, watch_sources};
use self::watch::{watch_health, watch_pools, watch_removals};

/// Enough for threads without work to end.
const LEAST_LEFT: Duration = Duration::from_millis(250);

/// What the driver gives the process.
pub struct Parts {
    /// Its services on the socket.
    pub routes: Routes,
    /// Those on the port for controllers, in the role `node`.
    pub peer_routes: Routes,
    /// Whether it is healthy: what Probe says.
    pub health: Health,
    /// What holds data, for metrics.
    pub driver: Option<Arc<Driver>>,
    /// Undoes and finishes what an earlier process left. Runs on a thread of its own while Probe already answers
    /// that the driver is not ready.
    pub recover: Box<dyn FnOnce() + Send>,
}

/// The machine that `hostloop serve` works on. Each tool that was found is logged once with its path.
pub fn machine() -> Os {
    let tools = linux::Tools::find();
    for (name, path) in tools.found() {
        tracing::info!(tool = name, path = %path.display(), "found");
    }
    linux::os(tools)
}

/// A driver on the state in `settings.data_dir`, which is locked already; [`Driver::recover`] has to run before it
/// serves. Blocks, for hours where a large pool is checked.
///
/// # Errors
/// Where the state or a pool cannot be used.
pub fn driver(settings: Settings, os: Os) -> Result<Driver, StartError> {
    let starting = Starting::new(settings.clone());
    open(settings, os, &starting)
}

/// The same, and `starting` is told what is done.
fn open(settings: Settings, os: Os, starting: &Starting) -> Result<Driver, StartError> {
    let identity = Identity { driver: settings.driver_name.clone(), node_id: settings.node_id.clone() };
    starting.begin("the state is being read");
    let store = Store::open(Arc::clone(&os.files), &settings.data_dir, identity)?;
    starting.begin(preparing(&settings));
    let pools = Pools::prepare(&settings, &os, &store).map_err(StartError::Pools)?;
    Ok(Driver::new(settings, os, store, pools))
}

/// What is done to the pools at the start. Only those with a filesystem of the driver's own can take long.
fn preparing(settings: &Settings) -> String {
    let managed = settings.pools.iter().filter(|pool| pool.kind != PoolKind::Directory);
    let names: Vec<&str> = managed.map(|pool| pool.name.as_str()).collect();
    match names.as_slice() {
        [] => "the pools are being prepared".to_owned(),
        [name] => format!("pool {name} is being made, checked or mounted"),
        names => format!("the pools {} are being made, checked or mounted", names.join(", ")),
    }
}

/// Everything on the socket.
fn assemble(settings: Settings, os: Os, limits: Limits, starting: &Starting) -> Result<Parts, StartError> {
    let driver = Arc::new(open(settings, os, starting)?.with_limits(limits));
    let mut routes = Routes::builder();
    add_node_services(&driver, &mut routes);
    add_controller_services(&driver, &mut routes);
    add_details_service(&driver, &mut routes);
    Ok(parts(&driver, routes.routes(), Routes::default()))
}

fn parts(driver: &Arc<Driver>, routes: Routes, peer_routes: Routes) -> Parts {
    let probed = Arc::clone(driver);
    let health: Health = Arc::new(move || match probed.is_ready() {
        true => Ok(()),
        false => Err("start-up recovery is running".to_owned()),
    });
    let recovering = Arc::clone(driver);
    let recover = Box::new(move || {
        let Recovered { volumes, snapshots, removed, damaged } = recovering.recover();
        tracing::info!(volumes, snapshots, removed, damaged, "recovered");
    });
    Parts { routes, peer_routes, health, driver: Some(Arc::clone(driver)), recover }
}

/// What a node serves to the other processes of its cluster.
pub fn peer_routes(driver: &Arc<Driver>, permits: Arc<dyn Permits>) -> Routes {
    let mut routes = Routes::builder();
    add_peer_services(driver, permits, &mut routes);
    routes.routes()
}

/// How a driver that did serve came to its end.
pub struct Ended {
    /// Calls that were cut off, and the time left.
    pub stopped: Stopped,
    /// Why it did not wait to be asked: recovery met a bug, or kubelet does not want the driver.
    pub failure: Option<StartError>,
    /// Work whose caller gave up may still run: until it is done, nobody else may take the data directory.
    pub data_dir: Option<DataDir>,
}

/// Serves until `shutdown`. `os` gives the machine of a role with volumes.
///
/// # Errors
/// [`StartError`] where the driver cannot serve.
pub async fn run(config: Config, os: impl FnOnce() -> Os, shutdown: Shutdown) -> Result<Ended, StartError> {
    let Config { role, server, operation, .. } = config;
    let outside = Outside { server, operation, shutdown, certificate: None, api: None };
    match role {
        Role::All(settings) => {
            run_with(settings, outside, os(), (Behind::Everything, Behind::Nothing), assemble, nobody).await
        }
        Role::Node(settings, port) => node::run(settings, port, outside, os()).await,
        Role::Controller(settings) => controller::run(settings, outside).await,
    }
}

/// How the world has to do with a process, whatever its role.
pub struct Outside {
    /// Who calls.
    pub server: ServerConfig,
    /// Who looks after it.
    pub operation: OperationConfig,
    /// Who ends it.
    pub shutdown: Shutdown,
    /// When the certificate that its peers see ends, where there are peers.
    pub certificate: Option<Expiry>,
    /// The API server, for a controller that moves volumes; `None` for the one of its pod or of a kubeconfig.
    pub api: Option<Client>,
}

/// For roles without a port for peers.
async fn nobody(_: Routes, stop: Stop, _: Option<Arc<dyn Observer>>) -> Stopped {
    Stopped { cut: 0, left: stop.timeout }
}

/// Locks, listens, serves, opens, recovers. Callers are served from the start, by the [`Gate`] in front of services that
/// come later: `behind` is what is behind that of the socket and that of the peers. `serve_peers` serves what it is given
/// to controllers and other nodes, and makes sure that it is them who call.
async fn run_with<A, F>(
    settings: Settings,
    outside: Outside,
    os: Os,
    behind: (Behind, Behind),
    assemble: A,
    serve_peers: impl FnOnce(Routes, Stop, Option<Arc<dyn Observer>>) -> F,
) -> Result<Ended, StartError>
where
    A: FnOnce(Settings, Os, Limits, &Starting) -> Result<Parts, StartError> + Send + 'static,
    F: Future<Output = Stopped>,
{
    let started = Instant::now();
    let Outside { server, operation, shutdown, certificate, api: _ } = outside;
    let origin = version::origin();
    tracing::info!(
        version = version::VERSION, commit = origin.commit, tree = origin.tree,
        driver = settings.driver_name, node = settings.node_id,
        data_dir = %settings.data_dir.display(), pools = settings.pools.len(), "starting"
    );
    let (limits, starting) = (operation.limits, Starting::new(settings.clone()));
    let endpoint = server.endpoint.clone();
    // The lock comes first: whoever does not have it must not take the socket.
    let (data_dir, settings, os, endpoint) = blocking("start", || take(settings, os, endpoint)).await??;
    let assemble = move |starting: &Starting| {
        let parts = assemble(settings.clone(), os.clone(), limits, starting)?;
        Anchors::new(&os, &settings, &endpoint).cast()?;
        Ok::<_, StartError>(parts)
    };
    let (own, peers) = (Gate::new(starting.clone()), Gate::new(starting.clone()));
    let health = Arc::new(OnceLock::new());
    let metrics = operation::listen(&operation, healthy(&health, starting.clone()), certificate).await?;
    let listener = listen(&server).await?;

    let (failed, end) = Shutdown::new();
    let (observer, measured) = (metrics.observer(), metrics.metrics());
    let serving = async {
        let (own, peers) = tokio::join!(
            server::serve(listener, own.routes(behind.0), stop(&server, &shutdown, &end), observer.clone()),
            serve_peers(peers.routes(behind.1), stop(&server, &shutdown, &end), observer.clone())
        );
        Stopped { cut: own.cut + peers.cut, left: own.left.min(peers.left) }
    };
    let ready = async {
        let parts = blocking("start", move || assemble(&starting)).await??;
        if let (Some(metrics), Some(driver)) = (measured, &parts.driver) {
            metrics.attach(driver);
        }
        let _ = health.set(parts.health);
        peers.open(parts.peer_routes);
        own.open(parts.routes);
        recover(parts.recover, started).await?;
        tokio::select! {
            registered = operation::register(operation.registration, shutdown.clone()) => registered,
            never = watch_health(parts.driver.clone()) => match never {},
            never = watch_removals(parts.driver.clone()) => match never {},
            never = watch_pools(parts.driver) => match never {},
        }
    };
    let (mut serving, mut metrics) = (std::pin::pin!(serving), std::pin::pin!(metrics.serve()));
    let (stopped, failure) = tokio::select! {
        stopped = &mut serving => (stopped, None),
        never = &mut metrics => match never {},
        Err(error) = ready => {
            failed.pull();
            (serving.await, Some(error))
        }
    };
    match failure {
        // There never was a driver.
        Some(error) if !own.is_open() => Err(error),
        failure => Ok(Ended { stopped, failure, data_dir: Some(data_dir) }),
    }
}

/// Takes the data directory, on a machine and with a disk that are as they should be.
fn take(
    settings: Settings,
    os: Os,
    endpoint: Endpoint,
) -> Result<(DataDir, Settings, Os, Endpoint), StartError> {
    Anchors::new(&os, &settings, &endpoint).check()?;
    let data_dir = checks::take_data_dir(&os, &settings.data_dir)?;
    checks::check_machine(&os, &settings)?;
    Ok((data_dir, settings, os, endpoint))
}

/// What the driver says of its health, once there is one.
fn healthy(driver: &Arc<OnceLock<Health>>, starting: Starting) -> Health {
    let driver = Arc::clone(driver);
    Arc::new(move || match driver.get() {
        Some(health) => health(),
        None => Err(starting.reason()),
    })
}

async fn listen(server: &ServerConfig) -> Result<Listener, StartError> {
    let listener = Listener::bind(&server.endpoint, server.socket_mode).await?;
    let endpoint = listener.tcp_address().map_or_else(|| server.endpoint.clone(), Endpoint::Tcp);
    if matches!(endpoint, Endpoint::Tcp(_)) {
        tracing::warn!(%endpoint, "--endpoint: every process on this machine can call the driver over TCP; use it for tests only");
    } else if server.socket_mode & 0o006 != 0 {
        tracing::warn!(%endpoint, "--socket-mode: every process that sees the socket can call the driver");
    }
    if endpoint.has_unusual_name() {
        tracing::warn!(%endpoint, "--endpoint: the CSI specification wants a socket's name to end in .sock");
    }
    tracing::info!(%endpoint, "listening");
    Ok(listener)
}

/// Recovers beside the server.
async fn recover(recover: Box<dyn FnOnce() + Send>, started: Instant) -> Result<(), StartError> {
    blocking("recovery", recover).await?;
    tracing::info!(ms = started.elapsed().as_millis() as u64, "ready");
    Ok(())
}

/// Stops when the process is asked to, and when it comes to its end by itself.
fn stop(server: &ServerConfig, shutdown: &Shutdown, end: &Shutdown) -> Stop {
    let (requested, forced) = (shutdown.clone().requested(), shutdown.clone().forced());
    let end = end.clone().requested();
    let requested = async {
        tokio::select! {
            () = requested => {}
            () = end => {}
        }
    };
    Stop { requested: Box::pin(requested), forced: Box::pin(forced), timeout: server.shutdown_timeout }
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StartError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| StartError::Process(format!("a bug stopped {what}; the log names the place")))
}

/// Ends the runtime: work that nobody waits for any more has what is left of the time. Returns whether it was
/// done by then.
pub fn finish(runtime: tokio::runtime::Runtime, left: Duration) -> bool {
    let (started, left) = (Instant::now(), left.max(LEAST_LEFT));
    runtime.shutdown_timeout(left);
    started.elapsed() < left
}
