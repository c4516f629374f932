//! Metrics of each volume, and of what has no record.

use hostloop::model::{NodeKey, Settings, VolumeId};
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;

use crate::harness::{DIRECTORIES, NODE, Server, VOLUMES, machine, settings};
use crate::metrics::scrape::*;
use crate::requests::*;

/// For a claim, as external-provisioner asks for it.
fn for_claim(name: &str, request: csi::CreateVolumeRequest) -> csi::CreateVolumeRequest {
    let names = [("pvc/namespace", "shop"), ("pvc/name", name), ("pv/name", &request.name)];
    let names = names.map(|(key, name)| (format!("csi.storage.k8s.io/{key}"), name.to_owned()));
    let parameters = request.parameters.clone().into_iter().chain(names).collect();
    csi::CreateVolumeRequest { parameters, ..request }
}

fn made(server: &Server, request: csi::CreateVolumeRequest) -> String {
    server.call(request).unwrap().volume.unwrap().volume_id
}

fn labels(id: &str, namespace: &str, claim: &str, pool: &str) -> String {
    format!(
        "{{volume=\"{id}\",namespace=\"{namespace}\",persistentvolumeclaim=\"{claim}\",pool=\"{pool}\",kind=\"volume\"}}"
    )
}

fn start(kernel: &FakeKernel, settings: &Settings) -> (Server, std::net::SocketAddr) {
    let address = address();
    (watched(kernel.os(), settings, address), address)
}

#[test]
fn each_volume_has_its_bytes_under_its_claim() {
    let (kernel, settings) = (machine(), settings());
    let (server, address) = start(&kernel, &settings);
    let ext4 = Spec::new(Kind::Ext4);
    let id = made(&server, for_claim("db", ext4.create("a")));
    let plain = made(&server, Spec::new(Kind::Directory).create("b"));
    server.call(stage(&id, ext4.capability())).unwrap();
    server.call(publish(&id, ext4.capability(), "pod")).unwrap();
    kernel.write_file(format!("{}/file", target_path("pod")), &[7; 100_000]).unwrap();

    let samples = scrape(&server, address);
    let of = |metric: &str, labels: &str| samples.get(&format!("hostloop_volume_{metric}_bytes{labels}"));
    let claim = labels(&id, "shop", "db", "default");
    assert_eq!(of("capacity", &claim), (512 * MIB) as f64);
    let image = kernel.stat(format!("{VOLUMES}/{id}/disk.img")).unwrap();
    assert!(image.allocated >= 100_000, "{image:?}");
    assert_eq!(of("allocated", &claim), image.allocated as f64);
    assert!(
        samples
            .0
            .contains_key(&format!("hostloop_volume_capacity_bytes{}", labels(&plain, "", "", DIRECTORIES)))
    );
    assert_eq!(samples.get("hostloop_volume_metrics_shown"), 1.0);

    kernel.remove_file(format!("{VOLUMES}/{id}/disk.img")).unwrap();
    server
        .call(csi::ControllerGetVolumeHealthRequest { volume_id: id.clone(), ..Default::default() })
        .unwrap();
    let samples = scrape(&server, address);
    let unhealthy = claim.replace('}', ",severity=\"data_loss\",reason=\"ImageMissing\"}");
    assert_eq!(samples.get(&format!("hostloop_volume_unhealthy{unhealthy}")), 1.0);
    assert_eq!(samples.get("hostloop_orphans{pool=\"default\",kind=\"records\"}"), 1.0);
    assert_eq!(samples.get("hostloop_orphans{pool=\"directories\",kind=\"records\"}"), 0.0);
    server.stop();
}

#[test]
fn too_many_volumes_have_no_metrics_of_each() {
    let (kernel, settings) = (machine(), settings());
    for (most, count, shown) in [(2, 2, true), (1, 2, false), (0, 2, false), (3, 3, true)] {
        let address = address();
        let server = watched_up_to(most, kernel.os(), &settings, address);
        for number in 0..count {
            made(&server, for_claim("db", Spec::new(Kind::Block).create(&format!("v{number}"))));
        }
        let samples = scrape(&server, address);
        let of_each =
            samples.0.keys().filter(|key| key.starts_with("hostloop_volume_capacity_bytes")).count();
        assert_eq!(of_each, if shown { count } else { 0 }, "{most}");
        assert_eq!(samples.get("hostloop_volume_metrics_shown"), f64::from(u8::from(shown)), "{most}");
        assert_eq!(samples.get("hostloop_volumes{phase=\"ready\",backend=\"loop\"}"), count as f64);
        server.stop();
    }
}

#[test]
fn parts_of_a_pool_add_up_to_its_size() {
    let (kernel, settings) = (machine(), settings());
    kernel.set_space(10 << 30, 9 << 30);
    let (server, address) = start(&kernel, &settings);
    made(&server, Spec::thick(Kind::Block).create("a"));
    let samples = scrape(&server, address);
    let part =
        |kind: &str| samples.get(&format!("hostloop_pool_disk_bytes{{pool=\"default\",kind=\"{kind}\"}}"));
    let of = |name: &str| samples.get(&format!("hostloop_pool_{name}_bytes{{pool=\"default\"}}"));
    let sum: f64 = ["used", "available", "reserved", "withheld"].map(part).iter().sum();
    assert_eq!((sum, of("size")), ((10_u64 << 30) as f64, (10_u64 << 30) as f64));
    assert!(part("used") >= (512 * MIB) as f64 && part("reserved") == of("reserve"));
    let old = |kind: &str| samples.get(&format!("hostloop_pool_bytes{{pool=\"default\",kind=\"{kind}\"}}"));
    for kind in ["size", "reserve", "usable", "room", "lacking", "removing"] {
        assert_eq!(of(kind), old(kind), "{kind}");
    }
    server.stop();
}

#[test]
fn files_without_a_record_are_counted_from_the_start() {
    let (kernel, settings) = (machine(), settings());
    let lost = VolumeId::of_name(&NodeKey::of(NODE), "lost");
    kernel.create_directories(format!("{VOLUMES}/{lost}"));
    let (server, address) = start(&kernel, &settings);
    let samples = scrape(&server, address);
    assert_eq!(samples.get("hostloop_orphans{pool=\"default\",kind=\"files\"}"), 1.0);
    assert_eq!(samples.get("hostloop_orphans{pool=\"default\",kind=\"uncertain\"}"), 0.0);
    assert_eq!(samples.get("hostloop_orphans{pool=\"directories\",kind=\"files\"}"), 0.0);
    assert_eq!(samples.get("hostloop_orphans{pool=\"default\",kind=\"inline\"}"), 0.0);
    server.stop();
}

/// What a call that runs has made, or is about to remove, is no orphan.
#[test]
fn files_without_a_record_are_seen_twice_first() {
    let kernel = machine();
    let driver = hostloop::app::driver(settings(), kernel.os()).expect("the driver starts");
    driver.recover();
    let files = || driver.figures().orphans[0].strangers.expect("a look").files;
    let stray = format!("{VOLUMES}/{}", VolumeId::of_name(&NodeKey::of(NODE), "stray"));
    kernel.create_directories(&stray);
    driver.look_for_strangers();
    assert_eq!(files(), 0, "it is new");
    driver.look_for_strangers();
    assert_eq!(files(), 1);
    kernel.os().files.remove_directory(stray.as_ref()).unwrap();
    driver.look_for_strangers();
    assert_eq!(files(), 0, "it is gone");
}
