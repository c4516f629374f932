//! SnapshotMetadata through a controller: messages, errors and callers that go away.

use hostloop::wire::csi;
use tokio_stream::StreamExt;
use tonic::{Code, Request, Status, Streaming};

use crate::harness::{Cluster, Fault, GIB, Way, address, fails, volume, within};
use crate::requests;
use crate::wait::until;

type Allocated = Streaming<csi::GetMetadataAllocatedResponse>;

/// A snapshot of a volume on a node.
async fn snapshot(cluster: &Cluster, name: &str, node: &str) -> String {
    let volume = cluster.controller.create(volume(name, GIB, &[node])).await.unwrap().volume_id;
    cluster.controller.snapshot(name, &volume).await.unwrap().snapshot_id
}

async fn allocated(cluster: &Cluster, id: &str, offset: i64) -> Result<Allocated, Status> {
    let request = csi::GetMetadataAllocatedRequest { starting_offset: offset, ..requests::allocated(id) };
    within(cluster.controller.client.open(Request::new(request))).await
}

/// Where a stream fails does not matter to its caller.
async fn end(stream: Result<Allocated, Status>) -> Result<usize, Status> {
    let (mut stream, mut count) = (stream?, 0);
    while let Some(message) = within(async { stream.message().await }).await? {
        assert_eq!(message.volume_capacity_bytes, GIB);
        count += 1;
    }
    Ok(count)
}

async fn delta(cluster: &Cluster, base: &str, target: &str) -> Result<(), Status> {
    let request = requests::delta(base, target);
    let mut stream = within(cluster.controller.client.open(Request::new(request))).await?;
    while let Some(message) = stream.next().await {
        message?;
    }
    Ok(())
}

#[tokio::test]
async fn messages_and_errors_come_through() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let id = snapshot(&cluster, "v", "b").await;
    let count = end(allocated(&cluster, &id, 0).await).await.unwrap();
    assert!(count >= 1, "{count}");
    fails(end(allocated(&cluster, &id, -1).await).await, Code::OutOfRange, "");
    fails(end(allocated(&cluster, &id, 2 * GIB).await).await, Code::OutOfRange, "");
    fails(end(allocated(&cluster, "no-id", 0).await).await, Code::NotFound, "no-id");
    cluster.net.cut(&address("b"));
    cluster.net.set_way(&address("b"), Way::Refused);
    fails(end(allocated(&cluster, &id, 0).await).await, Code::Unavailable, "node \"b\"");
}

#[tokio::test]
async fn a_broken_stream_does_not_look_whole() {
    let cluster = Cluster::start(&["a"]).await;
    let id = snapshot(&cluster, "v", "a").await;
    cluster.node("a").fault("GetMetadataAllocated", Fault::LoseAnswer);
    fails(end(allocated(&cluster, &id, 0).await).await, Code::Unavailable, "node \"a\"");
}

#[tokio::test]
async fn differences_are_those_of_one_node() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let source = cluster.controller.create(volume("v", GIB, &["a"])).await.unwrap().volume_id;
    let base = cluster.controller.snapshot("1", &source).await.unwrap().snapshot_id;
    let target = cluster.controller.snapshot("2", &source).await.unwrap().snapshot_id;
    delta(&cluster, &base, &target).await.unwrap();
    let other = snapshot(&cluster, "w", "b").await;
    fails(delta(&cluster, &base, &other).await, Code::InvalidArgument, "different volumes");
    fails(delta(&cluster, "no-id", &other).await, Code::NotFound, "no-id");
    assert!(cluster.node("b").calls("GetMetadataDelta").is_empty());
}

/// A caller that gives up ends the call at the node as well.
#[tokio::test]
async fn a_caller_that_goes_away_takes_the_call_with_it() {
    let cluster = Cluster::start(&["a"]).await;
    let id = snapshot(&cluster, "v", "a").await;
    let node = cluster.node("a");
    node.fault("GetMetadataAllocated", Fault::Swallow);
    let client = cluster.controller.client.clone();
    let request = requests::allocated(&id);
    let call = tokio::spawn(async move { client.open(Request::new(request)).await.map(drop) });
    until("the node is asked", async || {
        assert!(!call.is_finished());
        node.running() > 0
    })
    .await;
    call.abort();
    until("the node's handler is dropped", async || node.running() == 0).await;
}
