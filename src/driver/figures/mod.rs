//! The driver in numbers, from memory, without touching a disk. The pools' numbers, which need a disk, are in
//! `capacity/figures.rs`.

pub(super) mod durations;
mod volumes;

use std::sync::Arc;
use std::time::Duration;

use crate::driver::copies::progress::CopyFigures;
use crate::driver::removals::Waiting;
use crate::driver::{Driver, Recovered, TurnFigures};
use crate::model::health::Severity;
use crate::model::{BackendKind, Phase, PoolName, Volume};
use durations::DurationFigures;
use volumes::OrphanFigures;
pub use volumes::VolumeFigures;

/// The driver at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Figures {
    /// Recovery has ended, and callers are served.
    pub ready: bool,
    /// How many volumes there are of each phase and backend, those of which there is none too.
    pub volumes: Vec<(Phase, BackendKind, usize)>,
    /// How many volumes had a trouble of each severity when they were examined last.
    pub unhealthy: [(Severity, usize); 3],
    /// How many snapshots of each phase.
    pub snapshots: Vec<(Phase, usize)>,
    /// How many group snapshots of each phase.
    pub groups: Vec<(Phase, usize)>,
    /// What is left of deleted directories, by pool.
    pub removals: Vec<(PoolName, Waiting)>,
    /// What lies on a disk without a record, has a record without lying there, or has lost its pod, by pool.
    pub orphans: Vec<OrphanFigures>,
    pub copies: CopyFigures,
    pub copy_turns: TurnFigures,
    pub stream_turns: TurnFigures,
    /// For how long filesystems were frozen, one duration for each cut.
    pub freezes: DurationFigures,
    /// What recovery found, and how long it took; `None` until it has ended.
    pub recovery: Option<(Recovered, Duration)>,
}

impl Driver {
    /// The driver in numbers. Takes no lock that is held while something waits for a disk.
    pub fn figures(&self) -> Figures {
        let volumes = self.store.volumes();
        let of = |phase, backend| {
            let same = |volume: &&Arc<Volume>| volume.phase == phase && volume.content.backend() == backend;
            (phase, backend, volumes.iter().filter(same).count())
        };
        let snapshots: Vec<Phase> = self.store.snapshots().iter().map(|snapshot| snapshot.phase).collect();
        let groups: Vec<Phase> = self.store.groups().iter().map(|group| group.phase).collect();
        Figures {
            ready: self.is_ready(),
            volumes: Phase::ALL
                .into_iter()
                .flat_map(|phase| BackendKind::ALL.map(|backend| of(phase, backend)))
                .collect(),
            unhealthy: self.health.count(),
            snapshots: by_phase(&snapshots),
            groups: by_phase(&groups),
            removals: self.removals_by_pool(),
            orphans: self.orphan_figures(),
            copies: self.copies.figures(),
            copy_turns: self.copy_turns.figures(),
            stream_turns: self.stream_turns.figures(),
            freezes: self.freezes.figures(),
            recovery: self.recovered.get().copied(),
        }
    }
}

fn by_phase(phases: &[Phase]) -> Vec<(Phase, usize)> {
    let count = |phase| phases.iter().filter(|other| **other == phase).count();
    Phase::ALL.into_iter().map(|phase| (phase, count(phase))).collect()
}
