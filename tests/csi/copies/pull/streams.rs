//! What bounds a stream of data and the call before it: the rate, a reader that does not read, and a source that takes long
//! to be opened. Where minutes have to pass, the clock is the test's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use hostloop::app;
use hostloop::cli::{Cli, Command};
use hostloop::cluster::permit::expiry;
use hostloop::cluster::pull::Pull;
use hostloop::config::Config;
use hostloop::driver::{Driver, RemoteSources};
use hostloop::model::pull::{Blocks, Keep, OpenSource, Way};
use hostloop::model::{Consistency, Grant, NodeKey, Permit, Timestamp, VolumeId, VolumeSource};
use hostloop::wire::peer::peer_client::PeerClient;
use hostloop::wire::{peer, pull};
use hostloop_fake_kernel::FakeKernel;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};
use tonic::{Code, Status, Streaming};

use super::nodes::{SOURCE, TARGET};
use super::tamper::Network;
use super::{orders, pattern};
use crate::harness::LetGo;
use crate::life::*;
use crate::support::*;

/// Far more than a healthy machine needs.
const LONG: Duration = Duration::from_secs(60);
const PIECE: usize = 1 << 20;
/// What the window of a stream lets through, and what the connection's own buffers hold.
const IN_FLIGHT: u64 = 4 << 20;

/// A node that is asked for what it has.
struct Source {
    kernel: FakeKernel,
    driver: Arc<Driver>,
    network: Network,
    _sockets: TempDir,
}

impl Source {
    /// The node that `rig` was, with these flags, on the runtime of the caller.
    fn start(rig: Rig, flags: &[&str]) -> Source {
        let kernel = rig.kernel.clone();
        kernel.kill();
        drop(rig);
        let fixed = ["hostloop", "serve", "--node-id", SOURCE, "--data-dir", DATA, "--reserve", "0"];
        let cli = Cli::try_parse_from(fixed.iter().chain(flags)).expect("flags");
        let Command::Serve(args) = cli.command else { unreachable!() };
        let config = Config::new(&args, None).expect("flags");
        let settings = config.role.settings().expect("a node").clone();
        let driver = app::driver(settings, kernel.restart()).expect("the state can be used");
        let driver = Arc::new(driver.with_limits(config.operation.limits));
        assert_eq!(driver.recover().damaged, 0);
        let (network, sockets) = (Network::default(), tempfile::tempdir().expect("a directory"));
        let socket = sockets.path().join("peers.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let routes = app::peer_routes(&driver, orders::permits());
        tokio::spawn(async move {
            let served = Server::builder().add_routes(routes);
            served.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("it serves");
        });
        network.listens(SOURCE, socket);
        Source { kernel, driver, network, _sockets: sockets }
    }

    async fn client(&self) -> PeerClient<Channel> {
        let channel = (self.network.connector())(SOURCE, "").await;
        PeerClient::new(channel.expect("it listens")).max_decoding_message_size(4 * PIECE)
    }

    /// The data of a source, from the beginning.
    async fn read(&self, source: VolumeSource) -> Streaming<peer::PullBlocksResponse> {
        let permit = permit(&source);
        let opened = self.client().await.open_source(pull::encode_open(&open(source), &permit)).await;
        let opened = pull::decode_description(opened.expect("OpenSource").into_inner());
        let request = pull::encode_blocks_request(&opened.expect("a description").handle, 0, &permit);
        self.client().await.pull_blocks(request).await.expect("PullBlocks").into_inner()
    }

    fn streams(&self) -> usize {
        self.driver.figures().stream_turns.running
    }
}

fn target() -> VolumeId {
    VolumeId::of_name(&NodeKey::of(TARGET), "pulled")
}

fn open(source: VolumeSource) -> OpenSource {
    OpenSource {
        by_file: false,
        source,
        target: target(),
        consistency: Consistency::default(),
        began: Timestamp::from_nanos(1),
        keep: Keep::Nothing,
    }
}

fn permit(source: &VolumeSource) -> Permit {
    orders::permit(&Grant {
        source_node: SOURCE.to_owned(),
        target_node: TARGET.to_owned(),
        source: source.clone(),
        target: target(),
        expires: expiry(),
    })
}

/// A raw device with so many pieces of data, and its snapshot.
fn large(rig: &Rig, pieces: usize) -> (Vol, VolumeSource) {
    let (vol, device) = rig.in_use(create("source", block()));
    rig.kernel.write(&device, 0, &pattern(pieces * PIECE, 1)).expect("write");
    rig.rest(&vol);
    let cut = rig.cut("cut", &vol);
    (vol, VolumeSource::Snapshot(cut.snapshot_id.parse().expect("an id")))
}

/// Reads to the end: the bytes of data, and whether the end was told.
async fn rest(mut stream: Streaming<peer::PullBlocksResponse>) -> (usize, Result<bool, Status>) {
    let (mut bytes, mut ended) = (0, false);
    loop {
        match stream.message().await {
            Ok(None) => return (bytes, Ok(ended)),
            Err(status) => return (bytes, Err(status)),
            Ok(Some(message)) => match pull::decode_blocks(message).expect("a message").message {
                Blocks::Data(piece) => bytes += piece.data.len(),
                Blocks::End { .. } => ended = true,
            },
        }
    }
}

/// A runtime whose clock stands still unless the test moves it. What others do takes real time.
fn still() -> tokio::runtime::Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().expect("a runtime")
}

/// Lets everything run in real time until this holds.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < LONG, "{what}");
        a_moment().await;
    }
}

/// Long enough for what can be done to be done.
async fn a_while() {
    for _ in 0..200 {
        a_moment().await;
    }
}

async fn a_moment() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    std::thread::sleep(Duration::from_millis(1));
}

/// `--stream-rate` counts for all streams of data together. They are never faster; how much slower is the machine's.
#[test]
fn streams_are_no_faster_than_their_rate() {
    const RATE: usize = 4 * PIECE;
    let rig = Rig::new();
    let (_, source) = large(&rig, 5);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let node = Source::start(rig, &["--stream-rate", "4Mi"]);
        let started = Instant::now();
        let (one, two) = (node.read(source.clone()).await, node.read(source).await);
        let read = tokio::join!(rest(one), rest(two));
        let took = started.elapsed();
        for (bytes, ended) in [read.0, read.1] {
            assert!(bytes == 5 * PIECE && ended.expect("a whole stream"), "{bytes} bytes");
        }
        // The first piece goes at once.
        let least = Duration::from_secs_f64((2 * 5 - 1) as f64 * PIECE as f64 / RATE as f64);
        assert!(took >= least, "{took:?}, and not at least {least:?}");
    });
}

/// Whoever opens a stream and does not read it has its thread for three minutes. What he then reads does not look whole.
#[test]
fn a_stream_that_nobody_reads_ends() {
    let rig = Rig::new();
    let (_, source) = large(&rig, 40);
    still().block_on(async {
        let node = Source::start(rig, &[]);
        let mut stream = node.read(source).await;
        assert!(stream.message().await.expect("data").is_some());
        // Until what is between the two is full.
        a_while().await;
        let passed = node.network.passed();
        assert!(passed < IN_FLIGHT, "{passed} bytes wait for a reader");
        tokio::time::advance(Duration::from_secs(175)).await;
        a_while().await;
        assert_eq!(node.streams(), 1, "he may still come");
        tokio::time::advance(Duration::from_secs(10)).await;
        eventually("its thread is free", || node.streams() == 0).await;
        let (bytes, end) = rest(stream).await;
        let status = end.expect_err("it is not whole");
        assert!(bytes < 40 * PIECE && status.code() == Code::Unavailable, "{bytes} bytes: {status}");
        assert!(status.message().contains("the stream was not read for 180 s"), "{status}");
    });
}

/// A cut that takes longer than a minute goes on at its node: the caller hears so, and a retry finds it.
#[test]
fn a_source_slow_to_open_is_found_by_the_retry() {
    let rig = Rig::new();
    let (vol, _) = large(&rig, 4);
    let source = VolumeSource::Volume(vol.id.parse().expect("an id"));
    still().block_on(async {
        let node = Source::start(rig, &[]);
        let here = tokio::runtime::Handle::current();
        let pull = Arc::new(Pull::new(node.network.connector(), here));
        let ask = || {
            let way =
                Way { node_key: NodeKey::of(SOURCE), address: SOURCE.to_owned(), permit: permit(&source) };
            let (pull, source) = (Arc::clone(&pull), open(source.clone()));
            tokio::task::spawn_blocking(move || {
                pull.open(&way, &source).map(|opened| opened.close(&opened.description().handle.id))
            })
        };
        node.kernel.hold("copy_range");
        let _let_go = LetGo(node.kernel.clone());
        let first = ask();
        eventually("the cut is being made", || node.kernel.waiting() > 0).await;
        tokio::time::advance(Duration::from_secs(55)).await;
        a_while().await;
        assert!(!first.is_finished(), "it has a minute");
        tokio::time::advance(Duration::from_secs(10)).await;
        eventually("the caller hears of it", || first.is_finished()).await;
        let error = first.await.expect("no panic").expect_err("it takes too long").to_string();
        assert!(error.contains("still making a copy of the source; a retry goes on there"), "{error}");
        assert_eq!(node.kernel.waiting(), 1, "it goes on");

        node.kernel.release();
        let started = Instant::now();
        loop {
            let again = ask();
            eventually("it answers", || again.is_finished()).await;
            match again.await.expect("no panic") {
                Ok(()) => break,
                Err(error) => assert!(started.elapsed() < LONG, "{error}"),
            }
        }
        let steps = node.kernel.steps();
        let copied: Vec<_> = steps.iter().filter(|step| step.name == "copy_range").collect();
        let once: std::collections::BTreeSet<_> = copied.iter().map(|step| &step.subject).collect();
        assert!(!copied.is_empty() && once.len() == copied.len(), "nothing is copied twice: {copied:?}");
    });
}
