//! The application: it appends 4 KiB and syncs, again and again, and notes how long it ever had to wait.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Writes before the measured call, so that the first one is not counted.
const WARM_UP: Duration = Duration::from_millis(200);

pub struct Writer {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Duration>,
}

impl Writer {
    pub fn start(file: &Path) -> Self {
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(file).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let begun = Instant::now();
        let thread = std::thread::spawn(move || {
            let mut longest = Duration::ZERO;
            while !stopped.load(Ordering::Relaxed) {
                let started = Instant::now();
                file.write_all(&[7; 4096]).and_then(|()| file.sync_data()).unwrap();
                if started >= begun + WARM_UP {
                    longest = longest.max(started.elapsed());
                }
            }
            longest
        });
        std::thread::sleep(WARM_UP);
        Writer { stop, thread }
    }

    /// The longest write and sync since the start.
    pub fn stop(self) -> Duration {
        std::thread::sleep(Duration::from_millis(50));
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

/// Fills a file with random bytes, on disk when this returns.
pub fn fill(path: &Path, bytes: u64) {
    let mut random = File::open("/dev/urandom").unwrap();
    let mut file = OpenOptions::new().create(true).write(true).truncate(false).open(path).unwrap();
    let mut buffer = vec![0; 4 << 20];
    for _ in 0..bytes / buffer.len() as u64 {
        random.read_exact(&mut buffer).unwrap();
        file.write_all(&buffer).unwrap();
    }
    file.sync_all().unwrap();
}
