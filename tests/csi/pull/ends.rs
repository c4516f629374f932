//! Either node ends, or fails, at each of its steps.

use std::time::Duration;

use hostloop::wire::csi;
use hostloop_fake_kernel::Kill;
use nix::errno::Errno;
use tonic::Code;

use super::nodes::Pair;
use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::wait::{answered, until};

/// A source, and what is made from it.
type Make = fn(&Rig) -> csi::CreateVolumeRequest;

fn image_from_snapshot(rig: &Rig) -> csi::CreateVolumeRequest {
    let (vol, device) = rig.in_use(create("source", block()));
    for offset in [0, 20 << 20] {
        rig.kernel.write(&device, offset, b"data").expect("write");
    }
    rig.rest(&vol);
    let cut = rig.cut("cut", &vol);
    copy("pulled", from_snapshot(&cut.snapshot_id), block(), &[])
}

fn image_from_volume(rig: &Rig) -> csi::CreateVolumeRequest {
    let (vol, _) = rig.in_use(create("source", mount()));
    rig.write(&vol, "text");
    copy("pulled", from_volume(&vol.id), mount(), &[])
}

fn tree_from_volume(rig: &Rig) -> csi::CreateVolumeRequest {
    let (vol, top) = rig.in_use(create_with("source", &[("backend", "directory"), ("pool", "directories")]));
    rig.kernel.create_directories(format!("{top}/a/b"));
    rig.kernel.write_file(format!("{top}/a/b/file"), b"text").expect("write");
    rig.kernel.link(format!("{top}/a/b/file"), format!("{top}/a/link")).expect("link");
    rig.rest(&vol);
    copy("pulled", from_volume(&vol.id), mount(), &[("backend", "directory"), ("pool", "directories")])
}

const MAKES: [Make; 3] = [image_from_snapshot, image_from_volume, tree_from_volume];

fn pair(make: Make) -> (Pair, csi::CreateVolumeRequest) {
    let rig = Rig::new();
    let request = make(&rig);
    (Pair::with_patience(rig, Duration::from_millis(50)), request)
}

/// The steps of a pull at the target and at the source.
fn steps(make: Make) -> (usize, usize) {
    let (pair, request) = pair(make);
    pair.source.kernel.clear_steps();
    pair.target.kernel.clear_steps();
    pair.pulled(request);
    (pair.target.kernel.steps().len(), pair.source.kernel.steps().len())
}

#[test]
fn the_target_ends_at_any_step() {
    for make in MAKES {
        for n in 1..=steps(make).0 {
            for (kill, power) in [(Kill::Before, false), (Kill::Torn, true), (Kill::After, true)] {
                let (mut pair, request) = pair(make);
                pair.target.kernel.kill_at(n, kill);
                pair.pull(request.clone()).expect_err("it ends");
                assert!(pair.target.kernel.is_dead(), "step {n}");
                if power {
                    pair.power_cut_target()
                } else {
                    pair.restart_target()
                }
                let whole = pair.target.driver.store().volumes().len();
                assert!(whole <= 1 && (whole == 1) != pair.target.files().is_empty(), "step {n}, {kill:?}");
                pair.pulled(request);
                assert_eq!(pair.source.cuts(), 0, "step {n}, {kill:?}");
            }
        }
    }
}

#[test]
fn a_step_of_the_target_fails() {
    for make in MAKES {
        for n in 1..=steps(make).0 {
            for errno in [Errno::EIO, Errno::ENOSPC] {
                let (pair, request) = pair(make);
                pair.target.kernel.fail_at(n, errno);
                if let Err(status) = pair.pull(request.clone()) {
                    let code = if errno == Errno::ENOSPC { Code::ResourceExhausted } else { Code::Internal };
                    assert_eq!(status.code(), code, "step {n}: {}", status.message());
                    pair.assert_nothing_left();
                }
                pair.pulled(request);
                assert_eq!(pair.source.cuts(), 0, "step {n}");
            }
        }
    }
}

#[test]
fn the_source_ends_or_fails_at_any_step() {
    for make in &MAKES[1..] {
        let steps = steps(*make).1;
        assert!(steps > 5, "a cut is made and removed: {steps}");
        for n in 1..=steps {
            for kill in [Some(Kill::Before), Some(Kill::After), None] {
                let (mut pair, request) = pair(*make);
                match kill {
                    Some(kill) => pair.source.kernel.kill_at(n, kill),
                    None => pair.source.kernel.fail_at(n, Errno::EIO),
                }
                // It may end when the volume is there already, and only the cut is to be removed.
                let pulled = pair.pull(request.clone());
                if kill.is_some() {
                    assert!(pair.source.kernel.is_dead(), "step {n}");
                    pair.restart_source();
                }
                if let Err(status) = &pulled {
                    assert_eq!(status.code(), Code::Unavailable, "step {n}: {}", status.message());
                    assert_eq!(pair.target.files(), Vec::<String>::new(), "step {n}");
                }
                pair.pulled(request);
                pair.source.driver.remove_idle_sources(Duration::ZERO);
                assert_eq!(pair.source.cuts(), 0, "step {n}, {kill:?}");
            }
        }
    }
}

#[test]
fn what_was_acknowledged_survives_a_power_cut() {
    for make in [image_from_snapshot, tree_from_volume] {
        let (mut pair, request) = pair(make);
        let pulled = pair.pulled(request.clone());
        let content = |pair: &Pair| {
            let (kernel, tree) = (&pair.target.kernel, format!("volumes/{}", pulled.id));
            match kernel.stat(super::disk_of(&pulled.id)) {
                Some(image) => kernel.read(super::disk_of(&pulled.id), 0, image.size as usize).expect("read"),
                None => super::tree_of(kernel, &tree).join("\n").into_bytes(),
            }
        };
        let before = content(&pair);
        assert!(before.len() > 50);
        pair.power_cut_target();
        assert!(content(&pair) == before);
        assert_eq!(pair.pulled(request).info, pulled.info);
    }
}

#[test]
fn a_process_that_stops_takes_back_what_it_has_not_finished() {
    let rig = Rig::new();
    let (_, cut, _) = super::scattered(&rig);
    let pair = Pair::new(rig);
    pair.target.kernel.hold("write_at");
    let controller = pair.target.controller.clone();
    let request = copy("pulled", from_snapshot(&cut.snapshot_id), block(), &[]);
    let call = pair.order(request, super::SOURCE);
    pair.runtime.spawn(async move { controller.send(call).await });
    pair.runtime.block_on(until("it writes", async || pair.target.kernel.waiting() > 0));
    let Pair { runtime, target, .. } = pair;
    // What runs on the blocking pool goes on, with nothing left to wait for the network.
    runtime.shutdown_background();
    target.kernel.release();
    let again = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    again.block_on(until("it is removed", async || target.driver.store().volumes().is_empty()));
    assert_eq!(target.files(), Vec::<String>::new());
}

/// Starts a pull, restarts the source in the middle of it, and gives what the caller gets.
fn restarted(make: Make, hold: &'static str) -> (Pair, Result<csi::Volume, tonic::Status>) {
    let rig = Rig::new();
    let request = make(&rig);
    let mut pair = Pair::new(rig);
    pair.target.kernel.hold(hold);
    let controller = pair.target.controller.clone();
    let call = pair.order(request, super::SOURCE);
    let call = pair.runtime.spawn(async move { controller.send(call).await });
    pair.runtime.block_on(until("it writes", async || pair.target.kernel.waiting() > 0));
    pair.restart_source();
    pair.target.kernel.release();
    let answer = pair.runtime.block_on(call).expect("no panic");
    let answer = answer.map(|answer| answer.volume.expect("a volume"));
    (pair, answer)
}

#[test]
fn a_snapshot_is_read_on_when_its_node_is_back() {
    let (pair, answer) = restarted(image_from_snapshot, "write_at");
    let volume = answer.expect("a volume").volume_id;
    let cut = pair.source.driver.store().snapshots().first().expect("the snapshot").id.to_string();
    let read =
        |kernel: &hostloop_fake_kernel::FakeKernel, path| kernel.read(path, 0, 64 << 20).expect("read");
    let (image, source) = (super::disk_of(&volume), super::image_of(&cut));
    assert!(read(&pair.target.kernel, image) == read(&pair.source.kernel, source));
}

#[test]
fn a_cut_of_a_volume_is_read_on_when_its_node_is_back() {
    let (pair, answer) = restarted(tree_from_volume, "write_tree");
    answer.expect("a volume");
    assert_eq!(pair.source.cuts(), 0, "it was closed");
}

/// The source's pod is replaced in the middle of a pull: the caller's retry brings the new address, and the pull goes on
/// with what it has.
#[test]
fn a_source_that_moves_is_followed() {
    let from: [fn(&str, &str) -> csi::VolumeContentSource; 2] =
        [|snapshot, _| from_snapshot(snapshot), |_, volume| from_volume(volume)];
    for from in from {
        let rig = Rig::new();
        let (vol, cut, _) = super::scattered(&rig);
        let mut pair = Pair::new(rig);
        let request = copy("pulled", from(&cut.snapshot_id, &vol.id), block(), &[]);
        pair.target.kernel.hold("write_at");
        let controller = pair.target.controller.clone();
        let call = pair.order(request.clone(), super::SOURCE);
        let call = pair.runtime.spawn(async move { controller.send(call).await });
        pair.runtime.block_on(until("it writes", async || pair.target.kernel.waiting() > 0));
        pair.move_source("elsewhere");
        pair.target.kernel.release();
        let pull = || pair.pull_from(request.clone(), Some("elsewhere"));
        let pulled = answered(&[Code::Aborted], pull).expect("a volume");
        let first = pair.runtime.block_on(call).expect("no panic").expect("the first call has it too");
        assert_eq!(first.volume.expect("a volume").volume_id, pulled.volume_id);
        let writes = pair.target.kernel.steps().iter().filter(|step| step.name == "write_at").count();
        assert_eq!(writes, 3 + 1 + 3 + 1, "nothing is fetched twice");
        let read =
            |kernel: &hostloop_fake_kernel::FakeKernel, path| kernel.read(path, 0, 64 << 20).expect("read");
        let source = read(&pair.source.kernel, super::image_of(&cut.snapshot_id));
        assert!(read(&pair.target.kernel, super::disk_of(&pulled.volume_id)) == source);
        assert_eq!(pair.source.cuts(), 0);
    }
}
