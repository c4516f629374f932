//! CreateSnapshot: what is cut, when it may be, and that nothing is left of what was refused.

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use hostloop_fake_kernel::FakeKernel;
use tonic::{Code, Status};

use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::wait::until;

fn requirement(node: &str) -> Option<csi::TopologyRequirement> {
    Some(csi::TopologyRequirement { requisite: vec![topology(node)], preferred: vec![topology(node)] })
}

/// The freeze limit, as far as a test can wait for it.
const SHORT: [(&str, &str); 1] = [("freezeTimeout", "100ms")];

#[test]
fn the_answer_tells_all_of_it() {
    let rig = both_pools();
    let now = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    for request in kinds() {
        let vol = rig.made(request);
        let before = now();
        let cut = rig.cut(&vol.id, &vol);
        let created = cut.creation_time.expect("a time");
        assert!((before..=now()).contains(&created.seconds) && (0..1_000_000_000).contains(&created.nanos));
        assert!(cut.snapshot_id.starts_with("snap-") && cut.snapshot_id.len() <= 128);
        assert_eq!((&cut.source_volume_id, cut.size_bytes), (&vol.id, vol.info.capacity_bytes));
        assert!(cut.ready_to_use && cut.group_snapshot_id.is_empty());
        assert_eq!(cut.accessible_topology, vec![topology(NODE)]);
        assert!(rig.snapshots().contains(&cut));
    }
}

#[test]
fn a_repeated_call_gives_the_same_snapshot() {
    let mut rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    rig.write(&vol, "one");
    let cut = rig.cut("s", &vol);
    rig.write(&vol, "two");
    assert_eq!(rig.cut("s", &vol), cut);
    assert_eq!(rig.ok(snapshot_with("s", &vol, &AS_IT_IS)).snapshot.as_ref(), Some(&cut));
    rig.rest(&vol);
    rig.ok(vol.delete_request());
    assert_eq!(rig.cut("s", &vol), cut, "its source is gone");
    rig.power_cut();
    assert_eq!(rig.cut("s", &vol), cut);
    assert_eq!(rig.snapshots(), [cut]);
}

#[test]
fn a_name_is_of_one_volume() {
    let rig = Rig::new();
    let (one, two) = (rig.volume("one", mount()), rig.volume("two", mount()));
    let cut = rig.cut("s", &one);
    rig.fails(Code::AlreadyExists, snapshot("s", &two));
    let nobody = csi::CreateSnapshotRequest { source_volume_id: "none".to_owned(), ..snapshot("s", &one) };
    rig.fails(Code::AlreadyExists, nobody);
    assert_eq!(rig.snapshots(), [cut]);
}

#[test]
fn missing_fields_and_unknown_sources_are_named() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let request = || snapshot("s", &vol);
    let message =
        rig.fails(Code::InvalidArgument, csi::CreateSnapshotRequest { name: String::new(), ..request() });
    assert!(message.contains("name"), "{message}");
    let no_source = csi::CreateSnapshotRequest { source_volume_id: String::new(), ..request() };
    assert!(rig.fails(Code::InvalidArgument, no_source).contains("source_volume_id"));
    for id in ["none", "../../v", "vol-368530772790-0b1df86f-4c13-5b95-92dd-ca9634573666", "snap-x"] {
        let unknown = csi::CreateSnapshotRequest { source_volume_id: id.to_owned(), ..request() };
        assert!(rig.fails(Code::NotFound, unknown).contains(id));
    }
    for parameter in [("freeze", "no"), ("freezeTimeout", "1h"), ("pool", "default"), ("Freeze", "true")] {
        assert!(
            rig.fails(Code::InvalidArgument, snapshot_with("s", &vol, &[parameter])).contains(parameter.0)
        );
    }
    rig.assert_no_snapshot();
}

#[test]
fn names_of_any_text_are_different_snapshots() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let names = ["..", "../../x", "a/b", "S", "s", "s ", "line\nbreak", "🦀", &"x".repeat(128)];
    names.iter().for_each(|name| drop(rig.cut(name, &vol)));
    assert_eq!(rig.snapshots().len(), names.len());
    let directories = rig.kernel.tree(format!("{DATA}/snapshots"));
    assert_eq!(directories.len(), 3 * names.len(), "a directory, an image and a record each");
    rig.fails(Code::InvalidArgument, snapshot("a\u{7}", &vol));
    rig.fails(Code::InvalidArgument, snapshot(&"x".repeat(129), &vol));
}

#[test]
fn each_snapshot_of_a_volume_has_the_data_of_its_time() {
    let rig = both_pools();
    for request in kinds() {
        let parameters: Vec<(String, String)> = request.parameters.clone().into_iter().collect();
        let parameters: Vec<(&str, &str)> =
            parameters.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        let (vol, _) = rig.in_use(request);
        let cuts = ["one", "two", "end"].map(|text| {
            rig.write(&vol, text);
            rig.rest(&vol);
            let cut = rig.cut(&format!("{text} of {}", vol.id), &vol);
            rig.stage(&vol);
            rig.publish(&vol, "pod");
            (text, cut)
        });
        rig.write(&vol, "new");
        rig.rest(&vol);
        rig.ok(vol.delete_request());
        for (text, cut) in cuts {
            let name = format!("from {text} of {}", vol.id);
            let source = from_snapshot(&cut.snapshot_id);
            let restored = rig.made(copy(&name, source, vol.capability.clone(), &parameters));
            assert_eq!(rig.content(&restored, 3), text, "{parameters:?}");
            rig.ok(restored.delete_request());
            rig.ok(delete_snapshot(&cut.snapshot_id));
        }
        rig.assert_clean();
        rig.assert_no_snapshot();
    }
}

#[test]
fn a_snapshot_is_on_the_node_of_its_volume() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.kernel.clear_steps();
    let elsewhere = csi::CreateSnapshotRequest {
        accessibility_requirements: requirement("node-z"),
        ..snapshot("s", &vol)
    };
    let message = rig.fails(Code::ResourceExhausted, elsewhere.clone());
    assert!(message.contains(NODE), "{message}");
    assert_eq!(rig.steps(), Vec::<&str>::new());
    rig.assert_no_snapshot();
    let here = csi::CreateSnapshotRequest { accessibility_requirements: requirement(NODE), ..elsewhere };
    assert_eq!(rig.ok(here).snapshot.unwrap().accessible_topology, vec![topology(NODE)]);
    let empty = csi::CreateSnapshotRequest {
        accessibility_requirements: Some(csi::TopologyRequirement::default()),
        ..snapshot("t", &vol)
    };
    rig.fails(Code::InvalidArgument, empty);
}

#[test]
fn a_filesystem_in_use_is_frozen_only_for_the_copy() {
    for (pool, cut_by) in [("default", "copy_range"), ("fast", "reflink")] {
        let rig = both_pools();
        let request = csi::CreateVolumeRequest { parameters: map(&[("pool", pool)]), ..create("v", mount()) };
        let (vol, target) = rig.in_use(request);
        rig.write(&vol, "text");
        rig.steps();
        rig.cut("frozen", &vol);
        let steps = rig.steps();
        let at =
            |name| steps.iter().position(|step| *step == name).unwrap_or_else(|| panic!("{name}: {steps:?}"));
        assert!(at("freeze") < at(cut_by) && at(cut_by) < at("thaw"), "{steps:?}");
        assert!(
            steps[at("thaw")..].contains(&"sync_file"),
            "the copy is synced without the freeze: {steps:?}"
        );
        assert_eq!(rig.kernel.frozen(), Vec::<std::path::PathBuf>::new());
        rig.kernel.write_file(format!("{target}/more"), b"writing goes on").expect("write");
        rig.ok(snapshot_with("as it is", &vol, &AS_IT_IS));
        assert!(!rig.steps().contains(&"freeze"));
        rig.rest(&vol);
        rig.cut("at rest", &vol);
        assert!(!rig.steps().contains(&"freeze"), "nothing writes to it");
    }
}

#[test]
fn a_filesystem_without_writers_is_not_frozen() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    rig.rest(&vol);
    rig.stage(&vol.used(mode(Mode::SingleNodeReaderOnly)));
    rig.steps();
    rig.cut("s", &vol);
    assert!(!rig.steps().contains(&"freeze"));
}

#[test]
fn a_freeze_that_expires_leaves_no_snapshot() {
    let rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", mount()));
    rig.write(&vol, "text");
    rig.kernel.set_freezes_expire(true);
    let message = rig.fails(Code::FailedPrecondition, snapshot_with("s", &vol, &SHORT));
    assert!(message.contains("freezeTimeout") && message.contains("100 ms"), "{message}");
    rig.assert_no_snapshot();
    rig.kernel.write_file(format!("{target}/more"), b"writing goes on").expect("write");
    rig.kernel.set_freezes_expire(false);
    rig.cut("s", &vol);
}

/// A backup hook freezes, asks for a snapshot and waits for it.
#[test]
fn a_filesystem_frozen_by_a_hook_is_cut_and_stays_so() {
    let rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", mount()));
    rig.write(&vol, "text");
    rig.kernel.freeze_foreign(&target).expect("fsfreeze");
    for parameters in [&[][..], &AS_IT_IS] {
        rig.ok(snapshot_with(&format!("s{}", parameters.len()), &vol, parameters));
        assert!(!rig.kernel.frozen().is_empty(), "it is not ours to thaw");
        assert!(rig.kernel.tree(format!("{DATA}/frozen")).is_empty(), "a start would thaw it");
    }
    assert!(rig.kernel.thaw_foreign(&target).expect("fsfreeze"));
    let source = from_snapshot(&rig.snapshots()[0].snapshot_id);
    let (restored, _) = rig.in_use(copy("r", source, mount(), &[]));
    assert_eq!(rig.read(&restored, 4), "text");
}

/// Starts CreateSnapshot of a frozen volume, and calls `meanwhile` when it has begun to copy.
pub fn snapshot_and_meanwhile(rig: &Rig, vol: &Vol, mut meanwhile: impl FnMut()) -> Result<(), Status> {
    rig.kernel.hold("copy_range");
    let _let_go = crate::harness::LetGo(rig.kernel.clone());
    let server = rig.server();
    let (client, request) = (server.client.clone(), snapshot("s", vol));
    let mut call = None;
    server.block_on(async {
        let call = call.insert(tokio::spawn(async move { client.call(request).await }));
        until("it copies", async || {
            assert!(!call.is_finished(), "it answers before it copies");
            rig.kernel.waiting() > 0
        })
        .await;
    });
    meanwhile();
    rig.kernel.release();
    server.block_on(call.expect("a call")).expect("no panic").map(drop)
}

#[test]
fn a_filesystem_thawed_during_the_copy_is_cut_again() {
    for refrozen in [false, true] {
        let rig = Rig::new();
        let (vol, target) = rig.in_use(create("v", mount()));
        rig.write(&vol, "text");
        rig.kernel.freeze_foreign(&target).expect("fsfreeze");
        let thaw_and_write = || {
            assert!(rig.kernel.thaw_foreign(&target).expect("fsfreeze"));
            rig.write(&vol, "more");
            if refrozen {
                rig.kernel.freeze_foreign(&target).expect("fsfreeze");
            }
        };
        snapshot_and_meanwhile(&rig, &vol, thaw_and_write).expect("CreateSnapshot");
        assert_eq!(rig.kernel.frozen().is_empty(), !refrozen, "as the hook left it");
        let source = from_snapshot(&rig.snapshots()[0].snapshot_id);
        let (restored, _) = rig.in_use(copy("r", source, mount(), &[]));
        assert_eq!(rig.read(&restored, 4), "more", "refrozen: {refrozen}");
        assert!(rig.kernel.tree(format!("{DATA}/frozen")).is_empty());
    }
}

#[test]
fn a_hooks_freeze_that_cannot_be_watched_is_refused() {
    let rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", mount()));
    rig.kernel.freeze_foreign(&target).expect("fsfreeze");
    rig.kernel.set_writes_uncounted(true);
    let message = rig.fails(Code::FailedPrecondition, snapshot("s", &vol));
    assert!(message.contains("queue/iostats") && message.contains("freeze: \"false\""), "{message}");
    assert!(rig.kernel.tree(format!("{DATA}/frozen")).is_empty());
    assert!(rig.kernel.thaw_foreign(&target).expect("fsfreeze"), "it was left as it was");
    rig.assert_no_snapshot();
}

#[test]
fn a_raw_device_in_use_needs_shared_blocks() {
    let rig = both_pools();
    let (vol, _) = rig.in_use(create("slow", block()));
    rig.write(&vol, "text");
    let message = rig.fails(Code::FailedPrecondition, snapshot("s", &vol));
    assert!(message.contains("raw device in use") && message.contains("freeze: \"false\""), "{message}");
    rig.assert_no_snapshot();
    rig.ok(snapshot_with("as it is", &vol, &AS_IT_IS));
    rig.rest(&vol);
    rig.cut("s", &vol);

    let request =
        csi::CreateVolumeRequest { parameters: map(&[("pool", "fast")]), ..create("fast", block()) };
    let (vol, target) = rig.in_use(request);
    // Written, and still in the cache of the device.
    rig.kernel.write(&target, 0, b"text").expect("write");
    let cut = rig.cut("shared", &vol);
    rig.kernel.write(&target, 0, b"more").expect("write");
    let restored = rig.made(copy("restored", from_snapshot(&cut.snapshot_id), block(), &[("pool", "fast")]));
    assert_eq!(rig.content(&restored, 4), "text");
}

#[test]
fn a_directory_in_use_cannot_be_held_back() {
    let rig = both_pools();
    for pool in ["directories", "fast-directories"] {
        let (vol, _) = rig.in_use(create_with(pool, &[("backend", "directory"), ("pool", pool)]));
        rig.write(&vol, "text");
        let message = rig.fails(Code::FailedPrecondition, snapshot("s", &vol));
        assert!(message.contains("directory in use") && message.contains("freeze: \"false\""), "{message}");
        rig.assert_no_snapshot();
        let cut = rig.ok(snapshot_with("s", &vol, &AS_IT_IS)).snapshot.expect("a snapshot");
        rig.ok(delete_snapshot(&cut.snapshot_id));
        rig.rest(&vol);
        let cut = rig.cut("s", &vol);
        rig.ok(delete_snapshot(&cut.snapshot_id));
    }
}

#[test]
fn a_snapshot_without_room_is_refused_at_once() {
    let rig = Rig::with(&["--reserve", "0"]);
    let (vol, target) = rig.in_use(create("v", block()));
    rig.kernel.write(&target, 0, &[1; 8 << 20]).expect("write");
    rig.rest(&vol);
    rig.kernel.set_space(20 * GIB as u64, 7 << 20);
    rig.steps();
    let message = rig.fails(Code::ResourceExhausted, snapshot("s", &vol));
    assert!(message.contains("pool default has room for a"), "{message}");
    assert_eq!(rig.steps(), Vec::<&str>::new());
    rig.assert_no_snapshot();
    rig.kernel.set_space(20 * GIB as u64, 20 * GIB as u64);
    rig.restart_with(&["--reserve", "0"]).cut("s", &vol);
}

#[test]
fn unwritten_blocks_of_a_thick_volume_take_no_room() {
    let kernel = FakeKernel::new();
    kernel.set_space(20 * GIB as u64, 10 * GIB as u64);
    let rig = Rig::on(kernel, &["--reserve", "0"]);
    let thick = csi::CreateVolumeRequest { capacity_range: range(6 * GIB, 0), ..create("thick", block()) };
    let thick = csi::CreateVolumeRequest { parameters: map(&[("provisioning", "thick")]), ..thick };
    let (vol, target) = rig.in_use(thick);
    rig.kernel.write(&target, 0, b"text").expect("write");
    rig.rest(&vol);
    let cut = rig.cut("s", &vol);
    rig.ok(vol.delete_request());
    let made = rig.made(copy("restored", from_snapshot(&cut.snapshot_id), block(), &[]));
    assert_eq!(rig.content(&made, 4), "text");
}

#[test]
fn a_disk_full_during_the_copy_leaves_no_snapshot() {
    let rig = Rig::new();
    let vol = rig.made(create_with("thick", &[("provisioning", "thick")]));
    let n = 1 + {
        rig.steps();
        rig.cut("s", &vol);
        let steps = rig.kernel.steps();
        rig.ok(delete_snapshot(&rig.snapshots()[0].snapshot_id));
        steps.iter().position(|step| step.name == "copy_range" || step.name == "set_size").expect("a copy")
    };
    rig.kernel.fail_at(n, nix::errno::Errno::ENOSPC);
    rig.fails(Code::ResourceExhausted, snapshot("s", &vol));
    rig.assert_no_snapshot();
    rig.cut("s", &vol);
}

/// Both are cuts of one filesystem that is frozen for each: they must not take each other for strangers.
#[test]
fn snapshots_of_one_volume_at_once_are_ok_or_aborted() {
    let rig = both_pools();
    let (vol, _) = rig.in_use(create("v", mount()));
    rig.write(&vol, "text");
    for round in 0..10 {
        let requests = (0..8).map(|n| snapshot(&format!("s{round}-{n}"), &vol)).collect();
        let answers = rig.at_once(requests);
        assert!(answers.iter().any(Result::is_ok));
        for status in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(status.code(), Code::Aborted, "{}", status.message());
        }
    }
    assert_eq!(rig.kernel.frozen(), Vec::<std::path::PathBuf>::new());
    assert!(rig.kernel.tree(format!("{DATA}/frozen")).is_empty());
}

#[test]
fn a_failed_thaw_is_done_by_the_next_start() {
    let mut rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", mount()));
    rig.write(&vol, "text");
    rig.steps();
    let cut = rig.cut("s", &vol);
    let thaw = 1 + rig.steps().iter().position(|step| *step == "thaw").expect("a thaw");
    rig.ok(delete_snapshot(&cut.snapshot_id));
    rig.kernel.fail_at(thaw, nix::errno::Errno::EIO);
    rig.kernel.fail_at(thaw + 1, nix::errno::Errno::EIO);
    rig.fails(Code::Internal, snapshot("s", &vol));
    assert!(rig.snapshots().is_empty() && !rig.kernel.frozen().is_empty());
    rig.restart();
    rig.kernel.write_file(format!("{target}/more"), b"writing goes on").expect("write");
    rig.assert_no_snapshot();
    rig.cut("s", &vol);
}

#[test]
fn a_snapshot_is_of_a_volume_as_the_caller_knows_it() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    rig.ok(vol.expand_request(2 * SIZE, 0));
    assert_eq!(rig.cut("s", &vol).size_bytes, 2 * SIZE);
    let inline = csi::CreateSnapshotRequest { source_volume_id: "csi-0a".to_owned(), ..snapshot("t", &vol) };
    rig.fails(Code::NotFound, inline);
}

/// Writes have been let through again: what is copied from then on is of no use, and the disk has other work.
#[test]
fn a_copy_ends_when_its_freeze_does() {
    const RANGES: u64 = 12;
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    let image = format!("{}/disk.img", rig.directory(&vol));
    for n in 1..=RANGES {
        rig.kernel.write(&image, n << 22, &[1; 4096]).expect("write");
    }
    rig.kernel.set_pace(|step, _| {
        if step == "copy_range" {
            std::thread::sleep(std::time::Duration::from_millis(60));
        }
    });
    let copied = |rig: &Rig| rig.steps().into_iter().filter(|step| *step == "copy_range").count() as u64;
    copied(&rig);
    let whole = rig.ok(snapshot_with("whole", &vol, &AS_IT_IS)).snapshot.expect("a snapshot");
    assert!(copied(&rig) >= RANGES);
    rig.ok(delete_snapshot(&whole.snapshot_id));
    rig.fails(Code::FailedPrecondition, snapshot_with("s", &vol, &SHORT));
    let some = copied(&rig);
    assert!((1..RANGES / 2).contains(&some), "{some} ranges were copied");
    rig.assert_no_snapshot();
}
