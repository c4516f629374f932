//! What the tests share: a world of its own for each, clients, and eyes on the kernel.

pub mod calls;
pub mod csi;
pub mod kernel;
pub mod namespace;
pub mod process;
pub mod volume;
pub mod world;

use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

pub use crate::client::Kind;
pub use csi::Csi;
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

/// Mounts an image through a loop device. mount(8) gives up where another takes the device that it has found, and where it is
/// looked at in the moment in which it is attached.
pub fn mount_loop(image: &Path, mount_point: &Path) {
    mount_loop_with(image, mount_point, "loop").unwrap_or_else(|told| panic!("{told}"));
}

/// The same with these options; what mount(8) says where they cannot be.
pub fn mount_loop_with(image: &Path, mount_point: &Path, options: &str) -> Result<(), String> {
    let mut told = String::new();
    for _ in 0..10 {
        let done = output("mount", &["-o", options, text(image), text(mount_point)]);
        if done.status.success() {
            return Ok(());
        }
        told = String::from_utf8_lossy(&done.stderr).into_owned();
        if !told.contains("failed to setup loop device") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(told)
}

pub fn text(path: &Path) -> &str {
    path.to_str().expect("a path of ours is text")
}

/// Waits for something that others may delay for a moment: whoever looks at every loop device (another test's
/// driver, udev) holds each of them open meanwhile.
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(Duration::from_secs(60), what, condition);
}

/// The same for what others may delay for longer.
pub fn eventually_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Fails with one clear message where the machine lacks something.
pub fn require_machine() {
    assert!(nix::unistd::geteuid().is_root(), "these tests need root");
    assert!(Path::new("/dev/loop-control").exists(), "these tests need /dev/loop-control (modprobe loop)");
    let tools = "mkfs.ext4 e2fsck resize2fs mkfs.xfs xfs_growfs xfs_repair xfs_db mkfs.btrfs btrfs btrfstune mount \
                 umount fstrim unshare nsenter losetup findmnt blkdiscard wipefs";
    for tool in tools.split(' ') {
        let found =
            ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].iter().any(|d| Path::new(d).join(tool).exists());
        assert!(found, "these tests need {tool} (e2fsprogs, xfsprogs, btrfs-progs, util-linux)");
    }
}
