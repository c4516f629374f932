//! What one node may take from another one: only what a controller has permitted it.

use std::time::Duration;

use hostloop::cluster::permit::{expiry, sign};
use hostloop::cluster::tls::Tls;
use hostloop::model::{Grant, NodeKey, Permit, SnapshotId, VolumeId, VolumeSource};
use hostloop::selftest::client::Client;
use hostloop::service::{PERMIT, SOURCE_ADDRESS, SOURCE_NODE};
use hostloop::wire::peer::peer_client::PeerClient;
use hostloop::wire::{csi, peer};
use peer::open_source_request::Source;
use prost::Message;
use tonic::metadata::BinaryMetadataValue;
use tonic::transport::Channel;
use tonic::{Code, Request, Status};

use crate::harness::process::{Certificates, Processes};
use crate::harness::{id_on, volume};
use crate::pki::{Pki, controller, minutes};
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
        let hint = "has no permit";
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

/// What a controller permits b, with everything right.
fn permitted(snapshot: &csi::Snapshot) -> Grant {
    Grant {
        source_node: "a".to_owned(),
        target_node: "b".to_owned(),
        source: VolumeSource::Snapshot(snapshot.snapshot_id.parse().unwrap()),
        target: VolumeId::of_name(&NodeKey::of("b"), "copy"),
        expires: expiry(),
    }
}

/// Opens the snapshot for the volume of [`permitted`] with this permit.
async fn try_open(
    peer: &PeerClient<Channel>,
    snapshot: &csi::Snapshot,
    permit: &[u8],
) -> Result<peer::OpenSourceResponse, Status> {
    let source = Source::SnapshotId(snapshot.snapshot_id.clone());
    let request = peer::OpenSourceRequest { permit: permit.to_vec(), ..open(source, &id_on("b", "copy")) };
    peer.clone().open_source(request).await.map(tonic::Response::into_inner)
}

#[tokio::test]
async fn a_permit_is_good_for_what_it_says_and_nothing_else() {
    for certificates in BOTH {
        let processes = Processes::start(&["a", "b", "c"], certificates).await;
        let (made, snapshot) = sources(&processes).await;
        let before = processes.node("a").snapshots();
        let by = processes.pki.tls("another-controller", &controller());
        let b = processes.peer(&processes.tls("b"), "a").await;
        let right = permitted(&snapshot);
        let good = sign(&by, &right).unwrap();
        try_open(&b, &snapshot, good.as_bytes()).await.expect("any controller's is good");

        let other: SnapshotId = SnapshotId::of_name(&NodeKey::of("a"), "other");
        let elsewhere = VolumeId::of_name(&NodeKey::of("c"), "copy");
        let of_volume = VolumeSource::Volume(made.volume_id.parse().unwrap());
        for (grant, hint) in [
            (
                Grant { source_node: "c".to_owned(), ..right.clone() },
                "it is for reading on node \"c\", and this is \"a\"",
            ),
            (Grant { source: VolumeSource::Snapshot(other), ..right.clone() }, "and not for snapshot"),
            (Grant { source: of_volume, ..right.clone() }, "and not for snapshot"),
            (
                Grant { target: VolumeId::of_name(&NodeKey::of("b"), "x"), ..right.clone() },
                "it is for making volume",
            ),
            (Grant { target: elsewhere, ..right.clone() }, "is not one of node \"b\""),
            (Grant { expires: expiry() - 1000, ..right.clone() }, "it expired at"),
        ] {
            let permit = sign(&by, &grant).unwrap();
            denied(try_open(&b, &snapshot, permit.as_bytes()).await, hint);
        }
        // What it lets be read it lets nobody read for something else.
        let handle = |id: &str| id.to_owned();
        let of_other = peer::PullBlocksRequest {
            handle: handle(SnapshotId::of_name(&NodeKey::of("a"), "other").as_str()),
            permit: good.as_bytes().to_vec(),
            ..Default::default()
        };
        denied(b.clone().pull_blocks(of_other).await, "is another one");
        let close = peer::CloseSourceRequest {
            handle: SnapshotId::of_name(&NodeKey::of("a"), "other").to_string(),
            permit: good.as_bytes().to_vec(),
        };
        denied(b.clone().close_source(close).await, "is another one");

        // Another node that has got hold of it: one certificate for all names nobody.
        let c = processes.peer(&processes.tls("c"), "a").await;
        let replayed = try_open(&c, &snapshot, good.as_bytes()).await;
        match certificates {
            Certificates::Named => denied(replayed, "the caller's certificate belongs to another node"),
            Certificates::Shared => drop(replayed.expect("it is as good as b")),
        }
        assert_eq!(processes.node("a").snapshots(), before);
    }
}

/// A permit with one of its parts exchanged.
fn forged(permit: &Permit, change: impl Fn(&mut peer::SignedPermit)) -> Vec<u8> {
    let mut signed = peer::SignedPermit::decode(permit.as_bytes()).unwrap();
    change(&mut signed);
    signed.encode_to_vec()
}

#[tokio::test]
async fn nobody_but_a_controller_makes_a_permit() {
    for certificates in BOTH {
        let processes = Processes::start(&["a", "b"], certificates).await;
        let (_, snapshot) = sources(&processes).await;
        let b = processes.peer(&processes.tls("b"), "a").await;
        let right = permitted(&snapshot);
        let by = |tls: &Tls| sign(tls, &right).unwrap();
        let good = by(&processes.pki.tls("another-controller", &controller()));
        try_open(&b, &snapshot, good.as_bytes()).await.expect("as it is");

        let strangers = Pki::new();
        let of_node = by(&processes.tls("b"));
        denied(try_open(&b, &snapshot, of_node.as_bytes()).await, "is of a node and not of a controller");
        let of_stranger = by(&strangers.tls("stranger", &controller()));
        denied(try_open(&b, &snapshot, of_stranger.as_bytes()).await, "signed by no CA");
        let mut foreign = controller();
        foreign.driver = "other.csi.dev".to_owned();
        let of_other_driver = by(&processes.pki.tls("other-driver", &foreign));
        denied(
            try_open(&b, &snapshot, of_other_driver.as_bytes()).await,
            "is of the driver \"other.csi.dev\"",
        );
        // One that was good a moment ago.
        let ends = processes.pki.issue("ends", &controller(), {
            let now = minutes(-5, 0);
            hostloop::cluster::tls::certificate::Validity {
                until: now.until + time::Duration::seconds(2),
                ..now
            }
        });
        let ended = by(&Tls::open(&ends, &controller().driver, controller().role).unwrap());
        tokio::time::sleep(Duration::from_secs(4)).await;
        denied(try_open(&b, &snapshot, ended.as_bytes()).await, "the certificate expired at");

        // Somebody else's signature below other words, the other way round, and what is none at all.
        let signature = peer::SignedPermit::decode(of_node.as_bytes()).unwrap().signature;
        let longer = Grant { expires: right.expires + 1, ..right.clone() };
        let longer = sign(&processes.tls("b"), &longer).unwrap();
        let longer = peer::SignedPermit::decode(longer.as_bytes()).unwrap().permit;
        let hint = "is not that of the certificate's key";
        denied(try_open(&b, &snapshot, &forged(&good, |p| p.signature.clone_from(&signature))).await, hint);
        denied(try_open(&b, &snapshot, &forged(&good, |p| p.permit.clone_from(&longer))).await, hint);
        denied(try_open(&b, &snapshot, &forged(&good, |p| p.signature.clear())).await, hint);
        denied(try_open(&b, &snapshot, &forged(&good, |p| p.scheme = 0x0807)).await, hint);
        denied(try_open(&b, &snapshot, &forged(&good, |p| p.scheme = 0)).await, hint);
        denied(try_open(&b, &snapshot, &forged(&good, |p| p.scheme = 1 << 16)).await, "cannot be read");
        denied(try_open(&b, &snapshot, &forged(&good, |p| p.certificates.clear())).await, "no certificate");
        let noise = forged(&good, |p| p.certificates = vec![b"noise".to_vec(); 100]);
        denied(try_open(&b, &snapshot, &noise).await, "a controller has not signed it");
        let large = forged(&good, |p| p.certificates.push(vec![0; Permit::LONGEST]));
        denied(try_open(&b, &snapshot, &large).await, "more than 8192 bytes");
        denied(try_open(&b, &snapshot, b"\xff\xff").await, "cannot be read");
        for at in 0..good.as_bytes().len() {
            let mut bytes = good.as_bytes().to_vec();
            bytes[at] ^= 1;
            let _ = try_open(&b, &snapshot, &bytes).await.expect_err("one bit is another one");
        }
    }
}

/// What a controller sends to a node that is to pull.
async fn ordered(
    processes: &Processes,
    request: csi::CreateVolumeRequest,
    permit: Option<&[u8]>,
) -> Result<csi::Volume, Status> {
    let by = processes.pki.tls("ordering", &controller());
    let connect = hostloop::app::connector(by);
    let channel = connect(&processes.node("b").address, NodeKey::of("b").as_str()).await.unwrap();
    let mut request = Request::new(request);
    request.metadata_mut().insert(SOURCE_NODE, "a".parse().unwrap());
    request.metadata_mut().insert(SOURCE_ADDRESS, processes.node("a").address.parse().unwrap());
    if let Some(permit) = permit {
        request.metadata_mut().insert_bin(PERMIT, BinaryMetadataValue::from_bytes(permit));
    }
    let answer = Client::on(channel).send(request).await?;
    Ok(answer.volume.expect("a volume"))
}

/// The longest one passes as a header.
#[tokio::test]
async fn an_order_without_a_permit_is_refused() {
    let processes = Processes::start(&["a", "b"], Certificates::Named).await;
    let (_, snapshot) = sources(&processes).await;
    let request = MadeFrom::Snapshot(snapshot.snapshot_id.clone()).source_of(volume("copy", SIZE, &["b"]));
    let status = ordered(&processes, request.clone(), None).await.expect_err("no permit");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("no permit of a controller"), "{}", status.message());
    let longest = vec![0xff; Permit::LONGEST];
    let status = ordered(&processes, request.clone(), Some(&longest)).await.expect_err("noise");
    assert_eq!(status.code(), Code::FailedPrecondition, "{status:?}");
    assert!(status.message().contains("the permit is refused: it cannot be read"), "{}", status.message());
    let good = sign(&processes.pki.tls("by", &controller()), &permitted(&snapshot)).unwrap();
    ordered(&processes, request, Some(good.as_bytes())).await.expect("with a permit it is made");
}
