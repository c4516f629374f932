//! The process: its version, whether it is ready, and what it uses of the machine.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::page::Page;
use super::{Expiry, Health};
use crate::kernel::linux::own_process;
use crate::version::{self, Origin};

/// Asks at each scrape.
pub(super) struct ProcessCollector {
    health: Health,
    certificate: Option<Expiry>,
    started: SystemTime,
}

impl ProcessCollector {
    /// The process that starts now.
    pub(super) fn new(health: Health, certificate: Option<Expiry>) -> Self {
        ProcessCollector { health, certificate, started: SystemTime::now() }
    }
}

impl fmt::Debug for ProcessCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ProcessCollector").finish_non_exhaustive()
    }
}

/// Seconds since the epoch.
pub(super) fn seconds(time: SystemTime) -> f64 {
    time.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

impl Collector for ProcessCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let Origin { commit, tree } = version::origin();
        page.gauges(
            "hostloop_build_info",
            "Always 1; the labels have the version, the commit, and whether the tree was clean.",
            [([("version", version::VERSION), ("commit", commit), ("tree", tree)], 1.0)],
        )?;
        let ready = if (self.health)().is_ok() { 1.0 } else { 0.0 };
        page.gauge(
            "hostloop_ready",
            "1 when callers are served, 0 while pools are prepared or start-up recovery runs.",
            ready,
        )?;
        page.gauge(
            "process_start_time_seconds",
            "When the process began, in seconds since the epoch.",
            seconds(self.started),
        )?;
        if let Some(expiry) = &self.certificate {
            page.gauge(
                "hostloop_certificate_expiry_timestamp_seconds",
                "When the certificate that peers are shown ends, in seconds since the epoch.",
                seconds(expiry()),
            )?;
        }
        // Without procfs the rest is still worth having.
        let Ok(process) = own_process() else { return Ok(()) };
        page.counter("process_cpu_seconds", "Processor time of the process.", process.cpu.as_secs_f64())?;
        let gauges = [
            ("process_resident_memory_bytes", "Resident memory.", process.resident_bytes),
            ("process_threads", "Threads.", process.threads),
            ("process_open_fds", "Open file descriptors.", process.open_files),
            ("process_max_fds", "File descriptors that may be open.", process.max_files),
        ];
        gauges.into_iter().try_for_each(|(name, help, value)| page.gauge(name, help, value as f64))
    }
}
