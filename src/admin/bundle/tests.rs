//! What is collected on a node and over the API server, and what never is.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex};

use http::{Request, Response};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use super::archive::{Member, contents};
use super::{of_cluster, of_kernels, of_node, write};
use crate::admin::api::Cluster;
use crate::admin::doctor::tests::world::World;
use crate::cli::{BundleArgs, Command, parse};

fn args(flags: &str) -> BundleArgs {
    let line = format!("kubectl-hostloop support-bundle {flags}");
    match parse(line.split_whitespace().map(Into::into)).unwrap().0 {
        Command::SupportBundle(args) => args,
        other => panic!("{other:?}"),
    }
}

fn text<'a>(members: &'a [Member], name: &str) -> &'a str {
    let member = members.iter().find(|member| member.name == name).expect(name);
    member.text.as_ref().expect(name)
}

#[tokio::test]
#[allow(clippy::disallowed_methods, reason = "no volume's files")]
async fn a_node_tells_all_but_its_secrets() {
    let (directory, world) = (tempfile::tempdir().unwrap(), World::new());
    world.holds("node-1", "v1", "pvc-1");
    world.serve(&directory.path().join("csi.sock"));
    let state = "{\"put\":{\"volume\":{\"id\":\"vol-1\",\"apiToken\":\"hunter2\"}}}\nhalf a line";
    std::fs::write(directory.path().join("state.jsonl"), state).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut asked = [0; 1024];
        let _ = stream.read(&mut asked).await.unwrap();
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nhostloop_up 1\n").await.unwrap();
    });
    let path = directory.path().display();
    let args = args(&format!("--endpoint {path}/csi.sock --data-dir {path} --metrics {address}"));
    let members = of_node(&args).await;
    let state = text(&members, "state.jsonl");
    assert!(
        state.contains("vol-1") && state.ends_with("\nhalf a line") && !state.contains("hunter2"),
        "{state}"
    );
    assert_eq!(text(&members, "metrics.txt"), "hostloop_up 1\n");
    assert!(text(&members, "mountinfo.txt").contains(" / "));
    assert!(text(&members, "nodes.json").contains("node-1"));
    let findings: Value = serde_json::from_str(text(&members, "findings.json")).unwrap();
    assert_eq!(findings["findings"], json!([]), "without an API server nothing is an orphan");
    assert!(text(&members, "version.txt").contains("on a node"));
}

#[tokio::test]
async fn a_node_that_does_not_answer_has_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().display();
    let members = of_node(&args(&format!("--endpoint {path}/none.sock --data-dir {path}"))).await;
    let list = contents(&members);
    assert!(list.contains("nodes.json") && list.contains("none.sock"), "{list}");
    assert!(list.contains("state.jsonl  the state file: names, sizes and ids (not read: "), "{list}");
    text(&members, "mountinfo.txt");
}

/// An API server that knows these lists, and what it was asked for.
fn api(lists: &[(&str, Value)]) -> (Cluster, Arc<Mutex<Vec<String>>>) {
    let lists: BTreeMap<String, Value> =
        lists.iter().map(|(path, items)| ((*path).to_owned(), items.clone())).collect();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let service = tower::service_fn(move |request: Request<Body>| {
        let path = request.uri().path().to_owned();
        let (code, body) = match lists.get(&path) {
            Some(Value::String(log)) => (200, log.clone()),
            Some(items) => {
                (200, json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": items}).to_string())
            }
            None => (
                403,
                json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                "message": "you may not", "reason": "Forbidden", "code": 403})
                .to_string(),
            ),
        };
        seen.lock().unwrap().push(path);
        async move {
            Ok::<_, Infallible>(Response::builder().status(code).body(Body::from(body.into_bytes())).unwrap())
        }
    });
    (Cluster::new(Client::new(service, "default")), asked)
}

#[tokio::test]
async fn objects_are_collected_without_their_secrets() {
    let volume = |name: &str, driver: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": name},
            "spec": {"csi": {"driver": driver, "volumeHandle": name, "volumeAttributes": {"password": "hunter2"}}}})
    };
    let pod = json!({"metadata": {"name": "hostloop-node-x", "namespace": "hl"}, "spec": {"containers": [
        {"name": "hostloop", "args": ["serve"], "env": [{"name": "PROXY", "value": "hunter2"}]}, {"name": "registrar"}]}});
    let other =
        json!({"metadata": {"name": "other", "namespace": "hl"}, "spec": {"containers": [{"name": "x"}]}});
    let workload = |name: &str, container: &str| {
        json!({"metadata": {"name": name, "namespace": "hl"},
            "spec": {"template": {"spec": {"containers": [{"name": container}]}}}})
    };
    let event = |of: &str| json!({"metadata": {"name": format!("e-{of}")}, "involvedObject": {"name": of}});
    let log = "/api/v1/namespaces/hl/pods/hostloop-node-x/log";
    let (cluster, asked) = api(&[
        ("/api/v1/persistentvolumes", json!([volume("ours", "hostloop.csi.dev"), volume("theirs", "ebs")])),
        ("/api/v1/namespaces/hl/pods", json!([pod, other])),
        ("/apis/apps/v1/namespaces/hl/daemonsets", json!([workload("hostloop-node", "hostloop")])),
        ("/apis/apps/v1/namespaces/hl/deployments", json!([workload("shop", "web")])),
        (
            "/api/v1/namespaces/hl/events",
            json!([event("hostloop-node-x"), event("hostloop-node"), event("other"), event("shop")]),
        ),
        (log, json!("a line with token=hunter2\n")),
    ]);
    let members = of_cluster(&args("--driver-namespace hl"), &cluster).await;
    let volumes = text(&members, "objects/persistentvolumes.json");
    assert!(volumes.contains("ours") && !volumes.contains("theirs"), "{volumes}");
    assert_eq!(text(&members, "logs/hostloop-node-x/hostloop.log"), "a line with token=***\n");
    assert!(!members.iter().any(|member| member.name.starts_with("logs/other")));
    for member in &members {
        assert!(!member.text.as_ref().is_ok_and(|text| text.contains("hunter2")), "{}", member.name);
    }
    let names = |file: &str| -> Vec<String> {
        let found: Vec<Value> = serde_json::from_str(text(&members, file)).unwrap();
        found.iter().map(|it| it["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("objects/pods.json"), ["hostloop-node-x"]);
    assert_eq!(names("objects/daemonsets.json"), ["hostloop-node"]);
    assert_eq!(names("objects/deployments.json"), Vec::<String>::new());
    assert_eq!(names("objects/events.json"), ["e-hostloop-node-x", "e-hostloop-node"]);
    let list = contents(&members);
    assert!(
        list.contains("objects/csidrivers.json  CSIDriver of the driver (not read: you may not"),
        "{list}"
    );
    let asked = asked.lock().unwrap();
    assert!(!asked.iter().any(|path| path.contains("secrets") || path.contains("configmaps")), "{asked:?}");
}

#[tokio::test]
async fn kernels_of_all_nodes_are_in_the_bundle() {
    let world = World::new();
    let members = of_kernels(Ok(world.source().await)).await;
    for node in ["node-1", "node-2"] {
        let mounts = text(&members, &format!("nodes/{node}/mountinfo.txt"));
        assert_eq!(mounts, format!("29 1 7:0 / /data-of-{node} password=***"));
    }
    let list = contents(&members);
    assert!(
        list.contains(
            "nodes/node-1/kernel-messages.txt  a part of node node-1 (not read: Permission denied)"
        ),
        "{list}"
    );
    assert!(members.iter().any(|member| member.name == "nodes/node-1/_._.._outside"), "{list}");
}

#[tokio::test]
async fn silent_node_is_named_in_the_bundle() {
    let world = World::new();
    world.silence("node-2");
    let list = contents(&of_kernels(Ok(world.source().await)).await);
    assert!(list.contains("nodes/node-1/mountinfo.txt"), "{list}");
    let silent =
        "nodes/node-2  mounts, loop devices and messages of the kernel of node node-2 (not read: it is down)";
    assert!(list.contains(silent), "{list}");
    let list = contents(&of_kernels(Err("there is no controller".to_owned())).await);
    assert!(list.contains("of each node (not read: there is no controller)"), "{list}");
}

#[tokio::test]
async fn kernels_of_nodes_have_a_limit_in_all() {
    let found = World::new().source().await.reports(40).await.unwrap();
    let left_out =
        found.iter().filter(|node| node.answer.as_ref().is_err_and(|why| why.contains("left out")));
    assert_eq!((found.len(), left_out.count()), (2, 1));
}

#[test]
fn an_archive_that_is_there_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let file: &Path = &directory.path().join("a.tar");
    let members = [Member::new("a.txt", "a text", Ok("text".to_owned()))];
    write(file, &members).unwrap();
    let before = file.metadata().unwrap();
    assert_eq!(std::os::unix::fs::PermissionsExt::mode(&before.permissions()) & 0o777, 0o600);
    assert_eq!(write(file, &[]).unwrap_err().kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(file.metadata().unwrap().len(), before.len());
}
