//! A source node in wrong hands, with a valid certificate: its answers take at most the time, memory and room in a log that
//! right ones take. If minutes have to pass, the clock is the test's.

use std::sync::Arc;
use std::time::{Duration, Instant};

use hostloop::app;
use hostloop::cluster::pull::Pull;
use hostloop::driver::{Broken, Driver, RemoteSource, RemoteSources};
use hostloop::error::{Error, Result};
use hostloop::model::pull::{Keep, OpenSource, SourceHandle, Way};
use hostloop::model::tree::Position;
use hostloop::model::{
    Consistency, NodeKey, Permit, Settings, SnapshotId, Timestamp, VolumeId, VolumeSource,
};
use hostloop::wire::peer;
use hostloop::wire::peer::peer_server::PeerServer;
use hostloop_test_support::hostile::Hostile;
use tokio::net::UnixListener;
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::Status;
use tonic::transport::Server;

use super::nodes::{SOURCE, TARGET};
use super::scripted::Target;
use super::tamper::Network;
use crate::harness::{machine, settings, with_limits};

/// Far more than a healthy machine needs.
const LONG: Duration = Duration::from_secs(60);

/// A node that serves, and how others get there.
struct Served {
    network: Network,
    _sockets: tempfile::TempDir,
}

/// Serves a node on the runtime of the caller.
fn serve(node: &Hostile) -> Served {
    let (network, sockets) = (Network::default(), tempfile::tempdir().expect("a directory"));
    let socket = sockets.path().join("peers.sock");
    let listener = UnixListener::bind(&socket).expect("a socket");
    let served = Server::builder().add_service(PeerServer::new(node.clone()));
    tokio::spawn(served.serve_with_incoming(UnixListenerStream::new(listener)));
    network.listens(SOURCE, socket);
    Served { network, _sockets: sockets }
}

fn source() -> VolumeId {
    VolumeId::of_name(&NodeKey::of(SOURCE), "v")
}

/// A source that the node with this id has.
fn described(node_id: &str) -> peer::OpenSourceResponse {
    peer::OpenSourceResponse {
        handle: SnapshotId::of_name(&NodeKey::of(node_id), "s").to_string(),
        created_ns: 1,
        content: peer::SourceContent::Block.into(),
        size_bytes: 1 << 20,
        block_size: 512,
        data_bytes: 1 << 20,
        ..Default::default()
    }
}

fn way() -> Way {
    Way { node_key: NodeKey::of(SOURCE), address: SOURCE.to_owned(), permit: Permit::default() }
}

fn open(network: &Network, here: Handle) -> JoinHandle<Result<Arc<dyn RemoteSource>>> {
    let pull = Pull::new(network.connector(), here.clone());
    let request = OpenSource {
        by_file: false,
        source: VolumeSource::Volume(source()),
        target: VolumeId::of_name(&NodeKey::of(TARGET), "pulled"),
        consistency: Consistency::default(),
        began: Timestamp::from_nanos(1),
        keep: Keep::Nothing,
    };
    here.spawn_blocking(move || pull.open(&way(), &request))
}

/// Why this node's source cannot be opened.
fn refused(node: &Hostile) -> String {
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let served = serve(node);
        let opened = tokio::time::timeout(LONG, open(&served.network, Handle::current())).await;
        match opened.expect("an answer in time").expect("no panic") {
            Ok(_) => panic!("it is opened"),
            Err(error) => {
                assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
                error.to_string()
            }
        }
    })
}

#[test]
fn a_long_name_of_a_node_is_shortened() {
    let mut node = Hostile::new("another");
    node.hello.node_id = "n\u{1b}[31m\n".repeat(6000);
    let why = refused(&node);
    assert!(why.len() < 6000 && why.contains("answers there"), "{} bytes", why.len());
    assert!(!why.contains(char::is_control), "{why}");
    // It is not even read.
    node.hello.node_id = "n".repeat(1 << 20);
    let why = refused(&node);
    assert!(why.len() < 1000 && why.contains("too large"), "{} bytes", why.len());
}

#[test]
fn a_long_answer_of_a_node_is_shortened() {
    let mut node = Hostile::new(SOURCE);
    for status in [Status::unavailable, Status::resource_exhausted] {
        node.open = Arc::new(move |_| Err(status("why\n".repeat(2000))));
        let why = refused(&node);
        assert!(why.contains("why why") && why.len() < 5000, "{why}");
        assert!(!why.contains('\n'), "{why}");
    }
    for wrong in [
        peer::OpenSourceResponse { handle: "/\n".repeat(20_000), ..described(SOURCE) },
        peer::OpenSourceResponse {
            content: 2,
            format: 3,
            fs_type: "z\n".repeat(20_000),
            ..described(SOURCE)
        },
    ] {
        node.open = Arc::new(move |_| Ok(wrong.clone()));
        let why = refused(&node);
        assert!(why.contains("does not understand") && why.len() < 6000, "{why}");
        assert!(!why.contains('\n'), "{why}");
    }
}

/// Each of its streams would look for the other node, and be tried again until that is found.
#[test]
fn the_source_of_another_node_is_refused_at_once() {
    let mut node = Hostile::new(SOURCE);
    node.open = Arc::new(|_| Ok(described("node-c")));
    let runtime = Runtime::new().expect("a runtime");
    let served = runtime.block_on(async { serve(&node) });
    let kernel = machine();
    let settings = Settings { node_id: TARGET.to_owned(), ..with_limits(&kernel, settings()) };
    let driver = app::driver(settings, kernel.os()).expect("the state can be used");
    let pull = Pull::new(served.network.connector(), runtime.handle().clone());
    let driver: Driver = driver.with_remote_sources(Arc::new(pull));
    assert_eq!(driver.recover().damaged, 0);
    let request =
        super::greedy::of_volume(&Target::new(vec![super::scripted::Script::Blocks(Vec::new())]), "v");
    let began = Instant::now();
    let error = driver.create_volume(request).expect_err("it is refused");
    assert!(began.elapsed() < Duration::from_secs(20), "it took {:?}", began.elapsed());
    assert!(matches!(error, Error::Unavailable(_)), "{error:?}");
    assert!(error.to_string().contains("of another node; check what runs there"), "{error}");
    assert_eq!((node.calls("OpenSource"), node.calls("PullBlocks")), (1, 0));
    assert!(driver.store().volumes().is_empty());
}

/// A runtime whose clock stands still unless the test moves it. What others do takes real time.
fn still() -> Runtime {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().start_paused(true).build().expect("a runtime")
}

/// Lets everything run in real time until this holds.
async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < LONG, "{what}");
        tokio::task::yield_now().await;
        std::thread::sleep(Duration::from_millis(1));
    }
}

type Read = fn(&dyn RemoteSource) -> Result<(), Broken>;

fn earlier() -> SourceHandle {
    SourceHandle { id: SnapshotId::of_name(&NodeKey::of(SOURCE), "e"), created: Timestamp::from_nanos(1) }
}

const READS: [(&str, Read); 3] = [
    ("PullBlocks", |source| source.blocks(0, &mut |_| Ok(()))),
    ("PullChanges", |source| source.changes(&earlier(), 0, &mut |_| Ok(()))),
    ("PullTree", |source| source.tree(None, Position::default(), &mut |_| Ok(()))),
];

/// Reads of a source whose streams never begin. `then` runs when the node was asked for the stream.
fn of_none(then: impl AsyncFn(&Arc<dyn RemoteSource>), expected: impl Fn(&Broken) -> bool) {
    for (name, read) in READS {
        let mut node = Hostile::new(SOURCE);
        node.open = Arc::new(|_| Ok(described(SOURCE)));
        still().block_on(async {
            let served = serve(&node);
            let opening = open(&served.network, Handle::current());
            eventually("it is opened", || opening.is_finished()).await;
            let opened = opening.await.expect("no panic").map_err(|error| error.to_string());
            let opened = opened.expect("it is opened");
            let reader = Arc::clone(&opened);
            let reading = tokio::task::spawn_blocking(move || read(reader.as_ref()));
            eventually("it is asked", || node.calls(name) == 1).await;
            then(&opened).await;
            eventually("the reader hears of it", || reading.is_finished()).await;
            let broken = reading.await.expect("no panic").expect_err("there is no stream");
            assert!(expected(&broken), "{name}: {broken:?}");
        });
    }
}

#[test]
fn a_stream_that_does_not_begin_ends() {
    let minute = async |_: &Arc<dyn RemoteSource>| tokio::time::advance(Duration::from_secs(61)).await;
    let silent = |broken: &Broken| matches!(broken, Broken::Connection(why) if why.contains("for a minute"));
    of_none(minute, silent);
}

#[test]
fn a_stream_that_does_not_begin_can_be_ended() {
    let end = async |source: &Arc<dyn RemoteSource>| source.end();
    let ended = |broken: &Broken| matches!(broken, Broken::Ended(Error::Unavailable(_)));
    of_none(end, ended);
}
