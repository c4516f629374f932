//! The calls.

use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::server::Observer;

/// Upper limits of the classes in seconds: from what a volume in memory takes to a copy of a large one.
const LIMITS: [f64; 17] =
    [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0];
/// Stands for whatever is none of the methods: a caller must not be able to make labels of its own.
const OTHER: &str = "other";
/// The package that the log leaves out too.
const PACKAGE: &str = "csi.v1.";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Labels {
    method: &'static str,
    code: &'static str,
}

/// Counts of calls. Clones share them.
#[derive(Clone)]
pub(super) struct Rpcs {
    methods: &'static [&'static str],
    durations: Family<Labels, Histogram, fn() -> Histogram>,
    running: Gauge,
}

impl Rpcs {
    /// Counts of calls of these methods, as a part of a registry.
    pub(super) fn register(registry: &mut Registry, methods: &'static [&'static str]) -> Self {
        let durations = Family::new_with_constructor((|| Histogram::new(LIMITS)) as fn() -> Histogram);
        let running = Gauge::default();
        registry.register(
            "hostloop_rpc_duration_seconds",
            "Calls that have ended, by method and gRPC code, with their duration",
            durations.clone(),
        );
        registry.register("hostloop_rpcs_running", "Calls that are running", running.clone());
        Rpcs { methods, durations, running }
    }

    /// The method as the log names it.
    fn name_of(&self, method: &str) -> &'static str {
        let known = self.methods.iter().find(|known| **known == method);
        known.map_or(OTHER, |known| known.strip_prefix(PACKAGE).unwrap_or(known))
    }
}

impl Observer for Rpcs {
    fn begun(&self) {
        self.running.inc();
    }

    fn ended(&self, method: &str, code: &'static str, took: Duration) {
        self.running.dec();
        let labels = Labels { method: self.name_of(method), code };
        self.durations.get_or_create(&labels).observe(took.as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_cannot_make_labels() {
        let mut registry = Registry::default();
        let rpcs = Rpcs::register(&mut registry, &["csi.v1.Node/NodeStageVolume", "hostloop.v1.Peer/Hello"]);
        for method in ["csi.v1.Node/NodeStageVolume", "hostloop.v1.Peer/Hello", "a/b", "c\"}/d", ""] {
            rpcs.begun();
            rpcs.ended(method, "OK", Duration::from_millis(3));
        }
        rpcs.begun();
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        let counts: Vec<&str> = text.lines().filter(|line| line.contains("_count{")).collect();
        assert_eq!(counts.len(), 3, "{text}");
        for (method, count) in [("Node/NodeStageVolume", 1), ("hostloop.v1.Peer/Hello", 1), ("other", 3)] {
            let line =
                format!("hostloop_rpc_duration_seconds_count{{method=\"{method}\",code=\"OK\"}} {count}");
            assert!(counts.contains(&line.as_str()), "{line}: {text}");
        }
        assert!(text.contains("\nhostloop_rpcs_running 1\n"), "{text}");
        let classes: Vec<&str> = text.lines().filter(|line| line.contains("le=\"0.002\"")).collect();
        assert!(classes.iter().all(|line| line.ends_with(" 0")) && classes.len() == 3, "{text}");
    }
}
