//! DeleteVolume: what does not exist, and what is in use.

use hostloop::model::{FsType, NodeKey, VolumeId};
use hostloop::store::Durability;
use hostloop::wire::csi;
use nix::errno::Errno;
use tonic::Code;

use crate::cuts::{FAST, both_pools};
use crate::life::*;
use crate::support::*;

fn delete(volume_id: &str) -> csi::DeleteVolumeRequest {
    csi::DeleteVolumeRequest { volume_id: volume_id.to_owned(), ..Default::default() }
}

#[test]
fn an_unknown_id_answers_ok_and_touches_nothing() {
    let rig = Rig::new();
    rig.kernel.create_directories("/var/lib/victim");
    let vol = rig.volume("v", mount());
    let before = rig.kernel.tree("/var/lib");
    let longest = "x".repeat(128);
    let sibling = vol.id.replace("vol-", "inl-");
    for id in
        ["fake-vol-id", "../../victim", "..", "/", "é", "vol-", &longest, &sibling, &vol.id.to_uppercase()]
    {
        rig.ok(delete(id));
    }
    assert_eq!(rig.kernel.tree("/var/lib"), before);
    rig.fails(Code::InvalidArgument, delete(""));
    rig.fails(Code::InvalidArgument, delete(&"x".repeat(129)));
}

#[test]
fn a_deleted_volume_is_gone_and_a_repeat_is_ok() {
    let rig = Rig::new();
    for (name, request) in [
        ("fs", create("fs", mount())),
        ("block", create("block", block())),
        ("thick", create_with("thick", &[("provisioning", "thick")])),
        ("directory", create_with("directory", &[("backend", "directory"), ("pool", "directories")])),
    ] {
        let vol = rig.made(request);
        assert!(rig.kernel.exists(vol.directory()), "{name}");
        rig.ok(vol.delete_request());
        rig.assert_clean();
        rig.ok(vol.delete_request());
        let get = csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() };
        rig.fails(Code::NotFound, get);
        rig.fails(Code::NotFound, rig.stage_request(&vol));
    }
}

/// The state file is older than the volumes, and no record lies beside their data.
#[test]
fn a_volume_without_its_record_stays() {
    let mut rig = Rig::new();
    let all = [
        create("fs", mount()),
        create("block", block()),
        create_with("directory", &[("backend", "directory"), ("pool", "directories")]),
    ]
    .map(|request| rig.made(request));
    rig.restore_state(|store| {
        all.iter().for_each(|vol| {
            store.delete(&vol.id.parse().expect("an id"), Durability::Synced).expect("delete");
        });
    });
    for vol in &all {
        rig.lose_record(&vol.directory());
        let there = rig.kernel.tree(vol.directory());
        for _ in 0..2 {
            let why = rig.fails(Code::FailedPrecondition, vol.delete_request());
            assert!(why.contains("has no record") && why.contains(&vol.directory()), "{why}");
        }
        assert_eq!(rig.kernel.tree(vol.directory()), there);
        // The administrator does what the message says.
        rig.kernel.spawn().trees.remove(vol.directory().as_ref()).expect("remove");
        rig.ok(vol.delete_request());
    }
}

#[test]
fn a_pool_that_is_away_may_have_an_unknown_volume() {
    let rig = both_pools();
    let unknown = delete(VolumeId::of_name(&NodeKey::of(NODE), "never").as_str());
    rig.ok(unknown.clone());
    // Another disk is mounted over it.
    rig.kernel.add_disk(FAST, FsType::Xfs, 1 << 30);
    let why = rig.fails(Code::Unavailable, unknown);
    assert!(why.contains("fast"), "{why}");
}

#[test]
fn a_volume_in_use_stays_with_its_data() {
    let rig = Rig::new();
    for (name, request) in [
        ("fs", create("fs", mount())),
        ("block", create("block", block())),
        ("directory", create_with("directory", &[("backend", "directory"), ("pool", "directories")])),
    ] {
        let vol = rig.made(request);
        rig.stage(&vol);
        rig.fails(Code::FailedPrecondition, vol.delete_request());
        let target = rig.publish(&vol, "pod-1");
        let file = if vol.is_block() { target.clone() } else { format!("{target}/file") };
        rig.kernel.write_file(&file, b"precious").expect("write");
        let message = rig.fails(Code::FailedPrecondition, vol.delete_request());
        assert!(message.contains(&vol.id), "{name}: {message}");
        assert_eq!(rig.kernel.read(&file, 0, 8).expect("read"), b"precious", "{name}");
        rig.unpublish(&vol, "pod-1");
        rig.fails(Code::FailedPrecondition, vol.delete_request());
        rig.unstage(&vol);
        rig.ok(vol.delete_request());
    }
    rig.assert_clean();
}

#[test]
fn a_loop_device_of_somebody_else_keeps_a_volume() {
    let rig = Rig::new();
    let vol = rig.volume("v", block());
    let foreign = rig.kernel.attach_foreign(vol.image(), true).expect("attach");
    let message = rig.fails(Code::FailedPrecondition, vol.delete_request());
    assert!(message.contains("/dev/loop"), "{message}");
    rig.kernel.detach_foreign(foreign.number);
    rig.ok(vol.delete_request());
    rig.assert_clean();
}

#[test]
fn a_mount_below_a_directory_volume_keeps_it() {
    let rig = Rig::new();
    let vol = rig.made(create_with("v", &[("backend", "directory"), ("pool", "directories")]));
    let other = rig.made(create("other", mount()));
    rig.stage(&other);
    let inside = format!("{}/data/inside", vol.directory());
    rig.kernel.create_directories(&inside);
    // Its turn comes before that of the mount point, where removing would end.
    let beside = format!("{}/data/beside", vol.directory());
    rig.kernel.write_file(&beside, b"precious, too").expect("write");
    let os = rig.kernel.os();
    let flags = hostloop::model::MountFlags::default();
    os.mounts.bind(other.staging().as_ref(), inside.as_ref(), &flags).expect("bind");
    rig.kernel.write_file(format!("{inside}/file"), b"precious").expect("write");
    rig.fails(Code::FailedPrecondition, vol.delete_request());
    assert_eq!(rig.kernel.read_file(format!("{}/file", other.staging())).expect("read"), b"precious");
    assert_eq!(rig.kernel.read_file(&beside).expect("read"), b"precious, too");
    rig.kernel.unmount_foreign(&inside).expect("unmount");
    rig.ok(vol.delete_request());
}

#[test]
fn a_volume_that_is_published_to_a_node_stays() {
    let rig = Rig::with(&["--attach"]);
    let vol = rig.volume("v", mount());
    rig.ok(vol.attach_request(NODE, false));
    let message = rig.fails(Code::FailedPrecondition, vol.delete_request());
    assert!(message.contains(NODE), "{message}");
    rig.ok(vol.detach_request(NODE));
    rig.ok(vol.delete_request());
    rig.assert_clean();
}

/// Also the mark of a deletion needs room, and what frees room must not need any.
#[test]
fn a_full_disk_lets_every_kind_be_deleted() {
    for full in [Errno::ENOSPC, Errno::EDQUOT] {
        for parameters in [&[][..], &[("backend", "directory"), ("pool", "directories")]] {
            let rig = Rig::new();
            let vol = rig.made(create_with("v", parameters));
            rig.kernel.fail_every("create_file", full);
            rig.ok(vol.delete_request());
            rig.kernel.heal();
            rig.assert_clean();
        }
    }
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.kernel.fail_every("create_file", Errno::EIO);
    rig.fails(Code::Internal, vol.delete_request());
    rig.kernel.heal();
    rig.ok(vol.delete_request());
    rig.assert_clean();
}
