//! What was measured.

use serde::Serialize;

use super::pattern::Pattern;
use crate::bench::sample::{Sample, ratio};
use crate::config::Candidate;

/// The name of the plain directory.
pub(super) const PLAIN: &str = "plain directory";

/// Everything about one disk.
#[derive(Debug, Clone)]
pub struct Results {
    pub(super) disk: Disk,
    /// The plain directory first.
    pub(super) places: Vec<Place>,
    /// Kinds of volumes that could not be measured, each with the reason.
    pub(super) left_out: Vec<(Candidate, String)>,
}

/// Where and how it was measured.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Disk {
    pub(super) dir: String,
    /// `ext4 on /dev/vda`
    pub(super) filesystem: String,
    pub(super) kernel: String,
    pub(super) volume_bytes: u64,
    /// How much of each volume was written and read.
    pub(super) file_bytes: u64,
    pub(super) turns: usize,
    /// Of one measurement.
    pub(super) seconds: f64,
}

/// One place, with its figures of each turn for each of [`Pattern::ALL`].
#[derive(Debug, Clone)]
pub(super) struct Place {
    /// `None` is the plain directory.
    pub(super) candidate: Option<Candidate>,
    pub(super) samples: [Sample; Pattern::ALL.len()],
}

impl Place {
    pub(super) fn new(candidate: Option<Candidate>) -> Self {
        Place { candidate, samples: Default::default() }
    }

    pub(super) fn name(&self) -> &'static str {
        self.candidate.map_or(PLAIN, Candidate::as_str)
    }

    /// Its figures of this pattern.
    pub(super) fn sample(&self, pattern: Pattern) -> Option<&Sample> {
        Pattern::ALL.iter().zip(&self.samples).find(|(of, _)| **of == pattern).map(|(_, sample)| sample)
    }

    /// Adds the figure of a turn.
    pub(super) fn add(&mut self, pattern: Pattern, figure: f64) {
        let found = Pattern::ALL.iter().zip(&mut self.samples).find(|(of, _)| **of == pattern);
        if let Some((_, sample)) = found {
            sample.add(figure);
        }
    }

    pub(super) fn median(&self, pattern: Pattern) -> Option<f64> {
        self.sample(pattern)?.median()
    }
}

impl Results {
    /// The plain directory.
    pub(super) fn plain(&self) -> Option<&Place> {
        self.places.first()
    }

    /// What this place gives of the plain directory: 1 is all of it.
    pub(super) fn ratio(&self, place: &Place, pattern: Pattern) -> Option<f64> {
        ratio(place.median(pattern), self.plain()?.median(pattern))
    }

    /// As JSON, for programs.
    pub(super) fn json(&self, summary: &[String]) -> serde_json::Value {
        let figures = |place: &Place| -> serde_json::Map<String, serde_json::Value> {
            let of = |pattern: Pattern| {
                let median = place.median(pattern)?;
                let figure = serde_json::json!({
                    "unit": pattern.unit(),
                    "median": median,
                    "ratio": self.ratio(place, pattern),
                    "turns": place.sample(pattern)?.values(),
                });
                Some((serde_json::to_value(pattern).ok()?.as_str()?.to_owned(), figure))
            };
            Pattern::ALL.into_iter().filter_map(of).collect()
        };
        let places: Vec<_> = self
            .places
            .iter()
            .map(|place| serde_json::json!({ "name": place.name(), "figures": figures(place) }))
            .collect();
        let left_out: Vec<_> = self
            .left_out
            .iter()
            .map(|(candidate, why)| serde_json::json!({ "name": candidate.as_str(), "reason": why }))
            .collect();
        serde_json::json!({
            "disk": self.disk, "places": places, "left_out": left_out, "summary": summary,
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Results of two turns with these figures of each pattern; both turns have the same.
    pub(in crate::bench::disk) fn results(places: &[(Option<Candidate>, [f64; 6])]) -> Results {
        let disk = Disk {
            dir: "/d <&>".to_owned(),
            filesystem: "ext4 on /dev/vda".to_owned(),
            kernel: "6.18.0".to_owned(),
            volume_bytes: 512 << 20,
            file_bytes: 128 << 20,
            turns: 2,
            seconds: 0.5,
        };
        let place = |(candidate, figures): &(Option<Candidate>, [f64; 6])| Place {
            candidate: *candidate,
            samples: figures.map(|figure| [figure, figure].into_iter().collect()),
        };
        Results { disk, places: places.iter().map(place).collect(), left_out: Vec::new() }
    }

    #[test]
    fn ratios_are_to_the_plain_directory() {
        let nothing = f64::NAN;
        let mut results = results(&[
            (None, [100.0, 100.0, 10.0, 4.0, 1.0, 1.0]),
            (Some(Candidate::Block), [50.0, 150.0, 10.0, nothing, 1.0, 0.5]),
        ]);
        results.left_out.push((Candidate::Xfs, "mkfs.xfs missing".to_owned()));
        let block = &results.places[1];
        assert_eq!(results.ratio(block, Pattern::RandomRead), Some(0.5));
        assert_eq!(results.ratio(block, Pattern::CreateSync), None);
        let json = results.json(&["It is so.".to_owned()]);
        let block = &json["places"][1];
        assert_eq!(
            (&block["name"], &block["figures"]["random_write"]["ratio"]),
            (&"block".into(), &1.5.into())
        );
        assert_eq!(block["figures"]["random_read"]["turns"], serde_json::json!([50.0, 50.0]));
        assert_eq!(block["figures"]["create_sync"], serde_json::Value::Null);
        assert_eq!(json["places"][0]["figures"]["create_sync"]["median"], 4.0);
        assert_eq!((&json["left_out"][0]["name"], &json["summary"][0]), (&"xfs".into(), &"It is so.".into()));
    }
}
