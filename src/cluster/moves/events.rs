//! Events of claims, which `kubectl describe` shows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube::runtime::events::{Event, EventType, Recorder};
use tokio::time::Instant;

use super::resources::ClaimId;

/// The longest note of an Event in bytes (events.k8s.io/v1, Event).
const LONGEST: usize = 1024;
/// The shortest time between two writes of one Event.
const REPEAT: Duration = Duration::from_secs(60);

/// Writes Events.
#[derive(Clone)]
pub struct Events {
    recorder: Recorder,
    /// When each Event was written last, by claim, reason and message.
    said: Arc<Mutex<HashMap<String, Instant>>>,
}

impl Events {
    pub fn new(client: Client, driver: &str) -> Events {
        Events { recorder: Recorder::new(client, driver.into()), said: Arc::default() }
    }

    /// Writes that something has come of what was asked for.
    pub async fn tell(&self, claim: &ClaimId, reason: &str, message: &str) {
        self.write(claim, reason, EventType::Normal, message).await;
    }

    /// Writes that something is wrong.
    pub async fn warn(&self, claim: &ClaimId, reason: &str, message: &str) {
        self.write(claim, reason, EventType::Warning, message).await;
    }

    /// Writes that something is wrong, or right again, and returns whether that was possible.
    pub async fn report(&self, claim: &ClaimId, reason: &str, is_wrong: bool, message: &str) -> bool {
        self.write(claim, reason, if is_wrong { EventType::Warning } else { EventType::Normal }, message)
            .await
    }

    /// Writes an Event of a claim. A repeated Event has its count raised, at most once in [`REPEAT`]. No step waits for it to
    /// succeed.
    async fn write(&self, claim: &ClaimId, reason: &str, type_: EventType, message: &str) -> bool {
        let ends = message.char_indices().map(|(at, c)| at + c.len_utf8());
        let end = ends.take_while(|end| *end <= LONGEST).last().unwrap_or(0);
        let message = message.get(..end).unwrap_or_default();
        // The recorder ignores the note when it compares events, and keeps the first one. It does compare the action.
        let action = format!("{reason}.{:08x}", crc32fast::hash(message.as_bytes()));
        if message.is_empty() || !self.is_due(format!("{}{action}", claim.uid)) {
            return true;
        }
        let event = Event {
            type_,
            reason: reason.to_owned(),
            note: Some(message.to_owned()),
            action,
            secondary: None,
        };
        let of = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("PersistentVolumeClaim".to_owned()),
            namespace: Some(claim.namespace.clone()),
            name: Some(claim.name.clone()),
            uid: Some(claim.uid.clone()),
            ..ObjectReference::default()
        };
        let written = self.recorder.publish(&event, &of).await;
        if let Err(error) = &written {
            let ClaimId { namespace, name, .. } = claim;
            tracing::warn!(namespace, claim = name, reason, %error, "the Event was not written");
        }
        written.is_ok()
    }

    /// Reports whether this Event was not written within [`REPEAT`], and remembers it.
    fn is_due(&self, what: String) -> bool {
        // Nothing that runs under the mutex can panic half-way.
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        said.retain(|_, at| at.elapsed() < REPEAT);
        let is_due = !said.contains_key(&what);
        said.entry(what).or_insert_with(Instant::now);
        is_due
    }
}
