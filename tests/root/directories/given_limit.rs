//! Directories that were made without an enforced size get one by a VolumeAttributesClass, while a pod writes to them.

use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use tonic::Code;

use crate::directories::quotas::{Disk, POOL, fill, place, sync, with_project_quotas, with_simple_quotas};
use crate::harness::{Kind, MIB, Vol, World, text};

const ENFORCED: [(&str, &str); 1] = [("enforcement", "required")];

/// A driver whose pool was for directories without an enforced size, and is for them no more; and one of them, in use.
fn old(disk: &Disk) -> (World, hostloop::wire::csi::Volume) {
    let pool = place(disk, "pool");
    let flag = format!("limited={},reserve=0", text(&pool));
    let mut world = World::empty(&[]);
    world.set_flags(&["--pool", &format!("{flag},directories=true")]);
    world.start();
    let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &POOL);
    vol.up();
    let top = vol.target("a");
    std::fs::create_dir_all(top.join("deep/er")).expect("mkdir");
    std::fs::write(top.join("deep/er/file"), vec![7; 20 << 20]).expect("write");
    symlink("/etc", top.join("link")).expect("symlink");
    mkfifo(&top.join("pipe"), Mode::S_IRWXU).expect("mkfifo");
    let volume = vol.info.clone();
    world.take_driver().stop();
    world.set_flags(&["--pool", &flag]);
    world.start();
    (world, volume)
}

fn gets_a_limit(fs_type: &str) {
    let Some(disk) = with_project_quotas(fs_type) else { return };
    let (mut world, volume) = old(&disk);
    let vol = Vol::of(&world, Kind::Directory, volume);
    let (top, done) = (vol.target("a"), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let pod = scope.spawn(|| {
            let mut made = 0_u32;
            while !done.load(Ordering::Relaxed) {
                let directory = top.join(made.to_string());
                std::fs::create_dir(&directory).expect("mkdir");
                std::fs::write(directory.join("file"), vec![1; 4096]).expect("write");
                made += 1;
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
            made
        });
        let modified = world.csi.modify(vol.id(), &ENFORCED);
        done.store(true, Ordering::Relaxed);
        let made = pod.join().expect("the pod writes on");
        modified.expect("ControllerModifyVolume");
        println!("{fs_type}: a pod has made {made} directories by then");
        for directory in (0..made).map(|n| top.join(n.to_string())) {
            std::fs::remove_dir_all(directory).expect("remove");
        }
    });
    world.csi.modify(vol.id(), &ENFORCED).expect("again");
    sync(&disk.path);
    let [total, used, _] = vol.stats("a").expect("NodeGetVolumeStats")[0].1;
    assert_eq!(total, 64 * MIB as i64);
    assert!((20 * MIB as i64..22 * MIB as i64).contains(&used), "what was there counts: {used}");
    let more = fill(&top.join("deep/er/more"));
    assert!((42 * MIB..=44 * MIB).contains(&more), "{more}");
    let volume = vol.info.clone();
    world.restart_after_kill();
    let vol = Vol::of(&world, Kind::Directory, volume);
    assert_eq!(fill(&vol.target("a").join("another")), 0, "it is full");
    vol.remove();
    world.finish();
}

#[test]
fn a_directory_gets_a_limit_on_ext4() {
    gets_a_limit("ext4");
}

#[test]
fn a_directory_gets_a_limit_on_xfs() {
    gets_a_limit("xfs");
}

/// btrfs limits only what was made as a subvolume.
#[test]
fn a_limit_for_a_directory_on_btrfs_is_refused() {
    let Some(disk) = with_simple_quotas() else { return };
    let (world, volume) = old(&disk);
    let vol = Vol::of(&world, Kind::Directory, volume);
    let refused = world.csi.modify(vol.id(), &ENFORCED).expect_err("a plain directory");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().contains("restore a snapshot"), "{refused}");
    vol.down();
    let snapshot = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot");
    let copy = Vol::restore(&world, Kind::Directory, "copy", 64 * MIB, &snapshot, &POOL);
    copy.up();
    let more = fill(&copy.target("a").join("more"));
    assert!((42 * MIB..=44 * MIB).contains(&more), "{more}");
    copy.remove();
    world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    vol.up();
    vol.remove();
    world.finish();
}
