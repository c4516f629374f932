//! Connections that say nothing, on the port for peers: whoever opens them keeps nobody else out.

use std::net::SocketAddr;
use std::time::Duration;

use hostloop::cluster::identity::PeerRole;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpSocket, TcpStream};
use tonic::Code;

use crate::peer::{LONG, call, channel_from, start};
use crate::pki::{Pki, controller, node};

const CALL: &str = "/csi.v1.Controller/CreateVolume";

/// What a controller gives a node's handshake. A silent connection alone has longer.
const PATIENCE: Duration = Duration::from_secs(8);

/// Connections from one address that say nothing.
async fn silent(from: &str, to: SocketAddr, count: usize) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..count {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::new(from.parse().unwrap(), 0)).unwrap();
        streams.push(socket.connect(to).await.unwrap());
    }
    streams
}

#[tokio::test]
async fn a_controller_comes_in_while_hundreds_say_nothing() {
    let pki = Pki::new();
    let server = start(pki.tls("server", &node(Some("node-1")))).await;
    let client = pki.tls("client", &controller());
    // All of 127.0.0.0/8 is this machine's (ip(7)); the controller is at an address of its own, and then at theirs.
    let held = silent("127.0.0.9", server.address, 300).await;
    for from in ["127.0.0.2", "127.0.0.9"] {
        let stream = silent(from, server.address, 1).await.pop().unwrap();
        let shaken = client.connect(stream, PeerRole::Node, "node-1");
        let shaken = tokio::time::timeout(PATIENCE, shaken).await;
        assert!(matches!(shaken, Ok(Ok(_))), "from {from}: {shaken:?}");
        let status = call(&channel_from(&client, server.address, from), CALL).await;
        assert_eq!(status.code(), Code::Aborted, "from {from}: {status:?}");
    }
    drop(held);
}

/// Also one that has a certificate, and then never speaks HTTP/2.
#[tokio::test]
async fn a_peer_silent_after_its_handshake_is_cut_off() {
    let pki = Pki::new();
    let server = start(pki.tls("server", &node(Some("node-1")))).await;
    let client = pki.tls("client", &controller());
    let stream = TcpStream::connect(server.address).await.unwrap();
    let mut stream = client.connect(stream, PeerRole::Node, "node-1").await.unwrap();
    let mut rest = Vec::new();
    // The server's own preface comes, and then the end.
    let ended = tokio::time::timeout(LONG, stream.read_to_end(&mut rest)).await;
    ended.expect("the node does not wait for ever").ok();
}
