//! How far long copies are: in the log, and in the answer to a caller who repeats the call.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::driver::locks::guarded::Guarded;
use crate::model::format_bytes;

/// Time between two lines in the log.
const LOG_EVERY: Duration = Duration::from_secs(5);

/// The copies that run, by the id of what is made.
#[derive(Clone, Default)]
pub(crate) struct Copies(Arc<Inner>);

#[derive(Default)]
struct Inner {
    running: Guarded<HashMap<String, Running>>,
    /// Bytes of all copies so far, also of those that have ended.
    copied: AtomicU64,
}

#[derive(Clone, Copy)]
struct Running {
    done: u64,
    total: u64,
    /// When it last came further.
    moved: Instant,
}

/// The copies at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CopyFigures {
    /// How many run.
    pub running: usize,
    /// Bytes that these have done.
    pub done: u64,
    /// Bytes that these will have done, about.
    pub total: u64,
    /// Bytes that were copied since the process began, by these and by those that have ended.
    pub copied: u64,
    /// How long the one that stands still the longest has not come further; zero without copies.
    pub idle: Duration,
}

/// One copy; it is forgotten with the value.
pub(crate) struct Progress {
    copies: Copies,
    id: String,
    total: u64,
    started: Instant,
    logged: Instant,
}

impl Copies {
    /// A copy of about `total` bytes begins.
    pub(crate) fn begin(&self, id: &str, total: u64) -> Progress {
        let now = Instant::now();
        self.0.running.lock().insert(id.to_owned(), Running { done: 0, total, moved: now });
        Progress { copies: self.clone(), id: id.to_owned(), total, started: now, logged: now }
    }

    /// How far the copy is that makes this, if one runs.
    pub(crate) fn describe(&self, id: &str) -> Option<String> {
        let Running { done, total, .. } = self.0.running.lock().get(id).copied()?;
        let percent = (u128::from(done) * 100).checked_div(u128::from(total)).unwrap_or(0).min(100);
        Some(format!("{} of {} copied, {percent}%", format_bytes(done), format_bytes(total)))
    }

    pub(crate) fn figures(&self) -> CopyFigures {
        let running = self.0.running.lock();
        let sum = |of: fn(&Running) -> u64| running.values().map(of).fold(0, u64::saturating_add);
        CopyFigures {
            running: running.len(),
            done: sum(|copy| copy.done),
            total: sum(|copy| copy.total),
            copied: self.0.copied.load(Ordering::Relaxed),
            idle: running.values().map(|copy| copy.moved.elapsed()).max().unwrap_or_default(),
        }
    }

    fn move_on(&self, id: &str, done: u64) {
        let mut running = self.0.running.lock();
        let Some(copy) = running.get_mut(id).filter(|copy| done > copy.done) else { return };
        self.0.copied.fetch_add(done - copy.done, Ordering::Relaxed);
        (copy.done, copy.moved) = (done, Instant::now());
    }
}

impl Progress {
    /// So many bytes are done.
    pub(crate) fn report(&mut self, done: u64) {
        self.copies.move_on(&self.id, done);
        if self.logged.elapsed() >= LOG_EVERY {
            self.logged = Instant::now();
            self.log("copying", done);
        }
    }

    fn log(&self, message: &str, done: u64) {
        let (id, done, total) = (&self.id, format_bytes(done), format_bytes(self.total));
        tracing::info!(id, done, total, seconds = self.started.elapsed().as_secs(), "{message}");
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        let last = self.copies.0.running.lock().remove(&self.id);
        if self.started.elapsed() >= LOG_EVERY {
            self.log("the copy has ended", last.map_or(0, |copy| copy.done));
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
        assert_eq!(copies.describe("snap-1").as_deref(), Some("3 GiB of 8 GiB copied, 37%"));
        drop(progress);
        assert_eq!(copies.describe("snap-1"), None);
    }

    #[test]
    fn copied_bytes_are_counted_once_and_stay() {
        let copies = Copies::default();
        let (mut one, mut two) = (copies.begin("snap-1", 100), copies.begin("vol-2", 50));
        one.report(30);
        one.report(40);
        two.report(50);
        let figures = copies.figures();
        assert_eq!((figures.running, figures.done, figures.total, figures.copied), (2, 90, 150, 90));
        drop(one);
        std::thread::sleep(Duration::from_millis(5));
        two.report(50);
        assert!(copies.figures().idle >= Duration::from_millis(5), "the same number again is no progress");
        drop(two);
        assert_eq!(copies.figures(), CopyFigures { copied: 90, ..CopyFigures::default() });
    }
}
