//! The part of a sweep through all ends and faults that a run takes: one in a number, chosen by a seed, so that each run
//! takes another part. `HOSTLOOP_WALK_SHARE=1` takes all of them (`make walk`), and `HOSTLOOP_SEED` repeats a part.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::OnceLock;
use std::time::SystemTime;

/// `make test-rest` walks one end or fault in this many; `make walk` walks all.
const SHARE: u64 = 24;

/// A part: its seed, and one in how many it takes.
#[derive(Debug, Clone, Copy)]
pub struct Part {
    pub seed: u64,
    pub share: u64,
}

/// Returns the number in an environment variable, if it is set.
#[allow(clippy::disallowed_methods, reason = "the environment chooses the part")]
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|value| value.parse().expect("a number"))
}

/// The seed of this process.
pub fn seed() -> u64 {
    static SEED: OnceLock<u64> = OnceLock::new();
    let now = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_secs();
    *SEED.get_or_init(|| number("HOSTLOOP_SEED").unwrap_or_else(now))
}

impl Part {
    /// Takes everything.
    pub const ALL: Part = Part { seed: 0, share: 1 };

    /// Returns the part of the walk that this run takes: all of it if `WALK` names scenarios.
    pub fn of_walk() -> Part {
        #[allow(clippy::disallowed_methods, reason = "the environment chooses scenarios")]
        let by_hand = std::env::var("WALK").is_ok();
        let share = number("HOSTLOOP_WALK_SHARE").unwrap_or(if by_hand { 1 } else { SHARE });
        Part { seed: seed(), share }
    }

    /// Returns one in `share`, unless `HOSTLOOP_WALK_SHARE` has another number. Prints how to repeat it.
    pub fn of(share: u64) -> Part {
        let part = Part { seed: seed(), share: number("HOSTLOOP_WALK_SHARE").unwrap_or(share) };
        println!("HOSTLOOP_SEED={} HOSTLOOP_WALK_SHARE={}", part.seed, part.share);
        part
    }

    /// Returns whether this run takes it.
    pub fn takes(self, what: impl Hash) -> bool {
        let mut hasher = DefaultHasher::new();
        (what, self.seed).hash(&mut hasher);
        hasher.finish().is_multiple_of(self.share)
    }
}

/// Returns the ways to end at step `n` that this run takes: one, which the seed chooses, or all if the run takes all.
pub fn ways<T: Copy>(n: usize, ways: &[T]) -> Vec<T> {
    let Part { seed, share } = Part::of_walk();
    let first = (n as u64).wrapping_add(seed) as usize % ways.len().max(1);
    let some = if share == 1 { ways } else { ways.get(first..=first).unwrap_or_default() };
    some.to_vec()
}
