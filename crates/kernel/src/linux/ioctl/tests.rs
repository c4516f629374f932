//! The structures and numbers are those of the kernel's headers, as a C compiler reads them.

use super::mounts::MountAttr;
use super::project_quotas::{DiskQuota, QuotaState};
use super::qgroups::{
    InodeLookup, QgroupAssign, QgroupCreate, QgroupInherit, QgroupLimit, QuotaControl, QuotaRescan,
    SearchArgs, SearchKey, VolumeArgs, VolumeName,
};
use super::*;

/// C that says that a structure and its fields lie where ours do.
macro_rules! layout {
    ($ours:ty = $theirs:literal { $($field:ident = $name:literal),* $(,)? }) => {{
        let mut lines = format!("SAME(sizeof({}), {});\n", $theirs, size_of::<$ours>());
        $(lines += &format!(
            "SAME(offsetof({}, {}), {});\n", $theirs, $name, std::mem::offset_of!($ours, $field)
        );)*
        lines
    }};
}

/// C that says that these constants are ours.
macro_rules! numbers {
    ($($ours:expr => $theirs:literal),* $(,)?) => {
        [$(format!("SAME({}, {}ULL);\n", $theirs, u64::from($ours))),*].concat()
    };
}

/// What a compiler says of this C, below the kernel's headers.
#[allow(clippy::disallowed_types, reason = "a test, which starts the compiler that the build needs, too")]
fn compiled(lines: &str) -> Result<(), String> {
    use std::io::Write as _;
    use std::process::{Command, Stdio};
    let source = format!(
        "#include <stddef.h>\n#include <linux/loop.h>\n#include <linux/fs.h>\n#include <linux/fiemap.h>\n\
         #include <linux/btrfs.h>\n#include <linux/mount.h>\n#include <linux/btrfs_tree.h>\n#include <linux/quota.h>\n\
         #include <linux/dqblk_xfs.h>\n\
         #define SAME(theirs, ours) _Static_assert((theirs) == (ours), #theirs)\n{lines}"
    );
    let mut command = Command::new("cc");
    command.args(["-xc", "-fsyntax-only", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut compiler = command.spawn().expect("cc");
    compiler.stdin.take().expect("stdin").write_all(source.as_bytes()).expect("write");
    let output = compiler.wait_with_output().expect("cc");
    if output.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&output.stderr).into_owned()) }
}

#[test]
fn structures_are_those_of_the_kernels_headers() {
    let told = compiled("SAME(sizeof(struct fiemap), 1);\n").expect_err("it is larger");
    assert!(told.contains("sizeof(struct fiemap)"), "{told}");
    let structures = [
        layout!(LoopInfo64 = "struct loop_info64" {
            device = "lo_device", inode = "lo_inode", rdevice = "lo_rdevice", offset = "lo_offset",
            size_limit = "lo_sizelimit", number = "lo_number", flags = "lo_flags",
            file_name = "lo_file_name", init = "lo_init",
        }),
        layout!(LoopConfig = "struct loop_config" {
            fd = "fd", block_size = "block_size", info = "info", reserved = "__reserved",
        }),
        layout!(Fiemap = "struct fiemap" {
            start = "fm_start", length = "fm_length", flags = "fm_flags", mapped = "fm_mapped_extents",
            room = "fm_extent_count", reserved = "fm_reserved",
        }),
        format!("SAME(sizeof(struct fiemap_extent), {});\n", EXTENT_WORDS * 8),
        numbers!(
            0_u64 => "offsetof(struct fiemap_extent, fe_logical)",
            8_u64 => "offsetof(struct fiemap_extent, fe_physical)",
            16_u64 => "offsetof(struct fiemap_extent, fe_length)",
            40_u64 => "offsetof(struct fiemap_extent, fe_flags)",
        ),
        format!("SAME(sizeof(struct fiemap), {});\n", HEADER_WORDS * 8),
        layout!(Fsxattr = "struct fsxattr" {
            flags = "fsx_xflags", extent_size = "fsx_extsize", extents = "fsx_nextents", project = "fsx_projid",
            cow_extent_size = "fsx_cowextsize",
        }),
        layout!(SpaceInfo = "struct btrfs_ioctl_space_info" {
            flags = "flags", total = "total_bytes", used = "used_bytes",
        }),
        layout!(FsInfo = "struct btrfs_ioctl_fs_info_args" {
            max_id = "max_id", devices = "num_devices", fsid = "fsid",
        }),
        format!(
            "SAME(offsetof(struct btrfs_ioctl_space_args, spaces), {});\n",
            std::mem::offset_of!(SpaceArgs, spaces)
        ),
        layout!(MountAttr = "struct mount_attr" {
            set = "attr_set", clear = "attr_clr", propagation = "propagation", userns = "userns_fd",
        }),
    ];
    compiled(&structures.concat()).expect("the kernel's headers");
}

#[test]
fn structures_of_quotas_are_those_of_the_kernel() {
    let structures = [
        layout!(DiskQuota = "struct fs_disk_quota" {
            version = "d_version", flags = "d_flags", fields = "d_fieldmask", id = "d_id",
            block_limit = "d_blk_hardlimit", soft_block_limit = "d_blk_softlimit", inode_limit = "d_ino_hardlimit",
            soft_inode_limit = "d_ino_softlimit", blocks = "d_bcount", inodes = "d_icount",
            timers_and_warnings = "d_itimer", of_realtime = "d_rtb_hardlimit",
        }),
        layout!(QuotaState = "struct fs_quota_statv" {
            version = "qs_version", flags = "qs_flags", in_core = "qs_incoredqs", rest = "qs_uquota",
        }),
        layout!(QuotaControl = "struct btrfs_ioctl_quota_ctl_args" { command = "cmd", status = "status" }),
        layout!(QuotaRescan = "struct btrfs_ioctl_quota_rescan_args" {
            flags = "flags", progress = "progress", reserved = "reserved",
        }),
        layout!(QgroupCreate = "struct btrfs_ioctl_qgroup_create_args" { create = "create", qgroup = "qgroupid" }),
        layout!(QgroupAssign = "struct btrfs_ioctl_qgroup_assign_args" {
            assign = "assign", member = "src", group = "dst",
        }),
        layout!(QgroupLimit = "struct btrfs_ioctl_qgroup_limit_args" {
            qgroup = "qgroupid", flags = "lim.flags", max_referenced = "lim.max_rfer", others = "lim.max_excl",
        }),
        numbers!(
            (size_of::<QgroupInherit>() - 8) as u64 => "sizeof(struct btrfs_qgroup_inherit)",
            std::mem::offset_of!(QgroupInherit, count) as u64 => "offsetof(struct btrfs_qgroup_inherit, num_qgroups)",
            std::mem::offset_of!(QgroupInherit, limit) as u64 => "offsetof(struct btrfs_qgroup_inherit, lim)",
            std::mem::offset_of!(QgroupInherit, qgroup) as u64 => "offsetof(struct btrfs_qgroup_inherit, qgroups)",
        ),
        layout!(VolumeArgs = "struct btrfs_ioctl_vol_args_v2" {
            fd = "fd", transaction = "transid", flags = "flags", size = "size", inherit = "qgroup_inherit", name = "name",
        }),
        layout!(VolumeName = "struct btrfs_ioctl_vol_args" { fd = "fd", name = "name" }),
        layout!(InodeLookup = "struct btrfs_ioctl_ino_lookup_args" {
            tree = "treeid", object = "objectid", name = "name",
        }),
        layout!(SearchKey = "struct btrfs_ioctl_search_key" {
            tree = "tree_id", min_object = "min_objectid", max_object = "max_objectid", min_offset = "min_offset",
            max_offset = "max_offset", min_transaction = "min_transid", max_transaction = "max_transid",
            min_type = "min_type", max_type = "max_type", items = "nr_items",
        }),
        layout!(SearchArgs = "struct btrfs_ioctl_search_args" { key = "key", found = "buf" }),
        numbers!(
            0_u64 => "offsetof(struct btrfs_ioctl_search_header, transid)",
            16_u64 => "offsetof(struct btrfs_ioctl_search_header, offset)",
            28_u64 => "offsetof(struct btrfs_ioctl_search_header, len)",
            32_u64 => "sizeof(struct btrfs_ioctl_search_header)",
        ),
    ];
    compiled(&structures.concat()).expect("the kernel's headers");
}

#[test]
fn numbers_and_flags_are_those_of_the_kernels_headers() {
    let lines = numbers!(
        request::LOOP_CLR_FD.number() => "LOOP_CLR_FD",
        request::LOOP_GET_STATUS64.number() => "LOOP_GET_STATUS64",
        request::LOOP_SET_CAPACITY.number() => "LOOP_SET_CAPACITY",
        request::LOOP_SET_DIRECT_IO.number() => "LOOP_SET_DIRECT_IO",
        request::LOOP_SET_BLOCK_SIZE.number() => "LOOP_SET_BLOCK_SIZE",
        request::LOOP_CONFIGURE.number() => "LOOP_CONFIGURE",
        request::LOOP_CTL_ADD.number() => "LOOP_CTL_ADD",
        request::LOOP_CTL_REMOVE.number() => "LOOP_CTL_REMOVE",
        request::LOOP_CTL_GET_FREE.number() => "LOOP_CTL_GET_FREE",
        request::FS_IOC_FIEMAP => "FS_IOC_FIEMAP",
        request::FIFREEZE.number() => "FIFREEZE",
        request::FITHAW.number() => "FITHAW",
        request::FS_IOC_FSGETXATTR.number() => "FS_IOC_FSGETXATTR",
        request::FS_IOC_FSSETXATTR.number() => "FS_IOC_FSSETXATTR",
        request::BTRFS_IOC_SPACE_INFO.number() => "BTRFS_IOC_SPACE_INFO",
        request::BTRFS_IOC_FS_INFO.number() => "BTRFS_IOC_FS_INFO",
        request::BLKGETSIZE64.number() => "BLKGETSIZE64",
        qgroups::BTRFS_IOC_INO_LOOKUP.number() => "BTRFS_IOC_INO_LOOKUP",
        qgroups::BTRFS_IOC_TREE_SEARCH.number() => "BTRFS_IOC_TREE_SEARCH",
        qgroups::BTRFS_IOC_SNAP_CREATE_V2.number() => "BTRFS_IOC_SNAP_CREATE_V2",
        qgroups::BTRFS_IOC_SUBVOL_CREATE_V2.number() => "BTRFS_IOC_SUBVOL_CREATE_V2",
        qgroups::BTRFS_IOC_SNAP_DESTROY.number() => "BTRFS_IOC_SNAP_DESTROY",
        qgroups::BTRFS_IOC_QUOTA_CTL.number() => "BTRFS_IOC_QUOTA_CTL",
        qgroups::BTRFS_IOC_QGROUP_ASSIGN.number() => "BTRFS_IOC_QGROUP_ASSIGN",
        qgroups::BTRFS_IOC_QGROUP_CREATE.number() => "BTRFS_IOC_QGROUP_CREATE",
        qgroups::BTRFS_IOC_QGROUP_LIMIT.number() => "BTRFS_IOC_QGROUP_LIMIT",
        qgroups::BTRFS_IOC_QUOTA_RESCAN.number() => "BTRFS_IOC_QUOTA_RESCAN",
        qgroups::BTRFS_IOC_QUOTA_RESCAN_WAIT.number() => "BTRFS_IOC_QUOTA_RESCAN_WAIT",
        qgroups::SET_LIMITS => "BTRFS_QGROUP_INHERIT_SET_LIMITS",
        qgroups::INHERIT => "BTRFS_SUBVOL_QGROUP_INHERIT",
        qgroups::MAX_REFERENCED => "BTRFS_QGROUP_LIMIT_MAX_RFER",
        project_quotas::Q_XGETQUOTA => "Q_XGETQUOTA",
        project_quotas::Q_XSETQLIM => "Q_XSETQLIM",
        project_quotas::Q_XGETQSTATV => "Q_XGETQSTATV",
        project_quotas::PROJECT_QUOTA => "FS_PROJ_QUOTA",
        project_quotas::LIMITS => "(FS_DQ_ISOFT | FS_DQ_IHARD | FS_DQ_BSOFT | FS_DQ_BHARD)",
        project_quotas::ACCOUNTED => "FS_QUOTA_PDQ_ACCT",
        project_quotas::ENFORCED => "FS_QUOTA_PDQ_ENFD",
        project_quotas::INHERITED => "FS_XFLAG_PROJINHERIT",
        READ_ONLY => "LO_FLAGS_READ_ONLY",
        AUTOCLEAR => "LO_FLAGS_AUTOCLEAR",
        DIRECT_IO => "LO_FLAGS_DIRECT_IO",
        HAS_COW_EXTENT_SIZE => "FS_XFLAG_COWEXTSIZE",
        FIEMAP_FLAG_SYNC => "FIEMAP_FLAG_SYNC",
    );
    compiled(&lines).expect("the kernel's headers");
}
