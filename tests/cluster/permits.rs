//! What one node may take from another one: only what a controller has permitted it.

use hostloop::wire::{csi, peer};
use peer::open_source_request::Source;
use tonic::{Code, Status};

use crate::harness::process::{Certificates, Processes};
use crate::harness::{id_on, volume};
use crate::requests::{MIB, MadeFrom};

const SIZE: i64 = 512 * MIB;
const BOTH: [Certificates; 2] = [Certificates::Named, Certificates::Shared];

/// A volume on a with data, and a snapshot of it.
async fn sources(processes: &Processes) -> (csi::Volume, csi::Snapshot) {
    let made = processes.create(volume("source", SIZE, &["a"])).await.unwrap();
    let node = processes.node("a");
    node.kernel.write(node.image(&made.volume_id), 0, b"secret").unwrap();
    let snapshot = processes.snapshot("s", &made.volume_id).await;
    (made, snapshot)
}

fn open(source: Source, target: &str) -> peer::OpenSourceRequest {
    peer::OpenSourceRequest {
        source: Some(source),
        target_volume_id: target.to_owned(),
        ..Default::default()
    }
}

#[track_caller]
fn denied<T: std::fmt::Debug>(answer: Result<T, Status>, hint: &str) {
    let status = answer.expect_err("it is denied");
    assert_eq!(status.code(), Code::PermissionDenied, "{status:?}");
    assert!(status.message().contains(hint), "{}", status.message());
}

/// Who breaks into b has its certificate, and knows ids of a.
#[tokio::test]
async fn a_nodes_certificate_alone_reads_and_cuts_nothing() {
    for certificates in BOTH {
        let processes = Processes::start(&["a", "b"], certificates).await;
        let (made, snapshot) = sources(&processes).await;
        let before = processes.node("a").snapshots();
        let mut peer = processes.peer(&processes.tls("b"), "a").await;
        let target = id_on("b", "invented");
        let hint = "without a permit";
        denied(peer.open_source(open(Source::SnapshotId(snapshot.snapshot_id.clone()), &target)).await, hint);
        denied(peer.open_source(open(Source::VolumeId(made.volume_id.clone()), &target)).await, hint);
        let created = snapshot.creation_time.unwrap();
        let read = peer::PullBlocksRequest {
            handle: snapshot.snapshot_id.clone(),
            created_ns: created.seconds as u64 * 1_000_000_000 + created.nanos as u64,
            ..Default::default()
        };
        denied(peer.pull_blocks(read.clone()).await, hint);
        let tree = peer::PullTreeRequest {
            handle: read.handle.clone(),
            created_ns: read.created_ns,
            ..Default::default()
        };
        denied(peer.pull_tree(tree).await, hint);
        let close = peer::CloseSourceRequest { handle: read.handle, ..Default::default() };
        denied(peer.close_source(close).await, hint);
        assert_eq!(processes.node("a").snapshots(), before, "nothing was cut");
    }
}

/// What the controller was asked for goes on as ever.
#[tokio::test]
async fn a_copy_that_the_controller_orders_is_made() {
    for certificates in BOTH {
        let processes = Processes::start(&["a", "b"], certificates).await;
        let (made, snapshot) = sources(&processes).await;
        let before = processes.node("a").snapshots();
        let sources = [MadeFrom::Volume(made.volume_id), MadeFrom::Snapshot(snapshot.snapshot_id)];
        for (number, source) in sources.iter().enumerate() {
            let request = source.source_of(volume(&format!("copy-{number}"), SIZE, &["b"]));
            let copy = processes.create(request).await.unwrap();
            let node = processes.node("b");
            let data = node.kernel.read(node.image(&copy.volume_id), 0, 6).unwrap();
            assert_eq!(data, b"secret", "{:?}", processes.certificates());
        }
        assert_eq!(processes.node("a").snapshots(), before, "what was cut is gone");
    }
}
