//! Volumes that exist while others are measured.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::load::Names;
use crate::bench::life::{Caller, Failure};

/// So many are created or deleted at once.
const AT_ONCE: usize = 16;

/// Volumes that were created and not staged.
#[derive(Debug, Default)]
pub(super) struct Existing {
    ids: Vec<String>,
}

impl Existing {
    /// Creates volumes until there are so many, or until it is stopped.
    ///
    /// # Errors
    /// The first failure; the volumes that were made stay known.
    pub(super) async fn grow(
        &mut self,
        count: usize,
        (caller, names): (&Caller, &Names),
        stop: &AtomicBool,
    ) -> Result<(), Failure> {
        while self.ids.len() < count && !stop.load(Ordering::Relaxed) {
            let batch = AT_ONCE.min(count - self.ids.len());
            let tasks: Vec<_> = (0..batch)
                .map(|_| {
                    let (caller, name) = (caller.clone(), names.next());
                    tokio::spawn(async move { caller.create(&name).await })
                })
                .collect();
            let mut failure = None;
            for task in tasks {
                match task.await.unwrap_or_else(|error| Err(Failure::Path(std::io::Error::other(error)))) {
                    Ok(id) => self.ids.push(id),
                    Err(error) => failure = failure.or(Some(error)),
                }
            }
            failure.map_or(Ok(()), Err)?;
        }
        Ok(())
    }

    /// Deletes all of them; a line for each that stays.
    pub(super) async fn end(&mut self, caller: &Caller) -> Vec<String> {
        let ids = Arc::new(std::sync::Mutex::new(VecDeque::from(std::mem::take(&mut self.ids))));
        let work = || {
            let (caller, ids) = (caller.clone(), Arc::clone(&ids));
            async move {
                let next = || ids.lock().ok().and_then(|mut ids| ids.pop_front());
                let mut left = Vec::new();
                while let Some(id) = next() {
                    if let Err(why) = caller.delete(&id).await {
                        left.push(format!("the volume {id} is left behind: {why}"));
                    }
                }
                left
            }
        };
        let tasks: Vec<_> = (0..AT_ONCE).map(|_| tokio::spawn(work())).collect();
        let mut left = Vec::new();
        for task in tasks {
            left.extend(task.await.unwrap_or_else(|error| vec![error.to_string()]));
        }
        left
    }
}
