//! Names that a controller is about to have made into volumes here (docs/decisions/0008).
//!
//! A reservation is an agreement between controllers and is not stored: it ends with its time and with the process. Two
//! volumes of one name are impossible because a volume is made only while the very reservation lives with which its
//! controller has asked the other nodes.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::driver::Driver;
use crate::driver::locks::guarded::Guarded;
use crate::error::{Busy, Error, OsContext, Result};
use crate::model::answer::{Found, Location, Reserved};
use crate::model::{
    FoundSnapshot, GroupSnapshot, Handover, MovingId, Phase, Side, Snapshot, Timestamp, Volume, VolumeId,
};

/// A controller that lives asks the other nodes in two seconds, and connects to each in two.
const LIFE: Duration = Duration::from_secs(30);

/// The reservations of a node.
#[derive(Debug)]
pub(crate) struct Reservations {
    /// Tells this process' tokens from those of the one before.
    epoch: u64,
    all: Guarded<All>,
}

#[derive(Debug, Default)]
struct All {
    by_volume: HashMap<VolumeId, Reservation>,
    last: u64,
}

#[derive(Debug)]
struct Reservation {
    token: String,
    until: Instant,
}

impl Default for Reservations {
    fn default() -> Self {
        Reservations { epoch: Timestamp::now().as_nanos(), all: Guarded::default() }
    }
}

impl Reservations {
    /// Reserves, or renews the reservation that is there: it is the same word, whoever says it.
    pub(crate) fn reserve(&self, id: &VolumeId) -> String {
        let now = Instant::now();
        let mut all = self.all.lock();
        all.by_volume.retain(|_, reservation| reservation.until > now);
        all.last += 1;
        let new = || Reservation { token: String::new(), until: now };
        let token = format!("{:x}-{:x}", self.epoch, all.last);
        let reservation = all.by_volume.entry(id.clone()).or_insert_with(new);
        if reservation.token.is_empty() {
            reservation.token = token;
        }
        reservation.until = now + LIFE;
        reservation.token.clone()
    }

    pub(crate) fn is_reserved(&self, id: &VolumeId) -> bool {
        self.all.lock().by_volume.get(id).is_some_and(|reservation| reservation.until > Instant::now())
    }

    pub(crate) fn release(&self, id: &VolumeId) {
        self.all.lock().by_volume.remove(id);
    }

    /// Ends it for the volume that is made now. `false` where this one is over.
    pub(crate) fn redeem(&self, id: &VolumeId, token: &str) -> bool {
        let mut all = self.all.lock();
        let live = |r: &Reservation| r.token == token && r.until > Instant::now();
        let lives = all.by_volume.get(id).is_some_and(live);
        if lives {
            all.by_volume.remove(id);
        }
        lives
    }
}

impl Driver {
    /// Finds out whether this node has a volume, is about to have it, or neither, whether its data are there, and where the volume
    /// is if it has moved away. The name of a volume that has moved away stays in use.
    ///
    /// # Errors
    /// UNAVAILABLE if its record may be lost, because the state file is damaged: "nothing" and "deleted" have others delete its data.
    pub fn find_volume(&self, id: &VolumeId) -> Result<Location> {
        self.expect_certain(id.as_str())?;
        match self.may_be_lost(id.as_str()) {
            true => Err(self.uncertain(id.as_str())),
            false => Ok(self.location(id)),
        }
    }

    /// Finds out whether this node has a snapshot or a group snapshot. Text that is not an id names nothing.
    ///
    /// # Errors
    /// UNAVAILABLE if its record may be lost, because the state file is damaged, or if its data are missing.
    pub fn find_snapshot(&self, id: &str) -> Result<FoundSnapshot> {
        self.expect_certain(id)?;
        let Ok(moving) = id.parse::<MovingId>() else { return Ok(FoundSnapshot::default()) };
        let there = match &moving {
            MovingId::Snapshot(id) => self.store.snapshot(id).map(|snapshot| self.found(&snapshot)),
            MovingId::Group(id) => self.store.group(id).map(|group| self.found_group(&group)),
        };
        let released = || FoundSnapshot { moved_to: self.released_to(&moving), ..FoundSnapshot::default() };
        let found = there.unwrap_or_else(|| Ok(released()))?;
        match found.found || !self.may_be_lost(id) {
            true => Ok(found),
            false => Err(self.uncertain(id)),
        }
    }

    /// Returns a snapshot with this CSI name that is no member of a group, and no cut.
    pub(crate) fn snapshot_named(
        &self,
        name: &str,
        is_wanted: impl Fn(&Snapshot) -> bool,
    ) -> Option<Arc<Snapshot>> {
        let is_named = |snapshot: &Snapshot| {
            snapshot.name == name && snapshot.group.is_none() && snapshot.pulled_for.is_none()
        };
        self.store.snapshots().into_iter().find(|snapshot| is_named(snapshot) && is_wanted(snapshot))
    }

    fn found(&self, snapshot: &Snapshot) -> Result<FoundSnapshot> {
        let handover = self.handover_of(snapshot);
        // A member is there if the whole group is.
        let incomplete = is_taken(handover.as_ref()) && !self.is_visible(snapshot);
        Ok(FoundSnapshot { found: self.has_data(snapshot)?, incomplete, handover, moved_to: None })
    }

    fn found_group(&self, group: &GroupSnapshot) -> Result<FoundSnapshot> {
        let incomplete = is_taken(group.handover.as_ref()) && group.phase != Phase::Ready;
        for member in self.members_of(&group.id) {
            self.has_data(&member)?;
        }
        Ok(FoundSnapshot { found: true, incomplete, handover: group.handover.clone(), moved_to: None })
    }

    /// Reports whether the data of a snapshot are here; what is being made or deleted counts as such. The record may outlive the disk.
    ///
    /// # Errors
    /// UNAVAILABLE if they are not where the record says: the disk may be another node's now, or not mounted.
    fn has_data(&self, snapshot: &Snapshot) -> Result<bool> {
        if !snapshot.is_ready() {
            return Ok(true);
        }
        let data = self.snapshot_paths(snapshot)?.data();
        match self.os.files.stat(&data).doing(|| format!("look at {}", data.display()))? {
            Some(_) => Ok(true),
            None => Err(Error::Unavailable(format!(
                "{}, which has the data of snapshot {}, is missing",
                data.display(),
                snapshot.id
            ))),
        }
    }

    fn location(&self, id: &VolumeId) -> Location {
        // In this order: a reservation ends after the lock is taken, and the lock after the record is there.
        let reserved = self.reservations.is_reserved(id);
        let found = match () {
            () if self.is_held(id) => Found::Held,
            () if reserved => Found::Reserved,
            () => Found::Nothing,
        };
        match self.store.get(id) {
            Some(volume) => {
                let deleted = volume.phase == Phase::Deleting;
                let unusable = self.unusable(&volume);
                let (generation, unsealed) = (Some(volume.generation), volume.unsealed);
                let (pool, adopted_from) = (Some(volume.pool().clone()), volume.adopted_from.clone());
                let moved_to = None;
                Location { found, generation, moved_to, deleted, unsealed, unusable, pool, adopted_from }
            }
            None => {
                let moved = self.store.moved(id);
                // A disk that was replaced has no cut either, and no record of a deletion.
                let is_deleted = || self.store.has_cut(id) || self.store.is_deleted(id);
                let deleted = moved.as_ref().map_or_else(is_deleted, |moved| moved.deleted);
                let moved_to = moved.filter(|moved| !moved.deleted).map(|moved| moved.node_id.clone());
                let (generation, unusable, pool, adopted_from) = (None, None, None, Vec::new());
                Location { found, generation, moved_to, deleted, unsealed: 0, unusable, pool, adopted_from }
            }
        }
    }

    /// Returns why the data of a volume cannot be used: the record may outlive the disk of its pool.
    pub(crate) fn unusable(&self, volume: &Volume) -> Option<String> {
        let paths = match self.paths(volume) {
            Ok(paths) => paths,
            Err(error) => return Some(error.to_string()),
        };
        let data = paths.data();
        match self.os.files.stat(&data) {
            Ok(Some(_)) => None,
            Ok(None) => {
                Some(format!("{}, which has the data of volume {}, is missing", data.display(), volume.id))
            }
            Err(error) => Some(format!("look at {}: {error}", data.display())),
        }
    }

    /// Reserves the name of a volume that is to be made here.
    ///
    /// # Errors
    /// NOT_FOUND for a volume of another node.
    pub fn reserve_name(&self, id: &VolumeId) -> Result<Reserved> {
        if id.is_inline() || id.node_key() != self.node_key.as_str() {
            return Err(Error::NotFound(format!(
                "volume {id} cannot be on node {:?}",
                self.settings.node_id
            )));
        }
        if self.is_held(id) {
            return Ok(Reserved::Held);
        }
        let token = self.reservations.reserve(id);
        // Perhaps it was made in between.
        Ok(if self.is_held(id) { Reserved::Held } else { Reserved::Token(token) })
    }

    /// Takes a reservation back; fine where there is none. What is made by it is refused from here on.
    pub fn release_name(&self, id: &VolumeId) -> Location {
        self.reservations.release(id);
        self.location(id)
    }

    /// Reports whether the id is in use: by a volume, by one that has moved away, or by a running operation.
    fn is_held(&self, id: &VolumeId) -> bool {
        // First: a volume that is finished in between is there.
        self.locks.is_taken(&id.into())
            || self.store.get(id).is_some_and(|v| v.phase != Phase::Creating)
            || self.store.moved(id).is_some()
    }

    /// Takes the reservation with which a volume is made; the caller holds its lock.
    ///
    /// # Errors
    /// ABORTED where it is over: its controller does not know any more what the other nodes have.
    pub(crate) fn redeem(&self, id: &VolumeId, token: &str) -> Result<()> {
        match self.reservations.redeem(id, token) {
            true => Ok(()),
            false => {
                let why = "by another controller, or its reservation is over";
                Err(Busy::on(id).because(why).into())
            }
        }
    }
}

fn is_taken(handover: Option<&Handover>) -> bool {
    handover.is_some_and(|handover| handover.side == Side::Taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeKey;

    fn id() -> VolumeId {
        VolumeId::of_name(&NodeKey::of("a"), "v")
    }

    #[test]
    fn a_token_is_good_once_while_its_reservation_lives() {
        let reservations = Reservations::default();
        assert!(!reservations.is_reserved(&id()) && !reservations.redeem(&id(), ""));
        let token = reservations.reserve(&id());
        assert_eq!(reservations.reserve(&id()), token, "whoever comes second shares it");
        assert!(reservations.is_reserved(&id()) && !reservations.redeem(&id(), "other"));
        assert!(reservations.redeem(&id(), &token));
        assert!(!reservations.redeem(&id(), &token) && !reservations.is_reserved(&id()));
        let next = reservations.reserve(&id());
        assert_ne!(next, token);
        reservations.release(&id());
        assert!(!reservations.redeem(&id(), &next));
        assert_ne!(reservations.reserve(&id()), next);
    }

    #[test]
    fn an_abandoned_reservation_ends() {
        let reservations = Reservations::default();
        let token = reservations.reserve(&id());
        if let Some(reservation) = reservations.all.lock().by_volume.get_mut(&id()) {
            reservation.until = Instant::now();
        }
        assert!(!reservations.is_reserved(&id()) && !reservations.redeem(&id(), &token));
        let next = reservations.reserve(&id());
        assert!(next != token && reservations.redeem(&id(), &next));
    }
}
