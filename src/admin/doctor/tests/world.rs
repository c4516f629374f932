//! Nodes that answer what a test says, behind one process, and an API server.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex};

use futures_util::stream;
use hostloop_fake_kubernetes::server::{answer, status};
use hostloop_fake_kubernetes::{Kubernetes, key};
use http::{Request as HttpRequest, Response as HttpResponse};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tonic::{Request, Response, Status};

use crate::admin::api::Cluster;
use crate::cluster::details::Source;
use crate::model::details::ReportPart;
use crate::model::findings::{Finding, FindingsPage, Fix, FixFinding, HeldRecord, LeftBy};
use crate::model::{NodeKey, Timestamp, VolumeId};
use crate::wire::peer::peer_server::{Peer, PeerServer};
use crate::wire::{details, findings, peer};

pub(in crate::admin) const DRIVER: &str = "hostloop.csi.dev";

#[derive(Clone)]
pub(in crate::admin) struct World(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    nodes: BTreeMap<String, FindingsPage>,
    silent: BTreeSet<String>,
    fixes: Vec<FixFinding>,
    refusal: Option<String>,
    kubernetes: Kubernetes,
    page: Option<usize>,
    failing: Option<usize>,
    looks: usize,
    later: Option<(usize, Value)>,
    after_fixes: Option<(usize, Value)>,
    failing_after: Option<usize>,
}

/// A time at which everything is old enough.
fn long_ago() -> Option<Timestamp> {
    Some(Timestamp::from_nanos(1))
}

pub(in crate::admin) fn finding(class: &str, id: &str, fix: Fix) -> Finding {
    Finding {
        class: class.to_owned(),
        id: id.to_owned(),
        path: format!("/data/volumes/{id}"),
        since: long_ago(),
        found: "it is not as it is to be".to_owned(),
        fix,
        seen: format!("seen-{id}"),
        ..Finding::default()
    }
}

/// A PersistentVolume that was made long ago.
pub(in crate::admin) fn volume_object(name: &str, driver: &str, handle: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name, "creationTimestamp": "2001-01-01T00:00:00Z"},
        "spec": {
            "csi": {"driver": driver, "volumeHandle": handle},
            "capacity": {"storage": "1Gi"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [
                {"key": "topology.hostloop.csi.dev/node", "operator": "In", "values": [node]}]}]}},
        },
    })
}

impl World {
    pub(in crate::admin) fn new() -> World {
        let page = |node: &str| FindingsPage {
            node_id: node.to_owned(),
            driver_name: DRIVER.to_owned(),
            now: Timestamp::now(),
            ..FindingsPage::default()
        };
        let nodes = ["node-1", "node-2"].map(|node| (node.to_owned(), page(node)));
        World(Arc::new(Mutex::new(State { nodes: nodes.into(), ..State::default() })))
    }

    /// The CSI id of a volume that was made on a node.
    pub(in crate::admin) fn id(&self, node: &str, name: &str) -> String {
        VolumeId::of_name(&NodeKey::of(node), name).to_string()
    }

    /// A node has recorded a volume.
    pub(in crate::admin) fn holds(&self, node: &str, name: &str, csi_name: &str) {
        let record = HeldRecord {
            id: self.id(node, name),
            kind: "volume".to_owned(),
            name: csi_name.to_owned(),
            phase: "ready".to_owned(),
            since: long_ago(),
            seen: format!("seen-{name}"),
            ..HeldRecord::default()
        };
        self.0.lock().unwrap().nodes.get_mut(node).unwrap().records.push(record);
    }

    pub(in crate::admin) fn says(&self, node: &str, finding: Finding) {
        self.0.lock().unwrap().nodes.get_mut(node).unwrap().findings.push(finding);
    }

    pub(in crate::admin) fn silence(&self, node: &str) {
        self.0.lock().unwrap().silent.insert(node.to_owned());
    }

    pub(in crate::admin) fn refuse(&self, why: &str) {
        self.0.lock().unwrap().refusal = Some(why.to_owned());
    }

    /// What nodes were asked to put right.
    pub(in crate::admin) fn fixes(&self) -> Vec<FixFinding> {
        self.0.lock().unwrap().fixes.clone()
    }

    pub(in crate::admin) fn add(&self, object: Value) {
        add(&mut self.0.lock().unwrap().kubernetes, object);
    }

    /// Adds an object after the nodes were asked so often.
    pub(in crate::admin) fn add_after_looks(&self, looks: usize, object: Value) {
        self.0.lock().unwrap().later = Some((looks, object));
    }

    /// Adds an object after this number of fixes.
    pub(in crate::admin) fn add_after_fixes(&self, fixes: usize, object: Value) {
        self.0.lock().unwrap().after_fixes = Some((fixes, object));
    }

    /// The first page of PersistentVolumes does not come after this number of fixes.
    pub(in crate::admin) fn fail_page_after_fixes(&self, fixes: usize) {
        self.0.lock().unwrap().failing_after = Some(fixes);
    }

    /// A node has what a volume has left that has moved.
    pub(in crate::admin) fn has_left(&self, node: &str, left: &str, volume: &str, to: &str) {
        let record = HeldRecord {
            id: left.to_owned(),
            kind: "left".to_owned(),
            phase: "ready".to_owned(),
            since: long_ago(),
            left_by: Some(LeftBy { id: volume.to_owned(), generation: 0, node_id: to.to_owned() }),
            seen: "seen-left".to_owned(),
            ..HeldRecord::default()
        };
        self.0.lock().unwrap().nodes.get_mut(node).unwrap().records.push(record);
    }

    pub(in crate::admin) fn remove(&self, kind: &str, name: &str) {
        self.0.lock().unwrap().kubernetes.objects.remove(&key(kind, "", name));
    }

    /// The number of objects that the API server returns at a time.
    pub(in crate::admin) fn in_pages_of(&self, page: usize) {
        self.0.lock().unwrap().page = Some(page);
    }

    /// The page of PersistentVolumes with this number never comes.
    pub(in crate::admin) fn fail_page(&self, page: usize) {
        self.0.lock().unwrap().failing = Some(page);
    }

    pub(in crate::admin) fn cluster(&self) -> Cluster {
        let world = self.clone();
        let service = tower::service_fn(move |request: HttpRequest<Body>| {
            let (path, query) = (request.uri().path(), request.uri().query().unwrap_or_default());
            let (code, body) = world.0.lock().unwrap().list(path, query);
            let body = Body::from(body.to_string().into_bytes());
            async move { Ok::<_, Infallible>(HttpResponse::builder().status(code).body(body).unwrap()) }
        });
        Cluster::new(Client::new(service, "default"))
    }

    /// Serves what the nodes say at a Unix socket.
    pub(in crate::admin) fn serve(&self, socket: &std::path::Path) {
        let listener = tokio::net::UnixListener::bind(socket).unwrap();
        let incoming = stream::unfold(listener, |listener| async {
            Some((listener.accept().await.map(|(stream, _)| stream), listener))
        });
        let server = tonic::transport::Server::builder().add_service(PeerServer::new(self.clone()));
        tokio::spawn(async move { server.serve_with_incoming(Box::pin(incoming)).await });
    }

    /// A connection to the process that knows the nodes.
    pub(in crate::admin) async fn source(&self) -> Source {
        let (ours, theirs) = tokio::io::duplex(1 << 16);
        let server = tonic::transport::Server::builder().add_service(PeerServer::new(self.clone()));
        let incoming = stream::iter([Ok::<_, io::Error>(theirs)]);
        tokio::spawn(server.serve_with_incoming(incoming));
        Source::over(ours).await.unwrap()
    }
}

fn add(kubernetes: &mut Kubernetes, object: Value) {
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    let made = object["metadata"]["creationTimestamp"].clone();
    let key = key("persistentvolumes", "", &name);
    kubernetes.create(key.clone(), object);
    kubernetes.objects.get_mut(&key).unwrap()["metadata"]["creationTimestamp"] = made;
}

impl State {
    fn list(&mut self, path: &str, query: &str) -> (u16, Value) {
        // The pages are made here, so that one can fail.
        let is_of_page = |part: &&str| part.starts_with("limit=") || part.starts_with("continue=");
        let whole: Vec<&str> = query.split('&').filter(|part| !is_of_page(part)).collect();
        let (code, mut list) =
            answer(&mut self.kubernetes, &http::Method::GET, path, &whole.join("&"), &Value::Null);
        let Some(page) = self.page.filter(|_| code == 200) else { return (code, list) };
        let given = query.split('&').find_map(|part| part.strip_prefix("continue="));
        let from: usize = given.map_or(0, |from| from.parse().unwrap());
        if path.ends_with("persistentvolumes") && self.failing == Some(from / page) {
            return (410, status(410, "Expired").1);
        }
        let items = list["items"].as_array().unwrap().clone();
        if from + page < items.len() {
            list["metadata"]["continue"] = json!((from + page).to_string());
        }
        list["items"] = items.into_iter().skip(from).take(page).collect();
        (code, list)
    }
}

#[tonic::async_trait]
impl Peer for World {
    async fn list_nodes(
        &self,
        _: Request<peer::ListNodesRequest>,
    ) -> Result<Response<peer::ListNodesResponse>, Status> {
        let mut state = self.0.lock().unwrap();
        state.looks += 1;
        let looks = state.looks;
        if let Some((_, object)) = state.later.take_if(|(after, _)| looks > *after) {
            add(&mut state.kubernetes, object);
        }
        let known = |id: &String| peer::KnownNode { node_id: id.clone(), ..Default::default() };
        let nodes = state.nodes.keys().map(known).collect();
        Ok(Response::new(peer::ListNodesResponse { nodes, version: "9".to_owned() }))
    }

    async fn list_findings(
        &self,
        request: Request<peer::ListFindingsRequest>,
    ) -> Result<Response<peer::ListFindingsResponse>, Status> {
        let (state, node) = (self.0.lock().unwrap(), request.into_inner().node_id);
        if state.silent.contains(&node) {
            return Err(Status::unavailable("it is down"));
        }
        let page = FindingsPage { now: Timestamp::now(), ..state.nodes[&node].clone() };
        Ok(Response::new(findings::encode(page)))
    }

    async fn get_node_report(
        &self,
        request: Request<peer::GetNodeReportRequest>,
    ) -> Result<Response<peer::GetNodeReportResponse>, Status> {
        let (state, node) = (self.0.lock().unwrap(), request.into_inner().node_id);
        if state.silent.contains(&node) {
            return Err(Status::unavailable("it is down"));
        }
        let part = |name: &str, text: Result<&str, &str>| ReportPart {
            name: name.to_owned(),
            about: "a part".to_owned(),
            text: text.map(str::to_owned).map_err(str::to_owned),
        };
        let parts = vec![
            part("mountinfo.txt", Ok(&format!("29 1 7:0 / /data-of-{node} password=hunter2"))),
            part("kernel-messages.txt", Err("Permission denied")),
            part("../../outside", Ok("text")),
        ];
        Ok(Response::new(details::encode_report(parts)))
    }

    async fn fix_finding(
        &self,
        request: Request<peer::FixFindingRequest>,
    ) -> Result<Response<peer::FixFindingResponse>, Status> {
        let mut state = self.0.lock().unwrap();
        if let Some(why) = &state.refusal {
            return Err(Status::failed_precondition(why.clone()));
        }
        state.fixes.push(findings::decode_fix(request.into_inner()));
        let fixes = state.fixes.len();
        if let Some((_, object)) = state.after_fixes.take_if(|(after, _)| fixes >= *after) {
            add(&mut state.kubernetes, object);
        }
        if state.failing_after == Some(fixes) {
            state.failing = Some(0);
        }
        Ok(Response::new(peer::FixFindingResponse { done: "put right".to_owned() }))
    }
}
