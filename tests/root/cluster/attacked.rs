//! A node's process that copies from a node in wrong hands, over mutual TLS. The test is that node, and the controller.

use std::future::Future;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::Path;
use std::time::{Duration, Instant};

use hostloop::cluster::identity::PeerRole;
use hostloop::cluster::permit;
use hostloop::cluster::tls::Tls;
use hostloop::model::{Grant, NodeKey, Permit, SnapshotId, VolumeId, VolumeSource};
use hostloop::selftest::client::Client;
use hostloop::service::COPY;
use hostloop::wire::peer::peer_client::PeerClient;
use hostloop::wire::peer::peer_server::PeerServer;
use hostloop::wire::{csi, peer};
use hostloop_test_support::hostile::Hostile;
use hostloop_test_support::pki::{Pki, controller, node};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio_stream::StreamExt as _;
use tonic::Status;
use tonic::transport::{Channel, Endpoint, Server};

use crate::harness::process::{binary, command, node_of};
use crate::harness::volume::create_request;
use crate::harness::{Kind, World, text};
use crate::orders;

/// A node in wrong hands.
struct Source {
    id: String,
    address: String,
}

/// The node that is attacked. Its process is new, so that its memory is that of one attack.
pub struct Attacked {
    pub world: World,
    pub runtime: Runtime,
    id: String,
    pid: u32,
    controller: Tls,
    channel: Channel,
    sources: Vec<Source>,
    _pki: Pki,
}

impl Attacked {
    /// A node with these flags, in a world that is made already, and a source that answers like this.
    pub fn by(source: &Hostile, world: World, flags: &[&str]) -> Attacked {
        Self::by_all(&[source], world, flags)
    }

    /// A node that copies from several sources.
    pub fn by_all(sources: &[&Hostile], mut world: World, flags: &[&str]) -> Attacked {
        let (pki, runtime, id) = (Pki::new(), Runtime::new().expect("a runtime"), node_of(&world.data));
        // It was free a moment ago, and no other program wants exactly this one.
        let address = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port");
        let (tls, listen) = (
            pki.issue("node", &node(Some(&id)), hostloop_test_support::pki::minutes(-5, 600)),
            address.to_string(),
        );
        let role = ["--role", "node", "--tls-dir", text(&tls), "--peer-listen", &listen];
        world.set_flags(&[&role, flags].concat());
        world.start_as(command(binary()).args(world.arguments()));
        let pid = world.driver().pid();
        let controller = pki.tls("controller", &controller());
        let served = |source: &&Hostile| {
            let id = source.hello.node_id.clone();
            let address = runtime.block_on(serve(source, pki.tls(&id, &node(Some(&id))))).to_string();
            Source { id, address }
        };
        let sources = sources.iter().map(served).collect();
        let _entered = runtime.enter();
        let channel = channel(controller.clone(), address, id.clone());
        Attacked { world, runtime, id, pid, controller, channel, sources, _pki: pki }
    }

    /// Returns the node in wrong hands that has the source of this copy: the one that its name ends with, or else the first one.
    fn source(&self, copy: &str) -> &Source {
        let named = self.sources.iter().find(|source| copy.ends_with(&source.id));
        named.unwrap_or_else(|| self.sources.first().expect("a source"))
    }

    /// Returns the volume that the copy with this name is made of.
    fn source_of(&self, copy: &str) -> VolumeId {
        VolumeId::of_name(&NodeKey::of(&self.source(copy).id), copy)
    }

    fn permit(&self, copy: &str) -> Permit {
        let grant = Grant {
            source_node: self.source(copy).id.clone(),
            target_node: self.id.clone(),
            source: VolumeSource::Volume(self.source_of(copy)),
            target: self.id_of(copy),
            expires: permit::expiry(),
        };
        permit::sign(&self.controller, &grant).expect("a permit")
    }

    /// The id of the copy with this name.
    pub fn id_of(&self, copy: &str) -> VolumeId {
        VolumeId::of_name(&NodeKey::of(&self.id), copy)
    }

    /// Orders the first copy of a volume of a node in wrong hands, of this size.
    pub fn create(
        &self,
        copy: &str,
        kind: Kind,
        size: u64,
        class: &[(&str, &str)],
    ) -> Result<csi::Volume, Status> {
        use csi::volume_content_source::{Type, VolumeSource};
        let source = Type::Volume(VolumeSource { volume_id: self.source_of(copy).to_string() });
        let bytes = i64::try_from(size).expect("a size");
        let request = csi::CreateVolumeRequest {
            volume_content_source: Some(csi::VolumeContentSource { r#type: Some(source) }),
            capacity_range: Some(csi::CapacityRange { required_bytes: bytes, limit_bytes: bytes }),
            ..create_request(kind, copy, size, class)
        };
        let Source { id, address } = self.source(copy);
        let mut order = orders::order(request, (id, address), Some(&self.permit(copy)));
        order.metadata_mut().insert(COPY, "1".parse().expect("a header"));
        let made = self.runtime.block_on(Client::on(self.channel.clone()).send(order));
        made.map(|made| made.volume.expect("a volume"))
    }

    /// Sends a request as a controller.
    pub fn call<Q: hostloop::wire::rpc::Unary>(&self, request: Q) -> Result<Q::Reply, Status> {
        self.runtime.block_on(Client::on(self.channel.clone()).call(request))
    }

    /// Orders an update of a copy, which may grow to `most_bytes`.
    pub fn update(
        &self,
        copy: &str,
        most_bytes: u64,
    ) -> impl Future<Output = Result<(), Status>> + Send + use<> {
        let request = peer::UpdateCopyRequest {
            volume_id: self.id_of(copy).to_string(),
            source_node_id: self.source(copy).id.clone(),
            source_address: self.source(copy).address.clone(),
            permit: self.permit(copy).as_bytes().to_vec(),
            whole: true,
            most_bytes,
            ..Default::default()
        };
        let mut client = PeerClient::new(self.channel.clone());
        async move { client.update_copy(request).await.map(drop) }
    }

    /// Updates all of these copies at a time. Returns how each ended.
    pub fn update_all(&self, copies: &[String], most_bytes: u64) -> Vec<Result<(), Status>> {
        let updates: Vec<_> =
            copies.iter().map(|copy| self.runtime.spawn(self.update(copy, most_bytes))).collect();
        updates.into_iter().map(|update| self.runtime.block_on(update).expect("no panic")).collect()
    }

    /// Deletes a copy; what runs for it is ended. Returns how long that took.
    pub fn delete(&self, copy: &str) -> Duration {
        let (id, began) = (self.id_of(copy).to_string(), Instant::now());
        crate::harness::eventually("the copy is deleted", || self.call(crate::client::delete(&id)).is_ok());
        began.elapsed()
    }

    /// The most memory that the process has had, in MiB.
    pub fn memory(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid)).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("Linux has it");
        line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number").div_ceil(1024)
    }

    pub fn finish(self) {
        // The connections are gone before the node ends.
        let Attacked { world, runtime, channel, .. } = self;
        drop(channel);
        runtime.shutdown_background();
        let mut world = world;
        world.take_driver().stop();
        world.assert_nothing_left();
    }
}

/// OpenSource's answer of a node for a source of this size.
pub fn described(node_id: &str, content: peer::SourceContent, size_bytes: u64) -> peer::OpenSourceResponse {
    peer::OpenSourceResponse {
        handle: SnapshotId::of_name(&NodeKey::of(node_id), "s").to_string(),
        created_ns: 1,
        content: content.into(),
        size_bytes,
        block_size: 512,
        ..Default::default()
    }
}

/// The bytes that a file or a directory takes on the disk.
pub fn on_disk(path: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt as _;
    let Ok(metadata) = path.symlink_metadata() else { return 0 };
    let below = metadata.is_dir().then(|| std::fs::read_dir(path).into_iter().flatten().flatten());
    let below: u64 = below.into_iter().flatten().map(|entry| on_disk(&entry.path())).sum();
    metadata.blocks() * 512 + below
}

/// Serves the node in wrong hands. Returns where.
async fn serve(source: &Hostile, tls: Tls) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let (accepted, streams) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (tls, accepted) = (tls.clone(), accepted.clone());
            tokio::spawn(async move {
                if let Ok(stream) = tls.accept(stream).await {
                    let _ = accepted.send(stream);
                }
            });
        }
    });
    let streams = tokio_stream::wrappers::UnboundedReceiverStream::new(streams).map(Ok::<_, io::Error>);
    tokio::spawn(Server::builder().add_service(PeerServer::new(source.clone())).serve_with_incoming(streams));
    address
}

/// A connection to a node, made with the first call.
fn channel(tls: Tls, address: SocketAddr, node_id: String) -> Channel {
    let connect = tower::service_fn(move |_| {
        let (tls, node_id) = (tls.clone(), node_id.clone());
        async move {
            let stream = TcpStream::connect(address).await?;
            let stream =
                tls.connect(stream, PeerRole::Node, node_id.as_str()).await.map_err(io::Error::other)?;
            Ok::<_, io::Error>(TokioIo::new(stream))
        }
    });
    Endpoint::from_static("http://node").connect_with_connector_lazy(connect)
}
