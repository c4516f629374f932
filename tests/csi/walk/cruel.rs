//! The cruel walk: what a kernel may do beside ending a call or failing one step of it. Of each call a part is walked,
//! which a seed chooses; `HOSTLOOP_SEED` replays it, and `HOSTLOOP_SHARE=1` walks all. `WALK` chooses scenarios.

use std::collections::BTreeSet;

use hostloop_fake_kernel::{FakeKernel, Kill, Loss};
use nix::errno::Errno;
use tonic::Code;

use super::call::{Call, Model};
use super::kill::{End, Ended};
use super::observe::{
    Seen, Verdict, check, clean_start, ensure, fits, in_force, invariants, restore, snapshot, tear_down,
};
use super::part::{self, Part};
use super::scenario::{Pace, Scenario};
use super::{Tally, Walk, walk_all};
use crate::harness::Server;

/// One case in so many is walked; of those with a program that outlives the driver all are, since there are few.
const SHARE: u64 = 64;
/// Programs that start and end by themselves, and steps that promise that something is durable.
const PROGRAMS: [&str; 3] = ["make", "grow_unmounted", "renew_identity"];
const SYNCS: [&str; 4] = ["sync", "sync_file", "sync_directory", "flush"];
/// Calls that an orphaned program outlives: until the next one, into the start, and beyond the retry.
const OUTLIVES: [u64; 3] = [0, 7, 100_000];

/// Something cruel.
#[derive(Debug, Clone, Hash)]
enum Case {
    /// The power goes at this end, and a part of the unsynced, or none, is lost; `None` for the answer.
    Cut { at: Option<(usize, bool)>, seed: Option<u64> },
    /// This call that changes nothing fails.
    Blind { n: usize, name: &'static str },
    /// Every call of this name fails until the answer.
    Lasting { name: &'static str, full: bool },
    /// This sync fails and loses the data; the power goes after the retry.
    FailedSync { n: usize, name: &'static str },
    /// The process dies in this step, and its program goes on.
    Left { n: usize, outlives: u64 },
}

/// What a call does when nothing goes wrong.
fn steps_and_looks(scenario: &Scenario) -> (Vec<&'static str>, Vec<&'static str>) {
    let (kernel, server, _) = scenario.prepare();
    kernel.watch_looks(true);
    scenario.call.run(&server).unwrap_or_else(|status| panic!("{}: {status}", scenario.name));
    let names = |steps: Vec<hostloop_fake_kernel::Step>| steps.iter().map(|step| step.name).collect();
    (names(kernel.steps()), names(kernel.looks()))
}

/// Every case of a scenario.
fn cases(scenario: &Scenario, seed: u64) -> Vec<Case> {
    let (steps, looks) = steps_and_looks(scenario);
    let numbered = |names: &[&'static str]| (1..).zip(names.to_vec()).collect::<Vec<_>>();
    let mut cases = Vec::new();
    // The end before a step is the one after the last.
    let ends = (1..=steps.len()).flat_map(|n| [Some((n, true)), Some((n, false))]);
    for at in ends.chain([None]) {
        let seeds = [None, Some(seed), Some(seed.wrapping_add(1))];
        cases.extend(seeds.map(|seed| Case::Cut { at, seed }));
    }
    for (n, name) in numbered(&steps) {
        if SYNCS.contains(&name) {
            cases.push(Case::FailedSync { n, name });
        }
        if PROGRAMS.contains(&name) {
            cases.extend(OUTLIVES.map(|outlives| Case::Left { n, outlives }));
        }
    }
    cases.extend(numbered(&looks).into_iter().map(|(n, name)| Case::Blind { n, name }));
    let names: BTreeSet<_> = steps.into_iter().chain(looks).collect();
    cases.extend(names.into_iter().flat_map(|name| [true, false].map(|full| Case::Lasting { name, full })));
    if scenario.pace == Pace::Container {
        // Its helpers die with it: the power says nothing more.
        cases.retain(|case| !matches!(case, Case::Cut { .. } | Case::Left { .. }));
    }
    cases
}

fn run(scenario: &Scenario, case: &Case) -> Verdict {
    match *case {
        Case::Cut { at, seed } => cut(scenario, at, seed.map_or(Loss::Nothing, Loss::Some)),
        Case::Blind { n, .. } => fail(scenario, Blame::Whole, |kernel| kernel.fail_look_at(n, Errno::EIO)),
        Case::Lasting { name, full } => {
            let errno = if full { Errno::ENOSPC } else { Errno::EIO };
            fail(scenario, Blame::Part, |kernel| kernel.fail_every(name, errno))
        }
        Case::FailedSync { n, .. } => failed_sync(scenario, n),
        Case::Left { n, outlives } => left(scenario, n, outlives),
    }
}

/// The power goes at an end of the call.
fn cut(scenario: &Scenario, at: Option<(usize, bool)>, loss: Loss) -> Verdict {
    let at = at.map(|(n, whole)| (n, if whole { Kill::After } else { Kill::Torn }));
    let mut ended = Ended::make(scenario, None, End { at, power: false })?;
    ended.cut_power();
    let server = scenario.start(ended.kernel.power_cut_losing(loss))?;
    ended.finish(server)
}

/// How much of a failed call has to be undone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Blame {
    Whole,
    /// What undoes it may fail, too: the retry or the next start does it.
    Part,
}

/// The call meets what is planned, and is repeated after that.
fn fail(scenario: &Scenario, blame: Blame, plan: impl FnOnce(&FakeKernel)) -> Verdict {
    let (kernel, server, before) = scenario.prepare();
    let mut after = before.clone();
    after.apply(&scenario.call);
    let snapshot_before = snapshot(&kernel, &server);
    kernel.clear_steps();
    plan(&kernel);
    let answer = scenario.call.run(&server);
    kernel.clear_plans();
    kernel.heal();
    if let Err(status) = &answer {
        let code = status.code();
        let wrong = [Code::Ok, Code::Unknown, Code::InvalidArgument, Code::Unimplemented, Code::Cancelled];
        ensure!(!wrong.contains(&code), "it became {status}");
        let seen = Seen::now(&kernel, &server);
        let known = [Seen::of(&before, true), Seen::of(&after, true)];
        ensure!(blame == Blame::Part || known.contains(&seen), "expected one of {known:?}, found {seen:?}");
        let expanding = matches!(scenario.call, Call::Expand(_) | Call::NodeExpand(_));
        if blame == Blame::Whole && !scenario.call.is_forward_only() && !expanding {
            let now = snapshot(&kernel, &server);
            ensure!(now == snapshot_before, "not rolled back:\n{snapshot_before}\n{now}");
            fits(&kernel, &server, &before)?;
            in_force(&kernel, &before)?;
        }
        if blame == Blame::Whole {
            invariants(&kernel, &server)?;
        }
        scenario.call.repeat(&server)?;
    }
    check(&kernel, &server, &after)?;
    if blame == Blame::Part {
        let server = restart(scenario, &kernel, server, &after)?;
        tear_down(&kernel, &server, &after, scenario.settings.attach)?;
    }
    Ok(())
}

fn restart(
    scenario: &Scenario,
    kernel: &FakeKernel,
    server: Server,
    after: &Model,
) -> Result<Server, String> {
    kernel.kill();
    server.abandon();
    let server = scenario.start(kernel.restart())?;
    clean_start(kernel, &server)?;
    restore(&server, after)?;
    check(kernel, &server, after)?;
    Ok(server)
}

/// What was acknowledged after a failed sync is durable, although the kernel does not repeat that sync.
fn failed_sync(scenario: &Scenario, n: usize) -> Verdict {
    let (kernel, server, before) = scenario.prepare();
    let mut after = before.clone();
    after.apply(&scenario.call);
    kernel.fail_at(n, Errno::EIO);
    if scenario.call.run(&server).is_err() {
        scenario.call.repeat(&server)?;
    }
    kernel.kill();
    server.abandon();
    let server = scenario.start(kernel.power_cut())?;
    clean_start(&kernel, &server)?;
    restore(&server, &after)?;
    check(&kernel, &server, &after)?;
    super::observe::kubelet_cleans_up(&kernel, &after);
    tear_down(&kernel, &server, &after, scenario.settings.attach)
}

/// The process dies while its program works, and the caller repeats the call meanwhile.
fn left(scenario: &Scenario, n: usize, outlives: u64) -> Verdict {
    let (kernel, server, before) = scenario.prepare();
    let mut after = before.clone();
    after.apply(&scenario.call);
    kernel.set_program_time(outlives);
    kernel.kill_at(n, Kill::Left);
    let answer = scenario.call.run(&server);
    ensure!(answer.is_err() && kernel.is_dead(), "the call did not come to this step: {answer:?}");
    server.abandon();
    let server = scenario.start(kernel.restart())?;
    let mut answer = scenario.call.run(&server);
    if kernel.pending() > 0 {
        if let Err(status) = &answer {
            // Nothing but its end is waited for: the caller has nothing to do.
            let wrong = [
                Code::InvalidArgument,
                Code::NotFound,
                Code::AlreadyExists,
                Code::OutOfRange,
                Code::FailedPrecondition,
            ];
            ensure!(!wrong.contains(&status.code()), "while the program works: {status}");
        }
        kernel.settle();
        answer = scenario.call.run(&server);
    }
    answer.map_err(|status| format!("the retry fails: {status}"))?;
    restore(&server, &after)?;
    check(&kernel, &server, &after)?;
    let server = restart(scenario, &kernel, server, &after)?;
    tear_down(&kernel, &server, &after, scenario.settings.attach)
}

fn walk(scenario: &Scenario, seed: u64, share: u64) -> Tally {
    let mut tally = Tally { scenarios: 1, ..Tally::default() };
    let always = |case: &Case| matches!(case, Case::Left { .. });
    let taken = |case: &Case| always(case) || Part { seed, share }.takes((&scenario.name, case));
    for case in cases(scenario, seed).into_iter().filter(taken) {
        tally.faults += 1;
        tally.note(|| format!("{}: {case:?}", scenario.name), run(scenario, &case));
    }
    tally
}

#[test]
fn every_call_survives_a_cruel_kernel() {
    let (seed, share) = (part::seed(), part::number("HOSTLOOP_SHARE").unwrap_or(SHARE));
    println!("HOSTLOOP_SEED={seed} HOSTLOOP_SHARE={share}");
    let scenarios = super::chosen();
    let walks: Vec<(String, Walk<'_>)> = scenarios
        .iter()
        .map(|scenario| -> (String, Walk<'_>) {
            (scenario.name.clone(), Box::new(move || walk(scenario, seed, share)))
        })
        .collect();
    let tally = walk_all(&walks);
    println!("{} scenarios, {} cruel cases", tally.scenarios, tally.faults);
    let shown = tally.failures.iter().take(super::SHOWN).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(
        tally.failures.is_empty(),
        "{} failures with HOSTLOOP_SEED={seed} HOSTLOOP_SHARE={share}:\n{shown}",
        tally.failures.len()
    );
}
