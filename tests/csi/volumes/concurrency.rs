//! Calls at the same time: on one volume they are OK or ABORTED, on several they do not disturb each other.

use std::time::Duration;

use hostloop::wire::csi;
use tonic::{Code, Status};

use crate::life::*;
use crate::support::*;
use crate::wait::until;

fn ok_or_aborted<T>(answers: &[Result<T, Status>]) -> usize {
    for status in answers.iter().filter_map(|answer| answer.as_ref().err()) {
        assert_eq!(status.code(), Code::Aborted, "{}", status.message());
    }
    answers.iter().filter(|answer| answer.is_ok()).count()
}

#[test]
fn the_same_call_many_times_at_once() {
    let rig = Rig::new();
    for round in 0..10 {
        let name = format!("v{round}");
        let answers = rig.at_once(vec![create(&name, mount()); 16]);
        assert!(ok_or_aborted(&answers) >= 1);
        let vol = rig.volume(&name, mount());
        assert!(ok_or_aborted(&rig.at_once(vec![rig.stage_request(&vol); 16])) >= 1);
        assert_eq!((rig.mounts_at(&vol.staging()), rig.kernel.loops().len()), (1, 1));
        assert!(ok_or_aborted(&rig.at_once(vec![rig.publish_request(&vol, "pod"); 16])) >= 1);
        assert_eq!(rig.mounts_at(&vol.target("pod")), 1);
        let expansions = (0..16).map(|n| vol.expand_request(SIZE + n % 4 * 4096, 0)).collect();
        assert!(ok_or_aborted(&rig.at_once(expansions)) >= 1);
        assert!(ok_or_aborted(&rig.at_once(vec![vol.unpublish_request("pod"); 16])) >= 1);
        assert!(ok_or_aborted(&rig.at_once(vec![vol.unstage_request(); 16])) >= 1);
        assert!(ok_or_aborted(&rig.at_once(vec![vol.delete_request(); 16])) >= 1);
        assert_eq!(rig.kernel.formats().len(), round + 1);
        rig.assert_clean();
    }
}

/// How far it is is told of a copy and of a tool, and of nothing else.
#[test]
fn aborted_names_the_running_call_without_progress() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.kernel.hold("set_size");
    let _let_go = crate::harness::LetGo(rig.kernel.clone());
    let server = rig.server();
    let (client, request) = (server.client.clone(), vol.expand_request(2 * SIZE, 0));
    let mut call = None;
    server.block_on(async {
        let call = call.insert(tokio::spawn(async move { client.call(request).await }));
        until("the image grows", async || {
            assert!(!call.is_finished(), "it answers before the image has its size");
            rig.kernel.waiting() > 0
        })
        .await;
    });
    let message = rig.fails(Code::Aborted, vol.expand_request(2 * SIZE, 0));
    assert!(message.contains(&format!("another operation on volume {} is running", vol.id)), "{message}");
    rig.kernel.release();
    assert_eq!(
        server.block_on(call.expect("a call")).expect("no panic").expect("grown").capacity_bytes,
        2 * SIZE
    );
}

#[test]
fn different_volumes_all_succeed() {
    let rig = Rig::new();
    let all = |answers: usize| assert_eq!(answers, 64);
    let made = rig.at_once((0..64).map(|n| create(&format!("v{n}"), mount())).collect());
    let vols: Vec<Vol> = made
        .into_iter()
        .map(|reply| reply.expect("a volume").volume.expect("a volume"))
        .map(|info| Vol::new(info, mount()))
        .collect();
    let ids: std::collections::BTreeSet<&str> = vols.iter().map(|vol| vol.id.as_str()).collect();
    all(ids.len());
    let each = |request: &dyn Fn(&Vol) -> csi::NodeStageVolumeRequest| vols.iter().map(request).collect();
    all(rig.at_once(each(&|vol| rig.stage_request(vol))).iter().filter(|answer| answer.is_ok()).count());
    let publish = vols.iter().map(|vol| rig.publish_request(vol, "pod")).collect();
    all(rig.at_once(publish).iter().filter(|answer| answer.is_ok()).count());
    assert_eq!((rig.kernel.mounts().len(), rig.kernel.loops().len()), (128, 64));
    let unpublish = vols.iter().map(|vol| vol.unpublish_request("pod")).collect();
    all(rig.at_once(unpublish).iter().filter(|answer| answer.is_ok()).count());
    let unstage = vols.iter().map(|vol| vol.unstage_request()).collect();
    all(rig.at_once(unstage).iter().filter(|answer| answer.is_ok()).count());
    let delete = vols.iter().map(|vol| vol.delete_request()).collect();
    all(rig.at_once(delete).iter().filter(|answer| answer.is_ok()).count());
    rig.assert_clean();
}

#[test]
fn creations_at_once_promise_no_more_than_the_pool() {
    let kernel = hostloop_fake_kernel::FakeKernel::new();
    kernel.set_space(GIB as u64, 640 << 20);
    let rig = Rig::on(kernel, &[]);
    for provisioning in ["thin", "thick"] {
        let requests: Vec<_> = (0..32)
            .map(|n| create_with(&format!("{provisioning}-{n}"), &[("provisioning", provisioning)]))
            .collect();
        let answers = rig.at_once(requests);
        let made: Vec<_> = answers.into_iter().filter_map(Result::ok).collect();
        assert!((8..=9).contains(&made.len()), "{provisioning}: {} of 64 MiB in 640 MiB", made.len() + 1);
        for reply in made {
            let volume_id = reply.volume.expect("a volume").volume_id;
            rig.ok(csi::DeleteVolumeRequest { volume_id, ..Default::default() });
        }
    }
}

#[test]
fn a_retry_after_giving_up_gets_the_result() {
    let rig = Rig::new();
    for round in 0..50 {
        let request = create(&format!("v{round}"), mount());
        let server = rig.server();
        let first = request.clone().send(server.client.clone());
        // Nobody waits for it any more; what has begun goes on.
        let gone =
            server.block_on(async { tokio::time::timeout(Duration::from_micros(10 * round), first).await });
        drop(gone);
        loop {
            match rig.call(request.clone()) {
                Ok(_) => break,
                Err(status) => assert_eq!(status.code(), Code::Aborted, "{}", status.message()),
            }
        }
    }
    assert_eq!(rig.ok(csi::ListVolumesRequest::default()).entries.len(), 50);
    assert_eq!(
        rig.kernel.tree(format!("{DATA}/volumes")).len(),
        200,
        "a directory, an image, a mark and a record each"
    );
}

#[test]
fn stage_and_delete_at_once_end_in_one_state() {
    let rig = Rig::new();
    for round in 0..20 {
        let vol = rig.volume(&format!("v{round}"), mount());
        let server = rig.server();
        let (stage, delete) = server.block_on(async {
            let stage = rig.stage_request(&vol).send(server.client.clone());
            let delete = vol.delete_request().send(server.client.clone());
            tokio::join!(stage, delete)
        });
        match (stage.map_err(|s| s.code()), delete.map_err(|s| s.code())) {
            (Ok(_), Err(Code::Aborted | Code::FailedPrecondition)) => {
                assert_eq!(rig.mounts_at(&vol.staging()), 1);
                rig.unstage(&vol);
                rig.ok(vol.delete_request());
            }
            (Err(Code::NotFound | Code::Aborted), Ok(_)) => {}
            other => panic!("{other:?}"),
        }
        rig.assert_clean();
    }
}
