//! Inline ephemeral volumes.

use hostloop::store::Durability;
use hostloop::wire::csi;
use tonic::Code;

use crate::harness::DIRECTORIES_DIR;
use crate::life::*;
use crate::support::*;

pub const ID: &str = "csi-0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

pub fn inline(rig: &Rig, id: &str, attributes: &[(&str, &str)]) -> csi::NodePublishVolumeRequest {
    let mut volume_context = map(&[
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.name", "pod"),
        ("csi.storage.k8s.io/serviceAccount.name", "default"),
    ]);
    volume_context.extend(map(attributes));
    rig.kernel.create_directories(target(id).rsplit_once('/').expect("a path").0);
    csi::NodePublishVolumeRequest {
        volume_id: id.to_owned(),
        target_path: target(id),
        volume_capability: Some(mount()),
        volume_context,
        ..Default::default()
    }
}

#[test]
fn the_administrator_allows_more_or_less() {
    let rig = Rig::with(&["--inline-max-size", "2Ti", "--max-volume-size", "1Ti"]);
    rig.fails(Code::InvalidArgument, inline(&rig, ID, &[("size", "2Ti")]));
    rig.fails(Code::ResourceExhausted, inline(&rig, ID, &[("size", "500Gi")]));
    let rig = Rig::with(&["--inline-max-size", "100M"]);
    rig.ok(inline(&rig, ID, &[("size", "100M")])); // it is no whole number of blocks
    let rig = Rig::with(&["--inline-max-size", "100Mi"]);
    rig.ok(inline(&rig, ID, &[])); // the default size is less then
    let image =
        rig.kernel.tree(format!("{DATA}/volumes")).into_iter().find(|path| path.ends_with("disk.img"));
    assert_eq!(rig.kernel.stat(image.expect("an image")).expect("an image").size, 100 << 20);
    let xfs = csi::NodePublishVolumeRequest {
        volume_id: "csi-2".to_owned(),
        target_path: target("csi-2"),
        volume_capability: Some(fs("xfs")),
        ..inline(&rig, "csi-2", &[])
    };
    assert!(rig.fails(Code::InvalidArgument, xfs).contains("--inline-max-size"), "it needs 300 MiB");
}

/// What an administrator says who allows directories for inline volumes.
pub const DIRECTORIES: [&str; 4] =
    ["--inline-backends", "loop,directory", "--inline-pools", "default,directories"];
/// Each backend, and the pool for it.
pub const KINDS: [(&str, &str); 2] = [("loop", "default"), ("directory", "directories")];

pub fn target(id: &str) -> String {
    format!("{KUBELET}/pods/uid/volumes/kubernetes.io~csi/{:08x}/mount", crc32fast::hash(id.as_bytes()))
}

fn unpublish(id: &str) -> csi::NodeUnpublishVolumeRequest {
    csi::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), target_path: target(id) }
}

/// The state file was lost. The pod ends, and the data stay, because no record says that they are to go with it.
#[test]
fn an_inline_volume_without_a_record_stays() {
    let mut rig = Rig::with(&DIRECTORIES);
    for (backend, pool) in KINDS {
        rig.ok(inline(&rig, ID, &[("size", "64Mi"), ("backend", backend), ("pool", pool)]));
        let mut directory = String::new();
        rig.restore_state(|store| {
            let [volume] = &store.volumes()[..] else { panic!("one volume") };
            directory = format!("/volumes/{}", volume.id);
            store.delete(&volume.id, Durability::Synced).expect("delete");
        });
        for _ in 0..2 {
            rig.ok(unpublish(ID));
        }
        assert_eq!(rig.mounts_at(&target(ID)), 0);
        let there = [DATA, DIRECTORIES_DIR].map(|pool| format!("{pool}{directory}"));
        let there: Vec<&String> = there.iter().filter(|path| rig.kernel.exists(path)).collect();
        assert_eq!(there.len(), 1, "{backend}: {directory}");
        rig.kernel.spawn().trees.remove(there[0].as_ref()).expect("remove");
    }
    assert_eq!(rig.kernel.loops(), []);
}

#[test]
fn an_inline_volume_lives_as_long_as_its_pod() {
    let mut rig = Rig::with(&[&DIRECTORIES[..], &["--attach"]].concat());
    for (backend, pool) in KINDS {
        let request = inline(&rig, ID, &[("size", "64Mi"), ("backend", backend), ("pool", pool)]);
        for _ in 0..2 {
            rig.ok(request.clone());
        }
        assert_eq!(rig.mounts_at(&target(ID)), 1);
        let file = format!("{}/file", target(ID));
        rig.kernel.write_file(&file, b"data").expect("write");
        rig.restart();
        rig.ok(request.clone());
        assert_eq!(rig.kernel.read_file(&file).expect("read"), b"data", "{backend}");
        let stats = csi::NodeGetVolumeStatsRequest {
            volume_id: ID.to_owned(),
            volume_path: target(ID),
            ..Default::default()
        };
        let total = rig.ok(stats).usage[0].total;
        assert_eq!(total <= 64 * MIB, backend == "loop", "the size is enforced where it can be");
        assert!(rig.ok(csi::ListVolumesRequest::default()).entries.is_empty(), "it is nobody else's");
        for _ in 0..2 {
            rig.ok(unpublish(ID));
            rig.assert_clean();
            assert!(!rig.kernel.exists(target(ID)));
        }
        rig.restart();
        rig.ok(unpublish(ID));
        rig.ok(request);
        rig.kernel.read_file(&file).expect_err("a new volume is empty");
        rig.ok(unpublish(ID));
    }
}

#[test]
fn more_than_its_size_does_not_fit() {
    let rig = Rig::new();
    rig.ok(inline(&rig, ID, &[("size", "8Mi")]));
    let file = format!("{}/file", target(ID));
    rig.kernel.write_file(file, &vec![1; 9 << 20]).expect_err("no more than 8 MiB");
}

#[test]
fn attributes_are_not_trusted() {
    let rig = Rig::new();
    for attribute in [
        ("size", "0"),
        ("size", "-1"),
        ("size", "1GB"),
        ("size", ""),
        ("mkfsOptions", "-q"),
        ("sharedOnNode", "true"),
        ("pool", "../x"),
        ("pool", "none"),
        ("unknown", "x"),
        ("backend", "zfs"),
    ] {
        let message = rig.fails(Code::InvalidArgument, inline(&rig, ID, &[attribute]));
        assert!(message.contains(attribute.0), "{message}");
    }
    for (attribute, flag) in [
        (("size", "11Gi"), "--inline-max-size"),
        (("size", "2Ti"), "--inline-max-size"),
        (("backend", "directory"), "--inline-backends"),
        (("pool", "directories"), "--inline-pools"),
    ] {
        let message = rig.fails(Code::InvalidArgument, inline(&rig, ID, &[attribute]));
        assert!(message.contains(flag) && message.contains("administrator"), "{message}");
    }
    let as_block =
        csi::NodePublishVolumeRequest { volume_capability: Some(block()), ..inline(&rig, ID, &[]) };
    rig.fails(Code::InvalidArgument, as_block);
    let in_data = csi::NodePublishVolumeRequest { target_path: format!("{DATA}/x"), ..inline(&rig, ID, &[]) };
    rig.fails(Code::InvalidArgument, in_data);
    rig.assert_clean();
}

#[test]
fn an_id_is_neither_a_path_nor_another_volume() {
    let rig = Rig::new();
    rig.kernel.create_directories("/var/lib/victim");
    let vol = rig.volume("v", mount());
    for id in ["../../victim", "/", "..", "a\nb", "é", &"x".repeat(128)] {
        rig.ok(inline(&rig, id, &[("size", "4Mi")]));
        rig.ok(csi::DeleteVolumeRequest { volume_id: id.to_owned(), ..Default::default() });
        assert_eq!(rig.mounts_at(&target(id)), 1, "DeleteVolume is not for inline volumes");
        rig.ok(unpublish(id));
    }
    assert!(rig.kernel.exists("/var/lib/victim") && rig.kernel.exists(vol.image()));
    rig.fails(Code::InvalidArgument, inline(&rig, &vol.id, &[]));
    assert!(rig.kernel.exists(vol.image()));
}

#[test]
fn the_id_under_which_it_is_kept_is_no_ones_handle() {
    let rig = Rig::new();
    rig.ok(inline(&rig, ID, &[("size", "4Mi")]));
    let tree = rig.kernel.tree(format!("{DATA}/volumes"));
    let kept = tree[0].rsplit_once('/').expect("a path").1.to_owned();
    assert!(kept.starts_with("inl-"));
    rig.ok(csi::DeleteVolumeRequest { volume_id: kept.clone(), ..Default::default() });
    rig.fails(Code::NotFound, csi::ControllerGetVolumeRequest { volume_id: kept.clone() });
    let stolen = csi::NodeUnpublishVolumeRequest { volume_id: kept, target_path: target(ID) };
    rig.fails(Code::FailedPrecondition, stolen);
    assert_eq!(rig.mounts_at(&target(ID)), 1);
}

#[test]
fn a_second_target_or_other_attributes_are_refused() {
    let rig = Rig::new();
    let request = inline(&rig, ID, &[("size", "8Mi")]);
    rig.ok(request.clone());
    rig.kernel.create_directories("/var/lib/kubelet/pods/other");
    let elsewhere = csi::NodePublishVolumeRequest {
        target_path: "/var/lib/kubelet/pods/other/mount".to_owned(),
        ..request.clone()
    };
    rig.fails(Code::FailedPrecondition, elsewhere);
    rig.fails(Code::AlreadyExists, inline(&rig, ID, &[("size", "16Mi")]));
    rig.fails(Code::AlreadyExists, inline(&rig, ID, &[("size", "8Mi"), ("backend", "directory")]));
    rig.fails(Code::AlreadyExists, csi::NodePublishVolumeRequest { readonly: true, ..request });
    assert_eq!(rig.mounts_at(&target(ID)), 1);
}

#[test]
fn a_publish_that_fails_leaves_nothing() {
    for (backend, pool) in KINDS {
        for step in 1..60 {
            let rig = Rig::with(&DIRECTORIES);
            let request = inline(&rig, ID, &[("size", "8Mi"), ("backend", backend), ("pool", pool)]);
            rig.kernel.fail_at(step, nix::errno::Errno::EIO);
            if rig.call(request.clone()).is_ok() {
                assert!(step > 5);
                break;
            }
            assert!(!rig.kernel.exists(target(ID)), "{backend}, step {step}");
            rig.assert_clean();
            rig.kernel.clear_plans();
            rig.ok(request);
        }
    }
}

#[test]
fn an_inline_pod_can_go_after_a_reboot() {
    let mut rig = Rig::new();
    rig.ok(inline(&rig, ID, &[("size", "8Mi")]));
    rig.power_cut();
    rig.ok(unpublish(ID));
    rig.assert_clean();
}

#[test]
fn unpublishing_an_id_that_never_was_is_ok() {
    let rig = Rig::new();
    rig.ok(unpublish("some-id"));
}

#[test]
fn the_largest_one_is_allowed() {
    let rig = Rig::with(&["--inline-max-size", "100Mi"]);
    rig.fails(Code::InvalidArgument, inline(&rig, ID, &[("size", "101Mi")]));
    rig.ok(inline(&rig, ID, &[("size", "100Mi")]));
}
