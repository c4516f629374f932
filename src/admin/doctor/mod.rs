//! `hostloop doctor`: asks nodes and API server what they have, joins it (`join.rs`), and has nodes put right what does not fit.
//!
//! Nodes are asked first and the API server after them: what a node had before and no object names now was not made in between. All is
//! asked twice, and only what is found both times counts. A fix is a request to the node for exactly what was seen; the node looks
//! again. Fixes come one after the other, so the API server is asked again before each that relies on its answer.

mod join;
mod lost;
mod row;
#[cfg(test)]
pub(super) mod tests;
mod wanted;

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use self::join::Look;
use self::row::Row;
use super::Outcome;
use super::api::Cluster;
use super::api::doctor::Known;
use super::inspect::{cluster_of, connect, harmless};
use super::screen::Screen;
use crate::cli::{DoctorArgs, SourceArgs};
use crate::cluster::details::Source;
use crate::shutdown::Shutdown;

/// The time between the two looks.
const PAUSE: Duration = Duration::from_secs(2);

/// Runs the command until its end, or until Ctrl-C.
pub(super) async fn run(args: DoctorArgs, shutdown: Shutdown) -> Outcome {
    let mut screen = Screen::new(args.json);
    tokio::select! {
        outcome = visit(&args, &mut screen) => outcome,
        () = shutdown.requested() => Outcome::Failed,
    }
}

async fn visit(args: &DoctorArgs, screen: &mut Screen) -> Outcome {
    let Ok(cluster) = cluster_of(&args.source, screen).await else { return Outcome::Failed };
    let source = match connect(&args.source, cluster.as_ref()).await {
        Ok(source) => source,
        Err(error) => {
            screen.problem(&harmless(&error));
            return Outcome::Failed;
        }
    };
    Visit { args, cluster, source, pause: PAUSE }.run(screen).await
}

/// Returns what is found on all nodes, as JSON. Nothing is changed.
///
/// # Errors
/// If the nodes cannot be asked at all.
pub(super) async fn report(
    source: Source,
    cluster: Option<Cluster>,
    asked: &SourceArgs,
) -> Result<String, String> {
    let args = DoctorArgs {
        node: None,
        fix: false,
        delete_data: false,
        class: Vec::new(),
        grace: Duration::ZERO,
        json: true,
        source: asked.clone(),
    };
    let Looked { rows, unknown, .. } = Visit { args: &args, cluster, source, pause: PAUSE }.look().await?;
    serde_json::to_string_pretty(&Report { findings: &rows, unknown: &unknown })
        .map_err(|error| error.to_string())
}

/// One run of the command.
struct Visit<'a> {
    args: &'a DoctorArgs,
    /// `None` with `--endpoint`.
    cluster: Option<Cluster>,
    source: Source,
    pause: Duration,
}

/// All findings, for programs.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report<'a> {
    findings: &'a [Row],
    /// Nodes that did not answer, and what was not looked at on others.
    unknown: &'a BTreeSet<String>,
}

/// What was answered, and what follows from it.
struct Looked {
    look: Look,
    rows: Vec<Row>,
    /// What is not known.
    unknown: BTreeSet<String>,
}

impl Visit<'_> {
    async fn run(&self, screen: &mut Screen) -> Outcome {
        let looked = match self.look_twice().await {
            Ok(looked) => looked,
            Err(error) => {
                screen.problem(&harmless(&error));
                return Outcome::Failed;
            }
        };
        let Looked { mut look, mut rows, unknown } = looked;
        if self.args.fix {
            for row in &mut rows {
                self.put_right(row, &mut look).await;
            }
        }
        self.print(screen, &rows, &unknown);
        let is_left = |row: &Row| row.done.is_none();
        Outcome::of(unknown.is_empty() && !rows.iter().any(is_left))
    }

    /// Returns what is amiss in both of two looks, as it is in the second, and what is not known.
    async fn look_twice(&self) -> Result<Looked, String> {
        let first = self.look().await?;
        if first.rows.is_empty() {
            return Ok(first);
        }
        tokio::time::sleep(self.pause).await;
        let mut second = self.look().await?;
        let first = first.rows;
        second.rows.retain(|row| first.iter().any(|earlier| earlier.key() == row.key()));
        for row in &mut second.rows {
            let was_kept =
                first.iter().any(|earlier| earlier.key() == row.key() && earlier.request.is_none());
            if was_kept && row.request.is_some() {
                row.keep("it was in use, or not known, a moment ago".to_owned());
            }
        }
        Ok(second)
    }

    /// Asks all nodes, also if one is meant: what is left of a volume on one node depends on the answer of another.
    async fn look(&self) -> Result<Looked, String> {
        let nodes = self.source.findings(None).await?;
        let only = self.args.node.as_deref();
        if let Some(node) = only.filter(|only| nodes.iter().all(|node| node.known.node_id != *only)) {
            return Err(format!("there is no node {node:?}; hostloop nodes lists them"));
        }
        let (known, mut unknown) = self.known().await;
        for node in nodes.iter().filter(|node| only.is_none_or(|only| node.known.node_id == only)) {
            let id = &node.known.node_id;
            match &node.answer {
                Err(why) => drop(unknown.insert(format!("node {id} did not answer: {why}"))),
                Ok(answer) => unknown.extend(answer.unknown.iter().map(|why| format!("node {id}: {why}"))),
            }
        }
        let driver = self.cluster.as_ref().map(|_| self.args.source.driver_name.clone());
        let look = Look { nodes, known, driver };
        let rows = self.rows_of(&look);
        Ok(Looked { look, rows, unknown })
    }

    async fn known(&self) -> (Known, BTreeSet<String>) {
        match &self.cluster {
            Some(cluster) => cluster.all_known().await,
            None => (Known::default(), BTreeSet::new()),
        }
    }

    /// Returns the findings that were asked for.
    fn rows_of(&self, look: &Look) -> Vec<Row> {
        let mut rows = join::findings(look, self.args.grace);
        if let Some(node) = &self.args.node {
            rows.retain(|row| row.node == *node);
        }
        let classes = &self.args.class;
        rows.retain(|row| classes.is_empty() || classes.iter().any(|class| class.as_str() == row.class));
        rows
    }

    async fn put_right(&self, row: &mut Row, look: &mut Look) {
        if row.deletes_data && !self.args.delete_data {
            return;
        }
        let Some(request) = row.request.clone() else { return };
        if (request.unnamed || request.pod_gone || row.deletes_data)
            && let Err(why) = self.expect_still(row, look).await
        {
            row.failed = Some(why);
            return;
        }
        match self.source.fix(request).await {
            Ok(done) => row.done = Some(done),
            Err(why) => row.failed = Some(why),
        }
    }

    /// Asks the API server again, and the other node that a fix relies on.
    ///
    /// # Errors
    /// Why the fix is not to be sent: what was found is not found now, or differs.
    async fn expect_still(&self, row: &Row, look: &mut Look) -> Result<(), String> {
        if let Some(other) = &row.relies_on {
            let asked = self.source.findings(Some(other)).await?;
            look.nodes.retain(|node| node.known.node_id != *other);
            look.nodes.extend(asked);
        }
        look.known = self.known().await.0;
        let now = self.rows_of(look).into_iter().find(|now| now.key() == row.key());
        let changed = "the objects of the API server have changed meanwhile: look again";
        let now = now.ok_or(changed)?;
        match now.request == row.request {
            true => Ok(()),
            false => Err(now.kept.unwrap_or_else(|| changed.to_owned())),
        }
    }

    fn print(&self, screen: &mut Screen, rows: &[Row], unknown: &BTreeSet<String>) {
        if self.args.json {
            match serde_json::to_string_pretty(&Report { findings: rows, unknown }) {
                Ok(text) => screen.line(&text),
                Err(error) => screen.problem(&error.to_string()),
            }
        } else if rows.is_empty() {
            screen.line(if unknown.is_empty() {
                "nothing is amiss"
            } else {
                "no findings in the answers that came; not everything was looked at"
            });
        } else {
            screen.line(&harmless(&row::table(rows, self.args.fix)));
        }
        for problem in unknown {
            screen.problem(&harmless(problem));
        }
    }
}
