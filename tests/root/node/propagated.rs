//! Mounts that the kernel copies from one place to another (mount_namespaces(7), "Shared subtrees"). They come and go with
//! the mount that they are copies of, and are no other use of the volume.

use std::path::{Path, PathBuf};

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::client;
use crate::harness::{Kind, Vol, World, kernel, run, text};

/// kubelet's directory of a volume, which is seen at a second place as well. It is undone when this is dropped.
struct Twice {
    here: PathBuf,
    there: PathBuf,
}

impl Twice {
    /// Makes the directory a peer of a second one.
    fn of(here: PathBuf, there: PathBuf) -> Twice {
        std::fs::create_dir_all(&there).expect("mkdir");
        run("mount", &["--bind", text(&there), text(&there)]);
        run("mount", &["--make-shared", text(&there)]);
        run("mount", &["--bind", text(&there), text(&here)]);
        std::fs::create_dir_all(here.join("globalmount")).expect("mkdir");
        Twice { here, there }
    }

    fn at(&self, name: &str) -> [usize; 2] {
        [&self.here, &self.there].map(|base| kernel::mounts(&base.join(name)).len())
    }
}

impl Drop for Twice {
    fn drop(&mut self) {
        for path in [&self.here, &self.there] {
            for mount in kernel::mounts(path).iter().rev() {
                let _ = std::process::Command::new("umount").arg(&mount.target).status();
            }
        }
    }
}

fn base(vol: &Vol<'_>) -> PathBuf {
    vol.staging().parent().map(Path::to_owned).expect("a directory")
}

fn single_writer(vol: &mut Vol<'_>) {
    vol.capability = vol.kind.capability(Mode::SingleNodeSingleWriter);
}

fn refused(result: Result<(), tonic::Status>) {
    assert_eq!(result.expect_err("another use").code(), Code::FailedPrecondition);
}

#[test]
fn a_copy_of_a_mount_is_not_another_use() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Directory, Kind::Block] {
        world.serve(kind);
        let mut vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        single_writer(&mut vol);
        for slave in [false, true] {
            let twice = Twice::of(base(&vol), world.directory(&format!("second-{kind:?}-{slave}")));
            if slave {
                // What is mounted here goes there, and never the other way.
                run("mount", &["--make-slave", text(&twice.there)]);
            }
            vol.stage().expect("NodeStageVolume");
            vol.publish("a").expect("ReadWriteOncePod is published");
            vol.publish("a").expect("and again");
            assert_eq!(twice.at("a"), [1, 1], "{kind:?}: the kernel has copied it");
            refused(vol.publish("b"));
            if kind != Kind::Block {
                refused(vol.unstage());
            }
            if !matches!(kind, Kind::Directory | Kind::Block) {
                let cut = world.csi.snapshot("cut", vol.id(), &[]).expect("CreateSnapshot");
                world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
            }
            refused(vol.delete());
            let health = world.csi.node_health(vol.id(), &vol.target("a"), &vol.staging());
            assert!(health.expect("health").health_statuses.is_empty(), "{kind:?}");
            vol.unpublish("a").expect("NodeUnpublishVolume");
            assert_eq!(twice.at("a"), [0, 0]);
            vol.unstage().expect("NodeUnstageVolume");
            assert_eq!(twice.at("globalmount"), [0, 0], "{kind:?} {slave}");
        }
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}

/// kubelet's directory is bound to itself, as for a kubelet in a container, and `/` is shared: each mount is there twice,
/// and the one is below the directory that hides it.
#[test]
fn a_copy_that_is_hidden_at_the_same_path_goes_too() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Directory, Kind::Block] {
        world.serve(kind);
        let mut vol = Vol::create(&world, kind, &format!("{kind:?}"), kind.size(), &[]);
        single_writer(&mut vol);
        let around = base(&vol).parent().map(Path::to_owned).expect("kubelet's directory");
        let twice = Twice { here: around.clone(), there: base(&vol) };
        for path in [&around, &base(&vol)] {
            run("mount", &["--bind", text(path), text(path)]);
            run("mount", &["--make-shared", text(path)]);
        }
        vol.stage().expect("NodeStageVolume");
        vol.stage().expect("NodeStageVolume again");
        vol.publish("a").expect("NodePublishVolume");
        vol.publish("a").expect("NodePublishVolume again");
        assert_eq!(kernel::mounts(&vol.target("a")).len(), 2, "{kind:?}");
        refused(vol.publish("b"));
        vol.unpublish("a").expect("NodeUnpublishVolume");
        vol.unstage().expect("NodeUnstageVolume");
        assert_eq!(twice.at("globalmount"), [0, 0], "{kind:?}");
        drop(twice);
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}

/// What looks like a copy, and would stay.
#[test]
fn a_mount_that_would_stay_is_another_use() {
    let world = World::new(&[]);
    let mut vol = Vol::create(&world, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    single_writer(&mut vol);
    // The copy is on its own: its parent has left the peers.
    let twice = Twice::of(base(&vol), world.directory("private"));
    vol.stage().expect("NodeStageVolume");
    run("mount", &["--make-private", text(&twice.there)]);
    refused(vol.publish("a"));
    refused(vol.unstage());
    run("umount", &[text(&twice.there.join("globalmount"))]);
    vol.unstage().expect("NodeUnstageVolume");
    drop(twice);
    // The staged mount is below a slave: what is mounted at its master is no copy of it.
    let twice = Twice::of(base(&vol), world.directory("master"));
    run("mount", &["--make-slave", text(&twice.here)]);
    vol.stage().expect("NodeStageVolume");
    assert_eq!(twice.at("globalmount"), [1, 0]);
    run("mount", &["--bind", text(&vol.staging()), text(&twice.there.join("globalmount"))]);
    refused(vol.publish("a"));
    run("umount", &[text(&twice.there.join("globalmount"))]);
    vol.unstage().expect("NodeUnstageVolume");
    drop(twice);
    // Something is mounted inside of the copy alone, so that the kernel leaves it in place.
    let twice = Twice::of(base(&vol), world.directory("busy"));
    vol.stage().expect("NodeStageVolume");
    let copy = twice.there.join("globalmount");
    run("mount", &["--make-private", text(&copy)]);
    let inside = copy.join("inside");
    std::fs::create_dir(&inside).expect("mkdir");
    run("mount", &["-t", "tmpfs", "tmpfs", text(&inside)]);
    refused(vol.unstage());
    run("umount", &[text(&inside)]);
    vol.unstage().expect("NodeUnstageVolume");
    assert_eq!(twice.at("globalmount"), [0, 0]);
    drop(twice);
    vol.delete().expect("DeleteVolume");
    world.finish();
}

#[test]
fn an_inline_volume_is_published_beside_its_copy() {
    let world = World::new(&[]);
    let twice = Twice::of(world.directory("pods"), world.directory("second"));
    let id = format!("csi-{}", "0c".repeat(32));
    let publish = |pod: &str| {
        let context = client::parameters(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "48Mi")]);
        world.csi.publish(csi::NodePublishVolumeRequest {
            volume_id: id.clone(),
            target_path: text(&twice.here.join(pod)).to_owned(),
            volume_capability: Some(Kind::Ext4.capability(Mode::SingleNodeWriter)),
            volume_context: context,
            ..Default::default()
        })
    };
    publish("a").expect("NodePublishVolume");
    assert_eq!(twice.at("a"), [1, 1]);
    publish("a").expect("NodePublishVolume again");
    refused(publish("b"));
    world.csi.unpublish(&id, &twice.here.join("a")).expect("NodeUnpublishVolume");
    assert_eq!(twice.at("a"), [0, 0]);
    drop(twice);
    world.finish();
}
