//! Runs tests: each by itself once to see which mutants it reaches, then for each mutant those that reach it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::Result;
use crate::choices::{Choice, KNOWN_STEPS, Name, ON_THE_KERNEL};
use crate::remembered::Remembered;

/// A test that hangs without any mutant is broken.
pub const LIMIT: Duration = Duration::from_secs(180);
/// What the next of a mutant's tests may take longer to end than the longest of them without it, and a factor; the machine may
/// be busy.
const PATIENCE: Duration = Duration::from_secs(30);
const FACTOR: u32 = 4;
/// So long a mutant is tested with what is cheap, by the times that these tests need by themselves, unless it is said otherwise.
pub const CHEAP: Duration = Duration::from_secs(15);
/// So long a mutant is tested with one portion after the other of what is exhaustive.
const BUDGET: Duration = Duration::from_secs(60);
/// Where the system calls are.
const KERNEL_MODULE: &str = "crates/kernel/src/linux/";
/// So many of the quickest tests are run before the others, and before these so many that killed others of the same file.
const FIRST: usize = 25;
const KILLERS: usize = 6;
/// What a test program may have of memory, in KiB, when a mutant makes a loop endless.
const MEMORY: &str = "16000000";

/// What tests reach, each by itself.
#[derive(Default)]
pub struct Reached {
    /// Those that pass.
    pub tests: Vec<Test>,
    /// Those that took longer than they had.
    pub slow: Vec<Name>,
    /// Those that fail: they could not tell a mutant.
    pub broken: Vec<Name>,
}

/// A test that reaches mutants.
#[derive(Clone)]
pub struct Test {
    /// Which.
    pub name: Name,
    /// How long it took.
    pub time: Duration,
    /// The mutants.
    pub reached: Vec<usize>,
}

/// What became of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// This test failed.
    Killed(String),
    /// The tests did not end.
    TimedOut,
    /// All tests that reach it pass.
    Survived,
    /// No test reaches it.
    NotReached,
}

/// The test programs.
pub struct Programs {
    /// Where each is.
    pub paths: BTreeMap<String, PathBuf>,
    /// Their names, those first that are run first.
    pub order: Vec<&'static str>,
    /// The copy of the repository: the tests' working directory.
    pub tree: PathBuf,
    /// For files that are of no use afterwards.
    pub scratch: PathBuf,
    /// How many mutants of a file a test has killed: it is likely to kill the next, too.
    pub killers: Mutex<HashMap<String, HashMap<Name, usize>>>,
    /// How long a mutant is tested with the cheap tests that come after the quickest ones.
    pub cheap: Duration,
}

impl Verdict {
    /// Whether no test noticed the mutant.
    pub fn is_alive(&self) -> bool {
        matches!(self, Self::Survived | Self::NotReached)
    }
}

enum End {
    Passed,
    Failed(String),
    TimedOut,
}

impl Programs {
    fn command(&self, program: &str, names: &[&str], threads: &str) -> Result<Command> {
        let path = self.paths.get(program).ok_or_else(|| format!("no test program {program}"))?;
        let mut command = Command::new("sh");
        command.args(["-c", r#"ulimit -v "$0"; exec "$@""#, MEMORY]).arg(path);
        // What takes long is ignored, so that only those run it who name it.
        command.args(["--exact", "--include-ignored", "--test-threads", threads]).args(names);
        command.current_dir(&self.tree).env("CARGO_MANIFEST_DIR", &self.tree).env("RUST_BACKTRACE", "0");
        // A group of its own, so that what the tests start ends with them.
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        Ok(command)
    }

    /// Runs a command until a test fails, all are done, or none has ended for so long.
    fn watch(&self, mut command: Command, id: usize, limit: Duration, tidies: bool) -> Result<End> {
        let scratch = self.scratch.join(format!("run{id}"));
        fs::create_dir_all(&scratch)?;
        let mut child = command.env("TMPDIR", &scratch).spawn()?;
        let end = follow(&mut child, limit, tidies)?;
        // A test that still wrote while it was killed may have left a file behind: once more, then it is nobody's.
        if fs::remove_dir_all(&scratch).is_err() {
            thread::sleep(Duration::from_millis(200));
            drop(fs::remove_dir_all(&scratch));
        }
        Ok(end)
    }

    /// The tests of a choice, without those that are ignored.
    ///
    /// # Errors
    /// Where there is no such test program, or it cannot be started.
    pub fn names(&self, choice: &Choice) -> Result<Vec<Name>> {
        let path =
            self.paths.get(choice.program).ok_or_else(|| format!("no test program {}", choice.program))?;
        let list = |more: &[&str]| -> Result<Vec<String>> {
            let output = Command::new(path).args(["--list", "--format", "terse"]).args(more).output()?;
            let text = String::from_utf8(output.stdout)?;
            Ok(text.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
        };
        let ignored = list(&["--ignored"])?;
        let begins = |name: &str, with: &[&str]| with.iter().any(|start| name.starts_with(start));
        let chosen = |name: &str| {
            (choice.only.is_empty() || begins(name, choice.only)) && !begins(name, choice.skipped)
        };
        let wanted = |name: &String| !ignored.contains(name) && chosen(name);
        let name = |test| Name { program: choice.program.to_owned(), test, ..Name::default() };
        Ok(list(&[])?.into_iter().filter(wanted).map(name).collect())
    }

    /// Runs each of these tests by itself without a mutant, no longer than `limit`, as long as there is time (`stop`).
    ///
    /// # Errors
    /// Where a test program cannot be started.
    pub fn reach(
        &self,
        wanted: &[Name],
        limit: Duration,
        jobs: usize,
        remembered: &Remembered,
        is_over: impl Fn() -> bool + Sync,
    ) -> Result<Reached> {
        let (all, stop) = (Mutex::new(Reached::default()), AtomicBool::new(false));
        each(jobs, wanted, &stop, |index, name| {
            if let Some(test) = remembered.of(name) {
                lock(&all).tests.push(test);
                return Ok(());
            }
            if is_over() {
                stop.store(true, Ordering::Relaxed);
                return Ok(());
            }
            // A test that fails once may depend on the time that it takes; it fails twice where it cannot tell a mutant.
            for _ in 0..2 {
                let (end, test) = self.alone(index, name, limit)?;
                match end {
                    End::Passed => {
                        let mut all = lock(&all);
                        remembered.add(&test)?;
                        all.tests.push(test);
                        return Ok(());
                    }
                    End::TimedOut if limit < LIMIT => {
                        lock(&all).slow.push(name.clone());
                        return Ok(());
                    }
                    End::Failed(_) | End::TimedOut => {}
                }
            }
            lock(&all).broken.push(name.clone());
            Ok(())
        })?;
        let mut all = all.into_inner().unwrap_or_default();
        all.tests.sort_by_key(|test: &Test| test.time);
        Ok(all)
    }

    /// Runs one test by itself, and sees which mutants it reaches.
    fn alone(&self, index: usize, name: &Name, limit: Duration) -> Result<(End, Test)> {
        let file = self.scratch.join(format!("reached{index}"));
        let mut command = self.command(&name.program, &[&name.test], "1")?;
        command.envs(variables(&name.glimpse)).env("MUTANTS_REACHED", &file);
        let started = Instant::now();
        let end = self.watch(command, index, limit, name.program == ON_THE_KERNEL)?;
        let bytes = fs::read(&file).unwrap_or_default();
        drop(fs::remove_file(&file));
        let numbers = bytes.chunks_exact(4).filter_map(|number| number.try_into().ok());
        let mut reached: Vec<usize> = numbers.map(|number| u32::from_le_bytes(number) as usize).collect();
        reached.sort_unstable();
        reached.dedup();
        Ok((end, Test { name: name.clone(), time: started.elapsed(), reached }))
    }

    /// Runs the tests that reach a mutant of `file`: those that killed others of that file, then the quick ones.
    ///
    /// # Errors
    /// Where a test program cannot be started.
    pub fn verdict(&self, mutant: usize, file: &str, tests: &[Test], jobs: usize) -> Result<Verdict> {
        // What only the real kernel can show is in one module; of others it is asked when nothing else helps.
        let is_wanted = |test: &&Test| test.name.program != ON_THE_KERNEL || file.starts_with(KERNEL_MODULE);
        let reaches = |test: &&Test| test.reached.binary_search(&mutant).is_ok();
        let mut reaching: Vec<&Test> = tests.iter().filter(is_wanted).filter(reaches).collect();
        if reaching.is_empty() {
            return Ok(Verdict::NotReached);
        }
        let known = lock(&self.killers).get(file).cloned().unwrap_or_default();
        let kills = |test: &Test| known.get(&test.name).copied().unwrap_or_default();
        reaching.sort_by_key(|test| (Reverse(kills(test)), test.time));
        let count = reaching.iter().take_while(|test| kills(test) > 0).count().min(KILLERS);
        let mut others = reaching.split_off(count);
        others.sort_by_key(|test| test.time);
        let mut rest = others.split_off(others.len().min(FIRST));
        // Whoever is reached by hundreds, and not noticed by the quickest, is better asked for by the round to come.
        let mut needed = Duration::ZERO;
        rest.retain(|test| {
            needed += test.time;
            needed < self.cheap
        });
        for batch in [reaching, others, rest].iter().flat_map(|batch| self.batches(batch)) {
            let verdict = self.ask(mutant, file, &batch, jobs)?;
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(Verdict::Survived)
    }

    /// The same with tests that take long: one after the other, those that killed others first, and until the time of a mutant
    /// is over.
    ///
    /// # Errors
    /// Where a test program cannot be started.
    pub fn last_verdict(&self, mutant: usize, file: &str, tests: &[Test]) -> Result<Verdict> {
        let began = Instant::now();
        let known = lock(&self.killers).get(file).cloned().unwrap_or_default();
        let mut reaching: Vec<&Test> =
            tests.iter().filter(|test| test.reached.binary_search(&mutant).is_ok()).collect();
        let is_later = |test: &Test| !test.name.test.starts_with(KNOWN_STEPS);
        reaching.sort_by_key(|test| (Reverse(known.get(&test.name).copied()), is_later(test), test.time));
        for (asked, test) in reaching.iter().enumerate() {
            if asked > 0 && began.elapsed() + test.time > BUDGET {
                break;
            }
            let verdict = self.ask(mutant, file, &[test], 1)?;
            if verdict != Verdict::Survived {
                return Ok(verdict);
            }
        }
        Ok(if reaching.is_empty() { Verdict::NotReached } else { Verdict::Survived })
    }

    /// These tests, those of each program by themselves.
    fn batches<'a>(&self, tests: &[&'a Test]) -> Vec<Vec<&'a Test>> {
        let of =
            |program: &&str| tests.iter().copied().filter(|test| test.name.program == **program).collect();
        self.order.iter().map(of).filter(|batch: &Vec<&Test>| !batch.is_empty()).collect()
    }

    /// Runs these tests of one program with a mutant, and remembers the one that fails.
    fn ask(&self, mutant: usize, file: &str, batch: &[&Test], jobs: usize) -> Result<Verdict> {
        let Some(first) = batch.first() else { return Ok(Verdict::Survived) };
        let (program, portion) = (&first.name.program, &first.name.portion);
        let names: Vec<&str> = batch.iter().map(|test| test.name.test.as_str()).collect();
        let longest = batch.iter().map(|test| test.time).max().unwrap_or_default();
        let mut command = self.command(program, &names, &jobs.to_string())?;
        command.envs(variables(portion)).env("MUTANT", mutant.to_string());
        let limit = PATIENCE + longest * FACTOR;
        match self.watch(command, 100_000 + mutant, limit, program == ON_THE_KERNEL)? {
            End::Passed => Ok(Verdict::Survived),
            End::TimedOut => Ok(Verdict::TimedOut),
            End::Failed(test) => {
                if let Some(test) = batch.iter().find(|one| one.name.test == test) {
                    let mut killers = lock(&self.killers);
                    *killers.entry(file.to_owned()).or_default().entry(test.name.clone()).or_default() += 1;
                    return Ok(Verdict::Killed(test.name.to_string()));
                }
                Ok(Verdict::Killed(format!("{program}: {test}")))
            }
        }
    }
}

/// `NAME=value` as command variables.
fn variables(all: &[String]) -> impl Iterator<Item = (&str, &str)> {
    all.iter().filter_map(|variable| variable.split_once('='))
}

/// Reads what the tests print until one has failed, and ends the group of processes in any case.
fn follow(child: &mut Child, limit: Duration, tidies: bool) -> Result<End> {
    let group = child.id();
    let output = child.stdout.take().ok_or("no output")?;
    let (sender, receiver) = std::sync::mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(std::result::Result::ok) {
            let test = line.strip_prefix("test ");
            drop(sender.send(test.and_then(|line| line.strip_suffix(" ... FAILED")).map(str::to_owned)));
        }
    });
    let (mut heard, mut failed) = (Instant::now(), None);
    let end = loop {
        if failed.is_none()
            && let Ok(line) = receiver.recv_timeout(Duration::from_millis(5))
        {
            (heard, failed) = (Instant::now(), line);
            // What comes in a row is read without a look at the process.
            if failed.is_none() {
                continue;
            }
        }
        if failed.is_some() && !tidies {
            break End::Failed(failed.unwrap_or_default());
        }
        if let Some(status) = child.try_wait()? {
            break match status.success() {
                true => End::Passed,
                false => End::Failed(failed.unwrap_or_else(|| status.to_string())),
            };
        }
        if failed.is_some() {
            thread::sleep(Duration::from_millis(20));
        }
        if heard.elapsed() > limit {
            break End::TimedOut;
        }
    };
    drop(Command::new("kill").args(["-KILL", "--", &format!("-{group}")]).stderr(Stdio::null()).status());
    child.wait()?;
    Ok(end)
}

/// Does `work` with each item, on `jobs` threads, until `stop`.
///
/// # Errors
/// The first of the work's.
pub fn each<T: Sync>(
    jobs: usize,
    items: &[T],
    stop: &AtomicBool,
    work: impl Fn(usize, &T) -> Result<()> + Sync,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    let failed = Mutex::new(None);
    thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(index) else { return };
                    if let Err(error) = work(index, item) {
                        stop.store(true, Ordering::Relaxed);
                        lock(&failed).get_or_insert(error);
                    }
                }
            });
        }
    });
    failed.into_inner().unwrap_or_default().map_or(Ok(()), Err)
}

/// A lock whose holder panicked is as good as any.
pub fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// An empty directory for what is of no use afterwards, with a short path: tests have sockets below it.
///
/// # Errors
/// Where it cannot be made.
pub fn scratch() -> Result<PathBuf> {
    let path = std::env::temp_dir().join(format!("mutants.{}", std::process::id()));
    fs::create_dir_all(&path)?;
    Ok(path)
}
