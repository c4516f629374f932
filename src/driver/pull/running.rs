//! The pulls that run, and those that wait for their turn.

use std::collections::HashMap;
use std::sync::Arc;

use super::{Remote, RemoteSource};
use crate::driver::locks::guarded::Guarded;
use crate::model::pull::Way;
use crate::model::{Timestamp, VolumeId, VolumeSource};

/// The sources of the pulls that run, by the volume that is made: a retry of a call finds its pull here, and shows it
/// the present way to the source. And when those began whose source is not open yet.
#[derive(Default)]
pub(in crate::driver) struct Running {
    pulls: Guarded<Pulls>,
    beginnings: Guarded<HashMap<VolumeId, Timestamp>>,
    /// The latest ways to the members of groups whose turn comes later.
    waiting: Guarded<HashMap<VolumeId, Way>>,
}

/// By the volume that is made: what it is made from, and the way to that.
type Pulls = HashMap<VolumeId, (VolumeSource, Arc<dyn RemoteSource>)>;

impl Running {
    /// Replaces the way to this source, if the volume is made from it, or waits for its turn.
    pub(in crate::driver) fn show(&self, volume: &VolumeId, source: &VolumeSource, way: &Way) {
        if let Some(known) = self.waiting.lock().get_mut(volume)
            && known.node_key == way.node_key
        {
            *known = way.clone();
        }
        // Showing it may block: the lock of the map is released first.
        let pulled = self.pulls.lock().get(volume).cloned();
        if let Some((_, opened)) = pulled.filter(|(pulled, _)| pulled == source) {
            opened.show(way);
        }
    }

    /// The pull for this volume is begun later: the others of its call come first.
    pub(in crate::driver) fn wait(&self, volume: VolumeId, way: &Way) {
        self.waiting.lock().insert(volume, way.clone());
    }

    /// Returns the latest way to what waits, whose turn it is.
    pub(in crate::driver) fn turn(&self, volume: &VolumeId) -> Option<Way> {
        self.waiting.lock().remove(volume)
    }

    /// When the pull for this volume began: now, unless an earlier call has had no answer from the node of the source.
    /// That may have made the cut in the meantime, or be at it still.
    pub(in crate::driver) fn began(&self, volume: &VolumeId) -> Timestamp {
        *self.beginnings.lock().entry(volume.clone()).or_insert_with(Timestamp::now)
    }

    /// The next pull for this volume is another one: this one has its source, or is no longer wanted.
    pub(in crate::driver) fn forget(&self, volume: &VolumeId) {
        self.beginnings.lock().remove(volume);
    }

    /// Ends the pull for this volume, if one runs. For callers that complete or delete the volume and find
    /// its lock taken.
    pub(in crate::driver) fn stop(&self, volume: &VolumeId) {
        let pulled = self.pulls.lock().get(volume).cloned();
        if let Some((source, opened)) = pulled {
            tracing::info!(volume.id = %volume, %source, "the pull is ended: the volume is to be completed or deleted");
            opened.end();
        }
    }

    pub(super) fn begin(&self, volume: &VolumeId, remote: &Remote) {
        self.pulls.lock().insert(volume.clone(), (remote.source.clone(), Arc::clone(&remote.opened)));
    }

    pub(super) fn end(&self, volume: &VolumeId) {
        self.pulls.lock().remove(volume);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeKey;

    #[test]
    fn a_pull_has_one_beginning_until_it_has_its_source() {
        let [one, other] = ["one", "other"].map(|name| VolumeId::of_name(&NodeKey::of("n"), name));
        let running = Running::default();
        let began = running.began(&one);
        let later = running.began(&other);
        assert_ne!(later, began);
        assert_eq!(running.began(&one), began, "a retry");
        running.forget(&one);
        assert_ne!(running.began(&one), began, "another pull");
        assert_eq!(running.began(&other), later);
    }
}
