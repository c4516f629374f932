//! The cut: copies of volumes as they are at one point in time, even while they are written to.
//!
//! A mounted filesystem is frozen, so that its image is whole and at rest. A raw device is flushed and then shared by one
//! FICLONE, which is a point in time by itself. What cannot be cut at one point in time is refused, unless the caller
//! said `freeze: "false"`. Slow work that does not need the freeze is done before it (creating files, flushing) or after
//! it (syncing the copy).
//!
//! The marker `<data-dir>/frozen/<volume id>` is made before a filesystem is frozen, and removed after the thaw. The
//! helper process thaws if the driver is killed. If the helper is killed too, as with a container, the start finds the
//! marker and thaws. A filesystem that somebody else froze has no marker and is left as it is.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::lock::{Guard, Key, Mode};
use super::{Driver, settled};
use crate::backend::{Copy, VolumePaths, Writers, presence_of};
use crate::error::{Error, OsContext, Result};
use crate::model::{Consistency, Timestamp, Volume};
use crate::os::{Frozen, Pinned, is_errno};

/// One volume to be cut; its lock is held.
pub(super) struct Member<'a> {
    /// The volume.
    pub(super) volume: &'a Volume,
    /// The files that are made; nothing is there yet.
    pub(super) to: VolumePaths,
    /// The id of what is made, for progress.
    pub(super) id: &'a str,
    /// The copy may share blocks with the volume.
    pub(super) share: bool,
    /// About so many bytes have to be copied.
    pub(super) bytes: u64,
}

impl Driver {
    /// Makes copies of the members at one point in time, durable on return, and says when that was. After an error
    /// the caller removes what was made.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where a member cannot be cut in the way that is wanted, and where the freeze reached its
    /// limit; RESOURCE_EXHAUSTED on a full disk.
    pub(super) fn cut(&self, members: &[Member<'_>], consistency: Consistency) -> Result<Timestamp> {
        let mut sides = Vec::new();
        for member in members {
            sides.push((member, self.paths(member.volume)?));
        }
        let mut lives = Vec::new();
        for (member, from) in &sides {
            lives.push(self.live(member.volume, from)?);
        }
        refuse(members, &lives, consistency)?;
        let _alone = self.lock_freezes(members, &lives, consistency)?;
        let copies: Vec<Copy<'_>> = sides.iter().map(|(member, from)| self.copy_of(member, from)).collect();
        let started = Instant::now();
        copies.iter().try_for_each(Copy::prepare)?;
        for ((_, from), live) in sides.iter().zip(&lives) {
            self.flush(from, live)?;
        }
        let flushed = started.elapsed();
        let mut freeze = Freeze::new(self, consistency);
        let cut = freeze.begin(members, &lives).and_then(|()| {
            let created = Timestamp::now();
            members.iter().zip(&copies).try_for_each(|(member, copy)| self.copy(member, copy, &freeze))?;
            Ok(created)
        });
        let (created, frozen) = freeze.end(cut)?;
        copies.iter().try_for_each(Copy::sync)?;
        tracing::info!(
            volumes = members.len(),
            flush_ms = flushed.as_millis() as u64,
            frozen_ms = frozen.map(|frozen| frozen.as_millis() as u64),
            ms = started.elapsed().as_millis() as u64,
            "cut"
        );
        Ok(created)
    }

    /// Takes the filesystems that are to be frozen: a volume's copies share its lock, and whoever came second would
    /// take the freeze of the first for a stranger's.
    fn lock_freezes(
        &self,
        members: &[Member<'_>],
        lives: &[Writers],
        consistency: Consistency,
    ) -> Result<Option<Guard>> {
        let mounted = |(_, live): &(_, &Writers)| consistency.freeze && matches!(live, Writers::Mounted(_));
        let frozen = members.iter().zip(lives).filter(mounted);
        let keys: Vec<(Key, Mode)> =
            frozen.map(|(member, _)| (Key::Freeze(member.volume.id.clone()), Mode::Exclusive)).collect();
        match keys.is_empty() {
            true => Ok(None),
            false => self.lock_all(keys).map(Some),
        }
    }

    fn copy_of<'a>(&'a self, member: &'a Member<'_>, from: &'a VolumePaths) -> Copy<'a> {
        Copy { os: &self.os, from, to: &member.to, share: member.share }
    }

    fn copy(&self, member: &Member<'_>, copy: &Copy<'_>, freeze: &Freeze<'_>) -> Result<()> {
        let mut progress = self.copies.begin(member.id, member.bytes);
        copy.run(&mut |done| {
            progress.report(done);
            freeze.check()
        })
    }

    /// Who may be writing to the volume.
    fn live(&self, volume: &Volume, paths: &VolumePaths) -> Result<Writers> {
        let place = self.place(volume, paths);
        let presence = presence_of(&volume.content);
        let uses = settled(|| presence.uses(place))?;
        uses.sound(place)?;
        presence.writers(place, &uses)
    }

    /// Puts what was written on the disk, so that little is left for the moment of the cut.
    fn flush(&self, paths: &VolumePaths, live: &Writers) -> Result<()> {
        let flushing = || format!("flush {}", paths.directory.display());
        match live {
            Writers::None | Writers::Unstoppable(_) => Ok(()),
            // The freeze begins with a syncfs(2) of the filesystem.
            Writers::Mounted(_) => self.os.disks.sync_file(&paths.data()).doing(flushing),
            Writers::Raw(devices) => {
                devices.iter().try_for_each(|device| self.os.loops.flush(device).doing(flushing))?;
                self.os.disks.sync_file(&paths.data()).doing(flushing)
            }
        }
    }

    /// Where a filesystem is marked as frozen by this driver.
    pub(super) fn frozen_marker(&self, name: &str) -> PathBuf {
        self.settings.data_dir.join("frozen").join(name)
    }
}

/// Refuses what would not be of one point in time.
fn refuse(members: &[Member<'_>], lives: &[Writers], consistency: Consistency) -> Result<()> {
    let moves = |live: &Writers| match live {
        Writers::None => false,
        Writers::Mounted(_) => !consistency.freeze,
        Writers::Raw(_) | Writers::Unstoppable(_) => true,
    };
    let moving: Vec<(&Member<'_>, &Writers)> =
        members.iter().zip(lives).filter(|(_, live)| moves(live)).collect();
    let (first, live) = match moving.as_slice() {
        [] => return Ok(()),
        // FICLONE is a point in time by itself. With others that stand still it is one for all: what follows a write
        // to this member can be in none of them.
        [(member, Writers::Raw(_) | Writers::Mounted(_))] if member.share => return Ok(()),
        [_] if members.len() == 1 && !consistency.freeze => return Ok(()),
        [first, ..] => *first,
    };
    let id = &first.volume.id;
    let way_out =
        "stop its pods, or set freeze: \"false\" in the class for a copy of what is being written to";
    Err(Error::InUse(match live {
        // spec.md, CreateVolumeGroupSnapshot: consistent across the members, or FAILED_PRECONDITION.
        _ if members.len() > 1 => {
            let ids: Vec<&str> = moving.iter().map(|(member, _)| member.volume.id.as_str()).collect();
            let ids = ids.join(", ");
            format!(
                "the volumes cannot be copied at one point in time, because writes to {ids} cannot be held back: stop their pods"
            )
        }
        Writers::Unstoppable(how) => format!("volume {id} {how}: {way_out}"),
        _ => format!(
            "volume {id} is a raw device in use, and its copy cannot share blocks, so it would not be of one point in time: {way_out}"
        ),
    }))
}

/// The filesystems that are frozen for one cut. Dropping it thaws them too.
struct Freeze<'a> {
    driver: &'a Driver,
    consistency: Consistency,
    until: Instant,
    since: Option<Instant>,
    /// A mount of each, and its marker.
    frozen: Vec<(Pinned, PathBuf, Box<dyn Frozen>)>,
    /// What is to be removed after the thaw.
    markers: Vec<PathBuf>,
}

impl<'a> Freeze<'a> {
    fn new(driver: &'a Driver, consistency: Consistency) -> Self {
        let until = Instant::now() + Duration::from_millis(consistency.freeze_timeout_ms);
        Freeze { driver, consistency, until, since: None, frozen: Vec::new(), markers: Vec::new() }
    }

    /// Freezes every member that is mounted, one after the other; the limit counts from the first.
    fn begin(&mut self, members: &[Member<'_>], lives: &[Writers]) -> Result<()> {
        if !self.consistency.freeze {
            return Ok(());
        }
        let limit = Duration::from_millis(self.consistency.freeze_timeout_ms);
        for (member, live) in members.iter().zip(lives) {
            let Writers::Mounted(mount) = live else { continue };
            let id = &member.volume.id;
            let marker = self.driver.frozen_marker(id.as_str());
            let os = &self.driver.os;
            let left_over =
                os.disks.stat(&marker).doing(|| format!("look at {}", marker.display()))?.is_some();
            if !left_over {
                os.disks.create_file(&marker).doing(|| format!("make {}", marker.display()))?;
                self.markers.push(marker.clone());
            }
            let left = if self.frozen.is_empty() { limit } else { self.left()? };
            // Exactly this filesystem, whatever is mounted over it from here on.
            let pinned = os.mounts.pin(mount).map_err(|error| self.not_frozen(id.as_str(), error))?;
            if left_over {
                // A thaw of ours that failed: until the next start nobody else makes up for it, and pods wait.
                os.mounts.thaw(pinned.path()).doing(|| format!("thaw {id}"))?;
            }
            let frozen =
                os.mounts.freeze(pinned.path(), left).map_err(|error| self.not_frozen(id.as_str(), error))?;
            if self.frozen.is_empty() {
                (self.since, self.until) = (Some(Instant::now()), Instant::now() + limit);
            }
            if left_over {
                // It is needed no more once this freeze has ended.
                self.markers.push(marker.clone());
            }
            self.frozen.push((pinned, marker, frozen));
        }
        Ok(())
    }

    fn not_frozen(&self, id: &str, error: io::Error) -> Error {
        if is_errno(&error, Errno::ETIMEDOUT) {
            return self.expired();
        }
        match is_errno(&error, Errno::EBUSY) {
            true => Error::InUse(format!(
                "the filesystem of {id} was frozen by another program: thaw it (fsfreeze --unfreeze), or set freeze: \"false\""
            )),
            false => Error::Os { context: format!("freeze {id}"), source: error },
        }
    }

    fn left(&self) -> Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.expired()) } else { Ok(left) }
    }

    /// Whether the copy may go on: without a freeze it may always.
    fn check(&self) -> Result<()> {
        if self.frozen.is_empty() { Ok(()) } else { self.left().map(drop) }
    }

    fn expired(&self) -> Error {
        Error::InUse(format!(
            "the copy did not end within freezeTimeout ({} ms), and writes to the volume were let through again: raise freezeTimeout in the class, use a pool that can share blocks, or set freeze: \"false\"",
            self.consistency.freeze_timeout_ms
        ))
    }

    /// After an error that does not say that the filesystem has thawed. Says whether it has now.
    fn thaw_again(&self, target: &Path, marker: &Path, error: &io::Error) -> bool {
        let thawed =
            [Errno::ETIMEDOUT, Errno::EINVAL, Errno::EOWNERDEAD].iter().any(|errno| is_errno(error, *errno));
        if !thawed && let Err(error) = self.driver.os.mounts.thaw(target) {
            tracing::error!(volume = %marker.file_name().unwrap_or_default().display(), %error, "a filesystem may still be frozen: thaw it with fsfreeze --unfreeze");
            return false;
        }
        true
    }

    /// Thaws all, whatever became of the cut, and says whether the freeze held to the end, and how long it took.
    fn end<T>(mut self, cut: Result<T>) -> Result<(T, Option<Duration>)> {
        let mut thawed = Ok(());
        let since = self.since;
        for (pinned, marker, frozen) in std::mem::take(&mut self.frozen) {
            if let Err(error) = frozen.thaw() {
                if !self.thaw_again(pinned.path(), &marker, &error) {
                    self.markers.retain(|other| *other != marker);
                }
                let expired = is_errno(&error, Errno::ETIMEDOUT);
                let error = if expired {
                    self.expired()
                } else {
                    Error::Os { context: "thaw".to_owned(), source: error }
                };
                thawed = thawed.and(Err(error));
            }
        }
        let frozen = since.map(|since| since.elapsed());
        frozen.into_iter().for_each(|frozen| self.driver.freezes.add(frozen));
        for marker in &self.markers {
            if let Err(error) = self.driver.os.disks.remove_file(marker) {
                tracing::warn!(%error, "a marker of a freeze stays; the next start removes it");
            }
        }
        let cut = cut?;
        thawed.map(|()| (cut, frozen))
    }
}
