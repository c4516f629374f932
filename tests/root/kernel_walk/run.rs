//! One run: prepare, make the call with something happening in it, look, repeat the call, look again, take down.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use tonic::{Code, Status};

use super::bench::Bench;
use super::check::{check, nothing_frozen, tear_down, write};
use super::model::{Call, Model};
use super::plan::Plan;
use super::scenario::{self, Act, Cut, Scenario};
use super::seen::{Verdict, ensure, is_either};
use super::tracer::{Change, Traced, trace};
use crate::harness::World;

/// How long a caller repeats a call that has to succeed in the end: while a program of the last process works, or
/// somebody has a look at a device.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// How long a program of the last process stands still, at most: a retry may wait for its end.
pub const HELD: Duration = Duration::from_secs(5);

/// A run that went well.
#[derive(Debug, Default)]
pub struct Done {
    /// The position came.
    pub met: bool,
    /// What the first retry failed with, if it did.
    pub late: Option<String>,
}

pub type Outcome = Result<Done, String>;

/// A bench for the runs of a scenario, made anew after one that failed.
pub struct Place<'a> {
    scenario: &'a Scenario,
    bench: Option<Bench>,
}

impl<'a> Place<'a> {
    pub fn new(scenario: &'a Scenario) -> Place<'a> {
        Place { scenario, bench: None }
    }

    /// What the call changes when nothing happens to it.
    pub fn record(&mut self) -> Result<Vec<Change>, String> {
        let mut changes = Vec::new();
        self.on_bench(|bench, scenario| {
            let (mut model, answer, traced) = traced(bench, scenario, None);
            answer.map_err(|status| format!("the call fails: {status}"))?;
            if scenario.starts_after.is_some() {
                retry(bench, scenario, &model)?;
            }
            model.apply(scenario.call);
            check(bench, &model)?;
            tear_down(bench, &mut model)?;
            changes = traced.changes.clone();
            Ok(Done::default())
        })?;
        Ok(changes)
    }

    /// Makes the call with something happening at one position.
    pub fn walk(&mut self, plan: &Plan) -> Outcome {
        self.on_bench(|bench, scenario| {
            let (before, answer, mut traced) = traced(bench, scenario, Some(plan.clone()));
            let mut after = before.clone();
            after.apply(scenario.call);
            let mut done = Done { met: traced.met, late: None };
            if traced.driver_killed {
                killed(bench, scenario, &mut traced, (&before, &after), &mut done)?;
            } else {
                traced.release();
                if scenario.starts_after.is_some() {
                    if let Err(status) = answer {
                        ensure!(traced.met, "the start fails: {status}");
                        bench.world.restart_after_kill();
                    }
                    is_either(bench, &before, &after)?;
                    done.late = retry(bench, scenario, &before)?;
                } else if let Err(status) = answer {
                    ensure!(traced.met, "the call fails: {status}");
                    // Nothing is wrong with the request, which is repeated: the caller must not be told so.
                    let wrong = [Code::Unknown, Code::InvalidArgument, Code::Unimplemented, Code::Cancelled];
                    ensure!(!wrong.contains(&status.code()), "it became {status}");
                    is_either(bench, &before, &after)
                        .map_err(|problem| format!("after {status}: {problem}"))?;
                    done.late = retry(bench, scenario, &before)?;
                }
                check(bench, &after)?;
                bench.world.restart_after_kill();
            }
            nothing_frozen(bench)?;
            check(bench, &after)?;
            tear_down(bench, &mut after)?;
            Ok(done)
        })
    }

    /// Does something on a bench that is as it was made.
    fn on_bench(&mut self, what: impl FnOnce(&mut Bench, &Scenario) -> Outcome) -> Outcome {
        let (scenario, mut bench) = (self.scenario, self.bench.take());
        // Whatever fails, the next run gets another bench.
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut bench = bench.take().unwrap_or_else(|| Bench::new(scenario.disk));
            let outcome = what(&mut bench, scenario).map_err(|problem| with_log(&bench.world, &problem));
            (outcome, bench)
        }));
        match done {
            Ok((outcome, bench)) => {
                self.bench = outcome.is_ok().then_some(bench);
                outcome
            }
            Err(panic) => Err(said(&*panic)),
        }
    }

    /// Nothing is left.
    pub fn finish(self) -> Verdict {
        let Some(bench) = self.bench else { return Ok(()) };
        catch_unwind(AssertUnwindSafe(|| bench.finish())).map_err(|panic| said(&*panic))
    }
}

pub fn said(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panicked: {}", text.unwrap_or("with something else than text"))
}

pub fn with_log(world: &World, problem: &str) -> String {
    let log = std::fs::read_to_string(world.dir.join("log")).unwrap_or_default();
    let mut lines: Vec<_> = log.lines().rev().take(12).collect();
    lines.reverse();
    format!("{problem}\n  the end of its log:\n  {}", lines.join("\n  "))
}

type Answer = Result<(), Status>;

/// Does what comes before the call, and makes it.
fn traced(bench: &mut Bench, scenario: &Scenario, plan: Option<Plan>) -> (Model, Answer, Traced) {
    let mut model = Bench::model();
    for act in &scenario.before {
        match act {
            Act::Call(call) => bench.must(&mut model, *call),
            Act::Write(name) => write(bench, &mut model, name),
            Act::CutOff(call, cut) => {
                cut_off(bench, &model, *call, *cut);
                bench.world.restart_after_kill();
            }
        }
    }
    let log = bench.world.dir.join("log");
    if let Some(cut) = scenario.starts_after {
        cut_off(bench, &model, scenario.call, cut);
        bench.world.take_driver().kill();
        let driver = bench.world.start_stopped();
        let (answer, traced) = trace(driver, &log, bench.names(), plan, || bench.world.go_on());
        return (model, answer.map_err(Status::unavailable), traced);
    }
    let driver = bench.world.driver().pid();
    let (answer, traced) = trace(driver, &log, bench.names(), plan, || bench.run(&model, scenario.call));
    (model, answer, traced)
}

/// Ends the driver, and all that it has started, in the middle of a call.
fn cut_off(bench: &mut Bench, model: &Model, call: Call, cut: Cut) {
    let (driver, log) = (bench.world.driver().pid(), bench.world.dir.join("log"));
    let plan = Some(scenario::cut_off(cut));
    let (_, mut traced) = trace(driver, &log, bench.names(), plan, || bench.run(model, call));
    traced.release();
    assert!(traced.driver_killed, "{call:?} does not come to {cut:?}");
}

/// Starts the driver again, and its caller repeats the call: also while a program of the first process still works.
fn killed(
    bench: &mut Bench,
    scenario: &Scenario,
    traced: &mut Traced,
    (before, after): (&Model, &Model),
    done: &mut Done,
) -> Verdict {
    bench.world.restart_after_kill();
    is_either(bench, before, after)?;
    let first = std::thread::scope(|scope| {
        let (answered, wait) = channel::<()>();
        scope.spawn(move || {
            // Disconnected is the sign.
            let _ = wait.recv_timeout(HELD);
            traced.release();
        });
        let first = bench.run(before, scenario.call);
        drop(answered);
        first
    });
    if let Err(status) = first {
        // A program of the first process works still, and nothing but its end is waited for.
        let wrong = [Code::InvalidArgument, Code::Unimplemented, Code::FailedPrecondition];
        ensure!(!wrong.contains(&status.code()), "the retry becomes {status}");
        is_either(bench, before, after).map_err(|problem| format!("after {status}: {problem}"))?;
        done.late = Some(status.to_string());
        retry(bench, scenario, before)?;
    }
    Ok(())
}

/// The caller's retries succeed in the end; what the first one failed with.
fn retry(bench: &Bench, scenario: &Scenario, before: &Model) -> Result<Option<String>, String> {
    let (started, mut late) = (Instant::now(), None);
    while let Err(status) = bench.run(before, scenario.call) {
        ensure!(started.elapsed() < PATIENCE, "the retry fails: {status}");
        late.get_or_insert(status.to_string());
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(late)
}
