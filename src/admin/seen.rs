//! What the commands see of the objects, as plain types. They are read leniently: another release of the driver may write
//! phases and fields that this one does not know.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cluster::moves::progress::progress;
use crate::cluster::moves::resources::VolumeMoveSpec;

/// Names a claim.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How far a move or a standby copy is, as the controller has written it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Told {
    pub(super) phase: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) source_node: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) target_node: String,
    /// The pools, if the volume moves to another pool of its node.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) source_pool: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) target_pool: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) progress: String,
    /// For how long no pod could use the volume, in milliseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) unavailable_milliseconds: Option<i64>,
    pub(super) message: String,
}

impl Told {
    /// Returns where the volume comes from: a node, or a node and its pool.
    pub(super) fn from(&self) -> String {
        place(&self.source_node, &self.source_pool)
    }

    /// Returns where the volume goes.
    pub(super) fn to(&self) -> String {
        place(&self.target_node, &self.target_pool)
    }

    pub(super) fn is(&self, phases: &[&str]) -> bool {
        phases.contains(&self.phase.as_str())
    }
}

fn place(node: &str, pool: &str) -> String {
    if pool.is_empty() { node.to_owned() } else { format!("{node}/{pool}") }
}

/// A VolumeMove.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Move {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) version: String,
    pub(super) claim: Name,
    /// What it asks for; `None` if this release cannot read that.
    pub(super) spec: Option<VolumeMoveSpec>,
    /// The phase is empty if no controller has looked at it.
    pub(super) told: Told,
    pub(super) being_deleted: bool,
}

impl Move {
    /// Returns whether nothing is being done for it: it has been carried out, or refused.
    pub(super) fn is_over(&self) -> bool {
        self.told.is(&["Done", "Refused"])
    }
}

/// A VolumeReplica.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Replica {
    pub(super) name: String,
    pub(super) uid: String,
    pub(super) spec: ReplicaSpec,
    pub(super) claim: Name,
    /// The annotation that asks for its promotion is there.
    pub(super) promoted: bool,
    pub(super) told: Told,
    /// When the last pass was asked for, in RFC 3339. The copy has everything that was written before.
    pub(super) last_pass: Option<String>,
    /// Seconds since then.
    pub(super) age: Option<i64>,
}

/// What the commands need of the spec of a VolumeReplica.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct ReplicaSpec {
    pub(super) driver: String,
    pub(super) persistent_volume: Id,
    pub(super) claim: Id,
    pub(super) source_node: String,
    pub(super) target_node: String,
    pub(super) source_pool: String,
    pub(super) target_pool: String,
    pub(super) purpose: String,
    pub(super) requested_by: Id,
}

/// One object, and its namespace if it is in one.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(super) struct Id {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) uid: String,
}

/// What the commands need of the status of a VolumeReplica.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ReplicaStatus {
    phase: String,
    message: String,
    last_pass: Pass,
    passes: u64,
    sent_bytes: u64,
    unavailable_milliseconds: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Pass {
    asked: Option<String>,
}

impl Replica {
    /// Reads spec and status. What is missing or cannot be read is empty.
    pub(super) fn read(spec: &Value, status: &Value) -> Replica {
        let spec: ReplicaSpec = read(spec);
        let status: ReplicaStatus = read(status);
        let phase = if status.phase.is_empty() { "Pending".to_owned() } else { status.phase };
        Replica {
            claim: Name { namespace: spec.claim.namespace.clone(), name: spec.claim.name.clone() },
            last_pass: status.last_pass.asked,
            told: Told {
                phase,
                source_node: spec.source_node.clone(),
                target_node: spec.target_node.clone(),
                target_pool: if spec.source_pool.is_empty() {
                    String::new()
                } else {
                    spec.target_pool.clone()
                },
                source_pool: spec.source_pool.clone(),
                progress: progress(status.passes, status.sent_bytes, &status.message),
                unavailable_milliseconds: status.unavailable_milliseconds,
                message: status.message,
            },
            spec,
            ..Replica::default()
        }
    }

    pub(super) fn stands_by(&self) -> bool {
        self.spec.purpose == "Standby"
    }
}

/// Reads a value; what cannot be read is empty.
pub(super) fn read<T: Default + for<'de> Deserialize<'de>>(value: &Value) -> T {
    T::deserialize(value).unwrap_or_default()
}

/// A claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Claim {
    pub(super) uid: String,
    /// The node of its volume, if the user may read that.
    pub(super) node: Option<String>,
}

/// A PersistentVolume that is bound to a claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Volume {
    pub(super) driver: String,
    pub(super) node: Option<String>,
    pub(super) claim: Name,
}

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) cordoned: bool,
    pub(super) ready: bool,
}

/// Which controller moves volumes, by its Lease.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leader {
    /// This controller, which has renewed its Lease lately.
    Leads(String),
    Nobody,
    /// The user may not read Leases.
    Unknown,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_status_of_another_release_is_read() {
        let told: Told = read(&json!({"phase": "Levitating", "height": {"metres": 2}}));
        assert_eq!((told.phase.as_str(), told.is(&["Done", "Refused"])), ("Levitating", false));
        assert_eq!(read::<Told>(&Value::Null), Told::default());
        let spec = json!({"purpose": "Backup", "claim": {"namespace": "shop", "name": "data", "uid": "u"}});
        let status = json!({"lastPass": {"asked": "2026-01-02T03:04:05Z", "height": 1}, "passes": 3});
        let replica = Replica::read(&spec, &status);
        assert_eq!(replica.claim.to_string(), "shop/data");
        assert_eq!(replica.last_pass.as_deref(), Some("2026-01-02T03:04:05Z"));
        assert_eq!(
            (replica.told.phase.as_str(), replica.told.progress.as_str()),
            ("Pending", "3 passes, 0 B")
        );
    }
}
