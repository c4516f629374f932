//! What several calls share.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// A value behind a mutex. Nothing that runs under it can panic half-way, so that a poisoned one is as good as any.
#[derive(Debug, Default)]
pub(crate) struct Guarded<T>(Mutex<T>);

impl<T> Guarded<T> {
    pub(crate) fn new(value: T) -> Self {
        Guarded(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
