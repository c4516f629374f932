//! `hostloop status`: the moves of a cluster, and its copies.

use std::collections::HashMap;
use std::time::Duration;

use super::api::permitted;
use super::screen::{Row, Style, table};
use super::seen::{Move, Replica, Told};
use super::{Failure, Outcome, Session};
use crate::cli::StatusArgs;

/// A standby copy that is older than this number of intervals, and a minute, is late (the alert HostloopStandbyLate).
const LATE: u64 = 3;
const LATER: Duration = Duration::from_secs(60);

impl Session {
    pub(super) async fn show(&mut self, args: &StatusArgs) -> Result<Outcome, Failure> {
        let own = self.cluster.namespace.clone();
        let namespace = args.namespace.clone().unwrap_or(own);
        let namespace = (!args.all_namespaces).then_some(namespace.as_str());
        let moves = self.cluster.moves(namespace).await?;
        let mut replicas = match self.cluster.replicas(&args.cluster.driver_name).await {
            Ok(replicas) => replicas,
            Err(error @ Failure::Forbidden(_)) => {
                self.screen.problem(&format!("standby copies are not shown: {error}"));
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        replicas.retain(|replica| namespace.is_none_or(|namespace| replica.claim.namespace == namespace));
        let intervals = match replicas.iter().any(Replica::stands_by) {
            true => permitted(self.cluster.intervals(namespace).await)?.unwrap_or_default(),
            false => HashMap::new(),
        };
        let rows = rows(&moves, &replicas, &intervals);
        if self.screen.style == Style::Json {
            rows.iter().for_each(|row| self.screen.json(row));
            return Ok(Outcome::Done);
        }
        match (rows.is_empty(), namespace) {
            (false, _) => self.screen.line(&table(&rows)),
            (true, Some(namespace)) => {
                self.screen.line(&format!(
                    "no claim in namespace {namespace} moves, has moved or has a standby copy"
                ));
            }
            (true, None) => self.screen.line("no claim moves, has moved or has a standby copy"),
        }
        Ok(Outcome::Done)
    }
}

/// Returns a row for each VolumeMove, and for each copy that no VolumeMove speaks of, by the names of their claims.
fn rows<'a>(
    moves: &'a [Move],
    replicas: &'a [Replica],
    intervals: &HashMap<String, Duration>,
) -> Vec<Row<'a>> {
    let of_move = |asked: &'a Move| {
        let mut told = asked.told.clone();
        if told.phase.is_empty() {
            let message = "no controller has looked at it yet".to_owned();
            let target_node = asked.spec.as_ref().and_then(|spec| spec.target.node.clone());
            let target_node = target_node.unwrap_or_default();
            told = Told { phase: "Asked".to_owned(), target_node, message, ..Told::default() };
        }
        Row { object: format!("vmove/{}", asked.name), ..Row::new(&asked.claim, told) }
    };
    let asked_for = |replica: &&Replica| {
        let by = &replica.spec.requested_by.uid;
        replica.told.is(&["Left"]) || !moves.iter().any(|asked| asked.uid == *by)
    };
    let of_replica = |replica: &'a Replica| {
        let limit = intervals.get(&replica.spec.claim.uid).filter(|_| replica.stands_by());
        let limit = limit.map(|interval| interval.as_secs().saturating_mul(LATE) + LATER.as_secs());
        Row {
            object: format!("vreplica/{}", replica.name),
            standby: replica.stands_by(),
            last_pass: replica.last_pass.as_deref(),
            age: replica.age,
            late: replica.age.zip(limit).is_some_and(|(age, limit)| age.unsigned_abs() > limit && age > 0),
            ..Row::new(&replica.claim, replica.told.clone())
        }
    };
    let copies = replicas.iter().filter(asked_for).map(of_replica);
    let mut rows: Vec<Row<'_>> = moves.iter().map(of_move).chain(copies).collect();
    rows.sort_by(|a, b| (a.namespace, a.claim, &a.object).cmp(&(b.namespace, b.claim, &b.object)));
    rows
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::admin::seen::Name;

    fn replica(name: &str, purpose: &str, phase: &str, by: &str, age: i64) -> Replica {
        let spec = json!({"claim": {"namespace": "shop", "name": name, "uid": name}, "purpose": purpose,
            "requestedBy": {"name": "m", "uid": by}});
        let read = Replica::read(&spec, &json!({"phase": phase}));
        Replica { name: format!("pvc-{name}"), age: Some(age), ..read }
    }

    #[test]
    fn a_copy_is_shown_unless_its_move_is() {
        let claim = |name: &str| Name { namespace: "shop".to_owned(), name: name.to_owned() };
        let asked = |name: &str, phase: &str| Move {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            claim: claim(name),
            told: Told { phase: phase.to_owned(), ..Told::default() },
            ..Move::default()
        };
        let moves = [asked("log", "Copying"), asked("data", "")];
        let replicas = [
            replica("log", "Move", "Copying", "uid-log", 0),
            replica("kept", "Move", "Left", "uid-log", 0),
            replica("late", "Standby", "Standby", "", 241),
            replica("fine", "Standby", "Standby", "", 240),
            replica("unknown", "Standby", "Standby", "", 9999),
            replica("cancelled", "Move", "Abandoning", "gone", 0),
        ];
        let minute = Duration::from_secs(60);
        let intervals = ["late", "fine"].map(|uid| (uid.to_owned(), minute)).into();
        let rows = rows(&moves, &replicas, &intervals);
        let shown: Vec<(&str, &str, bool)> =
            rows.iter().map(|row| (row.object.as_str(), row.told.phase.as_str(), row.late)).collect();
        assert_eq!(
            shown,
            [
                ("vreplica/pvc-cancelled", "Abandoning", false),
                ("vmove/data", "Asked", false),
                ("vreplica/pvc-fine", "Standby", false),
                ("vreplica/pvc-kept", "Left", false),
                ("vreplica/pvc-late", "Standby", true),
                ("vmove/log", "Copying", false),
                ("vreplica/pvc-unknown", "Standby", false),
            ]
        );
    }
}
