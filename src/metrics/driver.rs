//! The driver: what it holds, and what it does.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::page::Page;
use crate::driver::{CopyFigures, Driver, Figures, Recovered, TurnFigures};

/// Asks the driver at each scrape.
pub(super) struct DriverCollector(pub(super) Arc<Driver>);

impl fmt::Debug for DriverCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DriverCollector").finish_non_exhaustive()
    }
}

impl Collector for DriverCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let (figures, mut page) = (self.0.figures(), Page(encoder));
        objects(&mut page, &figures)?;
        copies(&mut page, figures.copies)?;
        turns(&mut page, figures.copy_turns, figures.stream_turns)?;
        page.histogram(
            "hostloop_freeze_duration_seconds",
            "How long filesystems were frozen for a copy, one value for each cut.",
            figures.freezes.sum.as_secs_f64(),
            &figures.freezes.classes,
        )?;
        recovery(&mut page, &figures)
    }
}

fn objects(page: &mut Page<'_>, figures: &Figures) -> fmt::Result {
    let volumes = figures.volumes.iter();
    page.gauges(
        "hostloop_volumes",
        "Volumes, by phase and backend.",
        volumes.map(|(phase, backend, count)| {
            ([("phase", phase.as_str()), ("backend", backend.as_str())], *count as f64)
        }),
    )?;
    page.gauges(
        "hostloop_volumes_unhealthy",
        "Volumes that were not as they should be when they were examined last, by how bad that is.",
        figures.unhealthy.iter().map(|(severity, count)| ([("severity", severity.as_str())], *count as f64)),
    )?;
    page.gauges(
        "hostloop_snapshots",
        "Snapshots by phase, members of groups included.",
        figures.snapshots.iter().map(|(phase, count)| ([("phase", phase.as_str())], *count as f64)),
    )?;
    page.gauges(
        "hostloop_group_snapshots",
        "Group snapshots by phase.",
        figures.groups.iter().map(|(phase, count)| ([("phase", phase.as_str())], *count as f64)),
    )?;
    let removals = figures.removals.iter();
    page.gauges(
        "hostloop_removals",
        "Deleted directories whose files are still being removed, and those of them with which that failed when it was tried last.",
        removals.flat_map(|(pool, waiting)| {
            let states = [("waiting", waiting.trees), ("failing", waiting.failing)];
            states.map(|(state, count)| ([("pool", pool.as_str()), ("state", state)], count as f64))
        }),
    )?;
    orphans(page, figures)
}

fn orphans(page: &mut Page<'_>, figures: &Figures) -> fmt::Result {
    let kinds = figures.orphans.iter().flat_map(|orphans| {
        let files = orphans.strangers.map(|strangers| ("files", strangers.files));
        let uncertain = orphans.strangers.map(|strangers| ("uncertain", strangers.uncertain));
        let records = orphans.records.map(|records| ("records", records));
        let known = [files, uncertain, records, Some(("inline", orphans.inline))];
        known.into_iter().flatten().map(|(kind, count)| (orphans.pool.as_str(), kind, count))
    });
    page.gauges(
        "hostloop_orphans",
        "What lies in a pool and has no record, has a record and no files, or has lost its pod. Without a value if that is not known.",
        kinds.map(|(pool, kind, count)| ([("pool", pool), ("kind", kind)], count as f64)),
    )?;
    page.gauges(
        "hostloop_inline_volumes_orphaned",
        "Deprecated: hostloop_orphans has it as the kind inline.",
        figures.orphans.iter().map(|orphans| ([("pool", orphans.pool.as_str())], orphans.inline as f64)),
    )
}

fn copies(page: &mut Page<'_>, copies: CopyFigures) -> fmt::Result {
    let CopyFigures { running, done, total, copied, idle } = copies;
    page.gauge("hostloop_copies_running", "Copies that are running.", running as f64)?;
    page.gauges(
        "hostloop_copy_bytes",
        "Bytes of the copies that are running: done so far, and about how many it will be.",
        [([("kind", "done")], done as f64), ([("kind", "total")], total as f64)],
    )?;
    page.gauge(
        "hostloop_copy_idle_seconds",
        "How long the running copy that stands still the longest has not come further.",
        idle.as_secs_f64(),
    )?;
    page.counter(
        "hostloop_copied_bytes",
        "Bytes that were copied; blocks that are shared are none.",
        copied as f64,
    )
}

fn turns(page: &mut Page<'_>, copies: TurnFigures, streams: TurnFigures) -> fmt::Result {
    page.gauge("hostloop_copies_limit", "Copies that may run at a time.", copies.limit as f64)?;
    page.counter(
        "hostloop_copies_refused",
        "How often a copy had to wait or was refused.",
        copies.refused as f64,
    )?;
    page.gauge(
        "hostloop_streams_running",
        "Answers that are streams and are running.",
        streams.running as f64,
    )?;
    page.gauge("hostloop_streams_limit", "Streams that may run at a time.", streams.limit as f64)?;
    page.counter("hostloop_streams_refused", "How often a stream was refused.", streams.refused as f64)
}

fn recovery(page: &mut Page<'_>, figures: &Figures) -> fmt::Result {
    let Some((found, took)) = figures.recovery else { return Ok(()) };
    let Recovered { volumes, snapshots, removed, damaged } = found;
    let kinds = [("volumes", volumes), ("snapshots", snapshots), ("removed", removed), ("damaged", damaged)];
    page.gauges(
        "hostloop_recovery_objects",
        "What start-up found: volumes and snapshots in all, half-made ones that it removed, damaged ones that need an administrator.",
        kinds.map(|(kind, count)| ([("kind", kind)], count as f64)),
    )?;
    page.gauge("hostloop_recovery_duration_seconds", "How long start-up recovery took.", took.as_secs_f64())
}
