//! ListFindings and FixFinding on the socket of a node: each class is made by hand, found, put right, and left alone in use.

use std::time::{Duration, SystemTime};

use hostloop::kernel::QuotaLimits;
use hostloop::model::FsType;
use hostloop::store::Durability;
use hostloop::wire::{csi, peer};
use nix::errno::Errno;
use tonic::Code;

use crate::cuts::*;
use crate::directories::quotas::{FLAGS, LIMITED, POOL, kernel, sized, troubles};
use crate::life::*;
use crate::support::*;

pub fn look(rig: &Rig) -> peer::ListFindingsResponse {
    rig.ok(peer::ListFindingsRequest::default())
}

/// The only finding, which is of this class.
#[track_caller]
pub fn only(rig: &Rig, class: &str) -> peer::Finding {
    let found = look(rig).findings;
    let [finding] = &found[..] else { panic!("one finding: {found:?}") };
    assert_eq!(finding.class, class);
    finding.clone()
}

#[track_caller]
fn record(rig: &Rig, id: &str) -> peer::HeldRecord {
    look(rig).records.into_iter().find(|record| record.id == id).expect("a record")
}

pub fn fix(finding: &peer::Finding) -> peer::FixFindingRequest {
    peer::FixFindingRequest {
        node_id: NODE.to_owned(),
        class: finding.class.clone(),
        id: finding.id.clone(),
        path: finding.path.clone(),
        seen: finding.seen.clone(),
        ..Default::default()
    }
}

pub fn unnamed(request: peer::FixFindingRequest) -> peer::FixFindingRequest {
    peer::FixFindingRequest { unnamed: true, ..request }
}

fn orphan(record: &peer::HeldRecord) -> peer::FixFindingRequest {
    peer::FixFindingRequest {
        class: "orphan-record".to_owned(),
        id: record.id.clone(),
        path: record.path.clone(),
        seen: record.seen.clone(),
        unnamed: true,
        ..Default::default()
    }
}

pub fn lose(rig: &mut Rig, vols: &[&Vol]) {
    rig.restore_state(|store| {
        for vol in vols {
            store.delete(&vol.id.parse().expect("an id"), Durability::Synced).expect("delete");
        }
    });
}

#[test]
fn a_healthy_node_has_records_and_no_finding() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    rig.volume("block", block());
    let seen = look(&rig);
    assert_eq!((seen.findings, seen.unknown), (Vec::new(), Vec::<String>::new()));
    assert_eq!((seen.node_id.as_str(), seen.driver_name.as_str()), (NODE, "hostloop.csi.dev"));
    assert_eq!(seen.records.len(), 2);
    let held = record(&rig, &vol.id);
    let what = (held.kind.as_str(), held.phase.as_str(), held.path.as_str());
    assert_eq!(what, ("volume", "ready", vol.directory().as_str()));
    let pods: Vec<(&str, &str)> =
        held.mounts.iter().map(|it| (it.path.as_str(), it.pod_uid.as_str())).collect();
    let (target, staging) = (target.as_str(), vol.staging());
    assert!(pods.contains(&(target, "pod-1")) && pods.contains(&(staging.as_str(), "")), "{pods:?}");
    assert!(held.uses.contains(target) && held.bytes.is_some() && held.since_ns > 0, "{held:?}");
    rig.fails(
        Code::NotFound,
        peer::ListFindingsRequest { node_id: "other".to_owned(), ..Default::default() },
    );
    let other = peer::FixFindingRequest { node_id: "other".to_owned(), ..Default::default() };
    rig.fails(Code::NotFound, other);
}

#[test]
fn an_orphan_image_goes_if_nothing_names_it() {
    let mut rig = Rig::new();
    let vols = [
        create("fs", mount()),
        create("block", block()),
        create_with("directory", &[("backend", "directory"), ("pool", "directories")]),
    ]
    .map(|request| rig.made(request));
    let kept = rig.volume("kept", mount());
    lose(&mut rig, &vols.iter().collect::<Vec<_>>());
    let found = look(&rig).findings;
    assert_eq!(found.len(), 3);
    for finding in &found {
        assert!(finding.needs_unnamed && finding.loses_data && finding.since_ns > 0, "{finding:?}");
        assert_eq!((finding.class.as_str(), finding.fix.as_str()), ("orphan-image", "deletes it"));
        let why = rig.fails(Code::FailedPrecondition, fix(finding));
        assert!(why.contains("kubeconfig"), "{why}");
        let done = rig.ok(unnamed(fix(finding))).done;
        assert!(done.contains(&finding.id), "{done}");
        assert!(!rig.kernel.exists(&finding.path));
        rig.fails(Code::FailedPrecondition, unnamed(fix(finding)));
    }
    assert_eq!(look(&rig).findings, []);
    assert!(rig.kernel.exists(kept.image()), "it has a record");
}

#[test]
fn an_orphan_image_in_use_is_left_alone() {
    let mut rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    rig.write(&vol, "text");
    lose(&mut rig, &[&vol]);
    let finding = only(&rig, "orphan-image");
    assert!(finding.fix.is_empty() && finding.kept.contains("in use: mounted at"), "{finding:?}");
    rig.fails(Code::FailedPrecondition, unnamed(fix(&finding)));
    assert_eq!(rig.read(&vol, 4), "text");
    // It was seen while nothing used it, and a pod has it now.
    rig.rest(&vol);
    let finding = only(&rig, "orphan-image");
    let device = rig.kernel.attach_foreign(vol.image(), false).expect("losetup");
    rig.fails(Code::FailedPrecondition, unnamed(fix(&finding)));
    assert!(rig.kernel.exists(vol.image()));
    rig.kernel.detach_foreign(device.number);
    rig.ok(unnamed(fix(&finding)));
}

#[test]
fn an_image_of_unknown_origin_is_left_alone() {
    let mut rig = Rig::new();
    let vols = ["damaged", "missing", "foreign"].map(|name| rig.volume(name, mount()));
    lose(&mut rig, &vols.iter().collect::<Vec<_>>());
    let file = |vol: &Vol| format!("{}/volume.json", vol.directory());
    rig.kernel.write_file(file(&vols[0]), b"{\"hostloop\":1}\n").expect("write");
    rig.lose_record(&vols[1].directory());
    let other = Rig::with(&["--driver-name", "other.csi.dev"]);
    let theirs = other.volume("foreign", mount());
    let text = other.kernel.read_file(format!("{}/volume.json", theirs.directory())).expect("read");
    rig.kernel.remove_file(file(&vols[2])).expect("remove");
    rig.kernel.write_file(file(&vols[2]), &text).expect("write");
    let found = look(&rig).findings;
    assert_eq!(found.len(), 3);
    for finding in found {
        let whose = if finding.id == vols[2].id { "other.csi.dev" } else { "hostloop state rebuild" };
        assert!(finding.fix.is_empty() && finding.kept.contains(whose), "{finding:?}");
        rig.fails(Code::FailedPrecondition, unnamed(fix(&finding)));
        assert!(rig.kernel.exists(&finding.path));
    }
}

#[test]
fn an_empty_directory_goes_and_a_full_one_stays() {
    let mut rig = Rig::new();
    let vol = rig.volume("v", mount());
    lose(&mut rig, &[&vol]);
    rig.kernel.spawn().trees.remove(vol.directory().as_ref()).expect("remove");
    rig.kernel.create_directories(vol.directory());
    let finding = only(&rig, "orphan-image");
    assert_eq!((finding.fix.as_str(), finding.loses_data), ("removes the empty directory", false));
    let file = format!("{}/notes", vol.directory());
    rig.kernel.write_file(&file, b"text").expect("write");
    rig.fails(Code::FailedPrecondition, fix(&finding));
    assert!(only(&rig, "orphan-image").fix.is_empty());
    rig.kernel.remove_file(&file).expect("remove");
    rig.ok(fix(&only(&rig, "orphan-image")));
    assert!(!rig.kernel.exists(vol.directory()));
}

#[test]
fn an_orphan_record_goes_as_by_its_deletion() {
    let rig = both_pools();
    let vol = rig.made(create_with("v", &[("pool", "fast")]));
    let cut = rig.cut("cut", &vol);
    let request = orphan(&record(&rig, &cut.snapshot_id));
    let unsure = peer::FixFindingRequest { unnamed: false, ..request.clone() };
    rig.fails(Code::FailedPrecondition, unsure);
    rig.ok(request);
    assert!(rig.snapshots().is_empty());
    rig.stage(&vol);
    let why = rig.fails(Code::FailedPrecondition, orphan(&record(&rig, &vol.id)));
    assert!(why.contains("in use"), "{why}");
    rig.unstage(&vol);
    rig.ok(orphan(&record(&rig, &vol.id)));
    assert_eq!(rig.kernel.tree(format!("{FAST}/volumes")), Vec::<String>::new());
}

#[test]
fn a_record_that_has_changed_is_not_deleted() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let request = orphan(&record(&rig, &vol.id));
    rig.ok(vol.expand_request(2 * SIZE, 0));
    let why = rig.fails(Code::FailedPrecondition, request);
    assert!(why.contains("has changed since"), "{why}");
    assert!(rig.kernel.exists(vol.image()));
    // Neither is a member of a group by itself.
    let group = rig.ok(group("group", &[vol.id.as_str()])).group_snapshot.expect("a group");
    let held = record(&rig, &group.snapshots[0].snapshot_id);
    assert_eq!(held.kind, "member");
    rig.fails(Code::FailedPrecondition, orphan(&held));
    assert_eq!(rig.snapshots().len(), 1);
}

#[test]
fn a_deletion_that_failed_is_finished() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.kernel.fail_every("remove_tree", Errno::EIO);
    rig.kernel.fail_every("remove_file", Errno::EIO);
    assert!(rig.call(vol.delete_request()).is_err());
    rig.kernel.heal();
    let finding = only(&rig, "half-made");
    assert_eq!((finding.id.as_str(), finding.loses_data), (vol.id.as_str(), false));
    let done = rig.ok(fix(&finding)).done;
    assert!(done.contains("removed"), "{done}");
    assert!(look(&rig).findings.is_empty() && !rig.kernel.exists(vol.directory()));
}

#[test]
fn a_call_at_work_is_no_finding() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("v", mount()));
    rig.write(&vol, "text");
    let meanwhile = || {
        let seen = look(&rig);
        assert_eq!(seen.findings, [], "a snapshot is being made, and its source is frozen");
    };
    crate::snapshots::create_snapshot::snapshot_and_meanwhile(&rig, &vol, meanwhile).expect("CreateSnapshot");
}

#[test]
fn a_device_without_a_mount_is_detached_unless_open() {
    let rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", mount()));
    let user = rig.kernel.open(format!("/dev/loop{}", rig.kernel.loops()[0].number)).expect("open");
    for path in [target, vol.staging()] {
        rig.kernel.unmount_foreign(path).expect("umount");
    }
    let finding = only(&rig, "stale-device");
    assert_eq!(finding.id, vol.id);
    assert!(finding.fix.is_empty() && finding.kept.contains("has it open"), "{finding:?}");
    rig.fails(Code::FailedPrecondition, fix(&finding));
    assert_eq!(rig.kernel.loops().len(), 1);
    drop(user);
    assert_eq!((rig.kernel.loops(), look(&rig).findings), (Vec::new(), Vec::new()));
    rig.kernel.attach_foreign(vol.image(), false).expect("losetup");
    let finding = only(&rig, "stale-device");
    rig.ok(fix(&finding));
    assert_eq!((rig.kernel.loops(), look(&rig).findings), (Vec::new(), Vec::new()));
    // A volume that is mounted meanwhile keeps its device.
    rig.kernel.attach_foreign(vol.image(), false).expect("losetup");
    let finding = only(&rig, "stale-device");
    rig.kernel.detach_foreign(rig.kernel.loops()[0].number);
    rig.stage(&vol);
    rig.fails(Code::FailedPrecondition, fix(&finding));
    assert_eq!((rig.kernel.loops().len(), rig.mounts_at(&vol.staging())), (1, 1));
    rig.unstage(&vol);
}

#[test]
fn a_mount_of_a_pod_goes_by_its_path() {
    let rig = Rig::new();
    let vol = rig.made(create("v", mode(csi::volume_capability::access_mode::Mode::SingleNodeMultiWriter)));
    rig.stage(&vol);
    let targets = ["a", "b"].map(|pod| rig.publish(&vol, pod));
    let held = record(&rig, &vol.id);
    let mount = held.mounts.iter().find(|mount| mount.pod_uid == "a").expect("a mount");
    let request = peer::FixFindingRequest {
        class: "stale-mount".to_owned(),
        id: held.id.clone(),
        path: mount.path.clone(),
        seen: mount.seen.clone(),
        ..Default::default()
    };
    let why = rig.fails(Code::FailedPrecondition, request.clone());
    assert!(why.contains("which pods exist"), "{why}");
    let request = peer::FixFindingRequest { pod_gone: true, ..request };
    let busy = rig.kernel.open(&targets[0]).expect("a program has it");
    rig.fails(Code::FailedPrecondition, request.clone());
    assert_eq!(rig.mounts_at(&targets[0]), 1);
    drop(busy);
    rig.ok(request.clone());
    assert_eq!(targets.each_ref().map(|target| rig.mounts_at(target)), [0, 1]);
    // kubelet has published it there again.
    rig.publish(&vol, "a");
    rig.fails(Code::FailedPrecondition, request);
    assert_eq!(rig.mounts_at(&targets[0]), 1);
    ["a", "b"].iter().for_each(|pod| rig.unpublish(&vol, pod));
    let held = record(&rig, &vol.id);
    let [staged] = &held.mounts[..] else { panic!("{held:?}") };
    let request = peer::FixFindingRequest {
        class: "stale-mount".to_owned(),
        id: held.id.clone(),
        path: staged.path.clone(),
        seen: staged.seen.clone(),
        ..Default::default()
    };
    rig.fails(Code::FailedPrecondition, request.clone());
    rig.ok(unnamed(request));
    assert_eq!((rig.kernel.mounts(), rig.kernel.loops()), (Vec::new(), Vec::new()));
}

#[test]
fn a_lost_limit_is_set_again() {
    let rig = Rig::on(kernel(FsType::Ext4), &FLAGS);
    let vol = rig.made(sized("v", SIZE, &LIMITED));
    assert_eq!(look(&rig).findings, []);
    let [(_, limits)] = rig.kernel.quotas(POOL)[..] else { panic!() };
    let id = vol.id.parse().expect("an id");
    let number = hostloop::model::QuotaIds::default().candidates(&id).next().expect("a number");
    let directory = format!("{POOL}/volumes/{}", vol.id);
    let none = QuotaLimits { bytes: 0, ..limits };
    rig.kernel.spawn().quotas.set_limits(directory.as_ref(), number, none).expect("set");
    let finding = only(&rig, "size-not-enforced");
    rig.ok(fix(&finding));
    assert_eq!((troubles(&rig, &vol), look(&rig).findings), (Vec::new(), Vec::new()));
    // What cannot be put right is said to be so.
    rig.kernel.set_quotas(POOL, false);
    let finding = only(&rig, "size-not-enforced");
    let why = rig.fails(Code::FailedPrecondition, fix(&finding));
    assert!(why.contains("not enforced"), "{why}");
}

#[test]
fn a_filesystem_left_frozen_is_thawed() {
    let rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", mount()));
    let marker = format!("{DATA}/frozen/{}", vol.id);
    rig.kernel.write_file(&marker, b"").expect("write");
    rig.kernel.freeze_foreign(&target).expect("fsfreeze");
    let finding = only(&rig, "frozen");
    assert_eq!((finding.id.as_str(), finding.fix.as_str()), (vol.id.as_str(), "thaws it"));
    rig.ok(fix(&finding));
    assert!(rig.kernel.frozen().is_empty() && !rig.kernel.exists(&marker));
    assert_eq!(look(&rig).findings, []);
    // The path is compared, and not followed.
    rig.kernel.write_file(&marker, b"").expect("write");
    let elsewhere =
        peer::FixFindingRequest { path: format!("/etc/{}", vol.id), ..fix(&only(&rig, "frozen")) };
    rig.fails(Code::FailedPrecondition, elsewhere);
    rig.ok(fix(&only(&rig, "frozen")));
}

#[test]
fn a_young_directory_says_how_young_it_is() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let then = SystemTime::now() - Duration::from_secs(90);
    rig.kernel.set_changed(vol.directory(), then);
    let (seen, held) = (look(&rig), record(&rig, &vol.id));
    let age = Duration::from_nanos(seen.now_ns - held.since_ns);
    assert!((90..120).contains(&age.as_secs()), "{age:?}");
}

#[test]
fn a_pool_that_is_away_is_not_looked_at() {
    let rig = both_pools();
    let vol = rig.made(create_with("v", &[("pool", "fast")]));
    rig.kernel.add_disk(FAST, FsType::Xfs, 1 << 30);
    let seen = look(&rig);
    assert_eq!(seen.findings, []);
    let held = record(&rig, &vol.id);
    assert!(seen.unknown.iter().any(|why| why.contains("fast")) || !held.uses.is_empty(), "{seen:?}");
    assert!(rig.call(orphan(&held)).is_err(), "its data may be there");
}

#[test]
fn a_class_of_another_version_is_refused() {
    let rig = Rig::new();
    let request = peer::FixFindingRequest { class: "haunted".to_owned(), ..Default::default() };
    let why = rig.fails(Code::InvalidArgument, request);
    assert!(why.contains("haunted"), "{why}");
    rig.fails(Code::Aborted, peer::ListFindingsRequest { token: "x".to_owned(), ..Default::default() });
}

#[test]
fn many_records_come_in_pages() {
    let rig = Rig::new();
    for number in 0..501 {
        rig.volume(&format!("v-{number}"), block());
    }
    let first = look(&rig);
    assert_eq!(first.records.len(), 500);
    let second = rig.ok(peer::ListFindingsRequest { token: first.next_token.clone(), ..Default::default() });
    assert_eq!((second.records.len(), second.next_token.as_str()), (1, ""));
    let mut ids: Vec<&str> = first.records.iter().chain(&second.records).map(|it| it.id.as_str()).collect();
    ids.dedup();
    assert!(ids.len() == 501 && ids.is_sorted());
}
