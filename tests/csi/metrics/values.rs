//! What the metrics say after calls, and how they are served.

use hostloop::config::OperationConfig;
use tonic::Code;

use crate::harness::{Server, machine, settings};
use crate::metrics::scrape::*;
use crate::requests::*;
use crate::wait::until;

const SIZE: f64 = (512 * MIB) as f64;

/// Of a driver in a process of the tests, which records no commit.
const BUILD_INFO: &str = concat!(
    "hostloop_build_info{version=\"",
    env!("CARGO_PKG_VERSION"),
    "\",commit=\"unknown\",tree=\"unknown\"}"
);

#[test]
fn calls_and_what_they_made_are_counted() {
    let (kernel, settings, address) = (machine(), settings(), address());
    let server = watched(kernel.os(), &settings, address);
    let ext4 = Spec::new(Kind::Ext4);
    let volume = |spec: Spec, name: &str| server.call(spec.create(name)).unwrap().volume.unwrap().volume_id;
    let id = volume(ext4, "a");
    volume(ext4, "a");
    volume(Spec::thick(Kind::Block), "b");
    volume(Spec::new(Kind::Directory), "c");
    let invalid = server.call(csi_request("")).unwrap_err();
    assert_eq!(invalid.code(), Code::InvalidArgument);
    server.call(stage(&id, ext4.capability())).unwrap();
    server.call(publish(&id, ext4.capability(), "pod")).unwrap();
    kernel.write_file(format!("{}/file", target_path("pod")), &[7; 10_000]).unwrap();
    server.call(snapshot("s", &id)).unwrap();
    server.call(group("g", &[&id])).unwrap();

    let samples = scrape(&server, address);
    assert_eq!(samples.calls("Controller/CreateVolume", "OK"), 4.0);
    assert_eq!(samples.calls("Controller/CreateVolume", "INVALID_ARGUMENT"), 1.0);
    assert_eq!(samples.calls("Node/NodeStageVolume", "OK"), 1.0);
    assert_eq!(samples.calls("GroupController/CreateVolumeGroupSnapshot", "OK"), 1.0);
    assert!(samples.calls("Identity/Probe", "OK") >= 1.0);
    let longest =
        "hostloop_rpc_duration_seconds_bucket{le=\"+Inf\",method=\"Controller/CreateVolume\",code=\"OK\"}";
    assert_eq!(samples.get(longest), 4.0);
    for (key, value) in [
        ("hostloop_rpcs_running", 0.0),
        ("hostloop_ready", 1.0),
        ("hostloop_volumes{phase=\"ready\",backend=\"loop\"}", 2.0),
        ("hostloop_volumes{phase=\"ready\",backend=\"directory\"}", 1.0),
        ("hostloop_volumes{phase=\"creating\",backend=\"loop\"}", 0.0),
        ("hostloop_snapshots{phase=\"ready\"}", 2.0),
        ("hostloop_group_snapshots{phase=\"ready\"}", 1.0),
        ("hostloop_copies_running", 0.0),
        ("hostloop_copy_bytes{kind=\"total\"}", 0.0),
        ("hostloop_freeze_duration_seconds_count", 2.0),
        ("hostloop_recovery_objects{kind=\"volumes\"}", 0.0),
        ("hostloop_recovery_objects{kind=\"damaged\"}", 0.0),
        ("hostloop_pool_promised_bytes{pool=\"default\",to=\"thin\"}", SIZE),
        ("hostloop_pool_promised_bytes{pool=\"default\",to=\"thick\"}", SIZE),
        ("hostloop_pool_bytes{pool=\"default\",kind=\"lacking\"}", 0.0),
        ("hostloop_pool_overcommit_ratio{pool=\"default\"}", 1.0),
        ("hostloop_pool_enforces{pool=\"default\",what=\"bytes\"}", 0.0),
        ("hostloop_pool_enforces{pool=\"default\",what=\"inodes\"}", 0.0),
        ("hostloop_pool_measured{pool=\"default\"}", 1.0),
        ("hostloop_pool_available{pool=\"default\"}", 1.0),
    ] {
        assert_eq!(samples.get(key), value, "{key}");
    }
    // Both copies were made by copying, and hold at least what was written.
    assert!(samples.get("hostloop_copied_bytes_total") >= 20_000.0);
    let pool = |kind: &str| samples.get(&format!("hostloop_pool_bytes{{pool=\"default\",kind=\"{kind}\"}}"));
    let kept = samples.get("hostloop_pool_promised_bytes{pool=\"default\",to=\"snapshots\"}");
    assert_eq!(pool("promised"), 2.0 * SIZE + kept);
    assert!(kept >= 20_000.0 && pool("size") >= pool("used") + pool("free") && pool("used") >= SIZE);
    assert_eq!(pool("room"), pool("usable") - pool("promised"));
    assert!(samples.get("process_resident_memory_bytes") > 1e6);
    assert!(samples.get(BUILD_INFO) == 1.0);
    server.stop();
}

fn csi_request(name: &str) -> hostloop::wire::csi::CreateVolumeRequest {
    Spec::new(Kind::Ext4).create(name)
}

#[test]
fn a_running_copy_and_a_lack_of_room_are_shown() {
    let (kernel, settings, address) = (machine(), settings(), address());
    kernel.set_space(10 << 30, 9 << 30);
    let server = watched(kernel.os(), &settings, address);
    let block = Spec::new(Kind::Block);
    let id = server.call(block.create("a")).unwrap().volume.unwrap().volume_id;
    server.call(stage(&id, block.capability())).unwrap();
    server.call(publish(&id, block.capability(), "pod")).unwrap();
    kernel.write_file(target_path("pod"), &[7; 100_000]).unwrap();
    server.call(unpublish(&id, "pod")).unwrap();
    server.call(unstage(&id)).unwrap();

    kernel.hold("copy_range");
    let client = server.client.clone();
    let seen = server.block_on(async {
        let call = tokio::spawn(async move { client.call(snapshot("s", &id)).await });
        until("it waits", async || kernel.waiting() > 0).await;
        let reply = get(address, "/metrics").await;
        kernel.release();
        call.await.unwrap().unwrap();
        Samples::of(&reply.body)
    });
    assert_eq!(seen.get("hostloop_rpcs_running"), 1.0);
    assert_eq!(seen.get("hostloop_copies_running"), 1.0);
    assert_eq!(seen.get("hostloop_snapshots{phase=\"creating\"}"), 1.0);
    assert!(seen.get("hostloop_copy_bytes{kind=\"total\"}") >= 100_000.0);
    assert!(seen.get("hostloop_copy_idle_seconds") > 0.0);
    let after = scrape(&server, address);
    assert_eq!((after.get("hostloop_rpcs_running"), after.get("hostloop_copies_running")), (0.0, 0.0));
    server.stop();

    // Somebody else takes the disk: with what is free the thin volume's promise cannot be kept.
    kernel.set_space(10 << 30, 100 << 20);
    let server = watched(kernel.restart(), &settings, address);
    let lacking = scrape(&server, address).get("hostloop_pool_bytes{pool=\"default\",kind=\"lacking\"}");
    assert!(lacking > SIZE - (110 << 20) as f64 && lacking < SIZE, "{lacking}");
    server.stop();
}

/// The copy that is made of an image to grow its filesystem is a copy like the others.
#[test]
fn the_copy_of_a_growth_is_counted() {
    let (kernel, settings, address) = (machine(), settings(), address());
    let server = watched(kernel.os(), &settings, address);
    let (spec, copied) = (Spec::new(Kind::Ext4), "hostloop_copied_bytes_total");
    let id = server.call(spec.create("a")).unwrap().volume.unwrap().volume_id;
    kernel.create_directories(staging_path(&id));
    server.call(stage(&id, spec.capability())).unwrap();
    kernel.write_file(format!("{}/file", staging_path(&id)), &[7; 100_000]).unwrap();
    server.call(unstage(&id)).unwrap();
    server.call(expand(&id, spec.grown().bytes)).unwrap();
    assert_eq!(scrape(&server, address).get(copied), 0.0);
    kernel.set_sys_resource(false);
    server.call(stage(&id, spec.capability())).unwrap();
    assert!(scrape(&server, address).get(copied) >= 100_000.0);
    server.stop();
}

#[test]
fn health_is_what_probe_says_during_recovery() {
    let (kernel, settings) = (machine(), settings());
    let server = Server::start(&kernel, &settings);
    let request = Spec::new(Kind::Directory).create("half deleted");
    let id = server.call(request).unwrap().volume.unwrap().volume_id;
    kernel.hold("remove_tree");
    let client = server.client.clone();
    server.block_on(async {
        let _call = tokio::spawn(async move { client.call(delete(&id)).await });
        until("it waits", async || kernel.waiting() > 0).await;
    });
    kernel.kill();
    server.abandon();

    let (os, address) = (kernel.restart(), address());
    kernel.hold("remove_tree");
    let starting = std::thread::spawn(move || watched(os, &settings, address));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let during = runtime.block_on(async {
        until("it waits", async || kernel.waiting() > 0).await;
        [get(address, "/readyz").await, get(address, "/healthz").await, get(address, "/metrics").await]
    });
    kernel.release();
    let server = starting.join().unwrap();
    let [ready, alive, metrics] = during;
    assert_eq!((ready.status, ready.body.as_str()), (503, "not ready: start-up recovery is running\n"));
    // Whoever asks whether to kill the process must hear that it works.
    let text = "alive, not ready: start-up recovery is running\n";
    assert_eq!((alive.status, alive.body.as_str()), (200, text));
    assert_eq!(Samples::of(&metrics.body).get("hostloop_ready"), 0.0);
    assert!(!metrics.body.contains("hostloop_recovery"), "it has not ended: {}", metrics.body);

    for path in ["/readyz", "/healthz"] {
        let health = server.block_on(get(address, path));
        assert_eq!((health.status, health.body.as_str()), (200, "ok\n"), "{path}");
    }
    let samples = scrape(&server, address);
    assert_eq!(samples.get("hostloop_ready"), 1.0);
    assert_eq!(samples.get("hostloop_recovery_objects{kind=\"removed\"}"), 1.0);
    assert!(samples.get("hostloop_recovery_duration_seconds") > 0.0);
    server.stop();
    let gone = runtime.block_on(tokio::net::TcpStream::connect(address)).unwrap_err();
    assert_eq!(gone.kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn pages_alone_are_served_beside_idle_clients() {
    let (kernel, settings, address) = (machine(), settings(), address());
    let server = watched(kernel.os(), &settings, address);
    let operation = OperationConfig { metrics_listen: Some(address), ..OperationConfig::default() };
    let second = Server::try_start_with(machine().os(), &settings, operation).err().unwrap().to_string();
    assert!(second.contains(&address.to_string()) && second.contains("--metrics-listen"), "{second}");
    server.block_on(async {
        let root = get(address, "/").await;
        assert_eq!((root.status, root.body.as_str()), (200, "/metrics\n/healthz\n/readyz\n"));
        for path in ["/metrics/", "/debug", "/..", "//"] {
            assert_eq!(get(address, path).await.status, 404, "{path}");
        }
        let open =
            get_with(address, "/metrics", "Accept: application/openmetrics-text;version=1.0.0\r\n").await;
        assert!(open.head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{open:?}");
        assert!(open.body.ends_with("# EOF\n"));
        let plain = get(address, "/metrics").await;
        assert!(plain.head.contains("content-type: text/plain; version=0.0.4"), "{plain:?}");
        let head = send(address, "HEAD /healthz HTTP/1.1\r\nHost: driver\r\n\r\n").await;
        assert_eq!((head.status, head.body.as_str()), (200, ""));
        let post = send(address, "POST /metrics HTTP/1.1\r\nHost: driver\r\nContent-Length: 0\r\n\r\n").await;
        assert!(post.status == 405 && post.head.contains("allow: get, head"), "{post:?}");
        let long = format!("X-Long: {}\r\n", "x".repeat(20_000));
        assert_eq!(get_with(address, "/healthz", &long).await.status, 431);
        let many = "X: y\r\n".repeat(100);
        assert_eq!(get_with(address, "/healthz", &many).await.status, 431);

        let mut idle = Vec::new();
        for _ in 0..10 {
            idle.push(tokio::net::TcpStream::connect(address).await.unwrap());
        }
        let scrapes: tokio::task::JoinSet<Reply> = (0..40).map(|_| get(address, "/metrics")).collect();
        let times: Vec<f64> = scrapes
            .join_all()
            .await
            .iter()
            .map(|reply| Samples::of(&reply.body).get("hostloop_pools_measured_timestamp_seconds"))
            .collect();
        assert!(times.len() == 40 && times.iter().all(|time| *time > 0.0), "{times:?}");
        assert_eq!(get(address, "/healthz").await.status, 200);
    });
    server.stop();
}
