//! Each volume on its own, up to a number of them. Their values are asked for once for each scrape, on the blocking pool.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::page::{Labels, Page};
use crate::driver::{Driver, VolumeFigures};

/// The volumes of a driver.
pub(super) struct Volumes {
    driver: Arc<Driver>,
    /// With more of them there are no metrics of each.
    most: usize,
    /// Whether there were too many at the last scrape.
    too_many: AtomicBool,
}

impl Volumes {
    pub(super) fn new(driver: Arc<Driver>, most: usize) -> Self {
        Volumes { driver, most, too_many: AtomicBool::new(false) }
    }

    /// Asks for what they have allocated, and waits a while for it.
    pub(super) async fn refresh(&self) {
        if self.most == 0 || self.driver.store().volumes().len() > self.most {
            return;
        }
        let driver = Arc::clone(&self.driver);
        // A bug in it was logged by its panic.
        let _ = tokio::task::spawn_blocking(move || driver.measure_allocated()).await;
    }

    /// Logs that there are too many volumes, or no longer too many.
    fn tell(&self, count: usize) {
        let too_many = self.most > 0 && count > self.most;
        if self.too_many.swap(too_many, Ordering::AcqRel) == too_many {
            return;
        }
        let most = self.most;
        match too_many {
            true => tracing::warn!(
                volumes = count,
                most,
                "there are no metrics of each volume: the node has more volumes than --volume-metrics allows"
            ),
            false => tracing::info!(volumes = count, most, "there are metrics of each volume again"),
        }
    }
}

/// Shows what was measured last.
pub(super) struct VolumeCollector(pub(super) Arc<Volumes>);

impl fmt::Debug for VolumeCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VolumeCollector").finish_non_exhaustive()
    }
}

impl Collector for VolumeCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (volumes, mut page) = (&self.0, Page(encoder));
        let (count, shown) = volumes.driver.volume_figures(volumes.most);
        volumes.tell(count);
        let shown = shown.filter(|_| volumes.most > 0);
        page.gauge(
            "hostloop_volume_metrics_shown",
            "1 if there are metrics of each volume, 0 if that is turned off or the node has too many volumes.",
            if shown.is_some() { 1.0 } else { 0.0 },
        )?;
        let Some(shown) = shown else { return Ok(()) };
        let labeled: Vec<Labeled<'_>> = shown.iter().map(Labeled::new).collect();
        page.gauges(
            "hostloop_volume_capacity_bytes",
            "Size of a volume.",
            labeled.iter().map(|it| (it.labels(), it.figures.volume.capacity_bytes as f64)),
        )?;
        page.gauges(
            "hostloop_volume_allocated_bytes",
            "Bytes that a volume has allocated on the disk of its pool, those that other files have, too, included. Without a value if \
             that is not known.",
            labeled.iter().filter_map(|it| Some((it.labels(), it.figures.allocated? as f64))),
        )?;
        page.gauges(
            "hostloop_volume_unhealthy",
            "1 for each thing that was wrong with a volume when it was examined last.",
            labeled.iter().flat_map(Labeled::troubles),
        )
    }
}

/// A volume, and its values of labels.
struct Labeled<'a> {
    figures: &'a VolumeFigures,
    namespace: &'a str,
    claim: &'a str,
}

impl<'a> Labeled<'a> {
    fn new(figures: &'a VolumeFigures) -> Self {
        let claim = figures.volume.claim.as_ref();
        let (namespace, claim) =
            claim.map_or(("", ""), |claim| (claim.namespace.as_str(), claim.name.as_str()));
        Labeled { figures, namespace, claim }
    }

    fn labels(&self) -> Labels<'a, 5> {
        [
            ("volume", self.figures.volume.id.as_str()),
            ("namespace", self.namespace),
            ("persistentvolumeclaim", self.claim),
            ("pool", self.figures.volume.pool().as_str()),
            ("kind", self.figures.kind),
        ]
    }

    fn troubles(&self) -> impl Iterator<Item = (Labels<'a, 7>, f64)> {
        let [volume, namespace, claim, pool, kind] = self.labels();
        let labels = move |severity, reason| {
            [volume, namespace, claim, pool, kind, ("severity", severity), ("reason", reason)]
        };
        let troubles = self.figures.troubles.iter();
        troubles.map(move |trouble| (labels(trouble.severity.as_str(), trouble.reason), 1.0))
    }
}
