//! `hostloop`: parse, build, run, drain.

use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use std::time::Duration;

use git_version::git_version;
use hostloop::app::{self, Ended, StartError};
use hostloop::cli::{Command, completions, one_line, parse};
use hostloop::cluster::certs::{self, Task};
use hostloop::config::{BenchConfig, Config, ConfigError, SelftestConfig, certs_task, state_task};
use hostloop::kernel::host::host_name;
use hostloop::kernel::linux::{freeze_guard, share_memory_among_threads};
use hostloop::model::Limits;
use hostloop::shutdown::Shutdown;
use hostloop::{admin, bench, selftest, server, state, telemetry, version};

/// Exit code for a wrong command line.
const USAGE: u8 = 2;
/// Threads for connections and protocol; all other work is on the blocking pool. One would do (a call takes as
/// long with one, two or four of them), the second keeps Probe quick while the first is busy with a long list.
const WORKERS: usize = 2;
/// Threads for the work itself: as many calls run at once, further ones wait for their turn. Copies and streams can take
/// no more than their own, so that the others always have 128.
const BLOCKING: usize = 128 + 2 * (Limits::MOST + Limits::LAST_PASSES);

/// The commit of this build. Builds without a repository, such as an image's, get it by the variable.
const COMMIT: &str = match option_env!("HOSTLOOP_COMMIT") {
    Some(commit) => commit,
    None => git_version!(
        args = ["--always", "--exclude=*", "--abbrev=12", "--dirty=-modified"],
        fallback = "unknown"
    ),
};

fn main() -> ExitCode {
    version::set_commit(COMMIT);
    let (command, program) = match parse(std::env::args_os()) {
        Ok(parsed) => parsed,
        Err(error) => return usage(&error),
    };
    let done = match command {
        Command::Serve(args) => Config::new(&args, host_name()).map(serve),
        Command::Selftest(args) => Ok(check(|end| selftest::run(SelftestConfig::from(&args), end))),
        Command::Bench(args) => BenchConfig::new(&args).map(|config| check(|end| bench::run(config, end))),
        Command::State(args) => state_task(&args, host_name()).map(|task| state(&task)),
        Command::Certs(args) => certs_task(&args).map(|task| certs(&task)),
        Command::Inspect(command) => return administer(program, |end| admin::inspect(command, end)),
        Command::Doctor(args) => return administer(program, |end| admin::doctor(args, end)),
        Command::SupportBundle(args) => {
            return administer(program, |end| admin::support_bundle(args, end));
        }
        Command::Adopt(args) => return administer(program, |end| admin::adopt(args, end)),
        Command::Admin(command) => return administer(program, |end| admin::run(command, program, end)),
        Command::Completions(args) => return print(&completions(args.shell)),
        Command::FreezeGuard(args) => return guard(Duration::from_millis(args.limit_ms)),
    };
    done.unwrap_or_else(|error: ConfigError| {
        eprintln!("hostloop: {error}");
        ExitCode::from(USAGE)
    })
}

fn print(text: &[u8]) -> ExitCode {
    match std::io::stdout().write_all(text) {
        // A reader that has gone away has what it wants.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            eprintln!("hostloop: standard output: {error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

/// The helper beside a frozen filesystem: it has one thread and no runtime, so that little can go wrong with it.
fn guard(limit: Duration) -> ExitCode {
    match freeze_guard(limit) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody may be left to read it.
            let _ = writeln!(std::io::stderr(), "hostloop: freeze-guard: {error}");
            ExitCode::FAILURE
        }
    }
}

fn usage(error: &clap::Error) -> ExitCode {
    match one_line(error) {
        Some(line) => eprintln!("hostloop: {line}"),
        None => error.print().unwrap_or_default(),
    }
    // 0 for --help and --version.
    u8::try_from(error.exit_code()).map_or(ExitCode::FAILURE, ExitCode::from)
}

fn serve(config: Config) -> ExitCode {
    share_memory_among_threads();
    telemetry::init(config.logging);
    server::install_hook();
    run(config).unwrap_or_else(|error| {
        tracing::error!("cannot serve: {error}");
        ExitCode::FAILURE
    })
}

/// A client that says whether all went well.
fn check<F: Future<Output = bool>>(client: impl FnOnce(Shutdown) -> F) -> ExitCode {
    let passed = runtime().and_then(|runtime| runtime.block_on(async { Ok(client(on_signals()?).await) }));
    match passed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("hostloop: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A client of the API server, or of a driver.
fn administer<F: Future<Output = admin::Outcome>>(
    program: &str,
    client: impl FnOnce(Shutdown) -> F,
) -> ExitCode {
    let ended = runtime().and_then(|runtime| runtime.block_on(async { Ok(client(on_signals()?).await) }));
    match ended {
        Ok(outcome) => ExitCode::from(outcome as u8),
        Err(error) => {
            eprintln!("{program}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn certs(task: &Task) -> ExitCode {
    match certs::run(task) {
        Ok(report) => {
            // A reader that has gone away changes nothing.
            let _ = std::io::stdout().write_all(report.text.as_bytes());
            if report.good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("hostloop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn state(task: &state::Task) -> ExitCode {
    match state::run(&app::machine(), task) {
        Ok(report) => {
            // A reader that has gone away changes nothing.
            let _ = std::io::stdout().write_all(report.text.as_bytes());
            if report.good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("hostloop: {error}");
            ExitCode::FAILURE
        }
    }
}

fn on_signals() -> Result<Shutdown, StartError> {
    Shutdown::on_signals().map_err(|e| StartError::Process(format!("signals: {e}")))
}

fn run(config: Config) -> Result<ExitCode, StartError> {
    let runtime = runtime()?;
    let Ended { stopped, failure, data_dir } =
        runtime.block_on(async { app::run(config, app::machine, on_signals()?).await })?;
    let done = app::finish(runtime, stopped.left);
    drop(data_dir);
    if let Some(error) = failure {
        return Err(error);
    }
    if !done || stopped.cut > 0 {
        tracing::warn!("stopped although work was running; the next start finishes or undoes it");
        return Ok(ExitCode::FAILURE);
    }
    tracing::info!("stopped");
    Ok(ExitCode::SUCCESS)
}

fn runtime() -> Result<tokio::runtime::Runtime, StartError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(WORKERS)
        .max_blocking_threads(BLOCKING)
        .enable_all()
        .build()
        .map_err(|e| StartError::Process(format!("start threads: {e}")))
}
