//! The life of one volume, from CreateVolume to DeleteVolume, with a look at the machine after each step.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::client::{Client, Volume};
use super::data::{Data, length};
use super::machine::can_grow_ext4;
use super::report::Output;
use super::workspace::Workspace;
use crate::config::Check;
use crate::model::format_bytes;
use crate::os::Os;
use crate::shutdown::Shutdown;

/// What is written, where the volume is not too small for it.
const WRITTEN: u64 = 16 << 20;

/// A step, in the order in which they are done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    Create,
    Stage,
    Publish,
    Write,
    ReadBack,
    Stats,
    Expand,
    Remount,
    Unpublish,
    Unstage,
    Delete,
}

impl Step {
    /// Every step.
    pub(super) const ALL: [Step; 11] = [
        Step::Create,
        Step::Stage,
        Step::Publish,
        Step::Write,
        Step::ReadBack,
        Step::Stats,
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
    fn wrong(what: impl fmt::Display) -> Self {
        Failure::Wrong(what.to_string())
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

type Done = Result<(), Failure>;

/// What all lives share.
#[derive(Clone)]
pub(super) struct World {
    pub(super) client: Client,
    pub(super) os: Os,
    pub(super) workspace: Arc<Workspace>,
    pub(super) size: u64,
    pub(super) shutdown: Shutdown,
    pub(super) output: Output,
}

/// One volume's life.
pub(super) struct Life {
    world: World,
    check: Check,
    staging: PathBuf,
    target: PathBuf,
    volume: Option<Volume>,
    /// As far as it came.
    pub(super) times: Times,
}

impl Life {
    /// One that has not begun.
    pub(super) fn new(world: World, check: Check) -> Self {
        let dir = world.workspace.path().join(check.as_str());
        let (staging, target) = (dir.join("staging"), dir.join("pod"));
        Life { world, check, staging, target, volume: None, times: Vec::new() }
    }

    /// Lives it. Whatever happens, the volume is gone in the end, as far as the driver can help.
    pub(super) async fn run(&mut self) -> Done {
        self.prepare()?;
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

    /// kubelet makes the parents of the paths.
    fn prepare(&self) -> Done {
        let dir = self.world.workspace.path().join(self.check.as_str());
        Ok(self.world.os.disks.create_directory(&dir, 0o700)?)
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
            Step::Stage => self.stage().await,
            Step::Publish => self.publish().await,
            Step::Write => self.with_data(Data::write).await,
            Step::ReadBack => self.with_data(Data::verify).await,
            Step::Stats => self.stats().await,
            Step::Expand => self.expand().await,
            Step::Remount => self.remount().await,
            Step::Unpublish => self.unpublish().await,
            Step::Unstage => self.unstage().await,
            Step::Delete => self.delete().await,
        }
    }

    /// After a failure: backwards, as far as the driver goes along. What it leaves is swept up at the end.
    async fn undo(&self) {
        let Some(volume) = &self.volume else { return };
        let client = &self.world.client;
        let _ = client.unpublish(volume, &self.target).await;
        let _ = client.unstage(volume, &self.staging).await;
        let _ = client.delete(volume).await;
    }

    fn volume(&self) -> Result<&Volume, Failure> {
        self.volume.as_ref().ok_or_else(|| Failure::wrong("there is no volume"))
    }

    /// Where the driver keeps it.
    fn files(&self, volume: &Volume) -> PathBuf {
        self.world.workspace.path().join("data/volumes").join(&volume.id)
    }

    async fn create(&mut self) -> Done {
        let name = format!("selftest-{}", self.check.as_str());
        let volume = self.world.client.create(&name, self.check, self.world.size).await?;
        let (bytes, files) = (volume.bytes, self.files(&volume));
        self.volume = Some(volume);
        if self.check != Check::Directory && bytes < self.world.size {
            return Err(Failure::wrong(format_args!("the volume has {bytes} bytes only")));
        }
        match self.world.os.disks.stat(&files)? {
            Some(_) => Ok(()),
            None => Err(Failure::wrong(format_args!("{} is missing", files.display()))),
        }
    }

    async fn stage(&self) -> Done {
        // kubelet makes the staging directory before the call, and removes it after NodeUnstageVolume.
        self.world.os.disks.create_directory(&self.staging, 0o750)?;
        self.world.client.stage(self.volume()?, &self.staging).await?;
        match self.check == Check::Block || self.world.workspace.is_mounted(&self.staging)? {
            true => Ok(()),
            false => Err(Failure::wrong("nothing is mounted at the staging path")),
        }
    }

    async fn publish(&self) -> Done {
        self.world.client.publish(self.volume()?, &self.staging, &self.target).await?;
        match self.world.workspace.is_mounted(&self.target)? {
            true => Ok(()),
            false => Err(Failure::wrong("nothing is mounted at the target path")),
        }
    }

    /// Bytes that are written: at most an eighth of the volume.
    fn written(&self) -> u64 {
        WRITTEN.min(self.world.size / 8 / 4096 * 4096)
    }

    /// Works on the volume's data as a pod does.
    async fn with_data(&self, work: fn(&Data) -> io::Result<()>) -> Done {
        let device = self.check == Check::Block;
        let path = if device { self.target.clone() } else { self.target.join("data") };
        let data = Data { path, device, seed: self.check as u64 + 1, len: self.written() };
        match tokio::task::spawn_blocking(move || work(&data)).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Failure::wrong("the selftest met a bug")),
        }
    }

    /// What the driver reports is what the kernel says, and what was written is in it.
    async fn stats(&self) -> Done {
        let volume = self.volume()?;
        let (total, used) = self.world.client.stats(volume, &self.target).await?;
        let expected = match self.check {
            Check::Block => volume.bytes,
            Check::Directory => total,
            Check::Ext4 | Check::Xfs | Check::Btrfs => self.size()?,
        };
        if total != expected {
            return Err(Failure::wrong(format_args!(
                "the driver reports {total} bytes, there are {expected}"
            )));
        }
        if self.check != Check::Block && used < self.written() {
            let written = self.written();
            return Err(Failure::wrong(format_args!(
                "{used} bytes are reported used, {written} were written"
            )));
        }
        Ok(())
    }

    /// The size that a pod sees.
    fn size(&self) -> io::Result<u64> {
        match self.check {
            Check::Block => length(&self.target),
            _ => self.world.os.disks.space(&self.target).map(|space| space.total),
        }
    }

    fn can_grow(&self) -> bool {
        self.check != Check::Ext4 || can_grow_ext4(&self.world.os)
    }

    async fn expand(&mut self) -> Done {
        let volume = self.volume()?;
        let wanted = volume.bytes / 2 * 3;
        let before = self.size()?;
        let bytes = self.world.client.expand(volume, &self.target, wanted).await?;
        if bytes < wanted {
            return Err(Failure::wrong(format_args!("asked for {wanted} bytes, the answer is {bytes}")));
        }
        let grown = self.size()?.saturating_sub(before);
        // Of what was added, a filesystem keeps a part for itself.
        if self.check != Check::Directory && grown < (wanted - volume.bytes) / 10 * 8 {
            let grown = format_bytes(grown);
            return Err(Failure::wrong(format_args!("the volume in use grew by {grown} only")));
        }
        if let Some(volume) = &mut self.volume {
            volume.bytes = bytes;
        }
        Ok(())
    }

    async fn remount(&self) -> Done {
        self.unpublish().await?;
        self.unstage().await?;
        self.stage().await?;
        self.publish().await?;
        self.with_data(Data::verify).await
    }

    async fn unpublish(&self) -> Done {
        self.world.client.unpublish(self.volume()?, &self.target).await?;
        self.gone(&self.target)
    }

    async fn unstage(&self) -> Done {
        self.world.client.unstage(self.volume()?, &self.staging).await?;
        if self.world.workspace.is_mounted(&self.staging)? {
            return Err(Failure::wrong("the staging path is still mounted"));
        }
        Ok(self.world.os.disks.remove_directory(&self.staging)?)
    }

    async fn delete(&mut self) -> Done {
        let volume = self.volume()?;
        let files = self.files(volume);
        self.world.client.delete(volume).await?;
        self.gone(&files)?;
        match self.world.workspace.attached(&files).join(", ") {
            names if names.is_empty() => {
                self.volume = None;
                Ok(())
            }
            names => Err(Failure::wrong(format_args!("{names} is still attached"))),
        }
    }

    fn gone(&self, path: &Path) -> Done {
        match self.world.os.disks.stat(path)? {
            None => Ok(()),
            Some(_) => Err(Failure::wrong(format_args!("{} is still there", path.display()))),
        }
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
