//! What people ask who look at a cluster: a controller has each node say what it has.

use std::time::Duration;

use hostloop::cluster::details::{AskedNode, NodeAnswer, Source};
use hostloop::cluster::handover::{NotMoved, SnapshotOrder};
use hostloop::cluster::notices::Asks;
use hostloop::cluster::permit;
use hostloop::cluster::router::{Router, RouterSettings};
use hostloop::model::findings::{FixFinding, HeldRecord};
use hostloop::model::{NodeKey, SnapshotId};
use hostloop::selftest::client::Client;
use hostloop::wire::{csi, peer};
use tokio::net::{TcpListener, TcpStream};
use tonic::Code;
use tonic::transport::Endpoint;

use crate::harness::{Cluster, Controller, DRIVER, Fault, fails, volume, within};
use crate::orders::CERTIFICATES;
use crate::requests::MIB;

const IDS: [&str; 3] = ["a", "b", "c"];

/// Every node with its answer, by name.
async fn ask(cluster: &Cluster) -> Vec<AskedNode> {
    let mut asked =
        Source::on(cluster.controller.channel.clone()).ask_all().await.expect("the nodes are known");
    asked.sort_by(|a, b| a.known.node_id.cmp(&b.known.node_id));
    asked
}

/// The names of the volumes of a node, or why it did not answer.
fn names(asked: &AskedNode) -> Result<Vec<&str>, &str> {
    let answer = asked.answer.as_ref().map_err(String::as_str)?;
    assert_eq!(answer.node.node_id, asked.known.node_id);
    Ok(answer.volumes.iter().map(|volume| volume.name.as_str()).collect())
}

#[tokio::test]
async fn each_node_tells_what_it_has() {
    let cluster = Cluster::start(&IDS).await;
    let made = cluster.controller.create(volume("one", 64 * MIB, &["a"])).await.unwrap();
    cluster.controller.create(volume("two", 64 * MIB, &["b"])).await.unwrap();
    let cut = cluster.controller.snapshot("s", &made.volume_id).await.unwrap();
    let asked = ask(&cluster).await;
    let found: Vec<_> = asked.iter().map(names).collect();
    assert_eq!(found, [Ok(vec!["one"]), Ok(vec!["two"]), Ok(vec![])]);
    let [snapshot] = &asked[0].answer.as_ref().unwrap().snapshots[..] else { panic!("one snapshot") };
    assert_eq!((&snapshot.id, &snapshot.volume_id), (&cut.snapshot_id, &made.volume_id));
    assert!(asked.iter().all(|node| node.known.last_answer.is_some() || node.answer.is_ok()));
}

#[tokio::test]
async fn a_node_that_is_down_costs_its_own_answer() {
    let mut cluster = Cluster::start(&IDS).await;
    cluster.controller.create(volume("one", 64 * MIB, &["a"])).await.unwrap();
    assert!(ask(&cluster).await.iter().all(|node| node.answer.is_ok()));
    cluster.nodes[1].stop().await;
    let asked = ask(&cluster).await;
    assert_eq!((names(&asked[0]), names(&asked[2])), (Ok(vec!["one"]), Ok(vec![])));
    let why = names(&asked[1]).expect_err("it is down");
    assert!(why.starts_with("cannot be reached"), "{why}");
    assert!(asked[1].known.last_answer.is_some(), "it did answer once");
}

#[tokio::test]
async fn a_node_that_hangs_costs_its_own_answer() {
    let cluster = Cluster::start(&IDS).await;
    cluster.node("c").fault("ListDetails", Fault::Swallow);
    let asked = ask(&cluster).await;
    assert_eq!((names(&asked[0]), names(&asked[1])), (Ok(vec![]), Ok(vec![])));
    let why = names(&asked[2]).expect_err("it hangs");
    assert!(why.contains("did not answer"), "{why}");
    // It is not held against the node elsewhere.
    cluster.controller.create(volume("three", 64 * MIB, &["c"])).await.unwrap();
}

/// The way of the controller that writes Events.
#[tokio::test]
async fn a_controller_asks_all_nodes_what_they_know() {
    let mut cluster = Cluster::start(&IDS).await;
    cluster.controller.create(volume("one", 64 * MIB, &["a"])).await.unwrap();
    cluster.nodes[1].stop().await;
    cluster.node("c").fault("ListDetails", Fault::Swallow);
    let settings =
        RouterSettings { driver_name: DRIVER.to_owned(), attach: true, forget_nodes: Default::default() };
    let signer = permit::signer(CERTIFICATES.controller.clone());
    let router = Router::new(settings, &cluster.directory, Box::new(cluster.net.clone()), signer);
    let mut answers = tokio::time::timeout(Duration::from_secs(20), router.ask()).await.unwrap().unwrap();
    answers.sort_by(|a, b| a.0.cmp(&b.0));
    let volumes = |answer: &NodeAnswer| -> Vec<String> {
        answer.volumes.iter().map(|volume| volume.name.clone()).collect()
    };
    let [a, b, c] = &answers[..] else { panic!("three nodes: {answers:?}") };
    assert_eq!((a.0.as_str(), a.1.as_ref().map(volumes)), ("a", Ok(vec!["one".to_owned()])));
    let pools = &a.1.as_ref().unwrap().node.pools;
    assert!(pools[0].figures.is_some_and(|figures| figures.size > 0), "{pools:?}");
    assert!(b.1.is_err() && c.1.is_err(), "{b:?} {c:?}");
}

/// The way of a user with a kubeconfig, behind the API server.
#[tokio::test]
async fn a_port_for_people_answers_two_questions() {
    let cluster = Cluster::start(&["a"]).await;
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let _other = Controller::start_with(&cluster.net, &cluster.directory, &[], Some((free, false))).await;
    let connect = async || TcpStream::connect(free).await.unwrap();
    let asked = Source::over(connect().await).await.unwrap().ask_all().await.unwrap();
    assert_eq!(asked.iter().map(names).collect::<Vec<_>>(), [Ok(vec![])]);
    let endpoint = Endpoint::from_shared(format!("http://{free}")).unwrap();
    let client = Client::on(endpoint.connect_lazy());
    fails(within(client.call(csi::ListVolumesRequest::default())).await, Code::Unimplemented, "");
    fails(within(client.call(csi::ProbeRequest {})).await, Code::Unimplemented, "");
    fails(within(client.call(peer::HelloRequest {})).await, Code::Unimplemented, "");
}

fn orphan(record: &HeldRecord) -> FixFinding {
    FixFinding {
        node_id: "b".to_owned(),
        class: "orphan-record".to_owned(),
        id: record.id.clone(),
        path: record.path.clone(),
        seen: record.seen.clone(),
        unnamed: true,
        ..FixFinding::default()
    }
}

#[tokio::test]
async fn a_port_for_people_fixes_only_if_told_to() {
    let cluster = Cluster::start(&["a", "b"]).await;
    cluster.controller.create(volume("one", 64 * MIB, &["b"])).await.unwrap();
    for fixes in [false, true] {
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let _other = Controller::start_with(&cluster.net, &cluster.directory, &[], Some((free, fixes))).await;
        let source = Source::over(TcpStream::connect(free).await.unwrap()).await.unwrap();
        let found = source.findings(None).await.unwrap();
        let of_b = found.iter().find(|node| node.known.node_id == "b").unwrap().answer.as_ref().unwrap();
        let [record] = &of_b.records[..] else { panic!("{of_b:?}") };
        assert_eq!((record.name.as_str(), of_b.findings.len()), ("one", 0));
        let order = SnapshotOrder {
            id: SnapshotId::of_name(&NodeKey::of("b"), "s").to_string(),
            node_id: "b".to_owned(),
            target_node_id: "a".to_owned(),
        };
        let Err(NotMoved::Refused(why)) = source.move_snapshot(&order).await else { panic!("there is none") };
        assert!(why.contains(if fixes { "has snapshot" } else { "inspect.fix" }), "{why}");
        match source.fix(orphan(record)).await {
            Err(why) => assert!(!fixes && why.contains("inspect.fix"), "{why}"),
            Ok(done) => assert!(fixes && done.contains(&record.id), "{done}"),
        }
    }
    assert_eq!(ask(&cluster).await.iter().map(names).collect::<Vec<_>>(), [Ok(vec![]), Ok(vec![])]);
}

#[tokio::test]
async fn findings_of_one_node_are_asked_of_it_alone() {
    let cluster = Cluster::start(&IDS).await;
    cluster.node("c").fault("ListFindings", Fault::Swallow);
    let source = Source::on(cluster.controller.channel.clone());
    let found = source.findings(Some("a")).await.unwrap();
    assert!(found.len() == 1 && found[0].answer.is_ok(), "{found:?}");
    let why = source.findings(Some("z")).await.unwrap_err();
    assert!(why.contains("there is no node \"z\""), "{why}");
}

#[tokio::test]
async fn kernels_of_nodes_are_asked_for_at_once() {
    let mut cluster = Cluster::start(&IDS).await;
    cluster.nodes[1].stop().await;
    cluster.node("c").fault("GetNodeReport", Fault::Swallow);
    let began = std::time::Instant::now();
    let source = Source::on(cluster.controller.channel.clone());
    let mut found = source.reports(usize::MAX).await.unwrap();
    assert!(began.elapsed() < hostloop::cluster::reports::PATIENCE, "{:?}", began.elapsed());
    found.sort_by(|a, b| a.known.node_id.cmp(&b.known.node_id));
    let [a, b, c] = &found[..] else { panic!("three nodes: {found:?}") };
    let parts = a.answer.as_ref().unwrap();
    let mounts = parts.iter().find(|part| part.name == "mountinfo.txt").unwrap();
    assert!(mounts.text.as_ref().unwrap().contains(" / "), "{mounts:?}");
    assert!(!parts.iter().any(|part| part.name == "flags.txt"), "nothing of a process");
    assert!(b.answer.as_ref().is_err_and(|why| why.starts_with("cannot be reached")), "{b:?}");
    assert!(c.answer.as_ref().is_err_and(|why| why.contains("did not answer")), "{c:?}");
}

#[tokio::test]
async fn a_controller_answers_no_other_question_of_peers() {
    let cluster = Cluster::start(&["a"]).await;
    let client = &cluster.controller.client;
    let request =
        peer::ListDetailsRequest { node_id: "z".to_owned(), token: String::new(), pools_only: false };
    fails(within(client.call(request)).await, Code::NotFound, "\"z\"");
    let request = peer::ForgetVolumeRequest { volume_id: "x".to_owned() };
    fails(within(client.call(request)).await, Code::Unimplemented, "");
}
