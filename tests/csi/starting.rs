//! A start that takes long: the socket is served at once, and says what is going on.

use hostloop::config::{OperationConfig, Role};
use hostloop::model::{FsType, PoolKind, PoolSettings, Settings};
use hostloop::selftest::client::{self, Client};
use hostloop::shutdown::Trigger;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use std::path::Path;
use std::time::Duration;
use tonic::Code;

use crate::harness::{LetGo, Serving, machine, pool, settings, spawn};
use crate::scrape::{Samples, address, get};
use crate::wait::until;

const LONG: Duration = Duration::from_secs(60);

/// Settings with a pool that has a filesystem of the driver's own.
fn managed(kernel: &FakeKernel) -> Settings {
    kernel.create_directories("/srv");
    let image = "/srv/copies.img".into();
    let kind = PoolKind::Image { file: image, bytes: 1 << 30, fs_type: FsType::Xfs };
    let target = format!("{}/pools/copies", crate::harness::DATA_DIR);
    let copies = PoolSettings { kind, ..pool("copies", target) };
    let mut all = settings();
    all.pools.push(copies);
    all
}

fn start(
    kernel: &FakeKernel,
    settings: &Settings,
    socket: &Path,
    operation: OperationConfig,
) -> (Serving, Trigger) {
    spawn(kernel.os(), Role::All(settings.clone()), socket, operation)
}

async fn connect(socket: &Path) -> Client {
    Client::on(client::endpoint(socket).unwrap().connect().await.unwrap())
}

async fn ready(client: &Client) -> Option<bool> {
    let answer = client.call(csi::ProbeRequest {}).await;
    answer.expect("whoever asks whether it is ready gets an answer").ready
}

#[tokio::test(flavor = "multi_thread")]
async fn the_socket_is_served_while_a_pool_is_made() {
    let (kernel, dir, address) = (machine(), tempfile::tempdir().unwrap(), address());
    let (settings, socket) = (managed(&kernel), dir.path().join("csi.sock"));
    kernel.hold("make");
    let _let_go = LetGo(kernel.clone());
    let operation = OperationConfig { health_listen: Some(address), ..OperationConfig::default() };
    let (process, trigger) = start(&kernel, &settings, &socket, operation);
    until("the pool is being made", async || kernel.waiting() > 0).await;
    until("the socket is there", async || socket.exists()).await;

    let client = connect(&socket).await;
    assert_eq!(ready(&client).await, Some(false));
    let info = client.call(csi::GetPluginInfoRequest {}).await.unwrap();
    assert_eq!(info.name, settings.driver_name);
    let request = csi::GetPluginCapabilitiesRequest {};
    assert!(!client.call(request).await.unwrap().capabilities.is_empty());
    // kubelet registers the driver meanwhile, and asks again for what is UNAVAILABLE.
    let info = client.call(csi::NodeGetInfoRequest {}).await.unwrap();
    assert_eq!(info.node_id, settings.node_id);
    let request = csi::NodeGetCapabilitiesRequest {};
    assert!(!client.call(request).await.unwrap().capabilities.is_empty());
    let refused = [
        client.call(csi::ListVolumesRequest::default()).await.map(drop).unwrap_err(),
        client.call(csi::NodeUnpublishVolumeRequest::default()).await.map(drop).unwrap_err(),
    ];
    for status in refused {
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        assert!(status.message().contains("pool copies is being") && status.message().contains("so far"));
    }
    let alive = get(address, "/healthz").await;
    assert!(alive.status == 200 && alive.body.contains("pool copies is being"), "{alive:?}");
    assert_eq!(get(address, "/readyz").await.status, 503);

    // A second process does not get as far as the socket.
    let (second, _trigger) = start(&kernel, &settings, &socket, OperationConfig::default());
    let line = second.await.unwrap().err().expect("the first one has the data directory").to_string();
    assert!(line.contains("is in use by another process"), "{line}");
    assert_eq!(ready(&client).await, Some(false), "the first one serves");

    kernel.release();
    until("it is ready", async || process.is_finished() || ready(&client).await == Some(true)).await;
    client.call(csi::ListVolumesRequest::default()).await.unwrap();
    assert_eq!(get(address, "/readyz").await.status, 200);
    drop(client);
    trigger.pull();
    assert!(process.await.unwrap().unwrap().failure.is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_start_that_fails_ends_the_process() {
    let (kernel, dir, address) = (machine(), tempfile::tempdir().unwrap(), address());
    let (settings, socket) = (managed(&kernel), dir.path().join("csi.sock"));
    // Any other pool costs its own volumes only.
    kernel.write_file(settings.data_dir.join("volumes"), b"precious").unwrap();
    let operation = OperationConfig { metrics_listen: Some(address), ..OperationConfig::default() };
    let (process, _trigger) = start(&kernel, &settings, &socket, operation);
    let ended = tokio::time::timeout(LONG, process).await.expect("it does not stay").unwrap();
    let line = ended.err().expect("it cannot start").to_string();
    assert!(line.contains("volumes is not a directory") && !socket.exists(), "{line}");
}

/// What can be measured before there is a driver is.
#[tokio::test(flavor = "multi_thread")]
async fn metrics_are_there_from_the_start() {
    let (kernel, dir, address) = (machine(), tempfile::tempdir().unwrap(), address());
    let (settings, socket) = (managed(&kernel), dir.path().join("csi.sock"));
    kernel.hold("make");
    let _let_go = LetGo(kernel.clone());
    let operation = OperationConfig { metrics_listen: Some(address), ..OperationConfig::default() };
    let (process, trigger) = start(&kernel, &settings, &socket, operation);
    until("the pool is being made", async || kernel.waiting() > 0).await;
    until("the socket is there", async || socket.exists()).await;
    let during = Samples::of(&get(address, "/metrics").await.body);
    assert_eq!(during.get("hostloop_ready"), 0.0);
    assert!(!during.0.keys().any(|key| key.starts_with("hostloop_pool_bytes")));
    kernel.release();
    until("it is ready", async || process.is_finished() || get(address, "/readyz").await.status == 200).await;
    let after = Samples::of(&get(address, "/metrics").await.body);
    assert_eq!(after.get("hostloop_ready"), 1.0);
    after.get("hostloop_pool_bytes{pool=\"copies\",kind=\"size\"}");
    trigger.pull();
    process.await.unwrap().unwrap();
}
