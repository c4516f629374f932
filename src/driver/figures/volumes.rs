//! Volumes one by one, and what lies on a disk without a record or the reverse.

use std::sync::Arc;

use crate::driver::details::kind_of;
use crate::driver::{Driver, StrangerFigures};
use crate::model::health::Trouble;
use crate::model::{Phase, PoolName, Volume};

/// Reasons of health for a volume whose files are gone.
const WITHOUT_FILES: [&str; 2] = ["ImageMissing", "DirectoryMissing"];

/// One volume.
#[derive(Debug, Clone)]
pub struct VolumeFigures {
    pub volume: Arc<Volume>,
    /// `volume`, `inline`, `copy` or `left`.
    pub kind: &'static str,
    /// Allocated bytes; `None` if they were not measured.
    pub allocated: Option<u64>,
    /// What was wrong with it when it was examined last.
    pub troubles: Arc<[Trouble]>,
}

/// How much of a pool lies on the disk without a record, or has a record without lying on the disk, or without a pod. `None` if that is
/// not known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrphanFigures {
    pub pool: PoolName,
    /// Directories and files without a record.
    pub strangers: Option<StrangerFigures>,
    /// Volumes whose files are gone.
    pub records: Option<usize>,
    /// Inline volumes without a pod.
    pub inline: usize,
}

impl Driver {
    /// Returns the volumes with data, from memory: their number, and each of them if there are at most `most`.
    pub fn volume_figures(&self, most: usize) -> (usize, Option<Vec<VolumeFigures>>) {
        let mut volumes = self.store.volumes();
        volumes.retain(|volume| volume.phase != Phase::Creating);
        let count = volumes.len();
        if count > most {
            return (count, None);
        }
        let allocated = self.known_allocated();
        let figures = |volume: Arc<Volume>| VolumeFigures {
            kind: kind_of(&volume),
            allocated: allocated.get(&volume.id).copied(),
            troubles: self.known_troubles(&volume.id),
            volume,
        };
        (count, Some(volumes.into_iter().map(figures).collect()))
    }

    /// Returns the orphans of each pool, from memory.
    pub(super) fn orphan_figures(&self) -> Vec<OrphanFigures> {
        let (strangers, volumes) = (self.strangers_by_pool(), self.store.volumes());
        let has_no_files = |volume: &&Arc<Volume>| {
            let troubles = self.known_troubles(&volume.id);
            volume.is_ready() && troubles.iter().any(|trouble| WITHOUT_FILES.contains(&trouble.reason))
        };
        let inline = self.orphans_by_pool();
        let of_pool = |(pool, unusable): (PoolName, Option<String>)| OrphanFigures {
            strangers: strangers.iter().find(|(name, _)| *name == pool).map(|(_, figures)| *figures),
            records: unusable
                .is_none()
                .then(|| volumes.iter().filter(|volume| *volume.pool() == pool).filter(has_no_files).count()),
            inline: inline.iter().find(|(name, _)| *name == pool).map_or(0, |(_, count)| *count),
            pool,
        };
        self.pools.states().into_iter().map(of_pool).collect()
    }
}
