//! Does a request fit the volume? Rules that several RPCs share.

use crate::error::{Error, Result};
use crate::model::request::Context;
use crate::model::{BackendKind, Capability, Content, Volume, VolumeParameters};

/// What a volume will hold for these capabilities, of which decoding has made sure that they agree.
///
/// # Errors
/// INVALID_ARGUMENT for a raw device on the directory backend.
pub(super) fn content_for(parameters: &VolumeParameters, capabilities: &[Capability]) -> Result<Content> {
    let block = capabilities.iter().any(Capability::is_block);
    let fs_type = capabilities.iter().find_map(Capability::fs_type).unwrap_or(crate::model::FsType::Ext4);
    match (parameters.backend, block) {
        (BackendKind::Loop, true) => Ok(Content::Block),
        (BackendKind::Loop, false) => {
            Ok(Content::Filesystem { fs_type, format: crate::model::Format::Blank })
        }
        (BackendKind::Directory, false) => Ok(Content::Directory),
        (BackendKind::Directory, true) => Err(Error::Invalid(
            "the directory backend has no raw block volumes, use backend: loop".to_owned(),
        )),
    }
}

/// Why a volume with this content and these parameters does not have the capability; `None` if it has it.
pub(super) fn unsupported(
    content: &Content,
    parameters: &VolumeParameters,
    capability: &Capability,
) -> Option<String> {
    let mode = capability.mode;
    match (content, capability.is_block()) {
        (Content::Block, false) => return Some("a raw block volume cannot be mounted".to_owned()),
        (Content::Filesystem { .. } | Content::Directory, true) => {
            return Some("a filesystem volume is not available as a raw block device".to_owned());
        }
        _ => {}
    }
    if let (Content::Filesystem { fs_type, .. }, Some(wanted)) = (content, capability.fs_type())
        && *fs_type != wanted
    {
        return Some(format!("the volume holds {fs_type}, not {wanted}"));
    }
    if *content == Content::Directory && !capability.mount_flags().data.is_empty() {
        return Some("a directory volume is a bind mount: it takes no filesystem options".to_owned());
    }
    let shared = parameters.shared_on_node && !capability.is_block();
    if mode.is_multi_node() && !shared {
        return Some(format!(
            "{} is not possible: the volume exists on one node only; several pods of that node can share a filesystem if the StorageClass says sharedOnNode: \"true\"",
            mode.as_str()
        ));
    }
    None
}

/// Refuses a capability that the volume does not have, with the error that `refuse` makes of the reason.
pub(super) fn capability(volume: &Volume, wanted: &Capability, refuse: fn(String) -> Error) -> Result<()> {
    match unsupported(&volume.content, &volume.parameters, wanted) {
        Some(reason) => Err(refuse(format!("volume {}: {reason}", volume.id))),
        None => Ok(()),
    }
}

/// Refuses a `volume_context` that is not the volume's. Keys that are not ours were added on the way (the
/// provisioner's identity, kubelet's pod info) and mean nothing to us.
///
/// # Errors
/// INVALID_ARGUMENT naming the key.
pub(super) fn context(volume: &Volume, sent: &Context) -> Result<()> {
    let wrong = |(key, value): &(String, String)| sent.get(key).is_some_and(|sent| sent != value);
    match volume.context().into_iter().find(wrong) {
        Some((key, value)) => Err(Error::Invalid(format!(
            "volume_context {key:?} is not {value:?}, as CreateVolume returned it"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AccessMode, AccessType, Format, FsType, MountFlags};

    fn mount(mode: AccessMode, fs_type: Option<FsType>) -> Capability {
        Capability { access: AccessType::Mount { fs_type, flags: MountFlags::default() }, mode }
    }

    fn block(mode: AccessMode) -> Capability {
        Capability { access: AccessType::Block, mode }
    }

    #[test]
    fn content_follows_capability_and_backend() {
        let looped = VolumeParameters::default();
        let directory = VolumeParameters { backend: BackendKind::Directory, ..looped.clone() };
        let xfs = [
            mount(AccessMode::SingleNodeWriter, None),
            mount(AccessMode::SingleNodeReaderOnly, Some(FsType::Xfs)),
        ];
        let fs = Content::Filesystem { fs_type: FsType::Xfs, format: Format::Blank };
        assert_eq!(content_for(&looped, &xfs).expect("content"), fs);
        assert_eq!(
            content_for(&looped, &[block(AccessMode::SingleNodeWriter)]).expect("content"),
            Content::Block
        );
        assert_eq!(content_for(&directory, &xfs).expect("content"), Content::Directory);
        assert!(content_for(&directory, &[block(AccessMode::SingleNodeWriter)]).is_err());
    }

    #[test]
    fn several_nodes_only_when_shared_on_one_and_only_for_filesystems() {
        use AccessMode::*;
        let fs = Content::Filesystem { fs_type: FsType::Ext4, format: Format::Blank };
        let alone = VolumeParameters::default();
        let shared = VolumeParameters { shared_on_node: true, ..alone.clone() };
        for mode in [MultiNodeReaderOnly, MultiNodeSingleWriter, MultiNodeMultiWriter] {
            assert!(unsupported(&fs, &alone, &mount(mode, None)).is_some(), "{mode:?}");
            assert!(unsupported(&fs, &shared, &mount(mode, None)).is_none(), "{mode:?}");
            assert!(unsupported(&Content::Block, &shared, &block(mode)).is_some(), "{mode:?}");
        }
        for mode in [SingleNodeWriter, SingleNodeReaderOnly, SingleNodeSingleWriter, SingleNodeMultiWriter] {
            assert!(unsupported(&fs, &alone, &mount(mode, Some(FsType::Ext4))).is_none(), "{mode:?}");
            assert!(unsupported(&fs, &alone, &mount(mode, Some(FsType::Xfs))).is_some(), "{mode:?}");
            assert!(unsupported(&fs, &alone, &block(mode)).is_some(), "{mode:?}");
            assert!(unsupported(&Content::Block, &alone, &mount(mode, None)).is_some(), "{mode:?}");
        }
    }
}
