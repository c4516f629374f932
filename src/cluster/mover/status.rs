//! What a move writes on the objects of Kubernetes: all that it knows. Whoever comes after it reads it there.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::PersistentVolumeClaimSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use serde::{Deserialize, Serialize};

/// What users write on a claim: the node that its volume is to move to, or [`ANY`].
pub const MOVE_TO: &str = "hostloop.csi.dev/move-to";
/// The value of [`MOVE_TO`] that leaves the choice to the mover.
pub const ANY: &str = "any";
/// `"true"`: the pods are evicted once the copy is nearly up to date.
pub const MOVE_NOW: &str = "hostloop.csi.dev/move-now";
/// `"true"`: pods that nobody makes again may be in the way; whoever owns them makes them again.
pub const MOVE_BARE_PODS: &str = "hostloop.csi.dev/move-bare-pods";
/// `"true"`: the old volume stays, with its PersistentVolume *Released*.
pub const KEEP_SOURCE: &str = "hostloop.csi.dev/keep-source";
/// `"1"`: a copy stands by on another node, and is brought up to date again and again; `"0"`: none does, whatever the parameter
/// `standby` of the StorageClass says.
pub const STANDBY: &str = "hostloop.csi.dev/standby";
/// How old the data of a standby copy may become, such as `1m`.
pub const STANDBY_INTERVAL: &str = "hostloop.csi.dev/standby-interval";
/// `"true"`: the standby copy takes the place of the volume, also if the node of that does not answer.
pub const PROMOTE: &str = "hostloop.csi.dev/promote";
/// On the PersistentVolume of a volume whose node was lost: the volume id of the copy that has taken its place. The mover seals
/// the volume when its node is back, and then takes this away.
pub const FENCE: &str = "hostloop.csi.dev/fence";
/// What Kubernetes knows a node by of which an administrator says that it is shut down (core/v1, TaintNodeOutOfService).
pub const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";
/// How far the move is: [`Status`].
pub const MOVE_STATUS: &str = "hostloop.csi.dev/move-status";
/// On a claim that was made again, until it is bound: when it was changed last, so that Kubernetes looks at it.
pub(super) const BIND: &str = "hostloop.csi.dev/bind";
/// On a PersistentVolume: the claim that is to be made for it, [`Record`].
pub const MOVE_RECORD: &str = "hostloop.csi.dev/move-record";
/// On the PersistentVolume of a claim that is being moved: the move, and the reclaim policy before it, as `NAME/POLICY`.
pub const POLICY_WAS: &str = "hostloop.csi.dev/move-reclaim-policy";
/// On a PersistentVolume that was kept: the volume that has taken its place.
pub const MOVED_TO: &str = "hostloop.csi.dev/moved-to";
/// A label of the PersistentVolumes that a move has changed, by which they are found.
pub const MOVING: &str = "hostloop.csi.dev/moving";
/// Holds a claim until its copy is deleted, or until everything is ready for the claim that replaces it.
pub const FINALIZER: &str = "hostloop.csi.dev/move";

/// Why a move is given up whose claim asks for another node, or for none.
pub const NOT_ASKED_FOR: &str = "it is not asked for any more";
/// Why a move is given up that begins again with a larger copy.
pub const HAS_GROWN: &str = "the volume has grown; the copy is made again";

/// What belongs to one claim and is not for the one that replaces it.
const OF_ONE_CLAIM: [&str; 12] = [
    BIND,
    MOVE_TO,
    PROMOTE,
    MOVE_NOW,
    MOVE_BARE_PODS,
    KEEP_SOURCE,
    MOVE_STATUS,
    "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller",
    "volume.kubernetes.io/selected-node",
    "volume.kubernetes.io/storage-provisioner",
    "volume.beta.kubernetes.io/storage-provisioner",
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Phase {
    /// Nothing was done; the message says why, and what to do.
    Refused,
    /// The first copy is being made.
    Copying,
    /// Rounds bring what has changed since.
    CatchingUp,
    /// The copy is nearly up to date; the pods may go.
    Ready,
    /// The copy stands by: it is brought up to date again and again.
    Standby,
    /// The claim is being deleted. When its pods have gone comes the last round. The last phase that can be cancelled.
    Switching,
    /// The copy is complete; the claim is made again for it.
    Rebinding,
    /// Given up before the claim was deleted: the copy is being deleted.
    Cancelling,
    /// Given up after the claim was deleted: it is made again for the volume that it had.
    Returning,
    /// The claim is bound to the volume on the other node.
    Done,
}

impl Phase {
    pub const ALL: [Phase; 10] = [
        Phase::Refused,
        Phase::Copying,
        Phase::CatchingUp,
        Phase::Ready,
        Phase::Standby,
        Phase::Switching,
        Phase::Rebinding,
        Phase::Cancelling,
        Phase::Returning,
        Phase::Done,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Refused => "Refused",
            Phase::Copying => "Copying",
            Phase::CatchingUp => "CatchingUp",
            Phase::Ready => "Ready",
            Phase::Standby => "Standby",
            Phase::Switching => "Switching",
            Phase::Rebinding => "Rebinding",
            Phase::Cancelling => "Cancelling",
            Phase::Returning => "Returning",
            Phase::Done => "Done",
        }
    }
}

/// How far a move is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Status {
    pub phase: Phase,
    /// For people: what is waited for, or what is wrong.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Names of the nodes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub target: String,
    /// CSI name of the copy, and name of its PersistentVolume. No other attempt has it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Volume id of the copy.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub copy: String,
    /// Size of the source in bytes when the copy was made.
    #[serde(default)]
    pub bytes: u64,
    /// Rounds that are done, and what they sent and found in bytes.
    #[serde(default)]
    pub rounds: u32,
    #[serde(default)]
    pub sent_bytes: u64,
    #[serde(default)]
    pub changed_bytes: u64,
    /// What the last round sent.
    #[serde(default)]
    pub last_sent_bytes: u64,
    /// When the source was cut for it, in RFC 3339, by the clock of its node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_cut: Option<String>,
    /// When it was asked for, in RFC 3339, by the clock of the controller: the other one may be minutes away from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_asked: Option<String>,
    /// Whether the copy is the same as the source, which nobody can write to any more.
    #[serde(default)]
    pub exact: bool,
    /// Whether the copy stands by, or did when it was promoted.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub standby: bool,
    /// Whether the copy takes the volume's place although what was written after `last_cut` may be lost.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub stale: bool,
    /// Since when the node of the source has not answered to a promotion, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub silent_since: Option<String>,
    /// Volume ids of earlier copies whose nodes were lost. They are deleted when those are back.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub abandoned: Vec<String>,
    /// When the claim was deleted, in RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub switching_since: Option<String>,
}

impl Status {
    /// When the last round was asked for, or else when its cut was made.
    pub fn last_round(&self) -> Option<&str> {
        self.last_asked.as_deref().or(self.last_cut.as_deref())
    }

    /// How old the copy is, in seconds; `None` before the first round, and where that is in the future by this clock.
    pub fn age(&self) -> Option<i64> {
        self.last_round().and_then(seconds_since).filter(|age| *age >= 0)
    }

    /// One that says nothing but this.
    pub fn new(phase: Phase, message: impl Into<String>) -> Self {
        Status {
            phase,
            message: message.into(),
            source: String::new(),
            target: String::new(),
            name: String::new(),
            copy: String::new(),
            bytes: 0,
            rounds: 0,
            sent_bytes: 0,
            changed_bytes: 0,
            last_sent_bytes: 0,
            last_cut: None,
            last_asked: None,
            exact: false,
            standby: false,
            stale: false,
            silent_since: None,
            abandoned: Vec::new(),
            switching_since: None,
        }
    }

    #[must_use]
    pub fn in_phase(&self, phase: Phase, message: impl Into<String>) -> Self {
        Status { phase, message: message.into(), ..self.clone() }
    }
}

/// The claim that is to be made for a PersistentVolume, and what is to be done when it is bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Record {
    pub namespace: String,
    pub name: String,
    /// The uid of the claim that it replaces.
    pub uid: String,
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    #[serde(default)]
    pub owners: Vec<OwnerReference>,
    pub spec: PersistentVolumeClaimSpec,
    /// The PersistentVolume that it had, and that one's volume id.
    pub old_volume: String,
    pub old_handle: String,
    /// Whether the old volume stays.
    pub keep_source: bool,
    /// What the PersistentVolume of the claim gets at the end.
    pub reclaim_policy: String,
    /// The move up to here.
    pub status: Status,
}

/// The annotations of a claim that also the one has that replaces it.
pub fn lasting(annotations: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let lasts = |key: &str| !OF_ONE_CLAIM.contains(&key);
    annotations.iter().filter(|(key, _)| lasts(key)).map(|(k, v)| (k.clone(), v.clone())).collect()
}

/// Now, in RFC 3339.
pub fn now() -> String {
    k8s_openapi::jiff::Timestamp::now().to_string()
}

/// A moment in nanoseconds since 1970, in RFC 3339.
pub fn moment(ns: u64) -> Option<String> {
    let moment = k8s_openapi::jiff::Timestamp::from_nanosecond(i128::from(ns)).ok()?;
    Some(moment.to_string())
}

/// Seconds since a moment in RFC 3339; `None` where it cannot be read.
pub fn seconds_since(moment: &str) -> Option<i64> {
    let moment: k8s_openapi::jiff::Timestamp = moment.parse().ok()?;
    Some(k8s_openapi::jiff::Timestamp::now().as_second().saturating_sub(moment.as_second()))
}
