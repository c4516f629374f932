//! The only child processes: programs by absolute path, with an environment of ours, for as long as they make progress
//! ([`super::watch`]). Nobody watches the guard of a freeze, which lives as long as the freeze.
//!
//! Nothing here runs between fork and exec in the child, so std starts it with posix_spawn(3), which does not copy our
//! page tables. The end of a program is noticed at once, without polling, by the end of its output.
#![allow(clippy::disallowed_types, reason = "the one place that starts child processes")]

use std::ffi::OsStr;
use std::io::{self, PipeReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::super::errno_error;
use super::tools::DIRECTORIES;
use super::watch::{Patience, Verdict, Watch, look};

/// Output kept for a message.
const KEEP: usize = 4096;

/// How long a killed program may take to die: in uninterruptible I/O it does not.
const GRACE: Duration = Duration::from_secs(5);

pub(super) struct Finished {
    pub(super) status: ExitStatus,
    /// The end of what it wrote to standard output and standard error.
    pub(super) output: String,
}

/// A command with an environment of ours.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", DIRECTORIES.join(":"))
        .env("LC_ALL", "C")
        // A place where no file can be made, whatever a stray argument names.
        .current_dir("/sys");
    command
}

/// Starts a program that works beside this process, with these descriptors as its standard input and output; its
/// errors go where ours go. It gets a process group of its own, so that a signal to ours does not reach it. The
/// caller waits for its end.
///
/// # Errors
/// Those of posix_spawn(3).
pub(super) fn start(program: &Path, args: &[&str], stdin: OwnedFd, stdout: OwnedFd) -> io::Result<Child> {
    // The name under which ps(1) shows it: that of /proc/self/exe would tell nothing.
    command(program).arg0("hostloop").args(args).stdin(stdin).stdout(stdout).process_group(0).spawn()
}

/// Gets what there is to say about a program that runs.
pub(super) type Tell<'a> = &'a mut dyn FnMut(String);

/// Runs a program to its end. `holding` becomes its standard input, which it does not read: a file that must
/// stay open as long as the program runs, also when this process is killed meanwhile. `tell` hears how far it is.
///
/// # Errors
/// ETIMEDOUT where it did not come further for as long as `patience` lasts, when it was killed, and those of
/// posix_spawn(3). How it ended is for the caller to judge.
pub(super) fn run<A: AsRef<OsStr>>(
    program: &Path,
    args: &[A],
    holding: Option<OwnedFd>,
    patience: Patience,
    tell: Tell<'_>,
) -> io::Result<Finished> {
    let (reader, writer) = io::pipe()?;
    let mut command = command(program);
    command
        .args(args)
        .stdin(holding.map_or_else(Stdio::null, Stdio::from))
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command.spawn()?;
    drop(command); // with our ends of the pipe
    let (pid, name) = (child.id(), program.display().to_string());
    let mut watch = Watch::new(patience);
    let mut looked = Instant::now();
    // Whether it may go on.
    let mut go_on = || {
        if looked.elapsed() < patience.look {
            return true;
        }
        looked = Instant::now();
        let seen = look(pid);
        let verdict = watch.judge(&name, seen);
        tell(format!("{name} works {}", watch.describe(seen)));
        verdict == Verdict::Wait
    };
    let ended = read_while(reader, patience.look, &mut go_on).and_then(|output| match output {
        Some(output) => Ok(wait_while(&mut child, &mut go_on)?.map(|status| Finished { status, output })),
        None => Ok(None),
    });
    match ended {
        Ok(Some(finished)) => Ok(finished),
        Ok(None) => {
            kill(&mut child);
            let idle = patience.idle.as_secs();
            let context = format!("{name}: killed, it did not come further for {idle} s");
            Err(errno_error(Errno::ETIMEDOUT, context))
        }
        Err(error) => {
            kill(&mut child);
            Err(error)
        }
    }
}

/// Runs a program that has to end with one of these exit codes; gives its output.
///
/// # Errors
/// Those of [`run`]; without errno where it ended otherwise, with what it said last.
pub(super) fn run_ok<A: AsRef<OsStr>>(
    program: &Path,
    args: &[A],
    holding: Option<OwnedFd>,
    patience: Patience,
    codes: &[i32],
    tell: Tell<'_>,
) -> io::Result<String> {
    let Finished { status, output } = run(program, args, holding, patience, tell)?;
    if status.code().is_some_and(|code| codes.contains(&code)) {
        return Ok(output);
    }
    let said = last_lines(&output);
    Err(io::Error::other(format!("{}: {status}: {said}", program.display())))
}

/// The last lines of a program's output, in one.
pub(super) fn last_lines(output: &str) -> String {
    let mut lines: Vec<&str> = output.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines.split_off(lines.len().saturating_sub(5)).join("; ")
}

/// Reads the output to its end, which comes when the program exits. `None` where it may not go on.
fn read_while(
    mut reader: PipeReader,
    pause: Duration,
    go_on: &mut dyn FnMut() -> bool,
) -> io::Result<Option<String>> {
    let (mut kept, mut buffer) = (Vec::new(), [0; KEEP]);
    let timeout = PollTimeout::try_from(pause).unwrap_or(PollTimeout::MAX);
    while go_on() {
        match poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        match reader.read(&mut buffer)? {
            0 => return Ok(Some(String::from_utf8_lossy(&kept).into_owned())),
            count => kept.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
        kept.drain(..kept.len().saturating_sub(KEEP));
    }
    Ok(None)
}

/// Waits for the exit of a program that has closed its output: a matter of microseconds, since the kernel closes
/// files on the way out. `None` where it may not go on.
fn wait_while(child: &mut Child, go_on: &mut dyn FnMut() -> bool) -> io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_micros(20);
    while go_on() {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    Ok(None)
}

/// Kills a program and collects it, if it dies.
fn kill(child: &mut Child) {
    // It may have ended by itself; either way only the wait matters.
    let _ = child.kill();
    let until = Instant::now() + GRACE;
    let _ = wait_while(child, &mut || Instant::now() < until);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::is_errno;
    use crate::linux::watch::PATIENCE;

    /// Short, but for what these scripts do.
    const SHORT: Patience = Patience {
        idle: Duration::from_millis(400),
        look: Duration::from_millis(20),
        log: Duration::from_secs(60),
    };

    fn shell(script: &str, patience: Patience) -> io::Result<Finished> {
        run(Path::new("/bin/sh"), &["-c", script], None, patience, &mut drop)
    }

    #[test]
    fn output_is_bounded_and_its_end_kept() {
        let script = "i=0; while [ $i -lt 20000 ]; do echo line$i; i=$((i+1)); done; exit 3";
        let done = shell(script, PATIENCE).expect("run");
        assert_eq!(done.status.code(), Some(3));
        assert!(done.output.len() <= KEEP && done.output.ends_with("line19999\n"));
        assert_eq!(last_lines("a\n\nb\nc\nd\ne\nf\n"), "b; c; d; e; f");
    }

    #[test]
    fn a_program_without_progress_is_killed() {
        // Also one that has closed its output, so that its end is not seen by that.
        for script in ["exec sleep 600", "exec sleep 600 >/dev/null 2>&1"] {
            let error = shell(script, SHORT).err().expect("killed");
            assert!(is_errno(&error, Errno::ETIMEDOUT), "{error}");
            assert!(error.to_string().contains("did not come further"), "{error}");
        }
    }

    /// Several times as long as one that stands still may take: by its CPU time, and by that of a child. A busy machine lets
    /// neither work for seconds.
    #[test]
    fn a_program_that_works_is_left_alone() {
        // Some hundredths of a second of work in each tenth: all of a processor would be taken from the other tests.
        const BUSY: &str = "end=$(($(date +%s)+9)); while [ $(date +%s) -lt $end ]; do \
            n=0; while [ $n -lt 10000 ]; do n=$((n+1)); done; sleep 0.1; done; echo done";
        let works = |script: &str| {
            let mut told = Vec::new();
            let patience = Patience { idle: Duration::from_secs(3), ..SHORT };
            let done =
                run(Path::new("/bin/sh"), &["-c", script], None, patience, &mut |line| told.push(line));
            let done = done.expect("it works");
            assert_eq!((done.status.code(), done.output.as_str()), (Some(0), "done\n"));
            assert!(told.iter().any(|line| line.starts_with("/bin/sh works for 1 s")), "{told:?}");
        };
        std::thread::scope(|scope| {
            scope.spawn(|| works(BUSY));
            scope.spawn(|| works(&format!("sh -c '{BUSY}' | cat")));
        });
    }

    #[test]
    fn a_failure_says_what_the_program_said() {
        let args = ["-c", "echo fine; echo 'bad superblock' >&2; exit 9"];
        let error = run_ok(Path::new("/bin/sh"), &args, None, PATIENCE, &[0], &mut drop).expect_err("exit 9");
        assert!(error.to_string().contains("exit status: 9: fine; bad superblock"), "{error}");
        let missing = run(Path::new("/nonexistent"), &["x"], None, PATIENCE, &mut drop);
        assert!(is_errno(&missing.err().expect("missing"), Errno::ENOENT));
    }

    #[test]
    fn a_killed_program_is_gone() {
        let mut child = command(Path::new("/bin/sleep")).arg("600").spawn().expect("start");
        let process = format!("/proc/{}", child.id());
        assert!(Path::new(&process).exists());
        kill(&mut child);
        assert!(!Path::new(&process).exists(), "it was not waited for");
    }

    #[test]
    fn the_environment_is_ours() {
        let script = "env | sort | cut -d= -f1 | tr '\\n' ' '; pwd; touch x 2>/dev/null && echo made";
        assert_eq!(shell(script, PATIENCE).expect("run").output, "LC_ALL PATH PWD /sys\n");
    }

    #[test]
    fn a_held_file_is_open_in_the_program() {
        let held =
            nix::fcntl::open("/proc/version", nix::fcntl::OFlag::O_RDONLY, nix::sys::stat::Mode::empty());
        let (program, args) = (Path::new("/bin/readlink"), ["/proc/self/fd/0"]);
        let done = run(program, &args, Some(held.expect("open")), PATIENCE, &mut drop);
        assert_eq!(done.expect("run").output.trim(), "/proc/version");
    }
}
