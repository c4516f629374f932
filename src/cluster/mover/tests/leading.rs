//! Who leads, and the whole mover with its watches. The clock is the test's.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::*;
use crate::cluster::mover::lease::Election;
use crate::shutdown::Shutdown;

fn on_a_clock_of_its_own<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(work)
}

fn candidate(world: &Shared, who: usize) -> Election {
    Election::new(client(world, who), "hostloop", "hostloop.csi.dev", format!("candidate-{who}"))
}

fn holder(world: &Shared) -> String {
    let world = world.lock().unwrap();
    let lease = world.all("leases").next().expect("a Lease");
    assert_eq!(lease["metadata"]["name"], "hostloop.csi.dev-mover");
    lease["spec"]["holderIdentity"].as_str().unwrap().to_owned()
}

#[test]
fn one_leads_until_it_is_gone_and_then_the_other_one() {
    let shared = World::new(json!({})).shared();
    on_a_clock_of_its_own(async {
        let (mut first, mut second) = (candidate(&shared, 1), candidate(&shared, 2));
        first.win().await;
        assert_eq!(holder(&shared), "candidate-1");
        tokio::select! {
            () = second.win() => panic!("there are two leaders"),
            () = first.lose() => panic!("it has lost a Lease that it renews"),
            () = sleep(Duration::from_secs(300)) => {}
        }
        let gone = Instant::now();
        second.win().await;
        let after = gone.elapsed().as_secs();
        assert!((13..=19).contains(&after), "{after} s");
        assert_eq!(holder(&shared), "candidate-2");
        first.lose().await;
    });
}

#[test]
fn a_leader_cut_off_stops_before_another_begins() {
    let shared = World::new(json!({})).shared();
    on_a_clock_of_its_own(async {
        let mut first = candidate(&shared, 1);
        first.win().await;
        shared.lock().unwrap().dead = true;
        let cut_off = Instant::now();
        first.lose().await;
        let after = cut_off.elapsed().as_secs();
        assert!((10..15).contains(&after), "{after} s");
    });
}

/// Other candidates count from the write of the Lease, and not from the answer.
#[test]
fn a_late_answer_does_not_make_a_lease_longer() {
    let shared = World::new(json!({})).shared();
    on_a_clock_of_its_own(async {
        let mut first = candidate(&shared, 1);
        shared.lock().unwrap().late = Duration::from_secs(4);
        // One request reads the Lease, and one creates it.
        first.win().await;
        let won = Instant::now();
        shared.lock().unwrap().dead = true;
        first.lose().await;
        let after = won.elapsed().as_secs();
        assert!(after <= 2, "{after} s after the answer, which was 8 s on its way");
    });
}

/// The Lease has expired by the time of the answer.
#[test]
fn an_answer_after_the_deadline_makes_no_leader() {
    let shared = World::new(json!({})).shared();
    on_a_clock_of_its_own(async {
        let mut first = candidate(&shared, 1);
        shared.lock().unwrap().late = Duration::from_secs(20);
        let won = tokio::time::timeout(Duration::from_secs(200), first.win()).await;
        assert!(won.is_err());
        shared.lock().unwrap().late = Duration::ZERO;
        first.win().await;
    });
}

/// A rollout ends the leader, and the next controller leads at once.
#[test]
fn a_mover_that_is_asked_to_end_gives_its_lease_back() {
    let shared = World::new(json!({})).shared();
    on_a_clock_of_its_own(async {
        let (end, shutdown) = Shutdown::new();
        let first = mover(&shared, 1).run("hostloop", "one".to_owned(), shutdown);
        let asked = async {
            sleep(Duration::from_secs(5)).await;
            assert_eq!(holder(&shared), "one");
            end.pull();
        };
        tokio::join!(first, asked);
        assert_eq!(holder(&shared), "");
        let mut second = candidate(&shared, 2);
        let free = Instant::now();
        second.win().await;
        assert_eq!(free.elapsed(), Duration::ZERO);
    });
}

#[test]
fn a_lease_that_is_given_back_is_free_at_once() {
    let shared = World::new(json!({})).shared();
    on_a_clock_of_its_own(async {
        let (mut first, mut second) = (candidate(&shared, 1), candidate(&shared, 2));
        first.win().await;
        first.release().await;
        let free = Instant::now();
        second.win().await;
        assert_eq!(free.elapsed(), Duration::ZERO);
        // What is not its own, it does not give back.
        first.release().await;
        assert_eq!(holder(&shared), "candidate-2");
    });
}

/// Two whole movers; the one that leads is asked to end in the middle of the move.
#[test]
fn a_move_goes_on_with_the_next_leader() {
    let administrator = Administrator::IsInAHurry;
    let mut world = World::new(administrator.wish());
    world.slow = 3;
    let shared = world.shared();
    on_a_clock_of_its_own(async {
        let (end, first) = Shutdown::new();
        let (_never, second) = Shutdown::new();
        let movers = async {
            tokio::join!(
                mover(&shared, 1).run("hostloop", "one".to_owned(), first),
                mover(&shared, 2).run("hostloop", "two".to_owned(), second)
            )
        };
        let kubernetes = async {
            let mut told = false;
            for _ in 0..6000 {
                {
                    let mut world = shared.lock().unwrap();
                    world.tick();
                    if phase(&world) == Some(Phase::Copying) && !told {
                        end.pull();
                        told = true;
                    }
                    assert_eq!(world.wrong, Vec::<String>::new());
                    if settled(&world).as_deref() == Ok("node-2") {
                        return told;
                    }
                }
                sleep(Duration::from_millis(20)).await;
            }
            panic!("it does not end: {:?}", status(&shared.lock().unwrap()));
        };
        tokio::select! {
            _ = movers => panic!("both movers ended"),
            told = kubernetes => assert!(told, "nobody was ended"),
        }
    });
    let calls = shared.lock().unwrap().calls.clone();
    let by = |who: &str| {
        calls.iter().any(|call| call.starts_with(who) && call.contains("persistentvolumes/pvc-1"))
    };
    assert!(by("1: ") && by("2: "), "both have worked on it: {calls:#?}");
}
