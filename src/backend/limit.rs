//! The size of a directory that its filesystem enforces (`kernel::Quotas`).
//!
//! The record says what the limit is to be, and the filesystem what it is: a change of it may be lost in a power cut. So it is
//! set again where it is not what the record says, at the start and before the volume is staged. What is in the directory
//! counts because the directory of the volume does, from the moment in which it is made.

use super::bytes::Limit;
use super::{Place, Shape, VolumePaths};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{Enforceable, Os, Qgroups, Quota, QuotaLimits};
use crate::model::{GRANULARITY, Volume, format_exactly, format_two, with_margin};

/// Makes the directory of a volume, which counts under the number of its limit. Nothing is ever in it without one.
pub(super) fn create(os: &Os, paths: &VolumePaths, limit: Limit) -> Result<()> {
    let creating = || format!("create {} with a limit", paths.directory.display());
    os.quotas.create_directory(&paths.directory, 0o700, limit.id, limit.limits).doing(creating)
}

/// Gives the number the limits that the record says.
pub(super) fn set(os: &Os, paths: &VolumePaths, limit: Limit) -> Result<()> {
    let setting = || format!("limit {}", paths.directory.display());
    os.quotas.set_limits(&paths.directory, limit.id, limit.limits).doing(setting)
}

/// Takes the limit of what is being removed away. The number stays its own.
pub(super) fn lift(os: &Os, paths: &VolumePaths, limit: Limit) -> Result<()> {
    let lifting = || format!("lift the limit of {}", paths.directory.display());
    match os.quotas.enforceable(&paths.parent).doing(lifting)? {
        // What is off limits nothing. Where it is switched on again, the number is passed over.
        Enforceable::Off(_) | Enforceable::Nothing(_) => Ok(()),
        _ => os.quotas.set_limits(&paths.directory, limit.id, QuotaLimits::default()).doing(lifting),
    }
}

/// What the filesystem knows of the volume.
pub(super) fn quota(place: Place<'_>, limit: Limit) -> Result<Quota> {
    let asking = || format!("ask for the quota of {}", place.volume.id);
    place.os.quotas.quota(&place.paths.directory, limit.id).doing(asking)
}

/// What counts under the number of what is being removed; `None` where there is none, or where the filesystem does not count
/// files.
pub(crate) fn counted(os: &Os, paths: &VolumePaths) -> Option<Quota> {
    let limit = paths.limit?;
    os.quotas.quota(&paths.directory, limit.id).ok().filter(|quota| quota.inodes > 0)
}

/// The bytes of what is being removed, as of the last commit, where it is a subvolume that btrfs counts; `None` elsewhere.
pub(crate) fn bytes_of_subvolume(os: &Os, paths: &VolumePaths) -> Option<u64> {
    match (paths.limit, paths.shape()) {
        (_, Shape::Blocks(_)) => None,
        (Some(limit), _) => {
            let quota = os.quotas.quota(&paths.directory, limit.id).ok()?;
            (quota.inodes == 0).then_some(quota.bytes)
        }
        (None, _) => os.quotas.subvolume(&paths.directory, false).ok()?.map(|subvolume| subvolume.bytes),
    }
}

/// Lets a copy take what it needs while two trees are in it.
pub(crate) fn widen(os: &Os, paths: &VolumePaths) -> Result<()> {
    paths.limit.map_or(Ok(()), |limit| lift(os, paths, limit))
}

/// Lets what is being removed take no more than its record says now.
pub(crate) fn narrow(os: &Os, paths: &VolumePaths) -> Result<()> {
    paths.limit.map_or(Ok(()), |limit| set(os, paths, limit))
}

/// The number is nobody's from here on; the files are gone.
pub(super) fn give_back(os: &Os, paths: &VolumePaths, limit: Limit) -> Result<()> {
    let giving = || format!("give the quota of {} back", paths.directory.display());
    match os.quotas.enforceable(&paths.parent).doing(giving)? {
        Enforceable::Off(_) | Enforceable::Nothing(_) => Ok(()), // as above
        _ => os.quotas.give_back(&paths.directory, limit.id).doing(giving),
    }
}

/// Refuses a copy that does not fit: ext4 lets a process with CAP_SYS_RESOURCE go beyond every limit.
///
/// # Errors
/// OUT_OF_RANGE with the size that would do.
pub(crate) fn expect_within(place: Place<'_>) -> Result<()> {
    let Some(limit) = place.paths.limit else { return Ok(()) };
    let taken = quota(place, limit)?;
    let most = limit.limits;
    if taken.bytes > most.bytes {
        return Err(too_small(place.volume, taken.bytes));
    }
    if taken.inodes > most.inodes {
        let (taken, most) = (taken.inodes, most.inodes);
        return Err(Error::OutOfRange(format!(
            "the data have {taken} files and directories, and the volume may have {most}; ask for a larger volume, or set inodes in the StorageClass"
        )));
    }
    Ok(())
}

/// The limit for a volume while the driver makes a tree in it and no quota applies ([`widen`]): its size [`with_margin`] for
/// the tree, since filesystems count differently, and the present usage of an earlier tree.
#[derive(Clone, Copy)]
pub(crate) struct Allowance {
    limit: Limit,
    most: QuotaLimits,
    /// The filesystem counts each write at once, so that a count costs nothing.
    pub(crate) is_cheap: bool,
}

impl Allowance {
    /// Returns the allowance for a tree, and the rest of it; `None` if the size of the volume is not enforced.
    ///
    /// # Errors
    /// OUT_OF_RANGE if nothing is left.
    pub(crate) fn begin(place: Place<'_>, has_earlier: bool) -> Result<Option<(Self, QuotaLimits)>> {
        let Some(limit) = place.paths.limit else { return Ok(None) };
        let Some(counting) = counting(place)? else { return Ok(None) };
        let taken = counted_exactly(place, limit)?;
        let one = with_margin_of(limit.limits);
        // The earlier tree may not be counted yet.
        let unknown = counting == Enforceable::Bytes(Qgroups::Inconsistent);
        let with_earlier = |one: u64, taken: u64| match (has_earlier, unknown) {
            (false, _) => one,
            (true, false) => one.saturating_add(taken.min(one)),
            (true, true) => one.saturating_mul(2),
        };
        let (bytes, inodes) = (with_earlier(one.bytes, taken.bytes), with_earlier(one.inodes, taken.inodes));
        let is_cheap = counting == Enforceable::BytesAndInodes;
        let allowance = Allowance { limit, most: QuotaLimits { bytes, inodes }, is_cheap };
        allowance.left(place, taken).map(|left| Some((allowance, left)))
    }

    /// Counts the volume, and returns the rest of the allowance.
    ///
    /// # Errors
    /// OUT_OF_RANGE if the volume takes more.
    pub(crate) fn expect_left(self, place: Place<'_>) -> Result<QuotaLimits> {
        match counting(place)? {
            Some(_) => self.left(place, counted_exactly(place, self.limit)?),
            None => Ok(self.most),
        }
    }

    fn left(self, place: Place<'_>, taken: Quota) -> Result<QuotaLimits> {
        let QuotaLimits { bytes, inodes } = self.most;
        match (bytes.checked_sub(taken.bytes), inodes.checked_sub(taken.inodes)) {
            // btrfs does not count them.
            (Some(bytes), Some(_)) if taken.inodes == 0 => Ok(QuotaLimits { bytes, inodes: u64::MAX }),
            (Some(bytes), Some(inodes)) => Ok(QuotaLimits { bytes, inodes }),
            _ => Err(too_large(place.volume, taken)),
        }
    }
}

/// Checks that all trees in a volume together take its size and [`with_margin`] at most.
///
/// # Errors
/// OUT_OF_RANGE if they take more.
pub(crate) fn expect_all_within(place: Place<'_>) -> Result<()> {
    let Some(limit) = place.paths.limit else { return Ok(()) };
    if counting(place)?.is_none() {
        return Ok(());
    }
    let allowance = Allowance { limit, most: with_margin_of(limit.limits), is_cheap: false };
    allowance.left(place, counted_exactly(place, limit)?).map(drop)
}

fn with_margin_of(QuotaLimits { bytes, inodes }: QuotaLimits) -> QuotaLimits {
    QuotaLimits { bytes: with_margin(bytes), inodes: with_margin(inodes) }
}

/// Returns what the filesystem of a volume enforces; `None` if it enforces nothing.
fn counting(place: Place<'_>) -> Result<Option<Enforceable>> {
    let asking = || format!("ask for the limit of {}", place.volume.id);
    Ok(match place.os.quotas.enforceable(&place.paths.parent).doing(asking)? {
        Enforceable::Off(_) | Enforceable::Nothing(_) => None, // as in `lift`
        counting => Some(counting),
    })
}

/// Returns the usage of the volume, with all writes so far.
fn counted_exactly(place: Place<'_>, limit: Limit) -> Result<Quota> {
    let counting = || format!("count what {} takes", place.volume.id);
    place.os.quotas.count_written(&place.paths.directory).doing(counting)?;
    quota(place, limit)
}

/// Returns the error for a source whose data take more than its copy may.
fn too_large(volume: &Volume, taken: Quota) -> Error {
    let [bytes, size] = format_two(taken.bytes, volume.capacity_bytes);
    let files = match taken.inodes {
        0 => String::new(), // btrfs does not count them
        files => format!(" in {files} files and directories"),
    };
    Error::OutOfRange(format!(
        "the data of the source take {bytes}{files} so far, and copy {} has {size} for them; expand the volume, or delete data \
         in the source",
        volume.id
    ))
}

/// What is said of data that take more than the volume has.
pub(crate) fn too_small(volume: &Volume, bytes: u64) -> Error {
    let least = format_exactly(bytes.next_multiple_of(GRANULARITY));
    let [bytes, size] = format_two(bytes, volume.capacity_bytes);
    Error::OutOfRange(format!("the data take {bytes}, and the volume has {size}; ask for at least {least}"))
}

/// Makes the limit what the record says, where the filesystem has lost it. A larger one is that of an expansion which was
/// cut off, or of a newer record than this one: its bytes are given, and the record follows.
///
/// # Errors
/// FAILED_PRECONDITION where the filesystem does not enforce it any more.
pub(super) fn recover(place: Place<'_>, limit: Limit) -> Result<Option<u64>> {
    expect_enforced(place, limit)?;
    recount(place)?;
    let (now, wanted) = (quota(place, limit)?.limits, limit.limits);
    if now.bytes > wanted.bytes && now.bytes.is_multiple_of(GRANULARITY) {
        return Ok(Some(now.bytes));
    }
    restore(place, limit, now).map(|()| None)
}

/// [`recover`] of a volume that is about to be used: its limit is exactly what its record says.
pub(super) fn ensure(place: Place<'_>, limit: Limit) -> Result<()> {
    expect_enforced(place, limit)?;
    recount(place)?;
    restore(place, limit, quota(place, limit)?.limits)
}

/// Has btrfs count anew where its counts are not to be relied on. The volume is used meanwhile, and its health tells of it.
fn recount(place: Place<'_>) -> Result<()> {
    let parent = &place.paths.parent;
    place.os.quotas.recount(parent).doing(|| format!("count anew what is in {}", parent.display()))
}

fn restore(place: Place<'_>, limit: Limit, now: QuotaLimits) -> Result<()> {
    if is_as_recorded(now, limit) {
        return Ok(());
    }
    let [size, wanted] = format_two(now.bytes, limit.limits.bytes);
    let (inodes, wanted_inodes) = (now.inodes, limit.limits.inodes);
    tracing::warn!(volume.id = %place.volume.id, size, wanted, inodes, wanted_inodes, "the limit was not what the record says; it is set again");
    set(place.os, place.paths, limit)
}

/// Whether these limits are what the record says; a filesystem that does not limit inodes says none of them.
fn is_as_recorded(now: QuotaLimits, limit: Limit) -> bool {
    now.bytes == limit.limits.bytes && (now.inodes == 0 || now.inodes == limit.limits.inodes)
}

/// Makes sure that the filesystem enforces limits, and that the volume counts.
///
/// # Errors
/// FAILED_PRECONDITION with what to do.
pub(super) fn expect_enforced(place: Place<'_>, limit: Limit) -> Result<()> {
    match not_enforced(place, limit)? {
        Some(why) => {
            Err(Error::InUse(format!("the size of volume {} is not enforced: {why}", place.volume.id)))
        }
        None => Ok(()),
    }
}

/// Why nothing enforces the limit.
pub(super) fn not_enforced(place: Place<'_>, limit: Limit) -> Result<Option<String>> {
    let (os, paths) = (place.os, place.paths);
    let asking = || format!("ask for the quotas of {}", paths.parent.display());
    if let Enforceable::Off(why) | Enforceable::Nothing(why) =
        os.quotas.enforceable(&paths.parent).doing(asking)?
    {
        return Ok(Some(format!("{}: {why}", paths.parent.display())));
    }
    for directory in [&paths.directory, &paths.data()] {
        let looking = || format!("look at {}", directory.display());
        if !os.quotas.counts(&paths.directory, directory, limit.id).doing(looking)? {
            return Ok(Some(format!(
                "{} does not count under the limit of the volume (number {}) any more; copy its data into a new volume",
                directory.display(),
                limit.id
            )));
        }
    }
    Ok(None)
}

/// What of the volume is not limited although it counts: subvolumes in it, and whatever is written while btrfs counts anew.
pub(super) fn escapes(place: Place<'_>) -> Result<Option<String>> {
    let (quotas, paths) = (&place.os.quotas, place.paths);
    let asking = || format!("ask for the quotas of {}", paths.directory.display());
    if quotas.enforceable(&paths.parent).doing(asking)? == Enforceable::Bytes(Qgroups::Inconsistent) {
        return Ok(Some("btrfs has to count its qgroups anew, and limits nothing until it has; wait for it (btrfs quota rescan --status), or restart the driver, which has it begin".to_owned()));
    }
    let has_others = quotas.subvolume(&paths.directory, false).doing(asking)?.is_some_and(|it| it.has_others);
    Ok(has_others.then(|| {
        format!(
            "{} has subvolumes in it, which its limit does not count; remove them (btrfs subvolume list -o)",
            paths.directory.display()
        )
    }))
}

/// What is wrong with the limits that the filesystem has, where it enforces them.
pub(super) fn differs(place: Place<'_>, limit: Limit) -> Result<Option<String>> {
    if place.volume.copy_of.is_some() {
        return Ok(None); // nobody uses it, and a round lifts it
    }
    let now = quota(place, limit)?.limits;
    Ok((!is_as_recorded(now, limit)).then(|| {
        let [now, wanted] = format_two(now.bytes, limit.limits.bytes);
        format!("its limit is {now}, and the volume has {wanted}: restart the driver, which sets it again")
    }))
}

/// Gives the limit so many bytes, and the inodes that go with them; the number of bytes that it had.
///
/// # Errors
/// FAILED_PRECONDITION where nothing enforces it.
pub(super) fn grow(place: Place<'_>, limit: Limit, bytes: u64) -> Result<u64> {
    expect_enforced(place, limit)?;
    let before = quota(place, limit)?.limits.bytes;
    let inodes = Volume { capacity_bytes: bytes, ..place.volume.clone() }.inode_limit();
    let limits = QuotaLimits { bytes, inodes };
    set(place.os, place.paths, Limit { limits, ..limit }).map(|()| before)
}
