//! What the last look at the volumes has found.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::driver::locks::guarded::Guarded;
use crate::model::health::{Severity, Trouble};
use crate::model::{Claim, VolumeId};

/// What the last look at each volume found.
#[derive(Default)]
pub(crate) struct Known {
    volumes: Guarded<HashMap<VolumeId, Found>>,
    pub(super) examining: AtomicBool,
}

struct Found {
    /// When the look began.
    began: Instant,
    /// Empty if the volume is healthy.
    troubles: Arc<[Trouble]>,
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
        self.examined(id).unwrap_or_default()
    }

    /// Returns what the last look found; `None` if nothing has looked at the volume yet.
    pub(crate) fn examined(&self, id: &VolumeId) -> Option<Arc<[Trouble]>> {
        self.volumes.lock().get(id).map(|found| Arc::clone(&found.troubles))
    }

    /// Keeps what a look found, and logs what has changed. Ignores a look that began before the one that is kept.
    pub(super) fn put(&self, (id, claim): (&VolumeId, Option<&Claim>), began: Instant, found: Vec<Trouble>) {
        let found: Arc<[Trouble]> = found.into();
        let Some(before) = self.replace(id, Found { began, troubles: Arc::clone(&found) }) else { return };
        let claim = claim.map(ToString::to_string);
        let is_new = |trouble: &&Trouble| before.iter().all(|known| known.reason != trouble.reason);
        for Trouble { severity, reason, message } in found.iter().filter(is_new) {
            let severity = severity.as_str();
            tracing::warn!(volume.id = %id, claim, severity, reason, "volume is not healthy: {message}");
        }
        if found.is_empty() && !before.is_empty() {
            tracing::info!(volume.id = %id, claim, "volume is healthy again");
        }
    }

    /// Returns the troubles that the volume had before; `None` if a later look is kept.
    fn replace(&self, id: &VolumeId, found: Found) -> Option<Arc<[Trouble]>> {
        let mut volumes = self.volumes.lock();
        if volumes.get(id).is_some_and(|last| last.began > found.began) {
            return None;
        }
        Some(volumes.insert(id.clone(), found).map(|last| last.troubles).unwrap_or_default())
    }

    /// Returns the volumes of which a look is kept.
    pub(super) fn known(&self) -> Vec<VolumeId> {
        self.volumes.lock().keys().cloned().collect()
    }

    /// Forgets a volume that is being deleted.
    pub(crate) fn forget(&self, id: &VolumeId) {
        self.volumes.lock().remove(id);
    }

    /// How many volumes have a trouble of each severity.
    pub(crate) fn count(&self) -> [(Severity, usize); 3] {
        let known = self.volumes.lock();
        Severity::ALL.map(|severity| {
            let has = |found: &&Found| found.troubles.iter().any(|trouble| trouble.severity == severity);
            (severity, known.values().filter(has).count())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::model::NodeKey;

    /// A look at many disks takes long, and another look can begin and end in that time.
    #[test]
    fn an_earlier_look_does_not_replace_a_later_one() {
        let (known, id) = (Known::default(), VolumeId::of_name(&NodeKey::of("node"), "v"));
        let trouble = || vec![Trouble::inaccessible("ImageMissing", "it is gone".to_owned())];
        let reasons = || known.get(&id).iter().map(|trouble| trouble.reason).collect::<Vec<_>>();
        let earlier = Instant::now();
        let later = earlier + Duration::from_secs(1);
        known.put((&id, None), later, trouble());
        known.put((&id, None), earlier, Vec::new());
        assert_eq!(reasons(), ["ImageMissing"]);
        known.put((&id, None), later, Vec::new());
        known.put((&id, None), earlier, trouble());
        assert_eq!(reasons(), [""; 0]);
        known.forget(&id);
        known.put((&id, None), earlier, trouble());
        assert_eq!(reasons(), ["ImageMissing"], "a later volume of the same name");
        known.forget(&id);
        assert_eq!(known.known(), []);
    }
}
