//! The health of volumes and pools, as CSI 1.13 and 1.12 ask for it.
#![allow(deprecated, reason = "CSI 1.12 has conditions")]

use std::time::{Duration, Instant};

use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop::wire::csi::VolumeHealthErrorType::{self as Status, DataLoss, Degraded, Inaccessible};
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use hostloop_fake_kernel::FakeKernel;
use tonic::Code;

use crate::life::*;
use crate::scrape::{address, scrape, watched};
use crate::support::*;
use crate::wait::eventually;

const FAST: &str = "/pools/fast";
const WITH_FAST: [&str; 2] = ["--pool", "fast=/pools/fast"];

/// What is wrong: how bad it is, and the reason.
type Wrong = (Status, String);

fn wrong(status: Status, reason: &str) -> Vec<Wrong> {
    vec![(status, reason.to_owned())]
}

#[track_caller]
fn entries(health: csi::VolumeHealth, id: &str) -> Vec<Wrong> {
    assert_eq!(health.volume_id, id);
    let entry = |entry: csi::volume_health::VolumeHealthEntry| {
        assert!(entry.message.len() > 20, "{entry:?}");
        (entry.status(), entry.reason)
    };
    health.health_statuses.into_iter().map(entry).collect()
}

impl Rig {
    #[track_caller]
    fn health(&self, vol: &Vol) -> Vec<Wrong> {
        let request =
            csi::ControllerGetVolumeHealthRequest { volume_id: vol.id.clone(), ..Default::default() };
        entries(self.ok(request).volume_health.expect("health"), &vol.id)
    }

    fn list_health(&self, max_entries: i32, token: &str) -> csi::ControllerListVolumeHealthResponse {
        let starting_token = token.to_owned();
        self.ok(csi::ControllerListVolumeHealthRequest { max_entries, starting_token, ..Default::default() })
    }

    #[track_caller]
    fn node_health(&self, vol: &Vol, publish: &str, staging: &str) -> Vec<Wrong> {
        entries(self.ok(node_request(&vol.id, publish, staging)).volume_health.expect("health"), &vol.id)
    }

    /// What lists say of a volume without a look at it: whether it is abnormal.
    fn conditions(&self, vol: &Vol) -> [csi::VolumeCondition; 2] {
        let get = self.ok(csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() });
        let list = self.ok(csi::ListVolumesRequest::default()).entries;
        let listed = list.into_iter().find(|entry| entry.volume.as_ref().unwrap().volume_id == vol.id);
        let (get, listed) = (get.status.unwrap(), listed.expect("listed").status.unwrap());
        [get.volume_condition.expect("a condition"), listed.volume_condition.expect("a condition")]
    }

    /// Every way to ask for the health of a volume says this. `there` is a path with the volume for NodeGetVolumeStats.
    #[track_caller]
    fn assert_health(&self, vol: &Vol, expected: &[Wrong], there: Option<&str>) {
        assert_eq!(self.health(vol), expected);
        assert_eq!(self.node_health(vol, "", ""), expected);
        let listed: Vec<_> =
            self.list_health(0, "").entries.into_iter().filter(|e| e.volume_id == vol.id).collect();
        assert_eq!(listed.len(), usize::from(!expected.is_empty()), "only what is not healthy is listed");
        for health in listed {
            assert_eq!(entries(health, &vol.id), expected);
        }
        let stats = there.map(|path| self.ok(vol.stats_request(path)).volume_condition.expect("a condition"));
        for condition in self.conditions(vol).into_iter().chain(stats) {
            assert_eq!(condition.abnormal, !expected.is_empty(), "{condition:?}");
            assert!(expected.iter().all(|(_, reason)| condition.message.contains(reason)), "{condition:?}");
            assert!(!condition.message.is_empty());
        }
    }
}

fn node_request(id: &str, publish: &str, staging: &str) -> csi::NodeGetVolumeHealthRequest {
    csi::NodeGetVolumeHealthRequest {
        volume_id: id.to_owned(),
        volume_publish_path: publish.to_owned(),
        staging_target_path: staging.to_owned(),
    }
}

fn directory() -> csi::CreateVolumeRequest {
    create_with("directory", &[("backend", "directory"), ("pool", "directories")])
}

fn every_kind() -> [csi::CreateVolumeRequest; 5] {
    let [ext4, xfs, btrfs] = ["ext4", "xfs", "btrfs"]
        .map(|name| csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create(name, fs(name)) });
    [ext4, xfs, btrfs, create("block", block()), directory()]
}

#[test]
fn nothing_is_wrong_with_a_volume_at_any_time_of_its_life() {
    let rig = Rig::new();
    for request in every_kind() {
        let vol = rig.made(request);
        rig.assert_health(&vol, &[], None);
        rig.stage(&vol);
        rig.assert_health(&vol, &[], None);
        assert_eq!(rig.node_health(&vol, "", &vol.staging()), []);
        let target = rig.publish(&vol, "pod");
        rig.assert_health(&vol, &[], Some(&target));
        assert_eq!(rig.node_health(&vol, &target, &vol.staging()), []);
        rig.ok(vol.expand_request(2 * GIB, 0));
        rig.assert_health(&vol, &[], Some(&target));
        rig.unpublish(&vol, "pod");
        rig.unstage(&vol);
        // In the middle of an expansion the image is longer than the record says.
        if rig.kernel.exists(vol.image()) {
            rig.kernel.os().images.set_size(vol.image().as_ref(), 3 << 30).unwrap();
        }
        rig.assert_health(&vol, &[], None);
    }
    assert_eq!(rig.list_health(0, "").entries, []);
    let read_only = rig.volume("ro", mode(Mode::SingleNodeReaderOnly));
    rig.stage(&read_only.used(mount()));
    rig.unstage(&read_only);
    let (vol, target) = (&read_only, read_only.target("pod-1"));
    rig.stage(vol);
    rig.publish(vol, "pod-1");
    rig.assert_health(vol, &[], Some(&target));
}

#[test]
fn files_that_are_gone_cut_off_or_written_over_are_lost_data() {
    for request in every_kind() {
        let rig = Rig::new();
        let name = request.name.clone();
        let vol = rig.made(request);
        rig.stage(&vol);
        rig.unstage(&vol);
        let os = rig.kernel.os();
        if name == "directory" {
            let data = format!("{}/data", vol.directory());
            os.files.remove_directory(data.as_ref()).unwrap();
            rig.assert_health(&vol, &wrong(DataLoss, "DirectoryMissing"), None);
            os.files.create_file(data.as_ref()).unwrap();
            rig.assert_health(&vol, &wrong(DataLoss, "DirectoryMissing"), None);
            continue;
        }
        let image = vol.image();
        let size = rig.image(&vol).size;
        if name != "block" {
            let label = rig.kernel.read(&image, 0, 128 << 10).unwrap();
            rig.kernel.write(&image, 0, &vec![0; 128 << 10]).unwrap();
            rig.assert_health(&vol, &wrong(DataLoss, "FilesystemMissing"), None);
            rig.kernel.write(&image, 0, &label).unwrap();
            rig.assert_health(&vol, &[], None);
        }
        os.images.set_size(image.as_ref(), size - 4096).unwrap();
        rig.assert_health(&vol, &wrong(DataLoss, "ImageTruncated"), None);
        rig.kernel.remove_file(&image).unwrap();
        rig.assert_health(&vol, &wrong(DataLoss, "ImageMissing"), None);
        rig.kernel.create_directories(&image);
        rig.assert_health(&vol, &wrong(DataLoss, "ImageMissing"), None);
    }
}

#[test]
fn a_filesystem_in_trouble_is_told_from_one_that_is_mounted_read_only() {
    let rig = Rig::new();
    let (vol, target) = rig.published("v", mount());
    rig.kernel.mark_errors(vol.image()).unwrap();
    rig.assert_health(&vol, &wrong(Degraded, "FilesystemErrors"), Some(&target));
    assert_eq!(rig.node_health(&vol, &target, &vol.staging()), wrong(Degraded, "FilesystemErrors"));
    rig.unpublish(&vol, "pod-1");
    rig.unstage(&vol);
    rig.stage(&vol);
    let target = rig.publish(&vol, "pod-1");
    rig.assert_health(&vol, &[], Some(&target));

    rig.kernel.set_superblock_read_only(&target, true);
    rig.assert_health(&vol, &wrong(Degraded, "FilesystemReadOnly"), Some(&target));
    rig.kernel.set_superblock_read_only(&target, false);
    rig.assert_health(&vol, &[], Some(&target));

    let (xfs, target) = rig.published("xfs", fs("xfs"));
    rig.kernel.set_failed(&target, true);
    rig.assert_health(&xfs, &wrong(Inaccessible, "FilesystemStopped"), None);
    rig.assert_health(&vol, &[], None);
    // It can still be taken away, which is the way out.
    rig.unpublish(&xfs, "pod-1");
    rig.unstage(&xfs);
    rig.assert_health(&xfs, &[], None);
    rig.ok(xfs.delete_request());
}

fn on_fast(kernel: &FakeKernel, flags: &[&str]) -> (Rig, Vol) {
    kernel.add_disk(FAST, FsType::Xfs, 10 << 30);
    let rig = Rig::on(kernel.clone(), flags);
    let vol = rig.made(create_with("v", &[("pool", "fast")]));
    (rig, vol)
}

/// The health of the pools: status and reason of each, and all messages.
fn storage(rig: &Rig) -> (Vec<(i32, String)>, String) {
    let found = rig.ok(csi::NodeGetStorageHealthRequest::default()).backend_health;
    let text = found.iter().map(|entry| entry.message.clone()).collect();
    (found.into_iter().map(|entry| (entry.status, entry.reason)).collect(), text)
}

#[test]
fn a_pool_in_trouble_is_told_of_itself_and_of_its_volumes() {
    let unreachable = i32::from(csi::StorageHealthErrorType::StorageUnreachable);
    let degraded = i32::from(csi::StorageHealthErrorType::StorageDegraded);
    let kernel = FakeKernel::new();
    kernel.add_disk("/pools/slow", FsType::Ext4, 10 << 30);
    let flags = ["--pool", "fast=/pools/fast", "--pool", "slow=/pools/slow"];
    let (rig, vol) = on_fast(&kernel, &flags);
    let other = rig.volume("other", mount());
    assert_eq!(storage(&rig).0, []);

    kernel.set_superblock_read_only(FAST, true);
    rig.assert_health(&vol, &wrong(Degraded, "PoolReadOnly"), None);
    assert_eq!(storage(&rig).0, [(degraded, "PoolReadOnly".to_owned())]);
    kernel.set_superblock_read_only(FAST, false);
    assert_eq!(storage(&rig).0, []);

    kernel.set_failed(FAST, true);
    kernel.set_failed("/pools/slow", true);
    rig.assert_health(&vol, &wrong(Inaccessible, "PoolUnreadable"), None);
    rig.assert_health(&other, &[], None);
    let (found, text) = storage(&rig);
    assert_eq!(found, [(unreachable, "PoolUnreadable".to_owned())], "each reason once");
    assert!(text.contains("/pools/fast") && text.contains("/pools/slow"), "{text}");
    kernel.set_failed(FAST, false);
    kernel.set_failed("/pools/slow", false);
    rig.assert_health(&vol, &[], None);

    // Another disk is mounted over it under the driver.
    kernel.add_disk(FAST, FsType::Xfs, 1 << 30);
    rig.assert_health(&vol, &wrong(Inaccessible, "PoolUnavailable"), None);
    rig.assert_health(&other, &[], None);
}

#[test]
fn a_pool_that_the_driver_was_not_told_of_is_missing() {
    let (rig, vol) = on_fast(&FakeKernel::new(), &WITH_FAST);
    let rig = rig.restart_with(&[]);
    rig.assert_health(&vol, &wrong(Inaccessible, "PoolMissing"), None);
    let rig = rig.restart_with(&WITH_FAST);
    rig.assert_health(&vol, &[], None);
}

#[test]
fn the_node_says_where_the_volume_should_be_and_is_not() {
    let rig = Rig::new();
    let both = || [wrong(Inaccessible, "NotStaged"), wrong(Inaccessible, "NotPublished")].concat();
    for capability in [mount(), block()] {
        let (vol, target) = rig.published(&format!("{:?}", capability.access_type), capability);
        assert_eq!(rig.node_health(&vol, &target, &vol.staging()), []);
        let beside = format!("{target}-other");
        assert_eq!(rig.node_health(&vol, &beside, &vol.staging()), wrong(Inaccessible, "NotPublished"));
        rig.kernel.unmount_foreign(&target).unwrap();
        assert_eq!(rig.node_health(&vol, &target, &vol.staging()), wrong(Inaccessible, "NotPublished"));
        // Something else is there.
        let (other, _) = rig.published(&format!("other-{}", vol.id), vol.capability.clone());
        assert_eq!(
            rig.node_health(&other, &target, &vol.staging())[0].1,
            match vol.is_block() {
                true => "NotPublished",
                false => "NotStaged",
            }
        );
        rig.unpublish(&vol, "pod-1");
        rig.unstage(&vol);
        assert_eq!(rig.node_health(&vol, &target, &vol.staging()), both());
        assert_eq!(rig.node_health(&vol, "", ""), [], "it need not be anywhere");
        assert_eq!(rig.node_health(&vol, "/no/such/path", "/no/such"), both());
        rig.fails(Code::InvalidArgument, node_request(&vol.id, "a/b", ""));
        rig.fails(Code::InvalidArgument, node_request(&vol.id, "", "../a"));
    }
    let directory = rig.made(directory());
    assert_eq!(rig.node_health(&directory, &directory.target("p"), &directory.staging()), both());
}

#[test]
fn an_inline_volume_is_known_to_its_node_only() {
    let rig = Rig::new();
    let pod = rig.volume("v", mount()).with_id("csi-0123");
    let request = csi::NodePublishVolumeRequest {
        staging_target_path: String::new(),
        volume_context: map(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "64Mi")]),
        ..rig.publish_request(&pod, "pod")
    };
    rig.ok(request);
    assert_eq!(rig.node_health(&pod, &pod.target("pod"), ""), []);
    rig.fails(
        Code::NotFound,
        csi::ControllerGetVolumeHealthRequest { volume_id: pod.id.clone(), ..Default::default() },
    );
    rig.kernel.unmount_foreign(pod.target("pod")).unwrap();
    assert_eq!(rig.node_health(&pod, &pod.target("pod"), ""), wrong(Inaccessible, "NotPublished"));
}

#[test]
fn what_is_not_there_is_not_found_and_what_is_missing_invalid() {
    let rig = Rig::new();
    for id in ["fake", "vol-0000-0000"] {
        let volume_id = id.to_owned();
        rig.fails(Code::NotFound, csi::ControllerGetVolumeHealthRequest { volume_id, ..Default::default() });
        rig.fails(Code::NotFound, node_request(id, "", ""));
    }
    rig.fails(Code::InvalidArgument, csi::ControllerGetVolumeHealthRequest::default());
    rig.fails(Code::InvalidArgument, node_request("", "/a", "/b"));
    let list = |max_entries, token: &str| csi::ControllerListVolumeHealthRequest {
        max_entries,
        starting_token: token.to_owned(),
        ..Default::default()
    };
    rig.fails(Code::InvalidArgument, list(-1, ""));
    rig.fails(Code::Aborted, list(0, "made-up"));
}

#[test]
fn unhealthy_volumes_come_in_pages_and_are_forgotten_with_the_volume() {
    let rig = Rig::new();
    let vols: Vec<Vol> = (0..10).map(|n| rig.volume(&format!("v{n}"), block())).collect();
    let mut sick: Vec<&Vol> = vols.iter().step_by(2).collect();
    sick.sort_by(|a, b| a.id.cmp(&b.id));
    sick.iter().for_each(|vol| rig.kernel.remove_file(vol.image()).unwrap());
    let (mut seen, mut token) = (Vec::new(), String::new());
    loop {
        let page = rig.list_health(2, &token);
        assert!(page.entries.len() <= 2);
        seen.extend(page.entries.into_iter().map(|entry| entry.volume_id));
        if page.next_token.is_empty() {
            break;
        }
        token = page.next_token;
    }
    assert_eq!(seen, sick.iter().map(|vol| vol.id.clone()).collect::<Vec<_>>());
    // The same name gets the same id; nothing of the volume before sticks to it.
    let first = sick[0];
    let name = (0..10).map(|n| format!("v{n}")).zip(&vols).find(|(_, vol)| vol.id == first.id).unwrap().0;
    rig.ok(first.delete_request());
    assert_eq!(rig.volume(&name, block()).id, first.id);
    assert!(rig.conditions(first).iter().all(|condition| !condition.abnormal));
    rig.assert_health(first, &[], None);
}

/// Who lists volumes only, like csi-external-health-monitor-controller, hears of it as well.
#[test]
fn volumes_are_examined_without_being_asked() {
    let mut rig = Rig::new();
    let vol = rig.volume("v", mount());
    rig.stage(&vol);
    rig.unstage(&vol);
    rig.kernel.write(vol.image(), 0, &vec![0; 4096]).unwrap();
    rig.restart();
    eventually("the filesystem is looked at", || rig.conditions(&vol)[1].abnormal);
}

#[test]
fn the_metrics_count_what_is_not_healthy() {
    let (kernel, address) = (crate::harness::machine(), address());
    let server = watched(kernel.os(), &crate::harness::settings(), address);
    let count = |severity| {
        scrape(&server, address).get(&format!("hostloop_volumes_unhealthy{{severity=\"{severity}\"}}"))
    };
    let request = crate::requests::Spec::new(crate::requests::Kind::Block).create("v");
    let id = server.call(request).unwrap().volume.unwrap().volume_id;
    server.call(csi::ControllerListVolumeHealthRequest::default()).unwrap();
    assert_eq!((count("degraded"), count("inaccessible"), count("data_loss")), (0.0, 0.0, 0.0));
    kernel.remove_file(format!("{}/{id}/disk.img", crate::harness::VOLUMES)).unwrap();
    // A call does not wait for an examination that has begun before it, such as that of the start.
    let deadline = Instant::now() + Duration::from_secs(60);
    while (count("degraded"), count("inaccessible"), count("data_loss")) != (0.0, 0.0, 1.0) {
        assert!(Instant::now() < deadline, "it is not counted");
        server.call(csi::ControllerListVolumeHealthRequest::default()).unwrap();
    }
    server.stop();
}
