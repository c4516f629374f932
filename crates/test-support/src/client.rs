//! What tests send: the kinds of volumes, and the requests that the self-test does not need beside those that it does.

pub use hostloop::selftest::requests::*;
pub use hostloop::selftest::volume::Volume;
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::AccessType;
use hostloop::wire::csi::volume_capability::access_mode::Mode;

/// What a volume holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Ext4,
    Xfs,
    Btrfs,
    Block,
    Directory,
}

impl Kind {
    pub const ALL: [Kind; 5] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block, Kind::Directory];

    /// Those in an image, which can be in one pool.
    pub const LOOP: [Kind; 4] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Ext4 => "ext4",
            Kind::Xfs => "xfs",
            Kind::Btrfs => "btrfs",
            Kind::Block => "block",
            Kind::Directory => "directory",
        }
    }

    /// As [`capability`] takes it: a directory has the filesystem that it is on.
    pub fn fs_type(self) -> Option<&'static str> {
        match self {
            Kind::Ext4 | Kind::Xfs | Kind::Btrfs => Some(self.name()),
            Kind::Block => None,
            Kind::Directory => Some(""),
        }
    }

    pub fn capability(self, mode: Mode) -> csi::VolumeCapability {
        capability(self.fs_type(), mode)
    }

    /// The parameter that a volume of this kind needs.
    pub fn backend(self) -> &'static [(&'static str, &'static str)] {
        if self == Kind::Directory { &[("backend", "directory")] } else { &[] }
    }

    /// A size in bytes that it can have on every kernel, and be grown from.
    pub fn size(self) -> u64 {
        let mib = match self {
            Kind::Ext4 | Kind::Block | Kind::Directory => 64,
            Kind::Xfs => 304,
            Kind::Btrfs => 256,
        };
        mib << 20
    }
}

/// The same capability with these mount options, which a raw device has not.
pub fn with_options(mut capability: csi::VolumeCapability, options: &[&str]) -> csi::VolumeCapability {
    if let Some(AccessType::Mount(mount)) = &mut capability.access_type {
        mount.mount_flags = options.iter().map(|option| (*option).to_owned()).collect();
    }
    capability
}

pub fn group(name: &str, volume_ids: &[&str]) -> csi::CreateVolumeGroupSnapshotRequest {
    let source_volume_ids = volume_ids.iter().map(|id| (*id).to_owned()).collect();
    csi::CreateVolumeGroupSnapshotRequest { name: name.to_owned(), source_volume_ids, ..Default::default() }
}

pub fn delete_group(id: &str) -> csi::DeleteVolumeGroupSnapshotRequest {
    csi::DeleteVolumeGroupSnapshotRequest { group_snapshot_id: id.to_owned(), ..Default::default() }
}

pub fn modify(id: &str, changed: &[(&str, &str)]) -> csi::ControllerModifyVolumeRequest {
    let (volume_id, mutable_parameters) = (id.to_owned(), parameters(changed));
    csi::ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() }
}

pub fn allocated(snapshot_id: &str) -> csi::GetMetadataAllocatedRequest {
    csi::GetMetadataAllocatedRequest { snapshot_id: snapshot_id.to_owned(), ..Default::default() }
}

pub fn delta(base: &str, target: &str) -> csi::GetMetadataDeltaRequest {
    let (base_snapshot_id, target_snapshot_id) = (base.to_owned(), target.to_owned());
    csi::GetMetadataDeltaRequest { base_snapshot_id, target_snapshot_id, ..Default::default() }
}
