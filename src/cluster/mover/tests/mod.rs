//! Moves on a cluster in memory: ended and failed at every call, given up, and with two movers that both believe they lead.

pub(crate) use hostloop_fake_kubernetes as kubernetes;

mod leading;
mod namespace;
pub(crate) mod nodes;
mod quarrel;
mod refusals;
mod returning;
pub(crate) mod server;
mod standby;
mod unusual;
pub(crate) mod world;

use std::sync::Arc;

use hostloop_fake_kernel::part::Part;
use serde_json::{Value, json};

use self::nodes::Nodes;
use self::server::{Shared, client};
use self::world::{Fault, Volume, World, key};
use super::status::{MOVE_NOW, MOVE_STATUS, MOVE_TO, MOVING, Phase, Status};
use super::{Failure, Figures, Mover};

fn mover(world: &Shared, who: usize) -> Mover {
    let figures = Arc::new(Figures::default());
    let mover = Mover::new(client(world, who), Nodes::new(world, who), "hostloop.csi.dev", figures);
    mover.with_patience(std::time::Duration::ZERO)
}

fn run<T>(work: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(work)
}

/// What a mover does in a moment: a step for the claim, and one for each PersistentVolume with a record.
async fn step(mover: &Mover, world: &Shared) {
    let said = |error: &Failure| {
        if !error.is_outdated() {
            println!("{error}");
        }
    };
    let rounds = |world: &World| status(world).map(|status| status.rounds);
    let before = rounds(&world.lock().unwrap());
    let _ = mover.step_claim("default", "data").await.inspect_err(said);
    if rounds(&world.lock().unwrap()) > before {
        world.lock().unwrap().age_round();
    }
    let recorded = |volume: &&Value| volume["metadata"]["labels"][MOVING] == "true";
    let volumes: Vec<String> = {
        let world = world.lock().unwrap();
        let all = world.all("persistentvolumes").filter(recorded);
        all.map(|volume| volume["metadata"]["name"].as_str().unwrap().to_owned()).collect()
    };
    for volume in volumes {
        let _ = mover.step_volume(&volume).await.inspect_err(said);
    }
}

/// Steps and lets the cluster work, so many times.
async fn go_on(mover: &Mover, shared: &Shared, times: usize) {
    for _ in 0..times {
        step(mover, shared).await;
        let mut world = shared.lock().unwrap();
        world.tick();
        assert_eq!(world.wrong, Vec::<String>::new());
    }
}

/// Steps until the move is in this phase.
async fn until(mover: &Mover, world: &Shared, wanted: Phase) {
    for _ in 0..20 {
        if phase(&world.lock().unwrap()) == Some(wanted) {
            return;
        }
        step(mover, world).await;
    }
    panic!("it does not come to {wanted:?}: {:?}", status(&world.lock().unwrap()));
}

fn status(world: &World) -> Option<Status> {
    let claim = world.get("persistentvolumeclaims", "data")?;
    serde_json::from_str(claim["metadata"]["annotations"][MOVE_STATUS].as_str()?).ok()
}

fn phase(world: &World) -> Option<Phase> {
    status(world).map(|status| status.phase)
}

fn wishes(world: &World) -> bool {
    let claim = world.get("persistentvolumeclaims", "data");
    claim.is_some_and(|claim| !claim["metadata"]["annotations"][MOVE_TO].is_null())
}

/// Whether the claim is there and is being deleted.
fn is_deleted(world: &World) -> bool {
    let claim = world.get("persistentvolumeclaims", "data");
    claim.is_some_and(|claim| !claim["metadata"]["deletionTimestamp"].is_null())
}

/// The administrator of these tests.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Administrator {
    /// Drains the node once the copy is ready.
    Drains,
    /// Has the mover evict the pod.
    IsInAHurry,
    /// Takes the wish back once the move is in this phase.
    GivesUp(Phase),
    /// Takes it back when the claim has been deleted, and then restarts the pod.
    GivesUpLate,
}

impl Administrator {
    fn wish(self) -> Value {
        match self {
            Administrator::Drains => json!({MOVE_TO: "node-2", "team": "db"}),
            _ => json!({MOVE_TO: "node-2", MOVE_NOW: "true", "team": "db"}),
        }
    }

    fn is_time(self, world: &World) -> bool {
        match self {
            Administrator::GivesUp(when) => phase(world) == Some(when),
            _ => phase(world) == Some(Phase::Switching) && is_deleted(world),
        }
    }

    fn act(self, world: &mut World) {
        let phase = phase(world);
        match self {
            Administrator::Drains
                if phase == Some(Phase::Ready) && world.running().as_deref() == Some("node-1") =>
            {
                world.change("nodes", "node-1", |node| node["spec"]["unschedulable"] = json!(true));
                world.delete_pod();
            }
            Administrator::GivesUp(_) | Administrator::GivesUpLate
                if self.is_time(world) && wishes(world) =>
            {
                world.change("persistentvolumeclaims", "data", |claim| {
                    claim["metadata"]["annotations"].as_object_mut().unwrap().remove(MOVE_TO);
                });
            }
            Administrator::GivesUpLate if phase == Some(Phase::Returning) => world.delete_pod(),
            _ => {}
        }
    }
}

/// Whether all is as it has to be at the end: a pod runs, and there is one volume.
fn settled(world: &World) -> Result<String, String> {
    let node = world.running().ok_or_else(|| format!("no pod runs: {:?}", status(world)))?;
    let claim = world.get("persistentvolumeclaims", "data").ok_or("there is no claim")?;
    let volumes: Vec<&Value> = world.all("persistentvolumes").collect();
    let [volume] = volumes.as_slice() else { return Err(format!("{} PersistentVolumes", volumes.len())) };
    if world.volumes.len() != 1 {
        return Err(format!("volumes: {:?}", world.volumes));
    }
    let metadata = &volume["metadata"];
    let of_move = |object: &Value| object.to_string().contains("hostloop.csi.dev/move-re");
    if of_move(volume) || metadata["labels"][MOVING] == "true" {
        return Err("the record of the move is still there".to_owned());
    }
    if claim["metadata"]["finalizers"] != json!(["kubernetes.io/pvc-protection"]) {
        return Err(format!("the claim is held: {}", claim["metadata"]["finalizers"]));
    }
    if volume["spec"]["persistentVolumeReclaimPolicy"] != "Delete" {
        return Err("the reclaim policy is not what it was".to_owned());
    }
    if volume["spec"]["claimRef"]["uid"] != claim["metadata"]["uid"] {
        return Err("the claim and the volume are not bound to each other".to_owned());
    }
    match world.volumes.values().next() {
        Some(volume) if !volume.sealed && volume.staged && volume.copy_of.is_none() => Ok(node),
        other => Err(format!("the volume is {other:?}")),
    }
}

/// Moves until all is settled. Returns where the pod is, and the world.
fn moved(administrator: Administrator, mut world: World, fault: Option<(usize, Fault)>) -> (String, Shared) {
    world.fault = fault;
    let shared = world.shared();
    run(async {
        let mut mover_now = mover(&shared, 0);
        let mut why = String::new();
        for _ in 0..120 {
            step(&mover_now, &shared).await;
            let mut world = shared.lock().unwrap();
            if world.dead {
                // Another process takes over.
                world.dead = false;
                drop(world);
                mover_now = mover(&shared, 0);
                world = shared.lock().unwrap();
            }
            administrator.act(&mut world);
            world.tick();
            assert_eq!(world.wrong, Vec::<String>::new(), "{fault:?}: {:#?}", world.calls);
            let over = match phase(&world) {
                None => administrator != Administrator::Drains && !wishes(&world),
                Some(phase) => matches!(phase, Phase::Done | Phase::Refused),
            };
            match settled(&world) {
                Ok(node) if over => {
                    drop(world);
                    return (node, Arc::clone(&shared));
                }
                Ok(_) => why = format!("{:?}", status(&world)),
                Err(found) => why = found,
            }
        }
        let world = shared.lock().unwrap();
        panic!(
            "{administrator:?}, {fault:?}: it does not end: {why}\n{:#?}\n{:#?}",
            world.calls, world.events
        );
    })
}

#[test]
fn a_volume_moves_when_its_node_is_drained() {
    let administrator = Administrator::Drains;
    let (node, shared) = moved(administrator, World::new(administrator.wish()), None);
    assert_eq!(node, "node-2");
    let world = shared.lock().unwrap();
    let claim = world.get("persistentvolumeclaims", "data").unwrap();
    assert_eq!(claim["metadata"]["labels"], json!({"app": "db"}));
    let annotations = claim["metadata"]["annotations"].as_object().unwrap();
    assert_eq!(annotations["team"], "db");
    assert!(!annotations.contains_key(MOVE_TO), "{annotations:?}");
    let status = status(&world).unwrap();
    assert_eq!((status.phase, status.target.as_str()), (Phase::Done, "node-2"));
    assert!(status.rounds >= 2 && status.sent_bytes > 0 && status.last_cut.is_some(), "{status:?}");
    let volume = world.get("persistentvolumes", &status.name).unwrap();
    assert!(status.name.starts_with("pvc-1-moved-"), "{}", status.name);
    let spec = &volume["spec"];
    assert_eq!(spec["csi"]["volumeAttributes"], json!({"backend": "loop", "pool": "default"}));
    assert_eq!((&spec["csi"]["fsType"], &spec["capacity"]["storage"]), (&json!("xfs"), &json!("1Gi")));
    let metadata = &volume["metadata"];
    assert_eq!(metadata["annotations"]["pv.kubernetes.io/provisioned-by"], "hostloop.csi.dev");
    assert_eq!(metadata["finalizers"][0], "external-provisioner.volume.kubernetes.io/finalizer");
    let reasons: Vec<&str> = world.events.iter().filter_map(|event| event.split(' ').next()).collect();
    assert_eq!(reasons, ["MoveStarted", "MoveReady", "MoveSwitching", "Moved"]);
}

#[test]
fn a_hurried_mover_evicts_the_pod_within_its_budget() {
    let administrator = Administrator::IsInAHurry;
    let mut world = World::new(administrator.wish());
    world.budget = 0;
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        for _ in 0..20 {
            step(&mover, &shared).await;
            shared.lock().unwrap().tick();
        }
        {
            let mut world = shared.lock().unwrap();
            let status = status(&world).unwrap();
            assert_eq!(status.phase, Phase::Switching);
            assert!(status.message.contains("pod db-0 may not be evicted yet"), "{}", status.message);
            assert_eq!(world.running().as_deref(), Some("node-1"), "it goes on where it is");
            world.budget = 1;
        }
        for _ in 0..20 {
            step(&mover, &shared).await;
            shared.lock().unwrap().tick();
        }
        assert_eq!(settled(&shared.lock().unwrap()).as_deref(), Ok("node-2"));
    });
}

/// `make test` takes one end in this many, `make test-rest` takes all.
const SHARE: u64 = 5;

/// Every call is the last one of a process, or fails, done or not: the move ends as it should.
fn walk(administrator: Administrator, ends_on: &[&str]) {
    let (_, shared) = moved(administrator, World::new(administrator.wish()), None);
    let calls = shared.lock().unwrap().calls.len();
    assert!(calls > 10, "only {calls} calls: is this the whole move?");
    let part = Part::of(SHARE);
    for at in 0..calls {
        for done in [false, true] {
            for ends in [false, true] {
                if !part.takes((at, done, ends)) {
                    continue;
                }
                let fault = Fault::Fail { done, ends };
                let (node, _) = moved(administrator, World::new(administrator.wish()), Some((at, fault)));
                assert!(ends_on.contains(&node.as_str()), "{fault:?} at {at}: it ended on {node}");
            }
        }
    }
}

#[test]
fn a_drained_move_survives_every_end() {
    walk(Administrator::Drains, &["node-2"]);
}

#[test]
fn a_hurried_move_survives_every_end() {
    walk(Administrator::IsInAHurry, &["node-2"]);
}

#[test]
fn a_move_given_up_is_undone_at_every_end() {
    for phase in [Phase::Copying, Phase::CatchingUp, Phase::Ready, Phase::Switching] {
        walk(Administrator::GivesUp(phase), &["node-1"]);
    }
}

#[test]
fn a_claim_is_given_back_at_every_end() {
    walk(Administrator::GivesUpLate, &["node-1"]);
}

#[test]
fn after_the_last_chance_a_move_is_not_given_up() {
    let administrator = Administrator::GivesUp(Phase::Rebinding);
    assert_eq!(moved(administrator, World::new(administrator.wish()), None).0, "node-2");
}

/// The clock of the node is an hour away from that of the controller.
#[test]
fn a_clock_that_is_wrong_keeps_no_volume_from_moving() {
    for behind in [3600, -3600] {
        for administrator in [Administrator::Drains, Administrator::IsInAHurry] {
            let mut world = World::new(administrator.wish());
            world.behind = behind;
            let (node, shared) = moved(administrator, world, None);
            assert_eq!(node, "node-2");
            let rounds = status(&shared.lock().unwrap()).unwrap().rounds;
            assert!(rounds < 10, "{rounds} rounds");
        }
    }
}

/// A claim that a user deletes before the move has deleted it goes, and so does the copy.
#[test]
fn a_claim_that_is_deleted_takes_its_copy_along() {
    let mut world = World::new(json!({MOVE_TO: "node-2"}));
    world.bare = true;
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        until(&mover, &shared, Phase::Ready).await;
        {
            let mut world = shared.lock().unwrap();
            world.mark_deleted(&key("persistentvolumeclaims", "default", "data"));
            world.delete_pod();
        }
        for _ in 0..10 {
            step(&mover, &shared).await;
            shared.lock().unwrap().tick();
        }
        let world = shared.lock().unwrap();
        assert_eq!(world.wrong, Vec::<String>::new());
        assert!(world.get("persistentvolumeclaims", "data").is_none());
        assert!(
            world.volumes.is_empty() && world.all("persistentvolumes").next().is_none(),
            "{:?}",
            world.volumes
        );
    });
}
