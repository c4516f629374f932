//! The parameters of a StorageClass, and those of them that the attributes of an inline volume may hold.

use std::collections::{BTreeMap, HashMap};

use super::fields::KUBERNETES_PREFIX;
use crate::model::{BackendKind, Capability, PoolName, Provisioning, VolumeParameters};

const BACKEND: &str = "backend";
const PROVISIONING: &str = "provisioning";
const POOL: &str = "pool";
const MKFS_OPTIONS: &str = "mkfsOptions";
const DIRECT_IO: &str = "directIO";
const SHARED_ON_NODE: &str = "sharedOnNode";

/// What an administrator may set.
const STORAGE_CLASS_KEYS: [&str; 6] = [BACKEND, PROVISIONING, POOL, MKFS_OPTIONS, DIRECT_IO, SHARED_ON_NODE];
/// What the author of a pod may set: nothing that reaches a tool's command line or lifts a check.
const INLINE_KEYS: [&str; 4] = [BACKEND, PROVISIONING, POOL, DIRECT_IO];

/// Longest `mkfsOptions` in bytes.
const MKFS_OPTIONS_LIMIT: usize = 1024;

/// `parameters` as CreateVolume, GetCapacity and ValidateVolumeCapabilities get them. The error says what to
/// change.
pub(super) fn storage_class(parameters: &HashMap<String, String>) -> Result<VolumeParameters, String> {
    decode(own_keys(parameters), "parameter", &STORAGE_CLASS_KEYS)
}

/// The attributes of an inline volume but `size`.
pub(super) fn inline(attributes: BTreeMap<&str, &str>) -> Result<VolumeParameters, String> {
    for key in [MKFS_OPTIONS, SHARED_ON_NODE] {
        if attributes.contains_key(key) {
            return Err(format!(
                "volume attribute {key} is for the StorageClass only; an inline volume cannot set it"
            ));
        }
    }
    decode(attributes, "volume attribute", &INLINE_KEYS)
}

/// The keys that are meant for the driver, in order. Kubernetes' own are not: external-provisioner strips
/// those of the StorageClass for CreateVolume but not for GetCapacity, and adds some with
/// `--extra-create-metadata`.
pub(super) fn own_keys(map: &HashMap<String, String>) -> BTreeMap<&str, &str> {
    map.iter()
        .filter(|(key, _)| !key.starts_with(KUBERNETES_PREFIX))
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect()
}

/// Whether a volume with these parameters can be used like this.
pub(super) fn fit(parameters: &VolumeParameters, capability: &Capability) -> Result<(), String> {
    let refused = match capability.is_block() {
        false => None,
        true if parameters.backend == BackendKind::Directory => {
            Some((BACKEND, "a directory is no block device"))
        }
        true if !parameters.mkfs_options.is_empty() => {
            Some((MKFS_OPTIONS, "a block volume gets no filesystem"))
        }
        true if parameters.shared_on_node => Some((SHARED_ON_NODE, "a block volume is not shared")),
        true => None,
    };
    refused.map_or(Ok(()), |(key, reason)| {
        Err(format!("parameter {key} does not go with a block volume: {reason}; leave it out or ask for a mount volume"))
    })
}

fn decode(given: BTreeMap<&str, &str>, kind: &str, keys: &[&str]) -> Result<VolumeParameters, String> {
    if let Some(unknown) = given.keys().find(|key| !keys.contains(key)) {
        return Err(format!("{kind} {unknown:?} is not known; there are {}", keys.join(", ")));
    }
    let backend =
        choose(&given, kind, BACKEND, &[("loop", BackendKind::Loop), ("directory", BackendKind::Directory)])?;
    let provisioning =
        choose(&given, kind, PROVISIONING, &[("thin", Provisioning::Thin), ("thick", Provisioning::Thick)])?;
    let yes_no = [("true", true), ("false", false)];
    let direct_io = choose(&given, kind, DIRECT_IO, &yes_no)?;
    let shared_on_node = choose(&given, kind, SHARED_ON_NODE, &yes_no)?.unwrap_or(false);
    let pool = match given.get(POOL) {
        Some(name) => name.parse().map_err(|e| format!("{kind} {POOL}: {e}"))?,
        None => PoolName::default(),
    };
    let backend = backend.unwrap_or_default();
    if backend == BackendKind::Directory {
        refuse_for_directory(&given, kind, provisioning)?;
    }
    Ok(VolumeParameters {
        backend,
        provisioning: provisioning.unwrap_or_default(),
        pool,
        mkfs_options: given.get(MKFS_OPTIONS).map_or(Ok(Vec::new()), |options| mkfs_options(options))?,
        // There is no loop device under a directory whose page cache could be bypassed.
        direct_io: direct_io.unwrap_or(backend == BackendKind::Loop),
        shared_on_node,
    })
}

/// What only an image behind a loop device has.
fn refuse_for_directory(
    given: &BTreeMap<&str, &str>,
    kind: &str,
    provisioning: Option<Provisioning>,
) -> Result<(), String> {
    let (key, reason) = if provisioning == Some(Provisioning::Thick) {
        ("provisioning=thick", "nothing reserves space for a directory")
    } else if given.contains_key(MKFS_OPTIONS) {
        (MKFS_OPTIONS, "a directory gets no filesystem of its own")
    } else if given.contains_key(DIRECT_IO) {
        (DIRECT_IO, "a directory has no loop device")
    } else {
        return Ok(());
    };
    Err(format!(
        "{kind} {key} does not go with backend=directory: {reason}; leave it out or use backend=loop"
    ))
}

/// The value of a key that has a few; `None` if it was not given.
fn choose<T: Copy>(
    given: &BTreeMap<&str, &str>,
    kind: &str,
    key: &str,
    choices: &[(&str, T)],
) -> Result<Option<T>, String> {
    let Some(value) = given.get(key) else {
        return Ok(None);
    };
    match choices.iter().find(|(name, _)| name == value) {
        Some((_, choice)) => Ok(Some(*choice)),
        None => {
            let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
            Err(format!("{kind} {key} is {value:?}; write {}", names.join(" or ")))
        }
    }
}

/// Words for mkfs. They stand before the device on its command line, so none of them may be taken for the
/// device, end the options, or name a file.
fn mkfs_options(text: &str) -> Result<Vec<String>, String> {
    let bad = |reason: String| Err(format!("parameter {MKFS_OPTIONS}: {reason}"));
    if text.len() > MKFS_OPTIONS_LIMIT {
        return bad(format!("it has {} bytes; at most {MKFS_OPTIONS_LIMIT} are allowed", text.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || "_.,=:^+-".contains(c);
    let mut after_option = false;
    for word in text.split_whitespace() {
        if !word.chars().all(allowed) {
            return bad(format!("{word:?} holds other characters than A-Z, a-z, 0-9 and _.,=:^+-"));
        }
        let is_option = word.starts_with('-');
        if !is_option && !after_option {
            return bad(format!("{word:?} follows no option, so mkfs would take it for the device"));
        }
        if matches!(word, "-" | "--") {
            return bad(format!("{word:?} is no option"));
        }
        after_option = is_option;
    }
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
#[path = "parameters_tests.rs"]
mod tests;
