//! Subvolumes and qgroups of btrfs (linux/btrfs.h, linux/btrfs_tree.h).

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;

use super::request::{ByAddress, ByNumber};

/// BTRFS_ROOT_TREE_OBJECTID and BTRFS_QUOTA_TREE_OBJECTID
const ROOT_TREE: u64 = 1;
const QUOTA_TREE: u64 = 8;
/// BTRFS_ROOT_REF_KEY
const ROOT_REF: u32 = 156;
/// The inode of the top of each subvolume (BTRFS_FIRST_FREE_OBJECTID).
const TOP: u64 = 256;
/// BTRFS_QUOTA_CTL_ENABLE, and BTRFS_QUOTA_CTL_ENABLE_SIMPLE_QUOTA (Linux 6.7)
const ENABLE_QUOTAS: u64 = 1;
const ENABLE_SIMPLE_QUOTAS: u64 = 4;
/// BTRFS_QGROUP_INHERIT_SET_LIMITS
pub(super) const SET_LIMITS: u64 = 1;
/// BTRFS_SUBVOL_QGROUP_INHERIT
pub(super) const INHERIT: u64 = 1 << 2;
/// BTRFS_QGROUP_LIMIT_MAX_RFER
pub(super) const MAX_REFERENCED: u64 = 1;
/// BTRFS_SUBVOL_NAME_MAX and the end of the text.
const NAME: usize = 4040;
/// BTRFS_SEARCH_ARGS_BUFSIZE
const FOUND: usize = 4096 - size_of::<SearchKey>();

/// `struct btrfs_ioctl_quota_ctl_args`
#[repr(C)]
pub(super) struct QuotaControl {
    pub(super) command: u64,
    pub(super) status: u64,
}

/// `struct btrfs_ioctl_qgroup_create_args`
#[repr(C)]
pub(super) struct QgroupCreate {
    pub(super) create: u64,
    pub(super) qgroup: u64,
}

/// `struct btrfs_ioctl_qgroup_assign_args`
#[repr(C)]
pub(super) struct QgroupAssign {
    pub(super) assign: u64,
    pub(super) member: u64,
    pub(super) group: u64,
}

/// `struct btrfs_ioctl_qgroup_limit_args`
#[repr(C)]
#[derive(Default)]
pub(super) struct QgroupLimit {
    pub(super) qgroup: u64,
    pub(super) flags: u64,
    pub(super) max_referenced: u64,
    pub(super) others: [u64; 3],
}

/// `struct btrfs_ioctl_quota_rescan_args`
#[repr(C)]
#[derive(Default)]
pub(super) struct QuotaRescan {
    pub(super) flags: u64,
    pub(super) progress: u64,
    pub(super) reserved: [u64; 6],
}

/// `struct btrfs_qgroup_inherit` with one qgroup.
#[repr(C)]
#[derive(Default)]
pub(super) struct QgroupInherit {
    pub(super) flags: u64,
    pub(super) count: u64,
    pub(super) copies: [u64; 2],
    pub(super) limit: [u64; 5],
    pub(super) qgroup: u64,
}

/// `struct btrfs_ioctl_vol_args_v2`
#[repr(C)]
pub(super) struct VolumeArgs {
    pub(super) fd: i64,
    pub(super) transaction: u64,
    pub(super) flags: u64,
    pub(super) size: u64,
    pub(super) inherit: *const QgroupInherit,
    pub(super) unused: [u64; 2],
    pub(super) name: [u8; NAME],
}

/// `struct btrfs_ioctl_vol_args`
#[repr(C)]
pub(super) struct VolumeName {
    pub(super) fd: i64,
    pub(super) name: [u8; 4088],
}

/// `struct btrfs_ioctl_ino_lookup_args`
#[repr(C)]
pub(super) struct InodeLookup {
    pub(super) tree: u64,
    pub(super) object: u64,
    pub(super) name: [u8; 4080],
}

/// `struct btrfs_ioctl_search_key`
#[repr(C)]
#[derive(Default)]
pub(super) struct SearchKey {
    pub(super) tree: u64,
    pub(super) min_object: u64,
    pub(super) max_object: u64,
    pub(super) min_offset: u64,
    pub(super) max_offset: u64,
    pub(super) min_transaction: u64,
    pub(super) max_transaction: u64,
    pub(super) min_type: u32,
    pub(super) max_type: u32,
    pub(super) items: u32,
    pub(super) unused: u32,
    pub(super) reserved: [u64; 4],
}

/// `struct btrfs_ioctl_search_args`
#[repr(C)]
pub(super) struct SearchArgs {
    pub(super) key: SearchKey,
    pub(super) found: [u8; FOUND],
}

/// BTRFS_SUBVOL_RDONLY
const READ_ONLY_SUBVOLUME: u64 = 2;

pub(super) const BTRFS_IOC_INO_LOOKUP: ByAddress<InodeLookup> =
    ByAddress::new(nix::request_code_readwrite!(0x94, 18, size_of::<InodeLookup>()));
pub(super) const BTRFS_IOC_TREE_SEARCH: ByAddress<SearchArgs> =
    ByAddress::new(nix::request_code_readwrite!(0x94, 17, size_of::<SearchArgs>()));
pub(super) const BTRFS_IOC_SNAP_DESTROY: ByAddress<VolumeName> =
    ByAddress::new(nix::request_code_write!(0x94, 15, size_of::<VolumeName>()));
pub(super) const BTRFS_IOC_SNAP_CREATE_V2: ByAddress<VolumeArgs> =
    ByAddress::new(nix::request_code_write!(0x94, 23, size_of::<VolumeArgs>()));
/// The kernel only reads what the address in it leads to (fs/btrfs/ioctl.c, memdup_user).
pub(super) const BTRFS_IOC_SUBVOL_CREATE_V2: ByAddress<VolumeArgs> =
    ByAddress::new(nix::request_code_write!(0x94, 24, size_of::<VolumeArgs>()));
pub(super) const BTRFS_IOC_SUBVOL_GETFLAGS: ByAddress<u64> =
    ByAddress::new(nix::request_code_read!(0x94, 25, size_of::<u64>()));
pub(super) const BTRFS_IOC_SUBVOL_SETFLAGS: ByAddress<u64> =
    ByAddress::new(nix::request_code_write!(0x94, 26, size_of::<u64>()));
pub(super) const BTRFS_IOC_QUOTA_CTL: ByAddress<QuotaControl> =
    ByAddress::new(nix::request_code_readwrite!(0x94, 40, size_of::<QuotaControl>()));
pub(super) const BTRFS_IOC_QGROUP_ASSIGN: ByAddress<QgroupAssign> =
    ByAddress::new(nix::request_code_write!(0x94, 41, size_of::<QgroupAssign>()));
pub(super) const BTRFS_IOC_QGROUP_CREATE: ByAddress<QgroupCreate> =
    ByAddress::new(nix::request_code_write!(0x94, 42, size_of::<QgroupCreate>()));
/// Numbered as if it were read.
pub(super) const BTRFS_IOC_QGROUP_LIMIT: ByAddress<QgroupLimit> =
    ByAddress::new(nix::request_code_read!(0x94, 43, size_of::<QgroupLimit>()));

pub(super) const BTRFS_IOC_QUOTA_RESCAN: ByAddress<QuotaRescan> =
    ByAddress::new(nix::request_code_write!(0x94, 44, size_of::<QuotaRescan>()));
pub(super) const BTRFS_IOC_QUOTA_RESCAN_WAIT: ByNumber = ByNumber::new(nix::request_code_none!(0x94, 46));

/// An item of the tree of quotas, or of that of roots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::linux) struct QuotaItem {
    pub(in crate::linux) offset: u64,
    /// As on the disk: little endian.
    pub(in crate::linux) data: Vec<u8>,
}

impl QuotaItem {
    /// The n-th number of it.
    pub(in crate::linux) fn number(&self, n: usize) -> u64 {
        let bytes = self.data.get(n * 8..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
    }
}

/// Switches quotas on, where none are on; EINVAL for simple ones before Linux 6.7.
pub(in crate::linux) fn switch_on_quotas(file: impl AsFd, simple: bool) -> nix::Result<()> {
    let command = if simple { ENABLE_SIMPLE_QUOTAS } else { ENABLE_QUOTAS };
    BTRFS_IOC_QUOTA_CTL.call(file, &mut QuotaControl { command, status: 0 })
}

/// Has full qgroups count everything anew, in the background; fine where they do so already.
pub(in crate::linux) fn rescan_quotas(file: impl AsFd) -> nix::Result<()> {
    match BTRFS_IOC_QUOTA_RESCAN.call(file, &mut QuotaRescan::default()) {
        Err(Errno::EINPROGRESS) => Ok(()),
        begun => begun,
    }
}

/// Returns when they have done so.
pub(in crate::linux) fn await_rescan(file: impl AsFd) -> nix::Result<()> {
    loop {
        match BTRFS_IOC_QUOTA_RESCAN_WAIT.call(&file, 0) {
            Err(Errno::EINTR) => {}
            waited => return waited.map(drop),
        }
    }
}

/// Makes a qgroup; EEXIST where it is there.
pub(in crate::linux) fn create_qgroup(file: impl AsFd, qgroup: u64) -> nix::Result<()> {
    BTRFS_IOC_QGROUP_CREATE.call(file, &mut QgroupCreate { create: 1, qgroup })
}

/// Removes a qgroup; ENOENT where there is none, EBUSY where anything counts for it.
pub(in crate::linux) fn remove_qgroup(file: impl AsFd, qgroup: u64) -> nix::Result<()> {
    BTRFS_IOC_QGROUP_CREATE.call(file, &mut QgroupCreate { create: 0, qgroup })
}

/// Takes a qgroup into another one, or out of it.
pub(in crate::linux) fn assign_qgroup(
    file: impl AsFd,
    member: u64,
    group: u64,
    is_member: bool,
) -> nix::Result<()> {
    let assign = u64::from(is_member);
    BTRFS_IOC_QGROUP_ASSIGN.call(file, &mut QgroupAssign { assign, member, group })
}

/// Limits the bytes of a qgroup, or takes its limit away.
pub(in crate::linux) fn limit_qgroup(file: impl AsFd, qgroup: u64, bytes: Option<u64>) -> nix::Result<()> {
    /// fs/btrfs/qgroup.c, btrfs_limit_qgroup: CLEAR_VALUE
    const NONE: u64 = u64::MAX;
    let mut limit = QgroupLimit {
        qgroup,
        flags: MAX_REFERENCED,
        max_referenced: bytes.unwrap_or(NONE),
        ..QgroupLimit::default()
    };
    BTRFS_IOC_QGROUP_LIMIT.call(file, &mut limit)
}

/// Makes a subvolume in an open directory, as a member of a qgroup.
pub(in crate::linux) fn create_subvolume(parent: impl AsFd, name: &CStr, qgroup: u64) -> nix::Result<()> {
    let inherit = QgroupInherit { count: 1, qgroup, ..QgroupInherit::default() };
    create_inheriting(parent, name, &inherit, size_of::<QgroupInherit>())
}

/// The same with a limit of its own, where full qgroups are on.
pub(in crate::linux) fn create_limited_subvolume(
    parent: impl AsFd,
    name: &CStr,
    bytes: u64,
) -> nix::Result<()> {
    let limit = [MAX_REFERENCED, bytes, 0, 0, 0];
    let inherit = QgroupInherit { flags: SET_LIMITS, limit, ..QgroupInherit::default() };
    // Without the qgroup behind it.
    create_inheriting(parent, name, &inherit, size_of::<QgroupInherit>() - size_of::<u64>())
}

fn create_inheriting(
    parent: impl AsFd,
    name: &CStr,
    inherit: &QgroupInherit,
    size: usize,
) -> nix::Result<()> {
    let mut args = VolumeArgs {
        fd: 0,
        transaction: 0,
        flags: INHERIT,
        size: size as u64,
        inherit: std::ptr::from_ref(inherit),
        unused: [0; 2],
        name: volume_name(name)?,
    };
    BTRFS_IOC_SUBVOL_CREATE_V2.call(parent, &mut args)
}

/// Makes a subvolume in an open directory that has at one moment what another one has, which is open.
pub(in crate::linux) fn create_snapshot(
    original: impl AsFd,
    parent: impl AsFd,
    name: &CStr,
) -> nix::Result<()> {
    let mut args = VolumeArgs {
        fd: i64::from(original.as_fd().as_raw_fd()),
        transaction: 0,
        flags: 0,
        size: 0,
        inherit: std::ptr::null(),
        unused: [0; 2],
        name: volume_name(name)?,
    };
    BTRFS_IOC_SNAP_CREATE_V2.call(parent, &mut args)
}

/// A name as these calls take it.
fn volume_name<const N: usize>(name: &CStr) -> nix::Result<[u8; N]> {
    let (mut bytes, name) = ([0; N], name.to_bytes_with_nul());
    bytes.get_mut(..name.len()).ok_or(Errno::ENAMETOOLONG)?.copy_from_slice(name);
    Ok(bytes)
}

/// Removes a subvolume of an open directory, with everything in it; EINVAL where it is none, ENOTEMPTY where there are
/// others in it (BTRFS_IOC_SNAP_DESTROY).
pub(in crate::linux) fn remove_subvolume(parent: impl AsFd, name: &CStr) -> nix::Result<()> {
    let mut args = VolumeName { fd: 0, name: volume_name(name)? };
    BTRFS_IOC_SNAP_DESTROY.call(parent, &mut args)
}

/// Makes the subvolume whose top a directory is writable, if it is read-only; EINVAL where the directory is not such a top
/// (BTRFS_IOC_SUBVOL_SETFLAGS).
pub(in crate::linux) fn make_subvolume_writable(top: impl AsFd) -> nix::Result<()> {
    let mut flags = 0;
    BTRFS_IOC_SUBVOL_GETFLAGS.call(&top, &mut flags)?;
    match flags & READ_ONLY_SUBVOLUME {
        0 => Ok(()),
        _ => BTRFS_IOC_SUBVOL_SETFLAGS.call(&top, &mut (flags & !READ_ONLY_SUBVOLUME)),
    }
}

/// The id of the subvolume that a file lies in.
pub(in crate::linux) fn subvolume_of(file: impl AsFd) -> nix::Result<u64> {
    let mut lookup = InodeLookup { tree: 0, object: TOP, name: [0; 4080] };
    BTRFS_IOC_INO_LOOKUP.call(file, &mut lookup)?;
    Ok(lookup.tree)
}

/// Whether subvolumes lie in a subvolume of the filesystem that a file is on.
pub(in crate::linux) fn has_subvolumes(file: impl AsFd, subvolume: u64) -> nix::Result<bool> {
    search(file, ROOT_TREE, subvolume, ROOT_REF, (0, u64::MAX)).map(|items| !items.is_empty())
}

/// The items of the quota tree with this object and type, and an offset of these, as many as fit into 4 KiB; ENOENT where
/// there are no quotas (BTRFS_IOC_TREE_SEARCH).
pub(in crate::linux) fn search_quotas(
    file: impl AsFd,
    object: u64,
    kind: u32,
    offsets: (u64, u64),
) -> nix::Result<Vec<QuotaItem>> {
    search(file, QUOTA_TREE, object, kind, offsets)
}

fn search(
    file: impl AsFd,
    tree: u64,
    object: u64,
    kind: u32,
    (min_offset, max_offset): (u64, u64),
) -> nix::Result<Vec<QuotaItem>> {
    let key = SearchKey {
        tree,
        min_object: object,
        max_object: object,
        min_offset,
        max_offset,
        max_transaction: u64::MAX,
        min_type: kind,
        max_type: kind,
        items: u32::MAX,
        ..SearchKey::default()
    };
    let mut args = SearchArgs { key, found: [0; FOUND] };
    BTRFS_IOC_TREE_SEARCH.call(file, &mut args)?;
    Ok(items(&args.found, args.key.items))
}

/// `struct btrfs_ioctl_search_header` (transid, objectid, offset, type, len) and the item, one after the other.
fn items(mut found: &[u8], count: u32) -> Vec<QuotaItem> {
    const HEADER: usize = 32;
    let mut items = Vec::new();
    for _ in 0..count {
        let offset =
            found.get(16..).and_then(|rest| rest.first_chunk()).map(|bytes| u64::from_ne_bytes(*bytes));
        let len = found.get(28..).and_then(|rest| rest.first_chunk()).map(|bytes| u32::from_ne_bytes(*bytes));
        let Some((offset, len)) = offset.zip(len) else { break };
        let end = HEADER + len as usize;
        let Some(data) = found.get(HEADER..end) else { break };
        items.push(QuotaItem { offset, data: data.to_vec() });
        found = found.get(end..).unwrap_or_default();
    }
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_one_after_the_other() {
        let item = |offset: u64, data: &[u8]| {
            let mut bytes = [[0_u8; 8], [0; 8], offset.to_ne_bytes()].concat();
            bytes.extend([244_u32, data.len() as u32].into_iter().flat_map(u32::to_ne_bytes));
            bytes.extend(data);
            bytes
        };
        let found = [item(7, &[0; 16]), item(9, &5_u64.to_le_bytes()), vec![0; 100]].concat();
        let read = items(&found, 2);
        assert_eq!(
            read.iter().map(|item| (item.offset, item.number(0))).collect::<Vec<_>>(),
            [(7, 0), (9, 5)]
        );
        assert_eq!((read[0].number(1), read[0].number(2)), (0, 0), "behind its end there is nothing");
        assert_eq!(items(&found, 1).len(), 1);
        assert_eq!(items(&found[..50], 2).len(), 1, "cut off");
    }
}
