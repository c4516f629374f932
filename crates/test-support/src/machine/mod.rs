//! What the tests share: a world of its own for each, clients, and eyes on the kernel.

pub mod calls;
pub mod csi;
pub mod disk;
pub mod kernel;
pub mod namespace;
pub mod process;
pub mod volume;
pub mod world;

use std::path::Path;
use std::process::{Command, Output};

pub use crate::client::Kind;
pub use crate::wait::{after_retries, eventually, eventually_within};
pub use csi::Csi;
pub use disk::{attach, entries, make_filesystem, mount_image, mount_loop, mount_loop_with, new_directory};
pub use process::Driver;
pub use volume::{Vol, clone_request};
pub use world::World;

pub const MIB: u64 = 1 << 20;

/// Runs a tool of the machine.
pub fn output(program: &str, args: &[&str]) -> Output {
    Command::new(program).args(args).output().unwrap_or_else(|e| panic!("{program}: {e}"))
}

/// Runs a tool that must succeed.
pub fn run(program: &str, args: &[&str]) {
    let done = output(program, args);
    assert!(done.status.success(), "{program} {args:?}: {}", String::from_utf8_lossy(&done.stderr));
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours is text")
}

/// Fails with one clear message where the machine lacks something.
pub fn require_machine() {
    assert!(nix::unistd::geteuid().is_root(), "these tests need root: make test-root");
    assert!(Path::new("/dev/loop-control").exists(), "these tests need /dev/loop-control (modprobe loop)");
    let tools = "mkfs.ext4 e2fsck resize2fs mkfs.xfs xfs_growfs xfs_repair xfs_db mkfs.btrfs btrfs btrfstune mount \
                 umount fstrim unshare nsenter losetup findmnt blkdiscard wipefs";
    for tool in tools.split(' ') {
        let found =
            ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|d| Path::new(d).join(tool).exists());
        assert!(found, "these tests need {tool} (e2fsprogs, xfsprogs, btrfs-progs, util-linux)");
    }
}
