//! Copies that take longer than a caller waits: they go on, a retry joins them, and nobody else waits.

use std::collections::BTreeSet;

use hostloop::model::{NodeKey, VolumeId};
use hostloop::wire::csi;
use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::wait::{answered, until};

/// Two volumes of which copies are made by copying, and one whose copies share blocks; none of them in use.
fn volumes(rig: &Rig) -> [Vol; 3] {
    let requests = [
        create("one", mount()),
        create("two", block()),
        create_with("shared", &[("pool", "fast"), ("backend", "loop")]),
    ];
    requests.map(|request| {
        let (vol, _) = rig.in_use(request);
        rig.write(&vol, "text");
        rig.rest(&vol);
        vol
    })
}

/// Makes a call whose caller gives up while the copy is running.
pub fn give_up<C: Call>(rig: &Rig, request: C) {
    rig.kernel.hold("copy_range");
    let server = rig.server();
    server.block_on(async {
        let call = tokio::spawn(request.send(server.client.clone()));
        until("it copies", async || {
            assert!(!call.is_finished(), "it answers before it has copied");
            rig.kernel.waiting() > 0
        })
        .await;
        call.abort();
        assert!(call.await.is_err_and(|error| error.is_cancelled()));
    });
}

/// Calls again until there is a result; until then the answer is ABORTED.
#[track_caller]
pub fn result<C: Call + Clone>(rig: &Rig, request: &C) -> C::Reply {
    answered(&[Code::Aborted], || rig.call(request.clone())).unwrap_or_else(|status| panic!("{status}"))
}

/// What was copied since the steps were cleared, each range of it.
fn copied(rig: &Rig) -> Vec<String> {
    let steps = rig.kernel.steps();
    steps.into_iter().filter(|step| step.name == "copy_range").map(|step| step.subject).collect()
}

/// A copy that `request` has begun: what retries get, and `meanwhile` others.
fn goes_on<C: Call + Clone>(rig: &Rig, request: &C, meanwhile: impl Fn()) -> C::Reply {
    rig.kernel.clear_steps();
    for _ in 0..3 {
        let message = rig.fails(Code::Aborted, request.clone());
        assert!(message.contains("copied"), "it says how far it is: {message}");
    }
    meanwhile();
    assert_eq!(copied(rig), Vec::<String>::new());
    rig.kernel.release();
    let reply = result(rig, request);
    let (copied, once) = (copied(rig), copied(rig).into_iter().collect::<BTreeSet<_>>());
    assert!(!once.is_empty() && copied.len() == once.len(), "the work is done once: {copied:?}");
    reply
}

#[test]
fn a_snapshot_goes_on_and_a_retry_gets_it() {
    let rig = both_pools();
    let [one, two, shared] = volumes(&rig);
    give_up(&rig, snapshot("s", &one));
    let cut = goes_on(&rig, &snapshot("s", &one), || {
        assert_eq!(rig.snapshots(), [], "what is not ready is not told of");
        rig.fails(Code::Aborted, one.delete_request());
        // Other volumes do not wait, and copies that share blocks neither.
        rig.stage(&two);
        rig.publish(&two, "pod");
        rig.rest(&two);
        let cut = rig.cut("shared", &shared);
        let made = rig.made(copy("restored", from_snapshot(&cut.snapshot_id), mount(), &[("pool", "fast")]));
        assert_eq!(rig.content(&made, 4), "text");
        rig.ok(delete_snapshot(&cut.snapshot_id));
    });
    let cut = cut.snapshot.expect("a snapshot");
    assert!(cut.ready_to_use);
    assert_eq!(rig.snapshots(), [cut]);
}

#[test]
fn a_restored_volume_goes_on_and_a_retry_gets_it() {
    let rig = both_pools();
    let [one, two, _] = volumes(&rig);
    let cut = rig.cut("s", &one);
    let request = copy("restored", from_snapshot(&cut.snapshot_id), mount(), &[]);
    give_up(&rig, request.clone());
    let volume = goes_on(&rig, &request, || {
        rig.fails(Code::Aborted, delete_snapshot(&cut.snapshot_id));
        rig.ok(two.delete_request());
        rig.ok(one.delete_request());
        assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 1);
    });
    let volume = volume.volume.expect("a volume");
    let made = Vol::new(volume, mount());
    assert_eq!(rig.content(&made, 4), "text");
}

/// Whoever asks for it must not hear that there is none and never will be.
#[test]
fn a_volume_that_is_being_made_is_not_missing() {
    let rig = both_pools();
    let [one, ..] = volumes(&rig);
    let request = copy("cloned", from_volume(&one.id), mount(), &[]);
    let id = VolumeId::of_name(&NodeKey::of(NODE), "cloned").to_string();
    let get = csi::ControllerGetVolumeRequest { volume_id: id };
    rig.fails(Code::NotFound, get.clone());
    give_up(&rig, request.clone());
    rig.fails(Code::Aborted, get.clone());
    rig.kernel.release();
    let made = result(&rig, &request).volume;
    assert_eq!(rig.ok(get).volume, made);
}

#[test]
fn a_clone_goes_on_and_a_retry_gets_it() {
    let rig = both_pools();
    let [one, two, _] = volumes(&rig);
    let request = copy("cloned", from_volume(&two.id), block(), &[]);
    give_up(&rig, request.clone());
    let volume = goes_on(&rig, &request, || {
        rig.fails(Code::Aborted, two.delete_request());
        rig.stage(&one);
    });
    let volume = volume.volume.expect("a volume");
    let made = Vol::new(volume, block());
    assert_eq!(rig.content(&made, 4), "text");
    assert_eq!(rig.content(&two, 4), "text");
}

#[test]
fn a_group_goes_on_and_a_retry_gets_it() {
    let rig = both_pools();
    let [one, _, shared] = volumes(&rig);
    let request = group("g", &[&one.id, &shared.id]);
    give_up(&rig, request.clone());
    rig.fails(Code::Aborted, request.clone());
    assert_eq!(rig.snapshots(), []);
    rig.fails(Code::Aborted, shared.delete_request());
    rig.kernel.release();
    let made = result(&rig, &request).group_snapshot.expect("a group");
    assert_eq!((made.snapshots.len(), rig.snapshots().len()), (2, 2));
}

/// The driver is killed while it copies: the next start removes what there is of it.
#[test]
fn a_copy_whose_driver_ends_leaves_nothing() {
    let mut rig = both_pools();
    let [one, ..] = volumes(&rig);
    give_up(&rig, snapshot("s", &one));
    rig.power_cut();
    rig.kernel.release();
    rig.assert_no_snapshot();
    assert_eq!(rig.content(&one, 4), "text");
    rig.cut("s", &one);
}
