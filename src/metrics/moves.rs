//! Volumes that move to other nodes.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::page::Page;

/// What the moves of a controller have come to.
#[derive(Debug, Clone, PartialEq)]
pub struct MoveFigures {
    /// How many copies are in each phase.
    pub under_way: Vec<(&'static str, u64)>,
    /// Moves that ended on the other node, and those that were given up.
    pub done: u64,
    pub given_up: u64,
    pub passes: u64,
    pub sent_bytes: u64,
    pub changed_bytes: u64,
    /// Steps that failed and were tried again.
    pub failures: u64,
    /// Each claim with a copy that stands by as `NAMESPACE/NAME`, the age of the copy's data and how old they may become, in
    /// seconds.
    pub standby: Vec<(String, f64, f64)>,
    /// Each claim with which no pod can start, because its volume changes its node or its pool, as `NAMESPACE/NAME`, and the phase.
    pub cutovers: Vec<(String, &'static str)>,
}

/// What they are now. Never waits.
pub type Moves = Arc<dyn Fn() -> MoveFigures + Send + Sync>;

/// Asks at each scrape.
pub(super) struct MoveCollector(pub(super) Moves);

impl fmt::Debug for MoveCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MoveCollector").finish_non_exhaustive()
    }
}

impl Collector for MoveCollector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let figures = (self.0)();
        let mut page = Page(encoder);
        let phases = figures.under_way.iter().map(|(phase, count)| ([("phase", *phase)], *count as f64));
        page.gauges(
            "hostloop_moves",
            "Copies of volumes, by their phase. Those that stand by are among them.",
            phases,
        )?;
        for (name, help, value) in [
            ("hostloop_moves_done", "Volumes that are on another node now.", figures.done),
            (
                "hostloop_moves_given_up",
                "Copies that were not needed any more, or could not be used.",
                figures.given_up,
            ),
            ("hostloop_move_passes", "Passes that brought a copy up to date.", figures.passes),
            ("hostloop_move_sent_bytes", "Bytes that passes have sent.", figures.sent_bytes),
            ("hostloop_move_changed_bytes", "Bytes that passes have found changed.", figures.changed_bytes),
            ("hostloop_move_failures", "Steps that failed and were tried again.", figures.failures),
        ] {
            page.counter(name, help, value as f64)?;
        }
        let cutovers = figures
            .cutovers
            .iter()
            .map(|(claim, phase)| ([("claim", claim.as_str()), ("phase", *phase)], 1.0));
        page.gauges(
            "hostloop_move_cutover",
            "1 while no pod can start with the claim, because its volume changes its node or its pool.",
            cutovers,
        )?;
        let standby = |of: fn(&(String, f64, f64)) -> f64| {
            figures.standby.iter().map(move |claim| ([("claim", claim.0.as_str())], of(claim)))
        };
        page.gauges(
            "hostloop_standby_age_seconds",
            "Age of the data of the copy that stands by for a claim.",
            standby(|claim| claim.1),
        )?;
        page.gauges(
            "hostloop_standby_interval_seconds",
            "How old the data of that copy may become.",
            standby(|claim| claim.2),
        )
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text::encode;
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn copies_and_cutovers_have_their_claims() {
        let figures = MoveFigures {
            under_way: Vec::new(),
            done: 0,
            given_up: 0,
            passes: 0,
            sent_bytes: 0,
            changed_bytes: 0,
            failures: 0,
            standby: vec![("shop/data-db-0".to_owned(), 12.5, 60.0)],
            cutovers: vec![("shop/data-db-1".to_owned(), "LastPass")],
        };
        let mut registry = Registry::default();
        registry.register_collector(Box::new(MoveCollector(Arc::new(move || figures.clone()))));
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        for line in [
            "hostloop_standby_age_seconds{claim=\"shop/data-db-0\"} 12.5\n",
            "hostloop_standby_interval_seconds{claim=\"shop/data-db-0\"} 60.0\n",
            "hostloop_move_cutover{claim=\"shop/data-db-1\",phase=\"LastPass\"} 1.0\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }
}
