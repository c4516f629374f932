//! Situations that an administrator makes on purpose, because they seldom happen by chance. Each shows whether the controller keeps one rule.

use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::Moves;
use super::life::{Claim, phase};
use super::objects::Standby;

/// What happens to a claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Scene {
    /// The administrator acts at random.
    Any,
    /// The volume moves to its standby copy, and its node is off in the cutover. No administrator says that it is lost (rule 4).
    Lent,
    /// The claim stops asking for a standby copy while the node of the volume is off (rule 2).
    Unasked,
    /// A move is cancelled in its cutover, and the node of the copy is off (rule 7).
    Cancelled,
}

impl Moves {
    /// Returns the scene of a new claim.
    pub(super) fn scene(&self) -> Scene {
        match self.standby && self.crowded.is_none() {
            true => {
                let all = [Scene::Any, Scene::Any, Scene::Any, Scene::Lent, Scene::Unasked, Scene::Cancelled];
                all[self.below(all.len())]
            }
            false => Scene::Any,
        }
    }
}

impl Scene {
    /// Returns who asks for the standby copy that the scene needs.
    pub(super) fn standby(self) -> Option<Standby> {
        match self {
            Scene::Lent => Some(Standby::Class),
            Scene::Unasked => Some(Standby::Claim),
            Scene::Any | Scene::Cancelled => None,
        }
    }

    /// Returns whether the volume moves, and whether a node is lost; `None` if that is left to chance.
    pub(super) fn acts(self) -> Option<(bool, bool)> {
        match self {
            Scene::Any => None,
            Scene::Unasked => Some((false, true)),
            Scene::Lent | Scene::Cancelled => Some((true, true)),
        }
    }

    /// Returns whether the node that is lost is that of the volume; `None` if that is left to chance.
    pub(super) fn loses_volume(self) -> Option<bool> {
        match self {
            Scene::Any => None,
            Scene::Lent | Scene::Unasked => Some(true),
            Scene::Cancelled => Some(false),
        }
    }
}

impl Claim {
    /// The node of the standby copy, to which the volume moves without a new one.
    pub(super) fn node_of_copy(&self) -> Option<String> {
        let stands_by = |replica: &&Value| phase(replica) == Some("Standby");
        self.moves.with(|kubernetes| {
            let all = self.replicas(kubernetes);
            Some(all.iter().find(stands_by)?["spec"]["targetNode"].as_str()?.to_owned())
        })
    }

    /// Waits until the claim has the standby copy that its scene needs. Gives up after five minutes: its node may be lost.
    pub(super) async fn is_set(&self) {
        let latest = Instant::now() + Duration::from_secs(300);
        while self.scene.standby().is_some() && self.node_of_copy().is_none() && Instant::now() < latest {
            self.moves.pause(500, 2000).await;
        }
    }
}
