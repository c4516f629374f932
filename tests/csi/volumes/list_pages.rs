//! Lists that are longer than one answer of gRPC: a client with the usual limit of 4 MiB reads all of them.

use std::collections::BTreeSet;
use std::path::Path;

use hostloop::model::{Attachment, NodeKey, Snapshot, SnapshotId, Volume, VolumeId};
use hostloop::store::{Identity, Store};
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use tonic::Code;

use crate::harness::{DATA_DIR, NODE, Server, machine, settings};
use crate::requests::{Kind, Spec, snapshot};

/// Most entries of one page.
const MOST: usize = 2000;
/// As many as take a few pages, and a part of one.
const MANY: usize = 7_001;
/// What clients of gRPC take unless they ask for more.
const MESSAGE: usize = 4 << 20;

fn store(kernel: &FakeKernel) -> Store {
    let settings = settings();
    let identity = Identity { driver: settings.driver_name, node_id: settings.node_id };
    Store::open(kernel.os().files, Path::new(DATA_DIR), identity).unwrap()
}

/// A machine with so many volumes in its state file, changed by `change`.
fn with_volumes(count: usize, change: impl Fn(&mut Volume)) -> FakeKernel {
    let kernel = machine();
    let server = Server::start(&kernel, &settings());
    server.call(Spec::new(Kind::Directory).create("v0")).unwrap();
    server.stop();
    let store = store(&kernel);
    let first = store.volumes()[0].as_ref().clone();
    let key = NodeKey::of(NODE);
    for number in 0..count {
        let name = format!("v{number}");
        let mut volume = Volume { id: VolumeId::of_name(&key, &name), name, ..first.clone() };
        change(&mut volume);
        store.put(volume).unwrap();
    }
    kernel
}

/// Every page of a list, each by the token of the one before. Each has at most so many entries.
fn pages<T: prost::Message>(
    mut page: impl FnMut(String) -> T,
    open: impl Fn(&T) -> (Vec<String>, String),
) -> Vec<Vec<String>> {
    let (mut pages, mut token) = (Vec::new(), String::new());
    loop {
        let answer = page(token);
        assert!(answer.encoded_len() <= MESSAGE);
        let (ids, next) = open(&answer);
        assert!(ids.len() <= MOST && (next.is_empty() || !ids.is_empty()), "{} entries", ids.len());
        pages.push(ids);
        if next.is_empty() {
            return pages;
        }
        token = next;
    }
}

fn volumes(server: &Server, max_entries: i32) -> Vec<Vec<String>> {
    let page = |starting_token| server.call(csi::ListVolumesRequest { max_entries, starting_token }).unwrap();
    let id = |entry: &csi::list_volumes_response::Entry| entry.volume.as_ref().unwrap().volume_id.clone();
    pages(page, |answer| (answer.entries.iter().map(id).collect(), answer.next_token.clone()))
}

/// None missed, none twice.
#[track_caller]
fn whole(pages: &[Vec<String>], count: usize) {
    let all: Vec<&String> = pages.iter().flatten().collect();
    assert_eq!((all.len(), all.iter().collect::<BTreeSet<_>>().len()), (count, count));
}

#[test]
fn a_client_without_a_limit_reads_all_volumes() {
    let kernel = with_volumes(MANY, |_| {});
    let server = Server::start(&kernel, &settings());
    for max_entries in [0, 1 << 20] {
        let pages = volumes(&server, max_entries);
        whole(&pages, MANY);
        assert_eq!(pages.len(), MANY.div_ceil(MOST), "{max_entries}: pages are full");
    }
    // Not one of them has its data, and each says so.
    let page = |starting_token| {
        let request = csi::ControllerListVolumeHealthRequest { starting_token, ..Default::default() };
        server.call(request).unwrap()
    };
    let health = pages(page, |answer| {
        let ids = answer.entries.iter().map(|entry| entry.volume_id.clone()).collect();
        (ids, answer.next_token.clone())
    });
    whole(&health, MANY - 1);
}

/// With 20 long attachments each, a full page would be of more than 10 MiB.
#[test]
fn no_answer_is_too_large_whatever_the_entries() {
    let kernel = with_volumes(3000, |volume| {
        volume.attachments = (0..20)
            .map(|number| Attachment {
                node_id: format!("{number:0>250}"),
                read_only: false,
                capability: volume.capabilities[0].clone(),
            })
            .collect();
    });
    let server = Server::start(&kernel, &settings());
    for max_entries in [0, 1999, 1 << 20] {
        let pages = volumes(&server, max_entries);
        whole(&pages, 3000);
        assert!(pages.len() >= 4, "{} pages", pages.len());
    }
}

#[test]
fn snapshots_come_in_pages_too() {
    let kernel = machine();
    let server = Server::start(&kernel, &settings());
    let volume = server.call(Spec::new(Kind::Block).create("v")).unwrap().volume.unwrap().volume_id;
    server.call(snapshot("s0", &volume)).unwrap();
    server.stop();
    let state = store(&kernel);
    let first = state.snapshots()[0].as_ref().clone();
    for number in 0..MANY {
        let name = format!("s{number}");
        let id = SnapshotId::of_name(&NodeKey::of(NODE), &name);
        state.put_snapshot(Snapshot { id, name, ..first.clone() }).unwrap();
    }
    drop(state);
    let server = Server::start(&kernel, &settings());
    let page = |starting_token| {
        server.call(csi::ListSnapshotsRequest { starting_token, ..Default::default() }).unwrap()
    };
    let id =
        |entry: &csi::list_snapshots_response::Entry| entry.snapshot.as_ref().unwrap().snapshot_id.clone();
    let pages = pages(page, |answer| (answer.entries.iter().map(id).collect(), answer.next_token.clone()));
    whole(&pages, MANY);
}

/// All members of a group are in one answer.
#[test]
fn a_group_that_no_answer_could_hold_is_refused() {
    let server = Server::start(&machine(), &settings());
    let request = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: (0..4001).map(|number| format!("vol-{number}")).collect(),
        ..Default::default()
    };
    let status = server.call(request).unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert!(status.message().contains("4001 ids") && status.message().contains("4000"), "{status:?}");
}
