//! GetMetadataDelta of two snapshots of a 10 GiB raw volume with 100 changed blocks, in an xfs pool.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Instant;

use super::disk::{Disk, PoolKind};
use super::{GIB, MIB, driver, stall};

const CHANGED: u64 = 100;
const RUNS: usize = 5;

/// Bytes that a process has asked the kernel to read (proc_pid_io(5), rchar).
fn bytes_read(process: u32) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

pub async fn measure(dir: &Path) {
    let place = tempfile::Builder::new().prefix("hostloop-bench-").tempdir_in(dir).unwrap();
    let disk = Disk::make(place.path(), PoolKind::Xfs, 10 * GIB);
    let (driver, caller) = driver(place.path(), &disk).await;
    let caller = caller.for_block();
    let volume = caller.create("source", 10 * GIB, None).await;
    let device = caller.stage(&volume, place.path()).await;
    stall::fill(&device, 10 * GIB);
    let base = caller.snapshot("base", &volume, "true").await;
    let file = OpenOptions::new().write(true).open(&device).unwrap();
    for block in 0..CHANGED {
        file.write_all_at(&[9; 4096], block * 97 * MIB).unwrap();
    }
    file.sync_all().unwrap();
    drop(file);
    let target = caller.snapshot("target", &volume, "true").await;
    let mut times = Vec::new();
    let (mut found, mut read) = ((0, 0), 0);
    for _ in 0..RUNS {
        let before = bytes_read(driver.id());
        let started = Instant::now();
        found = caller.delta(&base, &target).await;
        times.push(started.elapsed());
        read = bytes_read(driver.id()) - before;
    }
    times.sort_unstable();
    println!(
        "\nDelta of two snapshots of 10 GiB, {CHANGED} blocks of 4 KiB changed: {:.1} ms, {read} bytes read, {} ranges of {} bytes told",
        times[RUNS / 2].as_secs_f64() * 1000.0,
        found.0,
        found.1
    );
    assert_eq!(found, (CHANGED as usize, CHANGED * 4096));
    caller.delete_snapshot(&base).await;
    caller.delete_snapshot(&target).await;
    caller.unstage(&volume, place.path()).await;
    caller.delete(&volume).await;
    driver.stop().await.unwrap();
    disk.remove();
}
