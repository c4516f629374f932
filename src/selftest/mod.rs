//! `hostloop selftest`: checks the machine, then starts drivers of its own and takes a volume of each kind through its
//! whole life, copies included, as kubelet and the sidecars would. It is a client of the driver and knows nothing of its
//! internals.
//!
//! Start reading at [`run`]. Everything happens in a directory of its own, the `workspace`, which is cleaned up whatever
//! the end: success, a failure, a panic, or Ctrl-C. The first Ctrl-C lets the current step finish and undoes the rest
//! through the driver; the second one does so without the driver.

pub mod client;
mod data;
mod life;
pub(crate) mod machine;
pub mod process;
pub(crate) mod report;
pub mod requests;
mod trial;
pub mod volume;
pub(crate) mod workspace;

use std::sync::Arc;
use std::time::Duration;

use crate::config::{Check, SelftestConfig};
use crate::kernel::Os;
use crate::kernel::linux::{self, Tools};
use crate::shutdown::Shutdown;
use crate::version;
use client::{Client, endpoint};
use life::{Failure, Life, Step, Times, World, freezes};
use machine::Level;
use process::DriverProcess;
use report::{Output, Tone, list};
use workspace::Workspace;

/// No call of a life takes so long, unless the disk hangs.
const DEADLINE: Duration = Duration::from_secs(60);

/// What came of the kinds.
#[derive(Default)]
struct Summary {
    times: Vec<(Check, Times)>,
    passed: Vec<Check>,
    /// Those of them whose copies were made without holding back writes.
    unfrozen: Vec<Check>,
    /// Kinds that this machine cannot have and that the caller did not name.
    left_out: Vec<Check>,
    /// A line for each thing that is not as it should be.
    problems: Vec<String>,
    interrupted: bool,
}

/// Runs the self-test and prints what it finds. Returns whether all that was asked for works.
pub async fn run(config: SelftestConfig, shutdown: Shutdown) -> bool {
    let output = Output::new();
    output.line(format_args!("hostloop {} selftest\n", version::long()));
    let tools = Tools::find();
    let os = linux::os(tools.clone());
    let workspace = match Workspace::create(&os, &config.dir, "selftest") {
        Ok(workspace) => Arc::new(workspace),
        Err(error) => return conclude(&output, &[format!("{error} (--dir)")]),
    };
    output.line("Machine");
    let found = machine::look(&os, &tools, workspace.path(), &config);
    found.iter().for_each(|finding| output.finding(finding));
    let hopeless: Vec<String> = found
        .iter()
        .filter(|finding| finding.level == Level::Fail)
        .map(|finding| format!("{}: {}", finding.what, finding.text))
        .collect();
    if !hopeless.is_empty() {
        drop(workspace);
        return conclude(&output, &hopeless);
    }
    output.line("\nVolumes");
    let mut summary = Summary::default();
    let (checks, left_out) = possible(&os, &workspace, &config);
    for (check, why) in &left_out {
        output.begin(*check);
        output.end(Tone::Doubtful, &format!("left out: {why}"));
    }
    summary.left_out = left_out.iter().map(|(check, _)| *check).collect();
    // Directories are in a pool of their own, and so are made by a driver of their own.
    let (directories, others): (Vec<Check>, Vec<Check>) =
        checks.into_iter().partition(|check| *check == Check::Directory);
    let drivers = [(others, "loops", vec![]), (directories, "dirs", vec!["--directories".to_owned()])];
    for (checks, name, flags) in drivers {
        if !checks.is_empty() && !summary.interrupted {
            let run = Run { os: &os, workspace: &workspace, shutdown: &shutdown, output: &output };
            volumes(&run, (&checks, config.size), (name, &flags), &mut summary).await;
        }
    }
    sweep(workspace, &mut summary).await;
    if !summary.times.is_empty() {
        output.line(format_args!("\nDuration of each step\n{}\n", report::times(&summary.times)));
    }
    verified(&output, &summary, config.size);
    if summary.interrupted {
        output.line(output.coloured(Tone::Bad, "selftest interrupted"));
        return false;
    }
    if !summary.left_out.is_empty() {
        let names: Vec<&str> = summary.left_out.iter().map(|check| check.as_str()).collect();
        output.line(output.coloured(Tone::Doubtful, &format!("not checked: {}", list(&names))));
    }
    conclude(&output, &summary.problems)
}

/// Returns the kinds to go through, and those that this machine cannot have, each with the reason. If `--only` names the
/// kinds, all of them are gone through: one that is not possible is a failure. So is ext4, the filesystem of a class that
/// names none.
fn possible(os: &Os, workspace: &Workspace, config: &SelftestConfig) -> (Vec<Check>, Vec<(Check, String)>) {
    let (mut checks, mut left_out) = (Vec::new(), Vec::new());
    for check in config.checks.iter().copied() {
        let impossible = machine::impossible(os, workspace.path(), check);
        match impossible.filter(|_| !config.named && check != Check::Ext4) {
            None => checks.push(check),
            // Few disks enforce the size of a directory, and the section about the machine says so.
            Some(_) if check == Check::DirectoryEnforced => {}
            Some(why) => left_out.push((check, why)),
        }
    }
    (checks, left_out)
}

/// The last lines. Returns whether there were no problems.
fn conclude(output: &Output, problems: &[String]) -> bool {
    match problems {
        [] => output.line(output.coloured(Tone::Good, "selftest passed")),
        problems => {
            let text = format!("selftest failed: {}", problems.join("; "));
            output.line(output.coloured(Tone::Bad, &text));
        }
    }
    problems.is_empty()
}

/// What every driver of the run has to do with.
struct Run<'a> {
    os: &'a Os,
    workspace: &'a Arc<Workspace>,
    shutdown: &'a Shutdown,
    output: &'a Output,
}

/// Starts a driver with these flags in a directory of its own, leads every volume of this size through its life, and
/// stops the driver.
async fn volumes(
    run: &Run<'_>,
    (checks, size): (&[Check], u64),
    (name, flags): (&str, &[String]),
    summary: &mut Summary,
) {
    let Run { os, workspace, shutdown, output } = *run;
    let dir = workspace.path().join(name);
    let started = os.files.create_directory(&dir, 0o700);
    let started = started.and_then(|()| machine::own_program());
    let started = started.and_then(|program| DriverProcess::start_with(&program, &dir, flags));
    let mut driver = match started {
        Ok(driver) => driver,
        Err(error) => {
            summary.problems.push(format!("the driver cannot be started: {error}"));
            return;
        }
    };
    let log = driver.log();
    let client = match endpoint(&DriverProcess::socket(&dir)) {
        Ok(endpoint) => Client::on(endpoint.timeout(DEADLINE).connect_lazy()),
        Err(error) => return summary.problems.push(error.to_string()),
    };
    let ready = tokio::select! {
        ready = driver.ready(&client) => ready.map_err(|error| summary.problems.push(error)).is_ok(),
        () = shutdown.clone().requested() => { summary.interrupted = true; false }
    };
    if ready {
        let (os, workspace) = (os.clone(), Arc::clone(workspace));
        let (shutdown, output) = (shutdown.clone(), output.clone());
        let reflinks = linux::reflink_works(workspace.path()).unwrap_or(false);
        let world = World { client, os, dir, workspace, size, reflinks, shutdown, output };
        lives(checks, &world, summary).await;
    }
    // A second Ctrl-C does not wait for a driver that hangs: it is killed.
    tokio::select! {
        stopped = driver.stop() => summary.problems.extend(stopped.err()),
        () = shutdown.clone().forced() => summary.interrupted = true,
    }
    let said = os.files.read(&log).unwrap_or_default();
    if !summary.problems.is_empty() && !said.is_empty() {
        let said = String::from_utf8_lossy(&said);
        output.line(format_args!("\nLog of the driver\n{}", said.trim_end()));
    }
}

/// One kind after the other; a failure of one is none of the next.
async fn lives(checks: &[Check], world: &World, summary: &mut Summary) {
    for check in checks.iter().copied() {
        let name = check.as_str();
        if let Some(why) = machine::impossible(&world.os, &world.dir, check) {
            world.output.begin(check);
            world.output.end(Tone::Doubtful, &format!("not possible here: {why}"));
            summary.problems.push(format!("{name} is not possible: {why} (or leave it out with --only)"));
            continue;
        }
        world.output.begin(check);
        let life = Life::new(world.clone(), check);
        // In a task of its own, so that a panic ends the life and not the sweeping.
        let ended = tokio::spawn(async move {
            let mut life = life;
            let result = life.run().await;
            (result, life.times)
        });
        let (result, times) = ended.await.unwrap_or_else(|_| {
            (Err(Failure::Wrong("the selftest has a bug; please report it".to_owned())), Vec::new())
        });
        let total: Duration = times.iter().flatten().sum();
        summary.times.push((check, times));
        match result {
            Ok(()) => {
                world.output.end(Tone::Good, &format!("ok ({:.0} ms)", total.as_secs_f64() * 1000.0));
                summary.passed.push(check);
                summary.unfrozen.extend((!freezes(check, world.reflinks)).then_some(check));
            }
            Err(Failure::Wrong(what)) => {
                world.output.end(Tone::Bad, &format!("FAILED\n            {what}"));
                summary.problems.push(format!("{name}: {what}"));
            }
            Err(Failure::Interrupted) => {
                world.output.end(Tone::Bad, "interrupted");
                summary.interrupted = true;
                return;
            }
        }
    }
}

/// Removes everything, and looks whether it is gone.
async fn sweep(workspace: Arc<Workspace>, summary: &mut Summary) {
    match tokio::task::spawn_blocking(move || workspace.remove()).await {
        Ok(left) => summary.problems.extend(left.into_iter().map(|what| format!("left behind: {what}"))),
        Err(_) => summary.problems.push("the selftest met a bug while it removed its files".to_owned()),
    }
}

/// What is now known to work, in sentences.
fn verified(output: &Output, summary: &Summary, size: u64) {
    let names: Vec<&str> = summary.passed.iter().map(|check| check.as_str()).collect();
    if names.is_empty() {
        return;
    }
    let expand = Step::ALL.iter().position(|step| *step == Step::Expand).unwrap_or_default();
    let grown = |(check, times): &&(Check, Times)| {
        !check.is_directory()
            && summary.passed.contains(check)
            && times.get(expand).is_some_and(Option::is_some)
    };
    let grew: Vec<&str> = summary.times.iter().filter(grown).map(|(check, _)| check.as_str()).collect();
    output.line(format_args!("Verified on {}, each of {}:", list(&names), crate::model::format_bytes(size)));
    output.line("- what was written is read back, past the page cache, and again after a new mount");
    output.line("- the sizes that the driver reports are those of the kernel");
    output.line("- a snapshot of the volume in use, restored, holds what was written before it was taken, and a clone");
    output.line("  what was written after it; both were used beside the volume");
    let unfrozen: Vec<&str> = summary.unfrozen.iter().map(|check| check.as_str()).collect();
    if !unfrozen.is_empty() {
        let names = list(&unfrozen);
        output.line(format_args!(
            "- not checked: copies of {names} while they are written to, which are refused here"
        ));
    }
    if !grew.is_empty() {
        output.line(format_args!("- {} grew by half while in use", list(&grew)));
    }
    if summary.passed.contains(&Check::Ext4) && !grew.contains(&Check::Ext4.as_str()) {
        output.line("- not checked: growing ext4 in use, which needs CAP_SYS_RESOURCE");
    }
    if !summary.problems.iter().any(|problem| problem.starts_with("left behind")) {
        output.line("- nothing is left behind: no mount, no loop device, no file");
    }
    output.line("");
}
