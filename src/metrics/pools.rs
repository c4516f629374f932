//! The pools. Measuring them touches the disks, so it happens on the blocking pool, one at a time and at most every few
//! seconds, however often somebody scrapes, and even if a disk no longer answers.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use tokio::sync::watch;

use super::page::{Labels, Page};
use super::process::seconds;
use crate::driver::{Driver, PoolFigures};
use crate::error::Result;
use crate::model::PoolName;

/// For so long a measurement serves every scrape.
const FRESH: Duration = Duration::from_secs(5);
/// For so long a scrape waits for a new one; then it shows the one before.
const PATIENCE: Duration = Duration::from_secs(2);

/// The pools as they were measured last.
pub(super) struct Pools {
    driver: Arc<Driver>,
    latest: watch::Sender<Option<Measurement>>,
    running: Arc<AtomicBool>,
}

struct Measurement {
    at: Instant,
    time: SystemTime,
    pools: Vec<(PoolName, Result<PoolFigures>)>,
}

fn is_fresh(latest: &Option<Measurement>) -> bool {
    latest.as_ref().is_some_and(|measurement| measurement.at.elapsed() < FRESH)
}

/// One measurement at a time; also a panic ends it.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Pools {
    /// The pools of this driver; nothing is measured yet.
    pub(super) fn new(driver: Arc<Driver>) -> Self {
        Pools { driver, latest: watch::Sender::new(None), running: Arc::default() }
    }

    /// Measures them, unless that was done a moment ago. Gives up waiting for it after a while; the next one that is
    /// called goes on waiting.
    pub(super) async fn refresh(self: &Arc<Self>) {
        let mut latest = self.latest.subscribe();
        if is_fresh(&latest.borrow()) {
            return;
        }
        if !self.running.swap(true, Ordering::AcqRel) {
            let (pools, running) = (Arc::clone(self), Running(Arc::clone(&self.running)));
            tokio::task::spawn_blocking(move || {
                let measured = pools.driver.measure_pools();
                drop(running);
                let (at, time) = (Instant::now(), SystemTime::now());
                pools.latest.send_replace(Some(Measurement { at, time, pools: measured }));
            });
        }
        // Neither a time-out nor a bug in the measurement keeps the other metrics back.
        let _ = tokio::time::timeout(PATIENCE, latest.wait_for(is_fresh)).await;
    }
}

/// Shows what was measured last.
pub(super) struct PoolCollector(pub(super) Arc<Pools>);

impl fmt::Debug for PoolCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolCollector").finish_non_exhaustive()
    }
}

impl Collector for PoolCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut page = Page(encoder);
        let states = self.0.driver.pool_states();
        page.gauges(
            "hostloop_pool_available",
            "1 where the pool can be used, 0 where its disk is missing or broken: then its volumes are inaccessible.",
            states.iter().map(|(name, why)| ([("pool", name.as_str())], if why.is_none() { 1.0 } else { 0.0 })),
        )?;
        let latest = self.0.latest.borrow();
        let Some(Measurement { time, pools, .. }) = &*latest else { return Ok(()) };
        page.gauge(
            "hostloop_pools_measured_timestamp_seconds",
            "When the pools were measured, in seconds since the epoch; an old time means that a disk does not answer.",
            seconds(*time),
        )?;
        page.gauges(
            "hostloop_pool_measured",
            "1 where the pool could be measured, 0 where the kernel refused.",
            pools
                .iter()
                .map(|(name, pool)| ([("pool", name.as_str())], if pool.is_ok() { 1.0 } else { 0.0 })),
        )?;
        let measured = || pools.iter().filter_map(|(name, pool)| Some((name.as_str(), pool.as_ref().ok()?)));
        page.gauges(
            "hostloop_pool_disk_bytes",
            "The filesystem of a pool: what is used, whoever uses it, what is available, what volumes leave free of that, and what the filesystem withholds. The sum is its size.",
            measured().flat_map(|(name, pool)| disk(name, pool)),
        )?;
        for (name, help, of) in SINGLE {
            page.gauges(name, help, measured().map(|(name, pool)| ([("pool", name)], of(pool) as f64)))?;
        }
        page.gauges(
            "hostloop_pool_bytes",
            "Deprecated: hostloop_pool_disk_bytes and metrics of their own have the same.",
            measured().flat_map(|(name, pool)| bytes(name, pool)),
        )?;
        page.gauges(
            "hostloop_pool_promised_bytes",
            "What a pool has promised, by what it was promised to.",
            measured().flat_map(|(name, pool)| promised(name, pool)),
        )?;
        page.gauges(
            "hostloop_pool_overcommit_ratio",
            "Bytes of thin volumes that may be promised for each byte of the pool.",
            measured().map(|(name, pool)| ([("pool", name)], pool.overcommit)),
        )?;
        page.gauges(
            "hostloop_pool_enforces",
            "1 where the filesystem of a pool can enforce this limit of a directory, 0 where it cannot.",
            measured().flat_map(|(name, pool)| limits(name, pool)),
        )
    }
}

/// A metric of each pool, with its help.
type Single = (&'static str, &'static str, fn(&PoolFigures) -> u64);

/// What is not a part of anything, and has a name of its own, so that it is not added up with something else.
const SINGLE: [Single; 6] = [
    ("hostloop_pool_size_bytes", "Size of the filesystem of a pool.", |pool| pool.size),
    ("hostloop_pool_reserve_bytes", "What volumes leave free in a pool.", |pool| pool.reserve),
    (
        "hostloop_pool_usable_bytes",
        "What a pool can give to volumes and snapshots, with what they have taken already.",
        |pool| pool.usable,
    ),
    ("hostloop_pool_room_bytes", "The largest thin volume that could be made in a pool.", |pool| pool.room),
    ("hostloop_pool_lacking_bytes", "What a pool lacks to keep all its promises.", |pool| pool.lacking),
    ("hostloop_pool_removing_bytes", "What is left of deleted directories with an enforced size.", |pool| {
        pool.removing
    }),
];

/// The parts of the size of a filesystem.
fn disk<'a>(name: &'a str, pool: &PoolFigures) -> [(Labels<'a, 2>, f64); 4] {
    let used = pool.used.min(pool.size);
    let free = pool.free.min(pool.size - used);
    let reserved = pool.reserve.min(free);
    [
        ("used", used),
        ("available", free - reserved),
        ("reserved", reserved),
        ("withheld", pool.size - used - free),
    ]
    .map(|(kind, bytes)| ([("pool", name), ("kind", kind)], bytes as f64))
}

fn bytes<'a>(name: &'a str, pool: &PoolFigures) -> [(Labels<'a, 2>, f64); 9] {
    let promised = pool.promised;
    [
        ("size", pool.size),
        ("used", pool.used),
        ("free", pool.free),
        ("reserve", pool.reserve),
        ("usable", pool.usable),
        ("promised", promised.thin_bytes + promised.thick_bytes + promised.snapshot_bytes),
        ("room", pool.room),
        ("lacking", pool.lacking),
        ("removing", pool.removing),
    ]
    .map(|(kind, bytes)| ([("pool", name), ("kind", kind)], bytes as f64))
}

fn limits<'a>(name: &'a str, pool: &PoolFigures) -> [(Labels<'a, 2>, f64); 2] {
    [("bytes", pool.limits_bytes), ("inodes", pool.limits_inodes)]
        .map(|(what, can)| ([("pool", name), ("what", what)], if can { 1.0 } else { 0.0 }))
}

fn promised<'a>(name: &'a str, pool: &PoolFigures) -> [(Labels<'a, 2>, f64); 3] {
    let promised = pool.promised;
    [("thin", promised.thin_bytes), ("thick", promised.thick_bytes), ("snapshots", promised.snapshot_bytes)]
        .map(|(to, bytes)| ([("pool", name), ("to", to)], bytes as f64))
}
