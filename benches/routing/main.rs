//! What a controller costs: the time that it adds to a call, the time of a whole list, and memory, before 10, 100 and
//! 1000 nodes that answer from memory, all in this process.
//!
//! `cargo bench --bench routing`; needs no root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a measurement stops at the first surprise"
)]

mod node;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use hostloop::app::{self, Outside};
use hostloop::cluster::peers::Fixed;
use hostloop::cluster::permit::Signer;
use hostloop::config::{Check, ControllerSettings, Discovery, OperationConfig, ServerConfig};
use hostloop::model::{NodeKey, Settings, VolumeId};
use hostloop::selftest::client::{self, Client};
use hostloop::selftest::requests;
use hostloop::server::{self, Endpoint, Listener, Stop};
use hostloop::shutdown::{Shutdown, Trigger};
use hostloop::wire::csi;

use node::{DRIVER, Nodes};

/// Volumes on each node.
const VOLUMES: usize = 10;
const CALLS: usize = 2000;
const WARM_UPS: usize = 200;
const LISTS: usize = 5;
const CREATES: usize = 20;

fn main() {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "nodes",
        "direct p50 ms",
        "routed p50 ms",
        "added ms",
        "routed p99 ms",
        "create, any node ms",
        "list ms",
        "list us/volume",
        "RSS MiB",
    ]);
    for count in [10, 100, 1000] {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
        table.add_row(runtime.expect("a runtime").block_on(measure(count)));
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    println!("{table}");
}

/// One row: nodes, and what they cost.
async fn measure(count: usize) -> Vec<String> {
    let before = resident();
    let dir = tempfile::tempdir().expect("a directory");
    let ids: Vec<String> = (0..count).map(|n| format!("node-{n}")).collect();
    let nodes = Nodes::start(&ids, VOLUMES);
    let (trigger, routed) = controller(&dir.path().join("controller.sock"), &ids, nodes.clone()).await;
    let direct = alone(&dir.path().join("node.sock"), &nodes, &ids[0]).await;

    // Every node is connected to.
    routed.call(csi::ListVolumesRequest::default()).await.expect("a list");
    let direct_times = gets(&direct, &ids[..1]).await;
    let routed_times = gets(&routed, &ids).await;

    let mut lists = Vec::new();
    for _ in 0..LISTS {
        let begun = Instant::now();
        let request = csi::ListVolumesRequest::default();
        let page = routed.call(request).await.expect("a list");
        lists.push(begun.elapsed());
        assert_eq!((page.entries.len(), page.next_token.as_str()), (count * VOLUMES, ""));
    }
    let creates = creates(&routed, &ids).await;
    let memory = resident() - before;
    trigger.pull();
    let (list, added) = (at(lists, 50), at(routed_times.clone(), 50) - at(direct_times.clone(), 50));
    let per_volume = list * 1000.0 / (count * VOLUMES) as f64;
    let numbers = [
        at(direct_times, 50),
        at(routed_times.clone(), 50),
        added,
        at(routed_times, 99),
        at(creates, 50),
        list,
        per_volume,
        memory,
    ];
    std::iter::once(count.to_string()).chain(numbers.map(|number| format!("{number:.3}"))).collect()
}

/// ControllerGetVolume of volumes on one node after the other.
async fn gets(client: &Client, ids: &[String]) -> Vec<Duration> {
    let mut times = Vec::new();
    for call in 0..WARM_UPS + CALLS {
        let node = NodeKey::of(&ids[call % ids.len()]);
        let volume_id = VolumeId::of_name(&node, &(call % VOLUMES).to_string()).to_string();
        let begun = Instant::now();
        client.call(csi::ControllerGetVolumeRequest { volume_id }).await.expect("a volume");
        times.push(begun.elapsed());
    }
    times.split_off(WARM_UPS)
}

/// CreateVolume as external-provisioner sends it without --strict-topology: every node will do, one is preferred, and
/// all are asked whether they have the volume already.
async fn creates(client: &Client, ids: &[String]) -> Vec<Duration> {
    let term =
        |id: &String| csi::Topology { segments: [(Settings::TOPOLOGY_KEY.to_owned(), id.clone())].into() };
    let terms: Vec<csi::Topology> = ids.iter().map(term).collect();
    let mut times = Vec::new();
    for call in 0..CREATES {
        let request = csi::CreateVolumeRequest {
            name: format!("new-{call}"),
            volume_capabilities: vec![requests::writer(Check::Block)],
            accessibility_requirements: Some(csi::TopologyRequirement {
                requisite: terms.clone(),
                preferred: terms.clone(),
            }),
            ..Default::default()
        };
        let begun = Instant::now();
        client.call(request).await.expect("a volume");
        times.push(begun.elapsed());
    }
    times
}

/// A controller, and a connection to its socket.
async fn controller(socket: &Path, ids: &[String], nodes: Nodes) -> (Trigger, Client) {
    let settings = ControllerSettings {
        moves: None,
        move_limits: Default::default(),
        events: None,
        driver_name: DRIVER.to_owned(),
        attach: false,
        tls_dir: "/nowhere".into(),
        inspect_listen: None,
        inspect_fix: false,
        discovery: Discovery::Static(Vec::new()),
        forget_nodes: Default::default(),
    };
    let server = ServerConfig {
        endpoint: Endpoint::Unix(socket.to_owned()),
        socket_mode: 0o600,
        shutdown_timeout: Duration::from_secs(1),
    };
    let peers = Fixed::new(ids.iter().map(|id| (id.clone(), id.clone())));
    let (trigger, shutdown) = Shutdown::new();
    let outside =
        Outside { server, operation: OperationConfig::default(), shutdown, certificate: None, api: None };
    let signer: Signer = Arc::new(|_| Err("nothing is copied here".to_owned()));
    tokio::spawn(async move {
        app::run_controller(settings, outside, &peers, Box::new(nodes), signer).await.map(drop)
    });
    (trigger, connect(socket).await)
}

/// One of the nodes without a controller before it, on a socket of its own: the same server, and no routing.
async fn alone(socket: &Path, nodes: &Nodes, id: &str) -> Client {
    let listener = Listener::bind(&Endpoint::Unix(socket.to_owned()), 0o600).await.expect("a socket");
    let never = || Box::pin(std::future::pending());
    let stop = Stop { requested: never(), forced: never(), timeout: Duration::ZERO };
    tokio::spawn(server::serve(listener, nodes.routes(id), stop, None));
    connect(socket).await
}

async fn connect(socket: &Path) -> Client {
    let endpoint = client::endpoint(socket).expect("an address");
    loop {
        if let Ok(channel) = endpoint.connect().await {
            return Client::on(channel).accepting(64 << 20);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The value that `percent` of all are below, in milliseconds.
fn at(mut times: Vec<Duration>, percent: usize) -> f64 {
    times.sort_unstable();
    times[(times.len() - 1) * percent / 100].as_secs_f64() * 1000.0
}

/// Resident memory of this process in MiB.
fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("/proc");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.split_whitespace().next().expect("a number").parse::<f64>().expect("a number") / 1024.0
}
