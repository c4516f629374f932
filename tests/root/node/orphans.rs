//! Inline volumes whose pod is gone.

use std::path::PathBuf;
use std::time::Duration;

use clap::Parser;
use hostloop::cli::{Cli, Command};
use hostloop::config::Config;
use hostloop::kernel::linux::{Tools, os};
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;

use crate::client::parameters as map;
use crate::harness::kernel::{self, pattern, write_at};
use crate::harness::process::binary;
use crate::harness::{Kind, MIB, World, eventually, run, text};

const UID: &str = "0b5c54a7-5a4e-4b0c-9a3f-1a0d1f7c2e11";

/// Where kubelet publishes a volume of the pod.
fn target(world: &World) -> PathBuf {
    world.kubelet.join("pods").join(UID).join("volumes/kubernetes.io~csi/scratch/mount")
}

/// The machine is restarted while its pod is deleted: the mount is gone, and so is the directory of the pod.
#[test]
fn an_inline_volume_of_a_lost_pod_is_deleted() {
    for backend in ["loop", "directory"] {
        lost(backend);
    }
}

fn lost(backend: &str) {
    let mut world = World::empty_on("ext4", 3 << 30, &["--inline-backends", backend]);
    if backend == "directory" {
        world.set_flags(&["--inline-backends", backend, "--directories"]);
    }
    std::fs::create_dir_all(world.kubelet.join("pods/of-the-driver")).expect("mkdir");
    world.start();
    let class = [("backend", backend)];
    let (id, target) = (format!("csi-{}", "0a".repeat(32)), target(&world));
    let room = world.csi.room(&class).expect("GetCapacity");
    std::fs::create_dir_all(target.parent().expect("a parent")).expect("mkdir");
    let mut volume_context = map(&[("size", "1Gi"), ("backend", backend)]);
    volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
    let publish = csi::NodePublishVolumeRequest {
        volume_id: id,
        target_path: text(&target).to_owned(),
        volume_capability: Some(Kind::Ext4.capability(Mode::SingleNodeWriter)),
        volume_context,
        ..Default::default()
    };
    world.csi.publish(publish).expect("NodePublishVolume");
    write_at(&target.join("file"), 0, &pattern(1, 8 * MIB as usize)).expect("write");
    world.take_driver().kill();
    run("umount", &[text(&target)]);
    eventually("the device goes", || kernel::loops(&world.data).is_empty());
    std::fs::remove_dir_all(world.kubelet.join("pods").join(UID)).expect("rm -r");
    world.start();
    eventually("health tells", || {
        let told = world.csi.storage_troubles().expect("health");
        told.iter().any(|(reason, message)| reason == "InlineVolumeOrphaned" && message.contains(UID))
    });
    assert!(world.driver().log_text().contains(UID), "{}", world.driver().log_text());
    world.take_driver().stop();

    // The driver waits for minutes, so that its time is given here.
    let arguments = ["hostloop".to_owned()].into_iter().chain(world.arguments());
    let Command::Serve(arguments) = Cli::try_parse_from(arguments).expect("flags").command else {
        unreachable!()
    };
    let settings = Config::new(&arguments, None).expect("flags").role.settings().expect("settings").clone();
    let driver = hostloop::app::driver(settings, os(Tools::find().with_helper(binary()))).expect("a driver");
    driver.recover();
    driver.delete_orphaned_inline_volumes(Duration::ZERO);
    let volumes = world.data.join("volumes");
    let count = || std::fs::read_dir(&volumes).expect("list").count();
    // A directory has its record beside it.
    assert!(count() >= 1, "one look is not enough");
    driver.delete_orphaned_inline_volumes(Duration::ZERO);
    assert_eq!(count(), 0);
    drop(driver);
    world.start();
    let now = world.csi.room(&class).expect("GetCapacity");
    assert!(now.0.abs_diff(room.0) < 64 * MIB, "{now:?} of {room:?}");
    assert_eq!(world.csi.storage_health().expect("health"), [""; 0]);
    world.finish();
}
