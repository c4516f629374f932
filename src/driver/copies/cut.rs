//! The cut: copies of volumes as they are at one point in time, even while they are written to.
//!
//! A mounted filesystem is frozen, so that its image is whole and at rest. A raw device is flushed and then shared by one
//! FICLONE, which is a point in time by itself. So is a snapshot of a btrfs subvolume, of a directory in use. What cannot be
//! cut at one point in time is refused, unless the caller said `freeze: "false"`. Slow work that does not need the freeze is
//! done before it (creating files, flushing) or after it (syncing the copy).

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::freeze::Freeze;
use crate::backend::{Copy, Share, VolumePaths, Writers, presence_of, remove_files};
use crate::driver::locks::{Guard, Key, Mode};
use crate::driver::records::Makes;
use crate::driver::{Driver, settled};
use crate::error::{Error, OsContext, Result};
use crate::model::{Consistency, Timestamp, Volume};

/// One volume to be cut; its lock is held.
pub(crate) struct Member<'a> {
    pub(crate) volume: &'a Volume,
    /// The files that are made; nothing is there yet.
    pub(crate) to: VolumePaths,
    /// What is made.
    pub(crate) makes: Makes<'a>,
    /// Its id, for progress.
    pub(crate) id: &'a str,
    /// What the copy may share with the volume.
    pub(crate) share: Share,
    /// About so many bytes have to be copied.
    pub(crate) bytes: u64,
}

/// How a copy of members at rest went.
enum AtRest {
    /// It was made at this time, with this driver's freeze for so long.
    Copied(Timestamp, Option<Duration>),
    /// Another program had frozen this volume, and thawed it meanwhile.
    Moved(String),
}

impl Driver {
    /// Makes copies of the members at one point in time, durable on return, and says when that was. After an error
    /// the caller removes what was made.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where a member cannot be cut in the way that is wanted, and where the freeze reached its
    /// limit; RESOURCE_EXHAUSTED on a full disk.
    pub(crate) fn cut(&self, members: &[Member<'_>], consistency: Consistency) -> Result<Timestamp> {
        let from = members.iter().map(|member| self.paths(member.volume)).collect::<Result<Vec<_>>>()?;
        let sides = || members.iter().zip(&from);
        let lives =
            sides().map(|(member, from)| self.live(member.volume, from)).collect::<Result<Vec<_>>>()?;
        refuse(members, &lives, consistency)?;
        let _alone = self.lock_freezes(members, &lives, consistency)?;
        let copy = |(member, from)| {
            let Member { to, share, .. }: &Member<'_> = member;
            Copy { os: &self.os, from, to, share: *share }
        };
        let copies: Vec<Copy<'_>> = sides().map(copy).collect();
        let started = Instant::now();
        copies.iter().try_for_each(Copy::prepare)?;
        from.iter().zip(&lives).try_for_each(|(from, live)| self.flush(from, live))?;
        let flushed = started.elapsed();
        let (created, frozen) = match self.copy_at_rest(members, &copies, &lives, consistency)? {
            AtRest::Copied(created, frozen) => (created, frozen),
            AtRest::Moved(id) => {
                tracing::info!(
                    volume.id = id,
                    "another program thawed the filesystem during the copy, copying again"
                );
                for copy in &copies {
                    remove_files(&self.os, copy.to, &mut || true)?;
                    copy.prepare()?;
                }
                match self.copy_at_rest(members, &copies, &lives, consistency)? {
                    AtRest::Copied(created, frozen) => (created, frozen),
                    AtRest::Moved(id) => {
                        return Err(Error::Unavailable(format!(
                            "another program thawed the filesystem of {id} and froze it again during the copy, twice; try again"
                        )));
                    }
                }
            }
        };
        copies
            .iter()
            .zip(members)
            .try_for_each(|(copy, member)| copy.sync(&self.record_of_copy(member.makes, created)?))?;
        tracing::info!(
            volumes = members.len(),
            flush_ms = flushed.as_millis() as u64,
            frozen_ms = frozen.map(|frozen| frozen.as_millis() as u64),
            ms = started.elapsed().as_millis() as u64,
            "cut"
        );
        Ok(created)
    }

    /// Copies the members while their filesystems are frozen, by this driver or by another program.
    fn copy_at_rest(
        &self,
        members: &[Member<'_>],
        copies: &[Copy<'_>],
        lives: &[Writers],
        consistency: Consistency,
    ) -> Result<AtRest> {
        let mut freeze = Freeze::new(self, consistency);
        let cut = freeze.begin(members, lives).and_then(|()| {
            let created = Timestamp::now();
            members.iter().zip(copies).try_for_each(|(member, copy)| self.copy(member, copy, &freeze))?;
            Ok((created, freeze.moved()?))
        });
        Ok(match freeze.end(cut)? {
            ((_, Some(id)), _) => AtRest::Moved(id),
            ((created, None), frozen) => AtRest::Copied(created, frozen),
        })
    }

    /// Takes the filesystems that are to be frozen: a volume's copies share its lock, and whoever came second would
    /// take the freeze of the first for a stranger's.
    fn lock_freezes(
        &self,
        members: &[Member<'_>],
        lives: &[Writers],
        consistency: Consistency,
    ) -> Result<Option<Guard>> {
        let mounted = |(_, live): &(_, &Writers)| consistency.freeze && matches!(live, Writers::Mounted(..));
        let frozen = members.iter().zip(lives).filter(mounted);
        let keys: Vec<(Key, Mode)> =
            frozen.map(|(member, _)| (Key::Freeze(member.volume.id.clone()), Mode::Exclusive)).collect();
        match keys.is_empty() {
            true => Ok(None),
            false => self.lock_all(keys).map(Some),
        }
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
        // Whoever has attached it may write to it.
        self.see_all_devices()?;
        let uses = settled(|| presence.uses(place))?;
        uses.sound(place)?;
        presence.writers(place, &uses)
    }

    /// Puts what was written on the disk, so that little is left for the moment of the cut.
    fn flush(&self, paths: &VolumePaths, live: &Writers) -> Result<()> {
        let flushing = || format!("flush {}", paths.directory.display());
        match live {
            Writers::None | Writers::Directory(_) | Writers::Unstoppable(_) => Ok(()),
            // The freeze begins with a syncfs(2) of the filesystem.
            Writers::Mounted(..) => self.os.files.sync_file(&paths.data()).doing(flushing),
            Writers::Raw(devices) => {
                devices.iter().try_for_each(|device| self.os.loops.flush(device).doing(flushing))?;
                self.os.files.sync_file(&paths.data()).doing(flushing)
            }
        }
    }

    /// Where a filesystem is marked as frozen by this driver.
    pub(crate) fn frozen_marker(&self, name: &str) -> PathBuf {
        self.settings.data_dir.join("frozen").join(name)
    }
}

/// Refuses what would not be of one point in time.
fn refuse(members: &[Member<'_>], lives: &[Writers], consistency: Consistency) -> Result<()> {
    let moves = |live: &Writers| match live {
        Writers::None => false,
        Writers::Mounted(..) => !consistency.freeze,
        Writers::Raw(_) | Writers::Directory(_) | Writers::Unstoppable(_) => true,
    };
    let moving: Vec<(&Member<'_>, &Writers)> =
        members.iter().zip(lives).filter(|(_, live)| moves(live)).collect();
    let (first, live) = match moving.as_slice() {
        [] => return Ok(()),
        // FICLONE is a point in time by itself, and so is a snapshot of a subvolume. With others that stand still it is one
        // for all: what follows a write to this member can be in none of them.
        [(member, Writers::Raw(_) | Writers::Mounted(..) | Writers::Directory(_))]
            if member.share == Share::Whole =>
        {
            return Ok(());
        }
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
        Writers::Directory(how) | Writers::Unstoppable(how) => format!("volume {id} {how}: {way_out}"),
        _ => format!(
            "volume {id} is a raw device in use, and its copy cannot share blocks, so it would not be of one point in time: {way_out}"
        ),
    }))
}
