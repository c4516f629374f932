//! Which claims have their volumes in one pool of a node. The node says that: a PersistentVolume keeps the pool that its volume was made in.

use std::collections::BTreeSet;

use super::Session;
use super::api::inspect::Known;
use super::api::{Cluster, Failure};
use super::seen::Name;
use crate::cli::EvacuateArgs;
use crate::cluster::details::NodeAnswer;
use crate::model::details::{SnapshotDetails, VolumeDetails};

/// Snapshots that are named at most.
const SHOWN: usize = 20;

impl Session {
    /// Returns those of the claims whose volumes are in this pool of the node; `None` if the node does not say that, and the screen why.
    ///
    /// # Errors
    /// If the PersistentVolumes cannot be read.
    pub(super) async fn in_pool(
        &mut self,
        args: &EvacuateArgs,
        pool: &str,
        claims: &BTreeSet<Name>,
    ) -> Result<Option<BTreeSet<Name>>, Failure> {
        let (node, driver) = (args.node.as_str(), args.cluster.driver_name.as_str());
        let known = self.cluster.known_volumes(driver).await?;
        let answer = match answer_of(&self.cluster, node, driver, args.driver_namespace.as_deref()).await {
            Ok(answer) => answer,
            Err(why) => {
                self.screen
                    .problem(&format!("which volumes are in pool {pool} of node {node} is not known: {why}"));
                return Ok(None);
            }
        };
        if !answer.node.pools.iter().any(|there| there.name == pool) {
            let pools: Vec<&str> = answer.node.pools.iter().map(|pool| pool.name.as_str()).collect();
            self.screen
                .problem(&format!("node {node} has no pool {pool}; its pools are {}", pools.join(", ")));
            return Ok(None);
        }
        if let Some(staying) = snapshots_in(pool, &answer.snapshots) {
            self.screen.say(&format!("{staying} in pool {pool} of node {node}: delete those that you do not need, or restore them elsewhere"));
        }
        let there = claims_in(pool, &answer.volumes, &known);
        Ok(Some(claims.intersection(&there).cloned().collect()))
    }
}

/// Asks a node, through a controller, what it has.
async fn answer_of(
    cluster: &Cluster,
    node: &str,
    driver: &str,
    namespace: Option<&str>,
) -> Result<NodeAnswer, String> {
    let source = cluster.controller(driver, namespace).await?;
    let mut nodes = source.ask_all().await?;
    nodes.retain(|asked| asked.known.node_id == node);
    nodes.pop().ok_or_else(|| format!("the driver does not run on node {node}"))?.answer
}

/// Returns the claims of the volumes that are in a pool.
fn claims_in(pool: &str, volumes: &[VolumeDetails], known: &[Known]) -> BTreeSet<Name> {
    let in_pool = |volume: &&VolumeDetails| volume.pool == pool && volume.kind == "volume";
    let ids: BTreeSet<&str> = volumes.iter().filter(in_pool).map(|volume| volume.id.as_str()).collect();
    let there = known.iter().filter(|known| ids.contains(known.id.as_str()));
    there.filter_map(|known| known.claim.clone()).collect()
}

/// Returns which snapshots stay in a pool; `None` if there are none. Cuts that are made for copies go with these.
fn snapshots_in(pool: &str, snapshots: &[SnapshotDetails]) -> Option<String> {
    let stay = snapshots.iter().filter(|snapshot| snapshot.pool == pool && snapshot.kind != "cut");
    let name = |snapshot: &SnapshotDetails| match &snapshot.object {
        Some(object) => format!("{}/{}", object.namespace, object.name),
        None => snapshot.id.clone(),
    };
    let names: Vec<String> = stay.map(name).collect();
    let more = if names.len() > SHOWN { ", …" } else { "" };
    let shown = names.iter().take(SHOWN).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0 => None,
        1 => Some(format!("snapshot {shown} stays")),
        count => Some(format!("{count} snapshots stay ({shown}{more})")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn snapshots_that_stay_in_a_pool_are_named() {
        let snapshot = |id: &str, pool: &str, kind: &str| SnapshotDetails {
            id: id.to_owned(),
            pool: pool.to_owned(),
            kind: kind.to_owned(),
            ..SnapshotDetails::default()
        };
        let of_others = [snapshot("a", "slow", "snapshot"), snapshot("b", "fast", "cut")];
        assert_eq!(snapshots_in("fast", &of_others), None);
        let one = snapshot("c", "fast", "snapshot");
        assert_eq!(snapshots_in("fast", std::slice::from_ref(&one)).as_deref(), Some("snapshot c stays"));
        let two = [one, snapshot("d", "fast", "member")];
        assert_eq!(snapshots_in("fast", &two).as_deref(), Some("2 snapshots stay (c, d)"));
    }

    #[test]
    fn a_claim_is_where_its_node_says() {
        let name = |name: &str| Name { namespace: "shop".to_owned(), name: name.to_owned() };
        let known = |id: &str| Known { id: id.to_owned(), claim: Some(name(id)), ..Known::default() };
        let volume = |id: &str, pool: &str, kind: &str| VolumeDetails {
            id: id.to_owned(),
            pool: pool.to_owned(),
            kind: kind.to_owned(),
            ..VolumeDetails::default()
        };
        let volumes = [
            volume("a", "fast", "volume"),
            volume("b", "slow", "volume"),
            volume("c", "fast", "copy"),
            volume("none", "fast", "volume"),
        ];
        let known = ["a", "b", "c"].map(known);
        assert_eq!(claims_in("fast", &volumes, &known), BTreeSet::from([name("a")]));
    }
}
