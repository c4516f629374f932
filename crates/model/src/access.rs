//! How a volume is used: CSI `VolumeCapability` as plain types, and what follows from the access mode.

use serde::{Deserialize, Serialize};

use super::{FsType, MountFlags};

/// CSI `VolumeCapability.AccessMode.Mode`, without UNKNOWN, which is refused when decoding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum AccessMode {
    /// One node, read and write; what sidecars send for ReadWriteOnce without SINGLE_NODE_MULTI_WRITER.
    SingleNodeWriter,
    SingleNodeReaderOnly,
    MultiNodeReaderOnly,
    /// Several nodes, one of which writes.
    MultiNodeSingleWriter,
    /// Several nodes, read and write (ReadWriteMany).
    MultiNodeMultiWriter,
    /// One pod of one node, read and write (ReadWriteOncePod).
    SingleNodeSingleWriter,
    /// Several pods of one node, read and write (ReadWriteOnce).
    SingleNodeMultiWriter,
}

/// What a publish at a second target path is answered (spec.md, NodePublishVolume, second-publish matrix).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecondPublish {
    /// Another target path may be published as well.
    Allowed,
    /// FAILED_PRECONDITION.
    Refused,
}

impl AccessMode {
    /// Whether the mode lets nobody write.
    pub const fn is_read_only(self) -> bool {
        matches!(self, AccessMode::SingleNodeReaderOnly | AccessMode::MultiNodeReaderOnly)
    }

    /// Whether the mode speaks of several nodes.
    pub const fn is_multi_node(self) -> bool {
        matches!(
            self,
            AccessMode::MultiNodeReaderOnly
                | AccessMode::MultiNodeSingleWriter
                | AccessMode::MultiNodeMultiWriter
        )
    }

    /// Whether a volume in this mode may be published at a second target path on the same node: yes for
    /// MULTI_NODE_* and SINGLE_NODE_MULTI_WRITER, no for the others (spec.md, NodePublishVolume).
    pub const fn second_publish(self) -> SecondPublish {
        match self.is_multi_node() || matches!(self, AccessMode::SingleNodeMultiWriter) {
            true => SecondPublish::Allowed,
            false => SecondPublish::Refused,
        }
    }

    /// The mode's name in the protocol.
    pub const fn as_str(self) -> &'static str {
        match self {
            AccessMode::SingleNodeWriter => "SINGLE_NODE_WRITER",
            AccessMode::SingleNodeReaderOnly => "SINGLE_NODE_READER_ONLY",
            AccessMode::MultiNodeReaderOnly => "MULTI_NODE_READER_ONLY",
            AccessMode::MultiNodeSingleWriter => "MULTI_NODE_SINGLE_WRITER",
            AccessMode::MultiNodeMultiWriter => "MULTI_NODE_MULTI_WRITER",
            AccessMode::SingleNodeSingleWriter => "SINGLE_NODE_SINGLE_WRITER",
            AccessMode::SingleNodeMultiWriter => "SINGLE_NODE_MULTI_WRITER",
        }
    }
}

/// CSI `VolumeCapability.access_type`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum AccessType {
    Block,
    #[serde(rename_all = "camelCase")]
    Mount {
        /// The filesystem the caller wants, if it named one.
        fs_type: Option<FsType>,
        /// Parsed mount flags. They may be sensitive (spec.md, MountVolume), so they are never kept in a record.
        #[serde(skip)]
        flags: MountFlags,
    },
}

/// CSI `VolumeCapability`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Capability {
    pub access: AccessType,
    pub mode: AccessMode,
}

impl Capability {
    pub const fn is_block(&self) -> bool {
        matches!(self.access, AccessType::Block)
    }

    /// The filesystem that is asked for by name.
    pub const fn fs_type(&self) -> Option<FsType> {
        match self.access {
            AccessType::Mount { fs_type, .. } => fs_type,
            AccessType::Block => None,
        }
    }

    /// The mount flags; none for block.
    pub fn mount_flags(&self) -> MountFlags {
        match &self.access {
            AccessType::Mount { flags, .. } => flags.clone(),
            AccessType::Block => MountFlags::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_publish_follows_the_matrix() {
        use AccessMode::*;
        for mode in [MultiNodeReaderOnly, MultiNodeSingleWriter, MultiNodeMultiWriter, SingleNodeMultiWriter]
        {
            assert_eq!(mode.second_publish(), SecondPublish::Allowed, "{mode:?}");
        }
        for mode in [SingleNodeWriter, SingleNodeReaderOnly, SingleNodeSingleWriter] {
            assert_eq!(mode.second_publish(), SecondPublish::Refused, "{mode:?}");
        }
    }

    #[test]
    fn a_record_keeps_no_mount_flags() {
        let flags = MountFlags::parse(["noatime", "context=\"secret\""]).expect("flags");
        let cap = Capability {
            access: AccessType::Mount { fs_type: Some(FsType::Xfs), flags },
            mode: AccessMode::SingleNodeWriter,
        };
        let json = serde_json::to_string(&cap).expect("json");
        assert!(!json.contains("secret") && !json.contains("noatime"), "{json}");
        let back: Capability = serde_json::from_str(&json).expect("capability");
        assert_eq!((back.fs_type(), back.mode), (Some(FsType::Xfs), AccessMode::SingleNodeWriter));
    }
}
