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
    use serde_json::{Value, json};

    use super::*;
    use crate::admin::seen::Name;
    use crate::cluster::moves::resources::{VolumeMove, VolumeReplica};

    fn replica(name: &str, purpose: &str, phase: &str, by: &str, age: i64) -> Replica {
        let spec = json!({"claim": {"namespace": "shop", "name": name, "uid": name}, "purpose": purpose,
            "requestedBy": {"name": "m", "uid": by}});
        let read = Replica::read(&spec, &json!({"phase": phase}));
        Replica { name: format!("pvc-{name}"), age: Some(age), ..read }
    }

    /// The value of each column that kubectl has for an object.
    fn columns<K: kube::CustomResourceExt>(object: &Value) -> Vec<Value> {
        let version = K::crd().spec.versions.remove(0);
        let columns = version.additional_printer_columns.expect("columns");
        let value = |path: &str| object.pointer(&path.replace('.', "/")).cloned().unwrap_or_default();
        columns.iter().map(|column| value(&column.json_path)).collect()
    }

    /// kubectl does not know the interval of a StorageClass, so it does not say that a copy is late.
    #[test]
    fn kubectl_shows_what_status_shows() {
        let status = json!({"phase": "Retiring", "sourceNode": "n1", "targetNode": "n2", "progress": "2 passes, 3 MiB",
            "unavailableMilliseconds": 1234, "message": "m", "passes": 2, "sentBytes": 3 << 20, "lastPass": {"asked": "2026-01-02T03:04:05Z"}});
        let of_move = json!({"spec": {"claimName": "data"}, "status": status});
        let spec = json!({"claim": {"namespace": "shop", "name": "data", "uid": "u"}, "sourceNode": "n1", "targetNode": "n2", "purpose": "Standby"});
        let of_replica = json!({"spec": spec, "status": status});
        let read = Replica::read(&spec, &status);
        let asked = Move { told: serde_json::from_value(status).expect("a status"), ..Move::default() };
        let shown = |claim: &Name, told: &Told, last_pass| {
            let row = Row { last_pass, ..Row::new(claim, told.clone()) };
            let Value::Object(row) = serde_json::to_value(row).expect("JSON") else { panic!("no object") };
            let own = ["namespace", "standby"];
            let values: Vec<(String, Value)> =
                row.into_iter().filter(|(key, _)| !own.contains(&key.as_str())).collect();
            values
        };
        let claim = Name { namespace: "shop".to_owned(), name: "data".to_owned() };
        let kinds = [
            (columns::<VolumeMove>(&of_move), shown(&claim, &asked.told, None)),
            (
                columns::<VolumeReplica>(&of_replica),
                shown(&read.claim, &read.told, read.last_pass.as_deref()),
            ),
        ];
        for (mut columns, shown) in kinds {
            // The progress of a copy is made of these.
            if columns.contains(&json!(2)) && columns.contains(&json!(3 << 20)) {
                columns.push(json!("2 passes, 3 MiB"));
            }
            for (key, value) in shown {
                assert!(columns.contains(&value), "{key}: kubectl has no column with {value}: {columns:?}");
            }
        }
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
