//! A configured pool, whether it can be used or not, and when it is tried again.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::pool::Pool;
use super::pulse::Pulse;
use crate::error::{Error, Result};
use crate::kernel::FileId;
use crate::model::{PoolName, PoolSettings};

pub(super) struct Slot {
    pub(super) settings: PoolSettings,
    pub(super) state: Mutex<State>,
    /// Whether its disk answers.
    pub(super) pulse: Pulse,
    /// Taken by the one who tries to open it.
    pub(super) opening: Mutex<Attempt>,
    /// Volumes and snapshots in it wait for recovery.
    pub(super) unrecovered: AtomicBool,
    /// The directory that it must be: that of the state file, which is open.
    pub(super) only: Option<FileId>,
}

pub(super) enum State {
    /// It can be used.
    Open(Arc<Pool>),
    /// It cannot: why, and where it was, or would be.
    Closed { why: String, path: PathBuf },
}

/// The last time that a pool was tried to be opened.
#[derive(Default)]
pub(super) struct Attempt(Option<(Instant, Duration)>);

impl Attempt {
    /// One that ends now. To wait for somebody else costs nothing, and may be over at the next moment.
    pub(super) fn ended<T>(started: Instant, opened: &Result<T>) -> Self {
        let waited = matches!(opened, Err(Error::Unavailable(_)));
        Attempt(Some((started, if waited { Duration::ZERO } else { started.elapsed() })))
    }

    /// A try that is dear, such as the check of a whole filesystem, is repeated in proportion to its cost.
    pub(super) fn is_due(&self) -> bool {
        self.0.is_none_or(|(at, cost)| at.elapsed() >= cost * 20)
    }
}

impl Slot {
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn name(&self) -> &PoolName {
        &self.settings.name
    }

    /// The pool, if it could be used when it was looked at last.
    pub(super) fn pool(&self) -> Option<Arc<Pool>> {
        match &*self.state() {
            State::Open(pool) => Some(Arc::clone(pool)),
            State::Closed { .. } => None,
        }
    }

    /// Where its files are, or would be if it could be used.
    pub(super) fn path(&self) -> PathBuf {
        match &*self.state() {
            State::Open(pool) => pool.path.clone(),
            State::Closed { path, .. } => path.clone(),
        }
    }

    pub(super) fn close(&self, why: String) {
        let mut state = self.state();
        let path = match &*state {
            State::Open(pool) => pool.path.clone(),
            State::Closed { why: before, .. } if *before == why => return,
            State::Closed { path, .. } => path.clone(),
        };
        self.unrecovered.store(true, Ordering::Release);
        *state = State::closed(self.name(), why, path);
    }
}

impl State {
    pub(super) fn closed(name: &PoolName, why: String, path: PathBuf) -> State {
        tracing::error!(
            pool = %name, path = %path.display(),
            "the pool is not available, nor are its volumes; other pools are served, and this one is tried again: {why}"
        );
        State::Closed { why, path }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dear_try_is_not_repeated_soon() {
        assert!(Attempt::default().is_due(), "the first");
        let ago = |age: u64, cost: u64| {
            let at = Instant::now().checked_sub(Duration::from_secs(age)).unwrap();
            Attempt(Some((at, Duration::from_secs(cost))))
        };
        assert!(ago(0, 0).is_due() && ago(61, 3).is_due() && ago(60, 3).is_due());
        assert!(!ago(0, 1).is_due() && !ago(50, 3).is_due());
        let started = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
        assert!(Attempt::ended::<()>(started, &Err(Error::Unavailable(String::new()))).is_due());
        assert!(!Attempt::ended::<()>(started, &Err(Error::InUse(String::new()))).is_due());
        assert!(!Attempt::ended(started, &Ok(())).is_due());
    }
}
