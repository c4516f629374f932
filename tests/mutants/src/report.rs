//! The table of scores, and the survivors.

use crate::list::{MODULES, Mutant};
use crate::run::Verdict;
use crate::tree::Absent;

/// Behind a survivor's name.
pub const NOT_REACHED: &str = " (no test reaches it)";

/// Prints both; answers whether each module has the score that is asked of it.
pub fn report(mutants: &[Mutant], chosen: &[usize], absent: &Absent, verdicts: &[(usize, Verdict)]) -> bool {
    let mutant = |number: usize| mutants.get(number - 1);
    let mut survivors: Vec<(&str, &Verdict)> = Vec::new();
    for (number, verdict) in verdicts {
        if let (Some(mutant), Verdict::Survived | Verdict::NotReached) = (mutant(*number), verdict) {
            survivors.push((&mutant.name, verdict));
        }
    }
    survivors.sort_by_key(|(name, _)| *name);
    println!("\nsurvivors: {}", survivors.len());
    for (name, verdict) in &survivors {
        println!("  {name}{}", if **verdict == Verdict::NotReached { NOT_REACHED } else { "" });
    }
    println!(
        "\n{:<9} {:>7} {:>10} {:>8} {:>7} {:>7} {:>8} {:>8} {:>7} {:>6}",
        "module",
        "chosen",
        "uncompiled",
        "left-out",
        "tested",
        "killed",
        "timeouts",
        "survived",
        "score",
        "asked"
    );
    let mut enough = true;
    for (module, _, asked) in MODULES {
        let of = |number: &usize| mutant(*number).is_some_and(|mutant| mutant.module() == module);
        let count = |kind: fn(&Verdict) -> bool| {
            verdicts.iter().filter(|(number, verdict)| of(number) && kind(verdict)).count()
        };
        let (killed, timeouts) = (
            count(|verdict| matches!(verdict, Verdict::Killed(_))),
            count(|verdict| *verdict == Verdict::TimedOut),
        );
        let survived = count(|verdict| matches!(verdict, Verdict::Survived | Verdict::NotReached));
        let chosen: Vec<&usize> = chosen.iter().filter(|number| of(number)).collect();
        let absent_in = |absent: &std::collections::BTreeSet<usize>| {
            chosen.iter().filter(|number| absent.contains(number)).count()
        };
        let tested = killed + timeouts + survived;
        if tested == 0 {
            continue;
        }
        let score = 100.0 * (killed + timeouts) as f64 / tested as f64;
        enough &= score >= asked;
        println!(
            "{module:<9} {:>7} {:>10} {:>8} {tested:>7} {killed:>7} {timeouts:>8} {survived:>8} {score:>6.1}% {asked:>5}%",
            chosen.len(),
            absent_in(&absent.unviable),
            absent_in(&absent.left_out),
        );
    }
    enough
}
