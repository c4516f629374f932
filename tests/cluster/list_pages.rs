//! Lists over all nodes that are longer than one answer of gRPC.

use std::collections::BTreeSet;
use std::path::Path;

use hostloop::model::{NodeKey, Volume, VolumeId};
use hostloop::store::{Identity, Store};

use crate::harness::{Cluster, DRIVER, address, volume};
use crate::requests::MIB;

/// Most entries of one page.
const MOST: usize = 2000;
/// Volumes of one node.
const EACH: usize = 9000;

/// Puts volumes into the state file of a node, and starts it again.
async fn fill(cluster: &mut Cluster, node_id: &str) {
    let at = cluster.nodes.iter().position(|node| node.id == node_id).unwrap();
    let mut node = cluster.nodes.remove(at);
    node.stop().await;
    let identity = Identity { driver: DRIVER.to_owned(), node_id: node_id.to_owned() };
    let store = Store::open(node.kernel.os().files, Path::new("/var/lib/hostloop"), identity).unwrap();
    let first = store.volumes()[0].as_ref().clone();
    for number in 0..EACH {
        let name = format!("v{number}");
        let id = VolumeId::of_name(&NodeKey::of(node_id), &name);
        store.put(Volume { id, name, ..first.clone() }).unwrap();
    }
    drop(store);
    cluster.nodes.push(node.start_again(&address(node_id)).await);
}

#[tokio::test]
async fn a_client_without_a_limit_reads_all_nodes() {
    let ids = ["a", "b", "c"];
    let mut cluster = Cluster::start(&ids).await;
    for id in ids {
        cluster.controller.create(volume("v0", 64 * MIB, &[id])).await.unwrap();
        fill(&mut cluster, id).await;
    }
    for max_entries in [0, 1 << 20] {
        let (mut all, mut token) = (Vec::new(), String::new());
        loop {
            let (page, next) = cluster.controller.list(max_entries, &token).await.unwrap();
            assert!(page.len() <= MOST && (next.is_empty() || !page.is_empty()), "{}", page.len());
            all.extend(page);
            if next.is_empty() {
                break;
            }
            token = next;
        }
        assert!(all.is_sorted(), "{max_entries}");
        assert_eq!(all.len(), 3 * EACH, "{max_entries}");
        assert_eq!(all.into_iter().collect::<BTreeSet<_>>().len(), 3 * EACH, "{max_entries}");
    }
}
