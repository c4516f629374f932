//! What a permit that ends means for a pull that runs.

use std::time::Duration;

use hostloop::cluster::permit::VALID_FOR;
use hostloop::wire::csi;
use tonic::{Code, Status};

use super::nodes::{Pair, SOURCE, TARGET};
use super::orders::{grant, order, permit};
use super::{disk_of, image_of, scattered};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::wait::{answered, until};

type Call = tokio::task::JoinHandle<Result<csi::CreateVolumeResponse, Status>>;

/// Begins a pull with a permit for two seconds, and waits in the middle of it until that has ended.
fn begun(pair: &Pair, request: &csi::CreateVolumeRequest) -> Call {
    let mut grant = grant(request, SOURCE, TARGET);
    grant.expires = grant.expires - VALID_FOR.as_secs() + 2;
    let call = order(request.clone(), (SOURCE, SOURCE), Some(&permit(&grant)));
    pair.target.kernel.hold("write_at");
    let controller = pair.target.controller.clone();
    let call = pair.runtime.spawn(async move { controller.send(call).await });
    pair.runtime.block_on(until("it writes", async || pair.target.kernel.waiting() > 0));
    std::thread::sleep(Duration::from_secs(4));
    call
}

/// The caller comes back until it has its volume.
fn wanted(pair: &Pair, request: &csi::CreateVolumeRequest) -> csi::Volume {
    answered(&[Code::Aborted], || pair.pull(request.clone())).expect("a volume")
}

fn ended(pair: &Pair, call: Call) -> csi::Volume {
    let answer = pair.runtime.block_on(call).expect("no panic").expect("a volume");
    answer.volume.expect("a volume")
}

#[track_caller]
fn assert_same(pair: &Pair, volume: &str, snapshot: &str) {
    let read =
        |kernel: &hostloop_fake_kernel::FakeKernel, path| kernel.read(path, 0, 64 << 20).expect("read");
    assert!(
        read(&pair.target.kernel, disk_of(volume)) == read(&pair.source.kernel, image_of(snapshot)),
        "the volume is another one"
    );
    let writes = pair.target.kernel.steps().iter().filter(|step| step.name == "write_at").count();
    assert_eq!(writes, 3 + 1 + 3 + 1, "nothing is fetched twice");
}

#[test]
fn a_stream_that_has_begun_goes_on_to_its_end() {
    let rig = Rig::new();
    let (vol, cut, _) = scattered(&rig);
    let pair = Pair::new(rig);
    for (name, source, cuts) in [("s", from_snapshot(&cut.snapshot_id), 0), ("v", from_volume(&vol.id), 1)] {
        let call = begun(&pair, &copy(name, source, block(), &[]));
        pair.target.kernel.release();
        let pulled = ended(&pair, call);
        assert_same(&pair, &pulled.volume_id, &cut.snapshot_id);
        // Nobody came back with a permit to remove the cut with.
        assert_eq!(pair.source.cuts(), cuts);
        pair.target.kernel.clear_steps();
    }
    pair.source.driver.remove_idle_sources(Duration::ZERO);
    assert_eq!(pair.source.cuts(), 0);
}

/// The source's process is replaced: the stream is taken up again, for which the permit is too old, and then the caller
/// comes back.
#[test]
fn a_broken_stream_goes_on_with_a_retrys_permit() {
    let rig = Rig::new();
    let (vol, cut, _) = scattered(&rig);
    let mut pair = Pair::new(rig);
    for (name, source) in [("s", from_snapshot(&cut.snapshot_id)), ("v", from_volume(&vol.id))] {
        let request = copy(name, source, block(), &[]);
        let call = begun(&pair, &request);
        pair.restart_source();
        pair.target.kernel.release();
        std::thread::sleep(Duration::from_secs(1));
        assert!(!call.is_finished(), "it waits");
        let pulled = wanted(&pair, &request);
        assert_eq!(ended(&pair, call).volume_id, pulled.volume_id);
        assert_same(&pair, &pulled.volume_id, &cut.snapshot_id);
        assert_eq!(pair.source.cuts(), 0, "it was closed");
        pair.target.kernel.clear_steps();
    }
}

/// A call of the same name for another source says nothing about the one that is pulled.
#[test]
fn a_call_for_another_source_changes_no_pull() {
    let rig = Rig::new();
    let (vol, cut, _) = scattered(&rig);
    let other = rig.cut("other", &vol);
    let mut pair = Pair::new(rig);
    let request = |snapshot: &str| copy("pulled", from_snapshot(snapshot), block(), &[]);
    pair.target.kernel.hold("write_at");
    let controller = pair.target.controller.clone();
    let call = pair.order(request(&cut.snapshot_id), SOURCE);
    let call = pair.runtime.spawn(async move { controller.send(call).await });
    pair.runtime.block_on(until("it writes", async || pair.target.kernel.waiting() > 0));
    let status = pair.pull_from(request(&other.snapshot_id), Some("nowhere")).expect_err("it runs");
    assert_eq!(status.code(), Code::Aborted, "{}", status.message());
    pair.restart_source();
    pair.target.kernel.release();
    assert_same(&pair, &ended(&pair, call).volume_id, &cut.snapshot_id);
}
