//! A last pass, for which pods wait, beside as many passes of standby copies as a node makes at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use hostloop::model::Limits;
use hostloop::wire::{csi, peer};
use tokio::task::JoinHandle;
use tonic::Status;

use super::copied::{SIZE, blocks, made};
use super::nodes::{Pair, SOURCE, TARGET};
use super::{disk_of, pattern};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::wait::until;

/// As many as one node copies from another one, and sends to another one, at a time.
fn share() -> usize {
    Limits::default().streams_each()
}

type Pass = JoinHandle<Result<peer::UpdateCopyResponse, Status>>;

/// Volumes of one node, each with a copy on the other one.
struct Copies {
    pair: Pair,
    /// Each volume with the request of its copy, and the id of that.
    all: Vec<(Vol, csi::CreateVolumeRequest, String)>,
}

impl Copies {
    fn new(count: usize) -> Copies {
        let rig = Rig::new();
        let volumes: Vec<Vol> = (0..count).map(|n| rig.volume(&format!("source-{n}"), block())).collect();
        let pair = Pair::with_patience(rig, Duration::from_millis(50));
        let copied = |(n, vol): (usize, Vol)| {
            let request = copy(&format!("copy-{n}"), from_volume(&vol.id), block(), &[]);
            let id = made(&pair, &request).expect("a copy").volume_id;
            (vol, request, id)
        };
        let all = volumes.into_iter().enumerate().map(copied).collect();
        Copies { pair, all }
    }

    /// Changes so much of a volume that a pass over it does not fit into the buffers of a connection.
    fn change(&self, n: usize) {
        let bytes = pattern(8 << 20, n as u64);
        self.pair.source.kernel.write(self.all[n].0.image(), 0, &bytes).expect("write");
    }

    fn begin(&self, n: usize, last_pass: bool) -> Pass {
        let (_, request, id) = &self.all[n];
        let order = peer::UpdateCopyRequest {
            volume_id: id.clone(),
            source_node_id: SOURCE.to_owned(),
            source_address: SOURCE.to_owned(),
            permit: self.pair.permit(request),
            whole: true,
            last_pass,
            ..Default::default()
        };
        let mut peer = self.pair.target.peer.clone();
        self.pair
            .runtime
            .spawn(async move { peer.update_copy(order).await.map(|answer| answer.into_inner()) })
    }

    fn end(&self, pass: Pass) -> Result<peer::UpdateCopyResponse, Status> {
        self.pair.runtime.block_on(pass).expect("no panic")
    }

    fn seal(&self, n: usize) {
        let (volume_id, moved_to) = (self.all[n].0.id.clone(), TARGET.to_owned());
        let request = peer::SealVolumeRequest { volume_id, moved_to, ..Default::default() };
        self.pair.runtime.block_on(self.pair.source.peer.clone().seal_volume(request)).expect("it is sealed");
    }

    #[track_caller]
    fn assert_same(&self, n: usize) {
        let (vol, _, id) = &self.all[n];
        let source = blocks(&self.pair.source.kernel, &vol.image(), SIZE);
        assert!(blocks(&self.pair.target.kernel, &disk_of(id), SIZE) == source, "copy {n}");
    }
}

/// Passes that come no further until the test says so. They keep their turns on both nodes.
struct Long {
    held: Arc<AtomicBool>,
    passes: Vec<Pass>,
}

impl Long {
    /// Begins a pass over each of these copies.
    fn begin(copies: &Copies, of: std::ops::Range<usize>) -> Long {
        let held = Arc::new(AtomicBool::new(true));
        let waiting = Arc::new(AtomicUsize::new(0));
        let (is_held, now_waiting) = (Arc::clone(&held), Arc::clone(&waiting));
        let files: Vec<String> =
            of.clone().map(|n| format!("{}.changes", disk_of(&copies.all[n].2))).collect();
        copies.pair.target.kernel.set_pace(move |name, subject| {
            if name != "append" || !files.iter().any(|file| file == subject) {
                return;
            }
            now_waiting.fetch_add(1, Ordering::Relaxed);
            while is_held.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let count = of.len();
        let passes = of
            .map(|n| {
                copies.change(n);
                copies.begin(n, false)
            })
            .collect();
        let all_wait = async || waiting.load(Ordering::Relaxed) == count;
        copies.pair.runtime.block_on(until("the passes have begun", all_wait));
        Long { held, passes }
    }

    #[track_caller]
    fn assert_running(&self) {
        assert!(self.passes.iter().all(|pass| !pass.is_finished()), "they still run");
    }

    fn end(mut self, copies: &Copies) {
        self.held.store(false, Ordering::Relaxed);
        for pass in std::mem::take(&mut self.passes) {
            copies.end(pass).expect("it is updated");
        }
    }
}

/// The runtime waits for its threads, also if a test has failed.
impl Drop for Long {
    fn drop(&mut self) {
        self.held.store(false, Ordering::Relaxed);
    }
}

/// One tenant's standby copies keep no pod of another tenant waiting.
#[test]
fn a_last_pass_ends_while_standby_passes_run() {
    let last = share();
    let copies = Copies::new(last + 2);
    copies.change(last);
    copies.seal(last);
    let long = Long::begin(&copies, 0..last);
    let further = copies.end(copies.begin(last + 1, false)).expect_err("a further standby pass waits");
    assert!(further.message().contains("--max-copies"), "{further:?}");
    let updated = copies.end(copies.begin(last, true)).expect("a last pass has a place");
    assert!(updated.sealed && updated.sent_bytes > 0, "{updated:?}");
    copies.assert_same(last);
    long.assert_running();
    long.end(&copies);
    (0..=last).for_each(|n| copies.assert_same(n));
}

/// The node of the source believes nobody but itself that a pass is a last one.
#[test]
fn a_pass_of_an_unsealed_volume_gets_no_place() {
    let last = share();
    let copies = Copies::new(last + 1);
    copies.change(last);
    let long = Long::begin(&copies, 0..last);
    let refused = copies.end(copies.begin(last, true)).expect_err("the source has no stream for it");
    assert!(refused.message().contains("--max-streams"), "{refused:?}");
    long.assert_running();
    copies.seal(last);
    copies.end(copies.begin(last, true)).expect("it is sealed");
    long.assert_running();
    long.end(&copies);
}
