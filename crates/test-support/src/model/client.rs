//! Clients that make calls at the same time, and note what came of them.
//!
//! A client makes random calls by the names of volumes that may not exist, and so leads no volume through a life: all
//! but a probe, which does, build their calls from the shared requests alone.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hostloop::kernel::is_errno;
use hostloop::wire::csi;
use nix::errno::Errno;
use tokio::sync::RwLock;
use tokio::task::JoinSet;
use tonic::{Code, Status};

use super::call::{Answer, Call, From, Made, Mode, Outcome, Wanted};

use super::random::Random;
use super::rpc::Caller;
use super::{Machine, Rpc, Setup};
use crate::client::{self, Volume};

pub(super) const FINE: Wanted = Wanted { mode: Mode::Writer, other_access: false };

/// The clients of one run.
pub struct Clients {
    pub setup: Setup,
    pub machine: Arc<dyn Machine>,
    began: Instant,
    /// No pod writes to a target while it is taken away: what it wrote would lie below the mount.
    targets: Vec<RwLock<()>>,
    made: Mutex<Vec<Made>>,
    /// What copies held, as it was read.
    held: Mutex<Vec<((From, u64), u32)>>,
    /// What is wrong whatever the model says.
    wrong: Mutex<Vec<String>>,
    /// The names of volumes that a kill kept from being deleted.
    left: Mutex<BTreeSet<String>>,
    chosen: AtomicUsize,
}

impl Clients {
    pub fn new(setup: Setup, machine: Arc<dyn Machine>) -> Clients {
        Clients {
            targets: setup.volumes.iter().map(|_| RwLock::new(())).collect(),
            setup,
            machine,
            began: Instant::now(),
            made: Mutex::default(),
            held: Mutex::default(),
            wrong: Mutex::default(),
            left: Mutex::default(),
            chosen: AtomicUsize::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// How many calls were chosen so far; counts one more.
    pub(super) fn count(&self) -> usize {
        self.chosen.fetch_add(1, Ordering::Relaxed)
    }

    /// The calls since the last time that somebody asked.
    pub fn take_made(&self) -> Vec<Made> {
        std::mem::take(&mut self.made.lock().expect("a lock"))
    }

    pub fn take_held(&self) -> Vec<((From, u64), u32)> {
        std::mem::take(&mut self.held.lock().expect("a lock"))
    }

    pub fn take_wrong(&self) -> Vec<String> {
        std::mem::take(&mut self.wrong.lock().expect("a lock"))
    }

    fn wrong(&self, what: String) {
        self.wrong.lock().expect("a lock").push(what);
    }

    /// Lets every client make calls until there were so many, or until the driver is gone.
    pub async fn run(self: &Arc<Self>, rpc: &[Rpc], randoms: &mut [Random], calls: usize) {
        let left = Arc::new(AtomicUsize::new(calls));
        let mut running = JoinSet::new();
        for (client, random) in randoms.iter().cloned().enumerate() {
            let (all, rpc, left) = (Arc::clone(self), rpc[client % rpc.len()].clone(), Arc::clone(&left));
            running.spawn(async move {
                let mut client = Client { all: &all, rpc, client, random };
                let one = |n: usize| n.checked_sub(1);
                while !all.machine.is_gone()
                    && left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one).is_ok()
                {
                    let call = client.choose();
                    client.make(call).await;
                }
                (client.client, client.random)
            });
        }
        while let Some(ended) = running.join_next().await {
            let (client, random) = ended.expect("no client panics");
            randoms[client] = random;
        }
    }

    /// Makes these calls, one after the other, as one more client.
    pub async fn make_all(self: &Arc<Self>, rpc: &Rpc, calls: impl IntoIterator<Item = Call>) {
        let mut client = Client { all: self, rpc: rpc.clone(), client: usize::MAX, random: Random::new(0) };
        for call in calls {
            client.make(call).await;
        }
    }

    /// Sees what there is when no other call runs.
    pub async fn look(self: &Arc<Self>, rpc: &Rpc) {
        self.make_all(rpc, [Call::ListVolumes(0), Call::ListSnapshots(0)]).await;
        self.make_all(rpc, (0..self.setup.groups).map(|g| Call::GetGroup { g, wrong_members: false })).await;
        let read = |v| (0..self.setup.pods).map(move |pod| Call::Read { v, pod });
        self.make_all(rpc, (0..self.setup.volumes.len()).flat_map(read)).await;
    }

    /// Deletes the volumes of probes that a kill has left.
    pub async fn clear_probes(self: &Arc<Self>, rpc: &Rpc) {
        let left = std::mem::take(&mut *self.left.lock().expect("a lock"));
        let client = Client { all: self, rpc: rpc.clone(), client: usize::MAX, random: Random::new(0) };
        for name in left {
            if let Err(status) = client.take_down(&name).await
                && !self.machine.is_gone()
            {
                self.wrong(format!("what is left of {name} cannot be deleted: {status:?}"));
            }
        }
    }

    /// Deletes everything; each call must succeed.
    pub async fn tear_down(self: &Arc<Self>, rpc: &Rpc) {
        let setup = &self.setup;
        let mut calls = Vec::new();
        for v in 0..setup.volumes.len() {
            calls.extend((0..setup.pods).map(|pod| Call::Read { v, pod }));
            calls.extend((0..setup.pods).map(|pod| Call::Unpublish { v, pod }));
            calls.extend([Call::Unstage(v), Call::Detach { v, other_node: false }, Call::Delete(v)]);
        }
        calls.extend((0..setup.snapshots).map(Call::DeleteSnapshot));
        calls.extend((0..setup.groups).map(|g| Call::DeleteGroup { g, wrong_members: false }));
        calls.extend([Call::ListVolumes(0), Call::ListSnapshots(0)]);
        self.make_all(rpc, calls).await;
    }

    /// Reads what every snapshot and volume holds, in volumes made from them.
    pub async fn read_all(self: &Arc<Self>, rpc: &Rpc) {
        let setup = &self.setup;
        let members =
            (0..setup.groups).flat_map(|g| (0..setup.volumes.len()).map(move |v| From::Member(g, v)));
        let all = (0..setup.snapshots).map(From::Snapshot).chain(members);
        let probes = all.zip(1_000_000_000..).map(|(from, number)| Call::Probe { number, from });
        self.make_all(rpc, probes.collect::<Vec<_>>()).await;
    }
}

/// One of them.
pub(super) struct Client<'a> {
    pub(super) all: &'a Arc<Clients>,
    rpc: Rpc,
    pub(super) client: usize,
    pub(super) random: Random,
}

impl Client<'_> {
    fn caller(&self) -> Caller<'_> {
        Caller { setup: &self.all.setup, machine: &*self.all.machine, rpc: self.rpc.clone() }
    }

    /// Notes an answer, unless the driver had been killed by then.
    fn note(&self, call: Call, (start, wall): (u64, u64), outcome: Outcome) {
        let of_driver = !matches!(call, Call::Write { .. } | Call::Read { .. });
        let cut = of_driver && self.all.machine.is_gone();
        let (end, outcome) = if cut { (u64::MAX, Outcome::Cut) } else { (self.all.now(), outcome) };
        match (&call, &outcome) {
            (Call::Other(_), Outcome::Err(..)) => self.all.wrong(format!("{call:?}: {outcome:?}")),
            (Call::Invalid(_), Outcome::Err(Code::InvalidArgument, _) | Outcome::Cut) => {}
            (Call::Invalid(_), _) => self.all.wrong(format!("{call:?}: {outcome:?}")),
            (_, Outcome::Err(_, message)) if message.trim().is_empty() => {
                self.all.wrong(format!("{call:?}: an error without a message"));
            }
            _ => {}
        }
        let made = Made { call, start, end, wall: (wall, wall_now()), outcome };
        self.all.made.lock().expect("a lock").push(made);
    }

    fn begin(&self) -> (u64, u64) {
        (self.all.now(), wall_now())
    }

    /// Makes a call and notes its answer.
    async fn make(&mut self, call: Call) {
        match call {
            Call::Write { v, pod, value } => self.write(v, pod, value).await,
            Call::Read { v, pod } => self.read(v, pod).await,
            Call::Probe { number, from } => self.probe(number, from).await,
            Call::ListVolumes(_) | Call::ListSnapshots(_) => self.list(call).await,
            Call::Unpublish { v, .. } => {
                let _pods = self.all.targets[v].read().await;
                self.send(call).await;
            }
            call => {
                self.send(call).await;
            }
        }
    }

    async fn send(&mut self, call: Call) -> Option<Answer> {
        let began = self.begin();
        let answer = self.caller().send(&call).await;
        let good = answer.as_ref().ok().cloned().filter(|_| !self.all.machine.is_gone());
        self.note(call, began, outcome(answer));
        good
    }

    async fn list(&mut self, call: Call) {
        let (began, all) = (self.begin(), Arc::clone(self.all));
        let now = || all.now();
        let answer = match call {
            Call::ListVolumes(entries) => self.caller().list_volumes(entries, now).await,
            Call::ListSnapshots(entries) => self.caller().list_snapshots(entries, now).await,
            _ => unreachable!("no list"),
        };
        if let (Ok(Outcome::List(listed)), false) = (&answer, self.all.machine.is_gone()) {
            let ids: BTreeSet<_> = listed.iter().map(|listed| &listed.id).collect();
            if ids.len() != listed.len() {
                self.all.wrong(format!("{call:?} shows something twice: {listed:?}"));
            }
        }
        match answer {
            // The pages that were read say nothing of what was not on them.
            Err(_) if self.all.machine.is_gone() => {}
            Err(status) => self.all.wrong(format!("{call:?}: {status:?}")),
            Ok(list) => self.note(call, began, list),
        }
    }

    /// A pod writes, where it finds the volume mounted and may.
    async fn write(&mut self, v: usize, pod: usize, value: u32) {
        let _alone = self.all.targets[v].write().await;
        let (machine, id) = (&self.all.machine, self.all.setup.volume_id(v));
        let (target, kind) = (machine.target(&id, pod), self.all.setup.volumes[v].kind);
        if machine.mounts().get(&target) != Some(&false) {
            return;
        }
        let began = self.begin();
        loop {
            let (pod_of, id, path) = (Arc::clone(machine), id.clone(), target.clone());
            // It waits while the filesystem is frozen.
            let written = tokio::task::spawn_blocking(move || pod_of.write(&id, kind, &path, value));
            match written.await.expect("no panic") {
                Ok(()) => {
                    return self.note(Call::Write { v, pod, value }, began, Outcome::Ok(Answer::default()));
                }
                Err(error) if is_errno(&error, Errno::EAGAIN) => {
                    tokio::time::sleep(Duration::from_millis(1)).await
                }
                // A device may be read-only where its mount is not; a filesystem may be full.
                Err(error) if is_errno(&error, Errno::EROFS) || is_errno(&error, Errno::EPERM) => return,
                Err(error) => return self.all.wrong(format!("write to {target}: {error}")),
            }
        }
    }

    async fn read(&mut self, v: usize, pod: usize) {
        let _alone = self.all.targets[v].write().await;
        let (machine, id) = (&self.all.machine, self.all.setup.volume_id(v));
        let (target, kind) = (machine.target(&id, pod), self.all.setup.volumes[v].kind);
        if !machine.mounts().contains_key(&target) {
            return;
        }
        let began = self.begin();
        match machine.read(kind, &target) {
            Ok(value) => {
                self.note(Call::Read { v, pod }, began, Outcome::Ok(Answer { value, ..Answer::default() }))
            }
            Err(error) => self.all.wrong(format!("read of {target}: {error}")),
        }
    }

    /// Asks for the source, makes a volume from it, reads that and deletes it, and asks again.
    async fn probe(&mut self, number: usize, from: From) {
        let ask = match from {
            From::Snapshot(s) => Call::GetSnapshot(s),
            From::Member(g, v) => Call::GetMember { g, v },
            From::Volume(v) => Call::Get(v),
        };
        let Some(before) = self.send(ask.clone()).await else { return };
        let v = if let From::Volume(v) = from { v } else { before.source };
        let name = format!("probe-{number}");
        self.all.left.lock().expect("a lock").insert(name.clone());
        let request = self.caller().create_request(v, &name, (0, 0), Some(from), FINE);
        let (began, call) = (self.begin(), Call::Probe { number, from });
        let made = match self.rpc.call(request).await {
            Ok(made) => made.volume.expect("a volume"),
            Err(status) => return self.note(call, began, outcome(Err(status))),
        };
        let (ended, bytes) = (self.all.now(), made.capacity_bytes as u64);
        let wall = (began.1, wall_now());
        let value = match self.read_probe(&name, v, made).await {
            Ok(value) => value,
            // It kept others from its source all the same.
            Err(_) if self.all.machine.is_gone() => return self.note(call, began, Outcome::Cut),
            Err(error) => return self.all.wrong(format!("{name} from {from:?}: {error}")),
        };
        self.all.left.lock().expect("a lock").remove(&name);
        let answer = Answer { bytes, value, ..Answer::default() };
        let outcome = Outcome::Ok(answer);
        let made = Made { call, start: began.0, end: ended, wall, outcome };
        self.all.made.lock().expect("a lock").push(made);
        if !matches!(from, From::Volume(_))
            && let Some(after) = self.send(ask).await
            && after.created == before.created
        {
            self.all.held.lock().expect("a lock").push(((from, before.created), value));
        }
    }

    /// Uses a volume that is nobody else's: every call must succeed.
    async fn read_probe(&mut self, name: &str, v: usize, made: csi::Volume) -> Result<u32, String> {
        let (setup, machine) = (&self.all.setup, Arc::clone(&self.all.machine));
        let (kind, staging) = (setup.volumes[v].kind, machine.staging(&made.volume_id));
        let volume = Volume::new(made, super::rpc::capability(kind, FINE), staging);
        let target = machine.target(&volume.id, 0);
        machine.prepare(&volume.id);
        let said = |what: &'static str| move |status: Status| format!("{what}: {status:?}");
        let rpc = &self.rpc;
        rpc.call(volume.attach_request(&setup.node, false)).await.map_err(said("attach"))?;
        rpc.call(volume.stage_request()).await.map_err(said("stage"))?;
        rpc.call(volume.publish_request(&target)).await.map_err(said("publish"))?;
        let value = machine.read(kind, &target).map_err(|error| format!("read: {error}"))?;
        self.take_down(name).await.map_err(said("take down"))?;
        Ok(value)
    }

    /// Takes a volume of a probe away, as far as it is there.
    async fn take_down(&self, name: &str) -> Result<(), Status> {
        let (machine, rpc, id) = (&self.all.machine, &self.rpc, self.all.setup.id_of(name));
        let unpublish = client::unpublish(&id, machine.target(&id, 0));
        let unstage = client::unstage(&id, machine.staging(&id));
        // From every node.
        let detach = client::detach(&id, "");
        let unless_gone = |status: Status| if status.code() == Code::NotFound { Ok(()) } else { Err(status) };
        rpc.call(unpublish).await.map(drop).or_else(unless_gone)?;
        rpc.call(unstage).await.map(drop).or_else(unless_gone)?;
        rpc.call(detach).await?;
        rpc.call(client::delete(&id)).await.map(drop)
    }
}

fn wall_now() -> u64 {
    std::time::UNIX_EPOCH.elapsed().expect("a clock after 1970").as_nanos() as u64
}

fn outcome(answer: Result<Answer, Status>) -> Outcome {
    match answer {
        Ok(answer) => Outcome::Ok(answer),
        Err(status) => Outcome::Err(status.code(), status.message().to_owned()),
    }
}
