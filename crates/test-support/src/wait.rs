//! Waiting for a condition, with a deadline and a message. A test sleeps for a fixed time only where nothing can be
//! waited for, such as a permit that expires.

use std::time::{Duration, Instant};

use tonic::{Code, Status};

/// How long a test waits, however busy the machine is.
const LONG: Duration = Duration::from_secs(60);
/// How long it waits for what the driver repeats with growing pauses.
const VERY_LONG: Duration = Duration::from_secs(300);

/// Growing pauses, until the deadline.
struct Pauses {
    started: Instant,
    limit: Duration,
    next: Duration,
}

impl Pauses {
    fn new(limit: Duration) -> Pauses {
        Pauses { started: Instant::now(), limit, next: Duration::from_millis(1) }
    }

    #[track_caller]
    fn next(&mut self, what: &str) -> Duration {
        assert!(self.started.elapsed() < self.limit, "not within {:?}: {what}", self.limit);
        let pause = self.next;
        self.next = (pause * 2).min(Duration::from_millis(16));
        pause
    }
}

/// Waits for a condition.
#[track_caller]
pub fn eventually(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(LONG, what, condition);
}

/// Waits for a condition that may take longer.
#[track_caller]
pub fn eventually_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let mut pauses = Pauses::new(limit);
    while !condition() {
        std::thread::sleep(pauses.next(what));
    }
}

/// Waits for a condition that the driver brings about after growing pauses, as it does for a deletion that has failed.
#[track_caller]
pub fn after_retries(what: &str, condition: impl FnMut() -> bool) {
    eventually_within(VERY_LONG, what, condition);
}

/// Waits for a condition while other tasks of the runtime go on.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let mut pauses = Pauses::new(LONG);
    while !condition().await {
        tokio::time::sleep(pauses.next(what)).await;
    }
}

/// Makes a call again for as long as its answer is one of these errors, and returns the first other answer.
///
/// # Errors
/// An error that is none of these.
#[track_caller]
pub fn answered<T>(passing: &[Code], mut call: impl FnMut() -> Result<T, Status>) -> Result<T, Status> {
    let mut pauses = Pauses::new(LONG);
    loop {
        match call() {
            Err(status) if passing.contains(&status.code()) => {
                std::thread::sleep(pauses.next(status.message()))
            }
            answer => return answer,
        }
    }
}

/// As [`answered`], while other tasks of the runtime go on.
///
/// # Errors
/// An error that is none of these.
pub async fn until_answered<T, F>(passing: &[Code], mut call: impl FnMut() -> F) -> Result<T, Status>
where
    F: Future<Output = Result<T, Status>>,
{
    let mut pauses = Pauses::new(LONG);
    loop {
        match call().await {
            Err(status) if passing.contains(&status.code()) => {
                tokio::time::sleep(pauses.next(status.message())).await;
            }
            answer => return answer,
        }
    }
}
