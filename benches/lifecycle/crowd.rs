//! What a life costs on a node where many volumes are in use, and where many were: beside what it costs on an empty one.

use std::path::{Path, PathBuf};
use std::time::Duration;

use comfy_table::{Table, presets};
use hostloop::config::Check;
use hostloop::selftest::client::Client;
use hostloop::selftest::requests;

use super::{Sample, driver_with, life};

/// How many are in use, in turns.
const CROWDS: [usize; 4] = [0, 50, 200, 500];
const RUNS: usize = 30;
const SMALL: u64 = 16 << 20;

/// A volume in use.
struct InUse {
    id: String,
    staging: PathBuf,
    target: PathBuf,
}

pub async fn measure(dir: &Path) {
    println!(
        "A life beside others of its kind in use, {RUNS} runs; milliseconds: median (10th–90th percentile)\n"
    );
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let in_use = CROWDS.map(|count| format!("{count} in use"));
    table.set_header(
        ["kind".to_owned()].into_iter().chain(in_use).chain(["after them".into(), "ratios".into()]),
    );
    for check in [Check::Block, Check::Ext4, Check::Directory] {
        let dir = tempfile::Builder::new().prefix("hostloop-bench-").tempdir_in(dir).unwrap();
        let flags: &[_] = if check == Check::Directory { &["--directories".to_owned()] } else { &[] };
        let (driver, client) = driver_with(dir.path(), flags).await;
        let (mut crowd, mut samples) = (Vec::new(), Vec::new());
        for count in CROWDS {
            while crowd.len() < count {
                crowd.push(use_one(&client, check, dir.path(), crowd.len()).await);
            }
            samples.push(lives(&client, check, dir.path()).await);
        }
        for volume in crowd {
            end(&client, &volume).await;
        }
        samples.push(lives(&client, check, dir.path()).await);
        driver.stop().await.unwrap();
        let empty = samples[0].median();
        let ratios = samples.iter_mut().skip(1).map(|sample| format!("{:.2}", sample.median() / empty));
        let ratios = ratios.collect::<Vec<_>>().join(" ");
        let shown = samples.iter_mut().map(Sample::show);
        table.add_row([check.as_str().to_owned()].into_iter().chain(shown).chain([ratios]));
    }
    println!("{}\n", table.trim_fmt());
}

async fn lives(client: &Client, check: Check, dir: &Path) -> Sample {
    let mut sample = Sample::default();
    for run in 0..RUNS {
        sample.0.push(life(client, check, super::BYTES, dir, run).await.iter().sum::<Duration>());
    }
    sample
}

async fn use_one(client: &Client, check: Check, dir: &Path, number: usize) -> InUse {
    let (staging, target) = (dir.join(format!("staging-{number}")), dir.join(format!("target-{number}")));
    std::fs::create_dir(&staging).unwrap();
    let made = client.call(requests::create_kind(&format!("crowd-{number}"), SMALL, check)).await.unwrap();
    let (id, capability) = (made.volume.unwrap().volume_id, requests::writer(check));
    client.call(requests::stage(&id, &staging, capability.clone())).await.unwrap();
    client.call(requests::publish(&id, &staging, &target, capability)).await.unwrap();
    InUse { id, staging, target }
}

async fn end(client: &Client, volume: &InUse) {
    client.call(requests::unpublish(&volume.id, &volume.target)).await.unwrap();
    client.call(requests::unstage(&volume.id, &volume.staging)).await.unwrap();
    client.call(requests::delete(&volume.id)).await.unwrap();
    std::fs::remove_dir(&volume.staging).unwrap();
}
