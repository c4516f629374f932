//! Mount flags reach mount(2).

use tonic::Code;

use crate::harness::kernel::{self, Mount};
use crate::harness::{Kind, MIB, Vol, World, eventually};

fn options(mounts: &[Mount]) -> Vec<&str> {
    mounts.last().expect("a mount").options.split(',').collect()
}

#[test]
fn flags_show_at_the_staged_and_the_published_mount() {
    let world = World::new(&[]);
    let create = |name| Vol::create(&world, Kind::Ext4, name, 64 * MIB, &[]);
    let vol = create("v").with_flags(&["noatime,nodev", "nosuid", "commit=17"]);
    vol.up();
    for path in [vol.staging(), vol.target("a")] {
        let mounts = kernel::mounts(&path);
        let options = options(&mounts);
        for flag in ["rw", "noatime", "nodev", "nosuid", "commit=17"] {
            assert!(options.contains(&flag), "{flag} in {options:?}");
        }
    }
    vol.stage().expect("the same again");
    vol.publish("a").expect("the same again");
    let other = Vol::of(&world, Kind::Ext4, vol.info.clone()).with_flags(&["noexec"]);
    assert_eq!(other.stage().expect_err("other flags").code(), Code::AlreadyExists);
    assert_eq!(other.publish("a").expect_err("other flags").code(), Code::AlreadyExists);
    vol.remove();
    let vol = create("ro").with_flags(&["ro"]);
    vol.up();
    assert!(options(&kernel::mounts(&vol.target("a"))).contains(&"ro"));
    assert_eq!(std::fs::write(vol.file("a"), "x").expect_err("read-only").raw_os_error(), Some(libc::EROFS));
    vol.remove();
    world.finish();
}

#[test]
fn an_unknown_option_fails_clearly_and_leaves_nothing() {
    let world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        let vol = Vol::create(&world, kind, "v", kind.size(), &[]).with_flags(&["nosuchoption=hunter2"]);
        std::fs::remove_dir(vol.staging()).expect("rmdir");
        for _ in 0..2 {
            let error = vol.stage().expect_err("the kernel refuses it");
            assert!(error.message().contains(vol.id()), "{error:?}");
            assert!(!error.message().contains("hunter2"), "values may be sensitive: {error:?}");
            assert!(error.message().contains("\"nosuchoption\""), "{error:?}");
            assert!(kernel::mounts(&world.kubelet).is_empty() && !vol.staging().exists());
            eventually("the device goes", || kernel::loops(&world.data).is_empty());
        }
        // The filesystem that was made for it is good.
        let vol = vol.with_flags(&[]);
        vol.up();
        vol.remove();
    }
    world.finish();
}

/// kubelet adds it if the cluster uses SELinux. A kernel with SELinux takes or refuses the label. For one without, the
/// option is left out, as mount(8) does it.
#[test]
fn the_selinux_context_reaches_the_mount() {
    let world = World::new(&[]);
    let context = "context=\"system_u:object_r:container_file_t:s0:c1,c2\"";
    let vol = Vol::create(&world, Kind::Ext4, "v", 64 * MIB, &[]).with_flags(&[context]);
    match vol.stage() {
        Ok(()) => {
            let shown = kernel::mounts(&vol.staging());
            let kernel_has =
                std::fs::read_to_string("/proc/filesystems").expect("procfs").contains("selinuxfs");
            assert_eq!(shown[0].options.contains("container_file_t"), kernel_has, "{shown:?}");
            vol.publish("a").expect("NodePublishVolume");
            vol.down();
        }
        Err(error) => {
            assert_eq!(error.code(), Code::InvalidArgument, "{error:?}");
            assert!(error.message().contains("\"context\""), "{error:?}");
            assert!(kernel::mounts(&world.kubelet).is_empty());
        }
    }
    vol.delete().expect("DeleteVolume");
    world.finish();
}

#[test]
fn flags_that_mount_something_else_are_refused() {
    let mut world = World::new(&[]);
    for flag in ["bind", "remount", "loop", "rbind", "move", "offset=1"] {
        let vol = Vol::create(&world, Kind::Ext4, "v", 64 * MIB, &[]).with_flags(&[flag]);
        assert_eq!(vol.stage().expect_err(flag).code(), Code::InvalidArgument, "{flag}");
        vol.delete().expect("DeleteVolume");
    }
    world.serve(Kind::Directory);
    let vol = Vol::create(&world, Kind::Directory, "d", 64 * MIB, &[]).with_flags(&["noexec", "nodev"]);
    vol.up();
    let mounts = kernel::mounts(&vol.target("a"));
    assert!(options(&mounts).contains(&"noexec") && options(&mounts).contains(&"nodev"), "{mounts:?}");
    vol.remove();
    world.finish();
}
