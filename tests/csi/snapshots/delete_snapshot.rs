//! DeleteSnapshot.

use hostloop::store::Durability;
use hostloop::wire::csi;
use tonic::Code;

use crate::cuts::*;
use crate::harness::DIRECTORIES_DIR;
use crate::life::*;
use crate::support::*;

#[test]
fn an_unknown_snapshot_answers_ok() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let cut = rig.cut("s", &vol);
    for id in ["none", "../../volumes", "snap-", vol.id.as_str(), &cut.snapshot_id.to_uppercase()] {
        rig.ok(delete_snapshot(id));
    }
    let message = rig.fails(Code::InvalidArgument, delete_snapshot(""));
    assert!(message.contains("snapshot_id"), "{message}");
    assert_eq!(rig.snapshots(), [cut]);
    assert!(rig.kernel.exists(vol.image()));
}

#[test]
fn a_deleted_snapshot_frees_its_files_and_name() {
    let mut rig = both_pools();
    for request in kinds() {
        let vol = rig.made(request);
        let cut = rig.cut("s", &vol);
        for _ in 0..2 {
            rig.ok(delete_snapshot(&cut.snapshot_id));
            rig.assert_no_snapshot();
        }
        rig.fails(Code::NotFound, get_snapshot(&cut.snapshot_id));
        let again = rig.cut("s", &vol);
        assert_eq!(again.source_volume_id, vol.id);
        rig.ok(delete_snapshot(&again.snapshot_id));
    }
    rig.power_cut();
    rig.assert_no_snapshot();
}

/// The state file is older than the snapshots, and no record lies beside their data.
#[test]
fn a_snapshot_without_its_record_stays() {
    let mut rig = both_pools();
    let cut = |request| {
        let vol = rig.made(request);
        rig.cut(&vol.id, &vol)
    };
    let cuts: Vec<csi::Snapshot> = kinds().into_iter().map(cut).collect();
    rig.restore_state(|store| {
        cuts.iter().for_each(|cut| {
            store
                .delete_snapshot(&cut.snapshot_id.parse().expect("an id"), Durability::Synced)
                .expect("delete");
        });
    });
    for cut in &cuts {
        for pool in [DATA, FAST, "/pools/fast-directories", DIRECTORIES_DIR] {
            rig.lose_record(&format!("{pool}/snapshots/{}", cut.snapshot_id));
        }
        let why = rig.fails(Code::FailedPrecondition, delete_snapshot(&cut.snapshot_id));
        let path =
            why.split_whitespace().find(|word| word.ends_with(&cut.snapshot_id) && word.starts_with('/'));
        let path = path.unwrap_or_else(|| panic!("{why}"));
        assert!(rig.kernel.exists(path), "{why}");
        // The administrator does what the message says.
        rig.kernel.spawn().trees.remove(path.as_ref()).expect("remove");
        rig.ok(delete_snapshot(&cut.snapshot_id));
    }
}

#[test]
fn volumes_made_from_it_stay_as_they_are() {
    let rig = both_pools();
    for pool in ["default", "fast"] {
        let parameters = [("pool", pool)];
        let request = csi::CreateVolumeRequest { parameters: map(&parameters), ..create(pool, mount()) };
        let (vol, _) = rig.in_use(request);
        rig.write(&vol, "text");
        let cut = rig.cut("s", &vol);
        let source = from_snapshot(&cut.snapshot_id);
        let restored = rig.made(copy(&format!("{pool} restored"), source, mount(), &parameters));
        rig.ok(delete_snapshot(&cut.snapshot_id));
        assert_eq!(rig.content(&restored, 4), "text");
        assert_eq!(rig.read(&vol, 4), "text");
        rig.assert_no_snapshot();
    }
}

#[test]
fn a_member_goes_with_its_group_only() {
    let rig = Rig::new();
    let (one, two) = (rig.volume("one", mount()), rig.volume("two", mount()));
    let made = rig.ok(group("g", &[&one.id, &two.id])).group_snapshot.expect("a group");
    for member in &made.snapshots {
        let message = rig.fails(Code::InvalidArgument, delete_snapshot(&member.snapshot_id));
        assert!(message.contains(&made.group_snapshot_id), "{message}");
    }
    assert_eq!(rig.snapshots().len(), 2);
    rig.ok(delete_group(&made.group_snapshot_id, &[]));
    rig.ok(delete_snapshot(&made.snapshots[0].snapshot_id));
    rig.assert_no_snapshot();
}

#[test]
fn many_deletions_at_once_end_or_are_aborted() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    for _ in 0..10 {
        let cut = rig.cut("s", &vol);
        let answers = rig.at_once(vec![delete_snapshot(&cut.snapshot_id); 16]);
        assert!(answers.iter().any(Result::is_ok));
        for status in answers.iter().filter_map(|answer| answer.as_ref().err()) {
            assert_eq!(status.code(), Code::Aborted, "{}", status.message());
        }
        rig.assert_no_snapshot();
    }
}
