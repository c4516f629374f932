//! What was measured of a driver.

use serde_json::{Value, json};

use super::load::Load;
use crate::bench::life::Rpc;
use crate::bench::sample::{Sample, ratio};

/// The lives of one number of clients, or beside one number of other volumes.
#[derive(Debug, Clone, Default)]
pub struct Figures {
    /// Lives in a second, of each turn.
    pub rates: Sample,
    /// Milliseconds of each life.
    pub lives: Sample,
    /// Milliseconds of each call, for each of [`Rpc::ALL`].
    rpcs: [Sample; Rpc::ALL.len()],
}

/// What a row of figures is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Row {
    /// So many clients at once.
    Clients(usize),
    /// One client beside so many volumes.
    Beside(usize),
}

/// What was measured of a driver.
#[derive(Debug, Clone, Default)]
pub(super) struct Measured {
    /// Its name and version.
    pub(super) name: String,
    pub(super) uri: String,
    pub(super) parameters: String,
    pub(super) rows: Vec<(Row, Figures)>,
}

impl Measured {
    /// Adds a turn to the figures of this row.
    pub(super) fn add(&mut self, row: Row, load: &Load) {
        match self.rows.iter_mut().find(|(of, _)| *of == row) {
            Some((_, figures)) => figures.add(load),
            None => {
                let mut figures = Figures::default();
                figures.add(load);
                self.rows.push((row, figures));
            }
        }
    }
}

impl Figures {
    /// Adds a turn.
    pub fn add(&mut self, load: &Load) {
        self.rates.add(load.rate());
        for times in &load.lives {
            self.lives.add_time(times.whole());
            for (rpc, sample) in Rpc::ALL.into_iter().zip(&mut self.rpcs) {
                if let Some(time) = times.of(rpc) {
                    sample.add_time(time);
                }
            }
        }
    }

    /// The calls that the driver has, each with its times in milliseconds.
    pub fn rpcs(&self) -> impl Iterator<Item = (Rpc, &Sample)> {
        Rpc::ALL.into_iter().zip(&self.rpcs).filter(|(_, sample)| !sample.values().is_empty())
    }

    fn json(&self) -> Value {
        let times = |sample: &Sample| json!({"p50_ms": sample.median(), "p99_ms": sample.percentile(99.0)});
        let rpcs: serde_json::Map<String, Value> =
            self.rpcs().map(|(rpc, sample)| (rpc.as_str().to_owned(), times(sample))).collect();
        json!({
            "lives": self.lives.values().len(),
            "lives_per_second": self.rates.median(),
            "life": times(&self.lives),
            "rpcs": rpcs,
        })
    }
}

impl Row {
    fn add_to(self, mut object: Value) -> Value {
        let (key, number) = match self {
            Row::Clients(number) => ("clients", number),
            Row::Beside(number) => ("beside_volumes", number),
        };
        if let Some(object) = object.as_object_mut() {
            object.insert(key.to_owned(), json!(number));
        }
        object
    }
}

/// The first driver's medians divided by the second one's: lives in a second, then a life, then each call of both.
pub(super) fn compare(first: &Figures, second: &Figures) -> Vec<(String, [Option<f64>; 3])> {
    let of = |name: &str, first: &Sample, second: &Sample| {
        let (first, second) = (first.median(), second.median());
        (name.to_owned(), [first, second, ratio(first, second)])
    };
    let mut rows = vec![of("lives/s", &first.rates, &second.rates), of("life", &first.lives, &second.lives)];
    for (rpc, sample) in first.rpcs() {
        let other = second.rpcs().find(|(other, _)| *other == rpc);
        rows.extend(other.map(|(_, other)| of(rpc.as_str(), sample, other)));
    }
    rows
}

/// As JSON, for programs.
pub(super) fn json(drivers: &[Measured]) -> Value {
    let each: Vec<Value> = drivers
        .iter()
        .map(|driver| {
            let rows: Vec<Value> =
                driver.rows.iter().map(|(row, figures)| row.add_to(figures.json())).collect();
            json!({"name": driver.name, "endpoint": driver.uri, "parameters": driver.parameters, "rows": rows})
        })
        .collect();
    let [first, second] = drivers else { return json!({ "drivers": each }) };
    let ratios: Vec<Value> = first
        .rows
        .iter()
        .zip(&second.rows)
        .map(|((row, first), (_, second))| {
            let of = |(name, [first, second, ratio]): (String, [Option<f64>; 3])| {
                (name, json!({"first": first, "second": second, "ratio": ratio}))
            };
            let all: serde_json::Map<String, Value> = compare(first, second).into_iter().map(of).collect();
            row.add_to(Value::Object(all))
        })
        .collect();
    json!({"drivers": each, "ratios": ratios})
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::life::Times;

    /// Ten lives whose two calls take so many milliseconds, in one second.
    pub(in crate::bench::rpc) fn figures(milliseconds: u64) -> Figures {
        let time = Duration::from_millis(milliseconds);
        let life = Times(vec![(Rpc::CreateVolume, time), (Rpc::DeleteVolume, time)]);
        let mut figures = Figures::default();
        figures.add(&Load { lives: vec![life; 10], elapsed: Duration::from_secs(1) });
        figures
    }

    pub(in crate::bench::rpc) fn measured(name: &str, milliseconds: u64) -> Measured {
        let rows = [Row::Clients(1), Row::Beside(100)].map(|row| (row, figures(milliseconds))).to_vec();
        Measured { name: name.to_owned(), uri: "unix:///a".to_owned(), parameters: "a=b".to_owned(), rows }
    }

    #[test]
    fn a_life_is_the_sum_of_its_calls() {
        let figures = figures(2);
        assert_eq!((figures.lives.median(), figures.rates.median()), (Some(4.0), Some(10.0)));
        let rpcs: Vec<_> = figures.rpcs().map(|(rpc, sample)| (rpc.as_str(), sample.median())).collect();
        assert_eq!(rpcs, [("CreateVolume", Some(2.0)), ("DeleteVolume", Some(2.0))]);
    }

    #[test]
    fn json_has_each_driver_and_what_is_compared() {
        let one = json(&[measured("a 1", 2)]);
        assert_eq!(one.as_object().unwrap().len(), 1);
        let row = &one["drivers"][0]["rows"][0];
        assert_eq!(
            (&row["clients"], &row["life"]["p99_ms"], &row["lives"]),
            (&json!(1), &json!(4.0), &json!(10))
        );
        assert_eq!(row["rpcs"]["NodeStageVolume"], Value::Null);
        assert_eq!(one["drivers"][0]["rows"][1]["beside_volumes"], json!(100));
        let two = json(&[measured("a 1", 2), measured("b 2", 8)]);
        let ratio = &two["ratios"][1];
        assert_eq!(ratio["life"], json!({"first": 4.0, "second": 16.0, "ratio": 0.25}));
        assert_eq!((&ratio["beside_volumes"], &ratio["lives/s"]["ratio"]), (&json!(100), &json!(1.0)));
    }
}
