//! What could not be removed before the answer to its caller. The caller is to try again, and may not.

use std::collections::HashMap;

use crate::driver::locks::guarded::Guarded;
use crate::error::Result;
use crate::model::{ObjectId, PoolName};

/// The pool and the last error of each.
#[derive(Default)]
pub(super) struct Refused(Guarded<HashMap<ObjectId, (PoolName, String)>>);

impl Refused {
    /// Keeps how a removal has ended.
    pub(super) fn put(&self, object: ObjectId, pool: &PoolName, removed: &Result<()>) {
        let mut refused = self.0.lock();
        match removed {
            Ok(()) => refused.remove(&object),
            Err(error) => refused.insert(object, (pool.clone(), error.to_string())),
        };
    }

    /// All of them.
    pub(super) fn objects(&self) -> Vec<ObjectId> {
        self.0.lock().keys().cloned().collect()
    }

    /// Forgets those that need not be removed any more.
    pub(super) fn retain(&self, is_unfinished: impl Fn(&ObjectId) -> bool) {
        self.0.lock().retain(|object, _| is_unfinished(object));
    }

    /// How many there are in a pool, and the error of one.
    pub(super) fn of_pool(&self, name: &PoolName) -> (usize, Option<String>) {
        let refused = self.0.lock();
        let mut errors = refused.values().filter(|(pool, _)| pool == name).map(|(_, error)| error);
        let first = errors.next().cloned();
        (usize::from(first.is_some()) + errors.count(), first)
    }
}
