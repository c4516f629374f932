//! The use cases: one file per RPC, with its name. Plain synchronous code. Every use case that changes something begins by
//! taking the volume's lock, which lives inside the work: a call whose caller has gone keeps it to the end.

mod attachments;
mod blocks;
mod bound;
mod capacity;
mod check;
mod close_source;
mod controller_expand_volume;
mod controller_get_volume;
mod controller_get_volume_health;
mod controller_list_volume_health;
mod controller_modify_volume;
mod controller_publish_volume;
mod controller_unpublish_volume;
mod create_snapshot;
mod create_volume;
mod create_volume_group_snapshot;
mod cut;
mod delete_snapshot;
mod delete_volume;
mod delete_volume_group_snapshot;
mod directories;
mod durations;
mod figures;
mod get_capacity;
mod get_metadata_allocated;
mod get_metadata_delta;
mod get_snapshot;
mod get_volume_group_snapshot;
mod health;
mod inline;
mod list_snapshots;
mod list_volumes;
pub mod lock;
mod managed_pool;
mod node_expand_volume;
mod node_get_storage_health;
mod node_get_volume_health;
mod node_get_volume_stats;
mod node_publish_volume;
mod node_stage_volume;
mod node_unpublish_volume;
mod node_unstage_volume;
mod open_source;
mod origin;
mod pool_marker;
mod pools;
mod probe;
mod progress;
mod pull;
mod pull_blocks;
mod pull_tree;
pub(crate) mod pulse;
mod recover;
mod reservations;
mod reserve;
mod settle;
mod snapshots;
mod sources;
mod tally;
pub(crate) mod token;
mod turns;
mod usage;
mod validate_volume_capabilities;

pub use capacity::PoolFigures;
pub use durations::DurationFigures;
pub use figures::Figures;
pub use pools::{Pool, Pools};
pub use progress::CopyFigures;
pub use pull::{Broken, RemoteSource, RemoteSources, Take};
pub use pulse::Site;
pub use recover::Recovered;
pub use turns::{Turn, TurnFigures};

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::backend::{Place, Target, Uses, VolumePaths, resolve};
use crate::error::{Busy, Error, OsContext, Result, Subject};
use crate::model::{
    GroupSnapshot, Limits, NodeKey, ObjectId, Phase, PoolName, Settings, Snapshot, SnapshotId, Volume,
    VolumeId,
};
use crate::os::Os;
use crate::store::Store;
use lock::{Guard, Key, Locks, Mode, Taken};

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
    freezes: durations::Durations,
    recovered: OnceLock<(Recovered, Duration)>,
    cuts: sources::Cuts,
    bound: bound::Answered,
    remote_sources: Option<Arc<dyn RemoteSources>>,
    reservations: reservations::Reservations,
    pulls: pull::Running,
    recent_cuts: sources::RecentCuts,
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
            freezes: durations::Durations::default(),
            recovered: OnceLock::new(),
            cuts: sources::Cuts::default(),
            bound: bound::Answered::default(),
            remote_sources: None,
            reservations: reservations::Reservations::default(),
            pulls: pull::Running::default(),
            recent_cuts: sources::RecentCuts::default(),
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

    /// A turn for a copy, to be kept until it has ended.
    ///
    /// # Errors
    /// [`Error::Crowded`] where there is none: nothing has begun then.
    fn copy_turn(&self) -> Result<Turn> {
        self.copy_turns.take("").ok_or_else(|| {
            let limit = self.copy_turns.figures().limit;
            Error::Crowded(format!("{limit} copies run on this node (--max-copies); try again"))
        })
    }

    /// A turn for a stream to this caller, to be kept until it has ended.
    ///
    /// # Errors
    /// [`Error::Crowded`] where there is none.
    pub fn stream_turn(&self, who: &str) -> Result<Turn> {
        self.stream_turns.take(who).ok_or_else(|| {
            let TurnFigures { running, limit, .. } = self.stream_turns.figures();
            Error::Crowded(format!(
                "{running} of {limit} streams run on this node (--max-streams), and one caller gets at most half of them; try again"
            ))
        })
    }

    /// Lets the driver make volumes from what other nodes have.
    #[must_use]
    pub fn with_remote_sources(self, sources: Arc<dyn RemoteSources>) -> Self {
        Driver { remote_sources: Some(sources), ..self }
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

    /// Takes the volume for one operation.
    ///
    /// # Errors
    /// ABORTED while another operation on it runs (spec.md: the plugin may refuse a second call in flight).
    fn lock(&self, id: &VolumeId) -> Result<Guard> {
        self.lock_all([(id.into(), Mode::Exclusive)])
    }

    /// Takes volumes and snapshots for one operation, all or none.
    ///
    /// # Errors
    /// ABORTED while another operation that does not go with it runs; for a long copy with its progress.
    fn lock_all(&self, keys: impl IntoIterator<Item = (Key, Mode)>) -> Result<Guard> {
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

    /// The id of a snapshot; `None` for text that is none of its ids.
    fn snapshot_id(&self, snapshot_id: &str) -> Option<SnapshotId> {
        snapshot_id.parse().ok()
    }

    /// A snapshot that callers may see.
    fn ready_snapshot(&self, snapshot_id: &str) -> Result<Arc<Snapshot>> {
        let missing = || Error::NotFound(format!("snapshot {snapshot_id:?} does not exist"));
        let snapshot = self.snapshot_id(snapshot_id).and_then(|id| self.store.snapshot(&id));
        snapshot.filter(|snapshot| self.is_visible(snapshot)).ok_or_else(missing)
    }

    /// Whether callers may see a snapshot: a member of a group is there only if the whole group is.
    fn is_visible(&self, snapshot: &Snapshot) -> bool {
        let ready = |group: Arc<GroupSnapshot>| group.phase == Phase::Ready;
        let group = snapshot.group.as_ref();
        snapshot.is_ready()
            && snapshot.pulled_for.is_none()
            && group.is_none_or(|id| self.store.group(id).is_some_and(ready))
    }

    /// The id of a volume that the Controller service knows; `None` for text that is none of its ids.
    fn controller_id(&self, volume_id: &str) -> Option<VolumeId> {
        volume_id.parse::<VolumeId>().ok().filter(|id| !id.is_inline())
    }

    /// The id under which the Node service finds a volume: its own, or the one derived for an inline volume.
    /// The node's id.
    pub fn node_id(&self) -> &str {
        &self.settings().node_id
    }

    fn node_id_of(&self, volume_id: &str) -> VolumeId {
        self.controller_id(volume_id).unwrap_or_else(|| VolumeId::of_inline(&self.node_key, volume_id))
    }

    /// A volume that callers may see.
    fn ready_volume(&self, id: &VolumeId, volume_id: &str) -> Result<Arc<Volume>> {
        self.store.get(id).filter(|volume| volume.is_ready()).ok_or_else(|| not_found(volume_id))
    }

    /// The volume's pool.
    fn pool_of(&self, volume: &Volume) -> Result<Arc<Pool>> {
        self.pools.get(volume.pool())
    }

    /// The volume's files, in a pool that can be used.
    fn paths(&self, volume: &Volume) -> Result<VolumePaths> {
        Ok(VolumePaths::new(&self.pool_of(volume)?.path, &volume.id, volume.parameters.backend))
    }

    /// Where the volume's files are, or would be if its pool could be used: to ask the kernel who uses them. The way out
    /// of a volume must not depend on its pool.
    fn paths_of_use(&self, volume: &Volume) -> Result<VolumePaths> {
        Ok(VolumePaths::new(&self.pools.place(volume.pool())?, &volume.id, volume.parameters.backend))
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
        match self.os.disks.stat(directory).doing(looking)? {
            None => Ok(()),
            Some(_) => Err(Error::InUse(format!(
                "{} exists and has no record: move it away if you do not need its data",
                directory.display()
            ))),
        }
    }

    fn place<'a>(&'a self, volume: &'a Volume, paths: &'a VolumePaths) -> Place<'a> {
        Place { os: &self.os, volume, paths }
    }

    /// [`Driver::mount_target`] for a path that is to be used: to the caller NOT_FOUND is a missing volume, never a
    /// missing directory.
    fn usable_target(&self, path: &Path) -> Result<Target> {
        self.mount_target(path).map_err(|error| match error {
            Error::NotFound(message) => Error::InUse(message),
            other => other,
        })
    }

    /// Resolves a staging or target path and makes sure that nothing is mounted where it would do harm: not in
    /// or over a pool, and only below `--kubelet-dir` if that is given.
    fn mount_target(&self, path: &Path) -> Result<Target> {
        let target = resolve(&self.os, path)?;
        let allowed = |root: &PathBuf| target.path().starts_with(root);
        if let Some(dir) = self.pools.kubelet_dir().filter(|dir| !allowed(dir)) {
            let (path, dir) = (target.path().display(), dir.display());
            return Err(Error::Invalid(format!(
                "{path} is not below {dir}, the directory of kubelet (--kubelet-dir)"
            )));
        }
        let harmful = |(_, pool, medium): &(PoolName, PathBuf, Option<PathBuf>)| {
            target.path().starts_with(pool)
                || pool.starts_with(target.path())
                // What is mounted over an image hides it from the next start.
                || medium.as_ref().is_some_and(|medium| medium.starts_with(target.path()))
        };
        match self.pools.places().iter().find(|pool| harmful(pool)) {
            Some((pool, ..)) => {
                let path = target.path().display();
                Err(Error::Invalid(format!(
                    "{path} is in or above the directory of pool {pool}; choose another path"
                )))
            }
            None => Ok(target),
        }
    }
}

/// NOT_FOUND for a volume.
fn not_found(volume_id: &str) -> Error {
    Error::NotFound(format!("volume {volume_id:?} does not exist"))
}

/// Adds the outcome of undoing to the reason for it.
fn after_undo(cause: Error, undo: Result<()>) -> Error {
    match undo {
        Ok(()) => cause,
        Err(undo) => Error::Undo { cause: Box::new(cause), undo: Box::new(undo) },
    }
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
