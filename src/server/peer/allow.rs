//! Who may call what. Nobody may call what is not in the table.

use std::convert::Infallible;
use std::future::{Future, ready};
use std::pin::Pin;
use std::task::{Context, Poll};

use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower::{Layer, Service};

use crate::cluster::identity::PeerIdentity;
use crate::cluster::identity::PeerRole::{self, Controller, Node};
use crate::model::NodeKey;
use crate::service::{Callers, peer_callers};

/// What a controller routes as its sidecars ask for it.
const ROUTED: [&str; 3] = ["csi.v1.Controller", "csi.v1.GroupController", "csi.v1.SnapshotMetadata"];
const PEER: &str = "hostloop.v1.Peer";

/// Whether a role may call the method at this path, such as `/csi.v1.Controller/CreateVolume`.
fn is_allowed(role: PeerRole, path: &str) -> bool {
    let Some((service, method)) = path.strip_prefix('/').and_then(|path| path.split_once('/')) else {
        return false;
    };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if method.is_empty() || !method.chars().all(is_name) {
        return false;
    }
    match (service, peer_callers(path)) {
        (PEER, Some(Callers::All)) => true,
        // An RPC of a later version: the service answers UNIMPLEMENTED.
        (PEER, Some(Callers::Nodes) | None) => role == Node,
        (PEER, Some(Callers::Controllers)) => role == Controller,
        _ => role == Controller && ROUTED.contains(&service),
    }
}

/// The answer to a call that is not allowed.
fn refusal(peer: Option<&PeerIdentity>, path: &str) -> Option<Status> {
    match peer {
        Some(peer) if is_allowed(peer.role, path) => None,
        Some(peer) => {
            let text = format!("{peer} may not call {}", path.trim_start_matches('/'));
            Some(Status::permission_denied(text))
        }
        None => Some(Status::unauthenticated("there is no identity")),
    }
}

#[derive(Debug, Clone, Copy)]
pub struct AllowLayer;

impl<S> Layer<S> for AllowLayer {
    type Service = Allow<S>;

    fn layer(&self, inner: S) -> Allow<S> {
        Allow(inner)
    }
}

/// The services, for those who may call them.
#[derive(Debug, Clone)]
pub struct Allow<S>(S);

impl<S> Service<Request<Body>> for Allow<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        // A node that its certificate names pulls for its own volumes only: the service knows it by its key.
        let node_id = request.extensions().get().and_then(|peer: &PeerIdentity| peer.node_id.clone());
        if let Some(node_id) = node_id {
            request.extensions_mut().insert(NodeKey::of(&node_id));
        }
        match refusal(request.extensions().get(), request.uri().path()) {
            Some(status) => Box::pin(ready(Ok(status.into_http()))),
            None => Box::pin(self.0.call(request)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{csi, peer};

    #[test]
    fn the_names_are_those_of_the_protocol() {
        let known = [
            csi::controller_server::SERVICE_NAME,
            csi::group_controller_server::SERVICE_NAME,
            csi::snapshot_metadata_server::SERVICE_NAME,
            peer::peer_server::SERVICE_NAME,
        ];
        assert_eq!(known.split_last(), Some((&PEER, ROUTED.as_slice())));
    }

    #[test]
    fn paths_that_are_not_plain_are_nobodys() {
        assert!(is_allowed(Controller, "/csi.v1.Controller/CreateVolume"));
        for path in [
            "",
            "/",
            "*",
            "csi.v1.Controller/CreateVolume",
            "//csi.v1.Controller/CreateVolume",
            "/csi.v1.Controller",
            "/csi.v1.Controller/",
            "/csi.v1.Controller/*",
            "/csi.v1.Controller/a/b",
            "/csi.v1.Controller/../csi.v1.Node/NodeStageVolume",
            "/csi.v1.Controller/Create%56olume",
            "/csi.v1.controller/CreateVolume",
            "/csi.v1.Controllers/CreateVolume",
            "/csi.v1.Node/NodeStageVolume",
            "/csi.v1.Identity/Probe",
            "/grpc.health.v1.Health/Check",
            "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        ] {
            assert!(!is_allowed(Controller, path) && !is_allowed(Node, path), "{path}");
        }
    }

    #[test]
    fn an_rpc_of_nodes_is_for_its_declared_role() {
        assert!(is_allowed(Controller, "/hostloop.v1.Peer/Hello"));
        assert!(is_allowed(Node, "/hostloop.v1.Peer/Hello"));
        for (method, role, other) in [
            ("SealVolume", Controller, Node),
            ("ReclaimVolume", Controller, Node),
            ("ReserveName", Controller, Node),
            ("OpenSource", Node, Controller),
            ("PullBlocks", Node, Controller),
        ] {
            let path = format!("/hostloop.v1.Peer/{method}");
            assert!(is_allowed(role, &path) && !is_allowed(other, &path), "{path}");
        }
        assert!(is_allowed(Node, "/hostloop.v1.Peer/Other"));
        assert!(!is_allowed(Controller, "/hostloop.v1.Peer/Other"));
        assert!(!is_allowed(Node, "/csi.v1.Controller/CreateVolume"));
    }

    #[test]
    fn nobody_may_call_nothing() {
        let status = refusal(None, "/hostloop.v1.Peer/Hello").unwrap();
        assert_eq!(status.code(), tonic::Code::Unauthenticated);
    }
}
