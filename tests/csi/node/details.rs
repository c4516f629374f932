//! ListNodes and ListDetails on the socket of a node: what people ask who look at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostloop::model::{Timestamp, Volume};
use hostloop::wire::peer;
use tonic::Code;

use crate::life::*;
use crate::support::*;

fn page(rig: &Rig, token: &str) -> peer::ListDetailsResponse {
    rig.ok(peer::ListDetailsRequest { node_id: String::new(), token: token.to_owned(), pools_only: false })
}

fn only_volume(rig: &Rig) -> peer::VolumeDetails {
    let [volume] = &page(rig, "").volumes[..] else { panic!("one volume") };
    volume.clone()
}

#[test]
fn use_is_told_while_a_volume_is_mounted() {
    let rig = Rig::new();
    let (vol, _) = rig.published("fs", mount());
    let seen = only_volume(&rig);
    assert_eq!((seen.id.as_str(), seen.name.as_str()), (vol.id.as_str(), "fs"));
    assert_eq!((seen.phase.as_str(), seen.kind.as_str(), seen.backend.as_str()), ("ready", "volume", "loop"));
    assert!(seen.used_bytes.is_some() && seen.disk_bytes.is_some() && seen.measured_ns > 0, "{seen:?}");
    assert_eq!((seen.unmeasured.as_str(), seen.examined, seen.troubles.len()), ("", true, 0));

    let rig = Rig::new();
    rig.volume("fs", mount());
    let seen = only_volume(&rig);
    assert_eq!((seen.used_bytes, seen.unmeasured.as_str()), (None, ""), "nobody has mounted it");
    assert!(seen.disk_bytes.is_some());
}

#[test]
fn the_claim_of_a_volume_is_told() {
    let rig = Rig::new();
    let key = |name: &str| format!("csi.storage.k8s.io/{name}");
    let (namespace, name, volume) = (key("pvc/namespace"), key("pvc/name"), key("pv/name"));
    rig.ok(create_with("v", &[(&namespace, "shop"), (&name, "data"), (&volume, "pv-1")]));
    let seen = only_volume(&rig);
    assert_eq!(
        [&seen.claim_namespace, &seen.claim_name, &seen.persistent_volume].map(String::as_str),
        ["shop", "data", "pv-1"]
    );
}

#[test]
fn creation_of_a_volume_is_told_ever_after() {
    let mut rig = Rig::new();
    let before = Timestamp::now().as_nanos();
    let vol = rig.volume("fs", mount());
    let created = only_volume(&rig).created_ns;
    assert!((before..=Timestamp::now().as_nanos()).contains(&created), "{created}");
    let record = rig.kernel.read_file(format!("{}/volume.json", vol.directory())).unwrap();
    let record = String::from_utf8(record).unwrap();
    assert!(record.contains(&format!("\"created\":{created}")), "{record}");
    rig.restart();
    assert_eq!(only_volume(&rig).created_ns, created);
}

#[test]
fn volume_of_an_earlier_version_has_no_creation() {
    let mut rig = Rig::new();
    let vol = rig.volume("fs", mount());
    rig.restore_state(|store| {
        let volume = store.get(&vol.id.parse().unwrap()).unwrap();
        store.put(Volume { created: None, ..(*volume).clone() }).unwrap();
    });
    let seen = only_volume(&rig);
    assert_eq!((seen.created_ns, seen.phase.as_str()), (0, "ready"));
    let record = rig.kernel.read_file(format!("{}/volume.json", vol.directory())).unwrap();
    assert!(!String::from_utf8(record).unwrap().contains("\"created\""));
}

#[test]
fn pools_come_with_the_first_page() {
    let rig = Rig::new();
    let node = page(&rig, "").node.expect("the node");
    assert_eq!(node.node_id, NODE);
    let names: Vec<&str> = node.pools.iter().map(|pool| pool.name.as_str()).collect();
    assert_eq!(names, ["default", "directories"]);
    for pool in &node.pools {
        assert!(pool.measured_ns > 0 && pool.size_bytes > 0 && pool.unusable.is_empty(), "{pool:?}");
    }
}

#[test]
fn a_disk_that_hangs_holds_up_no_answer() {
    let rig = Rig::new();
    let vol = rig.volume("fs", mount());
    let (hangs, image) = (Arc::new(AtomicBool::new(true)), vol.image());
    let holds = Arc::clone(&hangs);
    rig.kernel.set_pace(move |_, subject| {
        while image == subject && holds.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let seen = only_volume(&rig);
    assert_eq!((seen.used_bytes, seen.disk_bytes, seen.measured_ns), (None, None, 0));
    assert_eq!(seen.size_bytes, SIZE as u64);
    hangs.store(false, Ordering::Release);
}

#[test]
fn many_volumes_come_in_pages() {
    let rig = Rig::new();
    for number in 0..501 {
        rig.volume(&format!("v-{number}"), block());
    }
    let first = page(&rig, "");
    assert_eq!((first.volumes.len(), first.snapshots.len()), (500, 0));
    let second = page(&rig, &first.next_token);
    assert_eq!((second.volumes.len(), second.next_token.as_str(), second.node), (1, "", None));
    let mut ids: Vec<&str> =
        first.volumes.iter().chain(&second.volumes).map(|volume| volume.id.as_str()).collect();
    ids.dedup();
    assert!(ids.len() == 501 && ids.is_sorted());
    rig.fails(
        Code::Aborted,
        peer::ListDetailsRequest { node_id: String::new(), token: "x".to_owned(), pools_only: false },
    );
}

#[test]
fn a_socket_answers_no_other_question_of_peers() {
    let rig = Rig::new();
    let known = rig.ok(peer::ListNodesRequest {});
    let ids: Vec<&str> = known.nodes.iter().map(|node| node.node_id.as_str()).collect();
    assert_eq!(ids, [NODE]);
    rig.fails(
        Code::NotFound,
        peer::ListDetailsRequest { node_id: "other".to_owned(), token: String::new(), pools_only: false },
    );
    rig.fails(Code::Unimplemented, peer::FindVolumeRequest { volume_id: "x".to_owned() });
    rig.fails(Code::Unimplemented, peer::ForgetVolumeRequest { volume_id: "x".to_owned() });
}

/// For a look every minute: no extents are read and no filesystem is asked.
#[test]
fn a_short_answer_measures_pools_only() {
    let rig = Rig::new();
    rig.published("fs", mount());
    let short = peer::ListDetailsRequest { pools_only: true, ..Default::default() };
    let seen = rig.ok(short);
    let [volume] = &seen.volumes[..] else { panic!("one volume") };
    assert_eq!((volume.disk_bytes, volume.used_bytes), (None, None), "it was not measured");
    assert!(volume.examined, "its health is known");
    let pools = seen.node.expect("the node").pools;
    assert!(pools.iter().all(|pool| pool.measured_ns > 0 && pool.size_bytes > 0), "{pools:?}");
    assert!(only_volume(&rig).disk_bytes.is_some());
}
