//! The real kernel keeps the contract of `kernel` (crates/test-support/src/contract), and what only a real one can show.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::contract::{
    Cleanup, FOR_BLOCK, FOR_MOUNT, MIB, assert_gone, devices_of, directory, errno, flags, formatted, image,
};
use crate::harness::namespace::in_own_namespace;
use hostloop::kernel::linux::{Tools, os};
use hostloop::kernel::{AttachOptions, MakeOptions, Os};
use hostloop::model::FsType;
use nix::errno::Errno;
use nix::unistd::syncfs;

/// A directory of its own, whose path has no link in it.
pub fn setup() -> (Os, tempfile::TempDir, PathBuf) {
    let (temp, path) = crate::harness::new_directory("hostloop contract ");
    (os(Tools::find().with_helper(crate::harness::process::binary())), temp, path)
}

#[test]
fn disks_keep_their_contract() {
    let (os, _temp, dir) = setup();
    crate::contract::disks(&os, &dir);
}

/// chattr(1)
fn chattr(word: &str, path: &Path) {
    assert!(Command::new("chattr").arg(word).arg(path).status().expect("chattr").success(), "{word}");
}

#[test]
fn loops_keep_their_contract() {
    let (os, _temp, dir) = setup();
    crate::contract::loops(&os, &dir);
    crate::contract::let_go_late(&os, &dir);
}

/// While another process configures the device that the kernel calls free, or has it open exclusively, no process can attach to it.
#[test]
fn loops_pass_a_free_device_that_is_busy() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let disk = dir.join("disk.img");
    image(&os, &disk, MIB);
    let mut claimed = None;
    hostloop_test_support::wait::eventually("a free device is claimed", || {
        let free = Command::new("losetup").arg("--find").output().expect("losetup");
        let free = PathBuf::from(String::from_utf8(free.stdout).expect("a path").trim());
        let Ok(claim) = File::options().read(true).custom_flags(libc::O_EXCL).open(&free) else {
            return false;
        };
        let name = free.file_name().expect("a name").to_str().expect("a name");
        let is_free = !Path::new(&format!("/sys/block/{name}/loop")).exists();
        claimed = is_free.then_some((free, claim));
        is_free
    });
    let (claimed, _claim) = claimed.expect("a claim");
    let open = os.loops.attach(&disk, FOR_BLOCK).expect("attach");
    assert_ne!(open.device.path(), claimed);
}

#[test]
fn a_program_keeps_its_device() {
    let (os, _temp, dir) = setup();
    crate::contract::working_program(&os, &dir, &|device| {
        let claim = File::options().read(true).custom_flags(libc::O_EXCL).open(device);
        Box::new(claim.expect("it is free"))
    });
}

/// A filesystem without a journal in an image on a disk that is full when it is written back: only the data fail.
#[test]
fn a_failed_sync_loses_what_was_written() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let (small, target) = (directory(&os, dir.join("small")), directory(&os, dir.join("target")));
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=64m", "tmpfs"]).arg(&small).status();
    assert!(mounted.expect("mount").success());
    let disk = small.join("disk.img");
    image(&os, &disk, 256 * MIB);
    let device = os.loops.attach(&disk, FOR_BLOCK).expect("attach").device;
    let options = MakeOptions { extra: vec!["-O".into(), "^has_journal".into()], zeroed: true };
    os.filesystems.make(&device.path(), FsType::Ext4, &options).expect("make");
    os.mounts.mount(&device.path(), &target, FsType::Ext4, &flags(&[])).expect("mount");
    // Its blocks are allocated in the filesystem, and holes of the image.
    let (file, filler) = (target.join("file"), small.join("filler"));
    image(&os, &file, 0);
    os.images.allocate(&file, 8192).expect("allocate");
    os.files.sync_file(&file).expect("sync");
    os.loops.flush(&device).expect("flush");
    let fill = || {
        let mut filler = File::create(&filler).expect("create");
        while std::io::Write::write_all(&mut filler, &[1; 65536]).is_ok() {}
    };
    let mend = || std::fs::remove_file(&filler).expect("unlink");
    let forget = || {
        os.mounts.unmount(&target).expect("unmount");
        os.mounts.mount(&device.path(), &target, FsType::Ext4, &flags(&[])).expect("mount");
        os.clone()
    };
    crate::contract::failed_sync(&os, &file, &fill, &mend, &forget);
    os.mounts.unmount(&target).expect("unmount");
    os.loops.detach(&device).expect("detach");
    os.mounts.unmount(&small).expect("unmount");
}

#[test]
fn freezes_keep_their_contract() {
    let (os, _temp, dir) = setup();
    crate::contract::freeze(&os, &dir);
}

#[test]
fn copies_keep_their_contract() {
    let (os, _temp, dir) = setup();
    crate::contract::copies(&os, &dir);
    crate::contract::identities(&os, &directory(&os, dir.join("identities")));
}

#[test]
fn filesystems_keep_their_contract() {
    let (os, _temp, dir) = setup();
    crate::contract::filesystems(&os, &dir);
    crate::contract::unknown_option(&os, &dir);
}

/// The whole contract with the directory on each filesystem: on btrfs stat(2) and the loop driver could differ.
/// With blocks of 1 KiB a file of ext4 has at most 4 TiB, and on ext3, which has no extents, less.
#[test]
fn the_largest_file_is_that_of_the_filesystem() {
    for (options, most) in [
        (&["-b", "1024"][..], 4 << 40),
        (&["-b", "4096", "-O", "^extent,^64bit"], 5 << 40),
        (&["-b", "4096"], 16 << 40),
    ] {
        let (os, _temp, dir) = setup();
        let _cleanup = Cleanup::new(&os, &dir);
        let (disk, at) = (dir.join("disk.img"), directory(&os, dir.join("mounted")));
        crate::harness::make_filesystem(&disk, "ext4", 64 * MIB, options);
        let open = os.loops.attach(&disk, FOR_MOUNT).expect("attach");
        os.mounts.mount(&open.device.path(), &at, FsType::Ext4, &flags(&[])).expect("mount");
        drop(open);
        let largest = os.images.largest_file(&at).expect("its largest file");
        assert!(largest < most && largest > most / 2, "{options:?}: {largest}");
        os.mounts.unmount(&at).expect("unmount");
    }
}

#[test]
fn every_pool_filesystem_keeps_the_contract() {
    for fs_type in FsType::ALL {
        let (os, _temp, dir) = setup();
        let _cleanup = Cleanup::new(&os, &dir);
        let pool = directory(&os, dir.join("pool"));
        let open = formatted(&os, &dir.join("pool.img"), fs_type, 3 << 30);
        os.mounts.mount(&open.device.path(), &pool, fs_type, &flags(&[])).expect("mount");
        drop(open);
        let mut places = vec![pool.join("plain")];
        if fs_type == FsType::Btrfs {
            let subvolume = pool.join("subvolume");
            let made = Command::new("btrfs").args(["-q", "subvolume", "create"]).arg(&subvolume).status();
            assert!(made.expect("btrfs").success());
            places.push(subvolume.join("plain"));
        }
        for place in places {
            let place = directory(&os, place);
            let alignment = os.images.direct_io_alignment(&place).expect("alignment");
            eprintln!("{fs_type}: direct I/O alignment {alignment:?}");
            crate::contract::disks(&os, &directory(&os, place.join("disks")));
            crate::contract::copies(&os, &directory(&os, place.join("copies")));
            // btrfs frees what was deleted up to now with its next commit, which might hide what the next files take.
            syncfs(File::open(&place).expect("open")).expect("syncfs");
            crate::contract::in_place(&os, &directory(&os, place.join("in place")));
            crate::contract::identities(&os, &directory(&os, place.join("identities")));
            crate::contract::loops(&os, &directory(&os, place.join("loops")));
            crate::contract::protected(&os, &directory(&os, place.join("protected")), &chattr);
            crate::contract::filesystems(&os, &directory(&os, place.join("filesystems")));
            let file = place.join("direct.img");
            image(&os, &file, 64 * MIB);
            let block_size = alignment.unwrap_or(512);
            let options = AttachOptions { direct_io: true, block_size, ..FOR_MOUNT };
            let open = os.loops.attach(&file, options).expect("attach");
            assert_eq!(open.device.direct_io, alignment.is_some(), "{fs_type}");
            drop(open);
            assert_gone(&os, &file);
            let usage = os.trees.usage(&pool).expect("usage");
            assert!(usage.inodes > 10, "{usage:?}");
            os.trees.remove(&place).expect("remove");
        }
        os.mounts.unmount(&pool).expect("unmount");
    }
}

/// What is allocated already is not asked for again: on a disk that is almost full there is room for the rest alone.
#[test]
fn an_allocated_file_has_room_on_a_full_disk() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let disk = directory(&os, dir.join("disk"));
    crate::harness::run("mount", &["-t", "tmpfs", "-o", "size=64m", "tmpfs", crate::harness::text(&disk)]);
    let file = disk.join("disk.img");
    image(&os, &file, 0);
    os.images.allocate(&file, 40 * MIB).expect("allocate");
    os.images.allocate(&file, 56 * MIB).expect("allocate the rest");
    assert_eq!(errno(os.images.allocate(&file, 72 * MIB)), Some(Errno::ENOSPC));
    let stat = os.files.stat(&file).expect("stat").expect("it is there");
    assert_eq!((stat.size, stat.allocated), (56 * MIB, 56 * MIB));
    os.mounts.unmount(&disk).expect("unmount");
}

/// The filesystem of POSIX message queues has neither nameless files nor direct I/O, and shares no blocks.
#[test]
fn a_simple_filesystem_is_asked_with_a_named_file() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let queues = directory(&os, dir.join("queues"));
    crate::harness::run("mount", &["-t", "mqueue", "mqueue", crate::harness::text(&queues)]);
    assert!(!os.images.can_reflink(&queues).expect("ask"));
    assert_eq!(os.images.direct_io_alignment(&queues).expect("ask"), None);
    let left = os.files.list(&queues).expect("list");
    assert!(!left.iter().any(|name| name.contains("hostloop")), "{left:?}");
    os.mounts.unmount(&queues).expect("unmount");
}

#[test]
fn modes_are_set_whatever_the_umask() {
    let (os, _temp, dir) = setup();
    // The umask belongs to the process; the other tests ask for no mode.
    let before = nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o077));
    os.files.create_directory(&dir.join("d"), 0o2775).expect("mkdir");
    os.files.create_file(&dir.join("f")).expect("create");
    nix::sys::stat::umask(before);
    let mode = |name: &str| dir.join(name).metadata().expect("stat").permissions().mode() & 0o7777;
    assert_eq!((mode("d"), mode("f")), (0o2775, 0o600));
}

#[test]
fn links_and_odd_names_in_trees() {
    let (os, _temp, dir) = setup();
    let (tree, outside) = (directory(&os, dir.join("tree")), directory(&os, dir.join("outside")));
    std::fs::write(outside.join("precious"), [1; 5000]).expect("write");
    std::os::unix::fs::symlink(&outside, tree.join("link")).expect("symlink");
    let odd = tree.join(std::ffi::OsStr::from_bytes(b"\xff\n"));
    std::fs::create_dir(&odd).expect("mkdir");
    std::fs::write(odd.join("a"), [1; 100_000]).expect("write");
    std::fs::hard_link(odd.join("a"), tree.join("b")).expect("link");
    let usage = os.trees.usage(&tree).expect("usage");
    assert_eq!(usage.inodes, 4, "tree, link, directory and one file of two names");
    assert!((100_000..150_000).contains(&usage.bytes), "{usage:?}");
    assert_eq!(errno(os.trees.usage(&tree.join("link"))), Some(Errno::ENOTDIR));
    os.trees.remove(&tree.join("link")).expect("remove the link itself");
    assert!(outside.join("precious").exists());
    std::os::unix::fs::symlink(&outside, tree.join("link")).expect("symlink");
    os.trees.remove(&tree).expect("remove");
    assert!(!tree.exists() && outside.join("precious").exists());
}

/// Far deeper than PATH_MAX, and than descriptors would do.
#[test]
fn deep_trees_are_counted_and_removed() {
    let (os, _temp, dir) = setup();
    let tree = directory(&os, dir.join("tree"));
    // Chunks, each moved below the next: no path is ever too long.
    let mut whole = None;
    for chunk in 0..40 {
        let top = directory(&os, dir.join(format!("chunk{chunk}")));
        let mut path = top.clone();
        for _ in 0..100 {
            path = directory(&os, path.join("directory"));
        }
        if let Some(below) = whole.replace(top) {
            std::fs::rename(below, path.join("below")).expect("rename");
        }
    }
    std::fs::rename(whole.expect("chunks"), tree.join("below")).expect("rename");
    assert_eq!(os.trees.usage(&tree).expect("usage").inodes, 40 * 101 + 1);
    os.trees.remove(&tree).expect("remove");
    assert!(!tree.exists());
}

#[test]
fn a_tree_that_is_written_to() {
    let (os, _temp, dir) = setup();
    let tree = directory(&os, dir.join("tree"));
    for i in 0..50 {
        let sub = directory(&os, tree.join(format!("{i}")));
        for j in 0..50 {
            std::fs::write(sub.join(format!("{j}")), "x").expect("write");
        }
    }
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for i in 0..2000 {
                let _ = std::fs::write(tree.join(format!("{}/new{i}", i % 50)), "x");
            }
        });
        let result = os.trees.remove(&tree);
        assert!(result.is_ok() || errno(result) == Some(Errno::ENOTEMPTY));
        writer.join().expect("writer");
    });
    os.trees.remove(&tree).expect("remove");
}

/// What the kernel keeps of a device for its next user must not turn thin into thick.
#[test]
fn discard_is_per_attachment() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let file = dir.join("d.img");
    image(&os, &file, 0);
    os.images.allocate(&file, 16 * MIB).expect("allocate");
    let discard = |device: &Path| Command::new("blkdiscard").arg(device).output().expect("blkdiscard");
    let zero = |device: &Path| Command::new("blkdiscard").arg("-z").arg(device).output().expect("blkdiscard");
    let allocated = || file.metadata().expect("stat").blocks() * 512;
    let device =
        os.loops.attach(&file, AttachOptions { discard: false, ..FOR_BLOCK }).expect("attach").device;
    assert!(!discard(&device.path()).status.success());
    assert!(zero(&device.path()).status.success());
    assert!(allocated() >= 16 * MIB);
    os.loops.detach(&device).expect("detach");
    let device = os.loops.attach(&file, FOR_BLOCK).expect("attach").device;
    assert!(discard(&device.path()).status.success(), "on {device:?}");
    assert!(allocated() < MIB);
    os.loops.detach(&device).expect("detach");
}

#[test]
fn many_attach_at_once() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let (os, dir) = (&os, &dir);
    std::thread::scope(|scope| {
        for i in 0..16 {
            scope.spawn(move || {
                let file = dir.join(format!("{i}.img"));
                image(os, &file, MIB);
                // The last four in a way that knows nothing of our lock.
                while i >= 12 && devices_of(os, &file).is_empty() {
                    // It gives up where a device vanishes under it, which ours must not.
                    let _ =
                        Command::new("losetup").args(["-f", "--show"]).arg(&file).output().expect("losetup");
                }
                for device in devices_of(os, &file) {
                    os.loops.detach(&device).expect("detach");
                }
                for _ in 0..5 {
                    let open = os.loops.attach(&file, FOR_MOUNT).expect("attach");
                    assert!(devices_of(os, &file).contains(&open.device));
                }
            });
        }
    });
}

/// Runs something again and again beside the work.
fn beside<T>(threads: usize, something: impl Fn(usize) + Sync, work: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (done, something) = (&done, &something);
        for number in 0..threads {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    something(number);
                }
            });
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        done.store(true, Ordering::Relaxed);
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Between fork and exec a child has every descriptor of ours, also one with a claim on a device.
#[test]
fn a_claim_ends_while_programs_are_started() {
    let (os, _temp, dir) = setup();
    let _cleanup = Cleanup::new(&os, &dir);
    let open = formatted(&os, &dir.join("claimed.img"), FsType::Ext4, 8 * MIB);
    let path = open.device.path();
    let look = || assert!(!os.files.block_device(&path).expect("look").held);
    // Programs of somebody else in this process: their moment is waited for.
    beside(
        3,
        |_| assert!(Command::new("true").status().expect("true").success()),
        || (0..400).for_each(|_| look()),
    );
    // Ours: who comes after a claim has the device at once.
    let others =
        [0, 1, 2].map(|number| formatted(&os, &dir.join(format!("{number}.img")), FsType::Ext4, 8 * MIB));
    let options = MakeOptions { extra: Vec::new(), zeroed: true };
    let make = |number: usize| {
        os.filesystems.make(&others[number].device.path(), FsType::Ext4, &options).expect("make");
    };
    let claim = |_| {
        look();
        File::options().read(true).custom_flags(libc::O_EXCL).open(&path).expect("it is free");
    };
    beside(others.len(), make, || (0..400).for_each(claim));
}

/// The part of `a_dev_without_nodes_gets_devices` that runs in a mount namespace of its own.
#[test]
#[ignore = "started by a_dev_without_nodes_gets_devices"]
fn inside_a_dev_without_nodes() {
    let (os, _temp, dir) = setup();
    let node = |number: u32| PathBuf::from(format!("/dev/loop{number}"));
    let file = dir.join("d.img");
    image(&os, &file, MIB);
    let open = os.loops.attach(&file, FOR_BLOCK).expect("attach without a node");
    let number = open.device.number;
    drop(open.hold);
    for _ in 0..2 {
        std::fs::remove_file(node(number)).expect("the node was made");
        assert_eq!(devices_of(&os, &file), std::slice::from_ref(&open.device));
    }
    std::fs::remove_file(node(number)).expect("the node was made");
    os.loops.flush(&open.device).expect("flush without a node");
    std::fs::remove_file(node(number)).expect("the node was made");
    std::fs::write(node(number), "not a device").expect("write");
    assert_eq!(errno(os.loops.open(&open.device).map(drop)), Some(Errno::ENOTBLK));
    assert_eq!(errno(os.loops.list()), Some(Errno::ENOTBLK), "it is not known that it is gone");
    std::fs::remove_file(node(number)).expect("unlink");
    // Where the kernel's word is not to be had, the device is not said to be gone either.
    let described = PathBuf::from(format!("/sys/block/loop{number}"));
    crate::harness::run("mount", &["-t", "tmpfs", "tmpfs", crate::harness::text(&described)]);
    std::fs::create_dir(described.join("dev")).expect("mkdir");
    assert_eq!(errno(os.loops.open(&open.device).map(drop)), Some(Errno::EISDIR));
    assert_eq!(errno(os.loops.detach(&open.device)), Some(Errno::EISDIR));
    crate::harness::run("umount", &[crate::harness::text(&described)]);
    os.loops.detach(&open.device).expect("detach makes the node");
}

#[test]
fn a_dev_without_nodes_gets_devices() {
    let script = "set -e; mount -t tmpfs tmpfs /dev; mknod /dev/loop-control c 10 237; mknod /dev/null c 1 3; \
                  mknod /dev/urandom c 1 9; exec \"$0\" --ignored --exact os_contract::inside_a_dev_without_nodes --nocapture";
    let myself = std::env::current_exe().expect("current exe");
    // The test in there makes a directory of its own.
    let mut start = in_own_namespace(Path::new("/nonexistent"), &[]);
    let done = start.args(["sh", "-c", script]).arg(myself).output().expect("unshare");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
