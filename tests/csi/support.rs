//! A driver on a fake machine, called as kubelet and the sidecars do: over its Unix socket.

use std::future::Future;
use std::path::Path;

use clap::Parser;
use futures_util::TryStreamExt;
use hostloop::cli::{Cli, Command};
use hostloop::config::Config;
use hostloop::driver::Driver;
use hostloop::kernel::Os;
use hostloop::model::{FsType, Settings};
use hostloop::selftest::client::Client;
use hostloop::store::{Identity, Store};
use hostloop::wire::csi;
use hostloop::wire::rpc::{Streaming, Unary};
use hostloop_fake_kernel::FakeKernel;
use tokio::task::JoinSet;
use tonic::{Code, Request, Status};

pub use crate::client::parameters as map;
pub use crate::harness::{DATA_DIR as DATA, KUBELET, NODE};
use crate::harness::{DIRECTORIES, DIRECTORIES_DIR, Server};

pub const MIB: i64 = 1 << 20;
pub const GIB: i64 = 1 << 30;
pub const TOPOLOGY: &str = "topology.hostloop.csi.dev/node";

/// A request that can be sent: of an RPC with one answer, or [`All`] of one with many.
pub trait Call: Send + 'static {
    type Reply: Send + 'static;
    fn send(self, client: Client) -> impl Future<Output = Result<Self::Reply, Status>> + Send;
}

impl<Q: Unary> Call for Q {
    type Reply = Q::Reply;

    async fn send(self, client: Client) -> Result<Self::Reply, Status> {
        client.call(self).await
    }
}

/// The messages of a stream that came to its end without an error.
#[derive(Debug, Clone)]
pub struct All<Q>(pub Q);

impl<Q: Streaming> Call for All<Q> {
    type Reply = Vec<Q::Reply>;

    async fn send(self, client: Client) -> Result<Self::Reply, Status> {
        client.open(Request::new(self.0)).await?.try_collect().await
    }
}

/// One driver on its machine. Every call blocks the test until it is answered.
pub struct Rig {
    pub kernel: FakeKernel,
    pub settings: Settings,
    server: Option<Server>,
}

impl Rig {
    /// A driver with default settings on a new machine.
    pub fn new() -> Self {
        Self::with(&[])
    }

    /// A driver with further flags on a new machine.
    pub fn with(flags: &[&str]) -> Self {
        Self::on(FakeKernel::new(), flags)
    }

    /// A driver with further flags on this machine.
    pub fn on(kernel: FakeKernel, flags: &[&str]) -> Self {
        match Self::try_on(kernel, flags) {
            Ok(rig) => rig,
            Err(error) => panic!("the driver does not start: {error}"),
        }
    }

    /// The same where the start may fail; the message is what the user sees.
    pub fn try_on(kernel: FakeKernel, flags: &[&str]) -> Result<Self, String> {
        kernel.create_directories(KUBELET);
        if !kernel.exists(DIRECTORIES_DIR) {
            kernel.add_disk(DIRECTORIES_DIR, FsType::Ext4, 100 << 30);
        }
        let directories = format!("{DIRECTORIES}={DIRECTORIES_DIR},directories=true");
        let node: &[&str] = if flags.contains(&"--node-id") { &[] } else { &["--node-id", NODE] };
        let fixed = ["hostloop", "serve", "--data-dir", DATA, "--pool", &directories];
        let reserve: &[&str] = if flags.contains(&"--reserve") { &[] } else { &["--reserve", "0"] };
        let cli = Cli::try_parse_from(fixed.iter().chain(node).chain(reserve).chain(flags)).unwrap();
        let Command::Serve(args) = cli.command else { unreachable!() };
        let settings = Config::new(&args, None).unwrap().role.settings().unwrap().clone();
        let server = Server::try_start(kernel.os(), &settings).map_err(|error| error.to_string())?;
        Ok(Rig { kernel, settings, server: Some(server) })
    }

    pub fn server(&self) -> &Server {
        self.server.as_ref().expect("a server")
    }

    fn start(&mut self, os: Os) {
        self.server = Some(Server::try_start(os, &self.settings).expect("the driver starts again"));
    }

    fn stop(&mut self) {
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }

    /// A driver without a server, after a power cut while the one with a server ran.
    pub fn driver_after_power_cut(&mut self) -> Driver {
        self.kernel.kill();
        self.server = None;
        self.driver_on(self.kernel.power_cut())
    }

    /// A driver without a server, on a machine without another driver.
    pub fn driver_on(&self, os: Os) -> Driver {
        let driver = hostloop::app::driver(self.settings.clone(), os).expect("the driver starts");
        driver.recover();
        driver
    }

    /// Stops the driver and starts it again; the kernel keeps mounts and loop devices.
    pub fn restart(&mut self) {
        self.stop();
        let os = self.kernel.restart();
        self.start(os);
    }

    /// Stops the driver, changes its records as an older state file has them, and starts it again.
    pub fn restore_state(&mut self, rewrite: impl FnOnce(&Store)) {
        self.stop();
        let identity = Identity { driver: "hostloop.csi.dev".to_owned(), node_id: NODE.to_owned() };
        rewrite(
            &Store::open(self.kernel.restart().files, Path::new(DATA), identity).expect("the state file"),
        );
        self.start_again();
    }

    /// Removes the record beside the data in a directory.
    pub fn lose_record(&self, directory: &str) {
        for path in ["/volume.json", "/snapshot.json", ".json"].map(|name| format!("{directory}{name}")) {
            if self.kernel.exists(&path) {
                self.kernel.remove_file(&path).expect("remove");
            }
        }
    }

    /// Starts the driver again after its process was killed.
    pub fn start_again(&mut self) {
        self.server = None;
        let os = self.kernel.restart();
        self.start(os);
    }

    /// The same with other flags.
    pub fn restart_with(mut self, flags: &[&str]) -> Self {
        self.stop();
        self.kernel.restart();
        Self::on(self.kernel.clone(), flags)
    }

    /// An orderly restart of the machine.
    pub fn reboot(&mut self) {
        self.stop();
        let os = self.kernel.reboot();
        self.start(os);
    }

    /// A power cut, the driver still running.
    pub fn power_cut(&mut self) {
        self.kernel.kill();
        self.server = None;
        let os = self.kernel.power_cut();
        self.start(os);
    }

    /// What the driver answers. An error is checked for what holds for every error.
    pub fn call<C: Call>(&self, request: C) -> Result<C::Reply, Status> {
        let server = self.server();
        server.block_on(request.send(server.client.clone())).map_err(checked)
    }

    /// The answer of a call that must succeed.
    #[track_caller]
    pub fn ok<C: Call>(&self, request: C) -> C::Reply {
        match self.call(request) {
            Ok(reply) => reply,
            Err(status) => panic!("{:?}: {}", status.code(), status.message()),
        }
    }

    /// The message of a call that must fail with this code.
    #[track_caller]
    pub fn fails<C: Call>(&self, code: Code, request: C) -> String {
        match self.call(request) {
            Ok(_) => panic!("OK instead of {code:?}"),
            Err(status) => {
                assert_eq!(status.code(), code, "{}", status.message());
                status.message().to_owned()
            }
        }
    }

    /// Sends calls at once and collects their answers, in the order of the calls.
    pub fn at_once<C: Call>(&self, requests: Vec<C>) -> Vec<Result<C::Reply, Status>> {
        let server = self.server();
        let mut answers: Vec<_> = server.block_on(async {
            let mut running = JoinSet::new();
            for (at, request) in requests.into_iter().enumerate() {
                let answer = request.send(server.client.clone());
                running.spawn(async move { (at, answer.await.map_err(checked)) });
            }
            running.join_all().await
        });
        answers.sort_by_key(|(at, _)| *at);
        answers.into_iter().map(|(_, answer)| answer).collect()
    }
}

/// Every error has a message for people and no details (spec.md, Error Scheme).
fn checked(status: Status) -> Status {
    assert!(!status.message().trim().is_empty(), "{:?} has no message", status.code());
    assert!(status.details().is_empty(), "{:?} has details", status.code());
    status
}

/// A requirement of these nodes.
pub fn topology(node: &str) -> csi::Topology {
    csi::Topology { segments: map(&[(TOPOLOGY, node)]) }
}
