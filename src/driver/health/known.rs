//! What the last look at the volumes has found.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::driver::locks::guarded::Guarded;
use crate::model::VolumeId;
use crate::model::health::{Severity, Trouble};

/// What is known of the volumes that are not as they should be.
#[derive(Default)]
pub(crate) struct Known {
    troubles: Guarded<HashMap<VolumeId, Arc<[Trouble]>>>,
    /// When the look began that has told of a volume last.
    looks: Guarded<HashMap<VolumeId, Instant>>,
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

    /// Keeps what a look has found that began then, unless a later look has told of the volume already. The log has what has changed.
    pub(super) fn put(&self, id: &VolumeId, began: Instant, found: Vec<Trouble>) {
        let found: Arc<[Trouble]> = found.into();
        let mut looks = self.looks.lock();
        let last = looks.entry(id.clone()).or_insert(began);
        if *last > began {
            return;
        }
        *last = began;
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

    /// Returns the volumes that a look has told of.
    pub(super) fn known(&self) -> Vec<VolumeId> {
        self.looks.lock().keys().cloned().collect()
    }

    /// Forgets a volume that is being deleted.
    pub(crate) fn forget(&self, id: &VolumeId) {
        self.looks.lock().remove(id);
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::NodeKey;

    /// Looks at many disks take long, and others begin and end meanwhile.
    #[test]
    fn an_earlier_look_does_not_replace_a_later_one() {
        let (known, id) = (Known::default(), VolumeId::of_name(&NodeKey::of("node"), "v"));
        let trouble = || vec![Trouble::inaccessible("ImageMissing", "it is gone".to_owned())];
        let reasons = || known.get(&id).iter().map(|trouble| trouble.reason).collect::<Vec<_>>();
        let earlier = Instant::now();
        let later = earlier + Duration::from_secs(1);
        known.put(&id, later, trouble());
        known.put(&id, earlier, Vec::new());
        assert_eq!(reasons(), ["ImageMissing"]);
        known.put(&id, later, Vec::new());
        known.put(&id, earlier, trouble());
        assert_eq!(reasons(), [""; 0]);
        known.forget(&id);
        known.put(&id, earlier, trouble());
        assert_eq!(reasons(), ["ImageMissing"], "a later volume of the same name");
        known.forget(&id);
        assert_eq!(known.known(), []);
    }
}
