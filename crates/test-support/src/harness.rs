//! One instance of the server on a fake kernel, reached over a real Unix socket.
//!
//! Every server has a runtime of its own, so that one which was killed cannot touch the next. The runtime is
//! driven by [`Server::block_on`] only, so tests are plain `#[test]` functions; the work of the driver runs on
//! the runtime's blocking threads, and calls that are joined in one `block_on` run at the same time.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

pub use crate::requests::{LIMITED, QGROUPS};
use hostloop::app::{self, Ended, StartError};
use hostloop::config::{Config, OperationConfig, Role, ServerConfig};
use hostloop::kernel::Os;
use hostloop::model::{FsType, InlineSettings, PoolKind, PoolName, PoolSettings, Reserve, Settings};
use hostloop::selftest::client::{self, Client};
use hostloop::server::Endpoint;
use hostloop::shutdown::{Shutdown, Trigger};
use hostloop::telemetry::{LogFormat, LogLevel, Logging};
use hostloop::wire::rpc::Unary;
use hostloop_fake_kernel::FakeKernel;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;
use tonic::Status;

/// The data directory, in the fake kernel's tree.
pub const DATA_DIR: &str = "/var/lib/hostloop";
/// Where its volumes lie.
pub const VOLUMES: &str = "/var/lib/hostloop/volumes";
/// Where its snapshots lie.
pub const SNAPSHOTS: &str = "/var/lib/hostloop/snapshots";
/// A further pool, on a filesystem that can share blocks.
pub const SHARING: &str = "sharing";
/// Where it lies.
pub const SHARING_DIR: &str = "/pools/sharing";
/// The pool of directory volumes.
pub const DIRECTORIES: &str = "directories";
/// Where it lies, on a disk of its own.
pub const DIRECTORIES_DIR: &str = "/pools/directories";
/// A further one, whose files can share blocks.
pub const SHARING_DIRECTORIES: &str = "sharing-directories";
/// Where that lies.
pub const SHARING_DIRECTORIES_DIR: &str = "/pools/sharing-directories";
/// The node.
pub const NODE: &str = "node-a";
/// kubelet's directory, in the fake kernel's tree: staging and target paths lie below it.
pub const KUBELET: &str = "/var/lib/kubelet";

/// A machine with the directories that an administrator and kubelet make.
pub fn machine() -> FakeKernel {
    let kernel = FakeKernel::new();
    for directory in [DATA_DIR, "/var/lib/kubelet/stage", "/var/lib/kubelet/pods"] {
        kernel.create_directories(directory);
    }
    kernel.add_disk(DIRECTORIES_DIR, FsType::Ext4, 100 << 30);
    kernel
}

/// A machine with the pool [`SHARING`], and the settings for it.
pub fn with_sharing(kernel: &FakeKernel, settings: Settings) -> Settings {
    kernel.add_disk(SHARING_DIR, FsType::Xfs, 100 << 30);
    kernel.add_disk(SHARING_DIRECTORIES_DIR, FsType::Xfs, 100 << 30);
    let further = [pool(SHARING, SHARING_DIR), directories(SHARING_DIRECTORIES, SHARING_DIRECTORIES_DIR)];
    let pools = settings.pools.into_iter().chain(further).collect();
    Settings { pools, ..settings }
}

/// A machine with the pools [`LIMITED`], and the settings for them.
pub fn with_limits(kernel: &FakeKernel, settings: Settings) -> Settings {
    for (_, path, fs_type) in LIMITED {
        kernel.add_disk(path, fs_type, 100 << 30);
        kernel.set_quotas(path, true);
    }
    kernel.set_qgroups(LIMITED[QGROUPS].1, hostloop::kernel::Qgroups::Full);
    let further = LIMITED.map(|(name, path, _)| pool(name, path));
    let pools = settings.pools.into_iter().chain(further).collect();
    Settings { pools, ..settings }
}

/// Settings as `hostloop serve` has them without flags, but for paths of the fake kernel; change the fields.
pub fn settings() -> Settings {
    Settings {
        driver_name: "hostloop.csi.dev".to_owned(),
        node_id: NODE.to_owned(),
        data_dir: PathBuf::from(DATA_DIR),
        pools: vec![pool(PoolName::DEFAULT, DATA_DIR), directories(DIRECTORIES, DIRECTORIES_DIR)],
        anchor_dir: None,
        attach: false,
        max_volumes_per_node: 0,
        max_volume_bytes: 16 << 40,
        inline: InlineSettings::default(),
        kubelet_dir: None,
        quota_ids: Default::default(),
        adopt_from: Vec::new(),
    }
}

/// A pool that keeps nothing free and promises only what there is.
pub fn pool(name: &str, path: impl Into<PathBuf>) -> PoolSettings {
    let name = name.parse().expect("a name of a pool");
    let (path, kind) = (path.into(), PoolKind::Directory);
    PoolSettings { name, path, kind, reserve: Reserve::Bytes(0), overcommit: 1.0, directories: false }
}

/// A pool of directory volumes.
pub fn directories(name: &str, path: impl Into<PathBuf>) -> PoolSettings {
    PoolSettings { directories: true, ..pool(name, path) }
}

/// Lets steps go on that wait ([`FakeKernel::hold`]) when it is dropped, also by a test that fails: its runtime would wait
/// for them.
pub struct LetGo(pub FakeKernel);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.release();
    }
}

/// A process, until it ends.
pub type Serving = JoinHandle<Result<Ended, StartError>>;

/// A running server and a connection to it. Dropping it is [`Server::abandon`].
pub struct Server {
    /// For several calls at a time, inside [`Server::block_on`].
    pub client: Client,
    trigger: Trigger,
    serving: Option<Serving>,
    runtime: Option<Runtime>,
    socket: PathBuf,
}

impl Server {
    /// Starts on the kernel's current process and waits until Probe says that it is ready.
    ///
    /// # Panics
    /// Where the server does not start.
    pub fn start(kernel: &FakeKernel, settings: &Settings) -> Server {
        Server::try_start(kernel.os(), settings).expect("the server starts")
    }

    /// Starts on `os`, such as [`FakeKernel::restart`] gives it, and waits until Probe says that it is ready.
    ///
    /// # Errors
    /// Why it does not serve.
    pub fn try_start(os: Os, settings: &Settings) -> Result<Server, StartError> {
        Self::try_start_with(os, settings, OperationConfig::default())
    }

    /// The same for a process that is looked after.
    ///
    /// # Errors
    /// Why it does not serve.
    pub fn try_start_with(
        os: Os,
        settings: &Settings,
        operation: OperationConfig,
    ) -> Result<Server, StartError> {
        Self::try_start_as(os, Role::All(settings.clone()), operation)
    }

    /// The same in another role.
    ///
    /// # Errors
    /// Why it does not serve.
    pub fn try_start_as(os: Os, role: Role, operation: OperationConfig) -> Result<Server, StartError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let socket = new_socket();
        let (mut serving, trigger) = runtime.block_on(async { spawn(os, role, &socket, operation) });
        match runtime.block_on(reach(&socket, &mut serving)) {
            Ok(client) => {
                Ok(Server { client, trigger, serving: Some(serving), runtime: Some(runtime), socket })
            }
            Err(error) => {
                runtime.shutdown_background();
                Err(error)
            }
        }
    }

    /// Where it is reached.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Runs the server and `future` until that is done.
    pub fn block_on<F: Future>(&self, future: F) -> F::Output {
        self.runtime.as_ref().expect("a runtime").block_on(future)
    }

    /// Makes a call and waits for its answer.
    ///
    /// # Errors
    /// What the driver answers.
    pub fn call<Q: Unary>(&self, request: Q) -> Result<Q::Reply, Status> {
        self.block_on(self.client.call(request))
    }

    /// Ends it as SIGTERM does: running calls finish, the data directory is free afterwards.
    pub fn stop(mut self) {
        let (runtime, serving) = (self.runtime.take().unwrap(), self.serving.take().unwrap());
        self.trigger.pull();
        // The connection must be closed for the server to end at once.
        let nowhere = runtime
            .block_on(async { tonic::transport::Endpoint::from_static("http://[::]:1").connect_lazy() });
        self.client = Client::on(nowhere);
        let ended = runtime.block_on(serving).expect("the server does not panic").expect("it did serve");
        assert!(ended.failure.is_none(), "{:?}", ended.failure);
        assert!(app::finish(runtime, ended.stopped.left), "work goes on after the end");
        drop(ended.data_dir);
    }

    /// Forgets it as it is, after its process was killed: nothing is cleaned up, and what still runs of it runs
    /// on a dead process of the fake kernel.
    pub fn abandon(self) {
        drop(self);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
        // The task removes its socket when it is dropped; one that was never polled again cannot.
        #[allow(clippy::disallowed_methods, reason = "the socket is a real file")]
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// Starts a process in the runtime of the caller, and does not wait for anything.
pub fn spawn(os: Os, role: Role, socket: &Path, operation: OperationConfig) -> (Serving, Trigger) {
    let server = ServerConfig {
        endpoint: Endpoint::Unix(socket.to_owned()),
        socket_mode: 0o600,
        shutdown_timeout: Duration::from_secs(10),
    };
    let logging = Logging { level: LogLevel::Warn, format: LogFormat::Text };
    let config = Config { role, server, operation, logging };
    let (trigger, shutdown) = Shutdown::new();
    (tokio::spawn(app::run(config, move || os, shutdown)), trigger)
}

/// A path that no other server of this process has.
fn new_socket() -> PathBuf {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let dir = DIR.get_or_init(|| tempfile::tempdir().expect("a directory for sockets"));
    dir.path().join(format!("{}.sock", NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// Connects as soon as somebody listens, and waits for Probe.
async fn reach(socket: &Path, serving: &mut Serving) -> Result<Client, StartError> {
    // On a busy machine, a start takes tens of seconds.
    let deadline = Instant::now() + Duration::from_secs(120);
    let endpoint = client::endpoint(socket).expect("the address of a socket");
    let mut client = None;
    loop {
        if serving.is_finished() {
            let ended = serving.await.expect("the server does not panic");
            return Err(ended.err().expect("it ends by itself only with an error"));
        }
        if client.is_none() && socket.exists() {
            client = endpoint.connect().await.ok().map(Client::on);
        }
        // No answer: the driver has served, could not start, and ends, and tells why.
        if let Some(client) = &client
            && client.is_ready().await
        {
            return Ok(client.clone());
        }
        assert!(Instant::now() < deadline, "the server is not ready");
        tokio::task::yield_now().await;
        // The driver starts on a blocking thread; the timer of tokio is coarser than that takes.
        std::thread::sleep(Duration::from_micros(50));
    }
}
