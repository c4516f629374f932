//! ValidateVolumeCapabilities.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::life::*;
use crate::support::*;

#[test]
fn missing_fields_come_before_an_unknown_volume() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let unknown = vol.with_id("fake-vol-id");
    rig.fails(Code::InvalidArgument, csi::ValidateVolumeCapabilitiesRequest::default());
    rig.fails(Code::InvalidArgument, unknown.validate_request(Vec::new()));
    rig.fails(Code::InvalidArgument, unknown.validate_request(vec![csi::VolumeCapability::default()]));
    rig.fails(Code::InvalidArgument, vol.validate_request(vec![mode(Mode::Unknown)]));
    rig.fails(Code::NotFound, unknown.validate_request(vec![mount()]));
    let altered = csi::ValidateVolumeCapabilitiesRequest {
        volume_context: map(&[("pool", "other")]),
        ..vol.validate_request(vec![mount()])
    };
    rig.fails(Code::InvalidArgument, altered);
}

#[test]
fn what_is_confirmed_is_what_was_asked() {
    let rig = Rig::new();
    let vol = rig.made(create_with("v", &[("provisioning", "thick")]));
    let request = csi::ValidateVolumeCapabilitiesRequest {
        parameters: map(&[("provisioning", "thick"), ("csi.storage.k8s.io/fstype", "ext4")]),
        ..vol.validate_request(vec![mount(), fs("ext4"), mode(Mode::SingleNodeMultiWriter)])
    };
    let answer = rig.ok(request.clone());
    let confirmed = answer.confirmed.expect("confirmed");
    assert_eq!(confirmed.volume_context, request.volume_context);
    assert_eq!(confirmed.volume_capabilities, request.volume_capabilities);
    assert_eq!(confirmed.parameters, request.parameters);
    assert_eq!(answer.message, "");
}

#[test]
fn what_the_volume_does_not_have_is_an_answer_with_a_message() {
    let rig = Rig::new();
    let fs_vol = rig.volume("fs", mount());
    let block_vol = rig.volume("block", block());
    let unknown_mode = csi::VolumeCapability {
        access_mode: Some(csi::volume_capability::AccessMode { mode: 99 }),
        ..mount()
    };
    let with_parameters = |entries| csi::ValidateVolumeCapabilitiesRequest {
        parameters: map(entries),
        ..fs_vol.validate_request(vec![mount()])
    };
    for (what, request) in [
        ("block", fs_vol.validate_request(vec![block()])),
        ("xfs", fs_vol.validate_request(vec![fs("xfs")])),
        ("ntfs", fs_vol.validate_request(vec![fs("ntfs")])),
        ("several nodes", fs_vol.validate_request(vec![mode(Mode::MultiNodeMultiWriter)])),
        ("one of two", fs_vol.validate_request(vec![mount(), mode(Mode::MultiNodeReaderOnly)])),
        ("block and mount", fs_vol.validate_request(vec![mount(), block()])),
        ("a mode of the future", fs_vol.validate_request(vec![unknown_mode])),
        ("refused flag", fs_vol.validate_request(vec![mount_with("", &["remount"], Mode::SingleNodeWriter)])),
        ("unknown flag", fs_vol.validate_request(vec![mount_with("", &["no_such"], Mode::SingleNodeWriter)])),
        ("mount of a device", block_vol.validate_request(vec![mount()])),
        ("shared device", block_vol.validate_request(vec![block_mode(Mode::MultiNodeMultiWriter)])),
        ("other parameters", with_parameters(&[("provisioning", "thick")])),
        ("unknown parameters", with_parameters(&[("kind", "fast")])),
    ] {
        let answer = rig.ok(request);
        assert!(answer.confirmed.is_none(), "{what}");
        assert!(!answer.message.is_empty(), "{what}");
    }
    let shared = rig.made(create_with("shared", &[("sharedOnNode", "true")]));
    for wanted in ALL_MODES {
        assert!(rig.ok(shared.validate_request(vec![mode(wanted)])).confirmed.is_some(), "{wanted:?}");
    }
}
