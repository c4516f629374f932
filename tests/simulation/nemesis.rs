//! What goes wrong, for a while.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hostloop_fake_kernel::Kill;
use tokio::time::{Instant, sleep};

use crate::harness::{CONTROLLERS, Cluster, NODES};

/// Breaks things until `until`, and then mends them all.
pub async fn rage(cluster: &Arc<Cluster>, until: Instant) {
    let mut running = tokio::task::JoinSet::new();
    while Instant::now() < until {
        let pause = cluster.between(200, 12_000);
        sleep(Duration::from_millis(pause)).await;
        let cluster = Arc::clone(cluster);
        running.spawn(async move { one(&cluster).await });
        while running.try_join_next().is_some() {}
    }
    while running.join_next().await.is_some() {}
    heal(cluster).await;
}

async fn one(cluster: &Arc<Cluster>) {
    let node = cluster.below(NODES);
    let name = |number: usize| match number.checked_sub(NODES) {
        Some(controller) => format!("c{controller}"),
        None => format!("n{number}"),
    };
    let seconds = Duration::from_millis(cluster.between(500, 45_000));
    if let Some(moves) = &cluster.moves
        && cluster.below(4) == 0
    {
        return moves.hurt(&name(NODES + cluster.below(CONTROLLERS)), seconds).await;
    }
    match cluster.below(10) {
        0..=2 => replace(cluster, node, seconds).await,
        3 => {
            crate::log(|| format!("n{node} is frozen for {seconds:?}"));
            cluster.net.freeze(&name(node), true);
            sleep(seconds).await;
            cluster.net.freeze(&name(node), false);
        }
        4 | 5 => {
            let other = (node + 1 + cluster.below(NODES + CONTROLLERS - 1)) % (NODES + CONTROLLERS);
            // Some for so long that nobody can wait for the end.
            let seconds = if cluster.below(6) == 0 { seconds * 8 } else { seconds };
            crate::log(|| format!("n{node} and {} are parted for {seconds:?}", name(other)));
            cluster.net.part(&name(node), &name(other), true);
            sleep(seconds).await;
            cluster.net.part(&name(node), &name(other), false);
        }
        6 => {
            let host = name(cluster.below(NODES + CONTROLLERS));
            crate::log(|| format!("the connections of {host} break"));
            cluster.net.cut(&host);
        }
        7 => {
            let controller = cluster.below(CONTROLLERS);
            crate::log(|| format!("c{controller} starts again"));
            cluster.restart_controller(controller);
        }
        8 => {
            let host = name(cluster.below(NODES + CONTROLLERS));
            crate::log(|| format!("{host} has a new certificate"));
            cluster.issue(&host);
        }
        _ => {
            // Within what a permit allows for: it is good for 15 minutes.
            let number = cluster.below(NODES + CONTROLLERS);
            let ahead = cluster.between(0, 600_000_000_000) as i64 - 300_000_000_000;
            crate::log(|| format!("the clock of {} is {} s ahead", name(number), ahead / 1_000_000_000));
            cluster.set_clock(number, ahead);
            if number < NODES {
                let slow = cluster.between(2_000, 3_000_000) as i64;
                cluster.machines[number].slow.store(slow, Ordering::Relaxed);
            }
        }
    }
}

/// Kills the driver of a node at some step, perhaps with its machine, and starts it again, perhaps elsewhere.
async fn replace(cluster: &Arc<Cluster>, node: usize, away: Duration) {
    let machine = &cluster.machines[node];
    if machine.busy.swap(true, Ordering::Relaxed) {
        return;
    }
    let how = [Kill::Before, Kill::Torn, Kill::After][cluster.below(3)];
    machine.kernel.kill_at(1 + cluster.below(60), how);
    let latest = Instant::now() + Duration::from_secs(5);
    while !machine.kernel.is_dead() && Instant::now() < latest {
        sleep(Duration::from_millis(2)).await;
    }
    let (power, moves) = (cluster.below(2) == 0, cluster.below(3) == 0);
    crate::log(|| format!("{} is dead (power: {power}, moves: {moves}) for {away:?}", machine.id));
    cluster.kill_node(node, power);
    sleep(away).await;
    cluster.start_node(node, moves).await;
    machine.busy.store(false, Ordering::Relaxed);
    for controller in 0..CONTROLLERS {
        let late = Duration::from_millis(cluster.between(0, 15_000));
        let cluster = Arc::clone(cluster);
        tokio::spawn(async move {
            sleep(late).await;
            cluster.tell(controller);
        });
    }
}

async fn heal(cluster: &Arc<Cluster>) {
    crate::log(|| "all is well from here on".to_owned());
    cluster.net.heal();
    cluster.faults.heal();
    if let Some(moves) = &cluster.moves {
        moves.heal();
    }
    for node in 0..NODES {
        let machine = &cluster.machines[node];
        // The task that has switched it off switches it on.
        if machine.is_off() {
            continue;
        }
        machine.kernel.clear_plans();
        if machine.process().is_none() {
            cluster.kill_node(node, false);
            cluster.start_node(node, false).await;
        }
    }
    for controller in 0..CONTROLLERS {
        cluster.tell(controller);
    }
}
