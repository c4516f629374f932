//! For how long nodes have not answered. Only a monotonic clock of this process counts: another controller that leads from here on
//! begins anew.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// Since when each node has been silent.
#[derive(Debug, Clone, Default)]
pub struct Silence(Arc<Mutex<HashMap<String, Instant>>>);

impl Silence {
    /// Notes that a node has not answered. Returns for how long it has been silent.
    pub fn is_silent(&self, node: &str) -> Duration {
        // Nothing that runs under the mutex can panic half-way.
        let mut since = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        since.entry(node.to_owned()).or_insert_with(Instant::now).elapsed()
    }

    /// Notes that a node has answered, whatever it said.
    pub fn is_heard(&self, node: &str) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(node);
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
}
