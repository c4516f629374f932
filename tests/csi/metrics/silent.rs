//! Connections that say nothing, on the ports over HTTP: whoever opens them keeps no probe and no scrape out.

use std::net::SocketAddr;

use hostloop::config::OperationConfig;
use tokio::net::TcpStream;

use crate::harness::{Server, machine, settings};
use crate::metrics::scrape::{address, get, watched};

/// More than a server of a few places lets go within the time of a test.
const SILENT: usize = 200;

async fn silent(address: SocketAddr) -> Vec<TcpStream> {
    let mut streams = Vec::new();
    for _ in 0..SILENT {
        streams.push(TcpStream::connect(address).await.unwrap());
    }
    streams
}

#[test]
fn silent_connections_keep_out_no_probe_or_scrape() {
    let (kernel, settings, address) = (machine(), settings(), address());
    let server = watched(kernel.os(), &settings, address);
    server.block_on(async {
        let held = silent(address).await;
        assert_eq!(get(address, "/healthz").await.status, 200);
        assert_eq!(get(address, "/metrics").await.status, 200);
        drop(held);
    });
    server.stop();
}

/// kubelet's probes have a port of their own, which has nothing else.
#[test]
fn health_has_a_port_of_its_own() {
    let (kernel, settings, address) = (machine(), settings(), address());
    let operation = OperationConfig { health_listen: Some(address), ..OperationConfig::default() };
    let server = Server::try_start_with(kernel.os(), &settings, operation.clone()).unwrap();
    server.block_on(async {
        let held = silent(address).await;
        for path in ["/healthz", "/readyz"] {
            let health = get(address, path).await;
            assert_eq!((health.status, health.body.as_str()), (200, "ok\n"), "{path}");
        }
        let root = get(address, "/").await;
        assert_eq!((root.status, root.body.as_str()), (200, "/healthz\n/readyz\n"));
        assert_eq!(get(address, "/metrics").await.status, 404);
        drop(held);
    });
    let second = Server::try_start_with(machine().os(), &settings, operation).err().unwrap().to_string();
    assert!(second.contains(&address.to_string()) && second.contains("--health-listen"), "{second}");
    server.stop();
}
