//! A volume that is made from what another node has: two nodes and a controller, and the node that has the source or the
//! one that makes the copy is traced.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hostloop::model::{NodeKey, SnapshotId, VolumeId};
use hostloop::wire::csi;
use tonic::{Code, Status};

use super::check::{names as names_in, writable};
use super::plan::Plan;
use super::run::{Done, HELD, Outcome, said, with_log};
use super::seen::{Verdict, ensure};
use super::tracer::{Change, trace};
use crate::cluster::processes::{Cluster, content};
use crate::harness::kernel::{pattern, write_at};
use crate::harness::process::node_of;
use crate::harness::volume::{clone_request, create_request, restore_request};
use crate::harness::{Kind, Vol, World, text};

const LEN: usize = 1 << 20;
/// How long a caller repeats its call: the controller looks for a node again after some seconds, and the node that makes
/// the copy waits for its source.
const PATIENCE: Duration = Duration::from_secs(90);

/// The node that is traced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Source,
    Target,
}

/// What is pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Snapshot,
    /// A volume that a pod uses, where its filesystem can be frozen.
    Volume,
}

#[derive(Debug, Clone, Copy)]
pub struct Pull {
    pub kind: Kind,
    pub from: From,
    pub side: Side,
}

impl Pull {
    /// All that are walked. The node that has a snapshot changes nothing while it is read.
    pub fn all() -> [Pull; 5] {
        [
            (Kind::Ext4, From::Snapshot, Side::Target),
            (Kind::Ext4, From::Volume, Side::Target),
            (Kind::Ext4, From::Volume, Side::Source),
            (Kind::Block, From::Snapshot, Side::Target),
            (Kind::Directory, From::Snapshot, Side::Target),
        ]
        .map(|(kind, from, side)| Pull { kind, from, side })
    }

    pub fn name(self) -> String {
        let Pull { kind, from, side } = self;
        format!("{kind:?}: pull of a {from:?}, the {side:?}").to_lowercase()
    }
}

/// Two nodes, of which the first has a volume with data, and a snapshot of it.
struct Bench {
    cluster: Cluster,
    source: csi::Volume,
    snapshot: csi::Snapshot,
}

impl Bench {
    fn new(pull: Pull) -> Bench {
        let cluster = Cluster::start_for(pull.kind);
        let here = &cluster.nodes[0];
        let parameters: &[_] = if pull.kind == Kind::Directory { &[("pool", "default")] } else { &[] };
        let mut request = create_request(pull.kind, "source", pull.kind.size(), parameters);
        request.accessibility_requirements = here.here();
        let source = cluster.csi.create(request).expect("CreateVolume");
        let vol = Vol::of(&here.world, pull.kind, source.clone());
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(5, LEN)).expect("write");
        if pull.from == From::Snapshot {
            vol.down();
        }
        drop(vol);
        let snapshot = cluster.csi.snapshot("snapshot", &source.volume_id, &[]).expect("CreateSnapshot");
        Bench { cluster, source, snapshot }
    }

    fn request(&self, pull: Pull) -> csi::CreateVolumeRequest {
        let (kind, bytes) = (pull.kind, u64::try_from(self.source.capacity_bytes).expect("a size"));
        let request = match pull.from {
            From::Snapshot => restore_request(kind, "copy", bytes, &self.snapshot.snapshot_id, &[]),
            From::Volume => clone_request(kind, "copy", bytes, &self.source.volume_id, &[]),
        };
        csi::CreateVolumeRequest { accessibility_requirements: self.cluster.nodes[1].here(), ..request }
    }

    fn traced(&mut self, side: Side) -> &mut World {
        &mut self.cluster.nodes[usize::from(side == Side::Target)].world
    }

    /// What differs from bench to bench, and what to call it.
    fn names(&self, side: Side) -> Vec<(String, String)> {
        let key = |node: usize| NodeKey::of(&node_of(&self.cluster.nodes[node].world.data));
        let (here, copy) = (key(0), VolumeId::of_name(&key(1), "copy"));
        let source: VolumeId = self.source.volume_id.parse().expect("an id");
        let world = &self.cluster.nodes[usize::from(side == Side::Target)].world;
        vec![
            (SnapshotId::of_pull(&here, &source, &copy).to_string(), "<cut>".to_owned()),
            (self.snapshot.snapshot_id.clone(), "<snapshot>".to_owned()),
            (copy.to_string(), "<copy>".to_owned()),
            (self.source.volume_id.clone(), "<source>".to_owned()),
            (text(&world.dir).to_owned(), "~".to_owned()),
        ]
    }

    /// Both nodes have what they were asked for and nothing else, but for a cut that the source's node was not told to
    /// remove.
    fn has_only(&self, copy: &str, with_cut: bool) -> Verdict {
        let names = self.names(Side::Source);
        let (cut, snapshot, source) = (&names[0].0, &names[1].0, &names[3].0);
        let of = |id: &str| BTreeSet::from_iter((!id.is_empty()).then(|| id.to_owned()));
        let expected = [[of(source), of(snapshot)], [of(copy), of("")]];
        let found = || {
            [0, 1].map(|node| {
                ["volumes", "snapshots"].map(|place| {
                    let mut names = names_in(&self.cluster.nodes[node].world.data.join(place));
                    names.retain(|name| !(with_cut && name == cut));
                    names
                })
            })
        };
        let started = Instant::now();
        while found() != expected {
            ensure!(started.elapsed() < PATIENCE, "expected {expected:?}, found {:?}", found());
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    fn with_logs(&self, problem: &str) -> String {
        let [here, there] = &self.cluster.nodes;
        with_log(&there.world, &with_log(&here.world, problem))
    }

    fn finish(self, pull: Pull) {
        let here = &self.cluster.nodes[0];
        if pull.from == From::Volume {
            Vol::of(&here.world, pull.kind, self.source.clone()).down();
        }
        self.cluster.csi.delete_snapshot(&self.snapshot.snapshot_id).expect("DeleteSnapshot");
        self.cluster.csi.delete(&self.source.volume_id).expect("DeleteVolume");
        self.cluster.finish();
    }
}

/// A bench for the runs of a pull, made anew after one that failed.
pub struct Place {
    pull: Pull,
    bench: Option<Bench>,
}

impl Place {
    pub fn new(pull: Pull) -> Place {
        Place { pull, bench: None }
    }

    /// What the node changes when nothing happens to it.
    pub fn record(&mut self) -> Result<Vec<Change>, String> {
        self.on_bench(None).map(|(_, changes)| changes)
    }

    /// Makes the copy with something happening at one position.
    pub fn walk(&mut self, plan: &Plan) -> Outcome {
        self.on_bench(Some(plan)).map(|(done, _)| done)
    }

    fn on_bench(&mut self, plan: Option<&Plan>) -> Result<(Done, Vec<Change>), String> {
        let (pull, mut bench) = (self.pull, self.bench.take());
        let done = catch_unwind(AssertUnwindSafe(|| {
            let mut bench = bench.take().unwrap_or_else(|| Bench::new(pull));
            let outcome = copy(&mut bench, pull, plan).map_err(|problem| bench.with_logs(&problem));
            (outcome, bench)
        }));
        match done {
            Ok((outcome, bench)) => {
                self.bench = outcome.is_ok().then_some(bench);
                outcome
            }
            Err(panic) => Err(said(&*panic)),
        }
    }

    /// Nothing is left. A cut that a run left, since its end was not told to the source's node, goes with the next pull.
    pub fn finish(self) -> Verdict {
        let Some(mut bench) = self.bench else { return Ok(()) };
        if self.pull.from == From::Volume {
            copy(&mut bench, self.pull, None)?;
        }
        catch_unwind(AssertUnwindSafe(|| bench.finish(self.pull))).map_err(|panic| said(&*panic))
    }
}

type Answer = Result<csi::Volume, Status>;

/// Makes a call in a thread, so that its node can be started again while it waits.
fn begun(bench: &Bench, request: &csi::CreateVolumeRequest) -> Receiver<Answer> {
    let (csi, request) = (bench.cluster.client(), request.clone());
    let (tell, told) = channel();
    std::thread::spawn(move || {
        // Nobody listens after a failure.
        let _ = tell.send(csi.create(request));
    });
    told
}

fn copy(bench: &mut Bench, pull: Pull, plan: Option<&Plan>) -> Result<(Done, Vec<Change>), String> {
    if pull.from == From::Volume && pull.side == Side::Target {
        // It counts how often a node has volumes cut in a minute, and refuses more than thirty.
        bench.cluster.nodes[0].world.restart_after_kill();
    }
    let (request, names) = (bench.request(pull), bench.names(pull.side));
    let world = bench.traced(pull.side);
    let (driver, log) = (world.driver().pid(), world.dir.join("log"));
    let mut told = None;
    let (answer, mut traced) = trace(driver, &log, names, plan.cloned(), || {
        let told = told.insert(begun(bench, &request));
        let started = Instant::now();
        loop {
            match told.recv_timeout(Duration::from_millis(20)) {
                Ok(answer) => return Some(answer),
                // The other node waits for it, and goes on when it is there again.
                Err(_) if bench.traced(pull.side).driver().state() == 'Z' => return None,
                Err(_) if started.elapsed() > PATIENCE => return None,
                Err(_) => {}
            }
        }
    });
    let done = Done { met: traced.met, late: None };
    let changes = traced.changes.clone();
    let (answer, done) = if traced.driver_killed {
        bench.traced(pull.side).restart_after_kill();
        std::thread::scope(|scope| {
            let (answered, wait) = channel::<()>();
            scope.spawn(move || {
                // Disconnected is the sign.
                let _ = wait.recv_timeout(HELD);
                traced.release();
            });
            let answer = answer.or_else(|| told?.recv_timeout(PATIENCE).ok());
            drop(answered);
            finished(bench, &request, answer, done)
        })
    } else {
        traced.release();
        finished(bench, &request, answer, done)
    }?;
    if pull.from == From::Volume {
        let here = &bench.cluster.nodes[0].world;
        writable(PATIENCE, &Vol::of(here, pull.kind, bench.source.clone()).staging())?;
    }
    let data = content(&bench.cluster.nodes[1], pull.kind, &answer, LEN);
    ensure!(data == pattern(5, LEN), "other data in the copy");
    for again in [false, true] {
        if again {
            bench.traced(pull.side).restart_after_kill();
        }
        bench.has_only(&answer.volume_id, plan.is_some())?;
    }
    let started = Instant::now();
    while let Err(status) = bench.cluster.csi.delete(&answer.volume_id) {
        ensure!(started.elapsed() < PATIENCE, "it cannot be deleted: {status}");
        std::thread::sleep(Duration::from_millis(50));
    }
    bench.has_only("", plan.is_some())?;
    Ok((done, changes))
}

/// The volume that its caller has in the end, by calling again.
fn finished(
    bench: &Bench,
    request: &csi::CreateVolumeRequest,
    answer: Option<Answer>,
    mut done: Done,
) -> Result<(csi::Volume, Done), String> {
    let mut answer = answer.ok_or("the call has no answer")?;
    let started = Instant::now();
    loop {
        let status = match answer {
            Ok(volume) => return Ok((volume, done)),
            Err(status) => status,
        };
        ensure!(done.met, "the call fails: {status}");
        // Nothing is wrong with the request, which is repeated: the caller must not be told so.
        // An EBUSY may well be a FAILED_PRECONDITION.
        let wrong =
            [Code::Unknown, Code::InvalidArgument, Code::Unimplemented, Code::Cancelled, Code::NotFound];
        ensure!(!wrong.contains(&status.code()), "it became {status}");
        ensure!(started.elapsed() < PATIENCE, "the retry fails: {status}");
        done.late = Some(status.to_string());
        std::thread::sleep(Duration::from_millis(50));
        answer = bench.cluster.csi.create(request.clone());
    }
}
