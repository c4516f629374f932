//! How many lives of volumes a driver makes in a second for clients that do not wait for each other.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use comfy_table::{Table, presets};
use hostloop::bench::rpc::{Figures, Names, load};
use hostloop::config::Check;

use super::{caller, driver_with, show};

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
        let caller = caller(&client, check, SMALL);
        let names = Names::new(format!("bench-{}", check.as_str()));
        for clients in CLIENTS {
            let load = load(&caller, (clients, TIME), &names, dir.path(), &Arc::default()).await.unwrap();
            let mut figures = Figures::default();
            figures.add(&load);
            row.push(format!("{:.0}: {}", load.rate(), show(&figures.lives)));
        }
        driver.stop().await.unwrap();
        table.add_row(row);
    }
    println!("{}\n", table.trim_fmt());
}
