//! Why the driver does not start.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use crate::cluster::tls::TlsError;
use crate::register::RegisterError;
use crate::server::BindError;
use crate::store::StoreError;

/// Why the driver does not serve. Each is one line that names what to mend.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The data directory cannot be used.
    #[error("--data-dir {}: {source}", path.display())]
    DataDir {
        /// The data directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Another process has it.
    #[error("--data-dir {} is in use by another process: {source}", path.display())]
    DataDirTaken {
        /// The data directory.
        path: PathBuf,
        /// Names the holder.
        source: io::Error,
    },
    /// It does not hold what it held.
    #[error("--data-dir {}: {problem}", path.display())]
    LostDataDir {
        /// The data directory.
        path: PathBuf,
        /// What is missing, and what to do.
        problem: String,
    },
    /// A directory is not there.
    #[error("{what}: {} is not a directory; create it or correct the flag", path.display())]
    NoDirectory {
        /// The flag.
        what: String,
        /// Its directory.
        path: PathBuf,
    },
    /// A directory cannot be looked at.
    #[error("{what}: look at {}: {source}", path.display())]
    Look {
        /// The flag.
        what: String,
        /// Its directory.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// Two pools are one.
    #[error("{flag}: {} is also the directory of the pool {other:?}; choose another one", path.display())]
    SamePool {
        /// The flag of the second one.
        flag: String,
        /// Its directory.
        path: PathBuf,
        /// The first one.
        other: String,
    },
    /// The kernel has no loop devices, or hides them.
    #[error("{0} is not there: load the module (modprobe loop), and in a container mount the host's /dev")]
    NoLoopDevices(&'static str),
    /// The driver cannot be reached.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Metrics or health cannot be served.
    #[error("listen on {address}: {source} ({flag})")]
    Metrics {
        /// The flag that says where.
        flag: &'static str,
        /// Where.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// kubelet cannot be told of the driver, or does not want it.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// The state file cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A pool cannot be used.
    #[error("{0}")]
    Pools(crate::error::Error),
    /// The nodes cannot be looked for.
    #[error("{0}")]
    Discovery(String),
    /// The certificates cannot be used.
    #[error("--tls-dir {0}")]
    Tls(#[from] TlsError),
    /// They are another node's.
    #[error("--tls-dir {}: {problem}", dir.display())]
    Certificate {
        /// The directory.
        dir: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The port for those who look at the cluster.
    #[error("listen on {address}: {source} (--inspect-listen)")]
    InspectListen {
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// Controllers cannot reach the node.
    #[error("listen on {address}: {source} (--peer-listen)")]
    PeerListen {
        /// Where.
        address: SocketAddr,
        /// What the kernel said.
        source: io::Error,
    },
    /// The process is not as it should be.
    #[error("{0}")]
    Process(String),
}
