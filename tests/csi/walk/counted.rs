//! What is walked is written down, so that a step, or a scenario, cannot vanish unseen: `steps.golden` has the steps of
//! each call by their names, and how many ends and faults that makes.

use std::collections::BTreeMap;
use std::sync::Mutex;

use super::scenario::{self, Scenario};
use super::{Tally, Walk, kill, walk_all};

/// The walk, its starts and its retries: never fewer.
pub const SCENARIOS: usize = 180;
pub const ENDS: usize = 6620;
pub const FAULTS: usize = 3467;

const GOLDEN: &str = include_str!("steps.golden");

/// A scenario's line, and how often it is run.
fn line(scenario: &Scenario) -> (String, Tally) {
    let steps = scenario.steps();
    let mut counts = BTreeMap::<_, usize>::new();
    steps.iter().for_each(|step| *counts.entry(*step).or_default() += 1);
    let turns = (0..).map(|count| count / 2);
    let ends = kill::ends(&steps).into_iter().zip(turns);
    let kills = ends.filter(|(end, turn)| scenario.pace.walks(turn % 2 == 1, end.power)).count();
    let faults = (1..=steps.len()).map(|n| scenario.pace.faults(n).len()).sum();
    let counts: Vec<_> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let tally = Tally { scenarios: 1, steps: steps.len(), kills, faults, ..Tally::default() };
    (format!("{}: {}", scenario.name, counts.join(", ")), tally)
}

#[test]
fn the_steps_of_every_call_are_those_that_are_known() {
    let (scenarios, lines) = (scenario::all(), Mutex::new(Vec::new()));
    let found = &lines;
    let walks: Vec<(String, Walk<'_>)> = scenarios
        .iter()
        .map(|scenario| -> (String, Walk<'_>) {
            let count = move || {
                let (line, tally) = line(scenario);
                found.lock().expect("no thread panics").push(line);
                tally
            };
            (scenario.name.clone(), Box::new(count))
        })
        .collect();
    let Tally { scenarios, steps, kills, faults, .. } = walk_all(&walks);
    let mut lines = std::mem::take(&mut *lines.lock().expect("no thread panics"));
    lines.sort();
    lines.insert(0, format!("{scenarios} scenarios, {steps} steps, {kills} ends, {faults} faults"));
    let text = lines.join("\n") + "\n";
    let new = concat!(env!("CARGO_TARGET_TMPDIR"), "/steps.golden");
    #[allow(clippy::disallowed_methods, reason = "a report on the real disk")]
    std::fs::write(new, &text).unwrap();
    let gone =
        GOLDEN.lines().filter(|line| !lines.iter().any(|other| other == line)).map(|l| format!("-{l}"));
    let come =
        lines.iter().filter(|line| !GOLDEN.lines().any(|other| other == *line)).map(|l| format!("+{l}"));
    let difference: Vec<_> = gone.chain(come).collect();
    let where_to = "tests/csi/walk/steps.golden";
    assert!(
        text == GOLDEN,
        "not what {where_to} has; if that is meant, {new} is it:\n{}",
        difference.join("\n")
    );
}
