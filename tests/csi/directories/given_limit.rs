//! Directories that were made without an enforced size get one: `enforcement` in a VolumeAttributesClass.

use hostloop::kernel::is_full;
use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop_fake_kernel::Kill;
use tonic::Code;

use crate::directories::quotas::{BYTES, FLAGS, LIMITED, POOL, kernel, largest, sized, troubles, with};
use crate::life::*;
use crate::support::*;

/// The pool as it was for directories without an enforced size.
const BEFORE: [&str; 4] = ["--pool", "limited=/pools/limited,reserve=0,directories=true", "--reserve", "0"];

fn enforce(vol: &Vol, value: &str) -> csi::ControllerModifyVolumeRequest {
    csi::ControllerModifyVolumeRequest {
        volume_id: vol.id.clone(),
        mutable_parameters: map(&[("enforcement", value)]),
        ..Default::default()
    }
}

/// A driver whose pool has a directory without an enforced size and is for them no more, and its `bytes` of data.
fn old(fs_type: FsType, bytes: usize) -> (Rig, Vol) {
    let rig = Rig::on(kernel(fs_type), &BEFORE);
    let vol = rig.made(sized("v", BYTES, &LIMITED));
    rig.stage(&vol);
    let target = rig.publish(&vol, "pod");
    rig.kernel.create_directories(format!("{target}/deep/er"));
    rig.kernel.write_file(format!("{target}/deep/er/file"), &vec![7; bytes]).expect("write");
    rig.kernel.sync(&target).expect("sync");
    rig.rest(&vol);
    (rig.restart_with(&FLAGS), vol)
}

/// Whether the volume is full where its size ends.
fn is_limited(rig: &Rig, vol: &Vol) -> bool {
    rig.stage(vol);
    let target = rig.publish(vol, "pod");
    let more = rig.kernel.write_file(format!("{target}/more"), &vec![7; BYTES as usize]);
    let is_limited = match more {
        Ok(()) => false,
        Err(error) => {
            assert!(is_full(&error), "{error}");
            true
        }
    };
    rig.kernel.remove_file(format!("{target}/more")).expect("remove");
    rig.rest(vol);
    is_limited
}

#[test]
fn a_limit_in_use_counts_what_the_directory_holds() {
    for fs_type in [FsType::Xfs, FsType::Ext4] {
        let (rig, vol) = old(fs_type, 40 << 20);
        let room = largest(&rig, &LIMITED);
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod");
        rig.ok(enforce(&vol, "none"));
        assert_eq!(rig.kernel.quotas(POOL), []);
        for _ in 0..2 {
            rig.ok(enforce(&vol, "required"));
        }
        let [(id, limits)] = rig.kernel.quotas(POOL)[..] else { panic!("{:?}", rig.kernel.quotas(POOL)) };
        assert_eq!(limits.bytes, BYTES as u64);
        assert_eq!(rig.kernel.project(format!("{target}/deep/er/file")), Some(id), "what was there counts");
        let now = largest(&rig, &LIMITED);
        assert!(
            now <= room - (BYTES - 41 * MIB) && now > room - BYTES,
            "{now} of {room}: its size is promised"
        );
        let refused = rig.kernel.write_file(format!("{target}/deep/more"), &vec![7; 30 << 20]);
        assert!(is_full(&refused.expect_err("it is full")));
        assert_eq!(troubles(&rig, &vol), [""; 0]);
        let said = rig.fails(Code::InvalidArgument, enforce(&vol, "none"));
        assert!(said.contains("promised"), "{said}");
        rig.rest(&vol);
        rig.ok(vol.delete_request());
        assert_eq!((rig.kernel.quotas(POOL), rig.kernel.tree(format!("{POOL}/volumes"))), (vec![], vec![]));
    }
}

#[test]
fn a_directory_that_cannot_be_limited_stays_unlimited() {
    let refused = |rig: &Rig, vol: &Vol, code, word: &str| {
        let said = rig.fails(code, enforce(vol, "required"));
        assert!(said.contains(word), "{said}");
        assert_eq!(rig.kernel.quotas(POOL), []);
        assert!(!is_limited(rig, vol));
    };
    let (rig, vol) = old(FsType::Btrfs, 4096);
    refused(&rig, &vol, Code::FailedPrecondition, "snapshot");
    let (rig, vol) = old(FsType::Xfs, 4096);
    rig.kernel.set_quotas(POOL, false);
    refused(&rig, &vol, Code::ResourceExhausted, "prjquota");
    let (rig, vol) = old(FsType::Xfs, 80 << 20);
    refused(&rig, &vol, Code::OutOfRange, "ask for at least");
    // It is what is wanted after an expansion.
    rig.ok(vol.expand_request(2 * BYTES, 0));
    rig.ok(enforce(&vol, "required"));
    let (rig, vol) = old(FsType::Xfs, 4096);
    let rig = rig.restart_with(&BEFORE);
    refused(&rig, &vol, Code::InvalidArgument, "directories");
    let (rig, vol) = old(FsType::Xfs, 4096);
    rig.made(sized("large", largest(&rig, &LIMITED), &LIMITED));
    let limits = rig.kernel.quotas(POOL);
    rig.fails(Code::ResourceExhausted, enforce(&vol, "required"));
    assert_eq!(rig.kernel.quotas(POOL), limits);

    let rig = Rig::new();
    let vol = rig.made(create("v", block()));
    let said = rig.fails(Code::InvalidArgument, enforce(&vol, "required"));
    assert!(said.contains("image"), "{said}");
}

/// Of the VolumeAttributesClass that a volume is created with.
#[test]
fn a_new_directory_has_what_its_class_says() {
    let rig = Rig::on(kernel(FsType::Xfs), &FLAGS);
    let create = |value| csi::CreateVolumeRequest {
        mutable_parameters: map(&[("enforcement", value)]),
        ..sized("v", BYTES, &with(&[("enforcement", "none")]))
    };
    rig.fails(Code::InvalidArgument, create("none"));
    rig.made(create("required"));
    assert_eq!(rig.kernel.quotas(POOL).len(), 1);
}

/// Whatever ends the driver, or the machine's power, a retry gives the volume its limit, and before it the volume is limited or
/// not.
#[test]
fn a_call_that_is_cut_off_is_finished_by_its_retry() {
    for power in [false, true] {
        for kill in [Kill::Before, Kill::Torn, Kill::After] {
            let steps = (1..).take_while(|n| ends_at(power, kill, *n)).count();
            assert!((3..30).contains(&steps), "{steps} steps");
        }
    }
}

/// Whether there was such a step.
fn ends_at(power: bool, kill: Kill, n: usize) -> bool {
    let what = format!("power {power}, {kill:?} at {n}");
    let (mut rig, vol) = old(FsType::Xfs, 4096);
    rig.kernel.kill_at(n, kill);
    let answered = rig.call(enforce(&vol, "required")).is_ok();
    let ended = rig.kernel.is_dead();
    match power {
        true => rig.power_cut(),
        false => {
            rig.kernel.kill();
            rig.start_again();
        }
    }
    let is_set = rig.kernel.quotas(POOL).iter().any(|(_, limits)| limits.bytes == BYTES as u64);
    assert_eq!(is_limited(&rig, &vol), is_set, "{what}");
    assert!(is_set || !answered, "{what}: it was acknowledged");
    rig.ok(enforce(&vol, "required"));
    assert!(is_limited(&rig, &vol), "{what}");
    assert_eq!(troubles(&rig, &vol), [""; 0], "{what}");
    rig.ok(vol.delete_request());
    assert_eq!(rig.kernel.quotas(POOL), [], "{what}");
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new(), "{what}");
    ended
}
