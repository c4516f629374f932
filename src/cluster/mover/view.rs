//! What a move sees of the objects. No I/O: questions about what was read.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use kube::ResourceExt as _;

use super::status::{
    ANY, FINALIZER, MOVE_STATUS, MOVE_TO, OUT_OF_SERVICE, STANDBY, STANDBY_INTERVAL, Status,
};
use crate::model::{Settings, Standby};

/// Kubernetes' own: it holds a claim while a scheduled pod uses it.
const PROTECTION: &str = "kubernetes.io/pvc-protection";

/// A claim whose move is looked at, with its PersistentVolume and what else was asked for.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) driver: String,
    pub(super) claim: PersistentVolumeClaim,
    pub(super) volume: Option<PersistentVolume>,
    /// Pods of the namespace that are on the volume's node or on none, and use the claim.
    pub(super) pods: Vec<Pod>,
    /// Other claims that these pods use, each with its PersistentVolume.
    pub(super) others: Vec<(PersistentVolumeClaim, Option<PersistentVolume>)>,
    pub(super) nodes: Vec<Node>,
    /// Nodes with the driver; `None` until they are known.
    pub(super) members: Option<Vec<String>>,
    /// Whether the claim's StorageClass is there, and lets copies go to other nodes.
    pub(super) class: Class,
    /// The copy that is to stand by, or what is wrong with the wish for it.
    pub(super) standby: Result<Option<Standby>, String>,
    /// Whether the node of the volume, and that of the copy, are out of service.
    pub(super) source_lost: bool,
    pub(super) target_lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    Missing,
    Stays,
    Travels,
}

impl View {
    pub(super) fn status(&self) -> Option<Status> {
        status(&self.claim)
    }

    /// The node that is asked for, or [`ANY`].
    pub(super) fn wanted(&self) -> Option<&str> {
        wanted(&self.claim)
    }

    /// The other node that is asked for: not the one that has the volume.
    pub(super) fn wanted_elsewhere(&self) -> Option<&str> {
        self.wanted().filter(|wanted| self.source().as_deref() != Some(*wanted))
    }

    /// The copy that is to stand by.
    pub(super) fn wants_standby(&self) -> Option<Standby> {
        self.standby.clone().ok().flatten()
    }

    /// Whether a copy on the node `target` is of use.
    pub(super) fn wants_copy(&self, target: &str) -> bool {
        match self.wanted_elsewhere() {
            Some(wanted) => wanted == target || wanted == ANY,
            None => self.wants_standby().is_some(),
        }
    }

    pub(super) fn says(&self, annotation: &str) -> bool {
        self.claim.annotations().get(annotation).is_some_and(|value| value == "true")
    }

    pub(super) fn is_being_deleted(&self) -> bool {
        self.claim.metadata.deletion_timestamp.is_some()
    }

    /// Whether a pod may still use the claim that is being deleted.
    pub(super) fn is_protected(&self) -> bool {
        is_protected(&self.claim)
    }

    pub(super) fn is_held(&self) -> bool {
        self.claim.finalizers().iter().any(|finalizer| finalizer == FINALIZER)
    }

    /// The node that has the volume.
    pub(super) fn source(&self) -> Option<String> {
        self.volume.as_ref().and_then(node_of)
    }

    /// Size of the PersistentVolume in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.volume.as_ref().map_or(0, bytes_of)
    }

    /// Pods that are on a node and not at their end.
    pub(super) fn users(&self) -> impl Iterator<Item = &Pod> {
        self.pods.iter().filter(|pod| is_scheduled(pod))
    }

    /// Whether what kubelet or csi-resizer does to the volume is not finished.
    pub(super) fn is_changing(&self) -> bool {
        is_changing(&self.claim, self.bytes())
    }
}

/// Reports whether what kubelet or csi-resizer does to a volume of this size is not finished.
pub(in crate::cluster) fn is_changing(claim: &PersistentVolumeClaim, bytes: u64) -> bool {
    let Some(status) = &claim.status else { return false };
    let resizing = |kind: &str| ["Resizing", "FileSystemResizePending", "ModifyingVolume"].contains(&kind);
    let mut conditions = status.conditions.iter().flatten();
    let spec = claim.spec.as_ref();
    let class = spec.and_then(|spec| spec.volume_attributes_class_name.as_ref());
    let requests = spec.and_then(|spec| spec.resources.as_ref()?.requests.as_ref()?.get("storage"));
    conditions.any(|condition| resizing(&condition.type_) && condition.status == "True")
        || (class.is_some() && class != status.current_volume_attributes_class_name.as_ref())
        || requests.and_then(quantity).unwrap_or(0) > bytes
}

/// Returns the size of a PersistentVolume in bytes.
pub(in crate::cluster) fn bytes_of(volume: &PersistentVolume) -> u64 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity.and_then(|capacity| capacity.get("storage")).and_then(quantity).unwrap_or(0)
}

pub(super) fn status(claim: &PersistentVolumeClaim) -> Option<Status> {
    serde_json::from_str(claim.annotations().get(MOVE_STATUS)?).ok()
}

/// Whether a pod may still use the claim, if it is being deleted.
pub(super) fn is_protected(claim: &PersistentVolumeClaim) -> bool {
    claim.finalizers().iter().any(|finalizer| finalizer == PROTECTION)
}

pub(super) fn wanted(claim: &PersistentVolumeClaim) -> Option<&str> {
    claim.annotations().get(MOVE_TO).map(|target| target.trim()).filter(|target| !target.is_empty())
}

/// The copy of a claim that is to stand by: as its annotations say, or else the parameters of its StorageClass.
///
/// # Errors
/// What is wrong with either.
pub(super) fn standby(
    claim: &PersistentVolumeClaim,
    class: &BTreeMap<String, String>,
) -> Result<Option<Standby>, String> {
    let said = |annotation: &str, parameter: &str| {
        claim.annotations().get(annotation).or_else(|| class.get(parameter)).map(String::as_str)
    };
    let interval = said(STANDBY_INTERVAL, Standby::INTERVAL_PARAMETER);
    Standby::of(said(STANDBY, Standby::PARAMETER), interval)
}

/// Whether an administrator has said that the node is shut down. Of one that is not in the cluster nobody has said so.
pub(super) fn is_lost(node: Option<&Node>) -> bool {
    let taints = |node: &Node| node.spec.as_ref().and_then(|spec| spec.taints.clone()).unwrap_or_default();
    node.is_some_and(|node| taints(node).iter().any(|taint| taint.key == OUT_OF_SERVICE))
}

/// The node of a volume of this driver, by the affinity that csi-provisioner gives it.
pub fn node_of(volume: &PersistentVolume) -> Option<String> {
    let required = volume.spec.as_ref()?.node_affinity.as_ref()?.required.as_ref()?;
    let [term] = required.node_selector_terms.as_slice() else { return None };
    let [only] = term.match_expressions.as_deref().unwrap_or_default() else { return None };
    let values = only.values.as_deref().unwrap_or_default();
    match values {
        [node] if only.key == Settings::TOPOLOGY_KEY && only.operator == "In" => Some(node.clone()),
        _ => None,
    }
}

pub(in crate::cluster) fn is_leaving(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some()
}

/// Whether a pod is on a node and not at its end: only such a one holds its claims.
pub(in crate::cluster) fn is_scheduled(pod: &Pod) -> bool {
    let placed = pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|n| !n.is_empty()));
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    placed && !matches!(phase, Some("Succeeded" | "Failed"))
}

/// Whether no container of the pod has ever run. With a claim that is being deleted none ever will.
pub(in crate::cluster) fn never_ran(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return true };
    let containers =
        status.container_statuses.iter().flatten().chain(status.init_container_statuses.iter().flatten());
    let mut states = containers.filter_map(|container| container.state.as_ref());
    status.phase.as_deref() == Some("Pending")
        && !states.any(|state| state.running.is_some() || state.terminated.is_some())
}

/// The controller of a pod: what makes it again.
pub(in crate::cluster) fn controller(pod: &Pod) -> Option<&str> {
    let owner = pod.owner_references().iter().find(|owner| owner.controller == Some(true))?;
    Some(owner.kind.as_str())
}

/// The claims that a pod uses.
pub(in crate::cluster) fn claims_of(pod: &Pod) -> impl Iterator<Item = &str> {
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    volumes.filter_map(|volume| Some(volume.persistent_volume_claim.as_ref()?.claim_name.as_str()))
}

/// A quantity in bytes, rounded up; `None` for what is no size.
pub(in crate::cluster) fn quantity(quantity: &Quantity) -> Option<u64> {
    let text = quantity.0.trim();
    let at = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at_checked(at)?;
    let power = |base: u128, power: u32| base.checked_pow(power);
    let factor = match unit {
        "" => 1,
        "k" => power(1000, 1)?,
        "M" => power(1000, 2)?,
        "G" => power(1000, 3)?,
        "T" => power(1000, 4)?,
        "P" => power(1000, 5)?,
        "Ki" => power(1024, 1)?,
        "Mi" => power(1024, 2)?,
        "Gi" => power(1024, 3)?,
        "Ti" => power(1024, 4)?,
        "Pi" => power(1024, 5)?,
        _ => return None,
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let scale = 10_u128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let whole: u128 = if whole.is_empty() { 0 } else { whole.parse().ok()? };
    let fraction: u128 = if fraction.is_empty() { 0 } else { fraction.parse().ok()? };
    let bytes = whole.checked_mul(scale)?.checked_add(fraction)?.checked_mul(factor)?.div_ceil(scale);
    u64::try_from(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_bytes() {
        let bytes = |text: &str| quantity(&Quantity(text.to_owned()));
        assert_eq!(bytes("1Gi"), Some(1 << 30));
        assert_eq!(bytes("1.5Gi"), Some(3 << 29));
        assert_eq!(bytes("20G"), Some(20_000_000_000));
        assert_eq!(bytes("1048576"), Some(1 << 20));
        assert_eq!(bytes("0.1Ki"), Some(103));
        for wrong in ["", ".", "Gi1", "1Zi", "-1", "1.2.3", "99999999999999999999999999999999999999999Pi"] {
            assert!(matches!(bytes(wrong), None | Some(0)), "{wrong}");
        }
    }
}
