//! Figures of the same thing, measured more than once.

use std::time::Duration;

/// Values of the same unit, in any order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample(Vec<f64>);

impl Sample {
    /// Adds a value. What is not a number is left out: it has no place in an order.
    pub fn add(&mut self, value: f64) {
        if !value.is_nan() {
            self.0.push(value);
        }
    }

    /// Adds a time, in milliseconds.
    pub fn add_time(&mut self, time: Duration) {
        self.add(time.as_secs_f64() * 1000.0);
    }

    /// In the order in which they were added.
    pub fn values(&self) -> &[f64] {
        &self.0
    }

    /// The smallest value that at least `percent` of all values do not exceed (nearest rank); `None` of nothing.
    pub fn percentile(&self, percent: f64) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let rank = (percent / 100.0 * sorted.len() as f64).ceil().max(1.0) as usize;
        sorted.get(rank - 1).copied()
    }

    /// The middle value; of an even number the mean of the two in the middle. `None` of nothing.
    pub fn median(&self) -> Option<f64> {
        let mut sorted = self.0.clone();
        sorted.sort_unstable_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let upper = *sorted.get(middle)?;
        match sorted.len().is_multiple_of(2) {
            true => Some(sorted.get(middle - 1)?.midpoint(upper)),
            false => Some(upper),
        }
    }

    /// How many times the smallest value the largest is; `None` of nothing, or where one is 0 or less.
    pub fn spread(&self) -> Option<f64> {
        let least = self.0.iter().copied().min_by(f64::total_cmp)?;
        let most = self.0.iter().copied().max_by(f64::total_cmp)?;
        (least > 0.0).then_some(most / least)
    }
}

impl FromIterator<f64> for Sample {
    fn from_iter<T: IntoIterator<Item = f64>>(values: T) -> Self {
        let mut sample = Sample::default();
        values.into_iter().for_each(|value| sample.add(value));
        sample
    }
}

/// One of two figures divided by the other; `None` where that says nothing.
pub fn ratio(of: Option<f64>, to: Option<f64>) -> Option<f64> {
    let (of, to) = (of?, to?);
    (to > 0.0).then_some(of / to)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(values: &[f64]) -> Sample {
        values.iter().copied().collect()
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        let hundred: Sample = (1..=100).rev().map(f64::from).collect();
        for (percent, value) in [(50.0, 50.0), (99.0, 99.0), (100.0, 100.0), (0.0, 1.0), (99.5, 100.0)] {
            assert_eq!(hundred.percentile(percent), Some(value), "{percent}");
        }
        assert_eq!(sample(&[3.0]).percentile(99.0), Some(3.0));
        assert_eq!(Sample::default().percentile(50.0), None);
    }

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(sample(&[9.0, 1.0, 2.0]).median(), Some(2.0));
        assert_eq!(sample(&[4.0, 1.0, 2.0, 100.0]).median(), Some(3.0));
        assert_eq!(sample(&[f64::NAN]).median(), None);
        let mut times = Sample::default();
        times.add_time(Duration::from_micros(1500));
        assert_eq!((times.median(), times.values()), (Some(1.5), &[1.5][..]));
    }

    #[test]
    fn a_spread_or_ratio_needs_a_second_figure() {
        assert_eq!(sample(&[2.0, 1.0, 3.0]).spread(), Some(3.0));
        assert_eq!((sample(&[0.0, 1.0]).spread(), Sample::default().spread()), (None, None));
        assert_eq!(ratio(Some(1.0), Some(4.0)), Some(0.25));
        assert_eq!((ratio(Some(1.0), Some(0.0)), ratio(None, Some(1.0))), (None, None));
    }
}
