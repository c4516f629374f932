//! The life of one volume, from CreateVolume to DeleteVolume, with a look at the machine after each step.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tonic::Status;

use super::client::Client;
use super::data::Data;
use super::machine::can_grow_ext4;
use super::report::Output;
use super::requests::{self, MadeFrom};
use super::trial::{Trial, freezing};
use super::workspace::Workspace;
use crate::config::Check;
use crate::kernel::Os;
use crate::model::{format_bytes, format_two};
use crate::shutdown::Shutdown;
use crate::wire::csi;
use csi::volume_usage::Unit;

/// Between the seeds of what a volume holds at first and after the change; more than there are kinds.
const CHANGED: u64 = 16;

/// A step, in the order in which they are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Stage,
    Publish,
    Write,
    ReadBack,
    Stats,
    /// CreateSnapshot, while the volume is in use.
    Snapshot,
    /// The pod writes other data over the first.
    Change,
    /// CreateVolume from the snapshot.
    Restore,
    /// CreateVolume from the volume, which is in use.
    Clone,
    /// The snapshot goes; both copies are staged, published, read and removed beside the volume.
    ReadCopies,
    Expand,
    Remount,
    Unpublish,
    Unstage,
    Delete,
}

impl Step {
    /// Every step.
    pub(super) const ALL: [Step; 16] = [
        Step::Create,
        Step::Stage,
        Step::Publish,
        Step::Write,
        Step::ReadBack,
        Step::Stats,
        Step::Snapshot,
        Step::Change,
        Step::Restore,
        Step::Clone,
        Step::ReadCopies,
        Step::Expand,
        Step::Remount,
        Step::Unpublish,
        Step::Unstage,
        Step::Delete,
    ];

    /// Its name.
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Step::Create => "create",
            Step::Stage => "stage",
            Step::Publish => "publish",
            Step::Write => "write",
            Step::ReadBack => "read back",
            Step::Stats => "stats",
            Step::Snapshot => "snapshot",
            Step::Change => "change",
            Step::Restore => "restore",
            Step::Clone => "clone",
            Step::ReadCopies => "read copies",
            Step::Expand => "expand",
            Step::Remount => "remount",
            Step::Unpublish => "unpublish",
            Step::Unstage => "unstage",
            Step::Delete => "delete",
        }
    }
}

/// Why a life ended early.
#[derive(Debug)]
pub(super) enum Failure {
    /// The user asked for the end.
    Interrupted,
    /// What went wrong, in a line.
    Wrong(String),
}

impl Failure {
    pub(super) fn wrong(what: impl fmt::Display) -> Self {
        Failure::Wrong(what.to_string())
    }

    /// The same, of one of the volumes.
    fn of(self, volume: &str) -> Self {
        match self {
            Failure::Wrong(what) => Failure::Wrong(format!("the {volume} volume: {what}")),
            Failure::Interrupted => Failure::Interrupted,
        }
    }
}

impl From<tonic::Status> for Failure {
    fn from(status: tonic::Status) -> Self {
        Failure::Wrong(format!("the driver answers {:?}: {}", status.code(), status.message()))
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Failure::wrong(error)
    }
}

/// How long each step took; `None` for one that is not possible on this machine.
pub(super) type Times = Vec<Option<Duration>>;

/// How a step ended.
pub(super) type Done = Result<(), Failure>;

/// What all lives share.
#[derive(Clone)]
pub(super) struct World {
    pub(super) client: Client,
    pub(super) os: Os,
    /// Of the driver, in the workspace.
    pub(super) dir: PathBuf,
    pub(super) workspace: Arc<Workspace>,
    pub(super) size: u64,
    /// Files in the workspace can share blocks.
    pub(super) reflinks: bool,
    pub(super) shutdown: Shutdown,
    pub(super) output: Output,
}

/// One volume's life, and that of its copies.
pub(super) struct Life {
    world: World,
    check: Check,
    volume: Trial,
    restored: Trial,
    cloned: Trial,
    /// The id of the snapshot, while there is one.
    snapshot: Option<String>,
    /// As far as it came.
    pub(super) times: Times,
}

impl Life {
    /// One that has not begun.
    pub(super) fn new(world: World, check: Check) -> Self {
        let (name, first) = (check.as_str(), check as u64 + 1);
        let place = |name: &str, seed| Trial::new(&world, check, name, seed);
        let volume = place(name, first);
        // The volume is changed before the clone is made, and after the snapshot was.
        let restored = place(&format!("{name}-restored"), first);
        let cloned = place(&format!("{name}-clone"), first + CHANGED);
        Life { world, check, volume, restored, cloned, snapshot: None, times: Vec::new() }
    }

    /// Lives it. Whatever happens, the volume and its copies are gone in the end, as far as the driver can help.
    pub(super) async fn run(&mut self) -> Done {
        [&self.volume, &self.restored, &self.cloned].into_iter().try_for_each(Trial::prepare)?;
        let mut result = Ok(());
        for step in Step::ALL {
            result = self.step(step).await;
            if result.is_err() {
                self.undo().await;
                break;
            }
        }
        result
    }

    /// A step runs to its end also when it is interrupted, unless the user insists.
    async fn step(&mut self, step: Step) -> Done {
        if is_requested(&self.world.shutdown).await {
            return Err(Failure::Interrupted);
        }
        if step == Step::Expand && !self.can_grow() {
            self.times.push(None);
            return Ok(());
        }
        self.world.output.progress(step.as_str());
        let started = Instant::now();
        let forced = self.world.shutdown.clone().forced();
        tokio::select! {
            done = self.perform(step) => done?,
            () = forced => return Err(Failure::Interrupted),
        }
        self.times.push(Some(started.elapsed()));
        Ok(())
    }

    async fn perform(&mut self, step: Step) -> Done {
        match step {
            Step::Create => self.create().await,
            Step::Stage => self.volume.stage().await,
            Step::Publish => self.volume.publish().await,
            Step::Write => self.volume.with_data(Data::write).await,
            Step::ReadBack => self.volume.with_data(Data::verify).await,
            Step::Stats => self.stats().await,
            Step::Snapshot => self.snapshot().await,
            Step::Change => self.change().await,
            Step::Restore => self.restore().await,
            Step::Clone => self.clone_volume().await,
            Step::ReadCopies => self.read_copies().await,
            Step::Expand => self.expand().await,
            Step::Remount => self.remount().await,
            Step::Unpublish => self.volume.unpublish().await,
            Step::Unstage => self.volume.unstage().await,
            Step::Delete => self.volume.delete().await,
        }
    }

    /// After a failure, the latest first.
    async fn undo(&self) {
        self.cloned.undo().await;
        self.restored.undo().await;
        if let Some(id) = &self.snapshot {
            let _ = self.world.client.call(requests::delete_snapshot(id)).await;
        }
        self.volume.undo().await;
    }

    async fn create(&mut self) -> Done {
        let name = format!("selftest-{}", self.check.as_str());
        self.volume.create(&name, self.world.size, None).await
    }

    /// What the driver reports is what the kernel says, and what was written is in it.
    async fn stats(&self) -> Done {
        let (place, volume) = (&self.volume, self.volume.volume()?);
        let answer = self.world.client.call(volume.stats_request(&place.target)).await?;
        let bytes = answer.usage.iter().find(|usage| usage.unit() == Unit::Bytes);
        let bytes = bytes.ok_or_else(|| Status::internal("the answer has no bytes"))?;
        let [total, used] = [bytes.total, bytes.used].map(|bytes| u64::try_from(bytes).unwrap_or_default());
        let expected = match self.check {
            // In a directory of btrfs statfs(2) shows the whole filesystem.
            Check::Block | Check::DirectoryEnforced => volume.bytes(),
            Check::Directory => total,
            Check::Ext4 | Check::Xfs | Check::Btrfs => place.size()?,
        };
        if total != expected {
            return Err(Failure::wrong(format_args!(
                "the driver reports {total} bytes, there are {expected}"
            )));
        }
        let written = place.written();
        // A device has no figure, and simple quotas of btrfs count with the next commit of the filesystem.
        if !matches!(self.check, Check::Block | Check::DirectoryEnforced) && used < written {
            return Err(Failure::wrong(format_args!(
                "{used} bytes are reported used, {written} were written"
            )));
        }
        self.volume.limit()
    }

    /// Where the driver keeps the snapshot.
    fn snapshot_files(&self, id: &str) -> PathBuf {
        self.world.dir.join("data/snapshots").join(id)
    }

    async fn snapshot(&mut self) -> Done {
        let name = format!("selftest-{}-snapshot", self.check.as_str());
        let freeze = freezes(self.check, self.world.reflinks);
        let request = csi::CreateSnapshotRequest {
            parameters: freezing(freeze),
            ..self.volume.volume()?.snapshot_request(&name)
        };
        let snapshot = self.world.client.call(request).await?.snapshot;
        let snapshot = snapshot.ok_or_else(|| Status::internal("the answer has no snapshot"))?;
        let files = self.snapshot_files(&snapshot.snapshot_id);
        self.snapshot = Some(snapshot.snapshot_id);
        if !snapshot.ready_to_use {
            return Err(Failure::wrong("the snapshot is not ready to use"));
        }
        self.world.there(&files)
    }

    async fn change(&mut self) -> Done {
        self.volume.seed += CHANGED;
        self.volume.with_data(Data::rewrite).await
    }

    async fn restore(&mut self) -> Done {
        let snapshot = self.snapshot.clone().ok_or_else(|| Failure::wrong("there is no snapshot"))?;
        let name = format!("selftest-{}-restored", self.check.as_str());
        let bytes = self.volume.volume()?.bytes();
        self.restored.create(&name, bytes, Some((MadeFrom::Snapshot(snapshot), true))).await
    }

    async fn clone_volume(&mut self) -> Done {
        let (name, volume) = (format!("selftest-{}-clone", self.check.as_str()), self.volume.volume()?);
        let freeze = freezes(self.check, self.world.reflinks);
        self.cloned.create(&name, volume.bytes(), Some((MadeFrom::Volume(volume.id.clone()), freeze))).await
    }

    /// The copies need nothing of what they were made from, and may be used beside it.
    async fn read_copies(&mut self) -> Done {
        if let Some(id) = &self.snapshot {
            self.world.client.call(requests::delete_snapshot(id)).await?;
            self.world.gone(&self.snapshot_files(id))?;
        }
        self.snapshot = None;
        let copies = [("restored", &mut self.restored), ("cloned", &mut self.cloned)];
        for (what, place) in &copies {
            place.stage().await?;
            place.publish().await?;
            place.with_data(Data::verify).await.map_err(|error| error.of(what))?;
        }
        for (_, place) in copies {
            place.unpublish().await?;
            place.unstage().await?;
            place.delete().await?;
        }
        Ok(())
    }

    fn can_grow(&self) -> bool {
        self.check != Check::Ext4 || can_grow_ext4(&self.world.os)
    }

    async fn expand(&mut self) -> Done {
        let (size, before) = (self.volume.volume()?.bytes(), self.volume.size()?);
        let wanted = size / 2 * 3;
        let bytes = self.volume.expand(wanted).await?;
        if bytes < wanted {
            let [wanted, bytes] = format_two(wanted, bytes);
            return Err(Failure::wrong(format_args!("asked for {wanted}, the answer is {bytes}")));
        }
        let grown = self.volume.size()?.saturating_sub(before);
        // Of what was added, a filesystem keeps a part for itself.
        if !self.check.is_directory() && grown < (wanted - size) / 10 * 8 {
            let grown = format_bytes(grown);
            return Err(Failure::wrong(format_args!("the volume in use grew by {grown} only")));
        }
        Ok(())
    }

    async fn remount(&self) -> Done {
        self.volume.unpublish().await?;
        self.volume.unstage().await?;
        self.volume.stage().await?;
        self.volume.publish().await?;
        self.volume.with_data(Data::verify).await
    }
}

/// Whether a copy of a volume in use can be of one point in time here. Without, the driver refuses it unless it is
/// told that nobody writes, which is so.
pub(super) fn freezes(check: Check, reflinks: bool) -> bool {
    match check {
        Check::Ext4 | Check::Xfs | Check::Btrfs => true,
        Check::Block => reflinks,
        Check::Directory | Check::DirectoryEnforced => false,
    }
}

/// Whether the end was asked for by now.
pub(super) async fn is_requested(shutdown: &Shutdown) -> bool {
    tokio::select! {
        biased;
        () = shutdown.clone().requested() => true,
        () = std::future::ready(()) => false,
    }
}
