//! The end: running calls may finish, within a time limit.

use std::future::Future;
use std::pin::{Pin, pin};
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, sleep_until};

use super::rpc::Running;

/// How often the running calls are counted while the server comes to its end.
const TICK: Duration = Duration::from_millis(25);
/// So many times in a row no call must be running for the connections to be closed without waiting for the other
/// side: a caller that is stopped never answers. Time enough for the last answer to be sent.
const QUIET_TICKS: u32 = 20;

pub struct Stop {
    /// Take no new connections and let the running calls finish.
    pub requested: Pin<Box<dyn Future<Output = ()> + Send>>,
    pub forced: Pin<Box<dyn Future<Output = ()> + Send>>,
    /// How long running calls may take after `requested`.
    pub timeout: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stopped {
    /// Calls whose callers got no answer.
    pub cut: usize,
    /// What is left of the time to stop.
    pub left: Duration,
}

/// Runs the server that `start` makes. It gets a future that completes when it is to stop.
pub async fn run<F, E>(stop: Stop, running: Running, start: impl FnOnce(ShutdownSignal) -> F) -> Stopped
where
    F: Future<Output = Result<(), E>>,
    E: std::fmt::Display,
{
    let (ask, asked) = oneshot::channel();
    let mut server = pin!(start(ShutdownSignal(asked)));
    let mut forced = stop.forced;
    let ended = tokio::select! {
        result = &mut server => Some(result),
        () = stop.requested => None,
    };
    if let Some(result) = ended {
        // tonic ends by itself only if the listener does, and ours does not.
        if let Err(error) = result {
            tracing::error!(%error, "the server ended");
        }
        return Stopped { cut: running.count(), left: stop.timeout };
    }
    let deadline = Instant::now() + stop.timeout;
    tracing::info!(running = running.count(), "stopping: no new connections, running calls may finish");
    let _ = ask.send(());
    let in_time = tokio::select! {
        _ = &mut server => true,
        () = quiet(&running) => true,
        () = sleep_until(deadline) => false,
        () = &mut forced => false,
    };
    let cut = if in_time { 0 } else { running.count() };
    if cut > 0 {
        tracing::warn!(
            cut,
            "stopping although calls are running; start-up finishes or undoes what they leave"
        );
    }
    Stopped { cut, left: if in_time { deadline - Instant::now() } else { Duration::ZERO } }
}

/// Completes when no call has been running for a moment.
async fn quiet(running: &Running) {
    let mut ticks = 0;
    while ticks < QUIET_TICKS {
        sleep(TICK).await;
        ticks = if running.count() == 0 { ticks + 1 } else { 0 };
    }
}

/// Completes when the server is to stop.
pub struct ShutdownSignal(oneshot::Receiver<()>);

impl Future for ShutdownSignal {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<()> {
        Pin::new(&mut self.0).poll(cx).map(|_| ())
    }
}
