//! A freeze ends whatever dies: the process that holds it, its helper, or one by a bug. Only when both die at once it
//! stays, and is found and thawed.

use std::fs::DirEntry;
use std::io::{BufRead, BufReader, Lines};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::{JoinHandle, sleep, spawn};
use std::time::{Duration, Instant};

use hostloop::kernel::Os;
use hostloop::kernel::linux::{Tools, os};
use hostloop::model::FsType;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use crate::contract::{Cleanup, MIB, assert_gone, devices_of, directory, errno, flags, formatted};
use crate::harness::eventually;
use crate::harness::process::binary;

const LONG: Duration = Duration::from_secs(60);

/// Long enough for a writer that does not have to wait.
const A_WHILE: Duration = Duration::from_millis(200);

/// The environment of [`holder`].
const MOUNT_POINT: &str = "HOLDER_MOUNT_POINT";
const MODE: &str = "HOLDER_MODE";

/// What [`holder`] does.
#[derive(Debug, Clone, Copy)]
enum Held {
    /// It freezes and sleeps.
    Still,
    /// It freezes and panics after a while.
    Panic,
    /// It freezes and thaws all the time.
    Again,
}

fn machine() -> Os {
    os(Tools::find().with_helper(binary()))
}

/// A mounted filesystem.
struct Volume {
    os: Os,
    dir: tempfile::TempDir,
    at: PathBuf,
}

impl Volume {
    fn new(fs_type: FsType) -> Volume {
        let (dir, path) = crate::harness::new_directory("hostloop-freeze-");
        let (os, image) = (machine(), path.join("disk.img"));
        let at = directory(&os, path.join("mounted"));
        let open = formatted(&os, &image, fs_type, fs_type.minimum_bytes().max(64 * MIB));
        os.mounts.mount(&open.device.path(), &at, fs_type, &flags(&[])).expect("mount");
        Volume { os, dir, at }
    }

    /// Writes a file durably in the background.
    fn write(&self, name: &str) -> Writer {
        let file = self.at.join(name);
        let done = Arc::new(AtomicBool::new(false));
        let set = Arc::clone(&done);
        let thread = spawn(move || {
            std::fs::write(&file, "x").expect("write");
            std::fs::File::open(&file).expect("open").sync_all().expect("fsync");
            set.store(true, Ordering::SeqCst);
            Instant::now()
        });
        Writer { done, thread }
    }

    /// The process that has this filesystem's directory as its standard output.
    fn helper(&self) -> Pid {
        let is_helper = |pid: &i32| {
            std::fs::read_link(format!("/proc/{pid}/fd/1")).is_ok_and(|to| to == self.at)
                && std::fs::read_to_string(format!("/proc/{pid}/comm"))
                    .is_ok_and(|n| n == "hostloop-freeze\n")
        };
        let entries = std::fs::read_dir("/proc").expect("/proc");
        let mut pids = entries.filter_map(|entry| entry.expect("/proc").file_name().to_str()?.parse().ok());
        Pid::from_raw(pids.find(is_helper).expect("a helper"))
    }

    fn hold(&self, how: Held) -> Holder {
        let mut command = Command::new(std::env::current_exe().expect("current exe"));
        let (_program, module) = module_path!().split_once("::").expect("a module of the program");
        command.args(["--ignored", "--exact", &format!("{module}::holder"), "--nocapture"]);
        command.env(MOUNT_POINT, &self.at).env(MODE, format!("{how:?}")).env("RUST_BACKTRACE", "0");
        let mut child = command.process_group(0).stdout(Stdio::piped()).spawn().expect("the holder starts");
        let mut output = BufReader::new(child.stdout.take().expect("its output")).lines();
        let frozen = output.any(|line| line.expect("text").contains("it is frozen"));
        assert!(frozen, "the holder could not freeze");
        Holder { child, _output: output }
    }

    fn finish(self) {
        self.os.mounts.unmount(&self.at).expect("unmount");
        assert_gone(&self.os, &self.dir.path().join("disk.img"));
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        // After a failed assertion: a writer that waits can be ended by nothing else.
        let _ = self.os.mounts.thaw(&self.at);
        drop(Cleanup::new(&self.os, self.dir.path()));
    }
}

struct Writer {
    done: Arc<AtomicBool>,
    thread: JoinHandle<Instant>,
}

impl Writer {
    fn must_wait(&self) {
        sleep(A_WHILE);
        assert!(!self.done.load(Ordering::SeqCst), "written in spite of the freeze");
    }

    fn ends(self, since: Instant, what: &str) -> Duration {
        eventually(what, || self.done.load(Ordering::SeqCst));
        self.thread.join().expect("writer").saturating_duration_since(since)
    }

    /// Waits for the end of the write, which comes within this time after `since`.
    fn finishes(self, since: Instant, within: Duration, what: &str) {
        let took = self.ends(since, what);
        eprintln!("{what}: writable again after {took:?}");
        assert!(took < within, "{what}: {took:?}");
    }
}

/// A process that has frozen a filesystem.
struct Holder {
    child: Child,
    /// Open as long as it lives, since it writes to it.
    _output: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"))
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The process that the tests kill.
#[test]
#[ignore = "started by the tests of this file"]
fn holder() {
    let Some(at) = std::env::var_os(MOUNT_POINT) else {
        return;
    };
    let (os, at) = (machine(), Path::new(&at));
    let frozen = os.mounts.freeze(at, LONG).expect("freeze");
    println!("it is frozen");
    match std::env::var(MODE).expect("a mode").as_str() {
        "Panic" => {
            sleep(2 * A_WHILE);
            panic!("as a bug does");
        }
        "Again" => {
            drop(frozen);
            loop {
                drop(os.mounts.freeze(at, LONG).expect("freeze"));
            }
        }
        _ => sleep(LONG),
    }
}

/// A thaw takes milliseconds; this is for machines that do much else.
const SOON: Duration = Duration::from_secs(15);

fn is_gone(pid: Pid) -> bool {
    // Also of a zombie there would be something.
    kill(pid, None) == Err(Errno::ESRCH)
}

/// Stops a process and waits until each of its threads stands still, of which the kernel tells one after the other.
fn stop(pid: Pid) {
    kill(pid, Signal::SIGSTOP).expect("stop");
    let stands = |thread: std::io::Result<DirEntry>| {
        let stat = std::fs::read_to_string(thread.expect("a thread").path().join("stat")).expect("stat");
        // After the name, which may hold anything (proc_pid_stat(5)).
        stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
    };
    let threads = || std::fs::read_dir(format!("/proc/{pid}/task")).expect("the threads");
    eventually("every thread stands still", || threads().all(stands));
}

#[test]
fn a_killed_holder_leaves_nothing_frozen() {
    for fs_type in FsType::ALL {
        let volume = Volume::new(fs_type);
        let holder = volume.hold(Held::Still);
        let (helper, writer) = (volume.helper(), volume.write("file"));
        writer.must_wait();
        let since = Instant::now();
        kill(holder.pid(), Signal::SIGKILL).expect("kill");
        writer.finishes(since, SOON, &format!("{fs_type}, kill -9 of the holder"));
        drop(holder);
        eventually("the helper ends", || is_gone(helper));
        volume.finish();
    }
}

#[test]
fn a_holder_that_panics_leaves_nothing_frozen() {
    let volume = Volume::new(FsType::Ext4);
    let mut holder = volume.hold(Held::Panic);
    let (writer, since) = (volume.write("file"), Instant::now());
    writer.finishes(since, SOON, "a panic in the holder");
    assert!(!holder.child.wait().expect("wait").success());
    volume.finish();
}

/// The helper does not end by what ends the others, and thaws when they have.
#[test]
fn signals_to_everybody() {
    let volume = Volume::new(FsType::Xfs);
    let holder = volume.hold(Held::Still);
    let (helper, writer) = (volume.helper(), volume.write("file"));
    for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        kill(helper, signal).expect("kill");
    }
    writer.must_wait();
    let since = Instant::now();
    killpg(holder.pid(), Signal::SIGTERM).expect("kill");
    kill(helper, Signal::SIGTERM).expect("kill");
    writer.finishes(since, SOON, "SIGTERM to everybody");
    drop(holder);
    eventually("the helper ends", || is_gone(helper));
    volume.finish();
}

/// The process that holds the freeze sees it at once, not only when it wants to thaw.
#[test]
fn a_killed_helper_is_noticed_at_once() {
    for fs_type in FsType::ALL {
        let volume = Volume::new(fs_type);
        let frozen = volume.os.mounts.freeze(&volume.at, LONG).expect("freeze");
        let (helper, writer) = (volume.helper(), volume.write("file"));
        writer.must_wait();
        let since = Instant::now();
        kill(helper, Signal::SIGKILL).expect("kill");
        writer.finishes(since, SOON, &format!("{fs_type}, kill -9 of the helper"));
        assert_eq!(errno(frozen.thaw()), Some(Errno::EOWNERDEAD));
        assert!(is_gone(helper), "a zombie");
        volume.finish();
    }
}

/// A helper that is alive but does nothing is no reason to wait longer than a moment after the limit.
#[test]
fn a_stopped_helper_is_waited_for_a_moment_only() {
    let volume = Volume::new(FsType::Ext4);
    let limit = Duration::from_secs(1);
    let (frozen, since) = (volume.os.mounts.freeze(&volume.at, limit).expect("freeze"), Instant::now());
    let (helper, writer) = (volume.helper(), volume.write("file"));
    kill(helper, Signal::SIGSTOP).expect("kill");
    writer.finishes(since, Duration::from_secs(15), "a stopped helper");
    assert_eq!(errno(frozen.thaw()), Some(Errno::EOWNERDEAD));
    assert!(is_gone(helper));
    volume.finish();
}

/// As at the end of a container. Also a filesystem that is unmounted meanwhile stays frozen, with its device.
#[test]
fn holder_and_helper_die_at_once() {
    for fs_type in FsType::ALL {
        let volume = Volume::new(fs_type);
        let holder = volume.hold(Held::Still);
        let helper = volume.helper();
        // So that it cannot do what it does where its helper alone dies.
        stop(holder.pid());
        kill(helper, Signal::SIGKILL).expect("kill");
        drop(holder);
        eventually("the helper ends", || is_gone(helper));
        let Volume { os, dir, at } = &volume;
        assert_eq!(errno(os.mounts.freeze(at, LONG).map(drop)), Some(Errno::EBUSY), "{fs_type}");
        os.mounts.unmount(at).expect("unmount");
        let device = devices_of(os, &dir.path().join("disk.img")).pop().expect("the device stays");
        os.mounts.mount(&device.path(), at, fs_type, &flags(&[])).expect("mount");
        let writer = volume.write("file");
        writer.must_wait();
        let since = Instant::now();
        assert!(os.mounts.thaw(at).expect("thaw"), "it was frozen");
        writer.finishes(since, SOON, &format!("{fs_type}, a thaw by the next process"));
        assert!(!os.mounts.thaw(at).expect("thaw"), "not any more");
        volume.finish();
    }
}

/// Wherever in a freeze or a thaw it is.
#[test]
fn a_holder_that_is_killed_at_any_moment() {
    let volume = Volume::new(FsType::Ext4);
    let mut random = u64::from(std::process::id());
    let mut longest = Duration::ZERO;
    for round in 0..40 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let holder = volume.hold(Held::Again);
        sleep(Duration::from_micros((random >> 33) % 30_000));
        kill(holder.pid(), Signal::SIGKILL).expect("kill");
        let since = Instant::now();
        longest = longest.max(volume.write(&format!("file{round}")).ends(since, "a kill at any moment"));
        drop(holder);
        eventually("it can be frozen again", || volume.os.mounts.freeze(&volume.at, LONG).is_ok());
    }
    eprintln!("killed at any moment: writable again after at most {longest:?}");
    assert!(longest < SOON, "{longest:?}");
    eventually("the last helper ends", || volume.os.mounts.unmount(&volume.at).is_ok());
}

/// A helper that cannot be started, or is another program, freezes nothing.
#[test]
fn a_helper_that_is_none_freezes_nothing() {
    let volume = Volume::new(FsType::Ext4);
    let wrong = [("/nonexistent", Errno::ENOENT), ("/bin/true", Errno::EOWNERDEAD)];
    for (program, expected) in wrong {
        let error = os(Tools::find().with_helper(program)).mounts.freeze(&volume.at, LONG).err();
        let error = error.expect("no helper");
        assert!(error.to_string().contains(program) || expected != Errno::ENOENT, "{error}");
        assert_eq!(errno(Err::<(), _>(error)), Some(expected));
    }
    assert!(!volume.os.mounts.thaw(&volume.at).expect("thaw"));
    volume.finish();
}

/// Not a test of speed: it prints what a freeze costs.
#[test]
#[ignore = "a measurement"]
fn the_cost_of_a_freeze_is_printed() {
    for fs_type in FsType::ALL {
        let volume = Volume::new(fs_type);
        for busy in [false, true] {
            let (stop, longest) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
            let writer = busy.then(|| {
                let (stop, longest, file) = (Arc::clone(&stop), Arc::clone(&longest), volume.at.join("busy"));
                spawn(move || {
                    use std::os::unix::fs::FileExt;
                    let file = std::fs::File::create(file).expect("create");
                    for n in 0u64.. {
                        if stop.load(Ordering::Relaxed) {
                            break;
                        }
                        let started = Instant::now();
                        file.write_all_at(&[1; 4096], n % 1024 * 4096).expect("write");
                        longest.fetch_max(started.elapsed().as_micros() as u64, Ordering::Relaxed);
                        sleep(Duration::from_micros(50));
                    }
                })
            });
            let (mut freezes, mut thaws, mut stalls) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..50 {
                sleep(Duration::from_millis(10));
                longest.store(0, Ordering::Relaxed);
                let started = Instant::now();
                let frozen = volume.os.mounts.freeze(&volume.at, LONG).expect("freeze");
                freezes.push(started.elapsed().as_micros() as u64);
                let started = Instant::now();
                frozen.thaw().expect("thaw");
                thaws.push(started.elapsed().as_micros() as u64);
                sleep(Duration::from_millis(2));
                stalls.push(longest.load(Ordering::Relaxed));
            }
            stop.store(true, Ordering::Relaxed);
            writer.map(JoinHandle::join).transpose().expect("writer");
            let median = |mut all: Vec<u64>| {
                all.sort_unstable();
                all[all.len() / 2]
            };
            let (freeze, thaw, stall) = (median(freezes), median(thaws), median(stalls));
            eprintln!("{fs_type}, busy {busy}: freeze {freeze} us, thaw {thaw} us, longest write {stall} us");
        }
        volume.finish();
    }
}
