//! What the last look at the volumes has found.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver::locks::guarded::Guarded;
use crate::model::VolumeId;
use crate::model::health::{Severity, Trouble};

/// What is known of the volumes that are not as they should be.
#[derive(Default)]
pub(crate) struct Known {
    pub(super) troubles: Guarded<HashMap<VolumeId, Arc<[Trouble]>>>,
    pub(super) examining: AtomicBool,
}

/// An examination that runs; also a panic ends it.
pub(super) struct Examining<'a>(pub(super) &'a AtomicBool);

impl Drop for Examining<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl Known {
    pub(super) fn get(&self, id: &VolumeId) -> Arc<[Trouble]> {
        self.troubles.lock().get(id).map_or_else(Arc::default, Arc::clone)
    }

    /// Keeps what was found; the log has what has changed.
    pub(super) fn put(&self, id: &VolumeId, found: Vec<Trouble>) {
        let found: Arc<[Trouble]> = found.into();
        let before = match found.is_empty() {
            true => self.troubles.lock().remove(id),
            false => self.troubles.lock().insert(id.clone(), Arc::clone(&found)),
        };
        let before = before.unwrap_or_default();
        let is_new = |trouble: &&Trouble| before.iter().all(|known| known.reason != trouble.reason);
        for Trouble { severity, reason, message } in found.iter().filter(is_new) {
            let severity = severity.as_str();
            tracing::warn!(volume.id = %id, severity, reason, "volume is not healthy: {message}");
        }
        if found.is_empty() && !before.is_empty() {
            tracing::info!(volume.id = %id, "volume is healthy again");
        }
    }

    /// Forgets a volume that is being deleted.
    pub(crate) fn forget(&self, id: &VolumeId) {
        self.troubles.lock().remove(id);
    }

    /// How many volumes have a trouble of each severity.
    pub(crate) fn count(&self) -> [(Severity, usize); 3] {
        let known = self.troubles.lock();
        Severity::ALL.map(|severity| {
            let has =
                |troubles: &&Arc<[Trouble]>| troubles.iter().any(|trouble| trouble.severity == severity);
            (severity, known.values().filter(has).count())
        })
    }
}
