//! Asks what the kernels of the nodes of a cluster say (`hostloop support-bundle`).

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;
use tonic::Response;

use super::details::{Source, why};
use crate::model::details::{KnownNode, ReportPart};
use crate::wire::{details, peer};

/// How long one node may take. A controller gives it a little less, so that its caller gets the reason.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A node, and what its kernel says, or why there is no answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ReportedNode {
    pub known: KnownNode,
    pub answer: Result<Vec<ReportPart>, String>,
}

impl Source {
    /// Asks all nodes at the same time what their kernels say. A node that does not answer costs its own answer only, and [`PATIENCE`].
    /// The answers have about `most` bytes in all: one that comes when others have taken these is left out, with the reason.
    ///
    /// # Errors
    /// If the nodes are not known.
    pub async fn reports(&self, most: usize) -> Result<Vec<ReportedNode>, String> {
        let taken = &AtomicUsize::new(0);
        let ask = |known: KnownNode| async move {
            let answer = timeout(PATIENCE, self.report_of(&known.node_id)).await;
            let answer = answer.unwrap_or_else(|_| Err(format!("no answer within {} s", PATIENCE.as_secs())));
            let bytes = |parts: &Vec<ReportPart>| {
                parts.iter().map(|part| part.text.as_ref().map_or(0, String::len)).sum::<usize>()
            };
            let answer = match answer {
                Ok(parts) if taken.fetch_add(bytes(&parts), Ordering::Relaxed) > most => {
                    Err("it is left out: the answers of other nodes are as large as the bundle may be"
                        .to_owned())
                }
                answer => answer,
            };
            ReportedNode { known, answer }
        };
        Ok(join_all(self.nodes().await?.into_iter().map(ask)).await)
    }

    async fn report_of(&self, node_id: &str) -> Result<Vec<ReportPart>, String> {
        let request = peer::GetNodeReportRequest { node_id: node_id.to_owned() };
        let answer = self.client().get_node_report(request).await.map(Response::into_inner);
        let answer = answer.map_err(|status| why(&status).replacen(&format!("node {node_id:?} "), "", 1))?;
        Ok(details::decode_report(answer))
    }
}
