//! One seed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use hostloop::wire::csi;
use tokio::time::{Instant, sleep};

use crate::calls::{Client, Failure};
use crate::harness::{Cluster, DATA_DIR, DIRECTORIES_DIR};
use crate::life::Left;
use crate::machine::{FAST_DIR, Machine};
use crate::moves::{self, Claim, Moves};
use crate::random::Random;
use crate::{libc, nemesis, schedule};

static SHOWN: OnceLock<bool> = OnceLock::new();

/// Whether everything is printed.
pub fn is_shown() -> bool {
    SHOWN.get().copied().unwrap_or_default()
}

static WITHIN: OnceLock<bool> = OnceLock::new();

/// Whether volumes move to other pools of their nodes as well.
pub fn is_within() -> bool {
    WITHIN.get().copied().unwrap_or_default()
}

static DIRECTORY: OnceLock<PathBuf> = OnceLock::new();

/// Where the process has its files, which is not part of a run: another process of the same seed has them elsewhere.
pub fn directory() -> &'static Path {
    DIRECTORY.get().map(PathBuf::as_path).unwrap_or(Path::new("/nowhere"))
}

/// Removes them.
pub fn clean() {
    let _ = std::fs::remove_dir_all(directory());
}

/// Runs a seed on this thread, says how it ended, and ends the process.
pub fn seed(seed: u64, shown: bool, within: bool, directory: PathBuf) -> ! {
    let _ = (SHOWN.set(shown), WITHIN.set(within), DIRECTORY.set(directory));
    schedule::begin(seed);
    ahash::random_state::set_random_source(Counter::default()).expect("no hash map has been seeded");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.block_on(simulate(seed))));
    let ended = ended.unwrap_or_else(|_| Err("a panic".to_owned()));
    let (trace, choices, time) =
        (schedule::trace(), schedule::choices(), schedule::elapsed() / 1_000_000_000);
    let tail = format!("trace={trace:016x} choices={choices} seconds={time}");
    match ended {
        Ok(()) => println!("PASSED seed={seed} {tail}"),
        Err(why) => println!("FAILED seed={seed} {tail}: {why}"),
    }
    libc::leave(0)
}

/// What seeds the hash maps of kube, which would otherwise count from an address on the heap.
#[derive(Default)]
struct Counter(AtomicUsize);

impl ahash::random_state::RandomSource for Counter {
    fn gen_hasher_seed(&self) -> usize {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

async fn simulate(seed: u64) -> Result<(), Failure> {
    let mut random = Random::new(seed ^ 0x5eed);
    let (lives, rage) = (2 + random.below(4), 15 + random.below(75) as u64);
    // Nothing else is drawn from what decides about moves.
    let moves = (is_within() || moves::are_in(seed))
        .then(|| Moves::new(Random::new(seed ^ 0x0e5), moves::stand_by_in(seed)));
    let lives = match &moves {
        // Nodes are away for longer than callers wait, and some lose their disks.
        Some(moves) if moves.standby => 0,
        Some(_) => lives.min(2),
        None => lives,
    };
    let cluster = Cluster::start(random.fork(), moves).await;
    let client = |name: String| Client { cluster: Arc::clone(&cluster), name };
    let until = Instant::now() + Duration::from_secs(rage);
    let mut running = tokio::task::JoinSet::new();
    for number in 0..lives {
        let client = client(format!("v{number}"));
        running.spawn(async move { client.live().await });
    }
    let mut moving = tokio::task::JoinSet::new();
    if let Some(moves) = &cluster.moves {
        moves.begin(&cluster);
        for number in 0..moves.claims {
            moving.spawn(Claim::new(&cluster, moves, number).live());
        }
    }
    nemesis::rage(&cluster, until).await;
    let mut left = Left::default();
    while let Some(life) = running.join_next().await {
        let Left { volumes, snapshots, deleted } = life.map_err(|error| format!("a panic: {error}"))??;
        left.volumes.extend(volumes);
        left.snapshots.extend(snapshots);
        left.deleted.extend(deleted);
    }
    while let Some(moved) = moving.join_next().await {
        moved.map_err(|error| format!("a panic: {error}"))??;
    }
    end(&cluster, left).await
}

/// Checks that everything exists as the answers said, and that nothing is left after its deletion.
async fn end(cluster: &Arc<Cluster>, left: Left) -> Result<(), Failure> {
    crate::log(|| "all lives are over".to_owned());
    // What came late has come by now.
    sleep(Duration::from_secs(35)).await;
    let last = Client { cluster: Arc::clone(cluster), name: "the end".to_owned() };
    // An order that came again after what it made was deleted made it again: whoever finds it in the list deletes it.
    let stale = cluster.faults.stale.lock().unwrap().clone();
    let is_left = |id: &String| {
        left.volumes.iter().any(|volume| volume.id == *id)
            || left.snapshots.iter().any(|snapshot| snapshot.id == *id)
    };
    let moved = stale.iter().filter(|id| cluster.moves.is_some() && !is_left(id));
    for id in left.deleted.iter().filter(|id| stale.contains(*id)).chain(moved) {
        match id.starts_with("snap-") {
            true => last.delete_snapshot(id).await?,
            false => last.delete_volume(id).await?,
        }
    }
    listed(&last, &left).await?;
    for volume in &left.volumes {
        last.check(volume).await?;
    }
    for snapshot in &left.snapshots {
        last.delete_snapshot(&snapshot.id).await?;
    }
    for volume in &left.volumes {
        last.end(volume).await?;
    }
    listed(&last, &Left::default()).await?;
    nothing_left(cluster).await?;
    cluster.moves.as_ref().map_or(Ok(()), |moves| moves.is_right())
}

/// The lists have what was answered and not deleted, each once, and nothing else.
async fn listed(client: &Client, left: &Left) -> Result<(), Failure> {
    let volumes = client.controller("ListVolumes", csi::ListVolumesRequest::default).await?;
    let volumes: Vec<String> =
        volumes.entries.into_iter().filter_map(|entry| entry.volume).map(|v| v.volume_id).collect();
    same("volumes", &volumes, left.volumes.iter().map(|volume| &volume.id))?;
    let request = csi::ListSnapshotsRequest::default;
    let snapshots = client.controller("ListSnapshots", request).await?;
    let snapshots: Vec<String> =
        snapshots.entries.into_iter().filter_map(|entry| entry.snapshot).map(|s| s.snapshot_id).collect();
    same("snapshots", &snapshots, left.snapshots.iter().map(|snapshot| &snapshot.id))
}

fn same<'a>(what: &str, found: &[String], wanted: impl Iterator<Item = &'a String>) -> Result<(), Failure> {
    let (all, wanted): (BTreeSet<&String>, BTreeSet<&String>) = (found.iter().collect(), wanted.collect());
    if all == wanted && all.len() == found.len() {
        return Ok(());
    }
    let (lost, more): (Vec<_>, Vec<_>) =
        (wanted.difference(&all).collect(), all.difference(&wanted).collect());
    Err(format!("{what}: lost {lost:?}, nobody was told of {more:?}, {} entries", found.len()))
}

/// When every volume was deleted, the machines are as they were: also what was made for other nodes goes after a while.
async fn nothing_left(cluster: &Cluster) -> Result<(), Failure> {
    cluster.stop_controllers().await;
    cluster.moves.iter().for_each(|moves| moves.end());
    // The cuts for a copy whose source could not be reached when it was deleted go after a day.
    let day = Duration::from_secs(if cluster.moves.is_some() { 25 * 3600 } else { 0 });
    let until = Instant::now() + hostloop::app::IDLE_SOURCES + Duration::from_secs(150) + day;
    loop {
        let found: Vec<String> = cluster.machines.iter().filter_map(remains).collect();
        match found.is_empty() {
            true => return Ok(()),
            false if Instant::now() > until => return Err(found.join("; ")),
            false => sleep(Duration::from_secs(10)).await,
        }
    }
}

/// What a machine still has.
fn remains(machine: &Machine) -> Option<String> {
    let (id, kernel) = (&machine.id, &machine.kernel);
    let places = [DATA_DIR, DIRECTORIES_DIR, FAST_DIR]
        .map(|dir| ["volumes", "snapshots"].map(|name| format!("{dir}/{name}")));
    let files = places.as_flattened().iter().map(|place| kernel.tree(place)).find(|found| !found.is_empty());
    let (hazards, loops, mounts) = (kernel.hazards(), kernel.loops(), kernel.mounts());
    let disks = |target: &std::path::Path| {
        [DATA_DIR, DIRECTORIES_DIR, FAST_DIR].iter().any(|dir| target == std::path::Path::new(dir))
    };
    let mounts: Vec<_> = mounts.into_iter().filter(|mount| !disks(&mount.target)).collect();
    let clean = files.is_none() && hazards.is_empty() && loops.is_empty() && mounts.is_empty();
    (!clean).then(|| format!("{id} has {files:?}, {loops:?}, {mounts:?}, hazards {hazards:?}"))
}
