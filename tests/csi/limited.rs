//! Directories whose size their filesystem enforces.

use hostloop::kernel::{QuotaLimits, is_full};
use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop::wire::csi::volume_usage::Unit;
use hostloop_fake_kernel::FakeKernel;
use tonic::Code;

use crate::cuts::*;
use crate::harness::{DIRECTORIES, DIRECTORIES_DIR, machine};
use crate::life::*;
use crate::pull::nodes::Pair;
use crate::subvolumes::with_full_qgroups;
use crate::support::*;
use crate::wait::after_retries;

pub const FLAGS: [&str; 4] = ["--pool", "limited=/pools/limited,reserve=0", "--reserve", "0"];
pub const POOL: &str = "/pools/limited";
pub const LIMITED: [(&str, &str); 2] = [("backend", "directory"), ("pool", "limited")];
pub const UNLIMITED: [(&str, &str); 2] = [("backend", "directory"), ("pool", DIRECTORIES)];
pub const BYTES: i64 = 64 * MIB;

pub fn kernel(fs_type: FsType) -> FakeKernel {
    let kernel = machine();
    kernel.add_disk(POOL, fs_type, 20 << 30);
    kernel.set_quotas(POOL, true);
    kernel
}

fn rig(fs_type: FsType) -> Rig {
    Rig::on(kernel(fs_type), &FLAGS)
}

pub fn sized(name: &str, bytes: i64, parameters: &[(&str, &str)]) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest { capacity_range: range(bytes, 0), ..create_with(name, parameters) }
}

pub fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    [&LIMITED, more].concat()
}

pub fn largest(rig: &Rig, parameters: &[(&str, &str)]) -> i64 {
    rig.ok(capacity(parameters)).maximum_volume_size.expect("a maximum")
}

pub fn usage(rig: &Rig, vol: &Vol, path: &str, unit: Unit) -> Option<csi::VolumeUsage> {
    rig.ok(vol.stats_request(path)).usage.into_iter().find(|row| row.unit == i32::from(unit))
}

/// Why a volume is not healthy.
pub fn troubles(rig: &Rig, vol: &Vol) -> Vec<String> {
    let volume_id = vol.id.clone();
    let health = rig.ok(csi::ControllerGetVolumeHealthRequest { volume_id, ..Default::default() });
    let entries = health.volume_health.expect("a health").health_statuses.into_iter();
    entries.map(|entry| entry.reason).collect()
}

#[test]
fn a_full_one_is_full_for_its_pod_and_for_nobody_else() {
    let rigs = FsType::ALL.map(|fs_type| (fs_type, rig(fs_type)));
    for (fs_type, rig) in rigs.into_iter().chain([(FsType::Btrfs, with_full_qgroups())]) {
        let (vol, target) = rig.in_use(sized("v", BYTES, &LIMITED));
        let (other, beside) = rig.in_use(sized("other", BYTES, &LIMITED));
        let chunk = vec![1; 1 << 20];
        let file = format!("{target}/file");
        rig.kernel.write_file(&file, b"").expect("make");
        let fits = |n: i64| rig.kernel.write(&file, (n << 20) as u64, &chunk);
        let written = (0..).take_while(|n| fits(*n).is_ok()).count() as i64 * MIB;
        assert!((BYTES - 2 * MIB..=BYTES).contains(&written), "{fs_type}: {written}");
        assert!(is_full(&fits(BYTES / MIB).expect_err("no more than the volume has")));
        rig.kernel.write_file(format!("{beside}/file"), &chunk).expect("room");

        let bytes = usage(&rig, &vol, &target, Unit::Bytes).expect("bytes");
        assert!(bytes.total == BYTES && bytes.used >= written && bytes.available <= MIB, "{bytes:?}");
        let inodes = usage(&rig, &vol, &target, Unit::Inodes);
        assert_eq!(inodes.as_ref().map(|row| row.total), (fs_type != FsType::Btrfs).then_some(BYTES / 16384));
        assert!(usage(&rig, &other, &beside, Unit::Bytes).expect("bytes").used < 2 * MIB);

        // It grows in one call while it is in use.
        let grown = rig.ok(vol.expand_request(2 * BYTES, 0));
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (2 * BYTES, false));
        fits(BYTES / MIB).expect("there is room now");
        let bytes = usage(&rig, &vol, &target, Unit::Bytes).expect("bytes");
        assert!(bytes.total == 2 * BYTES && bytes.available >= BYTES - 3 * MIB, "{bytes:?}");
        // A full one can be deleted.
        rig.rest(&vol);
        rig.rest(&other);
        rig.ok(vol.delete_request());
        rig.ok(other.delete_request());
        after_retries("its number is given back", || rig.kernel.quotas(POOL).is_empty());
    }
}

#[test]
fn files_are_limited_too() {
    let rig = rig(FsType::Xfs);
    let (vol, target) = rig.in_use(sized("v", BYTES, &with(&[("inodes", "20")])));
    let made = (0..30).take_while(|n| rig.kernel.write_file(format!("{target}/{n}"), b"").is_ok()).count();
    assert!((17..20).contains(&made), "{made}");
    assert_eq!(usage(&rig, &vol, &target, Unit::Inodes).expect("inodes").available, 0);
    // What the class says stays.
    rig.ok(vol.expand_request(2 * BYTES, 0));
    rig.kernel.write_file(format!("{target}/more"), b"").expect_err("as many as before");
    let without = rig.made(sized("w", 1, &LIMITED));
    assert_eq!(without.info.capacity_bytes, MIB, "no smaller than that");
    rig.fails(
        Code::OutOfRange,
        csi::CreateVolumeRequest { capacity_range: range(0, 8192), ..sized("x", 1, &LIMITED) },
    );
}

#[test]
fn it_counts_as_any_volume() {
    let rig = rig(FsType::Xfs);
    let all = largest(&rig, &LIMITED);
    assert!(all > 19 * GIB && all == largest(&rig, &[("pool", "limited")]), "{all}");
    let (vol, target) = rig.in_use(sized("v", 8 * GIB, &LIMITED));
    assert_eq!(largest(&rig, &LIMITED), all - 8 * GIB);
    // What it takes of what it was promised is nobody else's.
    rig.kernel.write_file(format!("{target}/file"), &vec![1; 64 << 20]).expect("write");
    rig.rest(&vol);
    let rig = rig.restart_with(&FLAGS);
    assert!(largest(&rig, &LIMITED).abs_diff(all - 8 * GIB) < MIB as u64);
    rig.fails(Code::ResourceExhausted, vol.expand_request(all + MIB, 0));
    rig.fails(Code::ResourceExhausted, sized("w", all, &LIMITED));
    rig.made(sized("loop", 4 * GIB, &[("pool", "limited")]));
    assert!(largest(&rig, &LIMITED).abs_diff(all - 12 * GIB) < MIB as u64);
    // A copy takes room of its own, and does not grow.
    let cut = rig.cut("s", &vol);
    let left = largest(&rig, &LIMITED);
    assert!(left <= all - 12 * GIB - 63 * MIB, "{left} of {all}");
    rig.ok(delete_snapshot(&cut.snapshot_id));
    rig.ok(vol.delete_request());
    assert!(largest(&rig, &LIMITED).abs_diff(all - 4 * GIB) < MIB as u64);
}

#[test]
fn a_pool_that_cannot_says_what_to_do() {
    let kernel = kernel(FsType::Xfs);
    kernel.set_quotas(POOL, false);
    let rig = Rig::on(kernel, &FLAGS);
    for parameters in [LIMITED.to_vec(), with(&[("enforcement", "required")])] {
        let said = rig.fails(Code::ResourceExhausted, create_with("v", &parameters));
        assert!(
            ["limited", "prjquota", "backend=loop", "directories=true"]
                .iter()
                .all(|word| said.contains(word)),
            "{said}"
        );
        assert_eq!(largest(&rig, &parameters), 0);
    }
    rig.assert_clean();
    // It was mounted anew: no restart is needed.
    rig.kernel.set_quotas(POOL, true);
    assert!(largest(&rig, &LIMITED) > 0);
    rig.made(create_with("v", &LIMITED));
}

#[test]
fn each_kind_of_directory_has_its_pools() {
    let rig = rig(FsType::Btrfs);
    let none = ("enforcement", "none");
    let said = rig.fails(Code::InvalidArgument, create_with("v", &with(&[none])));
    assert!(said.contains("enforcement=none") && said.contains("directories=true"), "{said}");
    let required = ("enforcement", "required");
    let said = rig.fails(Code::InvalidArgument, create_with("v", &[&UNLIMITED[..], &[required]].concat()));
    assert!(said.contains("without an enforced size"), "{said}");
    // The pool decides what the class does not say, and a repeat that says it is the same.
    rig.made(create_with("u", &UNLIMITED));
    rig.made(create_with("u", &[&UNLIMITED[..], &[none]].concat()));
    let vol = rig.made(create_with("v", &LIMITED));
    assert_eq!(rig.made(create_with("v", &with(&[required]))).id, vol.id);
    rig.fails(Code::AlreadyExists, create_with("v", &with(&[none])));
    let said = rig.fails(Code::ResourceExhausted, create_with("w", &with(&[("inodes", "100")])));
    assert!(said.contains("inodes"), "{said}");
    for (parameters, word) in [
        (vec![required], "enforcement"),
        (vec![("inodes", "100")], "inodes"),
        (with(&[none, ("inodes", "100")]), "inodes"),
        (with(&[("inodes", "1")]), "inodes"),
        (with(&[("inodes", "many")]), "inodes"),
        (with(&[("enforcement", "Required")]), "required or none"),
    ] {
        let said = rig.fails(Code::InvalidArgument, create_with("x", &parameters));
        assert!(said.contains(word), "{said}");
    }
}

#[test]
fn copies_are_limited_and_fit() {
    for fs_type in FsType::ALL {
        let rig = rig(fs_type);
        // Nothing keeps it to its size.
        let (source, top) = rig.in_use(sized("source", MIB, &UNLIMITED));
        rig.kernel.write_file(format!("{top}/file"), &vec![7; 20 << 20]).expect("write");
        rig.rest(&source);
        let cut = rig.cut("s", &source);
        for (name, content) in [("a", from_volume(&source.id)), ("b", from_snapshot(&cut.snapshot_id))] {
            let small = csi::CreateVolumeRequest {
                capacity_range: range(8 * MIB, 0),
                ..copy(name, content.clone(), mount(), &LIMITED)
            };
            let before = rig.kernel.quotas(POOL);
            let said = rig.fails(Code::OutOfRange, small.clone());
            assert!(said.contains("ask for at least"), "{said}");
            assert_eq!(rig.kernel.quotas(POOL), before);
            let vol = rig.made(csi::CreateVolumeRequest { capacity_range: range(24 * MIB, 0), ..small });
            rig.stage(&vol);
            let target = rig.publish(&vol, "pod");
            assert_eq!(rig.kernel.read_file(format!("{target}/file")).expect("read").len(), 20 << 20);
            let full = rig.kernel.write_file(format!("{target}/more"), &vec![7; 8 << 20]);
            assert!(is_full(&full.expect_err("it is limited")));
            rig.rest(&vol);
        }
    }
}

/// ext4 lets the driver write more than the limit, so that a copy with too many files is seen at its end.
#[test]
fn a_copy_with_too_many_files_leaves_nothing() {
    for fs_type in [FsType::Ext4, FsType::Xfs] {
        let rig = rig(fs_type);
        let (source, top) = rig.in_use(sized("source", BYTES, &UNLIMITED));
        (0..40).for_each(|n| rig.kernel.write_file(format!("{top}/{n}"), b"").expect("write"));
        rig.rest(&source);
        let few = copy("few", from_volume(&source.id), mount(), &with(&[("inodes", "20")]));
        let refused = rig.call(few).expect_err("it may have 20");
        assert!(matches!(refused.code(), Code::OutOfRange | Code::ResourceExhausted), "{refused}");
        assert_eq!(rig.kernel.quotas(POOL), []);
        assert_eq!(rig.kernel.tree(format!("{POOL}/volumes")), [""; 0]);
    }
}

#[test]
fn what_another_node_has_is_limited_here() {
    let rig = Rig::new();
    let (source, top) = rig.in_use(sized("source", MIB, &UNLIMITED));
    rig.kernel.write_file(format!("{top}/file"), &vec![7; 20 << 20]).expect("write");
    rig.rest(&source);
    let cut = rig.cut("s", &source);
    let pair = Pair::new(rig);
    pair.target.kernel.set_quotas(DATA, true);
    let request = copy("pulled", from_snapshot(&cut.snapshot_id), mount(), &[("backend", "directory")]);
    let said = pair.fails(Code::OutOfRange, request.clone());
    assert!(said.contains("ask for at least"), "{said}");
    assert_eq!(pair.target.kernel.quotas(DATA), []);
    let pulled = pair.pulled(csi::CreateVolumeRequest { capacity_range: range(24 * MIB, 0), ..request });
    let target = pair.into_target();
    let limits: Vec<u64> = target.kernel.quotas(DATA).into_iter().map(|(_, limits)| limits.bytes).collect();
    assert_eq!(limits, [24 << 20]);
    target.stage(&pulled);
    let top = target.publish(&pulled, "pod");
    let full = target.kernel.write_file(format!("{top}/more"), &vec![7; 8 << 20]);
    assert!(is_full(&full.expect_err("it is limited")));
}

#[test]
fn a_number_that_somebody_has_is_passed_over() {
    let rig = rig(FsType::Xfs);
    let vol = rig.made(sized("v", BYTES, &LIMITED));
    let [(id, limits)] = rig.kernel.quotas(POOL)[..] else { panic!("{:?}", rig.kernel.quotas(POOL)) };
    rig.ok(vol.delete_request());
    // Somebody else's files, or a limit of his.
    rig.kernel.write_file(format!("{POOL}/foreign"), b"x").expect("write");
    rig.kernel.set_project(format!("{POOL}/foreign"), id).expect("set");
    let vol = rig.made(sized("v", BYTES, &LIMITED));
    assert_eq!(rig.kernel.quotas(POOL), [(id + 1, limits)]);
    rig.ok(vol.delete_request());
}

#[test]
fn numbers_are_those_of_the_flag_and_stay() {
    let flags = |range| [&FLAGS[..], &["--quota-ids", range]].concat();
    let numbers = |rig: &Rig| rig.kernel.quotas(POOL).into_iter().map(|(id, _)| id).collect::<Vec<_>>();
    let rig = Rig::on(kernel(FsType::Xfs), &flags("7-8"));
    let vol = rig.made(sized("v", BYTES, &LIMITED));
    let other = rig.made(sized("other", BYTES, &LIMITED));
    assert_eq!(numbers(&rig), [7, 8]);
    let said = rig.fails(Code::ResourceExhausted, sized("more", BYTES, &LIMITED));
    assert!(said.contains("7-8") && said.contains("--quota-ids"), "{said}");
    let rig = rig.restart_with(&flags("100-100"));
    rig.made(sized("more", BYTES, &LIMITED));
    assert_eq!(numbers(&rig), [7, 8, 100]);
    assert_eq!(rig.ok(vol.expand_request(2 * BYTES, 0)).capacity_bytes, 2 * BYTES);
    assert_eq!(troubles(&rig, &vol), [""; 0]);
    rig.ok(vol.delete_request());
    rig.ok(other.delete_request());
    assert_eq!(numbers(&rig), [100], "they are given back");
}

#[test]
fn a_limit_that_was_lost_is_set_again() {
    let mut rig = rig(FsType::Ext4);
    let vol = rig.made(sized("v", BYTES, &LIMITED));
    assert_eq!(troubles(&rig, &vol), [""; 0]);
    let [(id, limits)] = rig.kernel.quotas(POOL)[..] else { panic!() };
    let number = hostloop::model::QuotaIds::default()
        .candidates(&vol.id.parse().expect("an id"))
        .next()
        .expect("a number");
    assert_eq!(number.number(), id);
    let set = |bytes: u64| {
        let limits = QuotaLimits { bytes, ..limits };
        let directory = format!("{POOL}/volumes/{}", vol.id);
        rig.kernel.spawn().quotas.set_limits(directory.as_ref(), number, limits).expect("set");
    };
    set(0);
    assert_eq!(troubles(&rig, &vol), ["LimitChanged"]);
    rig.stage(&vol);
    assert_eq!((rig.kernel.quotas(POOL), troubles(&rig, &vol)), (vec![(id, limits)], vec![]));
    set(4096);
    rig.restart();
    assert_eq!(rig.kernel.quotas(POOL), [(id, limits)]);
    rig.unstage(&vol);
}

#[test]
fn what_nothing_enforces_is_not_staged() {
    let rig = rig(FsType::Xfs);
    let vol = rig.made(sized("v", BYTES, &LIMITED));
    rig.kernel.set_quotas(POOL, false);
    assert_eq!(troubles(&rig, &vol), ["SizeNotEnforced"]);
    let said = rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
    assert!(said.contains("prjquota"), "{said}");
    rig.kernel.set_quotas(POOL, true);
    rig.stage(&vol);
    // In use it stays, is measured by what is in it, and does not grow.
    rig.kernel.set_quotas(POOL, false);
    rig.fails(Code::FailedPrecondition, vol.expand_request(2 * BYTES, 0));
    assert!(usage(&rig, &vol, &vol.staging(), Unit::Bytes).expect("bytes").total > GIB);
    rig.kernel.set_quotas(POOL, true);
    rig.unstage(&vol);
    // Its owner may do so in the first user namespace.
    rig.kernel.set_project(format!("{POOL}/volumes/{}/data", vol.id), 0).expect("set");
    assert_eq!(troubles(&rig, &vol), ["SizeNotEnforced"]);
    let said = rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
    assert!(said.contains("does not count"), "{said}");
    // It can be deleted all the same, also where the filesystem has lost its quotas.
    rig.kernel.set_quotas(POOL, false);
    rig.ok(vol.delete_request());
    assert_eq!(rig.kernel.tree(format!("{POOL}/volumes")), [""; 0]);
}

#[test]
fn an_inline_one_is_limited() {
    let flags = [&FLAGS[..], &["--inline-backends", "directory", "--inline-pools", "limited"]].concat();
    let rig = Rig::on(kernel(FsType::Ext4), &flags);
    let publish = |attributes: &[(&str, &str)]| {
        let mut volume_context = map(attributes);
        volume_context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
        csi::NodePublishVolumeRequest {
            volume_id: "csi-1".to_owned(),
            target_path: format!("{KUBELET}/pods/inline"),
            volume_capability: Some(mount()),
            volume_context,
            ..Default::default()
        }
    };
    rig.fails(Code::InvalidArgument, publish(&with(&[("size", "8Mi"), ("enforcement", "none")])));
    let request = publish(&with(&[("size", "8Mi"), ("inodes", "40")]));
    rig.ok(request.clone());
    rig.ok(request);
    let file = format!("{KUBELET}/pods/inline/file");
    let full = rig.kernel.write_file(file, &vec![7; 8 << 20]);
    assert!(is_full(&full.expect_err("it is limited")));
    let target_path = format!("{KUBELET}/pods/inline");
    rig.ok(csi::NodeUnpublishVolumeRequest { volume_id: "csi-1".to_owned(), target_path });
    assert_eq!(rig.kernel.quotas(POOL), []);
    assert_eq!(rig.kernel.tree(format!("{DIRECTORIES_DIR}/volumes")), [""; 0]);
}

/// A filesystem of the driver's own is mounted with quotas where the kernel has them.
#[test]
fn a_managed_xfs_pool_limits_directories() {
    for has in [true, false] {
        let kernel = machine();
        kernel.set_project_quotas(has);
        let rig = Rig::on(kernel, &["--pool", "own=/var/lib/own.img,kind=image,size=1Gi,fs=xfs"]);
        let own = [("pool", "own"), ("backend", "directory")];
        rig.made(sized("loop", 64 * MIB, &own[..1]));
        if !has {
            rig.fails(Code::ResourceExhausted, sized("v", BYTES, &own));
            continue;
        }
        let (vol, target) = rig.in_use(sized("v", BYTES, &own));
        let full = rig.kernel.write_file(format!("{target}/file"), &vec![7; BYTES as usize]);
        assert!(is_full(&full.expect_err("it is limited")));
        // A new process takes the mount over as it is, and so it is after a restart of the machine.
        let mut rig = rig;
        rig.restart();
        rig.ok(vol.expand_request(2 * BYTES, 0));
        rig.reboot();
        rig.stage(&vol);
        assert!(usage(&rig, &vol, &vol.staging(), Unit::Bytes).expect("bytes").total == 2 * BYTES);
        rig.unstage(&vol);
        rig.ok(vol.delete_request());
    }
}
