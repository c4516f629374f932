//! A driver whose metrics are read, as Prometheus and a probe do it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;

use hostloop::config::OperationConfig;
use hostloop::kernel::Os;
use hostloop::model::Settings;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::harness::Server;

/// An address of the loopback network that no other test has.
pub fn address() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(1);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let [a, b] = NEXT.fetch_add(1, Ordering::Relaxed).to_be_bytes();
    // All of 127.0.0.0/8 is this machine's (ip(7)); the process id keeps two test programs apart.
    SocketAddr::from(([127, 1 + high % 254, low, b], 9000 + u16::from(a)))
}

/// A driver with metrics, also of each volume.
pub fn watched(os: Os, settings: &Settings, address: SocketAddr) -> Server {
    watched_up_to(100, os, settings, address)
}

/// A driver with metrics, and of each volume up to this number of volumes.
pub fn watched_up_to(volume_metrics: usize, os: Os, settings: &Settings, address: SocketAddr) -> Server {
    let metrics_listen = Some(address);
    let operation = OperationConfig { metrics_listen, volume_metrics, ..OperationConfig::default() };
    Server::try_start_with(os, settings, operation).expect("the server starts")
}

/// An answer over HTTP.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    pub body: String,
}

/// Sends a request as it is, and reads to the end of the connection.
pub async fn send(address: SocketAddr, request: &str) -> Reply {
    let exchange = async {
        let mut stream = TcpStream::connect(address).await?;
        // The server may refuse before it has read everything.
        let _ = stream.write_all(request.as_bytes()).await;
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer).await;
        if answer.is_empty() { read.map(|_| answer) } else { Ok(answer) }
    };
    let answer = tokio::time::timeout(Duration::from_secs(60), exchange).await.expect("in time");
    let answer = String::from_utf8(answer.expect("an answer")).expect("text");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    Reply { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// GET with one further header.
pub async fn get_with(address: SocketAddr, path: &str, header: &str) -> Reply {
    send(address, &format!("GET {path} HTTP/1.1\r\nHost: driver\r\n{header}\r\n")).await
}

pub async fn get(address: SocketAddr, path: &str) -> Reply {
    get_with(address, path, "").await
}

/// The values of a scrape by name and labels, as they are written.
pub struct Samples(pub BTreeMap<String, f64>);

impl Samples {
    pub fn of(text: &str) -> Self {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let sample = |line: &str| {
            let (key, value) = line.rsplit_once(' ').expect("a sample");
            (key.to_owned(), value.parse().expect("a number"))
        };
        Samples(lines.map(sample).collect())
    }

    #[track_caller]
    pub fn get(&self, key: &str) -> f64 {
        match self.0.get(key) {
            Some(value) => *value,
            None => panic!("no {key} in {:#?}", self.0),
        }
    }

    /// Calls of a method that ended with a code.
    #[track_caller]
    pub fn calls(&self, method: &str, code: &str) -> f64 {
        self.get(&format!("hostloop_rpc_duration_seconds_count{{method=\"{method}\",code=\"{code}\"}}"))
    }
}

/// What the driver shows now.
pub fn scrape(server: &Server, address: SocketAddr) -> Samples {
    let reply = server.block_on(get(address, "/metrics"));
    assert_eq!(reply.status, 200, "{reply:?}");
    Samples::of(&reply.body)
}
