//! What a call to the nodes that failed means for a move.

use kube::ResourceExt as _;
use serde_json::json;

use super::act::{LATER, Mover, Next, Result};
use super::copies::CopyError;
use super::status::{Phase, Status, now, seconds_since};
use super::view::View;

impl Mover {
    /// What a call to the nodes that failed means for the copy.
    pub(super) async fn hindered(&self, view: &View, status: &Status, error: CopyError) -> Result<Next> {
        match error {
            CopyError::Running(progress) | CopyError::Silent(progress) => {
                self.note(view, status, &progress).await?;
                Ok(Next::After(LATER))
            }
            // A copy of a while ago is better than none.
            CopyError::NoRoom(_) if status.phase == Phase::Standby => {
                self.is_late(view, status, &error).await
            }
            CopyError::NotFound(_) | CopyError::NoRoom(_) | CopyError::Refused(_) => {
                let phase = match status.phase {
                    Phase::Switching => Phase::Returning,
                    _ => Phase::Cancelling,
                };
                self.figures.failed();
                self.enter(view, status.in_phase(phase, error.to_string())).await
            }
            CopyError::InUse(_) | CopyError::Unavailable(_) if status.phase == Phase::Standby => {
                self.is_late(view, status, &error).await
            }
            CopyError::InUse(_) | CopyError::Unavailable(_) => {
                self.figures.failed();
                self.note(view, status, &error.to_string()).await?;
                Ok(Next::After(LATER))
            }
        }
    }

    /// The node of a volume that is promoted does not answer. When that has lasted, the copy is used as it is.
    pub(super) async fn unanswered(&self, view: &View, status: &Status, why: &str) -> Result<Next> {
        let since = status.silent_since.as_deref().and_then(seconds_since);
        let patience = i64::try_from(self.patience.as_secs()).unwrap_or(i64::MAX);
        let next = match since {
            None => Status { silent_since: Some(now()), message: why.to_owned(), ..status.clone() },
            Some(seconds) if seconds >= patience => {
                tracing::warn!(claim = view.claim.name_any(), why, "promoted without the last round");
                Status { stale: true, ..status.clone() }
            }
            Some(_) => return Ok(Next::After(LATER)),
        };
        self.write(view, Some(&next), json!({})).await
    }
}
