//! The parameters of a StorageClass, and those of them that the attributes of an inline volume may hold.

use std::collections::HashMap;

use super::consistency;
use super::keys::{Given, YES_NO};
use super::mutable::{self, DIRECT_IO, DISCARD, ENFORCEMENT, PROVISIONING};
use crate::model::request::PlacementClass;
use crate::model::{
    BackendKind, Capability, Consistency, Enforcement, Modification, PoolName, Provisioning, Standby,
    VolumeParameters,
};

const BACKEND: &str = "backend";
const POOL: &str = "pool";
const MKFS_OPTIONS: &str = "mkfsOptions";
const SHARED_ON_NODE: &str = "sharedOnNode";
const CROSS_NODE_COPY: &str = "crossNodeCopy";
const INODES: &str = "inodes";

/// What an administrator may set.
const STORAGE_CLASS_KEYS: [&str; 15] = [
    BACKEND,
    PROVISIONING,
    POOL,
    MKFS_OPTIONS,
    DIRECT_IO,
    DISCARD,
    SHARED_ON_NODE,
    CROSS_NODE_COPY,
    ENFORCEMENT,
    INODES,
    Standby::PARAMETER,
    Standby::INTERVAL_PARAMETER,
    Standby::BY_CLAIM_PARAMETER,
    consistency::FREEZE,
    consistency::FREEZE_TIMEOUT,
];
/// What the author of a pod may set: nothing that reaches a tool's command line or lifts a check.
const INLINE_KEYS: [&str; 7] = [BACKEND, PROVISIONING, POOL, DIRECT_IO, DISCARD, ENFORCEMENT, INODES];
/// What the author of a pod may not set although a StorageClass has it.
const NOT_INLINE_KEYS: [&str; 8] = [
    MKFS_OPTIONS,
    SHARED_ON_NODE,
    CROSS_NODE_COPY,
    Standby::PARAMETER,
    Standby::INTERVAL_PARAMETER,
    Standby::BY_CLAIM_PARAMETER,
    consistency::FREEZE,
    consistency::FREEZE_TIMEOUT,
];

/// Longest `mkfsOptions` in bytes.
const MKFS_OPTIONS_LIMIT: usize = 1024;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct StorageClass {
    /// What the volume is made with.
    pub parameters: VolumeParameters,
    /// How a source in use is copied.
    pub consistency: Consistency,
}

/// `parameters` as CreateVolume, GetCapacity and ValidateVolumeCapabilities get them, with `mutable_parameters`
/// over them, which win (csi.proto, CreateVolumeRequest.mutable_parameters). The error says what to change.
pub(super) fn storage_class(
    parameters: &HashMap<String, String>,
    mutable: Modification,
) -> Result<StorageClass, String> {
    let given = Given::new("parameter", parameters);
    given.only(&STORAGE_CLASS_KEYS)?;
    placement_class(parameters)?;
    standby(&given)?;
    Ok(StorageClass { parameters: decode(&given, mutable)?, consistency: consistency::of(&given)? })
}

/// Makes sure that the controller can read what is asked for: the class is not read again before a node is lost.
fn standby(given: &Given<'_>) -> Result<(), String> {
    let asked = Standby::of(given.get(Standby::PARAMETER), given.get(Standby::INTERVAL_PARAMETER));
    let asked = asked.map_err(|why| format!("{} {why}", given.kind))?;
    given.choose(Standby::BY_CLAIM_PARAMETER, &YES_NO)?;
    match asked.is_some() && given.choose(CROSS_NODE_COPY, &YES_NO)? == Some(false) {
        true => Err(format!(
            "{kind} {} needs a copy on another node, which {kind} {CROSS_NODE_COPY} forbids; leave one of them out",
            Standby::PARAMETER,
            kind = given.kind
        )),
        false => Ok(()),
    }
}

/// What a controller has to know of the parameters. It looks at no other key.
pub(super) fn placement_class(parameters: &HashMap<String, String>) -> Result<PlacementClass, String> {
    let given = Given::new("parameter", parameters);
    Ok(PlacementClass { cross_node_copy: given.choose(CROSS_NODE_COPY, &YES_NO)?.unwrap_or(true) })
}

/// The attributes of an inline volume but `size`.
pub(super) fn inline(attributes: &Given<'_>) -> Result<VolumeParameters, String> {
    if let Some(key) = NOT_INLINE_KEYS.into_iter().find(|key| attributes.has(key)) {
        return Err(format!(
            "{} {key} is for the StorageClass only; an inline volume cannot set it",
            attributes.kind
        ));
    }
    attributes.only(&INLINE_KEYS)?;
    decode(attributes, Modification::default())
}

/// Whether a StorageClass can have this key.
pub(super) fn is_known(key: &str) -> bool {
    STORAGE_CLASS_KEYS.contains(&key)
}

/// Whether a volume with these parameters can be used like this.
pub(super) fn fit(parameters: &VolumeParameters, capability: &Capability) -> Result<(), String> {
    let refused = match capability.is_block() {
        false => None,
        true if !parameters.backend.has_image() => Some((BACKEND, "a directory is not a block device")),
        true if !parameters.mkfs_options.is_empty() => {
            Some((MKFS_OPTIONS, "a block volume gets no filesystem"))
        }
        true if parameters.shared_on_node => Some((SHARED_ON_NODE, "a block volume is not shared")),
        true => None,
    };
    refused.map_or(Ok(()), |(key, reason)| {
        Err(format!("parameter {key} does not work with a block volume: {reason}; leave it out or ask for a mount volume"))
    })
}

fn decode(given: &Given<'_>, mutable: Modification) -> Result<VolumeParameters, String> {
    let backends = BackendKind::ALL.map(|backend| (backend.as_str(), backend));
    let backend = given.choose(BACKEND, &backends)?.unwrap_or_default();
    let asked = mutable::over(mutable, mutable::changeable(given)?);
    let shared_on_node = given.choose(SHARED_ON_NODE, &YES_NO)?.unwrap_or(false);
    let pool = match given.get(POOL) {
        Some(name) => name.parse().map_err(|e| format!("{} {POOL}: {e}", given.kind))?,
        None => PoolName::default(),
    };
    if !backend.has_image() {
        refuse_for_directory(given, asked)?;
    }
    let inodes = limits(given, backend, asked.enforcement)?;
    mutable::check(asked)?;
    let defaults = VolumeParameters {
        backend,
        provisioning: Provisioning::default(),
        pool,
        mkfs_options: given.get(MKFS_OPTIONS).map_or(Ok(Vec::new()), mkfs_options)?,
        // There is no loop device under a directory whose page cache could be bypassed.
        direct_io: backend.has_image(),
        discard: true,
        shared_on_node,
        enforcement: None,
        inodes,
    };
    Ok(asked.apply(&defaults))
}

/// The files that a directory is limited to.
fn limits(
    given: &Given<'_>,
    backend: BackendKind,
    enforcement: Option<Enforcement>,
) -> Result<Option<u64>, String> {
    let inodes = given.get(INODES).map(|text| inodes(given.kind, text)).transpose()?;
    let of_directories = [(ENFORCEMENT, enforcement.is_some()), (INODES, inodes.is_some())];
    let of_no_image = of_directories.into_iter().find(|(_, is_given)| *is_given && backend.has_image());
    match (of_no_image, enforcement, inodes) {
        (Some((key, _)), ..) => Err(format!(
            "{key} does not work with backend={}: the size of an image is always enforced; leave it out or use backend=directory",
            backend.as_str()
        )),
        (None, Some(Enforcement::None), Some(_)) => Err(format!(
            "{INODES} does not work with {ENFORCEMENT}=none: nothing is limited then; leave it out or use {ENFORCEMENT}=required"
        )),
        (None, ..) => Ok(inodes),
    }
}

/// The directories of the volume itself are two of them.
fn inodes(kind: &str, text: &str) -> Result<u64, String> {
    const FEWEST: u64 = 16;
    match text.parse() {
        Ok(count) if count >= FEWEST && !text.starts_with('+') => Ok(count),
        _ => Err(format!("{kind} {INODES}: {text:?} is not a whole number of at least {FEWEST}")),
    }
}

/// What only an image behind a loop device has.
fn refuse_for_directory(given: &Given<'_>, asked: Modification) -> Result<(), String> {
    let (key, reason) = if asked.provisioning == Some(Provisioning::Thick) {
        ("provisioning=thick", "nothing reserves space for a directory")
    } else if given.has(MKFS_OPTIONS) {
        (MKFS_OPTIONS, "a directory gets no filesystem of its own")
    } else if asked.direct_io.is_some() {
        (DIRECT_IO, "a directory has no loop device")
    } else if asked.discard.is_some() {
        (DISCARD, "a directory has no device to discard from")
    } else {
        return Ok(());
    };
    Err(format!("{key} does not work with backend=directory: {reason}; leave it out or use backend=loop"))
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
            return bad(format!("{word:?} is not an option"));
        }
        after_option = is_option;
    }
    Ok(text.split_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests;
