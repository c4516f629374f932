//! What callers see, and where something is mounted, held against what was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use super::bench::Bench;
use super::model::Model;
use crate::harness::{Kind, kernel};

/// Why a walk failed.
pub type Verdict = Result<(), String>;

/// Fails the walk with a message.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(super) use ensure;

/// Sizes of volumes, snapshots with their size, source and group, and the paths below kubelet's directory where
/// something is mounted.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    volumes: BTreeMap<String, u64>,
    snapshots: BTreeMap<String, (u64, String, String)>,
    mounted: BTreeSet<PathBuf>,
}

impl Seen {
    pub fn now(bench: &Bench) -> Result<Seen, String> {
        let csi = &bench.world.csi;
        let listed = csi.list(0, "").map_err(|status| format!("ListVolumes: {status}"))?.entries;
        let volumes = listed.into_iter().filter_map(|entry| entry.volume);
        let volumes = volumes.map(|volume| (volume.volume_id, volume.capacity_bytes as u64)).collect();
        let listed = csi.list_snapshots().map_err(|status| format!("ListSnapshots: {status}"))?;
        let snapshots = listed.into_iter().map(|snapshot| {
            let rest = (snapshot.size_bytes as u64, snapshot.source_volume_id, snapshot.group_snapshot_id);
            (snapshot.snapshot_id, rest)
        });
        let mounted = kernel::mounts(&bench.world.kubelet).into_iter().map(|mount| mount.target).collect();
        Ok(Seen { volumes, snapshots: snapshots.collect(), mounted })
    }

    /// What a model looks like.
    pub fn of(bench: &Bench, model: &Model) -> Seen {
        let listed = model.volumes.iter().filter(|(_, known)| !known.inline);
        let volumes = listed.map(|(name, known)| (bench.id(name), known.bytes)).collect();
        let snapshots = model.snapshots.iter().map(|(id, cut)| {
            let group = cut.group.map(|group| bench.group_id(group)).unwrap_or_default();
            (bench.snapshot_id(*id), (cut.bytes, bench.id(cut.source), group))
        });
        let mut mounted = BTreeSet::new();
        for (name, known) in &model.volumes {
            if known.inline {
                mounted.insert(bench.inline_target(name));
                continue;
            }
            let vol = bench.vol(model, name);
            mounted.extend(known.published.keys().map(|pod| vol.target(pod)));
            mounted.extend((known.staged && known.spec.kind != Kind::Block).then(|| vol.staging()));
        }
        Seen { volumes, snapshots: snapshots.collect(), mounted }
    }
}

/// What is seen is that of the one model or of the other.
pub fn is_either(bench: &Bench, one: &Model, other: &Model) -> Verdict {
    let seen = Seen::now(bench)?;
    let known = [Seen::of(bench, one), Seen::of(bench, other)];
    ensure!(known.contains(&seen), "expected one of {known:?}, found {seen:?}");
    Ok(())
}
