//! NodeUnpublishVolume and NodeUnstageVolume of a volume that this node does not know. kubelet repeats them until they succeed.

use std::path::Path;

use hostloop::kernel::AttachOptions;
use hostloop::model::{NodeKey, VolumeId};
use hostloop::store::Durability;
use hostloop::wire::csi;
use nix::errno::Errno;
use tonic::Code;

use crate::life::*;
use crate::support::*;

const ATTACH: AttachOptions =
    AttachOptions { read_only: false, autoclear: false, direct_io: false, block_size: 512, discard: true };

/// An id of this node, and one of another kind, such as that of an inline volume.
fn ids() -> [String; 2] {
    [VolumeId::of_name(&NodeKey::of(NODE), "never").to_string(), "csi-never".to_owned()]
}

#[test]
fn a_volume_that_was_never_here_can_leave() {
    let rig = Rig::new();
    for capability in [mount(), block()] {
        let vol = rig.volume(&format!("{capability:?}"), capability);
        for never in ids().map(|id| vol.with_id(id)) {
            for _ in 0..2 {
                rig.ok(never.unpublish_request("pod"));
                rig.ok(never.unstage_request());
            }
            // What an earlier call may have made.
            rig.kernel.create_directories(never.target("pod"));
            rig.kernel.create_directories(never.staging());
            rig.ok(never.unpublish_request("pod"));
            rig.ok(never.unstage_request());
            assert!(!rig.kernel.exists(never.target("pod")) && rig.kernel.exists(never.staging()));
            let file = format!("{}/file", never.target("pod"));
            rig.kernel.create_directories(never.target("pod"));
            rig.kernel.write_file(&file, b"precious").expect("write");
            rig.fails(Code::FailedPrecondition, never.unpublish_request("pod"));
            assert_eq!(rig.kernel.read_file(&file).expect("read"), b"precious");
        }
    }
}

#[test]
fn a_mount_at_the_path_of_an_unknown_volume_stays() {
    let rig = Rig::new();
    for capability in [mount(), block()] {
        let vol = rig.volume(&format!("{capability:?}"), capability);
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod");
        for volume_id in ids() {
            let unpublish = csi::NodeUnpublishVolumeRequest {
                volume_id: volume_id.clone(),
                ..vol.unpublish_request("pod")
            };
            let why = rig.fails(Code::FailedPrecondition, unpublish);
            assert!(why.contains("does not exist on this node") && why.contains("is mounted at"), "{why}");
            if !vol.is_block() {
                let unstage = csi::NodeUnstageVolumeRequest { volume_id, ..vol.unstage_request() };
                rig.fails(Code::FailedPrecondition, unstage);
            }
        }
        assert!(rig.kernel.exists(target));
        rig.unpublish(&vol, "pod");
        rig.unstage(&vol);
    }
}

/// As if the record of the volume were lost while it is attached.
#[test]
fn a_device_with_the_name_of_an_unknown_volume_counts() {
    let rig = Rig::new();
    let [id, _] = ids();
    let never = rig.volume("v", block()).with_id(&id);
    let (os, image) = (rig.kernel.os(), format!("/mnt/volumes/{id}/disk.img"));
    rig.kernel.create_directories(format!("/mnt/volumes/{id}"));
    os.files.create_file(Path::new(&image)).expect("create");
    os.images.set_size(Path::new(&image), MIB as u64).expect("size");
    let open = os.loops.attach(Path::new(&image), ATTACH).expect("attach");
    let device = open.device.clone();
    drop(open);
    let why = rig.fails(Code::FailedPrecondition, never.unstage_request());
    assert!(why.contains(&format!("is attached to {image}")), "{why}");
    rig.fails(Code::FailedPrecondition, never.unpublish_request("pod"));
    os.loops.detach(&device).expect("detach");
    rig.ok(never.unpublish_request("pod"));
    rig.ok(never.unstage_request());
}

#[test]
fn a_kernel_that_does_not_tell_is_no_ok() {
    let rig = Rig::new();
    let [id, _] = ids();
    let never = rig.volume("v", block()).with_id(id);
    rig.kernel.fail_every("list", Errno::EIO);
    rig.fails(Code::Internal, never.unstage_request());
    rig.fails(Code::Internal, never.unpublish_request("pod"));
    rig.kernel.heal();
    rig.ok(never.unstage_request());
}

/// The state file was lost while pods have the volumes. A later one brings them back.
#[test]
fn a_pod_of_a_volume_without_a_record_can_end() {
    let mut rig = Rig::new();
    let requests = [
        create("ext4", mount()),
        csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create("btrfs", fs("btrfs")) },
        create("block", block()),
        create_with("directory", &[("backend", "directory"), ("pool", "directories")]),
    ];
    let all = requests.map(|request| rig.in_use(request).0);
    all.iter().for_each(|vol| rig.write(vol, "text"));
    let mut records = Vec::new();
    rig.restore_state(|store| {
        for vol in &all {
            let id = vol.id.parse().expect("an id");
            records.push((*store.get(&id).expect("a record")).clone());
            store.delete(&id, Durability::Synced).expect("delete");
        }
    });
    for vol in &all {
        rig.fails(Code::NotFound, rig.stage_request(vol));
        if !vol.is_block() {
            let why = rig.fails(Code::FailedPrecondition, vol.unstage_request());
            assert!(why.contains("still mounted"), "{why}");
        }
        for _ in 0..2 {
            rig.ok(vol.unpublish_request("pod"));
        }
        for _ in 0..2 {
            rig.ok(vol.unstage_request());
        }
        rig.lose_record(&rig.directory(vol));
        rig.fails(Code::FailedPrecondition, vol.delete_request());
    }
    assert_eq!(rig.kernel.loops(), []);
    rig.restore_state(|store| {
        records.drain(..).for_each(|record| drop(store.put(record).expect("put")));
    });
    for vol in &all {
        assert_eq!(rig.content(vol, 4), "text");
        rig.ok(vol.delete_request());
    }
    rig.assert_clean();
}

/// An administrator rescues the data of a volume that has lost its record.
#[test]
fn a_device_of_an_administrator_stays_attached() {
    let mut rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    rig.rest(&vol);
    rig.restore_state(|store| {
        store.delete(&vol.id.parse().expect("an id"), Durability::Synced).expect("delete");
    });
    // Something else at the path is not the volume's.
    rig.kernel.mount_tmpfs(vol.staging()).expect("mount");
    let why = rig.fails(Code::FailedPrecondition, vol.unstage_request());
    assert!(why.contains("is mounted at"), "{why}");
    rig.kernel.unmount_foreign(vol.staging()).expect("unmount");
    let open = rig.kernel.os().loops.attach(Path::new(&vol.image()), ATTACH).expect("attach");
    let why = rig.fails(Code::FailedPrecondition, vol.unstage_request());
    assert!(why.contains(&format!("is attached to {}", vol.image())), "{why}");
    assert_eq!(rig.kernel.loops().len(), 1);
    rig.kernel.os().loops.detach(&open.device).expect("detach");
    drop(open);
    rig.ok(vol.unstage_request());
}
