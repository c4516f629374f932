//! What a move takes for the silence of a node: that no connection to it can be made, and no answer of it.

use std::convert::Infallible;

use hostloop::cluster::moves::nodes::{NodeError, Nodes, Presence, Result};
use hostloop::cluster::moves::resources::VolumeReplicaSpec;
use hostloop::cluster::permit;
use hostloop::cluster::router::{Router, RouterSettings};
use hostloop::service::{Behind, Gate, Starting};
use http::{Request, Response};
use tokio_stream::StreamExt;
use tokio_stream::wrappers::UnboundedReceiverStream;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::{Code, Status};
use tower::ServiceExt;
use tower::layer::layer_fn;

use crate::harness::{DRIVER, Directory, Net, address, id_on, settings};
use crate::move_calls::replica;
use crate::orders::CERTIFICATES;
use crate::wait::until;

/// The process of node `a` while it prepares its pools. It answers questions about volumes with `answer` if there is one.
fn start(net: &Net, answer: Option<Code>) {
    let incoming = UnboundedReceiverStream::new(net.listen(&address("a"))).map(Ok::<_, Infallible>);
    let layer = layer_fn(move |inner: tonic::service::Routes| {
        tower::service_fn(move |request: Request<Body>| {
            let inner = inner.clone();
            async move {
                let is_question = request.uri().path().ends_with("FindVolume");
                match answer.filter(|_| is_question) {
                    Some(code) => Ok::<Response<Body>, Infallible>(Status::new(code, "broken").into_http()),
                    None => inner.oneshot(request).await,
                }
            }
        })
    });
    let starting = Starting::new(settings("a"));
    starting.begin("checking the filesystem of pool default");
    let routes = Gate::new(starting).routes(Behind::Peers);
    let server = Server::builder().layer(layer).add_routes(routes);
    tokio::spawn(async move { server.serve_with_incoming(incoming).await.expect("it serves") });
}

fn router(net: &Net) -> Router {
    let directory = Directory::new();
    directory.set(&[("a", Some(&address("a")))], &[]);
    let settings =
        RouterSettings { driver_name: DRIVER.to_owned(), attach: true, forget_nodes: Default::default() };
    Router::new(settings, &directory, Box::new(net.clone()), permit::signer(CERTIFICATES.controller.clone()))
}

async fn ask(nodes: &dyn Nodes) -> Result<Presence> {
    nodes.find("a", &id_on("a", "v")).await
}

/// It may check a large pool for hours, and its volume is not lost.
#[tokio::test]
async fn a_node_that_is_not_ready_is_not_silent() {
    let net = Net::default();
    start(&net, None);
    let router = router(&net);
    let of: VolumeReplicaSpec = replica(&id_on("a", "v"), "copy", ("a", "b"), 0);
    for answer in [ask(&router).await.map(drop), router.fence(&of).await, router.unfence(&of).await] {
        let Err(NodeError::Failed(why)) = answer else { panic!("{answer:?}") };
        assert!(why.contains("not ready: checking the filesystem"), "{why}");
    }
    net.close(&address("a"));
    until("it is gone", async || matches!(ask(&router).await, Err(NodeError::Silent(_)))).await;
}

#[tokio::test]
async fn an_error_of_a_node_is_not_its_silence() {
    for code in (1..=16).map(Code::from_i32) {
        let net = Net::default();
        start(&net, Some(code));
        let answer = ask(&router(&net)).await;
        let is_answer = matches!(&answer, Err(error) if !matches!(error, NodeError::Silent(_)));
        assert!(is_answer, "{code:?}: {answer:?}");
    }
}
