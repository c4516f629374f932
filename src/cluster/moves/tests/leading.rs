//! Who leads, and a whole controller with its watches. The clock is the test's.

use std::sync::Arc;
use std::time::Duration;

use hostloop_fake_kubernetes::Kubernetes;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ListParams, WatchParams};
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::api::Server;
use super::nodes::FakeNodes;
use crate::cluster::moves::deadline::limited;
use crate::cluster::moves::lease::Election;
use crate::cluster::moves::objects::{Objects, Run};
use crate::cluster::moves::run::Candidate;
use crate::model::MoveLimits;
use crate::shutdown::Shutdown;

fn server() -> Server {
    Server::new(Kubernetes::default())
}

fn candidate(server: &Server, who: usize) -> Election {
    Election::new(server.client(), "hostloop", "hostloop.csi.dev", format!("candidate-{who}"))
}

fn holder(server: &Server) -> String {
    let lease = server.with(|kubernetes| kubernetes.all("leases").next().cloned()).expect("a Lease");
    assert_eq!(lease["metadata"]["name"], "hostloop.csi.dev-mover");
    lease["spec"]["holderIdentity"].as_str().unwrap().to_owned()
}

#[tokio::test(start_paused = true)]
async fn one_leads_until_it_is_gone_and_then_the_other_one() {
    let server = server();
    let (mut first, mut second) = (candidate(&server, 1), candidate(&server, 2));
    first.win().await;
    assert_eq!(holder(&server), "candidate-1");
    tokio::select! {
        () = second.win() => panic!("there are two leaders"),
        () = first.lose() => panic!("it has lost a Lease that it renews"),
        () = sleep(Duration::from_secs(300)) => {}
    }
    let gone = Instant::now();
    second.win().await;
    let after = gone.elapsed().as_secs();
    assert!((13..=19).contains(&after), "{after} s");
    assert_eq!(holder(&server), "candidate-2");
    first.lose().await;
}

#[tokio::test(start_paused = true)]
async fn a_leader_cut_off_stops_before_another_begins() {
    let server = server();
    let mut first = candidate(&server, 1);
    first.win().await;
    server.stop();
    let cut_off = Instant::now();
    first.lose().await;
    let after = cut_off.elapsed().as_secs();
    assert!((10..15).contains(&after), "{after} s");
}

/// Other candidates count from the write of the Lease, and not from the answer.
#[tokio::test(start_paused = true)]
async fn a_late_answer_does_not_make_a_lease_longer() {
    let server = server();
    let mut first = candidate(&server, 1);
    server.delay(Duration::from_secs(4));
    // One request reads the Lease, and one creates it.
    first.win().await;
    let won = Instant::now();
    server.stop();
    first.lose().await;
    let after = won.elapsed().as_secs();
    assert!(after <= 2, "{after} s after the answer, which was 8 s on its way");
}

/// The Lease has expired by the time of the answer.
#[tokio::test(start_paused = true)]
async fn an_answer_after_the_deadline_makes_no_leader() {
    let server = server();
    let mut first = candidate(&server, 1);
    server.delay(Duration::from_secs(20));
    let won = tokio::time::timeout(Duration::from_secs(200), first.win()).await;
    assert!(won.is_err());
    server.delay(Duration::ZERO);
    first.win().await;
}

/// The server accepts connections. A step that waits for ever would hold its object back when the server is well again.
#[tokio::test(start_paused = true)]
async fn a_call_without_an_answer_ends_before_a_lease() {
    let server = server();
    let objects = Objects::new(limited(server.client()));
    server.stop();
    let asked = Instant::now();
    let answer = tokio::time::timeout(Duration::from_secs(300), objects.node("n1")).await;
    let error = answer.expect("an end").expect_err("there is no answer");
    assert!(format!("{error:?}").contains("not answered within 10 seconds"), "{error:?}");
    assert!(asked.elapsed() < Duration::from_secs(15), "{:?}", asked.elapsed());
    // Kubernetes waits up to 30 seconds for a webhook.
    let asked = Instant::now();
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "pv"}});
    let change = objects.create_volume(&volume, Run::Dry);
    assert!(tokio::time::timeout(Duration::from_secs(300), change).await.expect("an end").is_err());
    assert!((30..=40).contains(&asked.elapsed().as_secs()), "{:?}", asked.elapsed());
    let pods = Api::<Pod>::all(limited(server.client()));
    let list =
        tokio::time::timeout(Duration::from_secs(300), pods.list(&ListParams::default().limit(500))).await;
    assert!(list.expect("an end").is_err());
    let params = WatchParams::default();
    let watch = pods.watch(&params, "0");
    let watch = tokio::time::timeout(Duration::from_secs(300), watch).await;
    assert!(watch.is_err(), "a watch has no deadline");
}

/// A rollout ends the leader, and the next controller leads at once.
#[tokio::test(start_paused = true)]
async fn a_controller_that_ends_gives_its_lease_back() {
    let server = server();
    let (end, shutdown) = Shutdown::new();
    let first = Candidate {
        client: server.client(),
        driver: "hostloop.csi.dev".to_owned(),
        nodes: Arc::new(FakeNodes::default()),
        figures: Arc::default(),
        limits: MoveLimits::default(),
    };
    let asked = async {
        sleep(Duration::from_secs(5)).await;
        assert_eq!(holder(&server), "one");
        end.pull();
    };
    tokio::join!(first.run("hostloop", "one".to_owned(), shutdown), asked);
    assert_eq!(holder(&server), "");
    let mut second = candidate(&server, 2);
    let free = Instant::now();
    second.win().await;
    assert_eq!(free.elapsed(), Duration::ZERO);
}

/// The other controller of a rollout waits all the time.
#[tokio::test(start_paused = true)]
async fn a_waiting_controller_leads_two_seconds_later() {
    let server = server();
    let (mut first, mut second) = (candidate(&server, 1), candidate(&server, 2));
    first.win().await;
    let won = async {
        second.win().await;
        Instant::now()
    };
    let ended = async {
        tokio::select! {
            () = first.lose() => panic!("it has lost a Lease that it renews"),
            () = sleep(Duration::from_millis(33_300)) => {}
        }
        first.release().await;
        Instant::now()
    };
    let (won, ended) = tokio::join!(won, ended);
    assert!(won - ended <= Duration::from_secs(2), "{:?}", won - ended);
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_is_given_back_is_free_at_once() {
    let server = server();
    let (mut first, mut second) = (candidate(&server, 1), candidate(&server, 2));
    first.win().await;
    first.release().await;
    let free = Instant::now();
    second.win().await;
    assert_eq!(free.elapsed(), Duration::ZERO);
    // What is not its own, it does not give back.
    first.release().await;
    assert_eq!(holder(&server), "candidate-2");
}
