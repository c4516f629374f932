//! What volumes leave free: where the pool is on kubelet's filesystem, volumes that are filled to their promises do not
//! trip kubelet's eviction (10 % of nodefs, 15 % of imagefs).

use std::path::Path;

use crate::harness::kernel::{fill, space};
use crate::harness::{Kind, MIB, Vol, World, text};

const DISK: u64 = 512 * MIB;

/// A driver whose data directory is on a disk of its own, with kubelet's directory beside it or elsewhere.
fn world(fs: &str, shared: bool, reserve: &str) -> World {
    let mut world = World::on(fs, DISK, &["--reserve", reserve]);
    if shared {
        world.take_driver().stop();
        world.kubelet = world.dir.join("pool/kubelet");
        std::fs::create_dir(&world.kubelet).expect("mkdir");
        world.start();
    }
    world
}

/// Percent of the filesystem that are available, as kubelet counts.
fn available(path: &Path) -> u64 {
    let (size, free) = space(path);
    free * 100 / size
}

/// Makes and fills all that there is room for, thick and thin, and says what is left then.
fn filled(world: &World) -> u64 {
    let (_, most) = world.csi.room(&[("provisioning", "thick")]).expect("GetCapacity");
    let most = u64::try_from(most).expect("a size");
    let thick = Vol::create(world, Kind::Ext4, "thick", most / 2, &[("provisioning", "thick")]);
    let (_, most) = world.csi.room(&[]).expect("GetCapacity");
    let thin = Vol::create(world, Kind::Ext4, "thin", u64::try_from(most).expect("a size"), &[]);
    for vol in [&thick, &thin] {
        vol.up();
        let (written, error) = fill(&vol.file("a"));
        assert!(written > vol.bytes() / 2, "{written} bytes: {error}");
        nix::unistd::syncfs(std::fs::File::open(vol.target("a")).expect("open")).expect("syncfs");
    }
    let left = available(&world.data);
    thin.remove();
    thick.remove();
    left
}

#[test]
fn volumes_leave_a_fifth_of_kubelets_filesystem() {
    for fs in ["ext4", "xfs", "btrfs"] {
        let world = world(fs, true, "auto");
        let left = filled(&world);
        assert!(left >= 15, "{fs}: {left} % are available, and kubelet evicts pods below 15");
        std::fs::remove_dir_all(&world.kubelet).expect("remove");
        world.finish();
    }
}

#[test]
fn volumes_may_fill_a_filesystem_of_their_own() {
    let world = world("ext4", false, "auto");
    let left = filled(&world);
    assert!(left < 15, "{left} % are available, of which kubelet knows nothing");
    world.finish();
}

#[test]
fn a_reserve_too_small_for_kubelet_is_warned_of() {
    let warning = "the pool is on kubelet's filesystem";
    for (shared, reserve, warned) in [
        (true, "10%", true),
        (true, "0", true),
        (true, "15%", false),
        (true, "auto", false),
        (false, "0", false),
    ] {
        let mut world = world("ext4", shared, reserve);
        let log = world.driver().log_text();
        // The log of a shared world begins with a start whose kubelet is elsewhere.
        assert_eq!(log.matches(warning).count(), usize::from(warned), "{shared} {reserve}: {log}");
        if warned {
            assert!(log.contains("then kubelet evicts pods. Use --reserve auto"), "{log}");
        }
        if shared {
            std::fs::remove_dir(text(&world.kubelet)).expect("rmdir");
        }
        world.finish();
    }
}
