//! The walk on the real kernel: the driver's process is ended at each system call that changes something, in every
//! mutating call on every kind of volume, and each of these system calls fails. The positions are found by tracing the
//! call once, so that a new one is walked the day it is written.
//!
//! `make kernel-walk` walks all of it. `KERNEL_WALK` chooses scenarios, `KERNEL_WALK_AT` positions, by words of their
//! names with semicolons in between (`a&b`: with both), and `KERNEL_WALK_SHARE=1/8` walks an eighth of them. What every run of the tests
//! walks is chosen by a seed, which is printed; `HOSTLOOP_SEED` gives it again.

mod bench;
mod check;
mod damage;
mod first_start;
mod model;
mod plan;
mod pull;
mod run;
mod scenario;
mod seen;
mod system_call;
mod tracer;

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime};

use self::bench::Disk;
use self::first_start::first_start;
use self::plan::Plan;
use self::pull::Pull;
use self::run::{Outcome, Place};
use self::scenario::Scenario;
use self::seen::{Verdict, ensure};
use self::tracer::Change;

/// Benches that are used at the same time: most of their time they wait, for the kernel or for a program that stands still.
const THREADS: usize = 8;
/// So many benches share a scenario: else the longest ones are alone at the end.
const LANES: usize = 4;
/// So many failures are shown.
const SHOWN: usize = 20;
/// How long the part that every run of the tests walks goes on.
const FOR: Duration = Duration::from_secs(20);

/// What was walked.
#[derive(Debug, Default)]
struct Tally {
    scenarios: usize,
    positions: usize,
    kills: usize,
    faults: usize,
    /// Positions that did not come again.
    missed: Vec<String>,
    /// Retries that succeeded only when they were made again.
    late: Vec<String>,
    failures: Vec<String>,
    /// Of all benches together.
    time: Duration,
}

impl Tally {
    /// Of a scenario, whose lanes have all found the same positions.
    fn of_scenario(lanes: Vec<Tally>) -> Tally {
        let positions = lanes.iter().map(|lane| lane.positions).max().unwrap_or_default();
        let mut tally = Tally::default();
        lanes.into_iter().for_each(|lane| tally.add(lane));
        Tally { scenarios: 1, positions, ..tally }
    }

    fn add(&mut self, other: Tally) {
        self.scenarios += other.scenarios;
        self.positions += other.positions;
        self.kills += other.kills;
        self.faults += other.faults;
        self.missed.extend(other.missed);
        self.late.extend(other.late);
        self.failures.extend(other.failures);
        self.time += other.time;
    }

    fn note(&mut self, name: &str, plan: &Plan, outcome: Outcome) {
        let kill = matches!(plan.action, plan::Action::Kill(..));
        *(if kill { &mut self.kills } else { &mut self.faults }) += 1;
        let what = format!("{name}: {plan}");
        match outcome {
            Ok(done) => {
                self.late.extend(done.late.map(|status| format!("{what}: {status}")));
                self.missed.extend((!done.met).then_some(what));
            }
            Err(problem) => {
                println!("FAILED {what}: {problem}");
                self.failures.push(format!("{what}: {problem}"));
            }
        }
    }

    fn line(&self, name: &str) -> String {
        let Tally { positions, kills, faults, missed, late, failures, time, .. } = self;
        let (missed, late, failed) = (missed.len(), late.len(), failures.len());
        format!(
            "{name:<62} {positions:>5} {kills:>6} {faults:>6} {missed:>6} {late:>5} {failed:>6} {time:>9.1?}"
        )
    }
}

const HEAD: &str = "scenario                                                       calls  kills faults missed  late failed      time";

#[allow(clippy::disallowed_methods, reason = "chosen by whoever runs the test")]
fn words(variable: &str) -> Option<Vec<String>> {
    let words = std::env::var(variable).ok().filter(|words| !words.is_empty())?;
    Some(words.split(';').map(str::to_owned).collect())
}

fn is_chosen(name: &str, words: Option<&Vec<String>>) -> bool {
    words.is_none_or(|words| words.iter().any(|word| word.split('&').all(|part| name.contains(part))))
}

/// Which of how many parts: `KERNEL_WALK_SHARE=1/8`.
fn share() -> (usize, usize) {
    let Some(words) = words("KERNEL_WALK_SHARE") else { return (0, 1) };
    let (part, of) = words[0].split_once('/').expect("such as 1/8");
    let (part, of): (usize, usize) = (part.parse().expect("a number"), of.parse().expect("a number"));
    assert!((1..=of).contains(&part), "a part from 1 to {of}");
    (part - 1, of)
}

/// What is walked.
enum Subject {
    /// A call of a driver that runs, or the start after it.
    Call(Scenario),
    /// The first start on this disk.
    FirstStart(Disk),
    /// CreateVolume from what another node has.
    Pull(Pull),
}

/// Where it is walked.
enum Walk<'a> {
    Call(Box<Place<'a>>),
    FirstStart(Disk),
    Pull(Box<pull::Place>),
}

impl Subject {
    /// All that there are.
    fn all() -> Vec<Subject> {
        let disks = [Disk::Machine, Disk::Sharing("xfs"), Disk::Managed("xfs"), Disk::Managed("btrfs")];
        let calls = scenario::all().into_iter().map(Subject::Call);
        calls.chain(disks.map(Subject::FirstStart)).chain(Pull::all().map(Subject::Pull)).collect()
    }

    fn name(&self) -> String {
        match self {
            Subject::Call(scenario) => scenario.name.clone(),
            Subject::FirstStart(disk) => format!("first start{}", disk.name()),
            Subject::Pull(pull) => pull.name(),
        }
    }

    fn walk(&self) -> Walk<'_> {
        match self {
            Subject::Call(scenario) => Walk::Call(Box::new(Place::new(scenario))),
            Subject::FirstStart(disk) => Walk::FirstStart(*disk),
            Subject::Pull(pull) => Walk::Pull(Box::new(pull::Place::new(*pull))),
        }
    }
}

impl Walk<'_> {
    /// What it changes when nothing happens to it.
    fn record(&mut self) -> Result<Vec<Change>, String> {
        let changes = match self {
            Walk::Call(place) => place.record(),
            Walk::FirstStart(disk) => first_start(*disk, None).map(|(_, changes)| changes),
            Walk::Pull(place) => place.record(),
        }?;
        ensure!(!changes.is_empty(), "no system call changes anything");
        Ok(changes)
    }

    /// Does it with something happening at one position.
    fn at(&mut self, plan: &Plan) -> Outcome {
        match self {
            Walk::Call(place) => place.walk(plan),
            Walk::FirstStart(disk) => first_start(*disk, Some(plan)).map(|(done, _)| done),
            Walk::Pull(place) => place.walk(plan),
        }
    }

    /// Nothing is left.
    fn finish(self) -> Verdict {
        match self {
            Walk::Call(place) => place.finish(),
            Walk::FirstStart(_) => Ok(()),
            Walk::Pull(place) => place.finish(),
        }
    }
}

/// Walks a lane of one of them.
fn walk(subject: &Subject, (part, of): (usize, usize), lane: usize) -> Tally {
    let started = Instant::now();
    let mut tally = Tally::default();
    let (name, mut place) = (subject.name(), subject.walk());
    match place.record() {
        Err(problem) => tally.failures.push(format!("{name}: traced: {problem}")),
        Ok(changes) => {
            tally.positions = changes.len();
            let at = words("KERNEL_WALK_AT");
            if lane == 0 && words("KERNEL_WALK_LIST").is_some() {
                changes.iter().for_each(|change| println!("{name}: {} ({})", change.key, change.nth));
            }
            let plans = Plan::all(&changes).into_iter().skip(part).step_by(of);
            let chosen = plans.filter(|plan| is_chosen(&plan.to_string(), at.as_ref()));
            for plan in chosen.skip(lane).step_by(LANES) {
                tally.note(&name, &plan, place.at(&plan));
            }
        }
    }
    if let Err(problem) = place.finish() {
        tally.failures.push(format!("{name}, at the end: {problem}"));
    }
    tally.time = started.elapsed();
    tally
}

#[test]
#[ignore = "hours: make kernel-walk"]
fn every_call_survives_an_end_at_any_system_call() {
    let (started, chosen, share) = (Instant::now(), words("KERNEL_WALK"), share());
    let all = Subject::all();
    let scenarios: Vec<_> = all.iter().filter(|one| is_chosen(&one.name(), chosen.as_ref())).collect();
    assert!(!scenarios.is_empty(), "no scenario has any of these words in its name: {chosen:?}");
    let (next, tallies) = (AtomicUsize::new(0), Mutex::new(BTreeMap::<String, Vec<Tally>>::new()));
    println!("{HEAD}");
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(scenario) = scenarios.get(number / LANES) else { return };
                    let tally = walk(scenario, share, number % LANES);
                    let mut tallies = tallies.lock().expect("no thread panics");
                    let lanes = tallies.entry(scenario.name()).or_default();
                    lanes.push(tally);
                    if lanes.len() == LANES {
                        let tally = Tally::of_scenario(std::mem::take(lanes));
                        println!("{}", tally.line(&scenario.name()));
                        lanes.push(tally);
                    }
                }
            });
        }
    });
    let mut total = Tally::default();
    println!("\n{HEAD}");
    for (name, mut tallies) in tallies.into_inner().expect("no thread panics") {
        let tally = tallies.pop().expect("every lane was walked");
        println!("{}", tally.line(&name));
        total.add(tally);
    }
    total.time = started.elapsed();
    println!("{}", total.line(&format!("{} scenarios", total.scenarios)));
    total.late.iter().for_each(|late| println!("the first retry failed: {late}"));
    total.missed.iter().for_each(|missed| println!("did not come again: {missed}"));
    judge(&total);
}

fn judge(tally: &Tally) {
    let shown = tally.failures.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(tally.failures.is_empty(), "{} failures:\n{shown}", tally.failures.len());
    assert!(tally.kills + tally.faults > 0, "nothing was walked");
    let runs = tally.kills + tally.faults;
    assert!(tally.missed.len() * 10 <= runs, "{} of {runs} did not come again", tally.missed.len());
}

/// The next number of a sequence (Knuth's MMIX), below a bound.
fn below(state: &mut u64, bound: usize) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    usize::try_from(*state >> 33).expect("31 bits") % bound
}

#[test]
fn a_part_of_the_walk_ends_well() {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("a clock").as_secs();
    let seed = words("HOSTLOOP_SEED").map_or(now, |words| words[0].parse().expect("a number"));
    println!("HOSTLOOP_SEED={seed}");
    let (started, mut state, all, mut tally) = (Instant::now(), seed, Subject::all(), Tally::default());
    while started.elapsed() < FOR {
        let subject = &all[below(&mut state, all.len())];
        let (name, mut place) = (subject.name(), subject.walk());
        let changes = place.record().unwrap_or_else(|problem| panic!("{name}: {problem}"));
        let plans = Plan::all(&changes);
        for _ in 0..4 {
            let plan = &plans[below(&mut state, plans.len())];
            println!("{name}: {plan}");
            tally.note(&name, plan, place.at(plan));
        }
        place.finish().unwrap_or_else(|problem| panic!("{name}, at the end: {problem}"));
    }
    let Tally { kills, faults, missed, .. } = &tally;
    println!("{kills} kills, {faults} faults, {} did not come again", missed.len());
    assert!(tally.failures.is_empty(), "HOSTLOOP_SEED={seed}: {}", tally.failures.join("\n\n"));
    assert!(kills + faults > missed.len(), "nothing was walked");
}
