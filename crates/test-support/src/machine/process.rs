//! The driver's process.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{Csi, text};

/// Returns the path of the driver that Cargo built with the test: `CARGO_BIN_EXE_hostloop` if it is set, otherwise the
/// program in the parent of the test's own directory.
///
/// # Panics
/// If there is none.
pub fn binary() -> &'static str {
    static BINARY: LazyLock<String> = LazyLock::new(|| {
        std::env::var("CARGO_BIN_EXE_hostloop").unwrap_or_else(|_| {
            let test = std::env::current_exe().expect("the program of the test");
            let built =
                test.parent().and_then(Path::parent).expect("a folder for the test's").join("hostloop");
            assert!(built.is_file(), "{} is not there; cargo test builds it", built.display());
            text(&built).to_owned()
        })
    });
    &BINARY
}

/// A running `hostloop serve`; killed when it is dropped.
pub struct Driver {
    child: Child,
    pub log: PathBuf,
}

/// The command without arguments and with nothing in its environment that it would read.
pub fn command(program: &str) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os() {
        if name
            .to_str()
            .is_some_and(|n| n.starts_with("HOSTLOOP_") || n.starts_with("CSI_") || n == "NODE_ID")
        {
            command.env_remove(name);
        }
    }
    command
}

impl Driver {
    /// Starts `command` with its stderr added to `log`, and does not wait for anything.
    pub fn spawn(command: &mut Command, log: &Path) -> Driver {
        let stderr = File::options().create(true).append(true).open(log).expect("the log");
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr).spawn();
        Driver { child: child.expect("the driver starts"), log: log.to_owned() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits until Probe says that the driver is ready.
    pub fn wait_ready(&mut self, csi: &Csi) {
        self.until_ready(csi).unwrap_or_else(|said| panic!("{said}: {}", self.log_text()));
    }

    /// As proc_pid_stat(5) has it, which takes nothing from a tracer that waits for it, as wait(2) does.
    pub fn state(&self) -> char {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.pid())).expect("nobody has waited for it");
        stat.rsplit(") ").next().and_then(|rest| rest.chars().next()).expect("a state")
    }

    /// Waits until Probe says that the driver is ready.
    ///
    /// # Errors
    /// The last line that it said, where it has ended.
    pub fn until_ready(&mut self, csi: &Csi) -> Result<(), String> {
        let started = Instant::now();
        loop {
            if let Ok(answer) = csi.probe()
                && answer.ready == Some(true)
            {
                return Ok(());
            }
            if self.state() == 'Z' {
                let said = self.log_text();
                return Err(format!("the driver has ended: {}", said.lines().last().unwrap_or_default()));
            }
            assert!(started.elapsed() < Duration::from_secs(90), "not ready: {}", self.log_text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn runs(&mut self) -> bool {
        self.child.try_wait().expect("wait").is_none()
    }

    pub fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.pid()).expect("a pid");
        kill(Pid::from_raw(pid), signal).expect("kill");
    }

    /// Waits for its end, up to 20 seconds.
    pub fn wait(&mut self) -> ExitStatus {
        let started = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("wait") {
                return status;
            }
            assert!(started.elapsed() < Duration::from_secs(60), "it does not end: {}", self.log_text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// SIGTERM; it must end well.
    pub fn stop(mut self) {
        self.signal(Signal::SIGTERM);
        let status = self.wait();
        assert_eq!(status.code(), Some(0), "{}", self.log_text());
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.signal(Signal::SIGKILL);
        self.wait();
    }

    pub fn log_text(&self) -> String {
        String::from_utf8(std::fs::read(&self.log).expect("the log")).expect("the log is text")
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // Both fail where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The node's id, of which volume ids are made: each data directory has its own, as on a real cluster.
pub fn node_of(data: &Path) -> String {
    let dir = data.ancestors().find_map(|path| path.file_name()?.to_str()?.strip_prefix("hostloop-root-"));
    format!("node-{}", dir.expect("a test's directory"))
}

/// The flags that every test gives.
pub fn serve_flags(socket: &Path, data: &Path) -> Vec<String> {
    let endpoint = format!("unix://{}", text(socket));
    ["serve", "--node-id", &node_of(data), "--endpoint", &endpoint, "--data-dir", text(data)]
        .map(str::to_owned)
        .to_vec()
}
