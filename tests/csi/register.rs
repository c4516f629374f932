//! Registration with kubelet, which is played by the test.
#![allow(clippy::disallowed_methods, reason = "sockets are real files")]

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use hostloop::app::{self, Ended, StartError};
use hostloop::cli::{Cli, Command};
use hostloop::config::Config;
use hostloop::selftest::client::Client;
use hostloop::shutdown::{Shutdown, Trigger};
use hostloop::wire::csi::NodeGetInfoRequest;
use hostloop::wire::registration::registration_client::RegistrationClient;
use hostloop::wire::registration::{InfoRequest, RegistrationStatus};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

use crate::harness::{NODE, machine};
use crate::wait::until;

const SOCKET: &str = "hostloop.csi.dev@reg.sock";

/// A driver that registers itself, and the directory that kubelet watches.
struct Node {
    dir: tempfile::TempDir,
    process: JoinHandle<Result<Ended, StartError>>,
    trigger: Trigger,
}

/// The directory with `plugins`, as kubelet makes it.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("plugins")).unwrap();
    dir
}

impl Node {
    fn start(dir: tempfile::TempDir) -> Node {
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let words = ["hostloop", "serve", "--register", "--node-id", NODE, "--endpoint", &path("csi.sock")];
        let cli = Cli::try_parse_from(words.into_iter().chain(["--registration-dir", &path("plugins")]));
        let Command::Serve(args) = cli.unwrap().command else { unreachable!() };
        let config = Config::new(&args, None).unwrap();
        let (trigger, shutdown) = Shutdown::new();
        let process = tokio::spawn(app::run(config, || machine().os(), shutdown));
        Node { dir, process, trigger }
    }

    fn plugin(&self) -> PathBuf {
        self.dir.path().join("plugins").join(SOCKET)
    }

    /// Finds the plugin as kubelet does: by its socket.
    async fn kubelet(&self) -> RegistrationClient<Channel> {
        let mut found = None;
        until("the plugin is there", async || {
            assert!(!self.process.is_finished());
            found = dial(&self.plugin().display().to_string()).await.ok();
            found.is_some()
        })
        .await;
        RegistrationClient::new(found.expect("a connection"))
    }

    /// The line with which the process ends.
    async fn failure(self) -> (String, tempfile::TempDir) {
        let ended = tokio::time::timeout(Duration::from_secs(60), self.process).await.unwrap().unwrap();
        let line = ended.expect("it did serve").failure.expect("a failure").to_string();
        assert!(!line.contains('\n'), "{line}");
        (line, self.dir)
    }
}

async fn dial(socket: &str) -> Result<Channel, tonic::transport::Error> {
    Endpoint::try_from(format!("unix://{socket}")).unwrap().connect().await
}

fn status(plugin_registered: bool, error: &str) -> RegistrationStatus {
    RegistrationStatus { plugin_registered, error: error.to_owned() }
}

#[tokio::test]
async fn kubelet_learns_of_the_driver_and_forgets_it_when_it_stops() {
    let node = Node::start(directory());
    let mut kubelet = node.kubelet().await;
    let found = fs::symlink_metadata(node.plugin()).unwrap();
    assert!(found.file_type().is_socket());
    assert_eq!(found.permissions().mode() & 0o777, 0o600);
    for _ in 0..2 {
        // kubelet asks again after a restart of its own.
        let info = kubelet.get_info(InfoRequest {}).await.unwrap().into_inner();
        assert_eq!((info.r#type.as_str(), info.name.as_str()), ("CSIPlugin", "hostloop.csi.dev"));
        assert_eq!(info.supported_versions, ["1.0.0"]);
        // Whoever is registered is ready: kubelet asks for the node's id at once.
        let driver = Client::on(dial(&info.endpoint).await.unwrap());
        let answer = driver.call(NodeGetInfoRequest {}).await.unwrap();
        assert_eq!(answer.node_id, NODE);
        kubelet.notify_registration_status(status(true, "")).await.unwrap();
    }
    drop(kubelet);
    let plugin = node.plugin();
    node.trigger.pull();
    let ended = node.process.await.unwrap().ok().unwrap();
    assert!(ended.failure.is_none() && ended.stopped.cut == 0);
    assert!(!plugin.exists() && fs::read_dir(plugin.parent().unwrap()).unwrap().count() == 0);
}

#[tokio::test]
async fn a_refusal_is_answered_and_ends_the_process() {
    let node = Node::start(directory());
    let mut kubelet = node.kubelet().await;
    let refusal = "topology value collision\nforged line";
    kubelet.notify_registration_status(status(false, refusal)).await.expect("kubelet gets its answer");
    drop(kubelet);
    let (line, dir) = node.failure().await;
    assert!(line.contains("kubelet did not register the driver") && line.contains("collision"), "{line}");
    assert!(!dir.path().join("plugins").join(SOCKET).exists() && !dir.path().join("csi.sock").exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_anything_else_stays() {
    let dir = directory();
    let plugin = dir.path().join("plugins").join(SOCKET);
    drop(UnixListener::bind(&plugin).unwrap());
    let node = Node::start(dir);
    node.kubelet().await.get_info(InfoRequest {}).await.unwrap();
    node.trigger.pull();
    node.process.await.unwrap().ok().unwrap();
    assert!(!plugin.exists());

    let dir = directory();
    let plugin = dir.path().join("plugins").join(SOCKET);
    fs::write(&plugin, "precious").unwrap();
    let (line, _dir) = Node::start(dir).failure().await;
    assert!(line.contains("a regular file") && line.contains("--registration-dir"), "{line}");
    assert_eq!(fs::read(&plugin).unwrap(), b"precious");
}

#[tokio::test]
async fn a_directory_that_kubelet_does_not_watch_is_not_made() {
    let dir = tempfile::tempdir().unwrap();
    let (line, dir) = Node::start(dir).failure().await;
    assert!(line.contains(SOCKET) && line.contains("--registration-dir"), "{line}");
    assert!(!dir.path().join("plugins").exists());
}

/// kubelet's client (grpc-go) sends the path of the socket as the name of the host, escaped as a part of a path. The
/// library here takes what is a name of a host only.
#[tokio::test]
async fn the_name_of_the_socket_is_one_that_kubelet_can_call() {
    let node = Node::start(directory());
    node.kubelet().await;
    let authority = |path: &str| path.replace('/', "%2F").parse::<http::uri::Authority>();
    let path = node.plugin().display().to_string();
    assert!(authority(&path).is_ok(), "{path}");
    assert!(authority(&path.replace('@', "-")).is_err(), "it need not be so any more");
    node.trigger.pull();
    assert!(node.process.await.unwrap().is_ok());
}
