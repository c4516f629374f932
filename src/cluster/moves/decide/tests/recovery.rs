//! A VolumeReplica without a status.

use super::*;

fn without_status() -> View {
    View { lost_for: PATIENCE, status: VolumeReplicaStatus::default(), ..view() }
}

#[test]
fn rule_6_a_lost_status_decides_nothing_by_itself() {
    let silent = || Says::Silent(PATIENCE);
    for (source, copy, target) in [
        (Says::Has(GENERATION), Says::Nothing, silent()),
        (Says::Has(GENERATION), Says::Has(0), Says::Error("broken".to_owned())),
        (Says::Has(GENERATION), Says::Nothing, unusable(60)),
        (silent(), Says::Nothing, Says::Nothing),
        (Says::Nothing, Says::Nothing, Says::Nothing),
        (Says::Error("broken".to_owned()), Says::Nothing, Says::Has(GENERATION - 1)),
    ] {
        let view = View { source, copy, target, ..without_status() };
        let step = decide(&view);
        assert!(
            matches!(&step, Step::Wait(_, why) if why.contains("status was lost")),
            "{step:?} of {view:#?}"
        );
    }
    let fresh = View { lost_for: Duration::ZERO, ..without_status() };
    assert!(matches!(decide(&fresh), Step::Wait(..)), "a completion may be on its way");
}

#[test]
fn a_lost_status_is_replaced_by_what_nodes_say() {
    let of = |source, copy, target| decide(&View { source, copy, target, ..without_status() });
    let has = |more: u64| Says::Has(GENERATION + more);
    assert_eq!(of(has(0), Says::Nothing, Says::Nothing), Step::Recover(ReplicaPhase::Pending));
    assert_eq!(of(has(0), Says::Has(0), Says::Nothing), Step::Recover(ReplicaPhase::Following));
    assert_eq!(
        of(Says::Silent(PATIENCE), Says::Has(0), Says::Nothing),
        Step::Recover(ReplicaPhase::Following)
    );
    assert_eq!(of(has(0), unusable(60), Says::Nothing), Step::Recover(ReplicaPhase::Pending));
    for source in [has(0), Says::Nothing] {
        let step = of(source.clone(), Says::Nothing, has(1));
        assert_eq!(step, Step::RetireSource("node b has a later generation of the volume".to_owned()));
    }
}

/// The message is what an administrator reads while the earlier node does not answer.
#[test]
fn a_deleted_volume_has_no_later_generation() {
    let deleted = View { source: Says::Nothing, target: Says::Deleted, ..without_status() };
    assert_eq!(decide(&deleted), Step::RetireSource("the volume was deleted on node b".to_owned()));
    let claim_is_gone = View {
        source: Says::Nothing,
        target: Says::Nothing,
        copy: Says::Nothing,
        claim_is_deleted: Some(true),
        ..without_status()
    };
    let Step::RetireSource(why) = decide(&claim_is_gone) else { panic!("{:?}", decide(&claim_is_gone)) };
    assert_eq!(
        why,
        "the claim is being deleted, and neither node has the volume; node a may have what a move has left there"
    );
}

#[test]
fn a_later_generation_was_taken_back_or_came_back() {
    let source = Says::Has(GENERATION + 2);
    let of =
        |left: Says| decide(&View { source: source.clone(), copy: Says::Nothing, left, ..without_status() });
    assert_eq!(of(Says::Nothing), Step::Recover(ReplicaPhase::Abandoning));
    assert_eq!(of(Says::Has(GENERATION)), Step::Recover(ReplicaPhase::Left));
    assert_eq!(of(unusable(60)), Step::Recover(ReplicaPhase::Left));
    for unknown in [Says::NotAsked, Says::Silent(PATIENCE), Says::Error("broken".to_owned())] {
        assert!(matches!(of(unknown), Step::Wait(..)));
    }
}

/// Rule 7: the node of the copy has gone for good, and the volume with its claim.
#[test]
fn a_lost_status_ends_if_both_nodes_have_nothing() {
    let gone = || Says::Silent(PATIENCE);
    for source in [Says::Nothing, Says::Deleted] {
        let deleted = View {
            source: source.clone(),
            copy: gone(),
            target: gone(),
            target_node: NodeState::Gone,
            is_deleted: true,
            ..without_status()
        };
        assert_eq!(decide(&deleted), Step::Finish, "{source:?}");
        let off = View { target_node: NodeState::OutOfService, ..deleted.clone() };
        assert!(matches!(decide(&off), Step::Wait(..)), "its node may come back with the only copy");
        let both = View { source: gone(), source_node: NodeState::Gone, ..off };
        assert!(matches!(decide(&both), Step::Wait(..)), "its node may come back with the only copy");
        let kept = View { is_deleted: false, claim_is_deleted: Some(true), ..deleted.clone() };
        assert!(matches!(decide(&kept), Step::Enter(ReplicaPhase::Stranded, _)), "{source:?}");
        let away = View { target_node: NodeState::Ready, ..kept.clone() };
        assert!(matches!(decide(&away), Step::Wait(..)), "it may be back in a moment");
        let alive = View { claim_is_deleted: Some(false), ..kept };
        assert!(matches!(decide(&alive), Step::Wait(..)), "{source:?}");
    }
}

#[test]
fn another_copy_keeps_its_fence_and_its_exchange() {
    check(
        "beside another copy",
        |view, _| is_without_status(view) && view.has_another_copy,
        |view, step| match step {
            Step::Recover(phase) => {
                matches!(phase, ReplicaPhase::Abandoning | ReplicaPhase::Left)
                    && matches!(view.source, Says::Has(has) if has > GENERATION)
            }
            step => matches!(step, Step::Wait(..) | Step::Enter(..) | Step::RetireSource(_) | Step::Leave),
        },
    );
}

/// What the node of the copy has may be the volume, in which a pod writes.
#[test]
fn without_a_status_no_fence_is_lifted_unasked() {
    check(
        "a fence is lifted",
        |view, step| {
            let goes_on = matches!(step, Step::Recover(ReplicaPhase::Pending | ReplicaPhase::Following));
            is_without_status(view) && goes_on
        },
        |view, _| match view.target {
            Says::Has(has) => has <= GENERATION,
            Says::Nothing | Says::Deleted => true,
            _ => false,
        },
    );
}
