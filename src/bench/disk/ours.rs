//! Drivers of our own, and the volumes that are measured.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::bench::life::{Caller, Failure, InUse, Order, Times};
use crate::config::{Candidate, Check};
use crate::kernel::Os;
use crate::selftest::client::{Client, endpoint};
use crate::selftest::machine::own_program;
use crate::selftest::process::DriverProcess;

/// No call of a life takes so long, unless the disk hangs.
const DEADLINE: Duration = Duration::from_secs(60);
/// The managed pool of [`Candidate::Managed`].
const MANAGED: &str = "managed";
/// The smallest image of a managed pool with xfs.
const MANAGED_LEAST: u64 = 300 << 20;

/// A driver in a directory of its own.
pub(super) struct Ours {
    process: DriverProcess,
    client: Client,
    dir: PathBuf,
    os: Os,
}

/// Which of the two drivers has this kind: directories without an enforced size are in a pool of their own.
pub(super) fn is_of_directories(candidate: Candidate) -> bool {
    candidate.check() == Check::Directory
}

/// What the volume takes of the disk at most, in bytes, with what the driver counts for metadata.
pub(super) fn room(candidate: Candidate, bytes: u64) -> u64 {
    match candidate {
        Candidate::Directory => bytes / 2,
        Candidate::Managed => managed_bytes(bytes),
        _ => bytes + bytes / 32,
    }
}

fn managed_bytes(bytes: u64) -> u64 {
    (bytes + bytes / 8 + (128 << 20)).max(MANAGED_LEAST)
}

impl Ours {
    /// Starts the one of these kinds, with a directory below `dir`.
    ///
    /// # Errors
    /// A line that says why it does not serve, with the driver's own last words.
    pub(super) async fn start(
        os: &Os,
        dir: &Path,
        candidates: &[Candidate],
        bytes: u64,
    ) -> Result<Self, String> {
        let directories = candidates.iter().copied().any(is_of_directories);
        let dir = dir.join(if directories { "directories" } else { "loops" });
        let mut flags = Vec::new();
        if directories {
            flags.push("--directories".to_owned());
        }
        if candidates.contains(&Candidate::Managed) {
            let (image, size) = (dir.join("managed.img"), managed_bytes(bytes));
            let pool = format!("{MANAGED}={},kind=image,fs=xfs,size={size}", image.display());
            flags.extend(["--pool".to_owned(), pool]);
        }
        let started = os.files.create_directory(&dir, 0o700).and_then(|()| own_program());
        let started = started.and_then(|program| DriverProcess::start_with(&program, &dir, &flags));
        let mut process = started.map_err(|error| format!("the driver cannot be started: {error}"))?;
        let endpoint = endpoint(&DriverProcess::socket(&dir)).map_err(|error| error.to_string())?;
        let client = Client::on(endpoint.timeout(DEADLINE).connect_lazy());
        if let Err(error) = process.ready(&client).await {
            let said = os.files.read(&process.log()).unwrap_or_default();
            return Err(format!("{error}\n{}", String::from_utf8_lossy(&said).trim_end()));
        }
        Ok(Ours { process, client, dir, os: os.clone() })
    }

    fn caller(&self, candidate: Candidate, bytes: u64) -> Caller {
        let mut order = Order::of(candidate.check(), bytes);
        let mut set = |key: &str, value: &str| order.parameters.insert(key.to_owned(), value.to_owned());
        if candidate.is_thick() {
            set("provisioning", "thick");
        }
        if candidate == Candidate::Managed {
            set("pool", MANAGED);
        }
        Caller::new(self.client.clone(), Arc::clone(&self.os.files), order)
    }

    /// A volume that is published.
    pub(super) async fn volume(&self, candidate: Candidate, bytes: u64) -> Result<InUse, Failure> {
        let name = candidate.as_str();
        let place = self.dir.join(name);
        self.os.files.create_directory(&place, 0o700)?;
        self.caller(candidate, bytes).begin(name, &place, &mut Times::default()).await
    }

    /// Its end.
    pub(super) async fn end(&self, candidate: Candidate, volume: InUse) -> Result<(), Failure> {
        self.caller(candidate, 0).end(volume, &mut Times::default()).await
    }

    /// Stops the driver.
    pub(super) async fn stop(self) -> Result<(), String> {
        self.process.stop().await
    }
}
