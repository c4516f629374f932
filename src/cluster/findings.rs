//! Asks what is amiss on the nodes of a cluster, and has a node put one finding right (`hostloop doctor`).

use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;
use tonic::Response;

use super::details::{MOST_PAGES, Source, why};
use crate::model::Timestamp;
use crate::model::details::KnownNode;
use crate::model::findings::{Finding, FixFinding, HeldRecord};
use crate::wire::{findings, peer};

/// How long one node may take to look, or for one fix. A controller gives it a little less.
pub const PATIENCE: Duration = Duration::from_secs(65);

/// All that one node has answered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeFindings {
    /// The name of its driver.
    pub driver_name: String,
    /// Its clock when it began to answer.
    pub now: Timestamp,
    /// What it could not look at.
    pub unknown: Vec<String>,
    pub findings: Vec<Finding>,
    pub records: Vec<HeldRecord>,
}

/// A node, and what it has answered, or why there is no answer.
#[derive(Debug, Clone, PartialEq)]
pub struct ExaminedNode {
    pub known: KnownNode,
    pub answer: Result<NodeFindings, String>,
}

impl Source {
    /// Asks all nodes at the same time what is amiss, or one of them. A node that does not answer costs its own answer only.
    ///
    /// # Errors
    /// If the nodes are not known, or there is no such node.
    pub async fn findings(&self, only: Option<&str>) -> Result<Vec<ExaminedNode>, String> {
        let mut known = self.nodes().await?;
        if let Some(node_id) = only {
            known.retain(|node| node.node_id == node_id);
            if known.is_empty() {
                return Err(format!("there is no node {node_id:?}; hostloop nodes lists them"));
            }
        }
        let ask = |known: KnownNode| async {
            let answer = timeout(PATIENCE, self.findings_of(&known.node_id)).await;
            let late = |_| Err(format!("no answer within {} s", PATIENCE.as_secs()));
            ExaminedNode { answer: answer.unwrap_or_else(late), known }
        };
        Ok(join_all(known.into_iter().map(ask)).await)
    }

    async fn findings_of(&self, node_id: &str) -> Result<NodeFindings, String> {
        let (mut all, mut token) = (NodeFindings::default(), String::new());
        for page in 0..MOST_PAGES {
            let request = peer::ListFindingsRequest { node_id: node_id.to_owned(), token };
            let answer = self.client().list_findings(request).await.map(Response::into_inner);
            let answer =
                answer.map_err(|status| why(&status).replacen(&format!("node {node_id:?} "), "", 1))?;
            let answer = findings::decode(answer);
            if page == 0 {
                (all.driver_name, all.now, all.unknown) = (answer.driver_name, answer.now, answer.unknown);
            }
            all.findings.extend(answer.findings);
            all.records.extend(answer.records);
            match answer.next_token {
                Some(next) => token = next,
                None => return Ok(all),
            }
        }
        Err("it has more than it can have".to_owned())
    }

    /// Has a node put one finding right, and returns what was done.
    ///
    /// # Errors
    /// Why nothing was done.
    pub async fn fix(&self, fix: FixFinding) -> Result<String, String> {
        let mut client = self.client();
        let answer = timeout(PATIENCE, client.fix_finding(findings::encode_fix(fix))).await;
        let late = |_| format!("no answer within {} s; it may still be done", PATIENCE.as_secs());
        let answer = answer.map_err(late)?;
        answer.map(|done| done.into_inner().done).map_err(|status| why(&status))
    }
}
