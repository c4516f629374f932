//! Size limits (spec.md, Size Limits) and the ids that a caller may send.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::life::*;
use crate::support::*;

/// An id is never an INVALID_ARGUMENT for its syntax: it is not found, or gone already.
#[test]
fn an_odd_id_is_an_unknown_one() {
    let rig = Rig::with(&["--attach"]);
    let vol = rig.volume("v", mount());
    let longest = "x".repeat(128);
    for id in ["fake-vol-id", "..", "../../etc", "/", "\n", "\0", "é", " ", "vol-", &longest] {
        let odd = vol.with_id(id);
        rig.ok(odd.delete_request());
        rig.ok(odd.detach_request(NODE));
        rig.fails(Code::NotFound, odd.attach_request(NODE, false));
        rig.fails(Code::NotFound, odd.validate_request(vec![mount()]));
        rig.fails(Code::NotFound, odd.expand_request(SIZE, 0));
        rig.fails(Code::NotFound, csi::ControllerGetVolumeRequest { volume_id: id.to_owned() });
        let there = |path: String| path.replace(id, "there");
        let stage = csi::NodeStageVolumeRequest { volume_id: id.to_owned(), ..rig.stage_request(&vol) };
        rig.fails(Code::NotFound, stage);
        let publish =
            csi::NodePublishVolumeRequest { volume_id: id.to_owned(), ..rig.publish_request(&vol, "pod") };
        rig.fails(Code::NotFound, publish);
        rig.ok(csi::NodeUnpublishVolumeRequest { volume_id: id.to_owned(), ..vol.unpublish_request("pod") });
        rig.ok(csi::NodeUnstageVolumeRequest { volume_id: id.to_owned(), ..vol.unstage_request() });
        rig.fails(Code::NotFound, odd.stats_request(there(vol.target("pod"))));
        rig.fails(Code::NotFound, odd.node_expand_request(&there(vol.target("pod"))));
    }
}

#[test]
fn strings_of_more_than_128_bytes_are_refused() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    for (length, code) in [(128, Code::NotFound), (129, Code::InvalidArgument)] {
        let long = vol.with_id("x".repeat(length));
        rig.fails(code, long.stats_request("/x"));
        let unpublish = long.unpublish_request("pod").with_target(&vol.target("pod"));
        match code {
            // Nothing is there.
            Code::NotFound => drop(rig.ok(unpublish)),
            code => drop(rig.fails(code, unpublish)),
        }
        rig.fails(code, long.expand_request(SIZE, 0));
        rig.fails(code, long.validate_request(vec![mount()]));
    }
    let token = csi::ListVolumesRequest { starting_token: "t".repeat(128), ..Default::default() };
    rig.fails(Code::Aborted, token);
    rig.fails(Code::InvalidArgument, create("v", fs(&"x".repeat(129))));
}

trait WithTarget {
    fn with_target(self, path: &str) -> Self;
}

impl WithTarget for csi::NodeUnpublishVolumeRequest {
    fn with_target(mut self, path: &str) -> Self {
        path.clone_into(&mut self.target_path);
        self
    }
}

#[test]
fn maps_and_flags_of_more_than_4_kib_are_refused() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let fits = "x".repeat(4095);
    let large = "x".repeat(4096);
    let key = "csi.storage.k8s.io/k";
    let fits_with_key = "x".repeat(4096 - key.len());
    rig.ok(csi::CreateVolumeRequest { parameters: map(&[(key, &fits_with_key)]), ..create("v", mount()) });
    rig.ok(csi::CreateVolumeRequest { secrets: map(&[("k", &fits)]), ..create("v", mount()) });
    let flags =
        |length: usize| mount_with("", &[&format!("x-{}", "y".repeat(length - 2))], Mode::SingleNodeWriter);
    rig.ok(create("v", flags(4096)));
    rig.fails(Code::InvalidArgument, create("v", flags(4097)));
    rig.fails(
        Code::InvalidArgument,
        csi::CreateVolumeRequest { parameters: map(&[(key, &large)]), ..create("v", mount()) },
    );
    rig.fails(
        Code::InvalidArgument,
        csi::CreateVolumeRequest { secrets: map(&[("k", &large)]), ..create("v", mount()) },
    );
    rig.fails(
        Code::InvalidArgument,
        csi::GetCapacityRequest { parameters: map(&[(key, &large)]), ..Default::default() },
    );
    let context =
        csi::NodeStageVolumeRequest { volume_context: map(&[(key, &large)]), ..rig.stage_request(&vol) };
    rig.fails(Code::InvalidArgument, context);
    let context =
        csi::NodeStageVolumeRequest { publish_context: map(&[("k", &large)]), ..rig.stage_request(&vol) };
    rig.fails(Code::InvalidArgument, context);
    let secrets =
        csi::NodePublishVolumeRequest { secrets: map(&[("k", &large)]), ..rig.publish_request(&vol, "pod") };
    rig.fails(Code::InvalidArgument, secrets);
}

#[test]
fn snapshots_have_the_same_limits() {
    let rig = Rig::new();
    let long = || "x".repeat(129);
    let large = || map(&[("k", &"x".repeat(4096))]);
    let snapshot = || csi::CreateSnapshotRequest {
        name: "s".to_owned(),
        source_volume_id: "v".to_owned(),
        ..Default::default()
    };
    let group = || csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: vec!["v".to_owned()],
        ..Default::default()
    };
    let invalid = Code::InvalidArgument;
    rig.fails(invalid, csi::CreateSnapshotRequest { name: long(), ..snapshot() });
    rig.fails(invalid, csi::CreateSnapshotRequest { name: "a\x01b".to_owned(), ..snapshot() });
    rig.fails(invalid, csi::CreateSnapshotRequest { source_volume_id: long(), ..snapshot() });
    rig.fails(invalid, csi::CreateSnapshotRequest { secrets: large(), ..snapshot() });
    rig.fails(invalid, csi::CreateSnapshotRequest { parameters: large(), ..snapshot() });
    rig.fails(invalid, csi::DeleteSnapshotRequest { snapshot_id: long(), ..Default::default() });
    rig.fails(invalid, csi::GetSnapshotRequest { snapshot_id: long(), ..Default::default() });
    rig.fails(invalid, csi::ListSnapshotsRequest { snapshot_id: long(), ..Default::default() });
    rig.fails(invalid, csi::ListSnapshotsRequest { starting_token: long(), ..Default::default() });
    rig.fails(invalid, csi::ListSnapshotsRequest { max_entries: -1, ..Default::default() });
    rig.fails(invalid, csi::CreateVolumeGroupSnapshotRequest { source_volume_ids: vec![long()], ..group() });
    rig.fails(invalid, csi::CreateVolumeGroupSnapshotRequest { source_volume_ids: Vec::new(), ..group() });
    rig.fails(invalid, csi::CreateVolumeGroupSnapshotRequest { parameters: large(), ..group() });
    let (snapshot_id, max_results) = ("s".to_owned(), -1);
    rig.fails(
        invalid,
        All(csi::GetMetadataAllocatedRequest { snapshot_id, max_results, ..Default::default() }),
    );
    let (volume_id, mutable_parameters) = ("v".to_owned(), large());
    rig.fails(
        invalid,
        csi::ControllerModifyVolumeRequest { volume_id, mutable_parameters, ..Default::default() },
    );
}

#[test]
fn paths_may_be_as_long_as_the_kernel_takes_them() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let long = format!("/var/lib/kubelet/{}", "p/".repeat(500));
    rig.kernel.create_directories(&long);
    let stage = csi::NodeStageVolumeRequest {
        staging_target_path: format!("{long}globalmount"),
        ..rig.stage_request(&vol)
    };
    rig.ok(stage.clone());
    rig.ok(csi::NodeUnstageVolumeRequest {
        staging_target_path: stage.staging_target_path,
        ..vol.unstage_request()
    });
    for path in [format!("/{}", "x".repeat(4096)), "/a\0b".to_owned()] {
        rig.fails(
            Code::InvalidArgument,
            csi::NodeStageVolumeRequest { staging_target_path: path.clone(), ..rig.stage_request(&vol) },
        );
        rig.fails(
            Code::InvalidArgument,
            csi::NodePublishVolumeRequest { target_path: path.clone(), ..rig.publish_request(&vol, "pod") },
        );
        rig.fails(Code::InvalidArgument, vol.stats_request(&path));
    }
}

#[test]
fn keys_of_secrets_are_of_the_allowed_characters() {
    let rig = Rig::new();
    for (key, good) in [("a-Z_0.9", true), ("a b", false), ("", false), ("a/b", false), ("é", false)] {
        let request =
            csi::DeleteVolumeRequest { volume_id: "x".to_owned(), secrets: map(&[(key, "secret-value")]) };
        match rig.call(request) {
            Ok(_) => assert!(good, "{key}"),
            Err(status) => {
                assert!(!good && status.code() == Code::InvalidArgument, "{key}: {status:?}");
                assert!(!status.message().contains("secret-value"));
            }
        }
    }
}
