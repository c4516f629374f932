//! kernel::Filesystems, with the life of a volume around it.

use std::path::Path;

use hostloop::kernel::{AttachOptions, MakeOptions, Os};
use hostloop::model::FsType;
use nix::errno::Errno;

use super::{
    Cleanup, FOR_BLOCK, FOR_MOUNT, MIB, assert_gone, devices_of, directory, errno, flags, formatted, image,
};

/// Asserts what the trait promises.
pub fn filesystems(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    for fs_type in FsType::ALL {
        os.filesystems.check_tools(fs_type).expect("tools");
        life(os, &directory(os, dir.join(fs_type.as_str())), fs_type);
    }
    again(os, &dir.join("again.img"));
    thick(os, &dir.join("thick.img"));
}

fn life(os: &Os, dir: &Path, fs_type: FsType) {
    let (file, target, bound) =
        (dir.join("disk.img"), directory(os, dir.join("t")), directory(os, dir.join("b")));
    let size = fs_type.minimum_bytes().max(64 * MIB);
    let open = formatted(os, &file, fs_type, size);
    let device = open.device.clone();
    os.filesystems.repair(fs_type, &device.path()).expect("nothing to repair");
    os.mounts.mount(&device.path(), &target, fs_type, &flags(&[])).expect("mount");
    drop(open);
    os.files.create_file(&target.join("file")).expect("write");
    os.mounts.bind(&target, &bound, &flags(&["ro"])).expect("bind");
    let before = os.files.space(&target).expect("space").total;
    os.filesystems.grow(fs_type, &device.path(), &target).expect("it has the size already");
    os.images.set_size(&file, size * 2).expect("grow the image");
    os.loops.update_size(&device).expect("grow the device");
    let grown = os.filesystems.grow(fs_type, &device.path(), &target);
    let after = os.files.space(&target).expect("space").total;
    match grown {
        // Even root may be without the capability that ext4 asks for; tests/vm is where it is not.
        Err(error) if fs_type == FsType::Ext4 && !may_resize() => {
            assert!(error.to_string().contains("CAP_SYS_RESOURCE"), "{error}");
            assert_eq!((errno(Err::<(), _>(error)), after), (Some(Errno::EPERM), before));
            os.files.create_file(&target.join("another")).expect("it still works");
        }
        grown => {
            grown.expect("grow the filesystem");
            assert!(after > before + size * 3 / 4, "{fs_type}: {before} {after}");
        }
    }
    assert!(os.files.stat(&bound.join("file")).expect("stat").is_some());
    os.mounts.unmount(&target).expect("unmount");
    assert_eq!(devices_of(os, &file), [device], "the bind still holds it");
    os.mounts.unmount(&bound).expect("unmount");
    assert_gone(os, &file);

    // Attached again, everything is there.
    let open = os.loops.attach(&file, AttachOptions { read_only: true, ..FOR_MOUNT }).expect("attach");
    os.mounts.mount(&open.device.path(), &target, fs_type, &flags(&["ro"])).expect("mount");
    drop(open);
    assert!(os.files.stat(&target.join("file")).expect("stat").is_some());
    os.mounts.unmount(&target).expect("unmount");
}

/// Over whatever is there: what was left of an earlier attempt.
fn again(os: &Os, file: &Path) {
    image(os, file, 512 * MIB);
    let open = os.loops.attach(file, FOR_MOUNT).expect("attach");
    for fs_type in FsType::ALL.into_iter().chain([FsType::Ext4]) {
        let options = MakeOptions { extra: Vec::new(), zeroed: false };
        os.filesystems.make(&open.device.path(), fs_type, &options).expect("make");
    }
}

/// A tool's error names the tool. Not for the fake kernel, which has no tools.
pub fn unknown_option(os: &Os, dir: &Path) {
    let _cleanup = Cleanup::new(os, dir);
    image(os, &dir.join("bad.img"), 16 * MIB);
    let open = os.loops.attach(&dir.join("bad.img"), FOR_MOUNT).expect("attach");
    let bad = MakeOptions { extra: vec!["--no-such-option".to_owned()], zeroed: true };
    let error = os.filesystems.make(&open.device.path(), FsType::Ext4, &bad).expect_err("bad option");
    assert!(error.to_string().contains("mkfs.ext4"), "{error}");
}

/// An allocated image stays allocated.
fn thick(os: &Os, file: &Path) {
    image(os, file, 0);
    os.images.allocate(file, 512 * MIB).expect("allocate");
    let open = os.loops.attach(file, AttachOptions { discard: false, ..FOR_BLOCK }).expect("attach");
    let allocated = || os.files.stat(file).expect("stat").expect("there").allocated;
    for fs_type in FsType::ALL {
        let options = MakeOptions { extra: Vec::new(), zeroed: true };
        os.filesystems.make(&open.device.path(), fs_type, &options).expect("make");
        assert!(allocated() >= 512 * MIB, "{fs_type}");
    }
    let device = open.device.clone();
    drop(open);
    os.loops.detach(&device).expect("detach");
}

/// Whether this process has CAP_SYS_RESOURCE, number 24 (capabilities(7)).
fn may_resize() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").expect("status");
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).expect("CapEff");
    u64::from_str_radix(effective.trim(), 16).expect("a mask") & (1 << 24) != 0
}
