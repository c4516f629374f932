//! `hostloop bench`: what volumes give of a disk's speed (`disk`), and how fast the RPCs of any CSI driver are ([`rpc`]). It
//! is a client of drivers, as the self-test is; the benchmarks of the repository use it too.
//!
//! Everything that is made is removed, whatever the end. The first Ctrl-C ends what is being measured and undoes the rest
//! through the driver; the second one does not wait for a driver.

mod disk;
pub mod life;
mod output;
pub mod rpc;
pub mod sample;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::config::BenchConfig;
use crate::kernel::linux::{self, Tools};
use crate::shutdown::Shutdown;
use output::progress;

/// How a run ended.
#[derive(Debug, Default)]
pub struct Outcome {
    /// What was measured, as it is printed.
    pub result: Option<String>,
    /// A line for each thing that is not as it should be.
    pub problems: Vec<String>,
    pub interrupted: bool,
}

impl Outcome {
    /// It did not begin.
    fn problem(what: String) -> Self {
        Outcome { problems: vec![what], ..Outcome::default() }
    }
}

/// Measures and prints what comes of it. The future says whether everything was measured and nothing is left behind. It is
/// boxed so that its code, which is large, is in this crate once.
pub fn run(config: BenchConfig, shutdown: Shutdown) -> Pin<Box<dyn Future<Output = bool> + Send>> {
    Box::pin(measure(config, shutdown))
}

async fn measure(config: BenchConfig, shutdown: Shutdown) -> bool {
    let stop = Arc::new(AtomicBool::new(false));
    let (asked, flag) = (shutdown.clone(), Arc::clone(&stop));
    tokio::spawn(async move {
        asked.requested().await;
        flag.store(true, Ordering::Relaxed);
    });
    let outcome = match config {
        BenchConfig::Disk(config) => disk::run(config, shutdown, stop).await,
        BenchConfig::Rpc(config) => {
            let files = linux::os(Tools::find()).files;
            rpc::run(config, files, (shutdown, stop), progress).await
        }
    };
    if let Some(text) = &outcome.result {
        output::result(text);
    }
    if outcome.interrupted {
        progress("bench interrupted");
    }
    for problem in &outcome.problems {
        progress(&format!("hostloop: {problem}"));
    }
    outcome.problems.is_empty() && !outcome.interrupted
}
