//! The freeze of the filesystems that one cut copies: begun, held no longer than its limit, ended.
//!
//! Before a filesystem is frozen a marker `<data-dir>/frozen/<directory of the volume>` is made, and removed after the thaw. The
//! helper process thaws if the driver is killed; if it is killed too, as with a container, start-up finds the
//! marker and thaws. A filesystem that another program froze has none. It is copied as it stands, and left as it is.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::cut::Member;
use crate::backend::Writers;
use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::kernel::{Frozen, LoopDevice, Pinned, is_errno};
use crate::model::Consistency;

/// The filesystems that are frozen for one cut. Dropping it thaws them too.
pub(super) struct Freeze<'a> {
    driver: &'a Driver,
    consistency: Consistency,
    until: Instant,
    since: Option<Instant>,
    /// A mount of each, and its marker.
    frozen: Vec<(Pinned, PathBuf, Box<dyn Frozen>)>,
    /// What is to be removed after the thaw.
    markers: Vec<PathBuf>,
    /// The filesystems that another program has frozen.
    standing: Vec<Standing>,
}

/// A filesystem that another program has frozen, such as a backup hook. It is copied as it stands, and is not thawed.
struct Standing {
    id: String,
    /// Its devices, with what had been written to them before the copy. A thaw that changes anything writes.
    devices: Vec<(LoopDevice, u64)>,
}

impl<'a> Freeze<'a> {
    pub(super) fn new(driver: &'a Driver, consistency: Consistency) -> Self {
        let until = Instant::now() + Duration::from_millis(consistency.freeze_timeout_ms);
        Freeze {
            driver,
            consistency,
            until,
            since: None,
            frozen: Vec::new(),
            markers: Vec::new(),
            standing: Vec::new(),
        }
    }

    /// Freezes every member that is mounted, one after the other; the limit counts from the first.
    pub(super) fn begin(&mut self, members: &[Member<'_>], lives: &[Writers]) -> Result<()> {
        if !self.consistency.freeze {
            return Ok(());
        }
        let limit = Duration::from_millis(self.consistency.freeze_timeout_ms);
        for (member, live) in members.iter().zip(lives) {
            let Writers::Mounted(mount, devices) = live else { continue };
            let id = &member.volume.id;
            let marker = self.driver.frozen_marker(member.volume.directory().as_str());
            let os = &self.driver.os;
            let left_over =
                os.files.stat(&marker).doing(|| format!("look at {}", marker.display()))?.is_some();
            if !left_over {
                os.files.create_file(&marker).doing(|| format!("make {}", marker.display()))?;
                self.markers.push(marker.clone());
            }
            let left = if self.frozen.is_empty() { limit } else { self.left()? };
            // Exactly this filesystem, whatever is mounted over it from here on.
            let pinned = os.mounts.pin(mount).map_err(|error| self.not_frozen(id.as_str(), error))?;
            if left_over {
                // A thaw of ours that failed: until the next start nobody else makes up for it, and pods wait.
                os.mounts.thaw(pinned.path()).doing(|| format!("thaw {id}"))?;
            }
            let frozen = match os.mounts.freeze(pinned.path(), left) {
                Err(error) if is_errno(&error, Errno::EBUSY) => {
                    self.let_stand(id.as_str(), &marker, devices)?;
                    continue;
                }
                frozen => frozen.map_err(|error| self.not_frozen(id.as_str(), error))?,
            };
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

    /// Takes note of a filesystem that another program has frozen. Its marker goes at once: the next start thaws what has
    /// one.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if the kernel does not tell whether it stays as it is.
    fn let_stand(&mut self, id: &str, marker: &Path, devices: &[LoopDevice]) -> Result<()> {
        let os = &self.driver.os;
        self.markers.retain(|other| other != marker);
        os.files.remove_file(marker).doing(|| format!("remove {}", marker.display()))?;
        let mut written = Vec::new();
        for device in devices {
            match os.loops.written(device).doing(|| format!("count the writes to {id}"))? {
                Some(before) => written.push((device.clone(), before)),
                None => {
                    let device = device.path().display().to_string();
                    return Err(Error::InUse(format!(
                        "another program froze the filesystem of {id}, and the kernel does not count writes to {device}: thaw it (fsfreeze --unfreeze), write 1 to queue/iostats of the device, or set freeze: \"false\""
                    )));
                }
            }
        }
        tracing::info!(volume.id = id, "another program froze the filesystem, copying it as it stands");
        self.standing.push(Standing { id: id.to_owned(), devices: written });
        Ok(())
    }

    /// Returns the first volume that another program had frozen and that was written to since.
    pub(super) fn moved(&self) -> Result<Option<String>> {
        for Standing { id, devices } in &self.standing {
            for (device, before) in devices {
                let counting = || format!("count the writes to {id}");
                if self.driver.os.loops.written(device).doing(counting)? != Some(*before) {
                    return Ok(Some(id.clone()));
                }
            }
        }
        Ok(None)
    }

    fn not_frozen(&self, id: &str, error: io::Error) -> Error {
        match is_errno(&error, Errno::ETIMEDOUT) {
            true => self.expired(),
            false => Error::Os { context: format!("freeze {id}"), source: error },
        }
    }

    fn left(&self) -> Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.expired()) } else { Ok(left) }
    }

    /// Whether the copy may go on: without a freeze it may always.
    pub(super) fn check(&self) -> Result<()> {
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
    pub(super) fn end<T>(mut self, cut: Result<T>) -> Result<(T, Option<Duration>)> {
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
            if let Err(error) = self.driver.os.files.remove_file(marker) {
                tracing::warn!(%error, "a marker of a freeze stays; the next start removes it");
            }
        }
        let cut = cut?;
        thawed.map(|()| (cut, frozen))
    }
}
