//! What a volume's life costs, beside the bare system calls for the same work, on the same disk, run by run.
//!
//! `cargo bench --bench lifecycle -- [--dir DIR] [--runs N] [--only PART]`, as root; the parts are lives, crowd, clients,
//! rush, start and roles.
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
mod rush;
mod start;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use comfy_table::{CellAlignment, Table, presets};
use hostloop::bench::life::{Caller, Order, Rpc};
use hostloop::bench::sample::{Sample, ratio};
use hostloop::config::Check;
use hostloop::kernel::Files;
use hostloop::kernel::linux::{self, Tools};
use hostloop::selftest::client::Client;
use hostloop::selftest::process::DriverProcess;
use hostloop::selftest::requests;

const KINDS: [Check; 4] = [Check::Ext4, Check::Xfs, Check::Block, Check::Directory];
/// Those of a driver without `--attach`.
const RPCS: [Rpc; 6] = [
    Rpc::CreateVolume,
    Rpc::NodeStageVolume,
    Rpc::NodePublishVolume,
    Rpc::NodeUnpublishVolume,
    Rpc::NodeUnstageVolume,
    Rpc::DeleteVolume,
];
const BYTES: u64 = 1 << 30;
const WARM_UPS: usize = 3;
const PROGRAM: &str = env!("CARGO_BIN_EXE_hostloop");

/// Median, and the 10th and 90th percentile, of milliseconds.
fn show(sample: &Sample) -> String {
    let at = |percent| sample.percentile(percent).unwrap();
    format!("{:.2} ({:.2}–{:.2})", sample.median().unwrap(), at(10.0), at(90.0))
}

#[derive(Default)]
struct Kind {
    driver: Sample,
    raw: Sample,
    rpcs: [Sample; RPCS.len()],
}

fn main() {
    let word = |name: &str| std::env::args().skip_while(|arg| arg != name).nth(1);
    let dir = PathBuf::from(word("--dir").unwrap_or_else(|| "/var/tmp".to_owned()));
    let runs: usize = word("--runs").map_or(50, |runs| runs.parse().expect("--runs is a number"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let only = word("--only");
    let part = |name: &str| only.as_deref().is_none_or(|only| only == name);
    runtime.block_on(async {
        if part("lives") {
            lives(&dir, runs).await;
        }
        if part("crowd") {
            crowd::measure(&dir).await;
        }
        if part("clients") {
            clients::measure(&dir).await;
        }
        if part("rush") {
            rush::measure(&dir).await;
        }
        if part("start") {
            start::measure(&dir).await;
        }
        if part("roles") {
            roles::measure(&dir).await;
        }
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
        probe.add_time(started.elapsed());
    }
    // Such a call does all but work: it decodes, changes to a thread that may block, and finds nothing to do.
    let mut nothing = Sample::default();
    for _ in 0..200 {
        let started = Instant::now();
        client.call(requests::delete("no-volume")).await.unwrap();
        nothing.add_time(started.elapsed());
    }
    let mut kinds: Vec<(Check, Kind)> = KINDS.into_iter().map(|check| (check, Kind::default())).collect();
    let (mut sync, mut log) = (Sample::default(), os.files.open_log(&dir.path().join("log"), 0).unwrap());
    for run in 0..WARM_UPS + runs {
        for (check, kind) in &mut kinds {
            let (check, place) = (*check, dir.path().to_owned());
            let client = if check == Check::Directory { &of_directories } else { &client };
            let caller = caller(client, check, BYTES);
            let times = caller.life(&format!("bench-{run}-{}", check.as_str()), &place).await.unwrap();
            let os = os.clone();
            let raw = tokio::task::spawn_blocking(move || raw::life(&os, check, &place)).await.unwrap();
            let started = Instant::now();
            log.append(&[b'x'; 450]).and_then(|()| log.sync()).unwrap();
            if run >= WARM_UPS {
                sync.add_time(started.elapsed());
                kind.driver.add_time(times.whole());
                kind.raw.add_time(raw);
                let each = kind.rpcs.iter_mut().zip(RPCS);
                each.for_each(|(sample, rpc)| sample.add_time(times.of(rpc).unwrap()));
            }
        }
    }
    driver.stop().await.unwrap();
    directories.stop().await.unwrap();
    println!("A life of a volume of 1 GiB, {runs} runs; milliseconds: median (10th–90th percentile)\n");
    print(&kinds);
    println!("\nProbe: {} ms", show(&probe));
    println!("DeleteVolume of no volume: {} ms", show(&nothing));
    println!("An appended line and fdatasync: {} ms\n", show(&sync));
}

fn print(kinds: &[(Check, Kind)]) {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["kind", "driver", "system calls", "ratio"].into_iter().chain(RPCS.map(Rpc::as_str)));
    for (check, kind) in kinds {
        let ratio = ratio(kind.driver.median(), kind.raw.median()).unwrap();
        let row = [check.as_str().to_owned(), show(&kind.driver), show(&kind.raw), format!("{ratio:.2}")];
        let rpcs = kind.rpcs.iter().map(|sample| format!("{:.2}", sample.median().unwrap()));
        table.add_row(row.into_iter().chain(rpcs));
    }
    table.column_iter_mut().skip(1).for_each(|column| {
        column.set_cell_alignment(CellAlignment::Right);
    });
    println!("{}", table.trim_fmt());
}

/// A caller for volumes of this kind.
fn caller(client: &Client, check: Check, bytes: u64) -> Caller {
    Caller::new(client.clone(), files(), Order::of(check, bytes))
}

fn files() -> Arc<dyn Files> {
    linux::os(Tools::find()).files
}
