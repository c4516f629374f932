//! What is read from claims, their PersistentVolumes and classes. No I/O.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ObjectReference, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::copies::Access;
use crate::model::Settings;

/// Parameters with this are Kubernetes' own: csi-provisioner does not pass them on either.
const OF_KUBERNETES: &str = "csi.storage.k8s.io/";

/// Reports whether what kubelet or csi-resizer does to a volume of this size is not finished.
pub fn is_changing(claim: &PersistentVolumeClaim, bytes: u64) -> bool {
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
pub fn bytes_of(volume: &PersistentVolume) -> u64 {
    let capacity = volume.spec.as_ref().and_then(|spec| spec.capacity.as_ref());
    capacity.and_then(|capacity| capacity.get("storage")).and_then(quantity).unwrap_or(0)
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

/// How pods see the volume.
pub fn access(volume: &PersistentVolume) -> Access {
    let spec = volume.spec.clone().unwrap_or_default();
    Access {
        block: spec.volume_mode.as_deref() == Some("Block"),
        fs_type: spec.csi.and_then(|csi| csi.fs_type).unwrap_or_default(),
        mount_options: spec.mount_options.unwrap_or_default(),
        modes: spec.access_modes.unwrap_or_default(),
    }
}

/// On a PersistentVolume: the StorageClass whose parameters its volume has got by a move. The object itself cannot name another class.
pub const CLASS: &str = "hostloop.csi.dev/storage-class";

/// The parameter of a StorageClass that names the filesystem, which is Kubernetes' own.
pub const FS_TYPE: &str = "csi.storage.k8s.io/fstype";

/// Returns the name of the StorageClass whose parameters a volume has; empty if there is none.
pub fn class_of(volume: &PersistentVolume) -> String {
    let own = volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_ref());
    volume.metadata.annotations.as_ref().and_then(|all| all.get(CLASS)).or(own).cloned().unwrap_or_default()
}

/// Reports whether the PersistentVolume was made with this class.
fn is_own(volume: &PersistentVolume, class: &str) -> bool {
    volume.spec.as_ref().and_then(|spec| spec.storage_class_name.as_deref()).unwrap_or_default() == class
}

/// Reports whether a volume that gets the parameters of this class has other ones now, or other ones than its PersistentVolume says.
pub fn is_converted(volume: &PersistentVolume, class: &str) -> bool {
    !is_own(volume, class) || class_of(volume) != class
}

/// Returns how pods see the volume if it has the parameters of this class.
pub fn access_with(volume: &PersistentVolume, class: &StorageClass) -> Access {
    let access = access(volume);
    if is_own(volume, class.metadata.name.as_deref().unwrap_or_default()) {
        return access;
    }
    let fs_type = class.parameters.as_ref().and_then(|all| all.get(FS_TYPE));
    Access { fs_type: fs_type.cloned().unwrap_or_default(), ..access }
}

/// What the driver gets of the parameters of a class.
pub fn parameters(class: &StorageClass) -> BTreeMap<String, String> {
    let given = class.parameters.iter().flatten().filter(|(key, _)| !key.starts_with(OF_KUBERNETES));
    given.map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// Returns what csi-provisioner tells a driver of the claim that a volume is for (`--extra-create-metadata`).
pub fn metadata(volume: &PersistentVolume) -> impl Iterator<Item = (String, String)> {
    let claim = volume.spec.as_ref().and_then(|spec| spec.claim_ref.as_ref());
    let of_claim = |name: fn(&ObjectReference) -> Option<String>| claim.and_then(name);
    let names = [
        ("pvc/namespace", of_claim(|claim| claim.namespace.clone())),
        ("pvc/name", of_claim(|claim| claim.name.clone())),
        ("pv/name", volume.metadata.name.clone()),
    ];
    names.into_iter().filter_map(|(key, name)| Some((format!("{OF_KUBERNETES}{key}"), name?)))
}

/// A quantity in bytes, rounded up; `None` for what is no size.
pub fn quantity(quantity: &Quantity) -> Option<u64> {
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
    fn a_copy_is_made_for_the_claim_of_its_volume() {
        let mut volume = PersistentVolume::default();
        volume.metadata.name = Some("pvc-1".to_owned());
        let claim = ObjectReference {
            namespace: Some("shop".to_owned()),
            name: Some("db".to_owned()),
            ..Default::default()
        };
        volume.spec.get_or_insert_default().claim_ref = Some(claim);
        let names: BTreeMap<_, _> = metadata(&volume).collect();
        let named = |key: &str| names.get(&format!("csi.storage.k8s.io/{key}")).map(String::as_str);
        assert_eq!(
            ["pvc/namespace", "pvc/name", "pv/name"].map(named),
            [Some("shop"), Some("db"), Some("pvc-1")]
        );
    }

    #[test]
    fn quantities_are_bytes() {
        let bytes = |text: &str| quantity(&Quantity(text.to_owned()));
        assert_eq!(bytes("1Gi"), Some(1 << 30));
        assert_eq!(bytes("1.5Gi"), Some(3 << 29));
        assert_eq!(bytes("20G"), Some(20_000_000_000));
        assert_eq!(bytes("1048576"), Some(1 << 20));
        assert_eq!(bytes("0.1Ki"), Some(103));
        assert_eq!((bytes("3Pi"), bytes("3P")), (Some(3 << 50), Some(3_000_000_000_000_000)));
        for wrong in ["", ".", "Gi1", "1Zi", "-1", "1.2.3", "99999999999999999999999999999999999999999Pi"] {
            assert!(matches!(bytes(wrong), None | Some(0)), "{wrong}");
        }
    }
}
