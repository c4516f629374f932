//! Copies that are one cut whole whatever happens to the node of their source.

use hostloop::wire::peer;
use hostloop_fake_kernel::Kill;
use nix::errno::Errno;
use tonic::{Code, Status};

use super::copied::Copied;
use super::disk_of;
use crate::walk::part::ways;

/// UpdateCopy as for a standby copy.
fn update(copied: &Copied) -> Result<peer::UpdateCopyResponse, Status> {
    copied.send(peer::UpdateCopyRequest { whole: true, ..copied.order() })
}

/// The steps of such an update at the target and at the source.
fn steps() -> (usize, usize) {
    let copied = Copied::new();
    copied.change(1);
    update(&copied).expect("an earlier round");
    copied.change(2);
    copied.pair.source.kernel.clear_steps();
    copied.pair.target.kernel.clear_steps();
    update(&copied).expect("it is updated");
    (copied.pair.target.kernel.steps().len(), copied.pair.source.kernel.steps().len())
}

/// What changes, beside the image.
fn changes(copied: &Copied) -> String {
    format!("{}.changes", disk_of(&copied.copy.id))
}

#[test]
fn a_standby_copy_follows_a_volume_in_use() {
    let copied = Copied::new();
    for seed in 1..=3 {
        copied.change(seed);
        let updated = update(&copied).expect("it is updated");
        assert!(copied.copy_bytes() == copied.source_bytes(), "round {seed}");
        let (data, zeros) = (8192 + 4096, if seed == 1 { 16384 } else { 0 });
        assert_eq!((updated.sent_bytes, updated.changed_bytes), (data, data + zeros), "{seed}");
        assert_eq!(copied.pair.source.cuts(), 1, "the earlier one goes");
        assert!(!copied.pair.target.kernel.exists(changes(&copied)), "and the file");
    }
    copied.change(4);
    copied.update().expect("a round of the other kind");
    copied.change(5);
    update(&copied).expect("and of this one");
    assert!(copied.copy_bytes() == copied.source_bytes());
}

/// The node of the source is lost in the middle of a round, and so is power at the node of the copy.
#[test]
fn whatever_ends_a_round_the_copy_can_be_used() {
    let (target, source) = steps();
    for (n, at_source) in (1..=target).map(|n| (n, false)).chain((1..=source).map(|n| (n, true))) {
        for kill in ways(n, &[Kill::Before, Kill::Torn, Kill::After]) {
            let mut copied = Copied::new();
            copied.change(1);
            update(&copied).expect("an earlier round");
            let before = copied.source_bytes();
            copied.change(2);
            let after = copied.source_bytes();
            let node = if at_source { &copied.pair.source } else { &copied.pair.target };
            node.kernel.kill_at(n, kill);
            let ended = update(&copied);
            let which = format!("step {n}, at the source: {at_source}, {kill:?}");
            assert!(node.kernel.is_dead(), "{which}");
            assert!(at_source || ended.is_err(), "{which}");
            copied.pair.power_cut_target();
            copied.pair.source.kernel.kill();
            copied.complete(true).unwrap_or_else(|status| panic!("{which}: {status}"));
            let there = copied.copy_bytes();
            assert!(there == before || there == after, "{which}: some of both");
            assert!(ended.is_err() || there == after, "{which}: an earlier cut than was told");
            assert!(!copied.pair.target.kernel.exists(changes(&copied)), "{which}");
            copied.complete(true).unwrap_or_else(|status| panic!("again, {which}: {status}"));
        }
    }
}

/// The same, but both nodes come back.
#[test]
fn whatever_ends_a_round_another_one_follows() {
    let (target, source) = steps();
    for (n, at_source) in (1..=target).map(|n| (n, false)).chain((1..=source).map(|n| (n, true))) {
        let mut copied = Copied::new();
        copied.change(1);
        update(&copied).expect("an earlier round");
        copied.change(2);
        let node = if at_source { &copied.pair.source } else { &copied.pair.target };
        node.kernel.kill_at(n, Kill::After);
        let _ = update(&copied);
        match at_source {
            true => copied.pair.restart_source(),
            false => copied.pair.restart_target(),
        }
        copied.change(3);
        let next = if n % 2 == 0 { update(&copied) } else { copied.update() };
        next.unwrap_or_else(|status| panic!("step {n}, at the source: {at_source}: {status}"));
        assert!(copied.copy_bytes() == copied.source_bytes(), "step {n}, at the source: {at_source}");
        assert!(!copied.pair.target.kernel.exists(changes(&copied)), "step {n}");
        copied.release();
        assert_eq!(copied.pair.source.cuts(), 0, "step {n}, at the source: {at_source}");
    }
}

#[test]
fn a_step_of_a_round_fails() {
    for n in 1..=steps().0 {
        for errno in ways(n, &[Errno::EIO, Errno::ENOSPC]) {
            let copied = Copied::new();
            let before = copied.source_bytes();
            copied.change(1);
            let after = copied.source_bytes();
            copied.pair.target.kernel.fail_at(n, errno);
            let ended = update(&copied);
            if let Err(status) = &ended {
                let code = if errno == Errno::ENOSPC { Code::ResourceExhausted } else { Code::Internal };
                assert_eq!(status.code(), code, "step {n}: {}", status.message());
            }
            copied.complete(true).unwrap_or_else(|status| panic!("step {n}, {errno}: {status}"));
            let there = copied.copy_bytes();
            assert!(there == after || (ended.is_err() && there == before), "step {n}, {errno}: some of both");
        }
    }
}

/// A disk that gives back something else: the copy is of two cuts by halves, and says so.
#[test]
fn a_damaged_file_of_changes_is_not_applied() {
    let mut damaged = 0;
    for n in 1..=steps().0 {
        let mut copied = Copied::new();
        copied.change(1);
        copied.pair.target.kernel.kill_at(n, Kill::After);
        let _ = update(&copied);
        copied.pair.restart_target();
        let (kernel, file) = (copied.pair.target.kernel.clone(), changes(&copied));
        let Some(_) = kernel.stat(&file).filter(|stat| stat.size > 60) else { continue };
        // In the first entry's data, its place, its kind.
        for at in [30, 8, 0] {
            let was = kernel.read(&file, at, 4).expect("read");
            kernel.write(&file, at, b"else").expect("write");
            if let Err(status) = copied.complete(true) {
                assert_eq!(status.code(), Code::NotFound, "{}", status.message());
                assert!(status.message().contains("is damaged"), "{}", status.message());
                damaged += 1;
            }
            if !kernel.exists(&file) {
                break; // no record needed it
            }
            kernel.write(&file, at, &was).expect("write");
        }
        copied.complete(true).unwrap_or_else(|status| panic!("step {n}: {status}"));
    }
    assert!(damaged >= 3, "no step left a file that is needed");
}

#[test]
fn a_full_disk_takes_no_changes_and_leaves_the_copy() {
    let copied = Copied::new();
    let before = copied.source_bytes();
    copied.change(1);
    let pool = &copied.pair.target.kernel;
    pool.set_space(1 << 30, 8 << 20);
    copied.refused(update(&copied), Code::ResourceExhausted, "pool default has room for a");
    assert!(!pool.exists(changes(&copied)));
    assert!(copied.copy_bytes() == before);
    pool.set_space(1 << 40, 1 << 39);
    update(&copied).expect("it is updated");
    assert!(copied.copy_bytes() == copied.source_bytes());
}

/// What was begun for a copy that is deleted goes with it.
#[test]
fn a_copy_is_deleted_with_its_changes() {
    let mut left = 0;
    for n in 1..=steps().0 {
        let mut copied = Copied::new();
        copied.change(1);
        copied.pair.target.kernel.kill_at(n, Kill::After);
        let _ = update(&copied);
        copied.pair.restart_target();
        left += usize::from(copied.pair.target.kernel.exists(changes(&copied)));
        let delete = hostloop::wire::csi::DeleteVolumeRequest {
            volume_id: copied.copy.id.clone(),
            ..Default::default()
        };
        copied.pair.runtime.block_on(copied.pair.target.controller.call(delete)).expect("deleted");
        copied.release();
        copied.pair.assert_nothing_left();
    }
    assert!(left > 0);
}
