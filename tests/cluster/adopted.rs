//! The disk of a node that is another node's now (`hostloop state adopt-node`): ids name the earlier one.

use hostloop::wire::csi;
use tonic::Code;

use crate::harness::Node;
use crate::harness::{Cluster, address, fails, place, volume};
use crate::requests::{MIB, MadeFrom, delete_group, delete_snapshot, group};

/// What was made on node `a`, whose disk node `c` has.
struct Adopted {
    cluster: Cluster,
    volume: String,
    snapshot: String,
    group: String,
}

async fn adopted() -> Adopted {
    let mut cluster = Cluster::start(&["a", "b"]).await;
    let controller = &cluster.controller;
    let volume = controller.create(volume("v", 512 * MIB, &["a"])).await.unwrap().volume_id;
    let snapshot = controller.snapshot("s", &volume).await.unwrap().snapshot_id;
    let made = controller.client.call(group("g", &[&volume])).await.unwrap();
    let group = made.group_snapshot.unwrap().group_snapshot_id;
    let node = cluster.nodes.remove(0).adopted_as("c", &address("c")).await;
    cluster.nodes.push(node);
    cluster.introduce();
    Adopted { cluster, volume, snapshot, group }
}

impl Adopted {
    async fn listed(&self) -> Vec<String> {
        let request = csi::ListSnapshotsRequest { snapshot_id: self.snapshot.clone(), ..Default::default() };
        let listed = self.cluster.controller.client.call(request).await.unwrap().entries.into_iter();
        listed.filter_map(|entry| entry.snapshot).map(|snapshot| snapshot.snapshot_id).collect()
    }

    /// Everything can be listed, restored and deleted.
    async fn check_found(&self) {
        let controller = &self.cluster.controller;
        assert_eq!(place(&controller.get(&self.volume).await.unwrap()), "c");
        assert_eq!(self.listed().await, std::slice::from_ref(&self.snapshot));
        let asked = csi::GetVolumeGroupSnapshotRequest {
            group_snapshot_id: self.group.clone(),
            ..Default::default()
        };
        let found = controller.client.call(asked).await.unwrap().group_snapshot.unwrap();
        assert_eq!(found.snapshots.len(), 1);
        let mut restored =
            MadeFrom::Snapshot(self.snapshot.clone()).source_of(volume("restored", 512 * MIB, &[]));
        restored.capacity_range = None;
        assert_eq!(
            place(&controller.create(restored).await.unwrap()),
            "c",
            "it is made where the snapshot is"
        );
        controller.client.call(delete_snapshot(&self.snapshot)).await.unwrap();
        assert!(self.listed().await.is_empty());
        controller.client.call(delete_group(&self.group)).await.unwrap();
        controller.delete(&self.volume).await.unwrap();
        let left = self.cluster.node("c").volumes().await;
        assert_eq!(left.len(), 1, "only what was restored: {left:?}");
    }
}

#[tokio::test]
async fn a_snapshot_of_an_adopted_disk_is_found() {
    adopted().await.check_found().await;
}

/// The machine of the earlier node has a new disk, and its name again.
#[tokio::test]
async fn a_new_node_of_the_name_hides_no_snapshot() {
    let mut adopted = adopted().await;
    let cluster = &mut adopted.cluster;
    let node = Node::start(&cluster.net, "a", &address("a"), 1 << 40).await;
    cluster.nodes.push(node);
    cluster.introduce();
    adopted.check_found().await;
}

/// It may have the disk.
#[tokio::test]
async fn a_silent_node_keeps_a_snapshot_from_deletion() {
    let mut adopted = adopted().await;
    let cluster = &mut adopted.cluster;
    let node = Node::start(&cluster.net, "a", &address("a"), 1 << 40).await;
    cluster.nodes.push(node);
    cluster.nodes.retain(|node| node.id != "c");
    let (a, b, c) = (address("a"), address("b"), address("c"));
    cluster.directory.set(&[("a", Some(&a)), ("b", Some(&b)), ("c", Some(&c))], &[]);
    let controller = &cluster.controller;
    fails(controller.client.call(delete_snapshot(&adopted.snapshot)).await, Code::Unavailable, "node \"c\"");
    fails(controller.client.call(delete_group(&adopted.group)).await, Code::Unavailable, "node \"c\"");
}

/// Its Node object is there for a while, as with a taint, and it does not answer.
#[tokio::test]
async fn a_silent_first_node_hides_no_snapshot() {
    let adopted = adopted().await;
    let (a, b, c) = (address("a"), address("b"), address("c"));
    adopted.cluster.directory.set(&[("a", Some(&a)), ("b", Some(&b)), ("c", Some(&c))], &[]);
    let controller = &adopted.cluster.controller;
    assert_eq!(adopted.listed().await.len(), 1);
    controller.client.call(delete_group(&adopted.group)).await.unwrap();
    controller.client.call(delete_snapshot(&adopted.snapshot)).await.unwrap();
    assert_eq!(adopted.cluster.node("c").volumes().await, std::slice::from_ref(&adopted.volume));
}
