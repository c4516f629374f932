//! A driver of our own: `hostloop serve` as a child process.
#![allow(
    clippy::disallowed_types,
    reason = "it starts this very program, not a tool of the driver's work: kernel/linux/exec.rs waits for an end"
)]

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use super::client::Client;
use crate::kernel::host;

/// How long it may take to be ready.
const START: Duration = Duration::from_secs(30);
/// How long it may take to stop; it has to be more than the driver's own --shutdown-timeout.
const STOP: Duration = Duration::from_secs(35);

/// A running driver. Killed if it is dropped before [`stop`](Self::stop).
#[derive(Debug)]
pub struct DriverProcess {
    child: Child,
    log: PathBuf,
}

impl DriverProcess {
    /// The driver's socket in its directory.
    pub fn socket(dir: &Path) -> PathBuf {
        dir.join("csi.sock")
    }

    /// Starts `program serve` with socket, data and log in `dir`, which exists.
    ///
    /// # Errors
    /// Those of making the log file and of posix_spawn(3).
    pub fn start(program: &Path, dir: &Path) -> io::Result<Self> {
        Self::start_with(program, dir, &[])
    }

    /// The same with further flags.
    ///
    /// # Errors
    /// As for [`start`](Self::start).
    pub fn start_with(program: &Path, dir: &Path, flags: &[String]) -> io::Result<Self> {
        let log = dir.join("driver.log");
        let child = Command::new(program)
            .arg("serve")
            .arg("--endpoint")
            .arg(Self::socket(dir))
            .arg("--data-dir")
            .arg(dir.join("data"))
            // It says itself what room it needs, also on a disk of which kubelet wants a part.
            .args(["--node-id", "selftest", "--log-level", "warn", "--reserve", "0"])
            .args(flags)
            // Variables of an installed driver must not reach this one.
            .env_clear()
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log)?)
            // Ctrl-C in a terminal goes to the whole group: it must not take the driver before its volumes.
            .process_group(0)
            .spawn()?;
        Ok(DriverProcess { child, log })
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until it says that it is ready.
    ///
    /// # Errors
    /// A line that says why it does not: it has ended, or takes too long.
    pub async fn ready(&mut self, client: &Client) -> Result<(), String> {
        let started = Instant::now();
        while !client.is_ready().await {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the driver ended at its start ({status})"));
            }
            if started.elapsed() > START {
                return Err(format!("the driver was not ready after {} s", START.as_secs()));
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Asks it to stop and waits for that; kills it if it takes too long.
    ///
    /// # Errors
    /// A line about how it ended, where that was not with exit code 0.
    pub async fn stop(mut self) -> Result<(), String> {
        let asked = host::terminate(self.child.id());
        let started = Instant::now();
        while started.elapsed() < STOP && asked.is_ok() {
            match self.child.try_wait() {
                Ok(Some(status)) => return judge(status),
                Ok(None) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => return Err(format!("the driver cannot be waited for: {error}")),
            }
        }
        Err(format!("the driver had to be killed: it had not stopped {} s after SIGTERM", STOP.as_secs()))
    }

    /// What it has logged: warnings and errors.
    pub fn log(&self) -> PathBuf {
        self.log.clone()
    }
}

fn judge(status: ExitStatus) -> Result<(), String> {
    if status.success() { Ok(()) } else { Err(format!("the driver stopped with {status}")) }
}

impl Drop for DriverProcess {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // Nobody is left to tell if it fails.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}
