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

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use list::{MODULES, Mutant};
use run::{Choice, ON_THE_KERNEL, Verdict};

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
    let programs = run::Programs { paths, order: names, tree: tree.tree.clone(), scratch: run::scratch()? };
    let (tests, broken) = programs.reach(&choices, options.jobs, &tree.target)?;
    println!("{} tests, each by itself, after {} s", tests.len(), started.elapsed().as_secs());
    for test in &broken {
        println!("fails without a mutant, and is left out: {test}");
    }
    let viable: Vec<usize> = chosen
        .iter()
        .copied()
        .filter(|number| !absent.unviable.contains(number) && !absent.left_out.contains(number))
        .collect();
    let (verdicts, began) = (Mutex::new(Vec::new()), Instant::now());
    let stop = AtomicBool::new(false);
    run::each(options.jobs, &viable, &stop, |_, number| {
        if options.limit.is_some_and(|limit| began.elapsed() > limit) {
            stop.store(true, Ordering::Relaxed);
            return Ok(());
        }
        let begun = Instant::now();
        let verdict = programs.verdict(*number, &tests, options.jobs)?;
        let mut verdicts = run::lock(&verdicts);
        verdicts.push((*number, verdict.clone()));
        if let Some(mutant) = mutants.get(number - 1) {
            println!(
                "{:>5}/{} {:>5.1} s  {}  {verdict:?}",
                verdicts.len(),
                viable.len(),
                begun.elapsed().as_secs_f64(),
                mutant.name
            );
        }
        Ok(())
    })?;
    let verdicts = verdicts.into_inner().unwrap_or_default();
    let survived = report::report(&mutants, &chosen, &absent, &verdicts);
    std::fs::remove_dir_all(&programs.scratch)?;
    println!("seed {}, {} s", options.seed, started.elapsed().as_secs());
    let has_survivor =
        verdicts.iter().any(|(_, verdict)| matches!(verdict, Verdict::Survived | Verdict::NotReached));
    if !broken.is_empty() {
        println!("{} tests fail without a mutant", broken.len());
        return Ok(false);
    }
    Ok(if options.diff.is_some() { !has_survivor } else { survived })
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
