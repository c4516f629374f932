//! What others do beside a call: a pod that has its device open, copies that run, and whoever looks at a device.

use std::time::Duration;

use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use nix::errno::Errno;
use tonic::Code;

use crate::cuts::*;
use crate::harness::LetGo;
use crate::life::*;
use crate::long_copies::{give_up, result};
use crate::support::*;

#[test]
fn a_snapshot_has_what_a_pod_wrote_to_its_device_and_did_not_sync() {
    let rig = both_pools();
    let parameters = [("pool", "fast")];
    let request = csi::CreateVolumeRequest { parameters: map(&parameters), ..create("raw", block()) };
    let (vol, target) = rig.in_use(request);
    let pod = rig.kernel.open(&target).unwrap();
    rig.kernel.write(&target, 0, b"text").unwrap();
    let image = rig.kernel.read(format!("{}/disk.img", rig.directory(&vol)), 0, 4).unwrap();
    assert_eq!(image, [0; 4], "it is in the page cache of the device");
    let cut = rig.cut("s", &vol);
    let made = rig.made(copy("restored", from_snapshot(&cut.snapshot_id), block(), &parameters));
    assert_eq!(rig.content(&made, 4), "text");
    drop(pod);
}

/// A volume of 12 MiB of data that is not in use.
fn filled(rig: &Rig, name: &str) -> Vol {
    let request = csi::CreateVolumeRequest { capacity_range: range(16 * MIB, 0), ..create(name, block()) };
    let (vol, target) = rig.in_use(request);
    rig.kernel.write(&target, 0, &[1; 12 << 20]).unwrap();
    rig.rest(&vol);
    vol
}

#[test]
fn the_room_of_a_copy_that_runs_is_not_given_away() {
    let kernel = FakeKernel::new();
    kernel.set_space(100 << 20, 44 << 20);
    let rig = Rig::on(kernel, &["--reserve", "0", "--overcommit", "100"]);
    let (one, two) = (filled(&rig, "one"), filled(&rig, "two"));
    let clone = |name, vol: &Vol| copy(name, from_volume(&vol.id), block(), &[]);
    let _let_go = LetGo(rig.kernel.clone());
    give_up(&rig, clone("first", &one));
    let server = rig.server();
    let second = clone("second", &two).send(server.client.clone());
    let answer = server.block_on(async { tokio::time::timeout(Duration::from_secs(20), second).await });
    let status =
        answer.expect("it is refused before it copies").expect_err("20 MiB are free, 12 of them taken");
    assert_eq!(status.code(), Code::ResourceExhausted, "{}", status.message());
    rig.kernel.release();
    result(&rig, &clone("first", &one));
}

#[test]
fn a_group_stays_while_a_member_is_restored() {
    let rig = both_pools();
    let [one, two] = ["one", "two"].map(|name| {
        let (vol, _) = rig.in_use(create(name, mount()));
        rig.write(&vol, "text");
        rig.rest(&vol);
        vol
    });
    let made = rig.ok(group("g", &[&one.id, &two.id])).group_snapshot.expect("a group");
    let members: Vec<&str> = made.snapshots.iter().map(|member| member.snapshot_id.as_str()).collect();
    let restore = copy("restored", from_snapshot(members[1]), mount(), &[]);
    let _let_go = LetGo(rig.kernel.clone());
    give_up(&rig, restore.clone());
    let delete = delete_group(&made.group_snapshot_id, &members);
    rig.fails(Code::Aborted, delete.clone());
    assert_eq!(rig.snapshots().len(), 2);
    rig.kernel.release();
    let restored = result(&rig, &restore).volume.expect("a volume");
    rig.ok(delete);
    let restored = Vol::new(restored, mount());
    assert_eq!(rig.content(&restored, 4), "text");
}

#[test]
fn a_device_that_is_let_go_late_hinders_nobody() {
    for calls in [1, 3, 10, 30, 100, 1000] {
        for request in kinds() {
            let rig = both_pools();
            rig.kernel.set_late_loops(calls);
            let name = request.name.clone();
            let vol = rig.made(request);
            for round in ["one.", "two."] {
                rig.stage(&vol);
                rig.publish(&vol, "pod");
                rig.write(&vol, round);
                assert_eq!(rig.read(&vol, 4), round, "{name}, {calls} calls");
                rig.rest(&vol);
            }
            rig.kernel.settle();
            rig.ok(vol.delete_request());
            assert!(rig.kernel.loops().is_empty(), "{name}, {calls} calls: {:?}", rig.kernel.loops());
        }
    }
}

/// Deleted at once, as by a caller that does not know of udev.
#[test]
fn a_volume_whose_device_is_let_go_late_is_deleted_by_a_retry_at_the_latest() {
    for calls in [1, 10, 100, 1000] {
        let rig = both_pools();
        rig.kernel.set_late_loops(calls);
        let (vol, _) = rig.in_use(create("v", mount()));
        rig.rest(&vol);
        if let Err(status) = rig.call(vol.delete_request()) {
            let codes = [Code::FailedPrecondition, Code::Aborted, Code::Unavailable];
            assert!(codes.contains(&status.code()), "{status}");
            rig.kernel.settle();
            rig.ok(vol.delete_request());
        }
        rig.kernel.settle();
        assert!(rig.kernel.loops().is_empty() && rig.kernel.tree(format!("{DATA}/volumes")).is_empty());
    }
}

#[test]
fn a_freeze_whose_thaw_failed_ends_with_the_retry() {
    let rig = both_pools();
    let (vol, _) = rig.in_use(create("v", mount()));
    rig.write(&vol, "text");
    rig.kernel.fail_every("thaw", Errno::EIO);
    rig.fails(Code::Internal, snapshot("s", &vol));
    assert!(!rig.kernel.frozen().is_empty(), "a pod that writes waits");
    rig.fails(Code::Internal, snapshot("s", &vol));
    rig.kernel.heal();
    rig.cut("s", &vol);
    assert!(rig.kernel.frozen().is_empty());
    rig.write(&vol, "more");
}
