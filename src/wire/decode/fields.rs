//! Checks that the requests share: presence, size limits (spec.md, Size Limits), names, paths, sizes, secrets.

use std::collections::HashMap;
use std::path::PathBuf;

use crate::error::{Error, Result};
use crate::model::request::{Context, ListVolumes, MOST_ENTRIES};
use crate::model::{Claim, SizeRange, SnapshotObject};
use crate::wire::csi;

/// Longest string in bytes, where a field does not say otherwise.
pub(super) const STRING_LIMIT: usize = 128;
/// Longest `node_id` in bytes (csi.proto, NodeGetInfoResponse).
const NODE_ID_LIMIT: usize = 256;
/// Longest path in bytes: the kernel's PATH_MAX, which the path fields are to follow.
const PATH_LIMIT: usize = 4096;
/// Keys and values of a map, or all entries of `mount_flags`, together in bytes.
pub(super) const MAP_LIMIT: usize = 4096;

/// Longest name of an object in Kubernetes (RFC 1123 subdomain).
const OBJECT_NAME_LIMIT: usize = 253;

/// Keys that Kubernetes adds to what the administrator or a pod's author wrote.
pub(super) const KUBERNETES_PREFIX: &str = "csi.storage.k8s.io/";

/// What external-provisioner and external-snapshotter tell of the objects that they act for (`--extra-create-metadata`).
pub struct Metadata<'a>(pub &'a HashMap<String, String>);

impl Metadata<'_> {
    /// Returns the claim that a volume is for, if all of its names are there.
    pub fn claim(&self) -> Option<Claim> {
        let [namespace, name, persistent_volume] = self.names(["pvc/namespace", "pvc/name", "pv/name"])?;
        Some(Claim { namespace, name, persistent_volume })
    }

    /// Returns the VolumeSnapshot that a snapshot is for, if all of its names are there.
    pub fn snapshot(&self) -> Option<SnapshotObject> {
        let [namespace, name, content] =
            self.names(["volumesnapshot/namespace", "volumesnapshot/name", "volumesnapshotcontent/name"])?;
        Some(SnapshotObject { namespace, name, content })
    }

    fn names(&self, keys: [&str; 3]) -> Option<[String; 3]> {
        let name = |key: &str| {
            let name = self.0.get(&format!("{KUBERNETES_PREFIX}{key}"))?;
            (!name.is_empty() && name.len() <= OBJECT_NAME_LIMIT).then(|| name.clone())
        };
        let [first, second, third] = keys.map(name);
        Some([first?, second?, third?])
    }
}

pub(super) fn invalid<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Invalid(message.into()))
}

/// A string that must be there.
pub(super) fn required(field: &str, value: String) -> Result<String> {
    present(field, &value)?;
    at_most(field, value.len(), STRING_LIMIT)?;
    Ok(value)
}

/// A string that may be empty, which means that it was not given.
pub(super) fn optional(field: &str, value: String) -> Result<Option<String>> {
    at_most(field, value.len(), STRING_LIMIT)?;
    Ok((!value.is_empty()).then_some(value))
}

/// `volume_id`: any text, since what is not an id of ours is just not found.
pub fn volume_id(value: String) -> Result<String> {
    required("volume_id", value)
}

/// The volume that a request is about, with its `secrets`.
pub fn volume_of(volume_id: String, secrets: &HashMap<String, String>) -> Result<String> {
    let volume_id = self::volume_id(volume_id)?;
    check_secrets(secrets)?;
    Ok(volume_id)
}

/// `snapshot_id` where it is required: any text, like [`volume_id`].
pub(super) fn snapshot_id(value: String) -> Result<String> {
    required("snapshot_id", value)
}

/// The snapshot that a request is about, with its `secrets`.
pub fn snapshot_of(snapshot_id: String, secrets: &HashMap<String, String>) -> Result<String> {
    let snapshot_id = self::snapshot_id(snapshot_id)?;
    check_secrets(secrets)?;
    Ok(snapshot_id)
}

/// Which page of a list is wanted. Whether the token is one of ours is not decided here: a wrong one is ABORTED.
pub fn page(max_entries: i32, starting_token: String) -> Result<ListVolumes> {
    Ok(ListVolumes {
        max_entries: page_size(max_entries)?,
        starting_token: optional("starting_token", starting_token)?,
    })
}

/// A count that bounds an answer, where 0 sets no bound.
pub(super) fn limit(field: &str, count: i32) -> Result<Option<usize>> {
    match usize::try_from(count) {
        Ok(count) => Ok((count > 0).then_some(count)),
        Err(_) => invalid(format!("{field} is {count}; it must not be negative")),
    }
}

/// `max_entries` of a list: what the caller wants, at most [`MOST_ENTRIES`], which is also what zero means. A plugin may
/// answer fewer entries than were asked for, with a token for the others (csi.proto, ListVolumesRequest).
pub(super) fn page_size(count: i32) -> Result<usize> {
    let wanted = limit("max_entries", count)?;
    Ok(wanted.map_or(MOST_ENTRIES, |wanted| wanted.min(MOST_ENTRIES)))
}

/// `node_id` where it is required.
pub(crate) fn node_id(value: String) -> Result<String> {
    present("node_id", &value)?;
    at_most("node_id", value.len(), NODE_ID_LIMIT)?;
    Ok(value)
}

/// `node_id` where empty means every node (csi.proto, ControllerUnpublishVolumeRequest).
pub(super) fn optional_node_id(value: String) -> Result<Option<String>> {
    at_most("node_id", value.len(), NODE_ID_LIMIT)?;
    Ok((!value.is_empty()).then_some(value))
}

/// The CSI name of a new volume, snapshot or group: any text but control characters other than tab, line feed
/// and carriage return (csi.proto, CreateVolumeRequest.name).
pub(crate) fn name(value: String) -> Result<String> {
    let value = required("name", value)?;
    let banned =
        |c: &char| matches!(c, '\0'..='\x08' | '\x0B' | '\x0C' | '\x0E'..='\x1F' | '\x7F'..='\u{9F}');
    match value.chars().find(banned) {
        Some(c) => invalid(format!("name contains U+{:04X}; leave out control characters", u32::from(c))),
        None => Ok(value),
    }
}

/// A path on which the driver mounts: absolute, no component but names, not the root. Doubled and trailing
/// slashes are dropped.
pub(super) fn path(field: &str, value: &str) -> Result<PathBuf> {
    present(field, value)?;
    check_path_bytes(field, value)?;
    if !value.starts_with('/') {
        return invalid(format!("{field} is not absolute; send the full path"));
    }
    let components: Vec<&str> = value.split('/').filter(|c| !c.is_empty()).collect();
    if components.iter().any(|c| matches!(*c, "." | "..")) {
        return invalid(format!("{field} contains \".\" or \"..\"; send the path without them"));
    }
    if components.is_empty() {
        return invalid(format!("{field} is the root directory; send the path of the volume"));
    }
    Ok(PathBuf::from(format!("/{}", components.join("/"))))
}

/// A path that may be left out.
pub(super) fn optional_path(field: &str, value: &str) -> Result<Option<PathBuf>> {
    if value.is_empty() { Ok(None) } else { path(field, value).map(Some) }
}

/// `volume_path`, at which the driver only looks: any text, since a path that is none of the volume's is
/// NOT_FOUND, also a relative one.
pub(super) fn volume_path(value: &str) -> Result<PathBuf> {
    present("volume_path", value)?;
    check_path_bytes("volume_path", value)?;
    Ok(PathBuf::from(value))
}

fn check_path_bytes(field: &str, value: &str) -> Result<()> {
    at_most(field, value.len(), PATH_LIMIT)?;
    if value.contains('\0') { invalid(format!("{field} contains a NUL character")) } else { Ok(()) }
}

/// The size limit of a map.
pub(super) fn check_map(field: &str, map: &HashMap<String, String>) -> Result<()> {
    at_most(field, map.iter().map(|(key, value)| key.len() + value.len()).sum(), MAP_LIMIT)
}

/// `secrets`: no volume needs any, so they are only checked for their form. No message repeats a part of them.
pub fn check_secrets(secrets: &HashMap<String, String>) -> Result<()> {
    check_map("secrets", secrets)?;
    let valid = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if secrets.keys().all(|key| !key.is_empty() && key.chars().all(valid)) {
        return Ok(());
    }
    invalid("secrets has a key that is empty or holds other characters than a-z, A-Z, 0-9, -, _ and .")
}

/// `volume_context` as it was given out: without the keys that Kubernetes adds on the way, among which there
/// may be tokens of the pod's service account.
pub(super) fn context(map: HashMap<String, String>) -> Result<Context> {
    check_map("volume_context", &map)?;
    Ok(map.into_iter().filter(|(key, _)| !is_from_kubernetes(key)).collect())
}

/// Whether a key has a prefix that Kubernetes keeps for itself, such as `csi.storage.k8s.io/pod.name` of
/// kubelet or `storage.kubernetes.io/csiProvisionerIdentity` of external-provisioner.
fn is_from_kubernetes(key: &str) -> bool {
    let within = |prefix: &str, domain: &str| {
        prefix.strip_suffix(domain).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    };
    key.split_once('/').is_some_and(|(prefix, _)| within(prefix, "kubernetes.io") || within(prefix, "k8s.io"))
}

/// CSI `CapacityRange`; absent is no wish, like 0. Whether the ends fit each other is [`SizeRange::choose`]'s
/// question, since the answer to that is OUT_OF_RANGE.
pub(super) fn size(range: Option<csi::CapacityRange>) -> Result<SizeRange> {
    let csi::CapacityRange { required_bytes, limit_bytes } = range.unwrap_or_default();
    let bytes = |field: &str, value: i64| {
        u64::try_from(value)
            .or_else(|_| invalid(format!("capacity_range.{field} is {value}; it must not be negative")))
    };
    Ok(SizeRange {
        required: bytes("required_bytes", required_bytes)?,
        limit: bytes("limit_bytes", limit_bytes)?,
    })
}

fn present(field: &str, value: &str) -> Result<()> {
    if value.is_empty() { missing(field) } else { Ok(()) }
}

/// The error for a required field that is not there.
pub(super) fn missing<T>(field: &str) -> Result<T> {
    invalid(format!("{field} is missing; it is required"))
}

/// The error for a field above its size limit.
pub(super) fn at_most(field: &str, bytes: usize, limit: usize) -> Result<()> {
    if bytes <= limit {
        Ok(())
    } else {
        invalid(format!("{field} has {bytes} bytes; at most {limit} are allowed"))
    }
}

#[cfg(test)]
mod tests;
