//! Two controllers at once: neither knows anything that the other one needs.

use hostloop::wire::csi;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::harness::{Cluster, Controller, Fault, LONG, place, volume};
use crate::requests::MIB;

const SIZE: i64 = 512 * MIB;

#[tokio::test]
async fn either_goes_on_where_the_other_one_stopped() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let other = Controller::start(&cluster.net, &cluster.directory, &[]).await;
    cluster.node("b").fault("CreateVolume", Fault::LoseAnswer);
    cluster.controller.create(volume("v", SIZE, &["b", "a"])).await.unwrap_err();
    cluster.node("b").heal();
    let made = other.create(volume("v", SIZE, &["a", "b"])).await.unwrap();
    assert_eq!(place(&made), "b");
    let cut = cluster.controller.snapshot("s", &made.volume_id).await.unwrap();
    assert_eq!(other.snapshot("s", &made.volume_id).await.unwrap(), cut);
    let (ids, token) = cluster.controller.list(1, "").await.unwrap();
    assert_eq!((ids, token.as_str()), (vec![made.volume_id.clone()], ""));
    other.delete(&made.volume_id).await.unwrap();
    cluster.controller.delete(&made.volume_id).await.unwrap();
}

#[tokio::test]
async fn tokens_of_one_are_good_for_the_other() {
    let cluster = Cluster::start(&["a", "b"]).await;
    let other = Controller::start(&cluster.net, &cluster.directory, &[]).await;
    for name in ["1", "2", "3", "4"] {
        let node = if name < "3" { "a" } else { "b" };
        cluster.controller.create(volume(name, SIZE, &[node])).await.unwrap();
    }
    let (mut all, token) = cluster.controller.list(1, "").await.unwrap();
    let (more, token) = other.list(2, &token).await.unwrap();
    all.extend(more);
    let (rest, token) = cluster.controller.list(0, &token).await.unwrap();
    all.extend(rest);
    assert!(all.len() == 4 && all.is_sorted() && token.is_empty(), "{all:?}");
}

/// The same calls to both at the same time, as after a change of leaders.
#[tokio::test]
async fn the_same_volume_through_both_is_made_once() {
    let cluster = Cluster::start(&["a", "b", "c"]).await;
    let other = Controller::start(&cluster.net, &cluster.directory, &[]).await;
    let mut calls = JoinSet::new();
    for name in 0..8 {
        for controller in [&cluster.controller, &other] {
            let mut client = controller.controller.clone();
            calls.spawn(async move {
                loop {
                    let request = volume(&format!("v-{name}"), SIZE, &["b", "c", "a"]);
                    match client.create_volume(request).await {
                        Err(status) if status.code() == Code::Aborted => tokio::task::yield_now().await,
                        answer => return answer.map(tonic::Response::into_inner),
                    }
                }
            });
        }
    }
    let mut places = Vec::new();
    let all = async {
        while let Some(made) = calls.join_next().await {
            let made: Result<csi::CreateVolumeResponse, Status> = made.unwrap();
            places.push(place(&made.unwrap().volume.unwrap()));
        }
    };
    tokio::time::timeout(LONG, all).await.unwrap();
    assert_eq!(places, ["b"; 16]);
    assert_eq!(cluster.controller.list(0, "").await.unwrap().0.len(), 8);
}
