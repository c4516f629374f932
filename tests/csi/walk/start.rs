//! The walk through the start: the first one on an empty disk, and those that find what an ended call left.

use std::collections::BTreeSet;

use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use nix::errno::Errno;

use super::Tally;
use super::fault::FAULTS;
use super::kill::{self, End, Ended};
use super::observe::{Verdict, ensure, invariants};
use super::part::Part;
use super::scenario::Scenario;
use crate::harness::{DIRECTORIES_DIR, KUBELET, Server, settings};

/// The steps of a start that goes well.
fn steps(ended: &Ended<'_>) -> Vec<&'static str> {
    let os = ended.os();
    ended.kernel.clear_steps();
    let server = ended.scenario.start(os).expect("it starts");
    let steps = ended.kernel.steps().iter().map(|step| step.name).collect();
    server.abandon();
    steps
}

/// Ends the call of the scenario at each step, and the start after it, and the power with it, at each of its own.
/// Ends of the call that lead to the same steps are walked once.
pub fn walk(scenario: &Scenario, part: Part) -> Tally {
    let mut tally = Tally { scenarios: 1, ..Tally::default() };
    let mut walked = BTreeSet::new();
    for first in kill::ends(&scenario.steps()) {
        let ended = match Ended::make(scenario, None, first) {
            Ok(ended) => ended,
            Err(problem) => {
                tally.failures.push(problem);
                continue;
            }
        };
        let steps = steps(&ended);
        if !walked.insert(steps.clone()) {
            continue;
        }
        tally.steps += steps.len();
        tally.names.extend(&steps);
        let what = |second: &str| format!("start after {}: {first:?}, {second}", scenario.name);
        for second in kill::ends(&steps) {
            if !part.takes((&scenario.name, format!("{first:?} {second:?}"))) {
                continue;
            }
            tally.kills += 1;
            tally.note(|| what(&format!("{second:?}")), kill_start(scenario, first, second));
        }
        for (n, (errno, _)) in (1..=steps.len()).flat_map(|n| FAULTS.map(|fault| (n, fault))) {
            if !part.takes((&scenario.name, format!("{first:?}"), n, errno as i32)) {
                continue;
            }
            tally.faults += 1;
            let verdict = fail_start(scenario, first, n, errno);
            tally.note(|| what(&format!("step {n} ({}) fails with {errno}", steps[n - 1])), verdict);
        }
    }
    tally
}

fn kill_start(scenario: &Scenario, first: End, second: End) -> Verdict {
    let mut ended = Ended::make(scenario, None, first)?;
    let os = ended.os();
    if let Some((n, kill)) = second.at {
        ended.kernel.kill_at(n, kill);
    }
    // It may say that it is ready before it notices that it is dead.
    let server = scenario.start(os);
    ensure!(second.at.is_none() || ended.kernel.is_dead(), "the start did not come to this step");
    ended.kernel.kill();
    drop(server);
    ended.power = false;
    if second.power {
        ended.cut_power();
    }
    let server = ended.start_again()?;
    ended.finish(server)
}

fn fail_start(scenario: &Scenario, first: End, n: usize, errno: Errno) -> Verdict {
    let mut ended = Ended::make(scenario, None, first)?;
    let os = ended.os();
    ended.kernel.fail_at(n, errno);
    let started = scenario.start(os);
    ended.kernel.clear_plans();
    if let Ok(server) = started.as_ref()
        && !pools_are_open(server)?
    {
        // It costs the volumes of a pool their use until it is tried again; the next start does so, too.
        ended.kernel.kill();
        drop(started);
    } else if let Ok(server) = started {
        // What could not be repaired is served as it is, and repaired by the caller's retry or the next start.
        ended.retry(&server)?;
        ended.acknowledged = true;
        ended.power = false;
        ended.mounts_gone = false;
        ended.kernel.kill();
        server.abandon();
    }
    ended.power = false;
    let server = ended.start_again()?;
    ended.finish(server)
}

/// Whether the start could use every pool.
fn pools_are_open(server: &Server) -> Result<bool, String> {
    let request = csi::NodeGetStorageHealthRequest::default();
    let found =
        server.call(request).map_err(|status| format!("NodeGetStorageHealth: {status}"))?.backend_health;
    Ok(found.iter().all(|entry| entry.reason != "PoolUnavailable"))
}

/// The first start, on a machine that has nothing: killed and failed at each step of the part.
pub fn walk_first(part: Part) -> Tally {
    let empty = || {
        let kernel = FakeKernel::new();
        kernel.create_directories(KUBELET);
        kernel.add_disk(DIRECTORIES_DIR, FsType::Ext4, 100 << 30);
        kernel
    };
    let start = |os| Server::try_start(os, &settings()).map_err(|error| error.to_string());
    let kernel = empty();
    drop(start(kernel.os()).expect("it starts"));
    let steps: Vec<_> = kernel.steps().iter().map(|step| step.name).collect();
    let mut tally = Tally { scenarios: 1, steps: steps.len(), ..Tally::default() };
    tally.names.extend(&steps);
    let again = |os, kernel: &FakeKernel| {
        let server = start(os)?;
        invariants(kernel, &server)
    };
    for end in kill::ends(&steps) {
        if !part.takes(format!("first start: {end:?}")) {
            continue;
        }
        let kernel = empty();
        if let Some((n, kill)) = end.at {
            kernel.kill_at(n, kill);
        }
        let first = start(kernel.os());
        kernel.kill();
        drop(first);
        tally.kills += 1;
        let os = if end.power { kernel.power_cut() } else { kernel.restart() };
        tally.note(|| format!("first start: {end:?}"), again(os, &kernel));
    }
    for (n, (errno, _)) in (1..=steps.len()).flat_map(|n| FAULTS.map(|fault| (n, fault))) {
        if !part.takes(("first start", n, errno as i32)) {
            continue;
        }
        let kernel = empty();
        kernel.fail_at(n, errno);
        drop(start(kernel.os()));
        tally.faults += 1;
        tally.note(|| format!("first start: step {n} fails with {errno}"), again(kernel.restart(), &kernel));
    }
    tally
}
