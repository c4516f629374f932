//! Who works on what: one lock for each [`Key`]; several are taken together or not at all.
//!
//! A caller of CSI is meant to have one call in flight per volume. It may lose track after a restart of its own or a
//! timeout, and then call again while the first call is still working. CSI lets a plugin answer that call with ABORTED
//! (*operation pending for volume*), and a caller tries again later. So nothing here waits: a waiting call would hold a
//! thread, and by its turn its caller may be gone. It also means that two calls that want the same two keys can never
//! wait for each other, in whatever order they name them.
//!
//! The [`Guard`] owns what it needs and moves into the work itself, not into the handler: if a disconnect or a deadline
//! drops the handler, the lock stays with the work, which runs to its end.

pub(super) mod attachments;
pub(super) mod guarded;
pub(super) mod reservations;
pub(super) mod turns;

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

use crate::model::{ObjectId, VolumeId};
use guarded::Guarded;

/// How a key is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mode {
    /// Beside others that only share: a read, or a source that is copied.
    Shared,
    Exclusive,
}

/// What one operation at a time works on.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A volume, a snapshot or a group.
    Object(ObjectId),
    /// The freeze of a volume's filesystem: copies of it share the key of the volume itself.
    Freeze(VolumeId),
}

impl<T: Into<ObjectId>> From<T> for Key {
    fn from(object: T) -> Self {
        Key::Object(object.into())
    }
}

/// The first of the wanted keys, in sorted order, that could not be taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken<K>(pub K);

/// How a key is held.
#[derive(Debug)]
enum Held {
    Shared(usize),
    Exclusive,
}

/// The keys that are held. Clones share them.
#[derive(Debug, Clone)]
pub struct Locks<K = Key> {
    held: Arc<Guarded<HashMap<K, Held>>>,
}

impl<K> Default for Locks<K> {
    fn default() -> Self {
        Locks { held: Arc::default() }
    }
}

impl<K: Ord + Hash + Clone> Locks<K> {
    /// Takes every key or none, at once. A key that is named twice is taken once, in the stronger mode.
    ///
    /// # Errors
    /// [`Taken`] where a key is held in a way that does not go with the mode.
    pub fn try_acquire(&self, keys: impl IntoIterator<Item = (K, Mode)>) -> Result<Guard<K>, Taken<K>> {
        let mut wanted: BTreeMap<K, Mode> = BTreeMap::new();
        for (key, mode) in keys {
            wanted.entry(key).and_modify(|old| *old = mode.max(*old)).or_insert(mode);
        }
        let mut held = self.held.lock();
        for (key, mode) in &wanted {
            match (held.get(key), mode) {
                (None, _) | (Some(Held::Shared(_)), Mode::Shared) => {}
                _ => return Err(Taken(key.clone())),
            }
        }
        for (key, mode) in &wanted {
            match (mode, held.get_mut(key)) {
                (Mode::Shared, Some(Held::Shared(count))) => *count += 1,
                (Mode::Shared, _) => drop(held.insert(key.clone(), Held::Shared(1))),
                (Mode::Exclusive, _) => drop(held.insert(key.clone(), Held::Exclusive)),
            }
        }
        Ok(Guard { locks: self.clone(), keys: wanted.into_keys().collect() })
    }

    /// Whether an operation has this key for itself. Nobody is kept from taking it by the question.
    pub fn is_taken(&self, key: &K) -> bool {
        matches!(self.held.lock().get(key), Some(Held::Exclusive))
    }

    /// Whether nothing is held.
    #[cfg(test)]
    fn is_idle(&self) -> bool {
        self.held.lock().is_empty()
    }
}

/// Keys that are held until it is dropped.
#[must_use = "the keys are free again as soon as the guard is dropped"]
pub struct Guard<K: Eq + Hash = Key> {
    locks: Locks<K>,
    keys: Vec<K>,
}

impl<K: Eq + Hash + fmt::Debug> fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Guard").field(&self.keys).finish()
    }
}

impl<K: Eq + Hash> Drop for Guard<K> {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock();
        for key in &self.keys {
            match held.get_mut(key) {
                Some(Held::Shared(count)) if *count > 1 => *count -= 1,
                _ => drop(held.remove(key)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicI64, Ordering};

    use Mode::{Exclusive, Shared};

    type Names = Locks<&'static str>;

    fn take(locks: &Names, keys: &[(&'static str, Mode)]) -> Result<Guard<&'static str>, &'static str> {
        locks.try_acquire(keys.iter().copied()).map_err(|Taken(key)| key)
    }

    #[test]
    fn sharing_goes_with_sharing_only() {
        let locks = Locks::default();
        let one = take(&locks, &[("a", Shared)]).unwrap();
        assert!(!locks.is_taken(&"a"), "others may share it");
        let two = take(&locks, &[("a", Shared)]).unwrap();
        assert_eq!(take(&locks, &[("a", Exclusive)]).unwrap_err(), "a");
        drop(one);
        assert_eq!(take(&locks, &[("a", Exclusive)]).unwrap_err(), "a");
        drop(two);
        assert!(!locks.is_taken(&"a"));
        let alone = take(&locks, &[("a", Exclusive)]).unwrap();
        assert!(locks.is_taken(&"a") && !locks.is_taken(&"b"));
        assert_eq!(take(&locks, &[("a", Shared)]).unwrap_err(), "a");
        drop(alone);
        assert!(locks.is_idle());
    }

    #[test]
    fn locks_are_taken_all_or_none() {
        let locks = Locks::default();
        let held = take(&locks, &[("b", Exclusive)]).unwrap();
        assert_eq!(take(&locks, &[("a", Exclusive), ("b", Shared), ("c", Shared)]).unwrap_err(), "b");
        let rest = take(&locks, &[("a", Exclusive), ("c", Exclusive)]).unwrap();
        drop((held, rest));
        assert!(locks.is_idle());
    }

    #[test]
    fn a_key_named_twice_takes_the_stronger_mode() {
        let locks = Locks::default();
        for keys in [[("a", Shared), ("a", Exclusive)], [("a", Exclusive), ("a", Shared)]] {
            let guard = take(&locks, &keys).unwrap();
            assert!(take(&locks, &[("a", Shared)]).is_err());
            drop(guard);
            assert!(locks.is_idle());
        }
        let twice = take(&locks, &[("a", Shared), ("a", Shared)]).unwrap();
        drop(twice);
        assert!(take(&locks, &[("a", Exclusive)]).is_ok());
    }

    #[test]
    fn a_guard_moves_between_threads_and_a_panic_frees_it() {
        let locks = Locks::default();
        let guard = take(&locks, &[("a", Exclusive)]).unwrap();
        let work = std::thread::spawn(move || {
            let _guard = guard;
            panic!("the work fails");
        });
        assert!(work.join().is_err());
        assert!(locks.is_idle());
    }

    #[test]
    fn two_writers_never_hold_one_lock() {
        let (locks, inside) = (Locks::default(), AtomicI64::new(0));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (locks, inside) = (&locks, &inside);
                scope.spawn(move || {
                    for round in 0..500 {
                        let mode = if (thread + round) % 4 == 0 { Exclusive } else { Shared };
                        let weight = if mode == Exclusive { 1000 } else { 1 };
                        let Ok(_guard) = take(locks, &[("x", Shared), ("a", mode)]) else {
                            continue;
                        };
                        let now = inside.fetch_add(weight, Ordering::SeqCst) + weight;
                        assert!(now <= 1000, "{now}");
                        inside.fetch_sub(weight, Ordering::SeqCst);
                    }
                });
            }
        });
        assert!(locks.is_idle());
    }

    proptest! {
        #[test]
        fn agrees_with_a_plain_model(
            calls in proptest::collection::vec((proptest::collection::vec((0usize..4, any::<bool>()), 0..4), 0usize..6), 1..60)
        ) {
            let locks = Locks::default();
            let mut guards: Vec<(Guard<usize>, BTreeMap<usize, Mode>)> = Vec::new();
            for (keys, release) in calls {
                let mut wanted = BTreeMap::new();
                for (key, exclusive) in &keys {
                    let mode = if *exclusive { Exclusive } else { Shared };
                    wanted.entry(*key).and_modify(|m: &mut Mode| *m = mode.max(*m)).or_insert(mode);
                }
                let free = guards.iter().all(|(_, held)| wanted.iter().all(|(key, mode)| {
                    held.get(key).is_none_or(|other| *other == Shared && *mode == Shared)
                }));
                let modes = keys.iter().map(|(k, e)| (*k, if *e { Exclusive } else { Shared }));
                match locks.try_acquire(modes) {
                    Ok(guard) => { prop_assert!(free); guards.push((guard, wanted)); }
                    Err(_) => prop_assert!(!free),
                }
                if release < guards.len() { drop(guards.swap_remove(release)); }
            }
            drop(guards);
            prop_assert!(locks.is_idle());
        }
    }
}
