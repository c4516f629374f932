//! Nodes that answer from memory, on connections in memory.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::io;
use std::ops::Bound;
use std::sync::{Arc, Mutex};

use csi::controller_server::{Controller, ControllerServer};
use hostloop::cluster::router::{Connect, Stream};
use hostloop::model::{NodeKey, VolumeId};
use hostloop::wire::csi;
use hostloop::wire::peer::peer_server::{Peer, PeerServer};
use hostloop::wire::peer::{HelloRequest, HelloResponse};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

pub const DRIVER: &str = "hostloop.csi.dev";

type Reply<T> = Result<Response<T>, Status>;

#[derive(Clone)]
struct Node {
    id: String,
    volumes: Arc<Mutex<BTreeMap<String, csi::Volume>>>,
}

/// Every node, and the net between them and a controller.
#[derive(Clone, Default)]
pub struct Nodes {
    nodes: HashMap<String, (Node, UnboundedSender<DuplexStream>)>,
}

impl Nodes {
    /// Nodes with these ids, each with so many volumes, whose names are their numbers.
    pub fn start(ids: &[String], volumes: usize) -> Nodes {
        let mut nodes = Nodes::default();
        for id in ids {
            let node = Node { id: id.clone(), volumes: Arc::default() };
            (0..volumes).for_each(|number| drop(node.make(&number.to_string())));
            let (accept, accepted) = unbounded_channel();
            let incoming = UnboundedReceiverStream::new(accepted).map(Ok::<DuplexStream, Infallible>);
            tokio::spawn(Server::builder().add_routes(routes(&node)).serve_with_incoming(incoming));
            nodes.nodes.insert(id.clone(), (node, accept));
        }
        nodes
    }

    /// The services of one of them.
    pub fn routes(&self, id: &str) -> Routes {
        routes(&self.nodes[id].0)
    }
}

fn routes(node: &Node) -> Routes {
    Routes::new(ControllerServer::new(node.clone())).add_service(PeerServer::new(node.clone()))
}

#[tonic::async_trait]
impl Connect for Nodes {
    async fn connect(&self, address: &str, _node_id: &str) -> io::Result<Box<dyn Stream>> {
        let (near, far) = duplex(1 << 16);
        let (_, accept) = self.nodes.get(address).ok_or(io::ErrorKind::NotFound)?;
        let sent = accept.send(far).is_ok();
        if sent { Ok(Box::new(near)) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
    }
}

impl Node {
    fn make(&self, name: &str) -> csi::Volume {
        let volume_id = VolumeId::of_name(&NodeKey::of(&self.id), name).to_string();
        let volume =
            csi::Volume { volume_id: volume_id.clone(), capacity_bytes: 1 << 30, ..Default::default() };
        self.volumes.lock().expect("volumes").entry(volume_id).or_insert(volume).clone()
    }
}

#[tonic::async_trait]
impl Controller for Node {
    async fn create_volume(
        &self,
        request: Request<csi::CreateVolumeRequest>,
    ) -> Reply<csi::CreateVolumeResponse> {
        let volume = Some(self.make(&request.into_inner().name));
        Ok(Response::new(csi::CreateVolumeResponse { volume }))
    }

    async fn controller_get_volume(
        &self,
        request: Request<csi::ControllerGetVolumeRequest>,
    ) -> Reply<csi::ControllerGetVolumeResponse> {
        let id = request.into_inner().volume_id;
        let volume = self.volumes.lock().expect("volumes").get(&id).cloned();
        let volume = Some(volume.ok_or_else(|| Status::not_found("no such volume"))?);
        Ok(Response::new(csi::ControllerGetVolumeResponse { volume, status: None }))
    }

    async fn list_volumes(
        &self,
        request: Request<csi::ListVolumesRequest>,
    ) -> Reply<csi::ListVolumesResponse> {
        let csi::ListVolumesRequest { max_entries, starting_token } = request.into_inner();
        let limit = if max_entries > 0 { max_entries as usize } else { usize::MAX };
        let after = starting_token.split('.').next().unwrap_or_default().to_owned();
        let volumes = self.volumes.lock().expect("volumes");
        let mut rest = volumes.range((Bound::Excluded(after), Bound::Unbounded));
        let entry = |(_, volume): (&String, &csi::Volume)| csi::list_volumes_response::Entry {
            volume: Some(volume.clone()),
            status: None,
        };
        let entries: Vec<_> = rest.by_ref().take(limit).map(entry).collect();
        let last =
            entries.last().and_then(|entry| entry.volume.as_ref()).map(|volume| volume.volume_id.clone());
        let next_token = rest.next().and(last).unwrap_or_default();
        Ok(Response::new(csi::ListVolumesResponse { entries, next_token }))
    }
}

#[tonic::async_trait]
impl Peer for Node {
    async fn hello(&self, _: Request<HelloRequest>) -> Reply<HelloResponse> {
        let (driver_name, node_id) = (DRIVER.to_owned(), self.id.clone());
        Ok(Response::new(HelloResponse { driver_name, node_id, version: String::new(), ready: true }))
    }
}
