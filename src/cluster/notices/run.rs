//! The controller that leads asks the nodes every minute, and writes the Events that are due.

use std::collections::HashSet;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{Api, Client, ResourceExt as _};
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::due::Said;
use super::wrong::{Notice, healthy, wrong};
use crate::cluster::details::NodeAnswer;
use crate::cluster::moves::deadline::limited;
use crate::cluster::moves::events::Events;
use crate::cluster::moves::lease::Election;
use crate::cluster::moves::resources::ClaimId;
use crate::model::Claim;
use crate::shutdown::Shutdown;

/// Between two looks. Nodes examine their volumes as often.
const LOOK: Duration = Duration::from_secs(60);

/// Asks all nodes.
#[tonic::async_trait]
pub trait Asks: Send + Sync {
    /// Returns the answer of each node, by its CSI node id, or why it has none.
    ///
    /// # Errors
    /// If the nodes are not known.
    async fn ask(&self) -> Result<Vec<(String, Result<NodeAnswer, String>)>, String>;
}

/// A process that may write Events: one of several does.
pub struct Teller {
    pub client: Client,
    pub driver: String,
    pub nodes: Arc<dyn Asks>,
}

/// The Lease of the controllers that write Events for a driver.
fn lease_name(driver: &str) -> String {
    format!("{}-events", driver.to_ascii_lowercase())
}

impl Teller {
    /// Writes Events whenever this process leads. `identity` is its name among the candidates, and `namespace` has their Lease. Returns
    /// when shutdown is requested, after it has released the Lease.
    pub async fn run(self, namespace: &str, identity: String, shutdown: Shutdown) {
        let name = lease_name(&self.driver);
        let mut election = Election::of(self.client.clone(), namespace, name, identity);
        let mut end = std::pin::pin!(shutdown.requested());
        loop {
            tokio::select! {
                () = election.win() => {}
                () = &mut end => return,
            }
            tracing::info!("this controller writes the Events of unhealthy volumes now");
            let ends = tokio::select! {
                () = election.lose() => false,
                () = &mut end => true,
                never = self.lead() => match never {},
            };
            if ends {
                return election.release().await;
            }
        }
    }

    /// Looks and writes until the future is dropped. A new leader says once more what lasts, in Events that Kubernetes counts.
    async fn lead(&self) -> Infallible {
        let client = limited(self.client.clone());
        let events = Events::new(client.clone(), &self.driver);
        let (mut said, mut minute) = (Said::default(), interval(LOOK));
        minute.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            minute.tick().await;
            self.look(&client, &events, &mut said).await;
        }
    }

    async fn look(&self, client: &Client, events: &Events, said: &mut Said) {
        let answers = match self.nodes.ask().await {
            Ok(answers) => answers,
            Err(why) => {
                return tracing::debug!(why, "the nodes cannot be asked for the health of their volumes");
            }
        };
        let answered: Vec<(&str, &NodeAnswer)> = answers
            .iter()
            .filter_map(|(node, answer)| Some((node.as_str(), answer.as_ref().ok()?)))
            .collect();
        let found: Vec<Notice> = answered.iter().flat_map(|(node, answer)| wrong(node, answer)).collect();
        let right =
            answered.iter().flat_map(|(node, answer)| healthy(answer).map(move |claim| (*node, claim)));
        let names: HashSet<String> = answered.iter().map(|(node, _)| (*node).to_owned()).collect();
        let (due, waiting) = said.due(found, &names, right, Instant::now());
        if waiting > 0 {
            tracing::info!(waiting, "further Events of unhealthy volumes wait for the next minute");
        }
        for notice in due {
            if write(client, events, &notice).await {
                said.said(&notice, Instant::now());
            }
        }
    }
}

/// Writes an Event. Returns whether it is done with: also if the claim no longer exists.
async fn write(client: &Client, events: &Events, notice: &Notice) -> bool {
    let Claim { namespace, name, persistent_volume } = &notice.claim;
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let claim = match claims.get_opt(name).await {
        Ok(claim) => claim,
        Err(error) => {
            tracing::warn!(namespace, claim = name, %error, "the claim of an unhealthy volume cannot be read");
            return false;
        }
    };
    // The record has the claim for which the volume was made, and a later one of its name can have another volume.
    let is_its = |claim: &PersistentVolumeClaim| {
        claim.spec.as_ref().and_then(|spec| spec.volume_name.as_ref()) == Some(persistent_volume)
            && claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound")
    };
    let Some(uid) = claim.filter(is_its).and_then(|claim| claim.uid()) else { return true };
    let id = ClaimId { namespace: namespace.clone(), name: name.clone(), uid };
    events.report(&id, &notice.reason, notice.rank != super::wrong::Rank::Right, &notice.message).await
}
