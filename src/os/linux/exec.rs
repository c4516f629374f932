//! The only child processes: programs by absolute path, with an environment of ours, and a deadline. The one without
//! is the guard of a freeze, which lives as long as the freeze.
//!
//! Nothing here runs between fork and exec in the child, so that std starts it with posix_spawn(3), which does
//! not copy our page tables. The end of a program is seen at once, without polling, by the end of its output.
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

/// Output kept for a message.
const KEEP: usize = 4096;

/// How long a killed program may take to die: in uninterruptible I/O it does not.
const GRACE: Duration = Duration::from_secs(5);

/// How a program ended.
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

/// Runs a program to its end. `holding` becomes its standard input, which it does not read: a file that must
/// stay open as long as the program runs, also when this process is killed meanwhile.
///
/// # Errors
/// ETIMEDOUT at the deadline, when it was killed, and those of posix_spawn(3). How it ended is for the caller to judge.
pub(super) fn run<A: AsRef<OsStr>>(
    program: &Path,
    args: &[A],
    holding: Option<OwnedFd>,
    deadline: Duration,
) -> io::Result<Finished> {
    let until = Instant::now() + deadline;
    let (reader, writer) = io::pipe()?;
    let mut command = command(program);
    command
        .args(args)
        .stdin(holding.map_or_else(Stdio::null, Stdio::from))
        .stdout(writer.try_clone()?)
        .stderr(writer);
    let mut child = command.spawn()?;
    drop(command); // with our ends of the pipe
    let output = read_until(reader, until).and_then(|output| Ok((output, wait_until(&mut child, until)?)));
    match output {
        Ok((output, Some(status))) => Ok(Finished { status, output }),
        Ok((_, None)) => {
            kill(&mut child);
            let name = program.display();
            Err(errno_error(Errno::ETIMEDOUT, format_args!("{name}: killed after {} s", deadline.as_secs())))
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
    deadline: Duration,
    codes: &[i32],
) -> io::Result<String> {
    let Finished { status, output } = run(program, args, holding, deadline)?;
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

/// Reads the output to its end, which comes when the program exits, or to the deadline.
fn read_until(mut reader: PipeReader, until: Instant) -> io::Result<String> {
    let (mut kept, mut buffer) = (Vec::new(), [0; KEEP]);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        match poll(&mut [PollFd::new(reader.as_fd(), PollFlags::POLLIN)], timeout) {
            Ok(0) if left.is_zero() => break,
            Ok(0) | Err(Errno::EINTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        match reader.read(&mut buffer)? {
            0 => break,
            count => kept.extend_from_slice(buffer.get(..count).unwrap_or_default()),
        }
        kept.drain(..kept.len().saturating_sub(KEEP));
    }
    Ok(String::from_utf8_lossy(&kept).into_owned())
}

/// Waits for the exit of a program that has closed its output: a matter of microseconds, since the kernel closes
/// files on the way out. `None` at the deadline.
fn wait_until(child: &mut Child, until: Instant) -> io::Result<Option<ExitStatus>> {
    let mut pause = Duration::from_micros(20);
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}

/// Kills a program and collects it, if it dies.
fn kill(child: &mut Child) {
    // It may have ended by itself; either way only the wait matters.
    let _ = child.kill();
    let _ = wait_until(child, Instant::now() + GRACE);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::is_errno;

    fn shell(script: &str, deadline: Duration) -> io::Result<Finished> {
        run(Path::new("/bin/sh"), &["-c", script], None, deadline)
    }

    #[test]
    fn output_is_bounded_and_its_end_kept() {
        let done = shell("i=0; while [ $i -lt 20000 ]; do echo line$i; i=$((i+1)); done; exit 3", GRACE)
            .expect("run");
        assert_eq!(done.status.code(), Some(3));
        assert!(done.output.len() <= KEEP && done.output.ends_with("line19999\n"));
        assert_eq!(last_lines("a\n\nb\nc\nd\ne\nf\n"), "b; c; d; e; f");
    }

    #[test]
    fn the_deadline_kills() {
        let start = Instant::now();
        // Also one that has closed its output, so that its end is not seen by that.
        for script in ["exec sleep 60", "exec sleep 60 >/dev/null 2>&1"] {
            let error = shell(script, Duration::from_millis(200)).err().expect("deadline");
            assert!(is_errno(&error, Errno::ETIMEDOUT), "{error}");
        }
        assert!(start.elapsed() < GRACE);
    }

    #[test]
    fn a_failure_says_what_the_program_said() {
        let args = ["-c", "echo fine; echo 'bad superblock' >&2; exit 9"];
        let error = run_ok(Path::new("/bin/sh"), &args, None, GRACE, &[0]).expect_err("exit 9");
        assert!(error.to_string().contains("exit status: 9: fine; bad superblock"), "{error}");
        assert!(is_errno(
            &run(Path::new("/nonexistent"), &["x"], None, GRACE).err().expect("missing"),
            Errno::ENOENT
        ));
    }

    #[test]
    fn the_environment_is_ours() {
        let done =
            shell("env | sort | cut -d= -f1 | tr '\\n' ' '; pwd; touch x 2>/dev/null && echo made", GRACE);
        assert_eq!(done.expect("run").output, "LC_ALL PATH PWD /sys\n");
    }

    #[test]
    fn what_is_to_be_held_is_open_in_the_program() {
        let held =
            nix::fcntl::open("/proc/version", nix::fcntl::OFlag::O_RDONLY, nix::sys::stat::Mode::empty());
        let done = run(Path::new("/bin/readlink"), &["/proc/self/fd/0"], Some(held.expect("open")), GRACE);
        assert_eq!(done.expect("run").output.trim(), "/proc/version");
    }
}
