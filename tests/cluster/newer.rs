//! A node of a newer version than its controller's: what the controller does not know goes through it, both ways.

use hostloop::model::{NodeKey, SnapshotId, VolumeId};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::{Code, Request, Status};

use crate::harness::{Cluster, Fault, fails, volume};
use crate::requests::MIB;

/// A request whose first field this version knows, and another one. Its node echoes it.
#[derive(Clone, PartialEq, prost::Message)]
struct Newer {
    #[prost(string, tag = "1")]
    known: String,
    #[prost(string, tag = "4000")]
    unknown: String,
}

async fn ask(cluster: &Cluster, service: &str, rpc: &str, known: String) -> Result<Newer, Status> {
    let mut grpc = tonic::client::Grpc::new(cluster.controller.channel.clone());
    grpc.ready().await.expect("connected");
    let path: PathAndQuery = format!("/csi.v1.{service}/{rpc}").parse().expect("a path");
    let request = Request::new(Newer { known, unknown: "of tomorrow".to_owned() });
    let codec = tonic_prost::ProstCodec::<Newer, Newer>::default();
    if service != "SnapshotMetadata" {
        return grpc.unary(request, path, codec).await.map(tonic::Response::into_inner);
    }
    let mut stream = grpc.server_streaming(request, path, codec).await?.into_inner();
    stream.message().await.map(|message| message.expect("a message"))
}

#[tokio::test]
async fn unknown_fields_reach_the_node_and_come_back() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let key = NodeKey::of("b");
    let [volume, snapshot] =
        [VolumeId::of_name(&key, "v").to_string(), SnapshotId::of_name(&key, "s").to_string()];
    for (service, rpc, known) in [
        ("Controller", "DeleteVolume", &volume),
        ("Controller", "ControllerPublishVolume", &volume),
        ("Controller", "ControllerGetVolume", &volume),
        ("Controller", "ControllerExpandVolume", &volume),
        ("Controller", "CreateSnapshot", &volume),
        ("Controller", "DeleteSnapshot", &snapshot),
        ("Controller", "GetSnapshot", &snapshot),
        ("SnapshotMetadata", "GetMetadataAllocated", &snapshot),
    ] {
        cluster.node("b").fault(rpc, Fault::Newer);
        let echo = ask(&cluster, service, rpc, known.clone()).await;
        let echo = echo.unwrap_or_else(|status| panic!("{rpc}: {status}"));
        assert_eq!((&echo.known, echo.unknown.as_str()), (known, "of tomorrow"), "{rpc}");
    }
    for node in &cluster.nodes {
        node.fault("CreateVolume", Fault::Newer);
    }
    let echo = ask(&cluster, "Controller", "CreateVolume", "new".to_owned()).await.expect("CreateVolume");
    assert_eq!((echo.known.as_str(), echo.unknown.as_str()), ("new", "of tomorrow"));
}

#[tokio::test]
async fn an_unknown_parameter_is_left_to_the_node() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let mut request = volume("v", 512 * MIB, &["a", "b"]);
    request.parameters.insert("colour".to_owned(), "red".to_owned());
    fails(cluster.controller.create(request.clone()).await, Code::InvalidArgument, "colour");
    let asked = |node: &str| cluster.node(node).calls("CreateVolume").len();
    assert_eq!((asked("a"), asked("b")), (1, 0), "no other one is asked after it has refused");
    // What decides on the node has to be right.
    request.name.clear();
    fails(cluster.controller.create(request.clone()).await, Code::InvalidArgument, "name");
    request.name = "v".to_owned();
    request.parameters.insert("crossNodeCopy".to_owned(), "maybe".to_owned());
    fails(cluster.controller.create(request).await, Code::InvalidArgument, "crossNodeCopy");
    assert_eq!((asked("a"), asked("b")), (1, 0));
    assert!(cluster.holders("v").await.is_empty());
    // The name is free again.
    cluster.controller.create(volume("v", 512 * MIB, &["b"])).await.expect("it is made on the other one");
}

#[tokio::test]
async fn a_request_for_no_node_is_checked_all_the_same() {
    let cluster = Cluster::start(&["a"]).await;
    let mut request = volume("v", 512 * MIB, &["elsewhere"]);
    request.volume_capabilities.clear();
    fails(cluster.controller.create(request).await, Code::InvalidArgument, "volume_capabilities");
}

#[tokio::test]
async fn every_rpc_of_a_controller_is_served() {
    let cluster = Cluster::start(&["a"]).await;
    let methods = hostloop::wire::METHODS.iter().filter(|method| method.starts_with("csi.v1."));
    for method in methods {
        let mut grpc = tonic::client::Grpc::new(cluster.controller.channel.clone());
        grpc.ready().await.expect("connected");
        let path: PathAndQuery = format!("/{method}").parse().expect("a path");
        let codec = tonic_prost::ProstCodec::<(), ()>::default();
        let code =
            grpc.unary(Request::new(()), path, codec).await.map_or_else(|status| status.code(), |_| Code::Ok);
        let is_of_nodes = method.starts_with("csi.v1.Node/");
        assert_eq!(code == Code::Unimplemented, is_of_nodes, "{method}: {code:?}");
    }
}
