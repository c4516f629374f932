//! Whether a running program makes progress: its CPU time, its reads and writes and those of its children
//! (proc_pid_stat(5), proc_pid_io(5)). Time alone does not count, because a repair of a huge filesystem on a slow disk
//! may take days.
#![allow(clippy::disallowed_methods, reason = "the kernel's word on a process, not files")]

use std::fmt;
use std::time::{Duration, Instant};

/// When a program is looked at, told of and given up.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// A program that has not come further for so long is killed.
    pub(super) idle: Duration,
    /// Time between two looks.
    pub(super) look: Duration,
    /// Time between two lines in the log.
    pub(super) log: Duration,
}

/// For every tool.
pub(super) const PATIENCE: Patience =
    Patience { idle: Duration::from_secs(600), look: Duration::from_secs(1), log: Duration::from_secs(60) };

/// Children of children that are looked at, at most.
const MOST: usize = 64;

/// What a program and its children have done so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Done {
    /// CPU time in clock ticks.
    ticks: u64,
    /// Bytes that read(2) and write(2) and the like have moved, and those that went to and from a disk.
    bytes: u64,
    /// Bytes written by it, for people.
    written: u64,
    read: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) done: Done,
    /// It, or a child, is in uninterruptible sleep: the disk has not answered, and no signal reaches it.
    pub(super) waits_for_disk: bool,
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = hostloop_model::format_bytes;
        write!(f, "{} read, {} written", bytes(self.read), bytes(self.written))
    }
}

/// Looks at a program and its children.
pub(super) fn look(pid: u32) -> Seen {
    let mut seen = Seen { done: Done::default(), waits_for_disk: false };
    let mut pids = vec![pid];
    let mut next = 0;
    while let Some(pid) = pids.get(next).copied() {
        next += 1;
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        if let Some((state, ticks)) = state_and_ticks(&read("stat")) {
            seen.done.ticks += ticks;
            seen.waits_for_disk |= state == "D";
        }
        add_io(&mut seen.done, &read("io"));
        // CONFIG_PROC_CHILDREN; without it only the program itself counts.
        let children = read(&format!("task/{pid}/children"));
        let children = children.split_whitespace().filter_map(|child| child.parse::<u32>().ok());
        pids.extend(children.take(MOST.saturating_sub(pids.len())));
    }
    seen
}

/// The state and the CPU time, with that of children that have ended, of a line of `/proc/PID/stat`. The program's name
/// comes before and may hold anything.
fn state_and_ticks(stat: &str) -> Option<(&str, u64)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    // utime, stime, cutime and cstime are fields 14 to 17, the state is field 3.
    let ticks = fields.skip(10).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Some((state, ticks))
}

fn add_io(done: &mut Done, io: &str) {
    for line in io.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        let Ok(value) = value.trim().parse::<u64>() else { continue };
        match name {
            "rchar" => done.read += value,
            "wchar" => done.written += value,
            "read_bytes" | "write_bytes" => {}
            _ => continue,
        }
        done.bytes = done.bytes.saturating_add(value);
    }
}

/// One program from its start to its end.
pub(super) struct Watch {
    patience: Patience,
    started: Instant,
    logged: Instant,
    /// When it last came further, and how far it was.
    moved: Instant,
    done: Done,
    told_of_disk: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It works, or may still.
    Wait,
    /// It has not come further for as long as it may.
    Stuck,
}

impl Watch {
    pub(super) fn new(patience: Patience) -> Self {
        let now = Instant::now();
        Watch { patience, started: now, logged: now, moved: now, done: Done::default(), told_of_disk: false }
    }

    /// Judges what was seen, and writes a line into the log from time to time.
    pub(super) fn judge(&mut self, program: &str, seen: Seen) -> Verdict {
        if seen.done != self.done {
            (self.done, self.moved, self.told_of_disk) = (seen.done, Instant::now(), false);
        }
        let (seconds, idle) = (self.started.elapsed().as_secs(), self.moved.elapsed());
        let stuck = idle >= self.patience.idle;
        if stuck && seen.waits_for_disk {
            // SIGKILL would not reach it either, and when the disk answers it goes on.
            if !self.told_of_disk {
                self.told_of_disk = true;
                tracing::error!(
                    program,
                    seconds,
                    idle_seconds = idle.as_secs(),
                    "the program waits for the disk, which does not answer"
                );
            }
            return Verdict::Wait;
        }
        if self.logged.elapsed() >= self.patience.log {
            self.logged = Instant::now();
            tracing::info!(program, seconds, idle_seconds = idle.as_secs(), done = %seen.done, "the program works");
        }
        if stuck { Verdict::Stuck } else { Verdict::Wait }
    }

    /// For people: how long it works and how far it is.
    pub(super) fn describe(&self, seen: Seen) -> String {
        let seconds = self.started.elapsed().as_secs();
        let disk = if seen.waits_for_disk { ", it waits for the disk" } else { "" };
        format!("for {seconds} s, {}{disk}", self.done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Patience =
        Patience { idle: Duration::ZERO, look: Duration::from_millis(1), log: Duration::ZERO };

    fn seen(ticks: u64, waits_for_disk: bool) -> Seen {
        Seen { done: Done { ticks, ..Done::default() }, waits_for_disk }
    }

    #[test]
    fn a_line_of_stat_is_read_whatever_the_name() {
        let line = "7 (a) D (x) S 1 7 7 0 -1 4194560 152 0 0 0 30 4 100 1 20 0 1 0 3 4 5";
        assert_eq!(state_and_ticks(line), Some(("S", 135)));
        assert_eq!(state_and_ticks(""), None);
        let mut done = Done::default();
        add_io(&mut done, "rchar: 10\nwchar: 5\nsyscr: 7\nread_bytes: 4096\ncancelled_write_bytes: 3\n");
        assert_eq!((done.bytes, done.read, done.written), (4111, 10, 5));
    }

    #[test]
    fn a_program_that_waits_for_the_disk_is_not_given_up() {
        let mut watch = Watch::new(LIMIT);
        assert_eq!(watch.judge("x", seen(0, true)), Verdict::Wait);
        assert_eq!(watch.judge("x", seen(0, false)), Verdict::Stuck);
        assert!(watch.describe(seen(0, true)).ends_with("it waits for the disk"));
    }

    #[test]
    fn this_process_comes_further() {
        let before = look(std::process::id());
        assert!(std::fs::read("/proc/self/status").is_ok_and(|text| !text.is_empty()));
        assert_ne!(look(std::process::id()).done, before.done);
    }

    /// By its time alone: an endless loop reads and writes nothing.
    #[test]
    #[allow(clippy::disallowed_types, reason = "a test, which looks at a program of its own")]
    fn a_program_that_computes_makes_progress() {
        use nix::sys::signal::{Signal, killpg};
        use std::os::unix::process::CommandExt;
        for script in ["while :; do :; done", "while :; do :; done & wait"] {
            let mut shell = std::process::Command::new("/bin/sh");
            let mut shell = shell.args(["-c", script]).process_group(0).spawn().expect("start");
            let ticks = || look(shell.id()).done.ticks;
            let since = Instant::now();
            let (mut before, mut grown) = (ticks(), 0);
            while grown < 3 && since.elapsed() < Duration::from_secs(60) {
                std::thread::sleep(Duration::from_millis(5));
                let now = ticks();
                grown += u32::from(now > before);
                before = now;
            }
            let group = nix::unistd::Pid::from_raw(i32::try_from(shell.id()).expect("an id"));
            killpg(group, Signal::SIGKILL).expect("kill");
            shell.wait().expect("wait");
            assert_eq!(grown, 3, "{script}: {before} ticks");
        }
    }
}
