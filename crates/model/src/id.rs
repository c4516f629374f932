//! Ids: derived, never random, so that a retry after any crash finds the same files and takes the same lock.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The namespace of every UUID that hostloop derives (itself a v5 UUID of the driver's default name).
const NAMESPACE: Uuid = Uuid::from_u128(0x5a0c_9a8e_0b57_5d0f_9b1e_6f5d_3c7a_41e2);

/// A short key of a node, 12 hex digits of the UUID v5 of its node id: part of every volume id, so that a
/// controller can route a request to the owning node without a look-up.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct NodeKey(String);

impl NodeKey {
    /// Number of hex digits: 48 bits, about 2 in 10⁹ for a collision among a thousand nodes.
    const LEN: usize = 12;

    /// The key of the node with this CSI node id.
    pub fn of(node_id: &str) -> Self {
        let uuid = Uuid::new_v5(&NAMESPACE, format!("node/{node_id}").as_bytes()).simple().to_string();
        NodeKey(uuid.chars().take(Self::LEN).collect())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A volume's id and the name of its directory: `vol-<node key>-<uuid>`, or `inl-<node key>-<uuid>` for an
/// inline ephemeral volume. Only this type becomes part of a path, and it holds nothing but `[a-z0-9-]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeId(String);

impl VolumeId {
    /// The id of the volume that CreateVolume makes on `node` for the CSI name `name` (UUID v5 of the name).
    pub fn of_name(node: &NodeKey, name: &str) -> Self {
        VolumeId(derive("vol", node, &format!("volume/{name}")))
    }

    /// The id under which an inline ephemeral volume is kept: its CSI id is the caller's choice (kubelet sends
    /// `csi-<sha256>`), so a path must never be made of it.
    pub fn of_inline(node: &NodeKey, csi_volume_id: &str) -> Self {
        VolumeId(derive("inl", node, &format!("inline/{csi_volume_id}")))
    }

    /// The id of what is left of a deleted volume or snapshot, whose own id is free again. `random` is what nobody else has,
    /// so that no name leads to it.
    pub fn of_removed(node: &NodeKey, random: &str) -> Self {
        VolumeId(derive("vol", node, &format!("removed/{random}")))
    }

    /// Returns the id of what is left on `node` of a volume that has moved away. `generation` is that of the volume on its
    /// new node.
    pub fn of_retired(node: &NodeKey, was: &VolumeId, generation: u64) -> Self {
        VolumeId(derive("vol", node, &format!("retired/{was}/{generation}")))
    }

    /// Returns the id that stands for the copy of a snapshot that `node` takes from another node, in a permit to read it: no volume has it.
    pub fn of_taken(node: &NodeKey, snapshot: &SnapshotId) -> Self {
        VolumeId(derive("vol", node, &format!("taken/{snapshot}")))
    }

    /// Returns the id that stands for a group snapshot that `node` has released to another node: no volume has it.
    pub fn of_released_group(node: &NodeKey, group: &GroupSnapshotId) -> Self {
        VolumeId(derive("vol", node, &format!("taken/{group}")))
    }

    /// Whether the volume was made by NodePublishVolume for one pod.
    pub fn is_inline(&self) -> bool {
        self.0.starts_with("inl-")
    }
}

/// The node key in text that is `<one of the kinds>-<node key>-<uuid>` in the one spelling that a directory has.
fn node_key_in<'a>(text: &'a str, kinds: &[&str]) -> Option<&'a str> {
    let rest = kinds.iter().find_map(|kind| text.strip_prefix(kind)?.strip_prefix('-'))?;
    let (key, uuid) = (rest.get(..NodeKey::LEN)?, rest.get(NodeKey::LEN..)?.strip_prefix('-')?);
    let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    // Uuid's parser takes several spellings; the directory has one.
    let canonical = Uuid::try_parse(uuid).ok()?.hyphenated().to_string() == uuid;
    (key.chars().all(hex) && canonical).then_some(key)
}

fn derive(kind: &str, node: &NodeKey, name: &str) -> String {
    let uuid = Uuid::new_v5(&NAMESPACE, format!("{node}/{name}").as_bytes());
    format!("{kind}-{node}-{}", uuid.hyphenated())
}

/// Text that is not an id of hostloop.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not an id of hostloop")]
pub struct InvalidId(String);

pub trait Id: FromStr + AsRef<str> {
    /// The key of the node in text that is such an id.
    fn node_key_in(text: &str) -> Option<&str>;

    /// The key of the node that owns it.
    fn node_key(&self) -> &str {
        Self::node_key_in(self.as_ref()).unwrap_or_default()
    }
}

/// What every id can do: only text of one form becomes one, so that it can be part of a path.
macro_rules! id {
    ($name:ident, $($kind:literal),+) => {
        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// The key of the node that owns it.
            pub fn node_key(&self) -> &str {
                Id::node_key(self)
            }
        }

        impl Id for $name {
            fn node_key_in(text: &str) -> Option<&str> {
                node_key_in(text, &[$($kind),+])
            }
        }

        impl FromStr for $name {
            type Err = InvalidId;

            fn from_str(s: &str) -> Result<Self, Self::Err> {
                match Self::node_key_in(s) {
                    Some(_) => Ok($name(s.to_owned())),
                    None => Err(InvalidId(s.to_owned())),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;

            fn try_from(s: String) -> Result<Self, Self::Error> {
                s.parse()
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

id!(VolumeId, "vol", "inl");
id!(SnapshotId, "snap");
id!(GroupSnapshotId, "grp");

/// A snapshot's id and the name of its directory: `snap-<node key>-<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SnapshotId(String);

impl SnapshotId {
    /// The id of the snapshot that CreateSnapshot makes on `node` for the CSI name `name`.
    pub fn of_name(node: &NodeKey, name: &str) -> Self {
        SnapshotId(derive("snap", node, &format!("snapshot/{name}")))
    }

    /// The id of the cut of `source` from which another node makes the volume `target`.
    pub fn of_pull(node: &NodeKey, source: &VolumeId, target: &VolumeId) -> Self {
        SnapshotId(derive("snap", node, &format!("pull/{source}/{target}")))
    }

    /// The ids of the cuts of `source` that stay for the copy `target`: two, since the copy has the data of one while it is
    /// given those of the other. The first is that of a pull.
    pub fn of_copy(node: &NodeKey, source: &VolumeId, target: &VolumeId) -> [Self; 2] {
        let second = derive("snap", node, &format!("copy/{source}/{target}"));
        [Self::of_pull(node, source, target), SnapshotId(second)]
    }

    /// The id of the snapshot of `source` in a group.
    pub fn of_member(group: &GroupSnapshotId, node: &NodeKey, source: &VolumeId) -> Self {
        SnapshotId(derive("snap", node, &format!("member/{group}/{source}")))
    }
}

/// A group snapshot's id: `grp-<node key>-<uuid>`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct GroupSnapshotId(String);

impl GroupSnapshotId {
    /// The id of the group that CreateVolumeGroupSnapshot makes on `node` for the CSI name `name`.
    pub fn of_name(node: &NodeKey, name: &str) -> Self {
        GroupSnapshotId(derive("grp", node, &format!("group/{name}")))
    }
}

/// The id of whatever hostloop keeps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ObjectId {
    Volume(VolumeId),
    Snapshot(SnapshotId),
    Group(GroupSnapshotId),
}

impl ObjectId {
    /// What it is the id of, as messages say it.
    pub const fn kind(&self) -> &'static str {
        match self {
            ObjectId::Volume(_) => "volume",
            ObjectId::Snapshot(_) => "snapshot",
            ObjectId::Group(_) => "group snapshot",
        }
    }

    pub fn as_str(&self) -> &str {
        match self {
            ObjectId::Volume(id) => id.as_str(),
            ObjectId::Snapshot(id) => id.as_str(),
            ObjectId::Group(id) => id.as_str(),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind(), self.as_str())
    }
}

impl From<&VolumeId> for ObjectId {
    fn from(id: &VolumeId) -> Self {
        ObjectId::Volume(id.clone())
    }
}

impl From<&SnapshotId> for ObjectId {
    fn from(id: &SnapshotId) -> Self {
        ObjectId::Snapshot(id.clone())
    }
}

impl From<&GroupSnapshotId> for ObjectId {
    fn from(id: &GroupSnapshotId) -> Self {
        ObjectId::Group(id.clone())
    }
}

/// The name of a pool, as `--pool NAME=PATH` and the StorageClass parameter `pool` give it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PoolName(String);

impl PoolName {
    /// The pool that is the data directory itself.
    pub const DEFAULT: &'static str = "default";

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for PoolName {
    fn default() -> Self {
        PoolName(Self::DEFAULT.to_owned())
    }
}

/// A pool name outside `[a-z0-9-]{1,63}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("pool name {0:?} is not 1 to 63 of the characters a-z, 0-9 and -")]
pub struct InvalidPoolName(String);

impl FromStr for PoolName {
    type Err = InvalidPoolName;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        let valid = (1..=63).contains(&s.len())
            && s.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
        if valid { Ok(PoolName(s.to_owned())) } else { Err(InvalidPoolName(s.to_owned())) }
    }
}

impl TryFrom<String> for PoolName {
    type Error = InvalidPoolName;

    fn try_from(s: String) -> Result<Self, Self::Error> {
        s.parse()
    }
}

impl From<PoolName> for String {
    fn from(name: PoolName) -> String {
        name.0
    }
}

impl fmt::Display for PoolName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_stable_and_parse() {
        let node = NodeKey::of("node-a");
        let id = VolumeId::of_name(&node, "../../etc/passwd\n😀");
        assert_eq!(id, VolumeId::of_name(&node, "../../etc/passwd\n😀"));
        assert_eq!(id.as_str().parse(), Ok(id.clone()));
        assert_eq!(id.node_key(), node.to_string());
        assert!(id.as_str().len() <= 128 && !id.is_inline());
        assert_ne!(id, VolumeId::of_name(&NodeKey::of("node-b"), "../../etc/passwd\n😀"));
        assert!(VolumeId::of_inline(&node, "csi-1").is_inline());
    }

    #[test]
    fn other_text_is_no_id() {
        for text in
            ["", "vol-", "vol-0123456789ab", "vol-0123456789ab-../../../x", "reallyfakevolumeid", "vol-é"]
        {
            assert!(text.parse::<VolumeId>().is_err(), "{text}");
        }
        let upper = VolumeId::of_name(&NodeKey::of("n"), "x").as_str().to_uppercase();
        assert!(upper.parse::<VolumeId>().is_err());
    }

    #[test]
    fn pool_names_stay_out_of_paths() {
        assert!("fast-1".parse::<PoolName>().is_ok());
        for text in ["", "..", "a/b", "Fast", &"x".repeat(64)] {
            assert!(text.parse::<PoolName>().is_err(), "{text}");
        }
    }
}
