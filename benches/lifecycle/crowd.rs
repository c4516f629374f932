//! What a life costs on a node where many volumes are in use, and where many were: beside what it costs on an empty one.

use std::path::Path;

use comfy_table::{Table, presets};
use hostloop::bench::life::Times;
use hostloop::bench::sample::{Sample, ratio};
use hostloop::config::Check;
use hostloop::selftest::client::Client;

use super::{caller, driver_with, show};

/// How many are in use, in turns.
const CROWDS: [usize; 4] = [0, 50, 200, 500];
const RUNS: usize = 30;
const SMALL: u64 = 16 << 20;

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
        let small = caller(&client, check, SMALL);
        let (mut crowd, mut samples) = (Vec::new(), Vec::new());
        for count in CROWDS {
            while crowd.len() < count {
                let (name, place) =
                    (format!("crowd-{}", crowd.len()), dir.path().join(crowd.len().to_string()));
                std::fs::create_dir(&place).unwrap();
                crowd.push(small.begin(&name, &place, &mut Times::default()).await.unwrap());
            }
            samples.push(lives(&client, check, dir.path()).await);
        }
        for volume in crowd {
            small.end(volume, &mut Times::default()).await.unwrap();
        }
        samples.push(lives(&client, check, dir.path()).await);
        driver.stop().await.unwrap();
        let of_empty = |sample: &Sample| ratio(sample.median(), samples[0].median()).unwrap();
        let ratios = samples.iter().skip(1).map(|sample| format!("{:.2}", of_empty(sample)));
        let ratios = ratios.collect::<Vec<_>>().join(" ");
        let shown = samples.iter().map(show);
        table.add_row([check.as_str().to_owned()].into_iter().chain(shown).chain([ratios]));
    }
    println!("{}\n", table.trim_fmt());
}

async fn lives(client: &Client, check: Check, dir: &Path) -> Sample {
    let (mut sample, caller) = (Sample::default(), caller(client, check, super::BYTES));
    for run in 0..RUNS {
        sample.add_time(caller.life(&format!("bench-{run}"), dir).await.unwrap().whole());
    }
    sample
}
