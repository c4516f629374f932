//! Volumes that move to other nodes.

use std::fmt;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;

use super::page::Page;

/// What the moves of a controller have come to.
#[derive(Debug, Clone, PartialEq)]
pub struct MoveFigures {
    /// How many claims are in each phase.
    pub under_way: Vec<(&'static str, u64)>,
    /// Moves that ended on the other node, and those that were given up.
    pub done: u64,
    pub given_up: u64,
    pub rounds: u64,
    pub sent_bytes: u64,
    pub changed_bytes: u64,
    /// Steps that failed and were tried again.
    pub failures: u64,
    /// Namespace and name of each claim with a copy that stands by, the age of its data and how old they may become, in
    /// seconds.
    pub standby: Vec<(String, String, f64, f64)>,
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
        page.gauges("hostloop_moves", "Claims whose volumes this controller moves.", phases)?;
        for (name, help, value) in [
            ("hostloop_moves_done", "Volumes that are on another node now.", figures.done),
            (
                "hostloop_moves_given_up",
                "Moves that were cancelled or failed; the claim has its old volume.",
                figures.given_up,
            ),
            ("hostloop_move_rounds", "Rounds that brought a copy up to date.", figures.rounds),
            ("hostloop_move_sent_bytes", "Bytes that rounds have sent.", figures.sent_bytes),
            ("hostloop_move_changed_bytes", "Bytes that rounds have found changed.", figures.changed_bytes),
            ("hostloop_move_failures", "Steps that failed and were tried again.", figures.failures),
        ] {
            page.counter(name, help, value as f64)?;
        }
        let standby = |of: fn(&(String, String, f64, f64)) -> f64| {
            let claims = figures.standby.iter();
            claims.map(move |claim| {
                let (namespace, name) = (claim.0.as_str(), claim.1.as_str());
                ([("namespace", namespace), ("persistentvolumeclaim", name)], of(claim))
            })
        };
        page.gauges(
            "hostloop_standby_age_seconds",
            "Age of the data of the copy that stands by for a claim.",
            standby(|claim| claim.2),
        )?;
        page.gauges(
            "hostloop_standby_interval_seconds",
            "How old the data of that copy may become.",
            standby(|claim| claim.3),
        )
    }
}
