//! The structures and numbers are those of the kernel's headers, as a C compiler reads them.

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
         #include <linux/btrfs.h>\n#include <linux/mount.h>\n\
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
        request::BLKGETSIZE64.number() => "BLKGETSIZE64",
        READ_ONLY => "LO_FLAGS_READ_ONLY",
        AUTOCLEAR => "LO_FLAGS_AUTOCLEAR",
        DIRECT_IO => "LO_FLAGS_DIRECT_IO",
        HAS_COW_EXTENT_SIZE => "FS_XFLAG_COWEXTSIZE",
        FIEMAP_FLAG_SYNC => "FIEMAP_FLAG_SYNC",
    );
    compiled(&lines).expect("the kernel's headers");
}
