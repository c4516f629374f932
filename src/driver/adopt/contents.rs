//! What a source holds, and what a volume of it can be.

use super::source::Source;
use super::{is_block, make::Holds};
use crate::backend::{Signature, inspect};
use crate::driver::Driver;
use crate::driver::create_volume::Wanted;
use crate::error::{Error, OsContext, Result};
use crate::kernel::{AttachOptions, is_errno};
use crate::model::{AccessType, AdoptVolume, BackendKind, Capability, FsType, SizeRange, format_exactly};

use nix::errno::Errno;

/// Images are attached as a device of such blocks: a filesystem that was made for them mounts on no other.
pub(super) const BLOCK_SIZE: u32 = 512;

impl Driver {
    /// Returns the volume that a source can become, if that is what is asked for: with the filesystem that was found, and large
    /// enough.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for another kind of volume and for unknown data; FAILED_PRECONDITION for a damaged filesystem.
    pub(super) fn fitted(&self, wanted: Wanted, request: &AdoptVolume, source: &Source) -> Result<Wanted> {
        let (shown, backend) = (source.shown(), wanted.parameters.backend);
        match (request.is_directory, backend) {
            (true, BackendKind::Loop) => Err(Error::Invalid(format!(
                "{shown} is a directory, and becomes a volume of backend directory only; use a class with backend: directory"
            ))),
            (false, BackendKind::Directory) => Err(Error::Invalid(format!(
                "{shown} is an image, and becomes a volume of backend loop only; use a class with backend: loop"
            ))),
            (true, BackendKind::Directory) if wanted.size.required == 0 => Err(Error::Invalid(format!(
                "the volume that {shown} becomes has no size; say how large it is to be"
            ))),
            (true, BackendKind::Directory) => Ok(wanted),
            (false, BackendKind::Loop) => self.fitted_image(wanted, source),
        }
    }

    fn fitted_image(&self, wanted: Wanted, source: &Source) -> Result<Wanted> {
        let (shown, bytes) = (source.shown(), source.stat.size);
        if bytes == 0 {
            return Err(Error::Invalid(format!("{shown} is empty")));
        }
        let size = SizeRange { required: wanted.size.required.max(bytes), limit: 0 };
        let wanted = Wanted { size, ..wanted };
        if is_block(&wanted.capabilities) {
            return Ok(wanted);
        }
        match inspect(self.os.images.as_ref(), source.hold(&self.os)?.path())? {
            Signature::Filesystem { bytes: says, .. } if says > bytes => Err(Error::InUse(format!(
                "the filesystem in {shown} has {}, and the file only {}: it was cut off",
                format_exactly(says),
                format_exactly(bytes)
            ))),
            Signature::Filesystem { fs_type, .. } => {
                let capabilities = with_fs_type(wanted.capabilities, fs_type, &shown.to_string())?;
                self.expect_sound(source, fs_type)?;
                Ok(Wanted { capabilities, ..wanted })
            }
            Signature::Blank => Err(Error::Invalid(format!(
                "{shown} holds nothing: make a new volume, or ask for a raw block volume"
            ))),
            Signature::Other(what) => Err(Error::Invalid(format!(
                "{shown} holds {what}, and a volume holds ext4, xfs or btrfs from its first byte on; ask for a raw block volume \
                 if that is what its pods expect"
            ))),
        }
    }

    /// Checks the whole filesystem in an image without changing it.
    fn expect_sound(&self, source: &Source, fs_type: FsType) -> Result<()> {
        let shown = source.shown();
        let tools = self.os.filesystems.check_tools(fs_type);
        tools.map_err(|error| {
            Error::InUse(format!("{shown} holds {fs_type}, which cannot be checked on this node: {error}"))
        })?;
        let options = AttachOptions {
            read_only: true,
            autoclear: true,
            direct_io: false,
            block_size: BLOCK_SIZE,
            discard: false,
        };
        let open = self.os.loops.attach(&source.at(), options).doing(|| format!("attach {shown}"))?;
        match self.os.filesystems.check(fs_type, &open.device.path()) {
            Err(error) if is_errno(&error, Errno::EUCLEAN) => Err(Error::InUse(format!(
                "the {fs_type} in {shown} is damaged, or was not unmounted: {error}; mount it and unmount it once so that its journal \
                 is replayed, or repair it with its own tool"
            ))),
            checked => checked.doing(|| format!("check the {fs_type} in {shown}")),
        }
    }

    /// Returns what the source has that a copy of it takes, in bytes, and what it has allocated.
    pub(super) fn holds(&self, request: &AdoptVolume, source: &Source) -> Result<Holds> {
        let at = source.at();
        let measuring = || format!("measure {}", source.shown());
        if request.is_directory {
            let held = source.hold(&self.os)?;
            let bytes = self.os.trees.usage(held.path()).doing(measuring)?.bytes;
            return Ok(Holds { to_copy: bytes, allocated: bytes });
        }
        let (mut from, mut to_copy) = (0, 0);
        while let Some((start, end)) = self.os.images.next_data(&at, from).doing(measuring)? {
            (from, to_copy) = (end, to_copy + (end - start));
        }
        Ok(Holds { to_copy, allocated: source.stat.allocated })
    }
}

/// The capabilities with the filesystem that was found.
///
/// # Errors
/// INVALID_ARGUMENT if another one is asked for.
fn with_fs_type(capabilities: Vec<Capability>, found: FsType, shown: &str) -> Result<Vec<Capability>> {
    let with = |capability: Capability| match capability.access {
        AccessType::Mount { fs_type: Some(asked), .. } if asked != found => {
            Err(Error::Invalid(format!("{shown} holds {found}, and {asked} is asked for")))
        }
        AccessType::Mount { flags, .. } => {
            Ok(Capability { access: AccessType::Mount { fs_type: Some(found), flags }, ..capability })
        }
        AccessType::Block => Ok(capability),
    };
    capabilities.into_iter().map(with).collect()
}
