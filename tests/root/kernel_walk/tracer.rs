//! A tracer (ptrace(2)) of the driver and of every program that it starts, for the time of one call. It writes down
//! each system call that changes something, and ends a process or fails the call at one of them.
//!
//! A tracer is a thread: only it hears of its tracees. It is not a parent of anything, so that it waits for nothing else
//! (`__WNOTHREAD`), and it leaves the driver's exit to whoever started the driver.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid, waitpid};
use nix::unistd::Pid;

use super::plan::{Action, Plan, When, Who};
use super::system_call::{Raw, class_of};

/// Wakes the tracer: nothing in the driver listens to it, and the tracer does not hand it on.
const WAKE: Signal = Signal::SIGWINCH;
/// PTRACE_EVENT_STOP, which libc has no name for.
const EVENT_STOP: i32 = 128;
/// The name of a process between clone(2) and execve(2).
const START: &str = "start";
/// `op` of ptrace_syscall_info.
const ENTRY: u8 = 1;

/// A system call that changed something, or would have.
#[derive(Debug, Clone)]
pub struct Change {
    /// Program, name, and class of what it is for: the same in each run of the call.
    pub key: String,
    /// How often the key had come up, with this one.
    pub nth: usize,
    pub in_driver: bool,
    /// It says how many bytes are to be written.
    pub can_be_short: bool,
}

/// What became of a call.
pub struct Traced {
    pub changes: Vec<Change>,
    /// The planned position came.
    pub met: bool,
    pub driver_killed: bool,
    release: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Traced {
    /// Lets a program go on that was stopped when the driver was killed.
    pub fn release(&mut self) {
        drop(self.release.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the tracer");
        }
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        drop(self.release.take());
    }
}

/// Makes a call while the driver is traced, and lets everything go on afterwards: all but a program at which the driver
/// was killed. `names` are those of ids and directories that differ from run to run, `log` is the driver's.
pub fn trace<T>(
    driver: u32,
    log: &Path,
    names: Vec<(String, String)>,
    plan: Option<Plan>,
    call: impl FnOnce() -> T,
) -> (T, Traced) {
    let driver = Pid::from_raw(i32::try_from(driver).expect("a pid"));
    let log = log.to_str().expect("text").to_owned();
    let (done, (attached, is_attached)) = (Arc::new(AtomicBool::new(false)), channel());
    let ((settled, outcome), (release, released)) = (channel(), channel());
    let is_done = done.clone();
    let thread = std::thread::spawn(move || {
        let mut tracer = Tracer {
            driver,
            log,
            names,
            plan,
            done: is_done,
            tracees: BTreeMap::new(),
            counts: HashMap::new(),
            changes: Vec::new(),
            met: false,
            driver_killed: false,
            held: None,
        };
        tracer.attach().expect("attach to the driver");
        attached.send(()).expect("somebody waits");
        tracer.follow();
        tracer.settle(&settled, &released);
    });
    is_attached.recv().expect("the tracer attaches");
    let answer = call();
    done.store(true, Ordering::SeqCst);
    // Nobody has waited for it, so that its pid is nobody else's.
    kill(driver, WAKE).expect("wake the tracer");
    let (changes, met, driver_killed) = outcome.recv().expect("the tracer");
    let (release, thread) = (Some(release), Some(thread));
    (answer, Traced { changes, met, driver_killed, release, thread })
}

type Outcome = (Vec<Change>, bool, bool);

/// What is done to a system call that was entered.
enum Pending {
    KillAfter(Who),
    Return(Errno),
}

struct Tracee {
    process: Pid,
    program: String,
    pending: Option<Pending>,
}

struct Tracer {
    driver: Pid,
    log: String,
    names: Vec<(String, String)>,
    plan: Option<Plan>,
    done: Arc<AtomicBool>,
    tracees: BTreeMap<Pid, Tracee>,
    counts: HashMap<String, usize>,
    changes: Vec<Change>,
    met: bool,
    driver_killed: bool,
    /// Stopped at the position at which the driver was killed.
    held: Option<Pid>,
}

/// Fine where the thread has been killed meanwhile.
fn gone_is_fine(result: nix::Result<()>) {
    match result {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(errno) => panic!("ptrace: {errno}"),
    }
}

impl Tracer {
    /// Lets a thread go on: up to its next system call, unless none matters any more, since each stop takes time.
    fn resume(&self, thread: Pid, signal: Option<Signal>) {
        let awaited = self.tracees.get(&thread).is_some_and(|tracee| tracee.pending.is_some());
        gone_is_fine(if self.met && !awaited {
            ptrace::cont(thread, signal)
        } else {
            ptrace::syscall(thread, signal)
        });
    }

    fn attach(&mut self) -> nix::Result<()> {
        let options = Options::PTRACE_O_TRACESYSGOOD
            | Options::PTRACE_O_TRACEFORK
            | Options::PTRACE_O_TRACEVFORK
            | Options::PTRACE_O_TRACECLONE
            | Options::PTRACE_O_TRACEEXEC
            | Options::PTRACE_O_EXITKILL;
        loop {
            let new: Vec<_> =
                self.threads().into_iter().filter(|thread| !self.tracees.contains_key(thread)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for thread in new {
                match ptrace::seize(thread, options).and_then(|()| ptrace::interrupt(thread)) {
                    // It has ended, or a traced thread has started it.
                    Err(Errno::ESRCH | Errno::EPERM) => {}
                    result => result?,
                }
                self.add(thread);
            }
        }
    }

    fn threads(&self) -> Vec<Pid> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.driver)).expect("the driver runs");
        let number = |task: std::fs::DirEntry| task.file_name().to_str()?.parse().ok();
        tasks.filter_map(|task| number(task.ok()?)).map(Pid::from_raw).collect()
    }

    fn add(&mut self, thread: Pid) {
        if self.tracees.contains_key(&thread) {
            return;
        }
        let status = std::fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
        let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
        let process = Pid::from_raw(process.unwrap_or(thread.as_raw()));
        let same = self.tracees.values().find(|tracee| tracee.process == process);
        let program = match same {
            Some(tracee) => tracee.program.clone(),
            None if process == self.driver => "driver".to_owned(),
            None => START.to_owned(),
        };
        self.tracees.insert(thread, Tracee { process, program, pending: None });
    }

    /// What happens next, without taking the driver's end from its parent; `None` for that, and where nobody is left.
    fn next(&self) -> Option<WaitStatus> {
        let all = WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::__WALL;
        let status = waitid(Id::All, all | WaitPidFlag::__WNOTHREAD | WaitPidFlag::WNOWAIT);
        match status {
            Err(Errno::ECHILD) => return None,
            Err(Errno::EINTR) => return Some(WaitStatus::StillAlive),
            _ => {}
        }
        let status = status.expect("waitid");
        let thread = status.pid()?;
        let ended = matches!(status, WaitStatus::Exited(..) | WaitStatus::Signaled(..));
        if ended && thread == self.driver {
            return None;
        }
        Some(waitpid(thread, Some(WaitPidFlag::__WALL)).expect("waitpid"))
    }

    /// Until the call is answered, or the driver has ended.
    fn follow(&mut self) {
        while let Some(status) = self.next() {
            self.handle(status);
            if self.done.load(Ordering::SeqCst) && !self.driver_killed {
                return;
            }
        }
        self.tracees.retain(|_, tracee| tracee.process != self.driver);
    }

    fn handle(&mut self, status: WaitStatus) {
        match status {
            WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, _, _) => {
                self.tracees.remove(&thread);
            }
            WaitStatus::PtraceSyscall(thread) => self.system_call(thread),
            WaitStatus::PtraceEvent(thread, signal, 0) | WaitStatus::Stopped(thread, signal) => {
                self.resume(thread, Some(signal).filter(|signal| *signal != WAKE));
            }
            WaitStatus::PtraceEvent(thread, _, event) => {
                self.event(thread, event);
                self.resume(thread, None);
            }
            _ => {}
        }
    }

    fn event(&mut self, thread: Pid, event: i32) {
        match event {
            libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE => {
                if let Ok(new) = ptrace::getevent(thread) {
                    self.add(Pid::from_raw(i32::try_from(new).expect("a pid")));
                }
            }
            libc::PTRACE_EVENT_EXEC => {
                self.add(thread);
                let program = std::fs::read_link(format!("/proc/{thread}/exe")).unwrap_or_default();
                let program = PathBuf::from(program.file_name().unwrap_or_default()).display().to_string();
                // The helper beside a frozen filesystem is the driver's own program.
                let program = match &*program {
                    "hostloop" if thread == self.driver => "driver".to_owned(),
                    "hostloop" => "freeze-guard".to_owned(),
                    _ => program,
                };
                if let Some(tracee) = self.tracees.get_mut(&thread) {
                    tracee.program = program;
                }
            }
            EVENT_STOP => self.add(thread),
            _ => {}
        }
    }

    fn system_call(&mut self, thread: Pid) {
        let Ok(info) = ptrace::syscall_info(thread) else { return };
        let go_on = if info.op == ENTRY { self.enter(thread) } else { self.leave(thread) };
        if go_on {
            self.resume(thread, None);
        }
    }

    /// Whether the thread is to go on.
    fn enter(&mut self, thread: Pid) -> bool {
        let Ok(mut registers) = ptrace::getregs(thread) else { return false };
        let raw = Raw {
            number: registers.orig_rax.cast_signed(),
            arguments: [
                registers.rdi,
                registers.rsi,
                registers.rdx,
                registers.r10,
                registers.r8,
                registers.r9,
            ],
        };
        let Some((name, what)) = raw.change(thread).filter(|(_, what)| *what != self.log) else {
            return true;
        };
        self.add(thread);
        let Some(tracee) = self.tracees.get_mut(&thread) else { return true };
        let key = format!("{}: {name} {}", tracee.program, class_of(&what, &self.names));
        let nth = self.counts.entry(key.clone()).or_default();
        *nth += 1;
        let (in_driver, shorter) = (tracee.process == self.driver, raw.shorter(thread));
        let change = Change { key, nth: *nth, in_driver, can_be_short: shorter.is_some() };
        let planned =
            self.plan.as_ref().filter(|plan| !self.met && plan.is_at(&change)).map(|plan| plan.action);
        self.changes.push(change);
        let Some(action) = planned else { return true };
        self.met = true;
        match action {
            Action::Kill(who, When::Before) => return self.kill(thread, who),
            Action::Kill(who, When::After) => tracee.pending = Some(Pending::KillAfter(who)),
            Action::Fail(errno) => {
                tracee.pending = Some(Pending::Return(errno));
                registers.orig_rax = u64::MAX;
                gone_is_fine(ptrace::setregs(thread, registers));
            }
            Action::Short => {
                match shorter {
                    Some((2, fewer)) => registers.rdx = fewer,
                    Some((3, fewer)) => registers.r10 = fewer,
                    Some((4, fewer)) => registers.r8 = fewer,
                    _ => self.met = false,
                }
                gone_is_fine(ptrace::setregs(thread, registers));
            }
        }
        true
    }

    fn leave(&mut self, thread: Pid) -> bool {
        match self.tracees.get_mut(&thread).and_then(|tracee| tracee.pending.take()) {
            None => true,
            Some(Pending::KillAfter(who)) => self.kill(thread, who),
            Some(Pending::Return(errno)) => {
                if let Ok(mut registers) = ptrace::getregs(thread) {
                    registers.rax = i64::from(-(errno as i32)).cast_unsigned();
                    gone_is_fine(ptrace::setregs(thread, registers));
                }
                true
            }
        }
    }

    /// Whether the thread at whose system call this happens is to go on.
    fn kill(&mut self, thread: Pid, who: Who) -> bool {
        let Some(Tracee { process, program, .. }) = self.tracees.get(&thread) else { return true };
        // Before execve(2) it has the connections and locks of the driver, and needs nothing more of it.
        let (process, at_once) = (*process, program == START);
        let driver = who != Who::Program;
        self.driver_killed |= driver;
        let mut killed: Vec<Pid> = driver.then_some(self.driver).into_iter().collect();
        match who {
            Who::Driver => {}
            Who::Program => killed.push(process),
            Who::All => killed.extend(self.tracees.values().map(|tracee| tracee.process)),
        }
        killed.sort_unstable();
        killed.dedup();
        let dies = killed.contains(&process);
        killed.into_iter().for_each(|process| gone_is_fine(kill(process, Signal::SIGKILL)));
        if !dies && !at_once {
            self.held = Some(thread);
        }
        // Whoever is killed needs nobody to go on.
        !dies && at_once
    }

    /// Lets everybody go on untraced, says how it went, and lets the held one go on when it is told.
    fn settle(mut self, settled: &Sender<Outcome>, released: &Receiver<()>) {
        let mut left: Vec<Pid> = self.tracees.keys().copied().filter(|pid| Some(*pid) != self.held).collect();
        while let Some(thread) = left.pop() {
            let stopped = ptrace::interrupt(thread).is_ok();
            left.extend(stopped.then(|| detach(thread, self.driver)).flatten());
        }
        let changes = std::mem::take(&mut self.changes);
        // Nobody listens where the test has failed meanwhile.
        let _ = settled.send((changes, self.met, self.driver_killed));
        if let Some(thread) = self.held {
            // An error says that the other end is gone, which is the sign.
            let _ = released.recv();
            gone_is_fine(ptrace::detach(thread, None));
        }
    }
}

/// Detaches from a thread that was interrupted, at its next stop. Gives one that it has just started.
fn detach(thread: Pid, driver: Pid) -> Option<Pid> {
    loop {
        if thread == driver {
            let flags =
                WaitPidFlag::WEXITED | WaitPidFlag::WSTOPPED | WaitPidFlag::__WALL | WaitPidFlag::WNOWAIT;
            if let Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) = waitid(Id::Pid(thread), flags) {
                return None;
            }
        }
        let (signal, new) = match waitpid(thread, Some(WaitPidFlag::__WALL)) {
            Err(Errno::EINTR) => continue,
            Err(_) | Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..)) => return None,
            Ok(WaitStatus::PtraceEvent(_, signal, 0) | WaitStatus::Stopped(_, signal)) => {
                (Some(signal).filter(|signal| *signal != WAKE), None)
            }
            Ok(WaitStatus::PtraceEvent(
                _,
                _,
                libc::PTRACE_EVENT_FORK | libc::PTRACE_EVENT_VFORK | libc::PTRACE_EVENT_CLONE,
            )) => (None, ptrace::getevent(thread).ok()),
            Ok(_) => (None, None),
        };
        gone_is_fine(ptrace::detach(thread, signal));
        return new.map(|new| Pid::from_raw(i32::try_from(new).expect("a pid")));
    }
}
