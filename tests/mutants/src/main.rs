//! Mutation testing, quickly: all mutants that cargo-mutants finds are built into one set of test programs, each behind
//! a switch, and each is tested with the tests that reach it. See docs/development/mutants.md.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "rules of the driver, and this is none"
)]

mod choices;
mod list;
mod remembered;
mod report;
mod run;
mod switch;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use choices::{KERNEL, LAST, LAST_ON_THE_KERNEL, Name, PORTIONED, TESTS};
use list::{MODULES, Mutant};
use remembered::Remembered;
use run::{Programs, Verdict};

/// Anything that goes wrong is told and ends the run.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "Usage: mutants [--module NAME]... [--file PART] [--only FILE] [--first] [--last] [--sample N] [--seed N] [--shard I/N] [--diff FILE] [--total N] [--minutes N] [--jobs N] [--kernel] [--each N]

  --module   driver, store, backend, wire, cluster or kernel/linux; all without it
  --file     files with this in their path only
  --only     those that this file names, one a line, as a run prints its survivors
  --first    without what takes long: some of the survivors are not noticed by what is quick only
  --last     with what takes long only: of mutants that the other tests are known not to notice
  --sample   so many mutants of each module, chosen by the seed; all without it
  --shard    the I-th of N parts of all, in the order that the seed decides
  --diff     only mutants of the lines that this diff changes; a survivor is a failure
  --total    so many at most, chosen by the seed
  --minutes  so long after everything is built; the table tells what was not tested
  --jobs     so many at once (2)
  --kernel   with tests on the real kernel (root)
  --each     so many seconds of cheap tests for a mutant that the quickest do not notice (15)";

/// What is tested, and how.
struct Options {
    modules: Vec<String>,
    file: String,
    only: Option<BTreeSet<String>>,
    first: bool,
    last: bool,
    sample: usize,
    seed: u64,
    shard: (usize, usize),
    diff: Option<PathBuf>,
    total: usize,
    limit: Option<Duration>,
    jobs: usize,
    kernel: bool,
    cheap: Duration,
}

/// What a test may take by itself before it is put off to the end, where a change is tested.
const SOON: Duration = Duration::from_secs(4);

fn options() -> Result<Options> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let mut options = Options {
        modules: Vec::new(),
        file: String::new(),
        only: None,
        first: false,
        last: false,
        sample: 0,
        seed: now,
        shard: (1, 1),
        diff: None,
        total: 0,
        limit: None,
        jobs: 2,
        kernel: false,
        cheap: run::CHEAP,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match argument.as_str() {
            "--module" => options.modules.push(value()?),
            "--file" => options.file = value()?,
            "--only" => options.only = Some(named(&std::fs::read_to_string(value()?)?)),
            "--first" => options.first = true,
            "--last" => options.last = true,
            "--sample" => options.sample = value()?.parse()?,
            "--seed" => options.seed = value()?.parse()?,
            "--shard" => {
                let value = value()?;
                let (part, parts) = value.split_once('/').ok_or(USAGE)?;
                options.shard = (part.parse()?, parts.parse()?);
            }
            "--diff" => options.diff = Some(std::path::absolute(value()?)?),
            "--total" => options.total = value()?.parse()?,
            "--minutes" => options.limit = Some(Duration::from_secs(60 * value()?.parse::<u64>()?)),
            "--kernel" => options.kernel = true,
            "--each" => options.cheap = Duration::from_secs(value()?.parse()?),
            "--jobs" => options.jobs = value()?.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    let (part, parts) = options.shard;
    let known = |name: &String| MODULES.iter().any(|(module, ..)| module == name);
    // Both would leave no test, and a score of nothing.
    if (options.first && options.last)
        || part == 0
        || part > parts
        || options.jobs == 0
        || !options.modules.iter().all(known)
    {
        return Err(USAGE.into());
    }
    Ok(options)
}

/// The mutants that a list of survivors names.
fn named(text: &str) -> BTreeSet<String> {
    let name = |line: &str| line.trim().trim_end_matches(report::NOT_REACHED).to_owned();
    text.lines().map(name).collect()
}

/// The numbers of the mutants that are tested, in the order in which they are.
fn chosen(options: &Options, mutants: &[Mutant]) -> Vec<usize> {
    let mut chosen = Vec::new();
    let wanted =
        |name: &str| options.modules.is_empty() || options.modules.iter().any(|module| module == name);
    for (module, ..) in MODULES.iter().filter(|(name, ..)| wanted(name)) {
        let of_module = |mutant: &Mutant| {
            mutant.module() == *module
                && mutant.file.contains(&options.file)
                && options.only.as_ref().is_none_or(|only| only.contains(&mutant.name))
        };
        let ordered =
            list::sample(mutants.iter().enumerate().filter(|(_, mutant)| of_module(mutant)), options.seed);
        let (part, parts) = options.shard;
        let sharded = ordered.into_iter().enumerate().filter(|(at, _)| at % parts == part - 1);
        let count = if options.sample == 0 { usize::MAX } else { options.sample };
        chosen.extend(sharded.map(|(_, index)| index + 1).take(count).enumerate());
    }
    // In turns, so that a run that is ended has some of each module.
    chosen.sort_by_key(|(turn, _)| *turn);
    chosen.into_iter().map(|(_, number)| number).collect()
}

/// The mutants that are built: all, or those of the change, no more of them than wanted.
fn built(options: &Options, root: &Path) -> Result<Vec<Mutant>> {
    let globs: Vec<String> = MODULES.iter().map(|(_, path, _)| format!("{path}**")).collect();
    let mutants = list::list(root, &globs, options.diff.as_deref())?;
    println!("{} mutants, seed {}", mutants.len(), options.seed);
    if options.total == 0 || mutants.len() <= options.total {
        return Ok(mutants);
    }
    println!("{} of them are chosen by the seed", options.total);
    let ordered = list::sample(mutants.iter().enumerate(), options.seed);
    Ok(ordered.into_iter().take(options.total).filter_map(|index| mutants.get(index).cloned()).collect())
}

fn test(options: &Options) -> Result<bool> {
    let started = Instant::now();
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let mutants = built(options, &root)?;
    let chosen = chosen(options, &mutants);
    if chosen.is_empty() {
        return Ok(true);
    }
    let tree = tree::Tree::new(&root)?;
    let mut names: Vec<&str> = TESTS.iter().map(|choice| choice.program).collect();
    names.extend(PORTIONED.iter().filter(|program| **program != "csi"));
    if options.kernel {
        names.push(KERNEL.program);
    }
    let (absent, paths) = tree.build(&mutants, &names)?;
    println!(
        "built after {} s: {} mutants do not compile, {} cannot be switched",
        started.elapsed().as_secs(),
        absent.unviable.len(),
        absent.left_out.len()
    );
    let viable: Vec<usize> = chosen
        .iter()
        .copied()
        .filter(|number| !absent.unviable.contains(number) && !absent.left_out.contains(number))
        .collect();
    if viable.is_empty() {
        println!("nothing is left to test");
        return Ok(true);
    }
    let programs = run::Programs {
        paths,
        order: names,
        tree: tree.tree.clone(),
        scratch: run::scratch()?,
        killers: Mutex::default(),
        cheap: options.cheap,
    };
    let (verdicts, broken) = verdicts(options, &programs, &mutants, &viable, &tree.target)?;
    let enough = report::report(&mutants, &chosen, &absent, &verdicts);
    std::fs::remove_dir_all(&programs.scratch)?;
    println!("seed {}, {} s", options.seed, started.elapsed().as_secs());
    if broken > 0 {
        println!("{broken} tests fail without a mutant");
        return Ok(false);
    }
    Ok(if options.diff.is_some() { !verdicts.iter().any(|(_, verdict)| verdict.is_alive()) } else { enough })
}

/// Tests that are asked one after the other, and only by mutants that those before left alive.
struct Round {
    tests: Vec<Name>,
    /// What a test may take by itself.
    limit: Duration,
    /// Of what takes long: a test at a time, and not more of them than a mutant has time for.
    is_last: bool,
}

/// The rounds, in their order. All cheap tests are run by themselves before the first mutant is tested, so that what is
/// tested in a given time is a fair sample. Of a change it is of more use to know soon what there is: one program after
/// the other, and those that take long behind them.
fn rounds(options: &Options, programs: &Programs) -> Result<Vec<Round>> {
    let mut cheap = Vec::from(TESTS);
    let mut dear = Vec::from(LAST);
    if options.kernel {
        cheap.push(KERNEL);
        dear.extend([KERNEL, LAST_ON_THE_KERNEL]);
    }
    let names = |choices: &[choices::Choice]| -> Result<Vec<Vec<Name>>> {
        choices.iter().map(|choice| programs.names(choice)).collect()
    };
    let cheap = names(&cheap)?;
    let mut last = names(&dear)?.concat();
    last.extend(choices::portions(&programs.tree)?);
    let limit = if options.diff.is_some() { SOON } else { run::LIMIT };
    let round = |tests| Round { tests, limit, is_last: false };
    let mut rounds: Vec<Round> = match options.diff.is_some() {
        true => cheap.into_iter().map(round).collect(),
        false => vec![round(cheap.concat())],
    };
    // Those that turn out to be slow.
    rounds.push(Round { tests: Vec::new(), limit: run::LIMIT, is_last: false });
    rounds.push(Round { tests: last, limit: run::LIMIT, is_last: true });
    rounds.retain(|round| if round.is_last { !options.first } else { !options.last });
    Ok(rounds)
}

/// Tests these mutants. Answers the verdicts, and how many tests fail without a mutant.
fn verdicts(
    options: &Options,
    programs: &Programs,
    mutants: &[Mutant],
    viable: &[usize],
    target: &Path,
) -> Result<(Vec<(usize, Verdict)>, usize)> {
    let began = Instant::now();
    let is_over = || options.limit.is_some_and(|limit| began.elapsed() > limit);
    let remembered = Remembered::load(target, &programs.paths)?;
    let (mut slow, mut broken) = (Vec::new(), 0);
    let mut ends: BTreeMap<usize, Verdict> = BTreeMap::new();
    let mut open = viable.to_vec();
    let rounds = rounds(options, programs)?;
    for Round { mut tests, limit, is_last } in rounds {
        // Behind the rounds of which some were put off.
        if tests.is_empty() {
            tests = std::mem::take(&mut slow);
        }
        if tests.is_empty() || open.is_empty() {
            continue;
        }
        let reached = programs.reach(&tests, limit, options.jobs, &remembered, is_over)?;
        println!("{} tests, each by itself, after {} s", reached.tests.len(), began.elapsed().as_secs());
        for name in &reached.broken {
            println!("fails without a mutant, and is left out: {name}");
        }
        broken += reached.broken.len();
        slow.extend(reached.slow);
        let now = one_round(options, programs, mutants, &open, &reached.tests, is_last, &is_over)?;
        let complete = now.len() == open.len() && !is_over();
        for (number, verdict) in now {
            // That an earlier program reached it is more than that this one does not.
            if !(verdict == Verdict::NotReached && ends.contains_key(&number)) {
                ends.insert(number, verdict);
            }
        }
        if !complete {
            // In a change, what was not tested with all that there is has no verdict, unless it is dead. Elsewhere a score without
            // the survivors would be too high.
            ends.retain(|_, verdict| options.diff.is_none() || !verdict.is_alive());
            println!("the time is over: {} have no verdict", viable.len() - ends.len());
            break;
        }
        open.retain(|number| ends.get(number).is_none_or(Verdict::is_alive));
    }
    Ok((ends.into_iter().collect(), broken))
}

/// Tests each of the mutants in `open` with those of `tests` that reach it, and tells what becomes of it.
fn one_round(
    options: &Options,
    programs: &Programs,
    mutants: &[Mutant],
    open: &[usize],
    tests: &[run::Test],
    is_last: bool,
    is_over: &(dyn Fn() -> bool + Sync),
) -> Result<Vec<(usize, Verdict)>> {
    let (now, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
    run::each(options.jobs, open, &stop, |_, number| {
        if is_over() {
            stop.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let begun = Instant::now();
        let Some(Mutant { name, file, .. }) = mutants.get(number - 1) else { return Ok(()) };
        let verdict = match is_last {
            true => programs.last_verdict(*number, file, tests)?,
            false => programs.verdict(*number, file, tests, options.jobs)?,
        };
        let mut now = run::lock(&now);
        now.push((*number, verdict.clone()));
        let (count, seconds) = (now.len(), begun.elapsed().as_secs_f64());
        println!("{count:>5}/{} {seconds:>5.1} s  {number} {name}  {verdict:?}", open.len());
        Ok(())
    })?;
    Ok(now.into_inner().unwrap_or_default())
}

fn main() -> ExitCode {
    match options().and_then(|options| test(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("mutants: {error}");
            ExitCode::from(2)
        }
    }
}
