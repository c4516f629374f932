//! Objects that did not exist when the API server was asked for them, for some seconds. A copy is looked at up to four times a second,
//! and each look would ask for them again. Meanwhile one of them may have been created. So a step that gives up, promotes or deletes
//! something does not rest on this: the controller asks anew before it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// For how long the answer counts that an object does not exist.
const KEPT: Duration = Duration::from_secs(5);

/// What was absent, and when. Clones share it.
#[derive(Clone, Default)]
pub struct Absent {
    since: Arc<Mutex<HashMap<String, Instant>>>,
    /// Whether a look has relied on it; `None` outside of looks, where every question is asked.
    used: Option<Arc<AtomicBool>>,
}

impl Absent {
    /// Returns what one look may rely on.
    pub fn for_one_look(&self) -> Absent {
        Absent { since: Arc::clone(&self.since), used: Some(Arc::default()) }
    }

    /// Reports whether the look has relied on an earlier answer.
    pub fn was_used(&self) -> bool {
        self.used.as_ref().is_some_and(|used| used.load(Ordering::Relaxed))
    }

    /// Returns an object, or asks for it unless it was absent just now.
    ///
    /// # Errors
    /// That of the question.
    pub async fn or_ask<T, E>(
        &self,
        kind: &str,
        name: &str,
        ask: impl Future<Output = Result<Option<T>, E>>,
    ) -> Result<Option<T>, E> {
        let Some(used) = &self.used else { return ask.await };
        let what = format!("{kind}/{name}");
        if self.is_recent(&what) {
            used.store(true, Ordering::Relaxed);
            return Ok(None);
        }
        let found = ask.await?;
        if found.is_none() {
            self.since.lock().unwrap_or_else(PoisonError::into_inner).insert(what, Instant::now());
        }
        Ok(found)
    }

    fn is_recent(&self, what: &str) -> bool {
        // Nothing that runs under the mutex can panic half-way.
        let mut since = self.since.lock().unwrap_or_else(PoisonError::into_inner);
        since.retain(|_, at| at.elapsed() < KEPT);
        since.contains_key(what)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_absence_counts_for_seconds_in_looks() {
        let absent = Absent::default();
        let ask = async |absent: &Absent, found: Option<u8>| {
            let answer = async move { Ok::<_, Infallible>(found) };
            absent.or_ask("nodes", "n1", answer).await.unwrap()
        };
        let look = absent.for_one_look();
        assert_eq!((ask(&look, None).await, look.was_used()), (None, false));
        let look = absent.for_one_look();
        assert_eq!((ask(&look, Some(1)).await, look.was_used()), (None, true));
        assert_eq!(ask(&absent, Some(1)).await, Some(1), "outside of a look, it is asked for");
        tokio::time::advance(KEPT).await;
        let look = absent.for_one_look();
        assert_eq!((ask(&look, Some(1)).await, look.was_used()), (Some(1), false));
    }
}
