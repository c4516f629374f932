//! What the two roles of a cluster keep in memory: a node, and a controller that has listed all of the node's volumes.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use hostloop::selftest::client::Client;
use hostloop::selftest::process::DriverProcess;
use hostloop::wire::csi;

use super::{PROGRAM, start};

pub async fn measure(dir: &Path) {
    for volumes in [0, 1000] {
        let dir = tempfile::Builder::new().prefix("hostloop-bench-").tempdir_in(dir).unwrap();
        let dir = dir.path();
        let path = dir.to_owned();
        tokio::task::spawn_blocking(move || start::prepare(&path, volumes)).await.unwrap();
        let (ca, node_tls, controller_tls) = (dir.join("ca"), dir.join("node"), dir.join("controller"));
        certs(&["init", "--dir", text(&ca)]);
        certs(&["issue", "--ca", text(&ca), "--role", "node", "--out", text(&node_tls)]);
        certs(&["issue", "--ca", text(&ca), "--role", "controller", "--out", text(&controller_tls)]);
        // Free a moment ago; nobody else wants exactly this one.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");

        let flags =
            ["--role", "node", "--tls-dir", text(&node_tls), "--peer-listen", &address].map(str::to_owned);
        let mut node = DriverProcess::start_with(Path::new(PROGRAM), dir, &flags).unwrap();
        node.ready(&Client::new(&DriverProcess::socket(dir)).unwrap()).await.unwrap();
        let socket = dir.join("controller.sock");
        let mut controller = controller(&socket, &controller_tls, &format!("selftest={address}"));
        // What grpc-go takes by default is smaller; a whole list is one message here.
        let client = Client::new(&socket).unwrap().accepting(64 << 20);
        while !client.is_ready().await {
            assert!(controller.try_wait().unwrap().is_none(), "the controller ended at its start");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let (idle_node, idle_controller) = (start::resident(node.id()), start::resident(controller.id()));

        let listed = client.call(csi::ListVolumesRequest::default()).await.unwrap();
        assert_eq!(listed.entries.len(), volumes);
        let mib = |kib: u64| kib as f64 / 1024.0;
        println!(
            "{volumes} volumes: role node {:.1} MiB resident, {:.1} once listed; role controller {:.1} and {:.1}",
            mib(idle_node),
            mib(start::resident(node.id())),
            mib(idle_controller),
            mib(start::resident(controller.id())),
        );
        controller.kill().unwrap();
        controller.wait().unwrap();
        node.stop().await.unwrap();
    }
}

fn controller(socket: &Path, tls: &Path, peer: &str) -> Child {
    Command::new(PROGRAM)
        .args(["serve", "--role", "controller", "--log-level", "warn", "--endpoint", text(socket)])
        .args(["--tls-dir", text(tls), "--peer", peer])
        .stdin(Stdio::null())
        .spawn()
        .unwrap()
}

fn certs(arguments: &[&str]) {
    let made = Command::new(PROGRAM).arg("certs").args(arguments).output().unwrap();
    assert!(made.status.success(), "{made:?}");
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}
