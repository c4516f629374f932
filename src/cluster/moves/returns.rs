//! Counts how often the cutover of each copy has gone back in its last pass. Without a growing pause, a move would evict the pods each time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use super::cutover::SELDOM;

/// The time between the first return and the next cutover. Each further return doubles it, up to [`SELDOM`].
const FIRST: Duration = Duration::from_secs(30);

/// The number of returns and the time of the last one, by the uid of the VolumeReplica.
#[derive(Debug, Clone, Default)]
pub struct Returns(Arc<Mutex<HashMap<String, (u32, Instant)>>>);

impl Returns {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, (u32, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that a cutover has gone back.
    pub fn add(&self, uid: &str) {
        let mut all = self.lock();
        all.retain(|_, (_, last)| last.elapsed() <= 2 * SELDOM);
        let (count, last) = all.entry(uid.to_owned()).or_insert((0, Instant::now()));
        (*count, *last) = (count.saturating_add(1), Instant::now());
    }

    /// Returns for how long the next cutover has to wait.
    pub fn pause(&self, uid: &str) -> Duration {
        let all = self.lock();
        let Some((count, last)) = all.get(uid) else { return Duration::ZERO };
        let pause = FIRST.saturating_mul(1 << count.saturating_sub(1).min(8)).min(SELDOM);
        pause.saturating_sub(last.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_return_doubles_the_pause() {
        let returns = Returns::default();
        assert_eq!(returns.pause("a"), Duration::ZERO);
        let pauses = [1, 2, 3, 4, 5, 6].map(|_| {
            returns.add("a");
            returns.pause("a").as_secs()
        });
        assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
        tokio::time::advance(Duration::from_secs(100)).await;
        assert_eq!((returns.pause("a").as_secs(), returns.pause("b")), (200, Duration::ZERO));
        tokio::time::advance(3 * SELDOM).await;
        returns.add("b");
        returns.add("a");
        assert_eq!(returns.pause("a"), FIRST, "the earlier ones are long ago");
    }
}
