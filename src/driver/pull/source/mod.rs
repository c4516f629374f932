//! What other nodes read here: snapshots, and cuts of volumes that are made for them (docs/decisions/0009).

mod close_source;
mod open_source;
mod pull_blocks;
mod pull_changes;
mod pull_tree;
mod tops;

pub(crate) use tops::Mounted;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::driver::locks::Guard;
use crate::driver::locks::guarded::Guarded;
use crate::driver::locks::turns::Urgency;
use crate::error::{Error, Result};
use crate::model::pull::{SourceDescription, SourceHandle};
use crate::model::{NodeKey, Snapshot, SnapshotId, Timestamp, Volume, VolumeId};

/// What is remembered of the cuts as long as the process lives.
#[derive(Default)]
pub(crate) struct Cuts(Guarded<HashMap<SnapshotId, Remembered>>);

struct Remembered {
    last_read: Instant,
    /// The beginning that it was made for.
    began: Option<Timestamp>,
}

impl Cuts {
    /// It is made now, for this beginning.
    pub(crate) fn begin(&self, id: &SnapshotId, began: Timestamp) {
        self.0.lock().insert(id.clone(), Remembered { last_read: Instant::now(), began: Some(began) });
    }

    /// It is read now.
    pub(crate) fn touch(&self, id: &SnapshotId) {
        self.remembered(&mut self.0.lock(), id).last_read = Instant::now();
    }

    /// Whether it has what the volume held at this beginning, or later.
    pub(crate) fn is_of(&self, id: &SnapshotId, began: Timestamp) -> bool {
        self.remembered(&mut self.0.lock(), id).began == Some(began)
    }

    pub(crate) fn forget(&self, id: &SnapshotId) {
        self.0.lock().remove(id);
    }

    /// How long nobody has read it.
    fn idle(&self, id: &SnapshotId) -> Duration {
        self.remembered(&mut self.0.lock(), id).last_read.elapsed()
    }

    /// Of a cut that an earlier process made, nothing is known but that it is there.
    fn remembered<'a>(
        &self,
        all: &'a mut HashMap<SnapshotId, Remembered>,
        id: &SnapshotId,
    ) -> &'a mut Remembered {
        all.entry(id.clone()).or_insert_with(|| Remembered { last_read: Instant::now(), began: None })
    }
}

/// A cut that a copy has the data of stays for so long when nobody reads it: its node may be down for a night. The copy has
/// to be made anew after that.
const KEPT_FOR: Duration = Duration::from_secs(24 * 60 * 60);

/// The number of further cuts in a minute for one node,
const PER_NODE: usize = 30;
/// and for all of them together: each may freeze a filesystem and take room.
const IN_ALL: usize = 120;
const MINUTE: Duration = Duration::from_secs(60);
/// A permit is valid for a quarter of an hour, by clocks that may differ.
const PERMIT_IS_OVER: Duration = Duration::from_secs(60 * 60);

/// An order of a controller, as its permit says: the volume, its copy, and the last second of the permit.
pub(crate) type Order = (VolumeId, VolumeId, u64);

/// The cuts that were made for other nodes. A controller orders one with each permit, as often as the volumes of the cluster need
/// it. A node may use a permit again until it ends: these further cuts are limited.
#[derive(Default)]
pub(crate) struct RecentCuts(Guarded<Recent>);

#[derive(Default)]
struct Recent {
    /// The orders that a cut was made for.
    orders: HashMap<Order, Instant>,
    /// The further cuts of the last minute, with the key of the node.
    further: Vec<(String, Instant)>,
}

impl RecentCuts {
    /// Permits one more cut for this node. `order` is `None` if no controller has ordered it.
    ///
    /// # Errors
    /// RESOURCE_EXHAUSTED if there were too many; the node tries again.
    pub(crate) fn admit(&self, node_key: &str, order: Option<Order>, now: Instant) -> Result<()> {
        let mut recent = self.0.lock();
        let Recent { orders, further: recent } = &mut *recent;
        orders.retain(|_, at| now.saturating_duration_since(*at) < PERMIT_IS_OVER);
        if let Some(order) = order
            && orders.insert(order, now).is_none()
        {
            return Ok(());
        }
        recent.retain(|(_, at)| now.saturating_duration_since(*at) < MINUTE);
        let of_node = recent.iter().filter(|(key, _)| key == node_key).count();
        if of_node >= PER_NODE || recent.len() >= IN_ALL {
            return Err(Error::Exhausted(format!(
                "{of_node} further cuts were made for that node and {} in all within a minute, and {PER_NODE} and {IN_ALL} are the limits; try again",
                recent.len()
            )));
        }
        recent.push((node_key.to_owned(), now));
        Ok(())
    }
}

/// A caller who hears nothing for a minute takes the connection for broken.
const HEARD_EVERY: Duration = Duration::from_secs(5);

/// When the caller of a stream has heard something.
struct Heard(Instant);

impl Heard {
    fn now() -> Self {
        Heard(Instant::now())
    }

    /// He is to hear something by now, even if there is nothing to tell.
    fn is_late(&self) -> bool {
        self.0.elapsed() >= HEARD_EVERY
    }
}

/// Makes sure that one can be compared with the other.
fn expect_two_cuts(base: &Snapshot, later: &Snapshot) -> Result<()> {
    match base.source == later.source && base.id != later.id {
        true => Ok(()),
        false => Err(Error::Invalid(format!("{} and {} are not two cuts of one volume", base.id, later.id))),
    }
}

impl Driver {
    /// Takes what was opened for reading.
    ///
    /// # Errors
    /// NOT_FOUND where it is gone or another one has its id; ABORTED while it is being removed.
    pub(crate) fn opened(&self, handle: &SourceHandle) -> Result<(Guard, Arc<Snapshot>)> {
        let guard = self.share(&handle.id)?;
        let readable = |snapshot: &Arc<Snapshot>| {
            let cut = snapshot.pulled_for.is_some() && snapshot.is_ready();
            snapshot.created == handle.created && (cut || self.is_visible(snapshot))
        };
        let snapshot = self.store.snapshot(&handle.id).filter(readable);
        let gone = || Error::NotFound(format!("source {} is gone; open it again", handle.id));
        let snapshot = snapshot.ok_or_else(gone)?;
        self.cuts.touch(&snapshot.id);
        Ok((guard, snapshot))
    }

    /// Returns how urgent it is to read a cut: its pass is a last one if its volume is sealed.
    pub(crate) fn urgency_of(&self, cut: &Snapshot) -> Urgency {
        match (&cut.pulled_for, self.store.get(&cut.source)) {
            (Some(copy), Some(volume)) => urgency(&volume, copy),
            _ => Urgency::Usual,
        }
    }

    /// What a node that opens it is told.
    pub(crate) fn describe_source(&self, snapshot: &Snapshot) -> Result<SourceDescription> {
        let paths = self.snapshot_paths(snapshot)?;
        let data = paths.bytes();
        let what = format_args!("snapshot {}", snapshot.id);
        data.expect_whole(&self.os, &paths, snapshot.size_bytes, &what)?;
        Ok(SourceDescription {
            handle: SourceHandle { id: snapshot.id.clone(), created: snapshot.created },
            content: snapshot.content.clone(),
            size_bytes: snapshot.size_bytes,
            requested_bytes: snapshot.requested_bytes,
            block_size: snapshot.block_size,
            data_bytes: data.to_copy(&self.os, &paths)?,
            sealed: snapshot.sealed,
            generation: snapshot.generation,
            volume_created: self.store.get(&snapshot.source).and_then(|volume| volume.created),
            moving: None,
        })
    }

    /// Removes the cuts of volumes from which nobody has read for so long: the node that they were made for is gone, or
    /// has given up and could not say so. Those that stay for a copy have a day. To be called now and then. Returns how many
    /// were removed.
    pub fn remove_idle_sources(&self, limit: Duration) -> usize {
        let cuts = self.store.snapshots().into_iter().filter(|snapshot| snapshot.pulled_for.is_some());
        let limit = |cut: &Snapshot| if cut.kept { limit.max(KEPT_FOR) } else { limit };
        let idle: Vec<Arc<Snapshot>> = cuts.filter(|cut| self.cuts.idle(&cut.id) >= limit(cut)).collect();
        idle.iter().filter(|cut| self.remove_idle_source(cut)).count()
    }

    fn remove_idle_source(&self, cut: &Snapshot) -> bool {
        match self.close_source(&cut.id) {
            Ok(()) => {
                tracing::warn!(source = %cut.id, volume = %cut.source, "removed a cut that no node reads any more");
                true
            }
            Err(Error::Busy(_)) => false,
            Err(error) => {
                tracing::error!(source = %cut.id, %error, "a cut that no node reads any more could not be removed");
                false
            }
        }
    }
}

/// Returns how urgent a pass over this volume for its copy is. Whoever asks for the pass has no say in it.
fn urgency(volume: &Volume, copy: &VolumeId) -> Urgency {
    let moves_there = |node_id: &String| NodeKey::of(node_id).as_str() == copy.node_key();
    match volume.moved_to.as_ref().is_some_and(moves_there) {
        true => Urgency::LastPass,
        false => Urgency::Usual,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_is_remembered_with_its_time_and_use() {
        let (cuts, id) = (Cuts::default(), SnapshotId::of_name(&NodeKey::of("n"), "cut"));
        let began = Timestamp::from_nanos(1);
        assert!(!cuts.is_of(&id, began), "an earlier process made it");
        cuts.begin(&id, began);
        assert!(cuts.is_of(&id, began) && !cuts.is_of(&id, Timestamp::from_nanos(2)));
        std::thread::sleep(Duration::from_millis(50));
        assert!(cuts.idle(&id) >= Duration::from_millis(50));
        let before = Instant::now();
        cuts.touch(&id);
        assert!(cuts.idle(&id) <= before.elapsed());
        assert!(cuts.is_of(&id, began), "it is read, and not made anew");
        cuts.forget(&id);
        assert!(!cuts.is_of(&id, began));
    }

    #[test]
    fn a_caller_who_hears_nothing_is_told_in_time() {
        assert!(!Heard::now().is_late());
        let ago = |time| Heard(Instant::now().checked_sub(time).expect("the machine runs for longer"));
        assert!(!ago(HEARD_EVERY / 2).is_late(), "a message for each look");
        assert!(ago(HEARD_EVERY).is_late());
    }

    #[test]
    fn further_cuts_are_limited_for_nodes_and_in_all() {
        let (cuts, now) = (RecentCuts::default(), Instant::now());
        let admit = |node: &str, now| cuts.admit(node, None, now);
        for n in 0..PER_NODE {
            admit("a", now).unwrap_or_else(|error| unreachable!("{n}: {error}"));
        }
        assert!(matches!(admit("a", now), Err(Error::Exhausted(_))));
        for n in 0..IN_ALL - PER_NODE {
            assert!(admit(&format!("b-{n}"), now).is_ok(), "{n}");
        }
        assert!(matches!(admit("c", now), Err(Error::Exhausted(_))), "also with names that were made up");
        assert!(admit("a", now + MINUTE).is_ok());
    }

    /// A minute of standby copies of 200 volumes.
    #[test]
    fn cuts_that_a_controller_orders_are_not_limited() {
        let (cuts, now) = (RecentCuts::default(), Instant::now());
        let volume = |n: u64| VolumeId::of_name(&NodeKey::of("n"), &n.to_string());
        let order = |n| Some((volume(n), volume(1000 + n), 5));
        for n in 0..200 {
            assert!(cuts.admit("a", order(n), now).is_ok(), "{n}");
        }
        let again = (0..200).filter(|n| cuts.admit("a", order(*n), now).is_ok());
        assert_eq!(again.count(), PER_NODE, "a node uses its permits again");
        let later = Some((volume(0), volume(1000), 6));
        assert!(cuts.admit("a", later, now).is_ok(), "the next order");
        let long_after = now + PERMIT_IS_OVER;
        assert!(cuts.admit("a", order(0), long_after).is_ok());
        assert_eq!(cuts.0.lock().orders.len(), 1, "nothing is remembered for ever");
    }
}
