//! `hostloop bench --endpoint`: how long the calls of a driver take, how many lives it makes in a second for clients that
//! work at once, and what other volumes cost. A second driver is measured in turns with the first.

mod driver;
mod existing;
mod figures;
mod load;
mod tables;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

pub use figures::Figures;
pub use load::{Load, Names, load};

use super::Outcome;
use crate::config::RpcConfig;
use crate::kernel::Files;
use crate::shutdown::Shutdown;
use driver::Driver;
use existing::Existing;
use figures::{Measured, Row};

/// A run.
struct Bench<'a> {
    config: &'a RpcConfig,
    drivers: Vec<(Driver, Measured)>,
    names: Names,
    /// A new directory for the paths.
    dir: PathBuf,
    stop: Arc<AtomicBool>,
    /// Gets a line about what happens now.
    progress: fn(&str),
}

/// Measures and cleans up. Staging and target paths are made through `files`. `stop` ends it after the lives that have
/// begun, a second request for the end at once.
pub async fn run(
    config: RpcConfig,
    files: Arc<dyn Files>,
    (shutdown, stop): (Shutdown, Arc<AtomicBool>),
    progress: fn(&str),
) -> Outcome {
    let mut bench = match Bench::prepare(&config, &files, (stop, progress)).await {
        Ok(bench) => bench,
        Err(problem) => return Outcome::problem(problem),
    };
    let work = async {
        let mut existing: Vec<Existing> = bench.drivers.iter().map(|_| Existing::default()).collect();
        let measured = bench.measure(&mut existing).await;
        (measured, bench.clean_up(existing, &*files).await)
    };
    let done = tokio::select! {
        done = work => Some(done),
        () = shutdown.forced() => None,
    };
    let mut outcome = Outcome::default();
    match done {
        None => {
            let left = format!("volumes whose names begin with {} may be left behind", bench.names.prefix());
            outcome.problems.push(left);
            outcome.interrupted = true;
        }
        Some((measured, left)) => {
            match measured {
                Ok(()) if bench.is_stopped() => outcome.interrupted = true,
                Ok(()) => outcome.result = Some(bench.result()),
                Err(problem) => outcome.problems.push(problem),
            }
            outcome.problems.extend(left);
        }
    }
    outcome
}

/// Beside how many volumes lives are measured, where `most` are asked for: none, a hundredth, a tenth and all of them.
fn crowds(most: usize) -> Vec<usize> {
    let mut counts = vec![0, most / 100, most / 10, most];
    counts.dedup();
    if most == 0 { Vec::new() } else { counts }
}

impl<'a> Bench<'a> {
    /// Looks at the drivers, and makes the directory.
    async fn prepare(
        config: &'a RpcConfig,
        files: &Arc<dyn Files>,
        (stop, progress): (Arc<AtomicBool>, fn(&str)),
    ) -> Result<Bench<'a>, String> {
        let mut drivers = Vec::new();
        for driver in &config.drivers {
            let driver = Driver::find(config, driver, Arc::clone(files)).await?;
            let measured = driver.measured();
            drivers.push((driver, measured));
        }
        let id = files.random_id().map_err(|error| error.to_string())?;
        let names = Names::new(format!("hostloop-bench-{}", id.get(..8).unwrap_or_default()));
        let real = files.canonicalize(&config.dir).map_err(|error| format!("{error} (--dir)"))?;
        let dir = real.join(names.prefix());
        files.create_directory(&dir, 0o750).map_err(|error| format!("{error} (--dir)"))?;
        Ok(Bench { config, drivers, names, dir, stop, progress })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// First for each number of clients, then beside more and more volumes.
    async fn measure(&mut self, existing: &mut [Existing]) -> Result<(), String> {
        let config = self.config;
        let crowds = crowds(config.volumes);
        let rows = config.clients.len() + crowds.len();
        let rounds = config.turns * rows * self.drivers.len();
        let slice = config.budget / u32::try_from(rounds).unwrap_or(u32::MAX);
        for turn in 0..config.turns {
            for clients in &config.clients {
                (self.progress)(&format!("Turn {} of {}: {clients} clients", turn + 1, config.turns));
                self.lives(Row::Clients(*clients), *clients, slice).await?;
            }
        }
        for count in crowds {
            if self.is_stopped() {
                break;
            }
            for ((driver, _), existing) in self.drivers.iter().zip(existing.iter_mut()) {
                (self.progress)(&format!("{}: creating volumes until there are {count}", driver.name));
                let grown = existing.grow(count, (&driver.caller, &self.names), &self.stop).await;
                grown.map_err(|failure| format!("{}: {failure}", driver.name))?;
            }
            for _ in 0..config.turns {
                self.lives(Row::Beside(count), 1, slice).await?;
            }
        }
        Ok(())
    }

    /// Lives with each driver.
    async fn lives(&mut self, row: Row, clients: usize, time: Duration) -> Result<(), String> {
        for (number, (driver, measured)) in self.drivers.iter_mut().enumerate() {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let dir = self.dir.join(format!("driver-{number}"));
            let files = &driver.caller.files;
            files.create_directory(&dir, 0o750).map_err(|error| error.to_string())?;
            let done = load(&driver.caller, (clients, time), &self.names, &dir, &self.stop).await;
            let done = done.map_err(|failure| format!("{}: {failure}", driver.name))?;
            files.remove_directory(&dir).map_err(|error| error.to_string())?;
            measured.add(row, &done);
        }
        Ok(())
    }

    /// Deletes the volumes, and removes the directory; what is left.
    async fn clean_up(&self, existing: Vec<Existing>, files: &dyn Files) -> Vec<String> {
        (self.progress)("Cleaning up");
        let mut left = Vec::new();
        for ((driver, _), mut existing) in self.drivers.iter().zip(existing) {
            left.extend(existing.end(&driver.caller).await);
        }
        // After a failure there are directories of drivers and of clients.
        left.extend(remove_empty(files, &self.dir).err().map(|error| format!("left behind: {error}")));
        left
    }

    fn result(self) -> String {
        let measured: Vec<Measured> = self.drivers.into_iter().map(|(_, measured)| measured).collect();
        match self.config.json {
            true => format!("{:#}", figures::json(&measured)),
            false => tables::tables(&measured),
        }
    }
}

/// Removes a tree of directories, and nothing that holds a file.
fn remove_empty(files: &dyn Files, dir: &Path) -> std::io::Result<()> {
    for name in files.list(dir)? {
        remove_empty(files, &dir.join(name))?;
    }
    files.remove_directory(dir)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn crowds_grow_to_what_is_asked_for() {
        assert_eq!(crowds(10_000), [0, 100, 1000, 10_000]);
        assert_eq!((crowds(5), crowds(0)), (vec![0, 5], vec![]));
        assert_eq!(crowds(50), [0, 5, 50]);
    }
}
