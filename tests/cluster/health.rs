//! The health of volumes on any node, asked of the controller.
#![allow(deprecated, reason = "CSI 1.12 has conditions")]

use hostloop::wire::csi;
use tonic::{Code, Status};

use crate::harness::{Cluster, address, by_key, fails, volume, within};
use crate::requests::MIB;

const IDS: [&str; 3] = ["a", "b", "c"];

async fn get(cluster: &Cluster, id: &str) -> Result<csi::VolumeHealth, Status> {
    let request = csi::ControllerGetVolumeHealthRequest { volume_id: id.to_owned(), ..Default::default() };
    let health = within(cluster.controller.client.call(request)).await?;
    Ok(health.volume_health.expect("health"))
}

async fn list(
    cluster: &Cluster,
    max_entries: i32,
    token: &str,
) -> Result<csi::ControllerListVolumeHealthResponse, Status> {
    let starting_token = token.to_owned();
    let request =
        csi::ControllerListVolumeHealthRequest { max_entries, starting_token, ..Default::default() };
    within(cluster.controller.client.call(request)).await
}

/// A volume on each node, of which all but that on `a` have lost their images; the ids in the order of lists.
async fn with_losses(cluster: &Cluster) -> (String, Vec<String>) {
    let mut ids = Vec::new();
    for node in by_key(&IDS) {
        let request = volume(&format!("v-{node}"), 64 * MIB, &[node]);
        let id = cluster.controller.create(request).await.unwrap().volume_id;
        if node != "a" {
            cluster
                .node(node)
                .kernel
                .remove_file(format!("/var/lib/hostloop/volumes/{id}/disk.img"))
                .unwrap();
        }
        ids.push((node, id));
    }
    let healthy = ids.iter().find(|(node, _)| *node == "a").unwrap().1.clone();
    (healthy, ids.into_iter().filter(|(node, _)| *node != "a").map(|(_, id)| id).collect())
}

#[tokio::test]
async fn the_health_of_a_volume_is_asked_of_its_node() {
    let cluster = Cluster::start(&IDS).await;
    let (healthy, lost) = with_losses(&cluster).await;
    assert_eq!(get(&cluster, &healthy).await.unwrap().health_statuses, []);
    for id in &lost {
        let health = get(&cluster, id).await.unwrap();
        let reasons: Vec<_> = health.health_statuses.iter().map(|entry| entry.reason.as_str()).collect();
        assert_eq!((health.volume_id.as_str(), &reasons[..]), (id.as_str(), &["ImageMissing"][..]));
    }
    fails(get(&cluster, "no-such").await, Code::NotFound, "no-such");
    fails(get(&cluster, "").await, Code::InvalidArgument, "volume_id");
}

#[tokio::test]
async fn unhealthy_volumes_are_listed_over_all_nodes() {
    let cluster = Cluster::start(&IDS).await;
    let (healthy, lost) = with_losses(&cluster).await;
    let ids = |page: &csi::ControllerListVolumeHealthResponse| -> Vec<String> {
        page.entries.iter().map(|entry| entry.volume_id.clone()).collect()
    };
    let all = list(&cluster, 0, "").await.unwrap();
    assert_eq!((ids(&all), all.next_token.as_str()), (lost.clone(), ""));
    let first = list(&cluster, 1, "").await.unwrap();
    let second = list(&cluster, 1, &first.next_token).await.unwrap();
    assert_eq!([ids(&first), ids(&second)].concat(), lost);
    fails(list(&cluster, 0, "x.y").await, Code::Aborted, "starting_token");

    // What the nodes have found goes with the list of volumes, for the health monitor.
    let request = csi::ListVolumesRequest::default();
    let page = within(cluster.controller.client.call(request)).await.unwrap();
    assert_eq!(page.entries.len(), 3);
    for entry in page.entries {
        let condition = entry.status.unwrap().volume_condition.expect("a condition");
        assert_eq!(condition.abnormal, entry.volume.unwrap().volume_id != healthy, "{condition:?}");
    }
}

#[tokio::test]
async fn a_node_that_is_down_is_named_for_its_health() {
    let cluster = Cluster::start(&IDS).await;
    let (_, lost) = with_losses(&cluster).await;
    let last = *by_key(&["b", "c"]).last().unwrap();
    cluster.net.cut(&address(last));
    cluster.net.set_way(&address(last), crate::harness::Way::Refused);
    let hint = format!("node {last:?}");
    fails(list(&cluster, 0, "").await, Code::Unavailable, &hint);
    fails(get(&cluster, lost.last().unwrap()).await, Code::Unavailable, &hint);
    assert_eq!(get(&cluster, &lost[0]).await.unwrap().health_statuses.len(), 1, "of the others it is known");
}
