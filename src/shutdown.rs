//! The end of the process: the first SIGTERM or SIGINT asks running calls to finish, the second one stops at once.

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Tells when the process is to end. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Shutdown {
    stage: watch::Receiver<u32>,
}

/// Asks for the end, as a signal does.
#[derive(Debug)]
pub struct Trigger(watch::Sender<u32>);

impl Trigger {
    /// The first call asks for the end, the next one for a hurry.
    pub fn pull(&self) {
        self.0.send_modify(|stage| *stage = stage.saturating_add(1));
    }
}

impl Shutdown {
    /// One that [`Trigger::pull`] sets off.
    pub fn new() -> (Trigger, Shutdown) {
        let (sender, stage) = watch::channel(0);
        (Trigger(sender), Shutdown { stage })
    }

    /// One that SIGTERM and SIGINT set off, from now on. Needs a running tokio runtime.
    ///
    /// # Errors
    /// Where the signal handlers cannot be put in place.
    pub fn on_signals() -> io::Result<Shutdown> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (trigger, shutdown) = Shutdown::new();
        tokio::spawn(async move {
            loop {
                let name = tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                };
                tracing::info!(signal = name, "asked to stop");
                trigger.pull();
            }
        });
        Ok(shutdown)
    }

    /// Completes when the end is asked for.
    pub async fn requested(self) {
        self.reached(1).await;
    }

    /// Completes when the end is asked for a second time.
    pub async fn forced(self) {
        self.reached(2).await;
    }

    async fn reached(mut self, wanted: u32) {
        if self.stage.wait_for(|stage| *stage >= wanted).await.is_err() {
            // The trigger is gone: nobody can ask any more.
            std::future::pending::<()>().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_second_request_is_another_one() {
        let (trigger, shutdown) = Shutdown::new();
        trigger.pull();
        shutdown.clone().requested().await;
        let forced =
            tokio::time::timeout(std::time::Duration::from_millis(20), shutdown.clone().forced()).await;
        assert!(forced.is_err());
        trigger.pull();
        shutdown.forced().await;
    }
}
