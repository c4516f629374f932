//! Mutation testing, quickly: all mutants that cargo-mutants finds are built into one set of test programs, each behind
//! a switch, and each is tested with the tests that reach it. See CONTRIBUTING.md.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "rules of the driver, and this is none"
)]

mod list;
mod remembered;
mod report;
mod run;
mod switch;
mod tree;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use list::{MODULES, Mutant};
use remembered::Remembered;
use run::{Choice, ON_THE_KERNEL, Programs, Verdict};

/// Anything that goes wrong is told and ends the run.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

const USAGE: &str = "Usage: mutants [--module NAME]... [--sample N] [--seed N] [--shard I/N] [--diff FILE] [--total N] [--minutes N] [--jobs N] [--kernel]

  --module   driver, store, backend, wire, cluster or os/linux; all without it
  --file     files with this in their path only
  --sample   so many mutants of each module, chosen by the seed; all without it
  --shard    the I-th of N parts of all, in the order that the seed decides
  --diff     only mutants of the lines that this diff changes; a survivor is a failure
  --total    so many at most, chosen by the seed
  --minutes  so long after everything is built; the table tells what was not tested
  --jobs     so many at once (2)
  --kernel   with tests on the real kernel (root)";

/// What is tested, and how.
struct Options {
    modules: Vec<String>,
    file: String,
    sample: usize,
    seed: u64,
    shard: (usize, usize),
    diff: Option<PathBuf>,
    total: usize,
    limit: Option<Duration>,
    jobs: usize,
    kernel: bool,
}

/// What a test may take by itself before it is put off to the end, where a change is tested.
const SOON: Duration = Duration::from_secs(4);

/// The cheapest tests that can catch a mutant of any of these modules. The walk, and what is like it, takes minutes for each.
const TESTS: [Choice; 4] = [
    Choice { program: "lib", only: &[], skipped: &[] },
    Choice { program: "contract", only: &[], skipped: &[] },
    Choice { program: "csi", only: &[], skipped: &["walk::", "pull::ends::", LONG_LIST, LONG_ANSWER] },
    Choice { program: "cluster", only: &[], skipped: &[] },
];
/// These need minutes beside other tests.
const LONG_LIST: &str = "list_pages::a_client_without_a_limit_reads_25000_volumes";
const LONG_ANSWER: &str = "list_pages::no_answer_is_too_large_whatever_the_entries";
/// What only the real kernel can show.
const KERNEL: Choice = Choice {
    program: ON_THE_KERNEL,
    only: &[
        "os_contract::",
        "os_copies::",
        "copy_tree::",
        "blocks::",
        "copy_on_write::",
        "freeze::",
        "health::",
        "limit::",
    ],
    skipped: &[],
};

fn options() -> Result<Options> {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let mut options = Options {
        modules: Vec::new(),
        file: String::new(),
        sample: 0,
        seed: now,
        shard: (1, 1),
        diff: None,
        total: 0,
        limit: None,
        jobs: 2,
        kernel: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut value = || arguments.next().ok_or(USAGE);
        match argument.as_str() {
            "--module" => options.modules.push(value()?),
            "--file" => options.file = value()?,
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
            "--jobs" => options.jobs = value()?.parse()?,
            _ => return Err(USAGE.into()),
        }
    }
    let (part, parts) = options.shard;
    let known = |name: &String| MODULES.iter().any(|(module, ..)| module == name);
    if part == 0 || part > parts || options.jobs == 0 || !options.modules.iter().all(known) {
        return Err(USAGE.into());
    }
    Ok(options)
}

/// The numbers of the mutants that are tested, in the order in which they are.
fn chosen(options: &Options, mutants: &[Mutant]) -> Vec<usize> {
    let mut chosen = Vec::new();
    let wanted =
        |name: &str| options.modules.is_empty() || options.modules.iter().any(|module| module == name);
    for (module, ..) in MODULES.iter().filter(|(name, ..)| wanted(name)) {
        let of_module = |mutant: &Mutant| mutant.module() == *module && mutant.file.contains(&options.file);
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
    let mut choices = Vec::from(TESTS);
    if options.kernel {
        choices.push(KERNEL);
    }
    let names: Vec<&str> = choices.iter().map(|choice| choice.program).collect();
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
    let programs = run::Programs { paths, order: names, tree: tree.tree.clone(), scratch: run::scratch()? };
    let (verdicts, broken) = verdicts(options, &programs, &choices, &mutants, &viable, &tree.target)?;
    let enough = report::report(&mutants, &chosen, &absent, &verdicts);
    std::fs::remove_dir_all(&programs.scratch)?;
    println!("seed {}, {} s", options.seed, started.elapsed().as_secs());
    if broken > 0 {
        println!("{broken} tests fail without a mutant");
        return Ok(false);
    }
    Ok(if options.diff.is_some() { !verdicts.iter().any(|(_, verdict)| verdict.is_alive()) } else { enough })
}

/// Tests these mutants. Answers the verdicts, and how many tests fail without a mutant.
///
/// All tests are run by themselves before the first mutant is tested, so that what is tested in a given time is a fair sample. Of
/// a change it is of more use to know soon what there is: one program after the other, and only mutants that live on
/// need the next one, and at last the tests that take long.
fn verdicts(
    options: &Options,
    programs: &Programs,
    choices: &[Choice],
    mutants: &[Mutant],
    viable: &[usize],
    target: &Path,
) -> Result<(Vec<(usize, Verdict)>, usize)> {
    let began = Instant::now();
    let is_over = || options.limit.is_some_and(|limit| began.elapsed() > limit);
    let mut rounds = Vec::new();
    for choice in choices {
        rounds.push(programs.names(choice)?);
    }
    let limit = if options.diff.is_some() { SOON } else { run::LIMIT };
    if options.diff.is_none() {
        rounds = vec![rounds.concat()];
    }
    rounds.push(Vec::new());
    let last = rounds.len() - 1;
    let remembered = Remembered::load(target, &programs.paths);
    let (mut all, mut slow, mut broken) = (Vec::new(), Vec::new(), 0);
    let mut ends: BTreeMap<usize, Verdict> = BTreeMap::new();
    let mut open = viable.to_vec();
    for (round, mut wanted) in rounds.into_iter().enumerate() {
        let limit = if round == last { run::LIMIT } else { limit };
        if round == last {
            wanted = std::mem::take(&mut slow);
        }
        if wanted.is_empty() || open.is_empty() {
            continue;
        }
        let reached = programs.reach(&wanted, limit, options.jobs, &remembered, is_over)?;
        println!("{} tests, each by itself, after {} s", reached.tests.len(), began.elapsed().as_secs());
        for (program, test) in &reached.broken {
            println!("fails without a mutant, and is left out: {program}: {test}");
        }
        broken += reached.broken.len();
        slow.extend(reached.slow);
        all.extend(reached.tests.iter().cloned());
        remembered.save(&all, &programs.paths)?;
        let told = |count, number: usize, begun: Instant, verdict: &Verdict| {
            let name = mutants.get(number - 1).map_or("", |mutant| &mutant.name);
            let seconds = begun.elapsed().as_secs_f64();
            println!("{count:>5}/{} {seconds:>5.1} s  {name}  {verdict:?}", open.len());
        };
        let (now, stop) = (Mutex::new(Vec::new()), AtomicBool::new(false));
        run::each(options.jobs, &open, &stop, |_, number| {
            if is_over() {
                stop.store(true, Ordering::Relaxed);
                return Ok(());
            }
            let begun = Instant::now();
            let verdict = programs.verdict(*number, &reached.tests, options.jobs)?;
            let mut now = run::lock(&now);
            now.push((*number, verdict.clone()));
            told(now.len(), *number, begun, &verdict);
            Ok(())
        })?;
        let now = now.into_inner().unwrap_or_default();
        // What was not tested with all that there is has no verdict, unless it is dead.
        let complete = now.len() == open.len() && !is_over();
        for (number, verdict) in now {
            // That an earlier program reached it is more than that this one does not.
            if !(verdict == Verdict::NotReached && ends.contains_key(&number)) {
                ends.insert(number, verdict);
            }
        }
        if !complete {
            ends.retain(|_, verdict| options.diff.is_none() || !verdict.is_alive());
            println!("the time is over: {} have no verdict", viable.len() - ends.len());
            break;
        }
        open.retain(|number| ends.get(number).is_none_or(Verdict::is_alive));
    }
    Ok((ends.into_iter().collect(), broken))
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
