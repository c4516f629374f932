//! Two nodes on the real kernel: one pulls what the other has.
//!
//! Volumes are made, written and read through processes; the pull itself runs between two drivers in this process,
//! whose connections count what is sent.

mod converts;
mod fences;
mod moved_snapshots;
mod streams;
mod updates;

use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use clap::Parser;
use hostloop::app;
use hostloop::cli::{Cli, Command as Subcommand};
use hostloop::cluster::pull::{Connector, Pull, endpoint};
use hostloop::config::Config;
use hostloop::driver::Driver;
use hostloop::kernel::linux::{Tools, os};
use hostloop::model::Permit;
use hostloop::selftest::client::{self, Client};
use hostloop::wire::csi;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Runtime;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::{Channel, Server};

use crate::copies::copy_tree::{assert_equal, everything, metas};
use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::process::binary;
use crate::harness::volume::{clone_request, restore_request};
use crate::harness::{Kind, MIB, Vol, World};
use crate::orders;

pub const ADDRESS: &str = "source.example:9443";

/// A connection that counts what arrives on it.
struct Counted(UnixStream, Arc<AtomicU64>);

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.0).poll_read(cx, buffer);
        self.1.fetch_add((buffer.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// A driver on the data directory of a world whose process has ended.
fn driver(world: &World) -> Driver {
    let arguments = world.arguments();
    let all = ["hostloop"].into_iter().chain(arguments.iter().map(String::as_str));
    let Subcommand::Serve(args) = Cli::try_parse_from(all).expect("flags").command else { unreachable!() };
    let settings =
        Config::new(&args, None).expect("flags").role.settings().cloned().expect("a role with volumes");
    app::driver(settings, os(Tools::find().with_helper(binary()))).expect("the state can be used")
}

/// Serves a driver at a socket.
fn serve(runtime: &Runtime, driver: &Arc<Driver>, socket: &Path) {
    let _entered = runtime.enter();
    let listener = UnixListener::bind(socket).expect("a socket");
    let routes = app::peer_routes(driver, orders::permits());
    runtime.spawn(async move {
        let served = Server::builder().add_routes(routes);
        served.serve_with_incoming(UnixListenerStream::new(listener)).await.expect("it serves");
    });
}

/// Two nodes whose drivers run in this process.
pub struct Nodes {
    pub runtime: Runtime,
    pub source: Arc<Driver>,
    pub target: Arc<Driver>,
    /// Where the target listens.
    socket: PathBuf,
    /// The bytes that it was sent.
    sent: Arc<AtomicU64>,
}

impl Nodes {
    /// A request to make a volume, as a controller sends it.
    pub fn order(&self, request: csi::CreateVolumeRequest) -> tonic::Request<csi::CreateVolumeRequest> {
        let permit = self.permit(&request);
        orders::order(request, (&self.source.settings().node_id, ADDRESS), Some(&permit))
    }

    pub fn permit(&self, request: &csi::CreateVolumeRequest) -> Permit {
        let [from, to] = [&self.source, &self.target].map(|driver| driver.settings().node_id.clone());
        orders::permit(&orders::grant(request, &from, &to))
    }

    /// A connection to the target.
    pub fn channel(&self) -> Channel {
        let endpoint = client::endpoint(&self.socket).expect("an address");
        self.runtime.block_on(endpoint.connect()).expect("it listens")
    }

    pub fn create(&self, order: tonic::Request<csi::CreateVolumeRequest>) -> csi::Volume {
        let made = self.runtime.block_on(Client::on(self.channel()).send(order));
        made.expect("CreateVolume").volume.expect("a volume")
    }
}

/// Lets two nodes whose processes have ended work together in this one.
pub fn together<T>(source: &World, target: &World, work: impl FnOnce(&Nodes) -> T) -> T {
    let runtime = Runtime::new().expect("a runtime");
    let (from, to) = (source.dir.join("peer.sock"), target.dir.join("peer.sock"));
    let sent = Arc::new(AtomicU64::new(0));
    let (way, count) = (from.clone(), Arc::clone(&sent));
    let connector: Connector = Arc::new(move |address: &str, _: &str| {
        assert_eq!(address, ADDRESS);
        let (way, count) = (way.clone(), Arc::clone(&count));
        Box::pin(async move {
            let connect = tower::service_fn(move |_| {
                let (way, count) = (way.clone(), Arc::clone(&count));
                async move { UnixStream::connect(way).await.map(|stream| TokioIo::new(Counted(stream, count))) }
            });
            let channel = endpoint().connect_with_connector(connect).await;
            channel.map_err(|error| error.to_string())
        })
    });
    let sources = Arc::new(Pull::new(connector, runtime.handle().clone()));
    let source = Arc::new(driver(source));
    let target = Arc::new(driver(target).with_remote_sources(sources));
    assert_eq!((source.recover().damaged, target.recover().damaged), (0, 0));
    serve(&runtime, &source, &from);
    serve(&runtime, &target, &to);
    let nodes = Nodes { runtime, source, target, socket: to.clone(), sent };
    let done = work(&nodes);
    drop(nodes);
    for socket in [from, to] {
        std::fs::remove_file(socket).expect("remove the socket");
    }
    done
}

/// Makes a volume at `target` from what `source` has; and the bytes that were sent for it.
fn pull(source: &World, target: &World, request: csi::CreateVolumeRequest) -> (csi::Volume, u64) {
    together(source, target, |nodes| {
        let volume = nodes.create(nodes.order(request));
        assert!(nodes.source.store().snapshots().iter().all(|snapshot| snapshot.pulled_for.is_none()));
        (volume, nodes.sent.load(Ordering::Relaxed))
    })
}

/// Two nodes that have run once.
fn worlds() -> (World, World) {
    worlds_for(Kind::Ext4)
}

/// The same where the default pools are for volumes of this kind.
fn worlds_for(kind: Kind) -> (World, World) {
    let mut target = World::for_kind(kind, &[]);
    target.take_driver().stop();
    (World::for_kind(kind, &[]), target)
}

/// Whether two images have the same bytes.
fn same_bytes(one: &Path, other: &Path) -> bool {
    let compared = Command::new("cmp").arg("--silent").args([one, other]).status().expect("cmp");
    // 2: it could not read one of them.
    assert!(matches!(compared.code(), Some(0 | 1)), "cmp: {compared}");
    compared.success()
}

#[test]
fn a_volume_in_an_image_arrives_byte_for_byte() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block] {
        let (mut source, mut target) = worlds();
        let size = kind.size().max(512 * MIB);
        let vol = Vol::create(&source, kind, "source", size, &[]);
        vol.up();
        let file = vol.file("a");
        write_at(&file, 0, &pattern(1, 24 << 20)).expect("write");
        vol.down();
        let snapshot = source.csi.snapshot("snapshot", vol.id(), &[]).expect("CreateSnapshot");
        let (id, request) =
            (vol.id().to_owned(), restore_request(kind, "restored", size, &snapshot.snapshot_id, &[]));
        let clone = clone_request(kind, "clone", size + 64 * MIB, &id, &[]);
        source.take_driver().stop();
        let (restored, sent) = pull(&source, &target, request);
        let image = source.data.join("snapshots").join(&snapshot.snapshot_id).join("disk.img");
        assert!(same_bytes(&image, &target.image(&restored.volume_id)), "{kind:?}");
        assert!((24 * MIB..48 * MIB).contains(&sent), "{kind:?}: {sent} bytes of {size}");
        let (cloned, _) = pull(&source, &target, clone);
        target.start();
        for volume in [restored, cloned] {
            let copy = Vol::of(&target, kind, volume);
            copy.up();
            assert!(read_at(&copy.file("a"), 0, 24 << 20) == pattern(1, 24 << 20), "{kind:?}");
            write_at(&copy.file("a"), 0, &pattern(2, 4096)).expect("write to the copy");
            copy.remove();
        }
        target.finish();
        source.start();
        source.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
        source.csi.delete(&id).expect("DeleteVolume");
        source.finish();
    }
}

#[test]
fn a_directory_arrives_with_everything_in_it() {
    let (mut source, mut target) = worlds_for(Kind::Directory);
    let vol = Vol::create(&source, Kind::Directory, "source", 512 * MIB, &[]);
    let id = vol.id().to_owned();
    let top = source.volume_directory(&id).join("data");
    everything(&top.join("tree"));
    source.take_driver().stop();
    let before = metas(&top);
    let (volume, sent) = pull(&source, &target, clone_request(Kind::Directory, "clone", 512 * MIB, &id, &[]));
    let copied = target.volume_directory(&volume.volume_id).join("data");
    assert_equal(&before, &top, &copied);
    // Some 24 MiB of data, in files of 220 MiB.
    assert!((23 * MIB..32 * MIB).contains(&sent), "{sent}");
    target.start();
    target.csi.delete(&volume.volume_id).expect("DeleteVolume");
    target.finish();
    source.start();
    source.csi.delete(&id).expect("DeleteVolume");
    let left = source.data.join("snapshots");
    assert_eq!(std::fs::read_dir(left).expect("list").count(), 0);
    source.finish();
}
