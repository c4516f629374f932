//! Counts of durations by length, as a histogram has them.

use std::time::Duration;

use crate::driver::locks::guarded::Guarded;

/// Upper limits of the classes in seconds; what is longer than the last has a class of its own.
const LIMITS: [f64; 12] = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0, 30.0];

/// Durations that were counted since the process began.
#[derive(Debug, Default)]
pub(crate) struct Durations(Guarded<Counts>);

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    classes: [u64; LIMITS.len()],
    longer: u64,
    sum: Duration,
}

/// How many durations there were, by length.
#[derive(Debug, Clone, PartialEq)]
pub struct DurationFigures {
    /// The upper limit of each class in seconds, growing, the last one infinite; and how many durations were in the
    /// class, those of shorter ones not counted.
    pub classes: Vec<(f64, u64)>,
    /// All of them together.
    pub sum: Duration,
}

impl Durations {
    pub(crate) fn add(&self, duration: Duration) {
        let mut counts = self.0.lock();
        let class = LIMITS.iter().position(|limit| duration.as_secs_f64() <= *limit);
        let counts = &mut *counts;
        *class.and_then(|class| counts.classes.get_mut(class)).unwrap_or(&mut counts.longer) += 1;
        counts.sum = counts.sum.saturating_add(duration);
    }

    pub(crate) fn figures(&self) -> DurationFigures {
        let counts = *self.0.lock();
        let classes =
            LIMITS.into_iter().zip(counts.classes).chain([(f64::INFINITY, counts.longer)]).collect();
        DurationFigures { classes, sum: counts.sum }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_duration_is_in_one_class() {
        let durations = Durations::default();
        for ms in [0, 1, 2, 3, 30_000, 30_001, 90_000] {
            durations.add(Duration::from_millis(ms));
        }
        let DurationFigures { classes, sum } = durations.figures();
        let found: Vec<_> = classes.iter().filter(|(_, count)| *count > 0).copied().collect();
        assert_eq!(found, [(0.001, 2), (0.002, 1), (0.005, 1), (30.0, 1), (f64::INFINITY, 2)]);
        assert_eq!(sum, Duration::from_millis(150_007));
        assert!(classes.is_sorted_by(|a, b| a.0 < b.0));
    }
}
