//! What a volume can hold, and how it can be used: the rules of each kind.

use crate::error::{Error, Result};
use crate::kernel::Os;
use crate::model::{BackendKind, Capability, Content, Format, FsType, OptionName, VolumeParameters};

/// What a volume will hold for these capabilities, of which decoding has made sure that they agree.
///
/// # Errors
/// INVALID_ARGUMENT for a raw device on the directory backend.
pub fn content_for(parameters: &VolumeParameters, capabilities: &[Capability]) -> Result<Content> {
    let block = capabilities.iter().any(Capability::is_block);
    let fs_type = capabilities.iter().find_map(Capability::fs_type).unwrap_or(FsType::Ext4);
    match (parameters.backend, block) {
        (BackendKind::Loop, true) => Ok(Content::Block),
        (BackendKind::Loop, false) => Ok(Content::Filesystem { fs_type, format: Format::Blank }),
        (BackendKind::Directory, false) => Ok(Content::Directory),
        (BackendKind::Directory, true) => Err(Error::Invalid(
            "the directory backend has no raw block volumes, use backend: loop".to_owned(),
        )),
    }
}

/// A directory with an enforced size has room for its own directories at least, and what a filesystem takes for them.
const SMALLEST_DIRECTORY: u64 = 1 << 20;

/// The smallest size in bytes that a volume with this content and these parameters can have.
pub fn minimum_bytes(content: &Content, parameters: &VolumeParameters) -> u64 {
    if parameters.is_limited_directory() { SMALLEST_DIRECTORY } else { content.minimum_bytes() }
}

/// Why a volume with this content and these parameters does not have the capability; `None` if it has it.
pub fn unsupported(
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
    if *content == Content::Directory
        && let Some(word) = capability.mount_flags().data.first()
    {
        return Some(no_option_of_directory(&OptionName::of(word)));
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

/// Returns why a new volume with this content cannot be mounted with the options of the capability; `None` if it can be,
/// or if the kernel tells only when it mounts. What was made before may have had an option that did nothing.
pub fn refused_option(os: &Os, content: &Content, capability: &Capability) -> Option<String> {
    let flags = capability.mount_flags();
    match content {
        Content::Block => None,
        Content::Directory => flags.of_filesystem().map(|name| no_option_of_directory(&name)),
        Content::Filesystem { fs_type, .. } => {
            let refused = os.mounts.refused_option(*fs_type, &flags.data)?;
            Some(format!(
                "{fs_type} refuses the mount option {refused} on this node; correct mountOptions of the StorageClass"
            ))
        }
    }
}

fn no_option_of_directory(name: &OptionName) -> String {
    format!(
        "mount option {name} is one of a filesystem, and a directory shares its filesystem with others; remove it from \
         mountOptions, or use backend: loop"
    )
}

/// What a volume made from something with this content holds, if that is what is asked for; `source` names it.
///
/// # Errors
/// INVALID_ARGUMENT for another backend, access type or filesystem.
pub fn content_of_copy(
    content: &Content,
    source: &str,
    parameters: &VolumeParameters,
    capabilities: &[Capability],
) -> Result<Content> {
    let refuse = |has: &str, wanted: &str| {
        Err(Error::Invalid(format!("{source} holds {has}, which cannot become {wanted}")))
    };
    let (block, fs_type) =
        (capabilities.iter().any(Capability::is_block), capabilities.iter().find_map(Capability::fs_type));
    if content.backend() != parameters.backend {
        return refuse(
            &format!("a volume of backend {}", content.backend().as_str()),
            &format!("one of backend {}", parameters.backend.as_str()),
        );
    }
    match (content, block, fs_type) {
        (Content::Block, false, _) => refuse("a raw device", "a filesystem volume"),
        (Content::Filesystem { .. } | Content::Directory, true, _) => {
            refuse("a filesystem", "a raw block volume")
        }
        (Content::Filesystem { fs_type, .. }, _, Some(wanted)) if *fs_type != wanted => {
            refuse(fs_type.as_str(), wanted.as_str())
        }
        (Content::Filesystem { fs_type, format }, _, _) => {
            let format = match format {
                // What mkfs has left there is told by a mark.
                Format::Blank | Format::Formatting => Format::Blank,
                Format::Copied | Format::Formatted => Format::Copied,
            };
            Ok(Content::Filesystem { fs_type: *fs_type, format })
        }
        (content, _, _) => Ok(content.clone()),
    }
}

/// What a volume made from something with this content holds if it is to get the backend and the filesystem that are asked for. Without
/// a filesystem that is asked for, it keeps its own.
///
/// # Errors
/// INVALID_ARGUMENT for a raw device, and for what no volume can have.
pub fn content_converted(
    content: &Content,
    source: &str,
    parameters: &VolumeParameters,
    capabilities: &[Capability],
) -> Result<Content> {
    let wanted = content_for(parameters, capabilities)?;
    let is_asked_for = capabilities.iter().any(|capability| capability.fs_type().is_some());
    let keeps = content.backend() == wanted.backend() && !is_asked_for;
    match wanted {
        Content::Filesystem { fs_type, .. }
            if *content != Content::Block && !keeps && content.fs_type() != Some(fs_type) =>
        {
            Ok(Content::Filesystem { fs_type, format: Format::Formatted })
        }
        Content::Directory if *content != Content::Block => Ok(Content::Directory),
        _ => content_of_copy(content, source, parameters, capabilities),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{AccessMode, AccessType, MountFlags};

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
    fn a_directory_names_an_option_that_it_cannot_have() {
        let os = hostloop_fake_kernel::FakeKernel::new().os();
        let directory = VolumeParameters { backend: BackendKind::Directory, ..VolumeParameters::default() };
        let flags = MountFlags { data: vec!["commit=5".to_owned()], ..MountFlags::default() };
        let access = AccessType::Mount { fs_type: None, flags };
        let with_option = Capability { access, mode: AccessMode::SingleNodeWriter };
        for why in [
            unsupported(&Content::Directory, &directory, &with_option),
            refused_option(&os, &Content::Directory, &with_option),
        ] {
            let why = why.expect("a reason");
            assert!(why.starts_with("mount option \"commit\" is one of a filesystem"), "{why}");
            assert!(why.ends_with("remove it from mountOptions, or use backend: loop"), "{why}");
        }
        let without = mount(AccessMode::SingleNodeWriter, None);
        assert_eq!(unsupported(&Content::Directory, &directory, &without), None);
        assert_eq!(refused_option(&os, &Content::Directory, &without), None);
    }

    #[test]
    fn several_nodes_need_shared_on_node_and_a_filesystem() {
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
