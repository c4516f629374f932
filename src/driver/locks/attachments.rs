//! Counting attachments of a node one at a time, so that two publishes cannot both take its last place.

use std::sync::MutexGuard;

use crate::driver::Driver;
use crate::driver::locks::guarded::Guarded;

/// Held from the count to the record.
#[derive(Default)]
pub(crate) struct Admission(Guarded<()>);

impl Admission {
    /// Waits only where a limit is set, and then for one write of the state file.
    pub(crate) fn enter(&self, limit: u32) -> Option<MutexGuard<'_, ()>> {
        (limit > 0).then(|| self.0.lock())
    }
}

impl Driver {
    /// How many volumes are published to the node.
    pub(crate) fn attached_to(&self, node_id: &str) -> usize {
        let volumes = self.store.volumes();
        // What a move has left has the attachments of its volume, and no caller ends these.
        let volumes = volumes.iter().filter(|volume| volume.retired.is_none());
        volumes.filter(|volume| volume.attachments.iter().any(|a| a.node_id == node_id)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attachments_with_a_limit_are_counted_in_turn() {
        let admission = Admission::default();
        assert!(admission.enter(0).is_none(), "nobody waits");
        assert!(admission.enter(1).is_some() && admission.enter(u32::MAX).is_some());
    }
}
