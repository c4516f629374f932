//! What the nodes say is wrong with the volumes of claims.

use crate::cluster::details::NodeAnswer;
use crate::model::details::{PoolDetails, VolumeDetails};
use crate::model::{Claim, format_bytes};

/// The reason of an Event about the disk of a pool.
const POOL_NEARLY_FULL: &str = "PoolNearlyFull";

/// How bad something is; the worst comes last.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    Right,
    Nearly,
    Degraded,
    Inaccessible,
    DataLoss,
}

/// Something to be said of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Notice {
    pub(super) claim: Claim,
    /// The node that says it.
    pub(super) node: String,
    pub(super) rank: Rank,
    /// One word, by which a later look finds it again.
    pub(super) reason: String,
    pub(super) message: String,
}

/// Returns what is wrong with the volumes of a node that have claims. Copies that stand by, inline volumes and what moved volumes have
/// left are no volumes of claims.
pub(super) fn wrong(node: &str, answer: &NodeAnswer) -> Vec<Notice> {
    let volumes = answer.volumes.iter().filter(|volume| is_of_a_claim(volume));
    volumes.flat_map(|volume| of_volume(node, volume, &answer.node.pools)).collect()
}

/// Returns the claims of a node whose volumes were examined, and nothing is wrong with them.
pub(super) fn healthy(answer: &NodeAnswer) -> impl Iterator<Item = &Claim> {
    let is_healthy = |volume: &&VolumeDetails| {
        is_of_a_claim(volume) && volume.troubles.as_ref().is_some_and(Vec::is_empty)
    };
    answer.volumes.iter().filter(is_healthy).filter_map(|volume| volume.claim.as_ref())
}

fn is_of_a_claim(volume: &VolumeDetails) -> bool {
    let are_names = |claim: &Claim| is_name(&claim.namespace) && is_name(&claim.name);
    volume.kind == "volume" && volume.phase == "ready" && volume.claim.as_ref().is_some_and(are_names)
}

/// Reports whether text can be the name of an object (RFC 1123). It becomes a part of a path of the API server, and a node has sent it.
fn is_name(text: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '.';
    !text.is_empty() && text.len() <= 253 && text.chars().all(is_allowed) && !text.starts_with(['.', '-'])
}

fn of_volume(node: &str, volume: &VolumeDetails, pools: &[PoolDetails]) -> Vec<Notice> {
    let Some(claim) = &volume.claim else { return Vec::new() };
    let notice = |rank, reason: &str, message: String| Notice {
        claim: claim.clone(),
        node: node.to_owned(),
        rank,
        reason: reason.to_owned(),
        message,
    };
    let troubles = volume.troubles.iter().flatten();
    let troubles = troubles.map(|trouble| {
        let rank = match trouble.severity.as_str() {
            "data_loss" => Rank::DataLoss,
            "inaccessible" => Rank::Inaccessible,
            _ => Rank::Degraded,
        };
        notice(rank, &trouble.reason, format!("on node {node}: {}", trouble.message))
    });
    let pool = pools.iter().find(|pool| pool.name == volume.pool);
    // What a thick volume has no other one can take.
    let pool = pool.filter(|_| volume.provisioning == "thin").and_then(|pool| nearly_full(node, pool));
    troubles.chain(pool.map(|message| notice(Rank::Nearly, POOL_NEARLY_FULL, message))).collect()
}

/// Returns what is said of a pool with less than a tenth of its filesystem free, as the alert `HostloopPoolNearlyFull` has it.
fn nearly_full(node: &str, pool: &PoolDetails) -> Option<String> {
    let figures = pool.figures.filter(|_| pool.unusable.is_none())?;
    (figures.free < figures.size / 10).then(|| {
        format!(
            "the disk of pool {} on node {node} has {} of {} free, and a thin volume that meets a full disk sees I/O errors: delete volumes \
             or snapshots, or enlarge the disk",
            pool.name,
            format_bytes(figures.free),
            format_bytes(figures.size)
        )
    })
}
