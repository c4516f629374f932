//! How far long copies are: in the log, and in the answer to a caller who asks again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::model::format_bytes;

/// Time between two lines in the log.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// The copies that run, by the id of what is made.
#[derive(Clone, Default)]
pub(super) struct Copies(Arc<Mutex<HashMap<String, (u64, u64)>>>);

/// One copy; it is forgotten with the value.
pub(super) struct Progress {
    copies: Copies,
    id: String,
    total: u64,
    started: Instant,
    logged: Instant,
}

impl Copies {
    /// A copy of about `total` bytes begins.
    pub(super) fn begin(&self, id: &str, total: u64) -> Progress {
        let now = Instant::now();
        self.set(id, (0, total));
        Progress { copies: self.clone(), id: id.to_owned(), total, started: now, logged: now }
    }

    /// How far the copy is that makes this, if one runs.
    pub(super) fn describe(&self, id: &str) -> Option<String> {
        let copies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, total) = copies.get(id)?;
        Some(format!("{} of {} copied", format_bytes(*done), format_bytes(*total)))
    }

    fn set(&self, id: &str, progress: (u64, u64)) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(id.to_owned(), progress);
    }
}

impl Progress {
    /// So many bytes are done.
    pub(super) fn report(&mut self, done: u64) {
        self.copies.set(&self.id, (done, self.total));
        if self.logged.elapsed() >= LOG_EVERY {
            self.logged = Instant::now();
            self.log("copying", done);
        }
    }

    fn log(&self, message: &str, done: u64) {
        let (id, total) = (&self.id, self.total);
        tracing::info!(id, bytes = done, total, seconds = self.started.elapsed().as_secs(), "{message}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let last = self.copies.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        if self.started.elapsed() >= LOG_EVERY {
            self.log("the copy has ended", last.map_or(0, |(done, _)| done));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_is_told_of_while_it_runs() {
        let copies = Copies::default();
        assert_eq!(copies.describe("snap-1"), None);
        let mut progress = copies.begin("snap-1", 8 << 30);
        progress.report(3 << 30);
        assert_eq!(copies.describe("snap-1").as_deref(), Some("3 Gi of 8 Gi copied"));
        drop(progress);
        assert_eq!(copies.describe("snap-1"), None);
    }
}
