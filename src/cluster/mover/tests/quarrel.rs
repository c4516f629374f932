//! Two movers at once: one was paused and does not know that the other one leads by now.

use std::cell::Cell;

use super::*;

/// Two processes that both believe they lead, with random delays before every call.
fn quarrel(administrator: Administrator, seed: u64) -> String {
    let mut world = World::new(administrator.wish());
    world.seed = seed;
    let shared = world.shared();
    run(async {
        let (first, second) = (mover(&shared, 1), mover(&shared, 2));
        let over = Cell::new(false);
        let work = async |mover: Mover| {
            while !over.get() {
                step(&mover, &shared).await;
                tokio::task::yield_now().await;
            }
        };
        let kubernetes = async {
            // Whoever was slow has done the rest of its harm by then.
            let mut calm = 0;
            for _ in 0..6000 {
                {
                    let mut world = shared.lock().unwrap();
                    administrator.act(&mut world);
                    world.tick();
                    let ended = match phase(&world) {
                        None => !wishes(&world),
                        Some(phase) => matches!(phase, Phase::Done | Phase::Refused),
                    };
                    calm = if ended && settled(&world).is_ok() { calm + 1 } else { 0 };
                }
                if calm > 300 {
                    break;
                }
                tokio::task::yield_now().await;
            }
            over.set(true);
        };
        tokio::join!(work(first), work(second), kubernetes);
        let world = shared.lock().unwrap();
        assert_eq!(world.wrong, Vec::<String>::new(), "seed {seed}: {:#?}", world.calls);
        settled(&world)
            .unwrap_or_else(|why| panic!("{administrator:?}, seed {seed}: {why}\n{:#?}", world.calls))
    })
}

#[test]
fn two_movers_at_once_move_it_once() {
    for seed in (1..=20).chain([1005]) {
        assert_eq!(quarrel(Administrator::Drains, seed), "node-2", "seed {seed}");
        assert_eq!(quarrel(Administrator::IsInAHurry, seed), "node-2", "seed {seed}");
    }
}

#[test]
fn two_movers_at_once_give_it_up_or_end_it() {
    for seed in (1..=20).chain([1005]) {
        let phases = [Phase::Copying, Phase::Ready, Phase::Switching].map(Administrator::GivesUp);
        for administrator in phases.into_iter().chain([Administrator::GivesUpLate]) {
            let node = quarrel(administrator, seed);
            assert!(["node-1", "node-2"].contains(&node.as_str()), "seed {seed}: {node}");
        }
    }
}
