//! ListSnapshots: filters, pages and tokens.

use std::collections::BTreeSet;

use hostloop::wire::csi;
use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

fn list(source: &str, id: &str) -> csi::ListSnapshotsRequest {
    csi::ListSnapshotsRequest {
        source_volume_id: source.to_owned(),
        snapshot_id: id.to_owned(),
        ..Default::default()
    }
}

fn page(token: &str, max_entries: i32) -> csi::ListSnapshotsRequest {
    csi::ListSnapshotsRequest { max_entries, starting_token: token.to_owned(), ..Default::default() }
}

fn ids(reply: &csi::ListSnapshotsResponse) -> Vec<String> {
    reply
        .entries
        .iter()
        .map(|entry| entry.snapshot.as_ref().expect("a snapshot").snapshot_id.clone())
        .collect()
}

/// Two volumes with snapshots, a group of both, and the ids of all.
fn fill(rig: &Rig, count: usize) -> (Vec<Vol>, BTreeSet<String>) {
    let directory = |name| rig.made(create_with(name, &[("backend", "directory"), ("pool", "directories")]));
    let vols = vec![directory("one"), directory("two")];
    for n in 0..count {
        rig.cut(&format!("s{n}"), &vols[n % 2]);
    }
    rig.ok(group("g", &[&vols[0].id, &vols[1].id]));
    let all = rig.snapshots().into_iter().map(|cut| cut.snapshot_id).collect();
    (vols, all)
}

#[test]
fn filters_count_together() {
    let rig = Rig::new();
    assert_eq!(ids(&rig.ok(list("", ""))), Vec::<String>::new());
    let (vols, all) = fill(&rig, 7);
    assert_eq!(all.len(), 9);
    let of_one = rig.ok(list(&vols[0].id, ""));
    let of_two = rig.ok(list(&vols[1].id, ""));
    assert_eq!((of_one.entries.len(), of_two.entries.len()), (5, 4), "several of each, members among them");
    for entry in of_one.entries {
        let cut = entry.snapshot.expect("a snapshot");
        assert_eq!(cut.source_volume_id, vols[0].id);
        let found = rig.ok(list("", &cut.snapshot_id)).entries;
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].snapshot.as_ref(), Some(&cut));
        assert_eq!(ids(&rig.ok(list(&vols[0].id, &cut.snapshot_id))), std::slice::from_ref(&cut.snapshot_id));
        assert!(rig.ok(list(&vols[1].id, &cut.snapshot_id)).entries.is_empty(), "of another volume");
    }
    for (source, id) in [("none", ""), ("", "none"), ("../..", ""), ("", "../.."), ("", &vols[0].id)] {
        assert!(rig.ok(list(source, id)).entries.is_empty(), "{source} {id}");
    }
    rig.ok(vols[0].delete_request());
    assert_eq!(rig.ok(list(&vols[0].id, "")).entries.len(), 5, "its source is gone");
}

#[test]
fn pages_miss_none_and_have_none_twice() {
    let rig = Rig::new();
    let (vols, all) = fill(&rig, 40);
    for (source, expected) in [("", all.len()), (vols[0].id.as_str(), 21)] {
        for max in [1, 4, 21, 41, 42, 1000] {
            let (mut seen, mut token, mut tokens) = (Vec::new(), String::new(), BTreeSet::new());
            loop {
                let request =
                    csi::ListSnapshotsRequest { source_volume_id: source.to_owned(), ..page(&token, max) };
                let reply = rig.ok(request);
                assert!(reply.entries.len() <= max as usize && !reply.entries.is_empty());
                seen.extend(ids(&reply));
                if reply.next_token.is_empty() {
                    break;
                }
                assert_eq!(reply.entries.len(), max as usize, "a page before the last is full");
                assert!(reply.next_token.len() <= 128 && tokens.insert(reply.next_token.clone()), "progress");
                token = reply.next_token;
            }
            assert_eq!(seen.len(), expected, "{max}");
            assert_eq!(seen.iter().collect::<BTreeSet<_>>().len(), expected, "{max}");
        }
    }
}

#[test]
fn a_token_outlives_its_snapshot_and_the_process() {
    let mut rig = Rig::new();
    let (vols, all) = fill(&rig, 10);
    let first = rig.ok(page("", 5));
    let last = ids(&first).pop().expect("an entry");
    // Of a group member only the group could be deleted.
    if rig.call(delete_snapshot(&last)).is_err() {
        let id = rig.ok(get_snapshot(&last)).snapshot.expect("a snapshot").group_snapshot_id;
        rig.ok(delete_group(&id, &[]));
    }
    rig.cut("new", &vols[0]);
    rig.restart();
    let second = rig.ok(page(&first.next_token, 100));
    let there: BTreeSet<String> = rig.snapshots().into_iter().map(|cut| cut.snapshot_id).collect();
    let seen: BTreeSet<String> = ids(&first).into_iter().chain(ids(&second)).collect();
    assert!(all.intersection(&there).all(|id| seen.contains(id)), "none that stays is missed");
    assert!(ids(&second).iter().all(|id| !ids(&first).contains(id)), "none comes twice");
}

#[test]
fn tokens_that_were_not_given_out_are_aborted() {
    let rig = Rig::new();
    let (_, all) = fill(&rig, 4);
    let of_snapshots = rig.ok(page("", 2)).next_token;
    let of_volumes = rig.ok(csi::ListVolumesRequest { max_entries: 1, ..Default::default() }).next_token;
    let id = all.first().expect("a snapshot");
    let mut flipped = of_snapshots.clone().into_bytes();
    *flipped.last_mut().expect("a digit") ^= 1;
    let flipped = String::from_utf8(flipped).expect("text");
    for token in ["0", "1", "-1", "4294967295", "x", id, &format!("{id}.00000000"), &of_volumes, &flipped] {
        let message = rig.fails(Code::Aborted, page(token, 0));
        assert!(message.contains("starting_token"), "{message}");
    }
    let foreign = csi::ListVolumesRequest { starting_token: of_snapshots, max_entries: 0 };
    rig.fails(Code::Aborted, foreign);
    rig.fails(Code::InvalidArgument, page("", -1));
    rig.fails(Code::InvalidArgument, page("", i32::MIN));
    assert_eq!(rig.ok(page("", i32::MAX)).entries.len(), all.len());
}
