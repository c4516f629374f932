//! More long work than there are threads: a node's own calls do not wait for it.

use std::time::{Duration, Instant};

use hostloop::config::OperationConfig;
use hostloop::model::Limits;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use crate::harness::{Server, machine, settings};
use crate::requests::*;
use crate::scrape::{address, get, scrape};
use crate::wait::until;

const LONG: Duration = Duration::from_secs(60);
/// More than all threads of the runtime.
const RESTORES: usize = 600;

/// Asks for more restores than can run, and waits until as many run as can.
async fn begin_restores(
    server: &Server,
    kernel: &FakeKernel,
    source: &MadeFrom,
) -> JoinSet<Result<csi::CreateVolumeResponse, Status>> {
    let mut restores = JoinSet::new();
    for number in 0..RESTORES {
        let client = server.client.clone();
        let request = source.source_of(Spec::new(Kind::Block).create(&format!("restored-{number}")));
        restores.spawn(async move { client.call(request).await });
    }
    until("the copies begin", async || kernel.waiting() >= Limits::default().copies).await;
    // The others come as far as they can.
    tokio::time::sleep(Duration::from_secs(2)).await;
    restores
}

/// Restores whose callers gave up, and which cannot come further.
#[test]
fn abandoned_restores_leave_threads_for_the_node() {
    let (kernel, settings, address) = (machine(), settings(), address());
    let operation = OperationConfig { metrics_listen: Some(address), ..OperationConfig::default() };
    let server = Server::try_start_with(kernel.os(), &settings, operation).unwrap();
    let block = Spec::new(Kind::Block);
    let id = server.call(block.create("a")).unwrap().volume.unwrap().volume_id;
    let up = || {
        server.call(stage(&id, block.capability())).unwrap();
        server.call(publish(&id, block.capability(), "pod")).unwrap();
    };
    up();
    kernel.write_file(target_path("pod"), &[7; 100_000]).unwrap();
    server.call(unpublish(&id, "pod")).unwrap();
    server.call(unstage(&id)).unwrap();
    let snapshot_id = server.call(snapshot("s", &id)).unwrap().snapshot.unwrap().snapshot_id;
    let source = MadeFrom::Snapshot(snapshot_id);
    up();

    kernel.hold("copy_range");
    let restores = server.block_on(begin_restores(&server, &kernel, &source));
    let meanwhile = async {
        let client = server.client.clone();
        let request = csi::NodeGetVolumeStatsRequest {
            volume_id: id.clone(),
            volume_path: target_path("pod"),
            ..Default::default()
        };
        client.call(request).await.unwrap();
        client.call(unpublish(&id, "pod")).await.unwrap();
        client.call(publish(&id, block.capability(), "pod")).await.unwrap();
        let request = Spec::new(Kind::Directory).create("other");
        let other = client.call(request).await.unwrap().volume.unwrap().volume_id;
        client.call(delete(&other)).await.unwrap();
        get(address, "/metrics").await
    };
    let metrics = server.block_on(async { tokio::time::timeout(LONG, meanwhile).await });
    let metrics = metrics.expect("a node's own calls do not wait for copies").body;
    assert_eq!(kernel.waiting(), Limits::default().copies, "no more run at a time");
    for line in ["hostloop_copies_limit 16.0", "hostloop_copies_running 16.0"] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
    drop(restores);
    kernel.release();
    // Whoever comes again gets a volume, or hears that the copy runs.
    let request = source.source_of(block.create("restored-0"));
    let started = Instant::now();
    loop {
        match server.call(request.clone()) {
            Ok(_) => break,
            Err(status) => assert_eq!(status.code(), Code::Aborted, "{status}"),
        }
        assert!(started.elapsed() < LONG, "it never ends");
    }
    assert!(scrape(&server, address).get("hostloop_copies_refused_total") > 0.0);
    server.stop();
}
