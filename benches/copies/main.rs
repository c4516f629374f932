//! What copies cost: snapshot, restore, clone and delete of a volume that is written to meanwhile, the longest stall
//! of its writer, and the space taken, in pools on xfs, btrfs, ext4 and in a managed pool on ext4; and a delta of two
//! snapshots.
//!
//! `cargo bench --bench copies -- [--dir DIR] [--runs N] [--pool NAME] [--data MIB]`, as root. DIR lies on ext4 and has
//! 30 GiB free for the larger volume. Without --runs and --data it measures the table of docs/performance.md: 9 runs
//! with 256 MiB of data, 3 runs with 8 GiB.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a measurement stops at the first surprise"
)]

mod client;
mod delta;
mod disk;
mod stall;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use client::Caller;
use disk::{Disk, PoolKind};
use hostloop::selftest::client::Client;
use hostloop::selftest::process::DriverProcess;
use hostloop::selftest::requests::MadeFrom;
use stall::Writer;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// How long the writer is watched while nothing is copied.
const QUIET: Duration = Duration::from_millis(300);
const PROGRAM: &str = env!("CARGO_BIN_EXE_hostloop");

/// What a run measured.
#[derive(Default)]
struct Times {
    names: Vec<&'static str>,
    times: Vec<Vec<Duration>>,
}

impl Times {
    fn add(&mut self, name: &'static str, time: Duration) {
        let index = self.names.iter().position(|known| *known == name).unwrap_or_else(|| {
            self.names.push(name);
            self.times.push(Vec::new());
            self.names.len() - 1
        });
        self.times[index].push(time);
    }

    fn count(&self, name: &str) -> usize {
        self.names.iter().position(|known| *known == name).map_or(0, |index| self.times[index].len())
    }

    fn median(&mut self, name: &str) -> f64 {
        let index = self.names.iter().position(|known| *known == name).unwrap();
        self.times[index].sort_unstable();
        self.times[index][self.times[index].len() / 2].as_secs_f64() * 1000.0
    }

    fn most(&mut self, name: &str) -> f64 {
        let index = self.names.iter().position(|known| *known == name).unwrap();
        self.times[index].iter().max().unwrap().as_secs_f64() * 1000.0
    }
}

fn main() {
    let word = |name: &str| std::env::args().skip_while(|arg| arg != name).nth(1);
    let dir = PathBuf::from(word("--dir").unwrap_or_else(|| "/var/tmp".to_owned()));
    let runs = word("--runs").map(|runs| runs.parse::<usize>().expect("--runs is a number"));
    let only = word("--pool");
    let data = word("--data").map(|data| data.parse::<u64>().expect("--data is a number of MiB") * MIB);
    // Size, data, runs.
    let volumes = match data {
        Some(data) => vec![(data + 2 * GIB, data, 9)],
        None => vec![(2 * GIB, 256 * MIB, 9), (10 * GIB, 8 * GIB, 3)],
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    println!("Medians, and for stalls the longest, in milliseconds; space in MiB\n");
    println!(
        "| pool | data | runs | snapshot | stall | snapshot, freeze=false | stall | restore | clone | stall | stall without copy | delete | used before | + snapshot | + restore | + clone |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|");
    for kind in
        PoolKind::ALL.into_iter().filter(|kind| only.as_deref().is_none_or(|only| only == kind.name()))
    {
        for (bytes, held, default) in &volumes {
            runtime.block_on(copies(&dir, kind, *bytes, *held, runs.unwrap_or(*default)));
        }
    }
    if only.is_none() || only.as_deref() == Some("delta") {
        runtime.block_on(delta::measure(&dir));
    }
}

/// A driver whose pool is on this disk, ready.
async fn driver(place: &Path, disk: &Disk) -> (DriverProcess, Caller) {
    let mut driver = DriverProcess::start_with(Path::new(PROGRAM), place, &disk.flags()).unwrap();
    let client = Client::new(&DriverProcess::socket(place)).unwrap();
    driver.ready(&client).await.unwrap();
    (driver, Caller::new(client, disk.pool()))
}

async fn copies(dir: &Path, kind: PoolKind, bytes: u64, held: u64, runs: usize) {
    let place = tempfile::Builder::new().prefix("hostloop-bench-").tempdir_in(dir).unwrap();
    let disk = Disk::make(place.path(), kind, held);
    let (driver, caller) = driver(place.path(), &disk).await;
    let volume = caller.create("source", bytes, None).await;
    let mounted = caller.stage(&volume, place.path()).await;
    stall::fill(&mounted.join("data"), held);
    let mut times = Times::default();
    let mut space = [0u64; 4];
    for run in 0..runs {
        space[0] = disk.used();
        let writer = Writer::start(&mounted.join("log"));
        std::thread::sleep(QUIET);
        times.add("stall of nothing", writer.stop());
        // `cp` beside the same writer, right before or right after ours, in turns: both meet the same disk.
        if kind == PoolKind::Ext4 && run % 2 == 0 {
            plain_copy(&disk, &volume, &mounted, &mut times);
        }
        let writer = Writer::start(&mounted.join("log"));
        let started = Instant::now();
        let running = caller.snapshot(&format!("running-{run}"), &volume, "false").await;
        times.add("running", started.elapsed());
        times.add("stall of running", writer.stop());
        caller.delete_snapshot(&running).await;
        if kind == PoolKind::Ext4 && run % 2 == 1 {
            plain_copy(&disk, &volume, &mounted, &mut times);
        }
        let writer = Writer::start(&mounted.join("log"));
        let started = Instant::now();
        let snapshot = caller.snapshot(&format!("snapshot-{run}"), &volume, "true").await;
        times.add("snapshot", started.elapsed());
        times.add("stall of snapshot", writer.stop());
        space[1] = disk.used();
        let started = Instant::now();
        let restored = caller
            .create(&format!("restored-{run}"), bytes, Some(MadeFrom::Snapshot(snapshot.clone())))
            .await;
        times.add("restore", started.elapsed());
        space[2] = disk.used();
        caller.delete(&restored).await;
        let writer = Writer::start(&mounted.join("log"));
        let started = Instant::now();
        let clone =
            caller.create(&format!("clone-{run}"), bytes, Some(MadeFrom::Volume(volume.clone()))).await;
        times.add("clone", started.elapsed());
        times.add("stall of clone", writer.stop());
        space[3] = disk.used();
        let started = Instant::now();
        caller.delete(&clone).await;
        times.add("delete", started.elapsed());
        caller.delete_snapshot(&snapshot).await;
    }
    print_row(kind, held, &mut times, space);
    caller.unstage(&volume, place.path()).await;
    caller.delete(&volume).await;
    driver.stop().await.unwrap();
    disk.remove();
}

/// The same image with `cp --sparse=always` and a sync of the copy, for comparison, while the same writer writes.
fn plain_copy(disk: &Disk, volume: &str, mounted: &Path, times: &mut Times) {
    let image = disk.directory().join("volumes").join(volume).join("disk.img");
    let copy = disk.directory().join("plain-copy.img");
    let writer = Writer::start(&mounted.join("log"));
    let started = Instant::now();
    disk::run("cp", &["--sparse=always", image.to_str().unwrap(), copy.to_str().unwrap()]);
    disk::run("sync", &[copy.to_str().unwrap()]);
    times.add("cp", started.elapsed());
    times.add("stall of cp", writer.stop());
    std::fs::remove_file(copy).unwrap();
}

fn print_row(kind: PoolKind, held: u64, times: &mut Times, space: [u64; 4]) {
    let mib = |index: usize| space[index].saturating_sub(space[0]) / MIB;
    println!(
        "| {} | {} MiB | {} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {} | {} | {} | {} |",
        kind.name(),
        held / MIB,
        times.count("snapshot"),
        times.median("snapshot"),
        times.most("stall of snapshot"),
        times.median("running"),
        times.most("stall of running"),
        times.median("restore"),
        times.median("clone"),
        times.most("stall of clone"),
        times.most("stall of nothing"),
        times.median("delete"),
        space[0] / MIB,
        mib(1),
        mib(2),
        mib(3),
    );
    if kind == PoolKind::Ext4 {
        let plain = times.median("cp");
        println!(
            "\ncp --sparse=always and sync beside the same writer: {plain:.1}, its longest stall {:.1}. A snapshot with \
             freeze=false, while the writer goes on as well, takes {:.2} times as long, one with freeze {:.2} times.\n",
            times.most("stall of cp"),
            times.median("running") / plain,
            times.median("snapshot") / plain,
        );
    }
}
