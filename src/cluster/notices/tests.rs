//! The Events of claims, on Kubernetes in memory. The clock is the test's.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hostloop_fake_kubernetes::{Kubernetes, NAMESPACE, key};
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::{Asks, Teller};
use crate::cluster::details::NodeAnswer;
use crate::cluster::moves::tests::api::Server;
use crate::model::Claim;
use crate::model::details::{DetailedTrouble, PoolBytes, PoolDetails, VolumeDetails};
use crate::shutdown::{Shutdown, Trigger};

type Answers = Vec<(String, Result<NodeAnswer, String>)>;

/// Nodes that answer what a test says.
#[derive(Clone, Default)]
struct Nodes(Arc<Mutex<Answers>>);

#[tonic::async_trait]
impl Asks for Nodes {
    async fn ask(&self) -> Result<Answers, String> {
        Ok(self.0.lock().unwrap().clone())
    }
}

fn word(text: &str) -> String {
    text.to_owned()
}

fn trouble(severity: &str, reason: &str) -> DetailedTrouble {
    DetailedTrouble { severity: word(severity), reason: word(reason), message: word("see the log") }
}

/// The volume of a claim, with what is wrong.
fn volume(claim: &str, troubles: &[DetailedTrouble]) -> VolumeDetails {
    let claim =
        Claim { namespace: word(NAMESPACE), name: word(claim), persistent_volume: format!("pvc-{claim}") };
    VolumeDetails {
        id: format!("vol-{}", claim.name),
        pool: word("default"),
        provisioning: word("thin"),
        phase: word("ready"),
        kind: word("volume"),
        troubles: Some(troubles.to_vec()),
        claim: Some(claim),
        ..VolumeDetails::default()
    }
}

/// A cluster with a node, and controllers that tell of it.
struct World {
    server: Server,
    nodes: Nodes,
    controllers: Vec<(Trigger, JoinHandle<()>)>,
}

impl World {
    fn new(claims: &[&str]) -> World {
        let mut kubernetes = Kubernetes::default();
        kubernetes.create(key("namespaces", "", NAMESPACE), json!({"metadata": {"name": NAMESPACE}}));
        for claim in claims {
            let bound = json!({"metadata": {"name": claim, "namespace": NAMESPACE},
                "spec": {"volumeName": format!("pvc-{claim}")}, "status": {"phase": "Bound"}});
            kubernetes.create(key("persistentvolumeclaims", NAMESPACE, claim), bound);
        }
        World { server: Server::new(kubernetes), nodes: Nodes::default(), controllers: Vec::new() }
    }

    fn start(mut self, controllers: usize) -> World {
        for number in 0..controllers {
            let (trigger, shutdown) = Shutdown::new();
            let nodes = Arc::new(self.nodes.clone());
            let teller = Teller { client: self.server.client(), driver: word("hostloop.csi.dev"), nodes };
            let run = async move { teller.run("hostloop", format!("controller-{number}"), shutdown).await };
            self.controllers.push((trigger, tokio::spawn(run)));
        }
        self
    }

    fn answer(&self, volumes: Vec<VolumeDetails>) {
        self.answer_with(NodeAnswer { volumes, ..NodeAnswer::default() });
    }

    fn answer_with(&self, answer: NodeAnswer) {
        *self.nodes.0.lock().unwrap() = vec![(word("n1"), Ok(answer))];
    }

    /// Waits for this number of looks.
    async fn looks(&self, count: u32) {
        sleep(Duration::from_secs(60) * count).await;
    }

    /// Reasons of the Events that were created, with their notes.
    fn events(&self) -> Vec<String> {
        self.server.with(|kubernetes| kubernetes.events.clone())
    }

    fn reasons(&self) -> Vec<String> {
        self.events().iter().map(|event| event.split(' ').next().unwrap().to_owned()).collect()
    }

    /// How often an Event was created, or its count raised.
    fn writes(&self) -> usize {
        let is_write = |call: &&String| call.contains("/events") && !call.starts_with("GET");
        self.server.calls().iter().filter(is_write).count()
    }
}

#[tokio::test(start_paused = true)]
async fn an_unhealthy_volume_is_told_once_and_when_well() {
    let world = World::new(&["db"]).start(1);
    world.answer(vec![volume("db", &[trouble("degraded", "SizeNotEnforced")])]);
    world.looks(3).await;
    let events = world.events();
    let [event] = &events[..] else { panic!("one Event, not one for each look: {events:?}") };
    assert_eq!(event, "SizeNotEnforced on node n1: see the log");
    world.looks(20).await;
    assert_eq!(world.writes(), 1);
    world.looks(20).await;
    assert_eq!(world.writes(), 2, "Kubernetes forgets Events after an hour");

    world.answer(vec![volume("db", &[])]);
    world.looks(10).await;
    assert_eq!(world.reasons().last().map(String::as_str), Some("VolumeHealthy"));
    assert_eq!(world.writes(), 3);
    world.looks(120).await;
    assert_eq!(world.writes(), 3, "it is said once that a volume is well");
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_comes_and_goes_is_told_rarely() {
    let world = World::new(&["db"]).start(1);
    for _ in 0..15 {
        world.answer(vec![volume("db", &[trouble("inaccessible", "PoolUnreadable")])]);
        world.looks(1).await;
        world.answer(vec![volume("db", &[])]);
        world.looks(1).await;
    }
    let writes = world.writes();
    assert!(
        (4..=14).contains(&writes),
        "{writes} Events in half an hour, of one thing that was seen 15 times"
    );
}

#[tokio::test(start_paused = true)]
async fn claims_of_other_volumes_are_told_nothing() {
    let world = World::new(&["other", "pending"]).start(1);
    world.server.with(|kubernetes| {
        for (name, volume, phase) in [("other", "pvc-later", "Bound"), ("pending", "pvc-pending", "Pending")]
        {
            let place = key("persistentvolumeclaims", NAMESPACE, name);
            let mut claim = kubernetes.objects[&place].clone();
            (claim["spec"]["volumeName"], claim["status"]["phase"]) = (json!(volume), json!(phase));
            kubernetes.put(place, claim);
        }
    });
    let lost = [trouble("data_loss", "ImageMissing")];
    let of_kind = |kind: &str| VolumeDetails { kind: word(kind), ..volume("other", &lost) };
    let hostile = |namespace: &str| {
        let claim = Claim { namespace: word(namespace), name: word("x"), persistent_volume: word("pvc-x") };
        VolumeDetails { claim: Some(claim), ..volume("x", &lost) }
    };
    world.answer(vec![
        volume("other", &lost),
        volume("pending", &lost),
        volume("gone", &lost),
        of_kind("copy"),
        of_kind("left"),
        VolumeDetails { claim: None, ..volume("other", &lost) },
        hostile("../../../api/v1/secrets"),
        hostile("a/b"),
    ]);
    world.looks(3).await;
    assert_eq!(world.events(), Vec::<String>::new());
    let calls = world.server.calls();
    assert!(calls.iter().all(|call| !call.contains("secrets") && !call.contains("a/b")), "{calls:?}");
    assert!(calls.iter().any(|call| call.contains("persistentvolumeclaims/gone")), "{calls:?}");
}

#[tokio::test(start_paused = true)]
async fn a_pool_nearly_full_is_told_to_thin_volumes() {
    let world = World::new(&["thin", "thick", "elsewhere"]).start(1);
    let pool = |name: &str, free: u64| {
        let figures = PoolBytes { size: 100 << 30, free, ..PoolBytes::default() };
        PoolDetails { name: word(name), figures: Some(figures), ..PoolDetails::default() }
    };
    let thick = VolumeDetails { provisioning: word("thick"), ..volume("thick", &[]) };
    let elsewhere = VolumeDetails { pool: word("fast"), ..volume("elsewhere", &[]) };
    let mut answer =
        NodeAnswer { volumes: vec![volume("thin", &[]), thick, elsewhere], ..NodeAnswer::default() };
    answer.node.pools = vec![pool("default", 11 << 30), pool("fast", 50 << 30)];
    world.answer_with(answer.clone());
    world.looks(2).await;
    assert_eq!(world.events(), Vec::<String>::new());
    answer.node.pools[0] = pool("default", 9 << 30);
    world.answer_with(answer);
    world.looks(2).await;
    let events = world.events();
    let [event] = &events[..] else { panic!("one claim is concerned: {events:?}") };
    assert!(
        event.starts_with("PoolNearlyFull the disk of pool default on node n1 has 9 GiB of 100 GiB free"),
        "{event}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_lost_pool_is_told_slowly_and_the_worst_first() {
    let names: Vec<String> = (0..50).map(|number| format!("c{number:02}")).collect();
    let claims: Vec<&str> = names.iter().map(String::as_str).collect();
    let world = World::new(&claims).start(1);
    let of = |name: &&str| match *name {
        "c49" => volume(name, &[trouble("data_loss", "ImageMissing")]),
        name => volume(name, &[trouble("inaccessible", "PoolUnavailable")]),
    };
    world.answer(claims.iter().map(of).collect());
    sleep(Duration::from_secs(5)).await;
    assert_eq!(world.writes(), 20, "no flood");
    assert_eq!(world.reasons()[0], "ImageMissing");
    world.looks(3).await;
    assert_eq!(world.writes(), 50, "each claim in the end, once");
}

#[tokio::test(start_paused = true)]
async fn a_silent_node_says_nothing_new() {
    let world = World::new(&["db"]).start(1);
    world.answer(vec![volume("db", &[trouble("degraded", "FilesystemErrors")])]);
    world.looks(2).await;
    *world.nodes.0.lock().unwrap() = vec![(word("n1"), Err(word("no answer")))];
    world.looks(10).await;
    assert_eq!(world.reasons(), ["FilesystemErrors"], "that it does not answer makes no volume well");
}

#[tokio::test(start_paused = true)]
async fn one_of_two_controllers_writes_events() {
    let mut world = World::new(&["db"]).start(2);
    world.answer(vec![volume("db", &[trouble("degraded", "FilesystemErrors")])]);
    world.looks(5).await;
    assert_eq!(world.writes(), 1);
    let holder = || {
        let lease =
            world.server.with(|kubernetes| kubernetes.all("leases").next().cloned()).expect("a Lease");
        assert_eq!(lease["metadata"]["name"], "hostloop.csi.dev-events");
        lease["spec"]["holderIdentity"].as_str().unwrap().to_owned()
    };
    let leader: usize = holder().strip_prefix("controller-").unwrap().parse().unwrap();
    let (trigger, task) = world.controllers.swap_remove(leader);
    trigger.pull();
    task.await.unwrap();
    world.looks(3).await;
    assert_ne!(holder(), format!("controller-{leader}"));
    assert_eq!(world.events().len(), 2, "the next leader says what lasts");
}
