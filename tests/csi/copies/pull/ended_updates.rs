//! Updates of copies, ended and failed at every step of either node.

use hostloop_fake_kernel::Kill;
use nix::errno::Errno;
use tonic::Code;

use super::copied::Copied;
use super::nodes::TARGET;
use crate::walk::part::ways;

/// The steps of an update at the target and at the source.
fn steps() -> (usize, usize) {
    let copied = Copied::new();
    copied.change(1);
    copied.pair.source.kernel.clear_steps();
    copied.pair.target.kernel.clear_steps();
    copied.update().expect("it is updated");
    (copied.pair.target.kernel.steps().len(), copied.pair.source.kernel.steps().len())
}

#[test]
fn the_target_ends_at_any_step_of_an_update() {
    for n in 1..=steps().0 {
        for (kill, power) in ways(n, &[(Kill::Before, false), (Kill::Torn, true), (Kill::After, true)]) {
            let mut copied = Copied::new();
            copied.change(1);
            copied.pair.target.kernel.kill_at(n, kill);
            // What comes last is the record beside the data, without which an update has ended as well.
            let _ = copied.update();
            assert!(copied.pair.target.kernel.is_dead(), "step {n}");
            if power {
                copied.pair.power_cut_target()
            } else {
                copied.pair.restart_target()
            }
            // Another cut than the one that it was being given.
            copied.change(2);
            copied.update().unwrap_or_else(|status| panic!("step {n}, {kill:?}: {status}"));
            assert!(copied.copy_bytes() == copied.source_bytes(), "step {n}, {kill:?}");
            copied.rest();
            copied.seal(TARGET).expect("it is sealed");
            copied.update().expect("it is updated");
            copied.complete(false).expect("it is complete");
            copied.release();
            assert_eq!(copied.pair.source.cuts(), 0, "step {n}, {kill:?}");
        }
    }
}

#[test]
fn a_completed_copy_has_one_cut_whole() {
    for n in 1..=steps().0 {
        for kill in ways(n, &[Kill::Torn, Kill::After]) {
            let mut copied = Copied::new();
            let before = copied.source_bytes();
            copied.change(1);
            let after = copied.source_bytes();
            copied.pair.target.kernel.kill_at(n, kill);
            let _ = copied.update();
            copied.pair.power_cut_target();
            if copied.complete(true).is_ok() {
                let there = copied.copy_bytes();
                assert!(there == before || there == after, "step {n}, {kill:?}: some of both");
            }
        }
    }
}

#[test]
fn a_step_of_an_update_fails() {
    let (target, source) = steps();
    for (n, at_source) in (1..=target).map(|n| (n, false)).chain((1..=source).map(|n| (n, true))) {
        for errno in ways(n, &[Errno::EIO, Errno::ENOSPC]) {
            let copied = Copied::new();
            copied.change(1);
            let node = if at_source { &copied.pair.source } else { &copied.pair.target };
            node.kernel.fail_at(n, errno);
            if let Err(status) = copied.update() {
                let code = match errno {
                    _ if at_source => Code::Unavailable,
                    Errno::ENOSPC => Code::ResourceExhausted,
                    _ => Code::Internal,
                };
                assert_eq!(status.code(), code, "step {n}: {}", status.message());
            }
            copied.change(2);
            copied.update().unwrap_or_else(|status| panic!("step {n}, {errno}: {status}"));
            assert!(copied.copy_bytes() == copied.source_bytes(), "step {n}, {errno}");
            assert!(copied.pair.source.cuts() <= 2);
            copied.release();
            assert_eq!(copied.pair.source.cuts(), 0);
        }
    }
}

#[test]
fn the_source_ends_at_any_step_of_an_update() {
    for n in 1..=steps().1 {
        for kill in ways(n, &[Kill::Before, Kill::After]) {
            let mut copied = Copied::new();
            copied.change(1);
            copied.pair.source.kernel.kill_at(n, kill);
            // It may end when all is there already, and only the earlier cut is to be removed.
            let _ = copied.update();
            assert!(copied.pair.source.kernel.is_dead(), "step {n}");
            copied.pair.restart_source();
            copied.change(2);
            copied.update().unwrap_or_else(|status| panic!("step {n}, {kill:?}: {status}"));
            assert!(copied.copy_bytes() == copied.source_bytes(), "step {n}, {kill:?}");
        }
    }
}

/// Of a round that was cut off, the node of the source has only the later cut: no retry will ever make the copy whole.
#[test]
fn a_half_round_without_its_cut_is_made_anew() {
    let mut copied = Copied::new();
    copied.change(1);
    // The record says what it is being given; then the image is written.
    let steps = steps().0;
    let half = (1..=steps).find(|n| {
        copied = Copied::new();
        copied.change(1);
        copied.pair.target.kernel.kill_at(*n, Kill::After);
        copied.update().expect_err("it ends");
        copied.pair.restart_target();
        copied.complete(true).is_err_and(|status| status.message().contains("has not all of cut"))
    });
    assert!(half.is_some(), "no step is in the middle of a round");
    let cuts = copied.pair.source.kept_cuts();
    assert_eq!(cuts.len(), 2);
    copied.pair.source.driver.close_source(&cuts[0].parse().expect("an id")).expect("closed");
    copied.refused(copied.update(), Code::NotFound, "make another one");
}
