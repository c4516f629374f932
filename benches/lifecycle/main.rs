//! What a volume's life costs, beside the bare system calls for the same work, on the same disk, run by run.
//!
//! `cargo bench --bench lifecycle -- [--dir DIR] [--runs N]`, as root.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a measurement stops at the first surprise"
)]

mod clients;
mod crowd;
mod raw;
mod roles;
mod start;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use comfy_table::{CellAlignment, Table, presets};
use hostloop::config::Check;
use hostloop::os::linux::{self, Tools};
use hostloop::selftest::client::Client;
use hostloop::selftest::process::DriverProcess;
use hostloop::selftest::requests;

const KINDS: [Check; 4] = [Check::Ext4, Check::Xfs, Check::Block, Check::Directory];
const RPCS: [&str; 6] = ["create", "stage", "publish", "unpublish", "unstage", "delete"];
const BYTES: u64 = 1 << 30;
const WARM_UPS: usize = 3;
const PROGRAM: &str = env!("CARGO_BIN_EXE_hostloop");

/// Durations of the same work.
#[derive(Default)]
struct Sample(Vec<Duration>);

impl Sample {
    /// The value that `percent` of all are below, in milliseconds.
    fn percentile(&mut self, percent: usize) -> f64 {
        self.0.sort_unstable();
        self.0[(self.0.len() - 1) * percent / 100].as_secs_f64() * 1000.0
    }

    fn median(&mut self) -> f64 {
        self.percentile(50)
    }

    /// Median, and the 10th and 90th percentile.
    fn show(&mut self) -> String {
        format!("{:.2} ({:.2}–{:.2})", self.median(), self.percentile(10), self.percentile(90))
    }
}

#[derive(Default)]
struct Kind {
    driver: Sample,
    raw: Sample,
    rpcs: [Sample; 6],
}

fn main() {
    let word = |name: &str| std::env::args().skip_while(|arg| arg != name).nth(1);
    let dir = PathBuf::from(word("--dir").unwrap_or_else(|| "/var/tmp".to_owned()));
    let runs: usize = word("--runs").map_or(50, |runs| runs.parse().expect("--runs is a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        lives(&dir, runs).await;
        crowd::measure(&dir).await;
        clients::measure(&dir).await;
        start::measure(&dir).await;
        roles::measure(&dir).await;
    });
}

/// A driver in a directory of its own, ready.
async fn driver(dir: &Path) -> (DriverProcess, Client) {
    driver_with(dir, &[]).await
}

/// The same with further flags.
async fn driver_with(dir: &Path, flags: &[String]) -> (DriverProcess, Client) {
    let mut driver = DriverProcess::start_with(Path::new(PROGRAM), dir, flags).unwrap();
    let client = Client::new(&DriverProcess::socket(dir)).unwrap();
    driver.ready(&client).await.unwrap();
    (driver, client)
}

async fn lives(dir: &Path, runs: usize) {
    let dir = tempfile::Builder::new().prefix("hostloop-bench-").tempdir_in(dir).unwrap();
    let os = linux::os(Tools::find());
    let (driver, client) = driver(dir.path()).await;
    // Directories are in a pool of their own.
    let place = dir.path().join("directories");
    std::fs::create_dir(&place).unwrap();
    let (directories, of_directories) = driver_with(&place, &["--directories".to_owned()]).await;
    let mut probe = Sample::default();
    for _ in 0..200 {
        let started = Instant::now();
        assert!(client.is_ready().await);
        probe.0.push(started.elapsed());
    }
    // Such a call does all but work: it decodes, changes to a thread that may block, and finds nothing to do.
    let mut nothing = Sample::default();
    for _ in 0..200 {
        let started = Instant::now();
        client.call(requests::delete("no-volume")).await.unwrap();
        nothing.0.push(started.elapsed());
    }
    let mut kinds: Vec<(Check, Kind)> = KINDS.into_iter().map(|check| (check, Kind::default())).collect();
    let (mut sync, mut log) = (Sample::default(), os.files.open_log(&dir.path().join("log"), 0).unwrap());
    for run in 0..WARM_UPS + runs {
        for (check, kind) in &mut kinds {
            let (check, place) = (*check, dir.path().to_owned());
            let client = if check == Check::Directory { &of_directories } else { &client };
            let rpcs = life(client, check, BYTES, &place, run).await;
            let os = os.clone();
            let raw = tokio::task::spawn_blocking(move || raw::life(&os, check, &place)).await.unwrap();
            let started = Instant::now();
            log.append(&[b'x'; 450]).and_then(|()| log.sync()).unwrap();
            if run >= WARM_UPS {
                sync.0.push(started.elapsed());
                kind.driver.0.push(rpcs.iter().sum());
                kind.raw.0.push(raw);
                kind.rpcs.iter_mut().zip(rpcs).for_each(|(sample, time)| sample.0.push(time));
            }
        }
    }
    driver.stop().await.unwrap();
    directories.stop().await.unwrap();
    println!("A life of a volume of 1 GiB, {runs} runs; milliseconds: median (10th–90th percentile)\n");
    print(&mut kinds);
    println!("\nProbe: {} ms", probe.show());
    println!("DeleteVolume of no volume: {} ms", nothing.show());
    println!("An appended line and fdatasync: {} ms\n", sync.show());
}

fn print(kinds: &mut [(Check, Kind)]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["kind", "driver", "system calls", "ratio"].into_iter().chain(RPCS));
    for (check, kind) in kinds {
        let ratio = format!("{:.2}", kind.driver.median() / kind.raw.median());
        let row = [check.as_str().to_owned(), kind.driver.show(), kind.raw.show(), ratio];
        let rpcs = kind.rpcs.iter_mut().map(|sample| format!("{:.2}", sample.median()));
        table.add_row(row.into_iter().chain(rpcs));
    }
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    println!("{}", table.trim_fmt());
}

/// One life of a volume of so many bytes through the driver: the time of each RPC.
async fn life(client: &Client, check: Check, bytes: u64, dir: &Path, run: usize) -> [Duration; 6] {
    let (staging, target) = (dir.join("staging"), dir.join("target"));
    // kubelet's part, which is not the driver's.
    std::fs::create_dir(&staging).unwrap();
    let mut times = [Duration::ZERO; 6];
    let mut last = Instant::now();
    let mut done = |index: usize| {
        times[index] = last.elapsed();
        last = Instant::now();
    };
    let name = format!("bench-{run}-{}", check.as_str());
    let made = client.call(requests::create_kind(&name, bytes, check)).await.unwrap();
    done(0);
    let (id, capability) = (made.volume.unwrap().volume_id, requests::writer(check));
    client.call(requests::stage(&id, &staging, capability.clone())).await.unwrap();
    done(1);
    client.call(requests::publish(&id, &staging, &target, capability)).await.unwrap();
    done(2);
    client.call(requests::unpublish(&id, &target)).await.unwrap();
    done(3);
    client.call(requests::unstage(&id, &staging)).await.unwrap();
    done(4);
    client.call(requests::delete(&id)).await.unwrap();
    done(5);
    std::fs::remove_dir(&staging).unwrap();
    times
}
