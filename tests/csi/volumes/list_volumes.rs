//! ListVolumes: pages and tokens.

use std::collections::BTreeSet;

use hostloop::wire::csi;
use tonic::Code;

use crate::life::*;
use crate::support::*;

fn page(token: &str, max_entries: i32) -> csi::ListVolumesRequest {
    csi::ListVolumesRequest { max_entries, starting_token: token.to_owned() }
}

fn ids(reply: &csi::ListVolumesResponse) -> Vec<String> {
    reply.entries.iter().map(|entry| entry.volume.as_ref().expect("a volume").volume_id.clone()).collect()
}

/// Makes volumes, several at a time, and gives their ids.
fn fill(rig: &Rig, count: usize) -> BTreeSet<String> {
    let requests = (0..count)
        .map(|n| create_with(&format!("v{n}"), &[("backend", "directory"), ("pool", "directories")]))
        .collect();
    let made = rig.at_once(requests).into_iter().map(|reply| reply.expect("a volume"));
    made.map(|reply| reply.volume.expect("a volume").volume_id).collect()
}

#[test]
fn a_thousand_volumes_come_in_pages_each_once() {
    let rig = Rig::with(&["--overcommit", "1000"]);
    let all = fill(&rig, 1000);
    for max in [1000, 999, 333, 7] {
        let (mut seen, mut token, mut tokens) = (Vec::new(), String::new(), BTreeSet::new());
        loop {
            let reply = rig.ok(page(&token, max));
            assert!(reply.entries.len() <= max as usize);
            seen.extend(ids(&reply));
            if reply.next_token.is_empty() {
                break;
            }
            assert_eq!(reply.entries.len(), max as usize, "a page before the last is full");
            assert!(reply.next_token.len() <= 128 && tokens.insert(reply.next_token.clone()), "progress");
            token = reply.next_token;
        }
        assert_eq!(seen.len(), all.len(), "{max}");
        assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), all, "{max}");
    }
    let whole = rig.ok(page("", 0));
    assert_eq!((whole.entries.len(), whole.next_token.as_str()), (1000, ""));
}

#[test]
fn the_last_page_has_no_token() {
    let rig = Rig::new();
    let empty = rig.ok(page("", 5));
    assert_eq!((empty.entries.len(), empty.next_token.as_str()), (0, ""));
    fill(&rig, 5);
    assert_eq!(rig.ok(page("", 5)).next_token, "");
    assert_eq!(rig.ok(page("", i32::MAX)).entries.len(), 5);
}

#[test]
fn tokens_that_were_not_given_out_are_aborted() {
    let rig = Rig::new();
    fill(&rig, 3);
    let token = rig.ok(page("", 1)).next_token;
    let (mut forged, id) = (token.clone(), ids(&rig.ok(page("", 1)))[0].clone());
    forged.replace_range(forged.len() - 1.., if forged.ends_with('0') { "1" } else { "0" });
    for bad in
        ["0", "-1", "9999", "4294967295", "invalid-token", "é", "\n", " ", &forged, &id, &format!("{token} ")]
    {
        rig.fails(Code::Aborted, page(bad, 0));
        rig.fails(Code::Aborted, page(bad, 2));
    }
    rig.fails(Code::InvalidArgument, page("", -1));
    rig.fails(Code::InvalidArgument, page("", i32::MIN));
    rig.fails(Code::InvalidArgument, page(&"t".repeat(129), 0));
    assert_eq!(rig.ok(page(&token, 0)).entries.len(), 2, "the server lives");
}

#[test]
fn volumes_deleted_between_pages_break_no_token() {
    let mut rig = Rig::new();
    let all = fill(&rig, 9);
    let first = rig.ok(page("", 3));
    let mut seen = ids(&first);
    for id in &seen {
        rig.ok(csi::DeleteVolumeRequest { volume_id: id.clone(), ..Default::default() });
    }
    let unseen: Vec<String> = all.iter().filter(|id| !seen.contains(id)).cloned().collect();
    rig.ok(csi::DeleteVolumeRequest { volume_id: unseen[1].clone(), ..Default::default() });
    rig.restart();
    let rest = rig.ok(page(&first.next_token, 0));
    assert_eq!(rest.next_token, "");
    seen.extend(ids(&rest));
    let want: BTreeSet<String> = all.into_iter().filter(|id| *id != unseen[1]).collect();
    assert_eq!(seen.len(), want.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), want);
}
