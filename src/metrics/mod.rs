//! Metrics of the process for Prometheus, and its health for kubelet, over HTTP at `--metrics-listen` and
//! `--health-listen`.
//!
//! [`Metrics`] holds the counters and knows where to ask for the rest; [`Site`] is the HTTP server. Names and meanings
//! are in `docs/monitoring.md`.

mod driver;
mod http;
mod moves;
mod page;
mod pools;
mod process;
mod rpc;
mod volumes;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::SystemTime;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;

use crate::driver::Driver;
use crate::server::Observer;

pub use http::Site;
pub use moves::{MoveFigures, Moves};

use driver::DriverCollector;
use moves::MoveCollector;
use pools::{PoolCollector, Pools};
use process::ProcessCollector;
use rpc::Rpcs;
use volumes::{VolumeCollector, Volumes};

/// Says whether callers are served, and if not why; what Probe would say. Never waits, and touches no disk.
pub type Health = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// When the certificate that peers are shown ends. Never waits, and touches no disk.
pub type Expiry = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// Everything that can be measured of this process.
pub struct Metrics {
    registry: Mutex<Registry>,
    rpcs: Rpcs,
    measured: OnceLock<(Arc<Pools>, Arc<Volumes>)>,
    most_volumes: usize,
    health: Health,
}

impl Metrics {
    /// Metrics of a process that is as healthy as `health` says, and has a certificate unless it has no peers. `methods`
    /// are the RPCs that are told apart.
    pub fn new(health: Health, certificate: Option<Expiry>, methods: &'static [&'static str]) -> Self {
        let mut registry = Registry::default();
        let rpcs = Rpcs::register(&mut registry, methods);
        registry.register_collector(Box::new(ProcessCollector::new(Arc::clone(&health), certificate)));
        Metrics { registry: Mutex::new(registry), rpcs, measured: OnceLock::new(), most_volumes: 0, health }
    }

    /// Has metrics of each volume of a driver with at most this number of volumes. Without a call there are none of them.
    #[must_use]
    pub fn with_volumes(self, most_volumes: usize) -> Self {
        Metrics { most_volumes, ..self }
    }

    /// From now on there is a driver to measure too. Only the first time counts.
    pub fn attach(&self, driver: &Arc<Driver>) {
        let pools = Arc::new(Pools::new(Arc::clone(driver)));
        let volumes = Arc::new(Volumes::new(Arc::clone(driver), self.most_volumes));
        if self.measured.set((Arc::clone(&pools), Arc::clone(&volumes))).is_ok() {
            let mut registry = self.registry();
            registry.register_collector(Box::new(DriverCollector(Arc::clone(driver))));
            registry.register_collector(Box::new(PoolCollector(pools)));
            registry.register_collector(Box::new(VolumeCollector(volumes)));
        }
    }

    /// From now on there are moves to count too; to be called once.
    pub fn attach_moves(&self, moves: Moves) {
        self.registry().register_collector(Box::new(MoveCollector(moves)));
    }

    // Nothing that runs under the mutex changes the registry half-way, so a poisoned one is as good as any.
    fn registry(&self) -> MutexGuard<'_, Registry> {
        self.registry.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the server tells of every call.
    pub fn observer(&self) -> Arc<dyn Observer> {
        Arc::new(self.rpcs.clone())
    }

    /// All metrics as text, in a format that both OpenMetrics 1.0 and Prometheus' own 0.0.4 can be read as. The pools and
    /// volumes are measured on the blocking pool, unless they were a moment ago; everything else is in memory, so that a disk
    /// that hangs takes no metric away.
    ///
    /// # Errors
    /// Where a value cannot be written, which would be a bug.
    pub async fn text(&self) -> Result<String, fmt::Error> {
        if let Some((pools, volumes)) = self.measured.get() {
            tokio::join!(pools.refresh(), volumes.refresh());
        }
        let mut text = String::new();
        text::encode(&mut text, &self.registry())?;
        Ok(text)
    }
}
