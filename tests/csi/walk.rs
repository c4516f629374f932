//! The walk: every mutating call on every kind of volume is ended and failed at each of its steps. The steps are
//! found by running the call, so that a new one is walked the day it is written. The variable `WALK` chooses a part:
//! words of the names of scenarios, with semicolons in between; behind `=` is a whole name.

mod call;
mod counted;
mod cruel;
mod fault;
mod kill;
mod observe;
mod scenario;
mod seen;
mod start;

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hostloop_fake_kernel::Kill;

use self::counted::{ENDS, FAULTS, SCENARIOS};
use self::observe::Verdict;
use self::scenario::Scenario;
pub use hostloop_fake_kernel::part;
use part::Part;

/// Scenarios that run at the same time.
const THREADS: usize = 3;
/// So many failures are shown.
const SHOWN: usize = 12;

/// What was walked.
#[derive(Debug, Default)]
struct Tally {
    scenarios: usize,
    steps: usize,
    kills: usize,
    faults: usize,
    names: BTreeSet<&'static str>,
    failures: Vec<String>,
}

impl Tally {
    fn add(&mut self, other: Tally) {
        self.scenarios += other.scenarios;
        self.steps += other.steps;
        self.kills += other.kills;
        self.faults += other.faults;
        self.names.extend(other.names);
        self.failures.extend(other.failures);
    }

    fn note(&mut self, what: impl FnOnce() -> String, verdict: Verdict) {
        if let Err(problem) = verdict {
            self.failures.push(format!("{}: {problem}", what()));
        }
    }
}

/// Walks a part of one scenario.
fn walk(scenario: &Scenario, part: Part) -> Tally {
    let steps = scenario.steps();
    let mut tally = Tally { scenarios: 1, steps: steps.len(), ..Tally::default() };
    tally.names.extend(&steps);
    let name = |n: usize| steps.get(n - 1).copied().unwrap_or("answer");
    for (end, turn) in kill::ends(&steps).into_iter().zip((0..).map(|count| count / 2)) {
        let is_walked = scenario.pace.walks(turn % 2 == 1, end.power);
        if !is_walked || !part.takes((&scenario.name, format!("{end:?}"))) {
            continue;
        }
        tally.kills += 1;
        let at = end.at.map_or(steps.len() + 1, |(n, _)| n);
        tally.note(|| format!("{}: {end:?} ({})", scenario.name, name(at)), kill::run(scenario, end));
    }
    for n in 1..=steps.len() {
        for fault in scenario.pace.faults(n) {
            if !part.takes((&scenario.name, n, fault.0 as i32)) {
                continue;
            }
            tally.faults += 1;
            let what = || format!("{}: step {n} ({}) fails with {}", scenario.name, name(n), fault.0);
            tally.note(what, fault::run(scenario, n, fault));
        }
    }
    tally
}

/// Lets each step of a call fail, and ends the retry after each of its steps.
fn walk_retry(scenario: &Scenario, part: Part) -> Tally {
    let mut tally = Tally { scenarios: 1, ..Tally::default() };
    for fault in 1..=scenario.steps().len() {
        let steps = kill::steps_after_fault(scenario, fault);
        tally.steps += steps;
        tally.faults += 1;
        for (n, power) in (1..=steps).flat_map(|n| [(n, false), (n, true)]) {
            if !part.takes((&scenario.name, fault, n, power)) {
                continue;
            }
            tally.kills += 1;
            let end = kill::End { at: Some((n, Kill::After)), power };
            let what = || format!("{}: step {fault} fails, then {end:?}", scenario.name);
            tally.note(what, kill::run_after_fault(scenario, fault, end));
        }
    }
    tally
}

/// Whether a name has one of the words of `WALK`.
fn is_chosen(name: &str, words: &str) -> bool {
    words.split(';').any(|word| word.strip_prefix('=').map_or_else(|| name.contains(word), |all| name == all))
}

/// The scenarios whose names have one of the words of `WALK`; all of them without it.
fn chosen() -> Vec<Scenario> {
    #[allow(clippy::disallowed_methods, reason = "chosen by whoever runs the test")]
    let Ok(part) = std::env::var("WALK") else { return scenario::all() };
    let chosen: Vec<_> = scenario::all().into_iter().filter(|one| is_chosen(&one.name, &part)).collect();
    assert!(!chosen.is_empty(), "no scenario has any of these words in its name: {part}");
    chosen
}

/// Something to walk.
type Walk<'a> = Box<dyn Fn() -> Tally + Send + Sync + 'a>;

/// Walks them all, on a few threads.
fn walk_all(walks: &[(String, Walk<'_>)]) -> Tally {
    let (next, total) = (AtomicUsize::new(0), Mutex::new(Tally::default()));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                while let Some((name, walk)) = walks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let started = Instant::now();
                    let tally = walk();
                    let (steps, runs, failed) =
                        (tally.steps, tally.kills + tally.faults, tally.failures.len());
                    println!(
                        "{name}: {steps} steps, {runs} runs, {failed} failed, {:.1?}",
                        started.elapsed()
                    );
                    total.lock().expect("no thread panics").add(tally);
                }
            });
        }
    });
    total.into_inner().expect("no thread panics")
}

/// Calls whose end leaves something for the start to do.
const LEAVES_WORK: [&str; 13] = [
    "ext4: snapshot in use, in a container",
    "ext4: delete group",
    "directory: restore",
    "ext4: create",
    "ext4: delete",
    "directory: create",
    "directory: delete",
    "ext4 thick: expand in use",
    "block: expand in use",
    "ext4: stage first",
    "inline ext4: publish",
    "inline directory: unpublish",
    "directory: detach",
];

/// Calls of which every pair of a failure and an end of the retry is walked.
const RETRIED: [&str; 8] = [
    "ext4: delete snapshot",
    "ext4: modify in use provisioning=thick directIO=false discard=false",
    "ext4: create",
    "ext4: stage first",
    "ext4 thick: expand in use",
    "ext4: delete",
    "directory: create",
    "block: publish read-only beside a writer",
];

#[test]
fn every_call_survives_an_end_and_failure_at_any_step() {
    let (started, taken) = (Instant::now(), Part::of_walk());
    println!("HOSTLOOP_SEED={} HOSTLOOP_WALK_SHARE={}", taken.seed, taken.share);
    let scenarios = scenario::all();
    let mut walks: Vec<(String, Walk<'_>)> =
        vec![("first start".to_owned(), Box::new(|| start::walk_first(taken)))];
    // The long ones come first.
    for scenario in scenarios.iter().filter(|scenario| LEAVES_WORK.contains(&&*scenario.name)) {
        walks.push((format!("start after {}", scenario.name), Box::new(|| start::walk(scenario, taken))));
    }
    assert_eq!(walks.len(), 1 + LEAVES_WORK.len(), "a scenario has another name now");
    for scenario in scenarios.iter().filter(|scenario| RETRIED.contains(&&*scenario.name)) {
        walks.push((format!("retry of {}", scenario.name), Box::new(|| walk_retry(scenario, taken))));
    }
    for scenario in &scenarios {
        walks.push((scenario.name.clone(), Box::new(|| walk(scenario, taken))));
    }
    #[allow(clippy::disallowed_methods, reason = "chosen by whoever runs the test")]
    let part = std::env::var("WALK");
    if let Ok(part) = &part {
        walks.retain(|(name, _)| is_chosen(name, part));
        assert!(!walks.is_empty(), "no scenario has any of these words in its name: {part}");
    }
    let Tally { scenarios, steps, kills, faults, names, failures } = walk_all(&walks);
    if part.is_err() {
        // Of a part about as many as its share.
        let few = |all: usize| if taken.share == 1 { all } else { all * 3 / 4 / taken.share as usize };
        let (counts, least) = ((scenarios, kills, faults), (SCENARIOS, few(ENDS), few(FAULTS)));
        let fewer = counts.0 < least.0 || counts.1 < least.1 || counts.2 < least.2;
        assert!(!fewer, "{counts:?} scenarios, ends and faults are fewer than {least:?}");
    }
    let summary = format!(
        "{scenarios} scenarios, {steps} steps, {kills} kills, {faults} faults in {:.0?}; steps of {} kinds: {}",
        started.elapsed(),
        names.len(),
        names.into_iter().collect::<Vec<_>>().join(" ")
    );
    println!("{summary}");
    #[allow(clippy::disallowed_methods, reason = "a report on the real disk")]
    std::fs::write(concat!(env!("CARGO_TARGET_TMPDIR"), "/../walk-summary.txt"), summary + "\n").unwrap();
    let shown = failures.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n\n");
    let Part { seed, share } = taken;
    assert!(
        failures.is_empty(),
        "{} failures with HOSTLOOP_SEED={seed} HOSTLOOP_WALK_SHARE={share}:\n{shown}",
        failures.len()
    );
}
