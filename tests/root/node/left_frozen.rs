//! Freezes that other programs leave, as fsfreeze(8) in a backup hook does: they outlive the mounts, and stay until
//! a program thaws.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tonic::Code;

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, eventually, output, run, text};

const FILESYSTEMS: [Kind; 3] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs];

/// A freeze that ends with the test, also if that fails: what is left frozen keeps its device and its disk.
#[must_use]
struct Frozen(PathBuf);

impl Drop for Frozen {
    fn drop(&mut self) {
        // It fails if the filesystem is not frozen, or not mounted there.
        let _ = output("fsfreeze", &["--unfreeze", text(&self.0)]);
    }
}

fn freeze(target: &Path) -> Frozen {
    run("fsfreeze", &["--freeze", text(target)]);
    Frozen(target.to_owned())
}

fn thaw(target: &Path) {
    run("fsfreeze", &["--unfreeze", text(target)]);
}

/// Writes in a process of its own, which a freeze would keep for ever.
fn writes(file: &Path) -> bool {
    let mut child = Command::new("timeout")
        .args(["--signal=KILL", "5", "dd", "if=/dev/zero", "bs=4096", "count=1", "conv=fsync", "status=none"])
        .arg(format!("of={}", text(file)))
        .stdin(Stdio::null())
        .spawn()
        .expect("dd");
    // A process that waits for a thaw cannot be killed: it is not waited for.
    let mut ended = None;
    for _ in 0..100 {
        ended = child.try_wait().expect("wait");
        if ended.is_some() {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    ended.is_some_and(|status| status.success())
}

#[test]
fn the_last_unmount_thaws() {
    let world = World::new(&[]);
    for kind in FILESYSTEMS {
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        vol.up();
        let _frozen = freeze(&vol.target("a"));
        vol.down();
        eventually("the device goes", || kernel::loops(&world.volume_directory(vol.id())).is_empty());
        vol.up();
        assert!(writes(&vol.file("a")), "{kind:?}");
        vol.remove();
    }
    world.finish();
}

#[test]
fn staging_thaws_what_others_unmounted_frozen() {
    let world = World::new(&[]);
    for kind in FILESYSTEMS {
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        vol.up();
        let _frozen = freeze(&vol.target("a"));
        for path in [vol.target("a"), vol.staging()] {
            run("umount", &[text(&path)]);
        }
        assert_eq!(kernel::loops(&world.volume_directory(vol.id())).len(), 1, "the superblock keeps it");
        let refused = vol.delete().expect_err("attached");
        assert!(
            refused.code() == Code::FailedPrecondition
                && refused.message().contains("frozen when it was unmounted"),
            "{refused:?}"
        );
        let health = format!("{:?}", world.csi.health(vol.id()).expect("health"));
        assert!(health.contains("AttachedWithoutMount"), "{health}");
        vol.up();
        assert!(writes(&vol.file("a")), "{kind:?}");
        vol.remove();
    }
    world.finish();
}

/// In a pool that shares no blocks, so that the copy takes its time.
#[test]
fn a_hook_that_freezes_gets_its_snapshot() {
    let world = World::new(&[]);
    for kind in FILESYSTEMS {
        let vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(1, 1 << 20)).expect("write");
        let _frozen = freeze(&vol.target("a"));
        let snapshot = world.csi.snapshot(&format!("s {kind:?}"), vol.id(), &[]).expect("CreateSnapshot");
        let again =
            Command::new("fsfreeze").args(["--freeze", text(&vol.target("a"))]).output().expect("fsfreeze");
        assert!(!again.status.success(), "{kind:?}: the driver has thawed it");
        thaw(&vol.target("a"));
        let restored = Vol::restore(&world, kind, &format!("r {kind:?}"), kind.size(), &snapshot, &[]);
        restored.up();
        assert_eq!(read_at(&restored.file("a"), 0, 1 << 20), pattern(1, 1 << 20), "{kind:?}");
        restored.remove();
        vol.remove();
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    }
    world.finish();
}

/// Two files that are written one after the other, with a sync in between: no point in time has the second one only.
#[test]
fn a_hook_that_thaws_during_the_copy_gets_one_moment() {
    let mut world = World::on("ext4", 4096 * MIB, &[]);
    let vol = Vol::create(&world, Kind::Ext4, "v", 1024 * MIB, &[]);
    vol.up();
    let filler = vol.target("a").join("filler");
    run(
        "dd",
        &[
            "if=/dev/urandom",
            &format!("of={}", text(&filler)),
            "bs=1M",
            "count=600",
            "conv=fsync",
            "status=none",
        ],
    );
    let target = vol.target("a");
    let _frozen = freeze(&target);
    let copying = AtomicBool::new(true);
    let snapshot = std::thread::scope(|scope| {
        scope.spawn(|| {
            let snapshots = world.data.join("snapshots");
            let allocated =
                |image: std::path::PathBuf| image.metadata().map_or(0, |stat| stat.blocks() * 512);
            let begun = || {
                let entries = std::fs::read_dir(&snapshots).into_iter().flatten().flatten();
                entries.map(|entry| allocated(entry.path().join("disk.img"))).any(|bytes| bytes > 64 * MIB)
            };
            while !begun() && copying.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            thaw(&target);
            for name in ["first", "second"] {
                std::fs::write(target.join(name), name).expect("write");
                std::fs::File::open(target.join(name)).expect("open").sync_all().expect("sync");
            }
            run("fsfreeze", &["--freeze", text(&target)]);
        });
        let made = world.csi.snapshot("s", vol.id(), &[]);
        copying.store(false, Ordering::SeqCst);
        made.expect("CreateSnapshot")
    });
    thaw(&target);
    let restored = Vol::restore(&world, Kind::Ext4, "r", 1024 * MIB, &snapshot, &[]);
    restored.up();
    for name in ["first", "second"] {
        assert_eq!(std::fs::read_to_string(restored.target("a").join(name)).expect("read"), name);
    }
    assert_eq!(kernel::digest(&restored.target("a").join("filler")), kernel::digest(&filler));
    restored.remove();
    vol.remove();
    world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    let log = world.driver().log_text();
    assert!(log.contains("thawed the filesystem during the copy"), "the copy was too quick: {log}");
    world.finish();
}
