//! Streams that nobody reads, on the real kernel: they take few threads and little memory, and a node's own calls do not
//! wait for them.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use clap::Parser;
use hostloop::app;
use hostloop::cli::{Cli, Command};
use hostloop::cluster::permit::expiry;
use hostloop::cluster::pull::endpoint;
use hostloop::config::Config;
use hostloop::driver::Driver;
use hostloop::kernel::linux::{Tools, os};
use hostloop::model::{Grant, Limits, NodeKey, VolumeId, VolumeSource};
use hostloop::server::peer_http2;
use hostloop::service::add_node_services;
use hostloop::wire::peer::peer_client::PeerClient;
use hostloop::wire::{peer, pull};
use hyper_util::rt::TokioIo;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::service::Routes;
use tonic::transport::{Channel, Uri};
use tonic::{Code, Streaming};

use crate::harness::kernel::{pattern, write_at};
use crate::harness::{Kind, MIB, Vol, World};
use crate::orders;

/// Nothing here takes so long, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);
/// Threads for calls, as many as `hostloop serve` had when each stream could take one.
const THREADS: usize = 128;
const STREAMS: usize = 130;

/// Resident memory of this process in MiB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: u64 = text.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    pages * 4096 / MIB
}

/// A snapshot of a volume that is gone.
fn snapshot_with_data(world: &World) -> String {
    let vol = Vol::create(world, Kind::Block, "source", 64 * MIB, &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, 48 << 20)).expect("write");
    vol.down();
    let snapshot = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot").snapshot_id;
    vol.delete().expect("DeleteVolume");
    snapshot
}

/// The world's driver in this process.
fn driver_here(world: &World) -> Arc<Driver> {
    let arguments = world.arguments();
    let all = ["hostloop"].into_iter().chain(arguments.iter().map(String::as_str));
    let Command::Serve(args) = Cli::try_parse_from(all).expect("flags").command else { unreachable!() };
    let settings = Config::new(&args, None).expect("flags").role.settings().cloned().expect("volumes");
    let driver = Arc::new(app::driver(settings, os(Tools::find())).expect("the state can be used"));
    assert_eq!(driver.recover().damaged, 0);
    driver
}

type Held = (PeerClient<Channel>, Streaming<peer::PullBlocksResponse>);

/// Begins many streams and reads one message of each; gives those that go on, and how many were refused.
async fn begin_streams(socket: &Path, here: &str, snapshot: &str) -> (Vec<Held>, usize) {
    let connect = || async {
        let socket = socket.to_owned();
        let dial = tower::service_fn(move |_: Uri| {
            let socket = socket.clone();
            async move { UnixStream::connect(socket).await.map(TokioIo::new) }
        });
        let channel = endpoint().connect_with_connector(dial).await.expect("it listens");
        PeerClient::new(channel)
    };
    let source = Some(peer::open_source_request::Source::SnapshotId(snapshot.to_owned()));
    let target = VolumeId::of_name(&NodeKey::of("another"), "target");
    let permit = orders::permit(&Grant {
        source_node: here.to_owned(),
        target_node: "another".to_owned(),
        source: VolumeSource::Snapshot(snapshot.parse().expect("an id")),
        target: target.clone(),
        expires: expiry(),
    });
    let request = peer::OpenSourceRequest {
        source,
        target_volume_id: target.to_string(),
        permit: permit.as_bytes().to_vec(),
        ..Default::default()
    };
    let handle = connect().await.open_source(request).await.expect("OpenSource").into_inner();
    let handle = pull::decode_description(handle).expect("a description").handle;
    let (mut held, mut refused) = (Vec::new(), 0);
    for _ in 0..STREAMS {
        let request = pull::encode_blocks_request(&handle, 0, &permit);
        let mut client = connect().await;
        match client.pull_blocks(request).await {
            Ok(stream) => {
                let mut stream = stream.into_inner();
                let first = stream.message().await.expect("a stream that goes on");
                assert!(first.is_some(), "it has data");
                held.push((client, stream));
            }
            Err(status) => {
                assert_eq!(status.code(), Code::Aborted, "{status}");
                assert!(status.message().contains("--max-streams"), "{status}");
                refused += 1;
            }
        }
    }
    // What can be buffered is.
    tokio::time::sleep(Duration::from_secs(2)).await;
    (held, refused)
}

#[test]
fn unread_pulls_leave_threads_for_the_node() {
    let mut world = World::new(&[]);
    let snapshot = snapshot_with_data(&world);
    world.take_driver().stop();

    // For the calls of kubelet and of other nodes on one socket.
    let driver = driver_here(&world);
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime =
        runtime.worker_threads(2).max_blocking_threads(THREADS).enable_all().build().expect("threads");
    let mut routes = Routes::builder();
    add_node_services(&driver, &mut routes);
    app::add_peer_services(&driver, orders::permits(), &mut routes);
    let routes = routes.routes();
    let (socket, here) = (world.socket.clone(), driver.settings().node_id.clone());
    let before = resident();
    let (held, refused) = runtime.block_on(async {
        let listener = UnixListener::bind(&socket).expect("a socket");
        tokio::spawn(async move {
            let served = peer_http2().add_routes(routes);
            served.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("it serves");
        });
        begin_streams(&socket, &here, &snapshot).await
    });
    println!("{} unread streams, {} MiB of memory more", held.len(), resident().saturating_sub(before));
    assert_eq!(held.len(), Limits::default().streams_each(), "all are one caller's");
    assert_eq!(held.len() + refused, STREAMS);

    let (done, is_done) = channel();
    std::thread::scope(|scope| {
        let world = &world;
        scope.spawn(move || {
            assert_eq!(world.csi.probe().expect("Probe").ready, Some(true));
            let vol = Vol::create(world, Kind::Ext4, "meanwhile", 64 * MIB, &[]);
            vol.up();
            vol.stats("a").expect("NodeGetVolumeStats");
            vol.remove();
            done.send(()).expect("somebody waits");
        });
        let answered = is_done.recv_timeout(LONG);
        // Whoever waits for a thread gets one now.
        drop(held);
        answered.expect("a node's own calls do not wait for streams");
    });
    // They have ended with their readers.
    crate::harness::eventually("the turns are free again", || driver.figures().stream_turns.running == 0);
    drop((runtime, driver));
    std::fs::remove_file(&world.socket).expect("remove the socket");
    world.start();
    world.csi.delete_snapshot(&snapshot).expect("DeleteSnapshot");
    world.assert_nothing_left();
}
