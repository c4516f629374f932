//! How many lives of volumes a driver makes in a second for clients that do not wait for each other.

use std::path::Path;
use std::time::{Duration, Instant};

use comfy_table::{Table, presets};
use hostloop::config::Check;

use super::{Sample, driver_with, life};

const CLIENTS: [usize; 4] = [1, 4, 16, 64];
/// So that all of them fit on any disk.
const SMALL: u64 = 64 << 20;
/// So long each number of clients works.
const TIME: Duration = Duration::from_secs(4);

pub async fn measure(dir: &Path) {
    println!(
        "Clients at once: lives in a second, and what one takes: median (10th–90th percentile) in milliseconds\n"
    );
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let clients = CLIENTS.map(|clients| format!("{clients} clients"));
    table.set_header(["kind".to_owned()].into_iter().chain(clients));
    for check in [Check::Block, Check::Ext4, Check::Directory] {
        let dir = tempfile::Builder::new().prefix("hostloop-bench-").tempdir_in(dir).unwrap();
        let flags: &[_] = if check == Check::Directory { &["--directories".to_owned()] } else { &[] };
        let (driver, client) = driver_with(dir.path(), flags).await;
        let mut row = vec![check.as_str().to_owned()];
        for clients in CLIENTS {
            let started = Instant::now();
            let tasks: Vec<_> = (0..clients)
                .map(|number| {
                    let (client, dir) = (client.clone(), dir.path().join(number.to_string()));
                    std::fs::create_dir_all(&dir).unwrap();
                    tokio::spawn(async move {
                        let mut lives = Vec::new();
                        while started.elapsed() < TIME {
                            // A name of its own: volumes are known by theirs.
                            let run = lives.len() * CLIENTS.len() * 64 + number;
                            lives.push(life(&client, check, SMALL, &dir, run).await.iter().sum::<Duration>());
                        }
                        lives
                    })
                })
                .collect();
            let mut sample = Sample::default();
            for task in tasks {
                sample.0.extend(task.await.unwrap());
            }
            let per_second = sample.0.len() as f64 / started.elapsed().as_secs_f64();
            row.push(format!("{per_second:.0}: {}", sample.show()));
        }
        driver.stop().await.unwrap();
        table.add_row(row);
    }
    println!("{}\n", table.trim_fmt());
}
