//! The composition root: everything is constructed here and handed down.
//!
//! [`run`] is the life of the driver in order: take the data directory, open the state, listen, serve, recover,
//! stop.

mod checks;
#[cfg(test)]
#[cfg(feature = "fake-os")]
mod tests;

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::service::Routes;

use crate::config::{Config, ServerConfig};
use crate::driver::{Driver, Pools, Recovered};
use crate::model::Settings;
use crate::os::{Os, linux};
use crate::server::{self, BindError, Endpoint, Listener, Stop, Stopped};
use crate::service::{
    ControllerService, GroupControllerService, IdentityService, NodeService, SnapshotMetadataService,
};
use crate::shutdown::Shutdown;
use crate::store::{Identity, Store, StoreError};
use crate::wire::csi::controller_server::ControllerServer;
use crate::wire::csi::group_controller_server::GroupControllerServer;
use crate::wire::csi::identity_server::IdentityServer;
use crate::wire::csi::node_server::NodeServer;
use crate::wire::csi::snapshot_metadata_server::SnapshotMetadataServer;

pub use self::checks::DataDir;

/// Enough for threads without work to end.
const LEAST_LEFT: Duration = Duration::from_millis(250);

/// Why the driver does not serve. Each is one line that names what to mend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error("--data-dir {}: {source}", path.display())]
    DataDir {
        /// The data directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("--data-dir {} is in use by another process: {source}", path.display())]
    DataDirTaken {
        /// The data directory.
        path: PathBuf,
        /// Names the holder.
        source: io::Error,
    },
    /// A directory is not there.
    #[error("{what}: {} is no directory, make it or mend the flag", path.display())]
    NoDirectory {
        /// The flag.
        what: String,
        /// Its directory.
        path: PathBuf,
    },
    /// A block device is not there.
    #[error("{what}: {} is no block device, mend the flag or attach the disk", path.display())]
    NoDevice {
        /// The flag.
        what: String,
        /// Its device.
        path: PathBuf,
    },
    /// A directory cannot be looked at.
    #[error("{what}: look at {}: {source}", path.display())]
    Look {
        /// The flag.
        what: String,
        /// Its directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Two pools are one.
    #[error("{flag}: {} is the same directory as that of the pool {other:?}, choose another one", path.display())]
    SamePool {
        /// The flag of the second one.
        flag: String,
        /// Its directory.
        path: PathBuf,
        /// The first one.
        other: String,
    },
    /// The kernel has no loop devices, or hides them.
    #[error("{0} is not there: load the module (modprobe loop), and in a container mount the host's /dev")]
    NoLoopDevices(&'static str),
    /// The driver cannot be reached.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// The state file cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A pool cannot be used.
    #[error("{0}")]
    Pools(crate::error::Error),
    /// The process is not as it should be.
    #[error("{0}")]
    Process(String),
}

/// What the driver gives the process.
pub struct Parts {
    /// Its services.
    pub routes: Routes,
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

/// Makes the driver and its services: opens the state in `settings.data_dir`, which is locked already. Runs on a
/// thread that may block.
fn assemble(settings: Settings, os: Os) -> Result<Parts, StartError> {
    let identity = Identity { driver: settings.driver_name.clone(), node_id: settings.node_id.clone() };
    let store = Store::open(Arc::clone(&os.disks), &settings.data_dir, identity)?;
    let pools = Pools::prepare(&settings, &os, &store).map_err(StartError::Pools)?;
    let driver = Arc::new(Driver::new(settings, os, store, pools));
    let routes = Routes::new(IdentityServer::new(IdentityService::new(Arc::clone(&driver))))
        .add_service(ControllerServer::new(ControllerService::new(Arc::clone(&driver))))
        .add_service(GroupControllerServer::new(GroupControllerService::new(Arc::clone(&driver))))
        .add_service(SnapshotMetadataServer::new(SnapshotMetadataService::new(Arc::clone(&driver))))
        .add_service(NodeServer::new(NodeService::new(Arc::clone(&driver))));
    let recover = Box::new(move || {
        let Recovered { volumes, snapshots, removed, damaged } = driver.recover();
        tracing::info!(volumes, snapshots, removed, damaged, "recovered");
    });
    Ok(Parts { routes, recover })
}

/// How a driver that did serve came to its end.
pub struct Ended {
    /// Calls that were cut off, and the time left.
    pub stopped: Stopped,
    /// Why it did not wait to be asked: recovery met a bug.
    pub failure: Option<StartError>,
    /// Work whose caller gave up may still run: until it is done, nobody else may take the data directory.
    pub data_dir: DataDir,
}

/// Serves until `shutdown`.
///
/// # Errors
/// [`StartError`] where the driver cannot serve.
pub async fn run(config: Config, os: Os, shutdown: Shutdown) -> Result<Ended, StartError> {
    run_with(config, os, shutdown, assemble).await
}

async fn run_with<A>(config: Config, os: Os, shutdown: Shutdown, assemble: A) -> Result<Ended, StartError>
where
    A: FnOnce(Settings, Os) -> Result<Parts, StartError> + Send + 'static,
{
    let started = Instant::now();
    let Config { settings, server, .. } = config;
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), driver = settings.driver_name, node = settings.node_id,
        data_dir = %settings.data_dir.display(), pools = settings.pools.len(), "starting"
    );
    let open = move || {
        let data_dir = checks::take_data_dir(&os, &settings.data_dir)?;
        checks::check_machine(&os, &settings)?;
        Ok::<_, StartError>((data_dir, assemble(settings, os)?))
    };
    let (data_dir, parts) = blocking("start", open).await??;
    let listener = listen(&server).await?;

    let (recovered, serving) =
        (recover(parts.recover, started), serve(&server, listener, parts.routes, shutdown));
    let mut serving = std::pin::pin!(serving);
    let (stopped, failure) = tokio::select! {
        stopped = &mut serving => (stopped, None),
        error = recovered => (Stopped { cut: 0, left: server.shutdown_timeout }, Some(error)),
    };
    Ok(Ended { stopped, failure, data_dir })
}

async fn listen(server: &ServerConfig) -> Result<Listener, StartError> {
    let listener = Listener::bind(&server.endpoint, server.socket_mode).await?;
    let endpoint = listener.tcp_address().map_or_else(|| server.endpoint.clone(), Endpoint::Tcp);
    if matches!(endpoint, Endpoint::Tcp(_)) {
        tracing::warn!(%endpoint, "--endpoint: everybody on this machine can give orders over TCP, use it for tests only");
    } else if server.socket_mode & 0o006 != 0 {
        tracing::warn!(%endpoint, "--socket-mode: everybody who sees the socket can give orders");
    }
    if endpoint.has_unusual_name() {
        tracing::warn!(%endpoint, "--endpoint: CSI wants the name of a socket to end in .sock");
    }
    tracing::info!(%endpoint, "listening");
    Ok(listener)
}

/// Recovers beside the server. Completes only if that fails.
async fn recover(recover: Box<dyn FnOnce() + Send>, started: Instant) -> StartError {
    match blocking("recovery", recover).await {
        Ok(()) => {
            tracing::info!(ms = started.elapsed().as_millis() as u64, "ready");
            std::future::pending().await
        }
        Err(error) => error,
    }
}

fn serve(
    server: &ServerConfig,
    listener: Listener,
    routes: Routes,
    shutdown: Shutdown,
) -> impl Future<Output = Stopped> + use<> {
    let stop = Stop {
        requested: Box::pin(shutdown.clone().requested()),
        forced: Box::pin(shutdown.forced()),
        timeout: server.shutdown_timeout,
    };
    server::serve(listener, routes, stop)
}

/// Runs `work` on a thread that may block.
async fn blocking<T: Send + 'static>(
    what: &'static str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, StartError> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(|_| StartError::Process(format!("{what} met a bug; the log names its place")))
}

/// Ends the runtime: work that nobody waits for any more has what is left of the time. Returns whether it was
/// done by then.
pub fn finish(runtime: tokio::runtime::Runtime, left: Duration) -> bool {
    let (started, left) = (Instant::now(), left.max(LEAST_LEFT));
    runtime.shutdown_timeout(left);
    started.elapsed() < left
}
