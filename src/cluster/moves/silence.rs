//! For how long nodes have not answered. Only a monotonic clock of this process counts: another controller that leads from here on
//! begins anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// The longest time between two looks at a node that is asked again and again. If no copy has asked for longer, the node may have
/// answered meanwhile, and its silence begins anew.
const GAP: Duration = Duration::from_secs(30);

/// Since when each node has been silent, and when it was last found so.
#[derive(Debug, Clone)]
pub struct Silence {
    all: Arc<Mutex<HashMap<String, (Instant, Instant)>>>,
    gap: Duration,
}

impl Default for Silence {
    fn default() -> Self {
        Silence::with_gap(GAP)
    }
}

impl Silence {
    /// Returns one in which a silence ends if no caller asks about it for longer than `gap`.
    pub fn with_gap(gap: Duration) -> Self {
        Silence { all: Arc::default(), gap }
    }

    /// Notes that a node has not answered. Returns for how long it has been silent.
    pub fn is_silent(&self, node: &str) -> Duration {
        // Nothing that runs under the mutex can panic half-way.
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        all.retain(|_, (_, last)| last.elapsed() <= self.gap);
        let (since, last) = all.entry(node.to_owned()).or_insert((now, now));
        *last = now;
        since.elapsed()
    }

    /// Notes that a node has answered, whatever it said.
    pub fn is_heard(&self, node: &str) {
        self.all.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_lasts_until_an_answer() {
        let silence = Silence::default();
        assert_eq!(silence.is_silent("a"), Duration::ZERO);
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(silence.is_silent("a"), Duration::from_secs(20));
        assert_eq!(silence.is_silent("b"), Duration::ZERO, "each node has its own");
        silence.is_heard("a");
        assert_eq!(silence.is_silent("a"), Duration::ZERO);
    }

    /// The copy for which it was asked is gone, and another one needs the node days later.
    #[tokio::test(start_paused = true)]
    async fn silence_of_which_nobody_asks_is_over() {
        let silence = Silence::default();
        for _ in 0..4 {
            silence.is_silent("a");
            tokio::time::advance(GAP).await;
        }
        assert_eq!(silence.is_silent("a"), 4 * GAP);
        tokio::time::advance(GAP + Duration::from_secs(1)).await;
        assert_eq!(silence.is_silent("a"), Duration::ZERO);
    }
}
