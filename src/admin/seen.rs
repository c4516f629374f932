//! What the commands see of the objects, as plain types. A status is read leniently: another release of the driver may
//! write phases and fields that this one does not know.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::cluster::mover::status::{ANY, MOVE_TO};

/// The node of the volume is lost: the claim is to go on with its copy.
pub(super) const PROMOTE: &str = "hostloop.csi.dev/promote";

/// Names a claim.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Name {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// How far a move or a copy that stands by is, as the mover has written it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Told {
    pub(super) phase: String,
    pub(super) message: String,
    /// Names of the nodes.
    pub(super) source: String,
    pub(super) target: String,
    /// Size of the volume in bytes.
    pub(super) bytes: u64,
    /// Rounds that are done, and what they sent and found in bytes.
    pub(super) rounds: u32,
    pub(super) sent_bytes: u64,
    pub(super) changed_bytes: u64,
    pub(super) last_sent_bytes: u64,
    /// When the source was cut for the last round, in RFC 3339.
    pub(super) last_cut: Option<String>,
    /// Whether the copy stands by for the loss of the node.
    pub(super) standby: bool,
}

/// What the mover has written; `None` where that cannot be read at all.
pub(super) fn told(text: &str) -> Option<Told> {
    serde_json::from_str::<Told>(text).ok().filter(|told| !told.phase.is_empty())
}

impl Told {
    pub(super) fn is(&self, phases: &[&str]) -> bool {
        phases.contains(&self.phase.as_str())
    }

    pub(super) fn stands_by(&self) -> bool {
        self.standby || self.is(&["Standby"])
    }

    /// Whether a move is under way: neither at its end nor a copy that stands by.
    pub(super) fn is_under_way(&self) -> bool {
        !self.is(&["Done", "Refused", "Standby"])
    }

    /// How far the first copy is, in percent, if the message says so.
    pub(super) fn percent(&self) -> Option<u32> {
        let (before, _) = self.message.split_once('%')?;
        let digits = before.trim_end().rsplit(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse().ok().filter(|percent| *percent <= 100)
    }
}

/// A claim.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Claim {
    pub(super) version: String,
    pub(super) annotations: BTreeMap<String, String>,
    /// Its PersistentVolume.
    pub(super) volume: Option<String>,
    /// Whether the mover's finalizer holds it.
    pub(super) held: bool,
    pub(super) being_deleted: bool,
    pub(super) told: Option<Told>,
}

impl Claim {
    /// The node that is asked for, or [`ANY`].
    pub(super) fn wanted(&self) -> Option<&str> {
        self.annotations.get(MOVE_TO).map(|target| target.trim()).filter(|target| !target.is_empty())
    }
}

/// The record of a move on a PersistentVolume.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Record {
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) status: Told,
}

/// A PersistentVolume.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Volume {
    pub(super) name: String,
    pub(super) driver: String,
    pub(super) node: Option<String>,
    /// The claim that it is bound to or reserved for.
    pub(super) claim: Option<Name>,
    pub(super) record: Option<Record>,
}

/// A claim and what else tells of its move. While the claim is made again, only the record of its new PersistentVolume
/// does.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) claim: Option<Claim>,
    pub(super) record: Option<Record>,
    /// The node of the volume that the claim is bound to, where the user may read that.
    pub(super) node: Option<String>,
}

impl Seen {
    pub(super) fn told(&self) -> Option<&Told> {
        let of_claim = self.claim.as_ref().and_then(|claim| claim.told.as_ref());
        of_claim.or_else(|| self.record.as_ref().map(|record| &record.status))
    }

    pub(super) fn wanted(&self) -> Option<&str> {
        self.claim.as_ref().and_then(Claim::wanted)
    }

    pub(super) fn is_held(&self) -> bool {
        self.record.is_some() || self.claim.as_ref().is_some_and(|claim| claim.held)
    }
}

/// Whether a node is the one that is asked for.
pub(super) fn is_asked_for(asked: &str, node: &str) -> bool {
    asked == ANY || asked == node
}

/// A node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Machine {
    pub(super) cordoned: bool,
    pub(super) ready: bool,
}

/// Who moves volumes, as far as its Lease tells.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Leader {
    /// This controller, according to a Lease that was renewed lately.
    Leads(String),
    Nobody,
    /// The user may not read Leases.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_of_another_release_is_read() {
        let read = told(r#"{"phase": "Levitating", "rounds": 3, "height": {"metres": 2}}"#).unwrap();
        assert_eq!((read.phase.as_str(), read.rounds, read.is_under_way()), ("Levitating", 3, true));
        assert!(told(r#"{"phase": "Standby", "standby": true}"#).unwrap().stands_by());
        assert_eq!((told("{}"), told("soon")), (None, None));
    }

    #[test]
    fn the_message_of_the_first_copy_has_its_percentage() {
        let percent = |message: &str| Told { message: message.to_owned(), ..Told::default() }.percent();
        assert_eq!(percent("the first copy is being made: 50 %"), Some(50));
        assert_eq!(percent("100% of the copy"), Some(100));
        assert_eq!(
            (percent("the first copy is being made"), percent("%"), percent("300 %")),
            (None, None, None)
        );
    }

    #[test]
    fn while_there_is_no_claim_the_record_tells() {
        let of = |phase: &str| Told { phase: phase.to_owned(), ..Told::default() };
        let record = Record { namespace: "a".to_owned(), name: "b".to_owned(), status: of("Rebinding") };
        let mut seen = Seen { record: Some(record), ..Seen::default() };
        assert_eq!(seen.told().unwrap().phase, "Rebinding");
        seen.claim = Some(Claim::default());
        assert_eq!(seen.told().unwrap().phase, "Rebinding", "a StatefulSet has made the claim");
        seen.claim = Some(Claim { told: Some(of("Done")), ..Claim::default() });
        assert_eq!(seen.told().unwrap().phase, "Done");
    }
}
