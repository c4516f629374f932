//! What was asked for and what was acknowledged, with its place in the record of the disks.

use hostloop::wire::csi;

use crate::harness::Kind;

/// A position in the record ([`Recording::position`](crate::record::Recording::position)).
pub type At = usize;

/// A call.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub begun: At,
    pub done: At,
}

impl Call {
    /// Whether a loss of power at this position may have left something of it.
    pub fn may(&self, cut: At) -> bool {
        self.begun <= cut
    }

    /// Whether it was acknowledged before.
    pub fn acknowledged(&self, cut: At) -> bool {
        self.done <= cut
    }
}

/// What a call left at a loss of power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Left {
    /// Nothing.
    Absent,
    /// It was under way: whole or absent.
    Either,
    /// All of it.
    There,
}

/// What is left of something that a call made, and another one may have removed.
fn left(made: Call, gone: Option<Call>, cut: At) -> Left {
    match gone {
        _ if !made.may(cut) => Left::Absent,
        Some(gone) if gone.acknowledged(cut) => Left::Absent,
        Some(gone) if gone.may(cut) => Left::Either,
        _ if made.acknowledged(cut) => Left::There,
        _ => Left::Either,
    }
}

/// 64 KiB of a volume, by their number, and the seed of their content.
pub type Slots = Vec<(usize, u64)>;

pub struct Volume {
    pub kind: Kind,
    pub pool: &'static str,
    pub request: csi::CreateVolumeRequest,
    pub volume: csi::Volume,
    pub made: Call,
    /// What it was made of.
    pub first: Slots,
    pub writes: Vec<(Call, usize, u64)>,
    /// Expansions, to so many bytes.
    pub grown: Vec<(Call, u64)>,
    pub modified: Vec<(Call, [(&'static str, &'static str); 1])>,
    pub gone: Option<Call>,
}

impl Volume {
    pub fn id(&self) -> &str {
        &self.volume.volume_id
    }

    pub fn left(&self, cut: At) -> Left {
        left(self.made, self.gone, cut)
    }

    /// What is in its slots for certain.
    pub fn slots(&self, cut: At) -> Slots {
        let mut slots = self.first.clone();
        for (call, slot, seed) in self.writes.iter().filter(|(call, ..)| call.may(cut)) {
            slots.retain(|(other, _)| other != slot);
            if call.acknowledged(cut) {
                slots.push((*slot, *seed));
            }
        }
        slots
    }

    /// The size that it has at least.
    pub fn bytes(&self, cut: At) -> u64 {
        let grown = self.grown.iter().filter(|(call, _)| call.acknowledged(cut)).map(|(_, bytes)| *bytes);
        grown.fold(self.volume.capacity_bytes.cast_unsigned(), u64::max)
    }
}

pub struct Snapshot {
    pub name: String,
    pub kind: Kind,
    pub pool: &'static str,
    /// The volume's id.
    pub source: String,
    pub snapshot: csi::Snapshot,
    pub made: Call,
    pub slots: Slots,
    pub gone: Option<Call>,
}

impl Snapshot {
    pub fn left(&self, cut: At) -> Left {
        left(self.made, self.gone, cut)
    }
}

pub struct Group {
    pub name: String,
    /// The volumes' ids.
    pub sources: Vec<String>,
    pub group: csi::VolumeGroupSnapshot,
    pub made: Call,
    pub gone: Option<Call>,
}

impl Group {
    pub fn left(&self, cut: At) -> Left {
        left(self.made, self.gone, cut)
    }

    /// The ids of its snapshots.
    pub fn members(&self) -> impl Iterator<Item = &str> {
        self.group.snapshots.iter().map(|snapshot| snapshot.snapshot_id.as_str())
    }
}

/// Everything that was done.
#[derive(Default)]
pub struct Model {
    pub volumes: Vec<Volume>,
    pub snapshots: Vec<Snapshot>,
    pub groups: Vec<Group>,
}

impl Model {
    /// With what was done elsewhere at the same time.
    pub fn and(mut self, other: Model) -> Model {
        self.volumes.extend(other.volumes);
        self.snapshots.extend(other.snapshots);
        self.groups.extend(other.groups);
        self
    }
}
