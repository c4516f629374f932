//! A node that is gone for good: what was on it is kept, or forgotten where an administrator has said so.

use tonic::Code;

use crate::harness::{Cluster, Controller, detach, fails, volume};
use crate::requests::{MIB, delete_group, delete_snapshot, group};

/// A volume, a snapshot and a group on a node that is then gone, and another node.
struct Loss {
    cluster: Cluster,
    volume: String,
    snapshot: String,
    group: String,
}

async fn loss() -> Loss {
    let mut cluster = Cluster::start(&["a", "b"]).await;
    let controller = &cluster.controller;
    let volume = controller.create(volume("v", 512 * MIB, &["a"])).await.unwrap().volume_id;
    let snapshot = controller.snapshot("s", &volume).await.unwrap().snapshot_id;
    let made = controller.client.call(group("g", &[&volume])).await.unwrap();
    let group = made.group_snapshot.unwrap().group_snapshot_id;
    cluster.nodes.remove(0).stop().await;
    Loss { cluster, volume, snapshot, group }
}

impl Loss {
    /// What becomes of everything that was on the node.
    async fn delete_all(&self, controller: &Controller) -> [Result<(), tonic::Status>; 4] {
        let client = &controller.client;
        [
            client.call(detach(&self.volume)).await.map(drop),
            client.call(delete_snapshot(&self.snapshot)).await.map(drop),
            client.call(delete_group(&self.group)).await.map(drop),
            controller.delete(&self.volume).await,
        ]
    }
}

#[tokio::test]
async fn a_node_is_not_forgotten_by_default() {
    let loss = loss().await;
    let controller = &loss.cluster.controller;
    // Gone, with the machine or without it.
    for machines in [&["a"][..], &[]] {
        loss.cluster.directory.set(&[("b", Some("b:9443"))], machines);
        for answer in loss.delete_all(controller).await {
            fails(answer, Code::Unavailable, "--forget-node");
        }
    }
    fails(controller.get(&loss.volume).await, Code::NotFound, "no node of the cluster");
}

#[tokio::test]
async fn a_node_is_forgotten_only_once_it_is_gone() {
    let loss = loss().await;
    let controller = Controller::start(&loss.cluster.net, &loss.cluster.directory, &["a"]).await;
    loss.cluster.directory.set(&[("a", None), ("b", Some("b:9443"))], &["a"]);
    for answer in loss.delete_all(&controller).await {
        fails(answer, Code::Unavailable, "node \"a\"");
    }
    fails(controller.list(0, "").await, Code::Unavailable, "node \"a\"");
    loss.cluster.directory.set(&[("b", Some("b:9443"))], &["a"]);
    for answer in loss.delete_all(&controller).await {
        fails(answer, Code::Unavailable, "still part of the cluster");
    }
    loss.cluster.directory.set(&[("b", Some("b:9443"))], &[]);
    for answer in loss.delete_all(&controller).await {
        answer.unwrap();
    }
    assert_eq!(controller.list(0, "").await.unwrap(), (Vec::new(), String::new()));
    fails(controller.get(&loss.volume).await, Code::NotFound, "does not exist");
}

#[tokio::test]
async fn a_node_that_is_there_is_not_forgotten() {
    let cluster = Cluster::start(&["a"]).await;
    let controller = Controller::start(&cluster.net, &cluster.directory, &["a"]).await;
    let id = controller.create(volume("v", 512 * MIB, &[])).await.unwrap().volume_id;
    controller.delete(&id).await.unwrap();
    assert!(cluster.node("a").volumes().await.is_empty(), "the node has deleted it");
}
