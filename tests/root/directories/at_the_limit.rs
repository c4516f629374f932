//! What the kernel does where a directory with an enforced size is full, and whether who writes there can leave its limit: as
//! root with every capability, as root of a container, as a user, and as root of a user namespace (`hostUsers: false`).
//!
//! docs/volumes.md has this as a table.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use rustix::thread::{CapabilitySet, capabilities};

use crate::directories::quotas::{Disk, POOL, sync, with_project_quotas, with_simple_quotas, world_on};
use crate::harness::{Kind, MIB, Vol};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    /// With CAP_SYS_RESOURCE, where this machine gives it: a privileged container.
    Root,
    /// What a container runtime leaves of root.
    Container,
    User,
    /// Root of a user namespace.
    Namespace,
}

use Who::{Container, Namespace, Root, User};

impl Who {
    const ALL: [Who; 4] = [Root, Container, User, Namespace];

    /// Has a program run in a directory, and says what it told where it failed.
    fn run(self, directory: &Path, program: &[&str]) -> Result<(), String> {
        let how: &[&str] = match self {
            Root => &["env"],
            Container => &["setpriv", "--bounding-set=-sys_resource,-sys_admin", "--inh-caps=-all"],
            User => &["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"],
            Namespace => &["unshare", "--user", "--map-root-user"],
        };
        let words = [how, &["env", "LC_ALL=C"], program].concat();
        // A user may be where it could not get to: the way there is root's alone.
        let done = Command::new(words[0]).args(&words[1..]).current_dir(directory).output().expect("started");
        match done.status.success() {
            true => Ok(()),
            false => Err(String::from_utf8_lossy(&done.stderr).into_owned()),
        }
    }
}

/// Writes to a file until nothing fits any more; how much did, and what the kernel says then.
fn fill(who: Who, directory: &Path) -> (u64, Option<&'static str>) {
    let written =
        who.run(directory, &["dd", "if=/dev/zero", "of=file", "bs=256K", "count=384", "conv=fsync"]);
    let told = written.err().map(|told| match &told {
        told if told.contains("No space left on device") => "ENOSPC",
        told if told.contains("Disk quota exceeded") => "EDQUOT",
        told => panic!("{who:?}: {told}"),
    });
    (std::fs::metadata(directory.join("file")).expect("stat").len(), told)
}

fn at_the_limit(fs_type: &str, disk: &Disk) {
    let world = world_on(disk);
    let has_every_capability =
        capabilities(None).expect("capget").effective.contains(CapabilitySet::SYS_RESOURCE);
    for who in Who::ALL {
        let vol = Vol::create(&world, Kind::Directory, &format!("{who:?}"), 64 * MIB, &POOL);
        vol.up();
        let top = vol.target("a");
        std::fs::set_permissions(&top, std::fs::Permissions::from_mode(0o777)).expect("chmod");
        let (fitted, told) = fill(who, &top);
        println!("{fs_type}: {who:?}: {} KiB, {told:?}", fitted >> 10);
        if (fs_type, who) == ("ext4", Root) && has_every_capability {
            assert_eq!((fitted, told), (96 * MIB, None), "ext4 lets CAP_SYS_RESOURCE go beyond its limits");
        } else {
            assert!((64 * MIB * 99 / 100..=64 * MIB).contains(&fitted), "{who:?}: {fitted}");
            assert_eq!(told, Some(if fs_type == "xfs" { "ENOSPC" } else { "EDQUOT" }), "{who:?}");
        }
        let left = match who.run(&top, &["chattr", "-p", "7", "file"]) {
            Ok(()) => true,
            Err(told) => {
                // chattr sets the flags first, and a full btrfs has no room for any change.
                let is_full = fs_type == "btrfs" && told.contains("Disk quota exceeded while setting flags");
                assert!(is_full || told.contains("while setting project"), "{who:?}: {told}");
                false
            }
        };
        println!("{fs_type}: {who:?}: takes its file out of the quota: {left}");
        assert_eq!(left, fs_type != "btrfs" && who != Namespace, "{who:?}");
        if left {
            sync(&disk.path);
            let quota = vol.stats("a").expect("NodeGetVolumeStats")[0].1;
            assert!(quota[1] < MIB as i64, "what has left does not count: {quota:?}");
        }
        vol.remove();
    }
    world.finish();
}

#[test]
fn ext4_at_the_limit_is_as_documented() {
    with_project_quotas("ext4").iter().for_each(|disk| at_the_limit("ext4", disk));
}

#[test]
fn xfs_at_the_limit_is_as_documented() {
    with_project_quotas("xfs").iter().for_each(|disk| at_the_limit("xfs", disk));
}

#[test]
fn btrfs_at_the_limit_is_as_documented() {
    with_simple_quotas().iter().for_each(|disk| at_the_limit("btrfs", disk));
}
