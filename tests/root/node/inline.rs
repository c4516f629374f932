//! Inline ephemeral volumes, and volumes that several pods of a node share.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::{Code, Status};

use crate::client::parameters as map;
use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::volume::create_request;
use crate::harness::{Kind, MIB, Vol, World, eventually, text};

fn publish(world: &World, id: &str, pod: &str, attributes: &[(&str, &str)]) -> Result<(), Status> {
    let mut volume_context = map(attributes);
    volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
    volume_context.insert("csi.storage.k8s.io/pod.name".to_owned(), pod.to_owned());
    world.csi.publish(csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: text(&world.kubelet.join(pod)).to_owned(),
        volume_capability: Some(Kind::Ext4.capability(Mode::SingleNodeWriter)),
        volume_context,
        ..Default::default()
    })
}

fn volumes(world: &World) -> usize {
    let entries = std::fs::read_dir(world.data.join("volumes")).expect("list");
    // A directory has its record beside it.
    entries.filter(|entry| entry.as_ref().is_ok_and(|entry| entry.path().is_dir())).count()
}

#[test]
fn an_inline_volume_lives_as_long_as_its_pod() {
    let mut world = World::new(&[]);
    let id = format!("csi-{}", "0a".repeat(32));
    let target = world.kubelet.join("pod");
    publish(&world, &id, "pod", &[("size", "48Mi")]).expect("NodePublishVolume");
    publish(&world, &id, "pod", &[("size", "48Mi")]).expect("NodePublishVolume again");
    assert_eq!(
        publish(&world, &id, "pod", &[("size", "64Mi")]).expect_err("other").code(),
        Code::AlreadyExists
    );
    assert_eq!(
        publish(&world, &id, "pod2", &[("size", "48Mi")]).expect_err("two").code(),
        Code::FailedPrecondition
    );
    write_at(&target.join("file"), 0, &pattern(1, 4096)).expect("write");
    let (size, _) = kernel::space(&target);
    assert!(size < 48 * MIB && size > 32 * MIB, "{size}");
    let stats = world.csi.stats(&id, &target).expect("NodeGetVolumeStats");
    assert_eq!(stats.usage[0].total, i64::try_from(size).expect("a size"));
    world.restart_after_kill();
    assert_eq!(read_at(&target.join("file"), 0, 4096), pattern(1, 4096));
    publish(&world, &id, "pod", &[("size", "48Mi")]).expect("NodePublishVolume after a restart");
    world.csi.unpublish(&id, &target).expect("NodeUnpublishVolume");
    assert!(!target.exists());
    assert_eq!(volumes(&world), 0, "deleted with its pod");
    world.csi.unpublish(&id, &target).expect("NodeUnpublishVolume again");
    world.restart_after_kill();
    world.csi.unpublish(&id, &target).expect("NodeUnpublishVolume after a restart");
    world.finish();
}

#[test]
fn an_inline_volume_without_a_mount_leaves_nothing() {
    let world = World::new(&[]);
    let target = world.directory("pod");
    std::fs::remove_dir(&target).expect("rmdir");
    std::fs::write(&target, "in the way").expect("write");
    publish(&world, "csi-1", "pod", &[]).expect_err("a file is in the way");
    assert_eq!(volumes(&world), 0);
    std::fs::remove_file(&target).expect("unlink");
    let error = publish(&world, "csi-1", "pod", &[("mkfsOptions", "-m 0")]).expect_err("not for pods");
    assert_eq!(error.code(), Code::InvalidArgument);
    world.finish();
}

#[test]
fn pods_of_a_node_share_a_volume_whose_class_says_so() {
    let world = World::new(&[]);
    let capability = Kind::Xfs.capability(Mode::MultiNodeMultiWriter);
    let mut request = create_request(Kind::Xfs, "shared", Kind::Xfs.size(), &[("sharedOnNode", "true")]);
    request.volume_capabilities = vec![capability.clone()];
    let mut vol = Vol::of(&world, Kind::Xfs, world.csi.create(request.clone()).expect("CreateVolume"));
    vol.capability = capability;
    vol.up();
    vol.publish("b").expect("a second pod");
    write_at(&vol.file("a"), 0, &pattern(1, 1 << 20)).expect("write");
    assert_eq!(read_at(&vol.file("b"), 0, 1 << 20), pattern(1, 1 << 20));
    vol.unpublish("a").expect("NodeUnpublishVolume");
    assert_eq!(vol.unstage().expect_err("still in use").code(), Code::FailedPrecondition);
    write_at(&vol.file("b"), 0, &pattern(2, 4096)).expect("the other pod still writes");
    vol.unpublish("b").expect("NodeUnpublishVolume");
    vol.unstage().expect("NodeUnstageVolume");
    eventually("the device goes", || kernel::loops(&world.data).is_empty());
    vol.delete().expect("DeleteVolume");
    request.parameters.clear();
    assert_eq!(world.csi.create(request).expect_err("one node only").code(), Code::InvalidArgument);
    world.finish();
}

#[test]
fn a_single_writer_has_one_target() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Block, Kind::Directory] {
        world.serve(kind);
        let mut vol = Vol::create(&world, kind, &format!("{kind:?}"), 64 * MIB, &[]);
        vol.capability = kind.capability(Mode::SingleNodeSingleWriter);
        vol.up();
        assert_eq!(vol.publish("b").expect_err("one pod only").code(), Code::FailedPrecondition, "{kind:?}");
        assert!(!vol.target("b").exists());
        vol.unpublish("a").expect("NodeUnpublishVolume");
        vol.publish("b").expect("the next pod");
        vol.unpublish("b").expect("NodeUnpublishVolume");
        vol.unstage().expect("NodeUnstageVolume");
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}
