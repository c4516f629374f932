//! Lists over all nodes.

use std::collections::BTreeSet;

use hostloop::wire::csi;
use tonic::Code;

use crate::harness::{Cluster, Way, address, by_key, fails, id_on, volume, within};
use crate::requests::{MIB, delete_snapshot};

const SIZE: i64 = 512 * MIB;
const IDS: [&str; 4] = ["a", "b", "c", "d"];

/// Volumes on three of the four nodes: their ids in the order of lists.
async fn volumes(cluster: &Cluster, each: usize) -> Vec<String> {
    let mut ids = Vec::new();
    for node in ["a", "b", "d"] {
        for n in 0..each {
            let request = volume(&format!("{node}-{n}"), SIZE, &[node]);
            ids.push(cluster.controller.create(request).await.unwrap().volume_id);
        }
    }
    ids.sort();
    ids
}

/// Every page: their ids, and how many there were.
async fn pages(cluster: &Cluster, max_entries: i32) -> (Vec<String>, usize) {
    let (mut all, mut token, mut count) = (Vec::new(), String::new(), 0);
    loop {
        let (ids, next) = cluster.controller.list(max_entries, &token).await.unwrap();
        assert!(max_entries == 0 || ids.len() <= max_entries as usize);
        all.extend(ids);
        count += 1;
        if next.is_empty() {
            return (all, count);
        }
        token = next;
    }
}

#[tokio::test]
async fn pages_go_through_all_nodes_in_the_order_of_ids() {
    let cluster = Cluster::start(&IDS).await;
    assert_eq!(pages(&cluster, 0).await, (Vec::new(), 1));
    let ids = volumes(&cluster, 3).await;
    assert_eq!(pages(&cluster, 0).await, (ids.clone(), 1));
    for max_entries in 1..=10 {
        let full = ids.len().div_ceil(max_entries as usize);
        assert_eq!(pages(&cluster, max_entries).await, (ids.clone(), full), "{max_entries}");
    }
}

#[tokio::test]
async fn a_volume_that_stays_is_seen_once() {
    let cluster = Cluster::start(&IDS).await;
    let ids = volumes(&cluster, 4).await;
    let (mut seen, mut token, mut gone) = (Vec::new(), String::new(), BTreeSet::new());
    loop {
        let (page, next) = cluster.controller.list(2, &token).await.unwrap();
        seen.extend(page.clone());
        if next.is_empty() {
            break;
        }
        token = next;
        // The last of the page goes, which the token names, and one that was not seen yet; another one comes.
        let ahead = ids.iter().rev().find(|id| !seen.contains(id) && !gone.contains(*id));
        for id in page.last().into_iter().chain(ahead) {
            cluster.controller.delete(id).await.unwrap();
            gone.insert(id.clone());
        }
        cluster.controller.create(volume(&format!("new-{}", seen.len()), SIZE, &["c"])).await.unwrap();
    }
    let distinct: BTreeSet<_> = seen.iter().cloned().collect();
    assert_eq!(distinct.len(), seen.len(), "none is seen twice");
    assert!(ids.iter().all(|id| gone.contains(id) || distinct.contains(id)), "none that stays is missed");
}

#[tokio::test]
async fn nodes_come_and_go_between_pages() {
    let cluster = Cluster::start(&IDS).await;
    let ids = volumes(&cluster, 2).await;
    let (first, token) = cluster.controller.list(1, "").await.unwrap();
    // The node of the page is gone: the list goes on with those behind it.
    let nodes: Vec<(&str, String)> = IDS
        .iter()
        .filter(|id| id_on(id, "").split('-').nth(1) != first[0].split('-').nth(1))
        .map(|id| (*id, address(id)))
        .collect();
    let nodes: Vec<(&str, Option<&str>)> = nodes.iter().map(|(id, at)| (*id, Some(at.as_str()))).collect();
    cluster.directory.set(&nodes, &[]);
    let (rest, next) = cluster.controller.list(0, &token).await.unwrap();
    assert_eq!((rest, next.as_str()), (ids[2..].to_vec(), ""));
}

#[tokio::test]
async fn a_node_that_is_down_makes_the_list_fail_by_name() {
    let cluster = Cluster::start(&IDS).await;
    let ids = volumes(&cluster, 2).await;
    let last = *by_key(&IDS).last().unwrap();
    cluster.net.cut(&address(last));
    cluster.net.set_way(&address(last), Way::Refused);
    let hint = format!("node {last:?}");
    fails(cluster.controller.list(0, "").await, Code::Unavailable, &hint);
    // Pages that do not need it are there, and say that there is more.
    let (page, token) = cluster.controller.list(2, "").await.unwrap();
    assert_eq!(page, ids[..2]);
    assert!(!token.is_empty());
    let reachable = ids.iter().filter(|id| !cluster_has(last, id)).count();
    let (page, token) = cluster.controller.list(reachable as i32, "").await.unwrap();
    assert!(page.len() == reachable && !token.is_empty(), "whether there is more is not known");
    fails(cluster.controller.list(0, &token).await, Code::Unavailable, &hint);
}

fn cluster_has(node: &str, id: &str) -> bool {
    id_on(node, "").split('-').nth(1) == id.split('-').nth(1)
}

#[tokio::test]
async fn a_made_up_token_is_aborted() {
    let cluster = Cluster::start(&["a"]).await;
    let id = cluster.controller.create(volume("v", SIZE, &["a"])).await.unwrap().volume_id;
    for token in ["0", "x.y", id.as_str(), &format!("{id}.00000000")] {
        fails(cluster.controller.list(0, token).await, Code::Aborted, "starting_token");
        let snapshots = list_snapshots(&cluster, |request| request.starting_token = token.to_owned()).await;
        fails(snapshots, Code::Aborted, "starting_token");
    }
    fails(cluster.controller.list(-1, "").await, Code::InvalidArgument, "max_entries");
}

async fn list_snapshots(
    cluster: &Cluster,
    change: impl FnOnce(&mut csi::ListSnapshotsRequest),
) -> Result<(Vec<String>, String), tonic::Status> {
    let mut request = csi::ListSnapshotsRequest::default();
    change(&mut request);
    let page = within(cluster.controller.client.call(request)).await?;
    let ids = page.entries.into_iter().map(|entry| entry.snapshot.expect("a snapshot").snapshot_id);
    Ok((ids.collect(), page.next_token))
}

#[tokio::test]
async fn snapshots_are_listed_over_all_nodes() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let mut ids = Vec::new();
    let mut sources = Vec::new();
    for node in ["a", "b"] {
        let source = cluster.controller.create(volume(node, SIZE, &[node])).await.unwrap().volume_id;
        for n in 0..2 {
            ids.push(cluster.controller.snapshot(&format!("{node}-{n}"), &source).await.unwrap().snapshot_id);
        }
        sources.push(source);
    }
    ids.sort();
    let (all, token) = list_snapshots(&cluster, |_| {}).await.unwrap();
    assert_eq!((&all, token.as_str()), (&ids, ""));
    let (first, token) = list_snapshots(&cluster, |request| request.max_entries = 3).await.unwrap();
    assert_eq!(first, ids[..3]);
    let (rest, next) = list_snapshots(&cluster, |request| request.starting_token = token).await.unwrap();
    assert_eq!((rest, next.as_str()), (ids[3..].to_vec(), ""));

    let (of_source, _) =
        list_snapshots(&cluster, |request| request.source_volume_id = sources[1].clone()).await.unwrap();
    assert!(of_source.len() == 2 && of_source.iter().all(|id| cluster_has("b", id)), "{of_source:?}");
    let one = of_source[0].clone();
    // A snapshot that is named is on one node, so that the others may be down. Those of a volume may have moved to any node.
    for id in ["a", "c"] {
        cluster.net.cut(&address(id));
        cluster.net.set_way(&address(id), Way::Refused);
    }
    let (found, _) = list_snapshots(&cluster, |request| request.snapshot_id = one.clone()).await.unwrap();
    assert!(found.len() == 1 && found[0] == one, "{found:?}");
    for source in &sources {
        let down = list_snapshots(&cluster, |request| request.source_volume_id = source.clone()).await;
        fails(down, Code::Unavailable, "cannot be reached");
    }
    for nothing in ["no-id", &id_on("x", "v")] {
        let by_id =
            list_snapshots(&cluster, |request| request.snapshot_id = nothing.to_owned()).await.unwrap();
        assert_eq!(by_id, Default::default(), "{nothing}");
    }
    let by_volume = |id: String| list_snapshots(&cluster, |request| request.source_volume_id = id);
    assert_eq!(by_volume("no-id".to_owned()).await.unwrap(), Default::default());
    // It may have moved to a node that is down.
    fails(by_volume(id_on("x", "v")).await, Code::Unavailable, "cannot be reached");
    let client = cluster.controller.client.clone();
    client.call(delete_snapshot(&one)).await.unwrap();
    let found = list_snapshots(&cluster, |request| request.snapshot_id = one.clone()).await.unwrap();
    assert_eq!(found, Default::default());
}
