//! What directory volumes take. Counting a tree is expensive, so an answer is kept for a time in proportion to its cost.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::backend::Stats;
use crate::driver::locks::guarded::Guarded;
use crate::error::Result;
use crate::model::VolumeId;

/// The last counts.
#[derive(Default)]
pub(crate) struct Cache(Guarded<HashMap<VolumeId, Counted>>);

#[derive(Clone, Copy)]
struct Counted {
    at: Instant,
    cost: Duration,
    stats: Stats,
}

impl Cache {
    /// The last answer, if it is younger than twenty times what it cost; else a new one. So kubelet's polling
    /// takes at most a twentieth of one core's time, whatever the size of the tree.
    pub(crate) fn get_or(&self, id: &VolumeId, count: impl FnOnce() -> Result<Stats>) -> Result<Stats> {
        let last = self.0.lock().get(id).copied();
        if let Some(last) = last.filter(|last| last.at.elapsed() < last.cost * 20) {
            return Ok(last.stats);
        }
        let started = Instant::now();
        let stats = count()?;
        let counted = Counted { at: Instant::now(), cost: started.elapsed(), stats };
        self.0.lock().insert(id.clone(), counted);
        Ok(stats)
    }

    /// Forgets a volume that is being deleted, or has grown.
    pub(crate) fn forget(&self, id: &VolumeId) {
        self.0.lock().remove(id);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::thread::sleep;

    use super::*;
    use crate::model::NodeKey;

    fn id(name: &str) -> VolumeId {
        VolumeId::of_name(&NodeKey::of("node"), name)
    }

    /// Asks for a count that takes `cost`; whether it was made.
    fn counts(cache: &Cache, id: &VolumeId, cost: Duration) -> bool {
        let counted = Cell::new(false);
        let stats = cache.get_or(id, || {
            counted.set(true);
            sleep(cost);
            Ok(Stats::Device(7))
        });
        assert_eq!(stats.unwrap(), Stats::Device(7));
        counted.get()
    }

    #[test]
    fn a_count_is_repeated_in_proportion_to_its_cost() {
        let (cache, one, other) = (Cache::default(), id("one"), id("other"));
        let (dear, cheap) = (Duration::from_secs(1), Duration::ZERO);
        assert!(counts(&cache, &one, dear), "the first");
        assert!(!counts(&cache, &one, dear), "20 seconds have not passed");
        assert!(counts(&cache, &other, cheap), "of another volume");
        // On a busy machine also nothing takes time.
        let again = (0..1000).any(|_| {
            sleep(Duration::from_millis(20));
            counts(&cache, &other, cheap)
        });
        assert!(again, "it costs nothing");
        cache.forget(&one);
        assert!(counts(&cache, &one, cheap), "the volume is another one");
    }

    #[test]
    fn a_count_that_failed_is_not_kept() {
        let (cache, id) = (Cache::default(), id("one"));
        let failed = cache.get_or(&id, || {
            sleep(Duration::from_millis(50));
            Err(crate::error::Error::Unavailable("no disk".to_owned()))
        });
        assert!(failed.is_err() && counts(&cache, &id, Duration::ZERO));
    }
}
