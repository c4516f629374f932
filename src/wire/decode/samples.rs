//! Requests for the tests of decoding.

use std::collections::HashMap;

use crate::wire::csi;
use csi::volume_capability::access_mode::Mode;
use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

pub(super) fn map(entries: &[(&str, &str)]) -> HashMap<String, String> {
    entries.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}

pub(super) fn mount(fs_type: &str) -> csi::VolumeCapability {
    let volume = MountVolume { fs_type: fs_type.to_owned(), ..Default::default() };
    capability(AccessType::Mount(volume))
}

pub(super) fn block() -> csi::VolumeCapability {
    capability(AccessType::Block(BlockVolume {}))
}

fn capability(access_type: AccessType) -> csi::VolumeCapability {
    csi::VolumeCapability {
        access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
        access_type: Some(access_type),
    }
}
