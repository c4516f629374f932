//! What a volume costs where many are staged at once, as after the start of a node, and where a node with many is drained:
//! beside what each of a few costs.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use comfy_table::{Table, presets};
use hostloop::bench::life::{Caller, InUse, Times};
use hostloop::bench::sample::{Sample, ratio};
use hostloop::config::Check;

use super::{caller, driver_with, show};

const FEW: usize = 10;
const MANY: usize = 500;
const CLIENTS: usize = 64;
const RUNS: usize = 5;
const SMALL: u64 = 16 << 20;

/// Milliseconds for each volume, from the first call to the last answer of all.
#[derive(Default)]
struct Rush {
    begun: Sample,
    ended: Sample,
}

pub async fn measure(dir: &Path) {
    println!(
        "{CLIENTS} clients begin to use volumes (to NodePublishVolume) and end it (to DeleteVolume), {RUNS} runs in turns; milliseconds for each: median (10th–90th percentile)\n"
    );
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let of = |what: &str, count: usize| format!("{what} {count}");
    table.set_header([
        "kind".to_owned(),
        of("begin", FEW),
        of("begin", MANY),
        "ratio".to_owned(),
        of("end", FEW),
        of("end", MANY),
        "ratio".to_owned(),
    ]);
    for check in [Check::Block, Check::Ext4, Check::Directory] {
        let dir = tempfile::Builder::new().prefix("hostloop-bench-").tempdir_in(dir).unwrap();
        let flags: &[_] = if check == Check::Directory { &["--directories".to_owned()] } else { &[] };
        let (driver, client) = driver_with(dir.path(), flags).await;
        let caller = caller(&client, check, SMALL);
        let (mut few, mut many) = (Rush::default(), Rush::default());
        for _ in 0..RUNS {
            // As often as it takes for a figure that does not hang on one sync.
            for _ in 0..5 {
                rush(&caller, FEW, dir.path(), &mut few).await;
            }
            rush(&caller, MANY, dir.path(), &mut many).await;
        }
        driver.stop().await.unwrap();
        let compare = |few: &Sample, many: &Sample| {
            [show(few), show(many), format!("{:.2}", ratio(many.median(), few.median()).unwrap())]
        };
        let cells = compare(&few.begun, &many.begun).into_iter().chain(compare(&few.ended, &many.ended));
        table.add_row([check.as_str().to_owned()].into_iter().chain(cells));
    }
    println!("{}\n", table.trim_fmt());
}

async fn rush(caller: &Caller, count: usize, dir: &Path, rush: &mut Rush) {
    let places: VecDeque<_> = (0..count).map(|number| dir.join(number.to_string())).collect();
    places.iter().for_each(|place| std::fs::create_dir(place).unwrap());
    let each = |time: Duration| time / u32::try_from(count).unwrap();
    let started = Instant::now();
    let begun = shared(places.clone(), |place| {
        let caller = caller.clone();
        async move {
            let name = format!("rush-{}", place.file_name().unwrap().to_string_lossy());
            caller.begin(&name, &place, &mut Times::default()).await.unwrap()
        }
    })
    .await;
    rush.begun.add_time(each(started.elapsed()));
    let started = Instant::now();
    shared(VecDeque::from(begun), |volume: InUse| {
        let caller = caller.clone();
        async move { caller.end(volume, &mut Times::default()).await.unwrap() }
    })
    .await;
    rush.ended.add_time(each(started.elapsed()));
    places.iter().for_each(|place| std::fs::remove_dir(place).unwrap());
}

/// All of the work, shared by the clients.
async fn shared<W, R, F>(work: VecDeque<W>, each: impl Fn(W) -> F) -> Vec<R>
where
    F: Future<Output = R> + Send + 'static,
    W: Send + 'static,
    R: Send + 'static,
{
    let clients = CLIENTS.min(work.len());
    let futures: Vec<_> = work.into_iter().map(each).collect();
    let queue = Arc::new(Mutex::new(VecDeque::from(futures)));
    let tasks: Vec<_> = (0..clients)
        .map(|_| {
            let queue = Arc::clone(&queue);
            tokio::spawn(async move {
                let mut done = Vec::new();
                loop {
                    let next = queue.lock().unwrap().pop_front();
                    let Some(next) = next else { return done };
                    done.push(next.await);
                }
            })
        })
        .collect();
    let mut all = Vec::new();
    for task in tasks {
        all.extend(task.await.unwrap());
    }
    all
}
