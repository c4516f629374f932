//! What `hostloop volumes` waits for: 1,000 volumes on ten nodes, all of which answer, then one that is down, then one that hangs.
//! The nodes are whole drivers on fake kernels, over connections in memory; what the API server adds is measured on a cluster.
//!
//! `cargo bench --bench inspect`; needs no root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    dead_code,
    unused_imports,
    reason = "a measurement stops at the first surprise, and needs a part of the cluster of the tests"
)]

use hostloop_test_support::{orders, pki, requests, wait};

#[path = "../../tests/cluster/harness/mod.rs"]
mod harness;

use std::time::{Duration, Instant};

use hostloop::cluster::details::{AskedNode, Source};

use harness::{Cluster, Fault, volume};

const NODES: usize = 10;
const VOLUMES: usize = 1000;
const TIMES: usize = 9;

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(measure());
}

async fn measure() {
    let ids: Vec<String> = (0..NODES).map(|number| format!("node-{number}")).collect();
    let names: Vec<&str> = ids.iter().map(String::as_str).collect();
    let mut cluster = Cluster::start(&names).await;
    for number in 0..VOLUMES {
        let request = volume(&format!("v-{number}"), requests::MIB, &[names[number % NODES]]);
        cluster.controller.create(request).await.expect("a volume");
    }
    print("all answer", &cluster, VOLUMES).await;
    cluster.nodes[0].stop().await;
    print("one is down", &cluster, VOLUMES - VOLUMES / NODES).await;
    cluster.nodes[1].fault("ListDetails", Fault::Swallow);
    print("another one hangs", &cluster, VOLUMES - 2 * VOLUMES / NODES).await;
}

/// Asks some times, and prints the first, the median and the longest time.
async fn print(what: &str, cluster: &Cluster, wanted: usize) {
    let mut times = Vec::new();
    for _ in 0..TIMES {
        let source = Source::on(cluster.controller.channel.clone());
        let begun = Instant::now();
        let asked = source.ask_all().await.expect("the nodes");
        times.push(begun.elapsed());
        assert_eq!(volumes(&asked), wanted, "{what}");
    }
    let first = times[0];
    times.sort();
    let ms = |time: Duration| time.as_secs_f64() * 1000.0;
    println!(
        "{what}: first {:.0} ms, median {:.0} ms, longest {:.0} ms for {wanted} volumes",
        ms(first),
        ms(times[TIMES / 2]),
        ms(times[TIMES - 1])
    );
}

fn volumes(asked: &[AskedNode]) -> usize {
    asked.iter().filter_map(|node| node.answer.as_ref().ok()).map(|answer| answer.volumes.len()).sum()
}
