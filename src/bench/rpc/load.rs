//! Lives that clients lead at once.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::bench::life::{Caller, Failure, Times};

/// Names of volumes that no other run has.
#[derive(Debug, Clone)]
pub struct Names {
    prefix: String,
    next: Arc<AtomicU64>,
}

impl Names {
    /// Names that begin with this, which is to be unique.
    pub fn new(prefix: String) -> Self {
        Names { prefix, next: Arc::default() }
    }

    /// The next one.
    pub fn next(&self) -> String {
        format!("{}-{}", self.prefix, self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// What all of them begin with.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }
}

/// What clients have done.
#[derive(Debug, Clone, Default)]
pub struct Load {
    pub lives: Vec<Times>,
    /// From the first call to the last answer.
    pub elapsed: Duration,
}

impl Load {
    /// Lives in a second.
    pub fn rate(&self) -> f64 {
        self.lives.len() as f64 / self.elapsed.as_secs_f64().max(f64::EPSILON)
    }
}

/// So many clients lead one life after the other for so long, and then end the one that has begun. Each has at least one,
/// and a directory below `dir`.
///
/// # Errors
/// The first failure. It ends the work of all; their volumes are gone then, unless it says otherwise.
pub async fn load(
    caller: &Caller,
    (clients, time): (usize, Duration),
    names: &Names,
    dir: &Path,
    stop: &Arc<AtomicBool>,
) -> Result<Load, Failure> {
    let failed = Arc::new(AtomicBool::new(false));
    let places: Vec<PathBuf> = (0..clients).map(|number| dir.join(format!("client-{number}"))).collect();
    for place in &places {
        caller.files.create_directory(place, 0o750)?;
    }
    let started = Instant::now();
    let work = |place: PathBuf| {
        let (caller, names) = (caller.clone(), names.clone());
        let (stop, failed) = (Arc::clone(stop), Arc::clone(&failed));
        async move {
            let mut lives = Vec::new();
            loop {
                let life = caller.life(&names.next(), &place).await;
                lives.push(life.inspect_err(|_| failed.store(true, Ordering::Relaxed))?);
                let ended = stop.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
                if ended || started.elapsed() >= time {
                    return Ok(lives);
                }
            }
        }
    };
    let tasks: Vec<_> = places.iter().map(|place| tokio::spawn(work(place.clone()))).collect();
    let (mut all, mut failure) = (Load::default(), None);
    for task in tasks {
        match task.await.unwrap_or_else(|error| Err(Failure::Path(std::io::Error::other(error)))) {
            Ok(lives) => all.lives.extend(lives),
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    all.elapsed = started.elapsed();
    for place in &places {
        let removed = caller.files.remove_directory(place);
        failure = failure.or(removed.err().map(Failure::Path));
    }
    failure.map_or(Ok(all), Err)
}
