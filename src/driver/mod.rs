//! The use cases: one file per RPC, with its name. Plain synchronous code. Every use case that changes something begins by
//! taking the volume's lock, which lives inside the work: a call whose caller has gone keeps it to the end.
//!
//! What several RPCs share is in folders named after the mechanism. The RPCs of the protocol between nodes are in
//! `pull/source`, on the side that is read from, those with which a controller moves a volume in `moves`, and those with which it moves
//! a snapshot in `handover`.

mod adopt;
mod capacity;
mod controller_expand_volume;
mod controller_get_volume;
mod controller_get_volume_health;
mod controller_list_volume_health;
mod controller_modify_volume;
mod controller_publish_volume;
mod controller_unpublish_volume;
mod copies;
mod create_snapshot;
mod create_volume;
mod create_volume_group_snapshot;
mod delete_snapshot;
mod delete_volume;
mod delete_volume_group_snapshot;
mod details;
mod doctor;
mod doubts;
mod figures;
mod get_capacity;
mod get_metadata_allocated;
mod get_metadata_delta;
mod get_snapshot;
mod get_volume_group_snapshot;
mod handover;
mod health;
mod limit_directory;
mod list_snapshots;
mod list_volumes;
mod locks;
mod loop_devices;
mod moves;
mod node_expand_volume;
mod node_get_storage_health;
mod node_get_volume_health;
mod node_get_volume_stats;
mod node_publish_volume;
mod node_report;
mod node_stage_volume;
mod node_unpublish_volume;
mod node_unstage_volume;
mod pools;
mod publish;
mod pull;
mod records;
mod recovery;
mod removals;
mod request;
mod strangers;
mod unrecorded;
mod validate_volume_capabilities;

pub(crate) use capacity::PoolFigures;
pub(crate) use copies::progress::CopyFigures;
pub(crate) use details::Extent;
pub(crate) use figures::{Figures, VolumeFigures};
pub(crate) use locks::turns::TurnFigures;
pub(crate) use pools::pulse;
pub(crate) use pools::{Pool, Pools, pulse::Site};
pub use pull::{Broken, RemoteSource, RemoteSources, Take};
pub use recovery::Recovered;
pub use removals::Removing;
pub(crate) use request::token;
pub(crate) use strangers::StrangerFigures;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use crate::backend::{Place, Uses, VolumePaths};
use crate::error::{Busy, Error, OsContext, Result, Subject};
use crate::kernel::Os;
use crate::model::{Limits, NodeKey, ObjectId, Settings, Snapshot, Volume, VolumeId};
use crate::store::Store;
use capacity::usage;
use copies::progress;
use figures::durations;
use locks::{Guard, Key, Locks, Mode, Taken, attachments, reservations, turns};
use pools::enforce;
use publish::{binds, inline, orphans};
use pull::source;

/// Returns when a certificate ends. Never waits, and touches no disk.
pub type CertificateEnd = Arc<dyn Fn() -> SystemTime + Send + Sync>;

/// The driver of one node: everything it needs was handed in.
pub struct Driver {
    settings: Settings,
    node_key: NodeKey,
    os: Os,
    store: Store,
    pools: Pools,
    locks: Locks,
    capacity: capacity::Ledger,
    usage: usage::Cache,
    health: health::Known,
    attachments: attachments::Admission,
    copies: progress::Copies,
    copy_turns: turns::Turns,
    stream_turns: turns::Turns,
    stream_rate: turns::Rate,
    inline: inline::Gone,
    orphans: orphans::Orphans,
    freezes: durations::Durations,
    recovered: OnceLock<(Recovered, Duration)>,
    cuts: source::Cuts,
    mounted: source::Mounted,
    bound: binds::Answered,
    remote_sources: Option<Arc<dyn RemoteSources>>,
    reservations: reservations::Reservations,
    pulls: pull::Running,
    quota_ids: enforce::Given,
    removals: removals::Removals,
    late_records: records::Late,
    doubts: doubts::Doubts,
    strangers: strangers::Strangers,
    recent_cuts: source::RecentCuts,
    details: details::Known,
    first_seen: doctor::FirstSeen,
    certificate_end: Option<CertificateEnd>,
    ready: AtomicBool,
}

impl Driver {
    /// A driver on an open state file and prepared pools. [`Driver::recover`] has to run before it serves.
    pub fn new(settings: Settings, os: Os, store: Store, pools: Pools) -> Self {
        let limits = Limits::default();
        Driver {
            node_key: NodeKey::of(&settings.node_id),
            settings,
            os,
            store,
            pools,
            locks: Locks::default(),
            capacity: capacity::Ledger::default(),
            usage: usage::Cache::default(),
            health: health::Known::default(),
            attachments: attachments::Admission::default(),
            copies: progress::Copies::default(),
            copy_turns: turns::Turns::new(limits.copies, limits.copies),
            stream_turns: turns::Turns::new(limits.streams, limits.streams_each()),
            stream_rate: turns::Rate::new(limits.stream_rate),
            inline: inline::Gone::default(),
            orphans: orphans::Orphans::default(),
            freezes: durations::Durations::default(),
            recovered: OnceLock::new(),
            cuts: source::Cuts::default(),
            mounted: source::Mounted::default(),
            bound: binds::Answered::default(),
            remote_sources: None,
            reservations: reservations::Reservations::default(),
            pulls: pull::Running::default(),
            quota_ids: enforce::Given::default(),
            removals: removals::Removals::default(),
            late_records: records::Late::default(),
            doubts: doubts::Doubts::default(),
            strangers: strangers::Strangers::default(),
            recent_cuts: source::RecentCuts::default(),
            details: details::Known::default(),
            first_seen: doctor::FirstSeen::default(),
            certificate_end: None,
            ready: AtomicBool::new(false),
        }
    }

    /// Changes how much long work there may be at a time.
    #[must_use]
    pub fn with_limits(self, limits: Limits) -> Self {
        let copy_turns = turns::Turns::new(limits.copies, limits.copies);
        let stream_turns = turns::Turns::new(limits.streams, limits.streams_each());
        Driver { copy_turns, stream_turns, stream_rate: turns::Rate::new(limits.stream_rate), ..self }
    }

    /// Lets the driver make volumes from what other nodes have.
    #[must_use]
    pub fn with_remote_sources(self, sources: Arc<dyn RemoteSources>) -> Self {
        Driver { remote_sources: Some(sources), ..self }
    }

    /// Lets the driver say when the certificate ends that the node shows to its peers.
    #[must_use]
    pub fn with_certificate_end(self, certificate_end: Option<CertificateEnd>) -> Self {
        Driver { certificate_end, ..self }
    }

    /// The node's id.
    pub fn node_id(&self) -> &str {
        &self.settings.node_id
    }

    /// What the administrator decided.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// The state file; for reading.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Whether start-up recovery is done. Never touches a disk.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// UNAVAILABLE where the call at this site waits for a disk that does not answer. Never waits itself.
    pub fn is_stuck(&self, site: &Site) -> Option<Error> {
        let (name, why) = self.pools.is_silent(&site.pools())?;
        Some(Error::Unavailable(format!("pool {name}: {why}; the call goes on; a retry finds its result")))
    }

    /// Takes a volume or a snapshot for one operation.
    ///
    /// # Errors
    /// ABORTED while another operation on it runs (spec.md: the plugin may refuse a second call in flight).
    fn lock(&self, object: impl Into<Key>) -> Result<Guard> {
        self.lock_all([(object.into(), Mode::Exclusive)])
    }

    /// The same, beside others that only read it.
    fn share(&self, object: impl Into<Key>) -> Result<Guard> {
        self.lock_all([(object.into(), Mode::Shared)])
    }

    /// Takes volumes and snapshots for one operation, all or none.
    ///
    /// # Errors
    /// ABORTED while another operation that does not go with it runs; for a long copy with its progress. UNAVAILABLE for what may
    /// have lost its record.
    fn lock_all(&self, keys: impl IntoIterator<Item = (Key, Mode)>) -> Result<Guard> {
        let keys: Vec<(Key, Mode)> = keys.into_iter().collect();
        for (key, _) in &keys {
            if let Key::Object(object) = key {
                self.expect_certain(object.as_str())?;
            }
        }
        self.take(keys)
    }

    /// Locks a volume for NodeUnpublishVolume or NodeUnstageVolume, also if its record may be lost.
    ///
    /// # Errors
    /// ABORTED while another operation on it runs.
    fn lock_to_leave(&self, id: &VolumeId) -> Result<Guard> {
        self.take([(id.into(), Mode::Exclusive)])
    }

    fn take(&self, keys: impl IntoIterator<Item = (Key, Mode)>) -> Result<Guard> {
        self.locks.try_acquire(keys).map_err(|Taken(key)| {
            let (what, why) = match key {
                Key::Freeze(id) => (Subject::Freeze(id), None),
                Key::Object(object) => {
                    let why = self.copies.describe(object.as_str()).or_else(|| self.tool_on(&object));
                    (Subject::Object(object), why)
                }
            };
            Busy { what, why }.into()
        })
    }

    /// How far a tool is that works on a volume's filesystem, if one does.
    fn tool_on(&self, object: &ObjectId) -> Option<String> {
        let ObjectId::Volume(id) = object else { return None };
        let paths = self.paths(&*self.store.get(id)?).ok()?;
        paths.bytes().tool_at_work(&self.os, &paths)
    }

    fn pool_of(&self, volume: &Volume) -> Result<Arc<Pool>> {
        self.pools.get(volume.pool())
    }

    /// The volume's files, in a pool that can be used.
    fn paths(&self, volume: &Volume) -> Result<VolumePaths> {
        Ok(VolumePaths::of_volume(&self.pool_of(volume)?.path, volume))
    }

    /// Where the volume's files are, or would be if its pool could be used: to ask the kernel who uses them. The way out
    /// of a volume must not depend on its pool.
    fn paths_of_use(&self, volume: &Volume) -> Result<VolumePaths> {
        Ok(VolumePaths::of_volume(&self.pools.place(volume.pool())?, volume))
    }

    /// The snapshot's files, in a pool that can be used.
    fn snapshot_paths(&self, snapshot: &Snapshot) -> Result<VolumePaths> {
        let pool = self.pools.get(&snapshot.pool)?;
        Ok(VolumePaths::of_snapshot(&pool.path, &snapshot.id, snapshot.content.backend()))
    }

    /// Makes sure that no files are where new ones are to be. Without a record they are not ours to remove: perhaps
    /// an old state file was restored.
    fn nothing_on_disk(&self, paths: &VolumePaths) -> Result<()> {
        let directory = &paths.directory;
        let looking = || format!("look at {}", directory.display());
        match self.os.files.stat(directory).doing(looking)? {
            None => Ok(()),
            Some(_) => Err(Error::InUse(format!(
                "{} exists and has no record: move it away if you do not need its data",
                directory.display()
            ))),
        }
    }

    /// Looks at all loop devices, so that also those are known which others have attached: for what concerns every
    /// device of a volume, and not only that there is one. It takes as long as there are devices.
    fn see_all_devices(&self) -> Result<()> {
        self.os.loops.list().map(drop).doing(|| "find loop devices".to_owned())
    }

    fn place<'a>(&'a self, volume: &'a Volume, paths: &'a VolumePaths) -> Place<'a> {
        Place { os: &self.os, volume, paths }
    }
}

fn not_found(volume_id: &str) -> Error {
    Error::NotFound(format!("volume {volume_id:?} does not exist"))
}

/// Asks the kernel for a volume's users. After an unmount or a detach somebody who looks at the loop device for a
/// moment (the host's udev, `losetup`, another volume's call) puts its end off: a device that only waits for that
/// gets two seconds to go, as an unmount does. So does one under a mkfs whose driver was killed.
fn settled(uses: impl Fn() -> Result<Uses>) -> Result<Uses> {
    const TRIES: u32 = 200;
    for _ in 1..TRIES {
        let uses = uses()?;
        let going = uses.mounts.is_empty()
            && uses.partial.is_empty()
            && uses.loops.iter().all(|device| device.autoclear);
        if !uses.any() || !going {
            return Ok(uses);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    uses()
}

/// Creates the record of a volume for tests.
#[cfg(test)]
fn sample_volume() -> Volume {
    use crate::model::{Content, Phase, VolumeId, VolumeParameters};
    Volume {
        name: "v".to_owned(),
        capacity_bytes: 1 << 30,
        block_size: 512,
        ..Volume::new(
            VolumeId::of_name(&NodeKey::of("a"), "v"),
            Phase::Ready,
            Content::Directory,
            VolumeParameters::default(),
        )
    }
}
