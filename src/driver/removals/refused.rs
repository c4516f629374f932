//! What could not be removed before the answer to its caller. The caller is to try again, and may not.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::driver::locks::guarded::Guarded;
use crate::error::Result;
use crate::model::{ObjectId, PoolName};

/// The last attempt of each.
#[derive(Default)]
pub(super) struct Refused(Guarded<HashMap<ObjectId, Attempt>>);

struct Attempt {
    pool: PoolName,
    error: String,
    ended: Instant,
}

impl Refused {
    /// Keeps how a removal has ended.
    pub(super) fn put(&self, object: ObjectId, pool: &PoolName, removed: &Result<()>) {
        let mut refused = self.0.lock();
        match removed {
            Ok(()) => refused.remove(&object),
            Err(error) => {
                let (pool, error) = (pool.clone(), error.to_string());
                refused.insert(object, Attempt { pool, error, ended: Instant::now() })
            }
        };
    }

    /// Those whose last attempt has ended so long ago.
    pub(super) fn older_than(&self, age: Duration) -> Vec<ObjectId> {
        let refused = self.0.lock();
        let old = refused.iter().filter(|(_, attempt)| attempt.ended.elapsed() >= age);
        old.map(|(object, _)| object.clone()).collect()
    }

    /// Forgets those that no longer have to be removed.
    pub(super) fn retain(&self, is_unfinished: impl Fn(&ObjectId) -> bool) {
        self.0.lock().retain(|object, _| is_unfinished(object));
    }

    /// How many there are in a pool, and the error of one.
    pub(super) fn of_pool(&self, name: &PoolName) -> (usize, Option<String>) {
        let refused = self.0.lock();
        let mut errors = refused.values().filter(|found| found.pool == *name).map(|found| &found.error);
        let first = errors.next().cloned();
        (usize::from(first.is_some()) + errors.count(), first)
    }
}
