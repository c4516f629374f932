//! Writing metric families whose values are asked for at the moment of a scrape.

use std::fmt;

use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::Exemplar;

pub(super) type Labels<'a, const N: usize> = [(&'static str, &'a str); N];

/// Where families are written to, each once.
pub(super) struct Page<'a>(pub(super) DescriptorEncoder<'a>);

impl Page<'_> {
    pub(super) fn gauge(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    /// The same for several things, which the labels tell apart.
    pub(super) fn gauges<'a, const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        values: impl IntoIterator<Item = (Labels<'a, N>, f64)>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        values.into_iter().try_for_each(|(labels, value)| family.encode_family(&labels)?.encode_gauge(&value))
    }

    /// A value that only grows; `_total` is added to its name.
    pub(super) fn counter(&mut self, name: &str, help: &str, value: f64) -> fmt::Result {
        let none: Option<&Exemplar<NoLabelSet, f64>> = None;
        self.0.encode_descriptor(name, help, None, MetricType::Counter)?.encode_counter(&value, none)
    }

    /// How many values there were in each class.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        help: &str,
        sum: f64,
        classes: &[(f64, u64)],
    ) -> fmt::Result {
        let count = classes.iter().map(|(_, count)| count).sum();
        self.0
            .encode_descriptor(name, help, None, MetricType::Histogram)?
            .encode_histogram::<NoLabelSet>(sum, count, classes, None)
    }
}
