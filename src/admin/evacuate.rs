//! `hostloop evacuate`: every volume of a node moves to another one, and every snapshot, if that is asked for.

mod ended;
pub(super) mod snapshots;

use std::collections::{BTreeSet, HashMap};

use self::snapshots::{Emptying, Wanted, names};
use super::api::inspect::Cut;
use super::api::permitted;
use super::ask::Wish;
use super::follow::{Follow, State};
use super::seen::{Move, Name, Volume};
use super::wait::{Until, Waited};
use super::{ANY, Failure, Outcome, Session, parting, target, when};
use crate::cli::{AdminCommand, EvacuateArgs};
use crate::cluster::moves::resources::VolumeMoveSpec;
use crate::model::{Id as _, NodeKey, SnapshotId};

/// VolumeSnapshots that are named at most.
const SHOWN: usize = 20;

impl Session {
    pub(super) async fn evacuate(&mut self, args: &EvacuateArgs) -> Result<Outcome, Failure> {
        let (node, driver) = (args.node.as_str(), args.cluster.driver_name.as_str());
        if args.to == node && args.to_pool.is_none() {
            self.screen.problem(&format!(
                "--to: {node} is the node that is to be emptied; name another one, or any"
            ));
            return Ok(Outcome::Failed);
        }
        let moves = self.cluster.moves(args.namespace.as_deref()).await?;
        let volumes = self.cluster.volumes().await?;
        let Some(names) =
            self.chosen(args, on_node(&volumes, &moves, node, driver, args.namespace.as_deref())).await?
        else {
            return Ok(Outcome::Failed);
        };
        if !args.cancel && args.to_pool.is_none() {
            self.tell_of(node, names.is_empty()).await?;
            if !args.with_snapshots {
                self.tell_of_snapshots(args).await?;
            }
        }
        let to = args.to_pool.as_ref().map_or(&args.to, |_| &args.node);
        let (target, when) = (target(to, args.to_pool.clone()), when(args.now));
        let spec = VolumeMoveSpec { target, when, ..VolumeMoveSpec::default() };
        let wish = Wish { spec, away_from: Some(args.node.clone()), in_place: false };
        let mut follows = Vec::new();
        for name in names {
            follows.push(match args.cancel {
                true => self.cancel(name, driver).await?,
                false => self.ask(name, &wish).await?,
            });
        }
        let mut outcome = Outcome::Done;
        if follows.is_empty() {
            let place = args.pool.as_ref().map_or_else(String::new, |pool| format!("in pool {pool} "));
            self.screen.say(&format!("no claim has a volume of {driver} {place}on node {node}"));
        } else {
            let until = if args.now || args.cancel { Until::Ended } else { Until::Ready };
            if self.wait(&mut follows, until, driver).await? == Waited::ForNobody {
                self.nobody_moves(&parting(&AdminCommand::Evacuate(args.clone()), self.program));
                return Ok(Outcome::Failed);
            }
            outcome = self.sum_up(args, &follows);
        }
        match args.with_snapshots && !self.empty(args).await? {
            true => Ok(Outcome::Failed),
            false => Ok(outcome),
        }
    }

    /// Returns those of the claims of the node that are meant; `None` if that is not known, and the screen why.
    async fn chosen(
        &mut self,
        args: &EvacuateArgs,
        claims: BTreeSet<Name>,
    ) -> Result<Option<BTreeSet<Name>>, Failure> {
        let Some(pool) = &args.pool else { return Ok(Some(claims)) };
        if args.to_pool.as_ref() == Some(pool) {
            self.screen.problem("--to-pool: it is the pool that is to be emptied; name another one");
            return Ok(None);
        }
        self.in_pool(args, pool, &claims).await
    }

    /// Moves the snapshots of the node. Returns whether none stays.
    async fn empty(&mut self, args: &EvacuateArgs) -> Result<bool, Failure> {
        let driver = &args.cluster.driver_name;
        let Some(cuts) = permitted(self.cluster.cuts(driver).await)? else {
            self.screen.problem(
                "you need the right to list VolumeSnapshotContents, which say of which snapshots Kubernetes has heard: \
                 docs/moving.md#rights-of-administrators",
            );
            return Ok(false);
        };
        let nodes = match self.cluster.controller(driver, args.driver_namespace.as_deref()).await {
            Ok(nodes) => nodes,
            Err(why) => {
                self.screen.problem(&why);
                return Ok(false);
            }
        };
        let moving = self.moving_from(&args.node).await?;
        let cordoned = permitted(self.cluster.cordoned().await)?.unwrap_or_default();
        let wanted = Wanted {
            node: &args.node,
            to: Some(args.to.as_str()).filter(|to| *to != ANY),
            namespace: args.namespace.as_deref(),
            cuts: &cuts,
            moving: &moving,
            cordoned: &cordoned,
        };
        let emptied = Emptying { nodes, screen: &mut self.screen }.run(&wanted).await;
        emptied.or_else(|why| {
            self.screen.problem(&why);
            Ok(false)
        })
    }

    /// Returns where the volumes of claims are moving to from this node.
    async fn moving_from(&mut self, node: &str) -> Result<HashMap<Name, String>, Failure> {
        let moves = self.cluster.moves(None).await?.into_iter();
        let leaves = |asked: &Move| {
            asked.told.source_node == node
                && !asked.told.target_node.is_empty()
                && asked.told.is(&["Copying", "Ready", "CuttingOver", "Done"])
        };
        Ok(moves.filter(leaves).map(|asked| (asked.claim, asked.told.target_node)).collect())
    }

    /// Says what to know of the node before.
    async fn tell_of(&mut self, node: &str, empty: bool) -> Result<(), Failure> {
        match permitted(self.cluster.machine(node).await)? {
            Some(None) if empty => {
                self.screen.say(&format!("there is no node {node} in this cluster"));
            }
            Some(None) => self.screen.say(&format!(
                "there is no node {node} any more: a volume moves only if the node of --to has adopted it (hostloop state adopt-node); \
                 for standby copies, see `{} promote`",
                self.program
            )),
            Some(Some(machine)) if !machine.cordoned && !empty => self.screen.say(&format!(
                "node {node} is not cordoned: pods that are created again may come back to it, and new volumes too. \
                 First: kubectl cordon {node}"
            )),
            Some(Some(_)) | None => {}
        }
        Ok(())
    }

    /// Names the VolumeSnapshots that stay on the node, so that they are not lost with its disk by accident.
    async fn tell_of_snapshots(&mut self, args: &EvacuateArgs) -> Result<(), Failure> {
        let node = &args.node;
        // Without its Node object, nothing can be restored from it: what is there has been lost or adopted.
        if permitted(self.cluster.machine(node).await)?.is_some_and(|machine| machine.is_none()) {
            return Ok(());
        }
        let Some(cuts) = permitted(self.cluster.cuts(&args.cluster.driver_name).await)? else {
            self.screen.say(&format!(
                "snapshots stay on node {node}; which ones, only a user who may list VolumeSnapshotContents can see"
            ));
            return Ok(());
        };
        let staying = match self.snapshots_here(args, &cuts).await {
            Some(names) => names,
            None => snapshots_on(&cuts, node, args.namespace.as_deref()),
        };
        if !staying.is_empty() {
            let (count, shown) = (staying.len(), staying.iter().take(SHOWN).cloned().collect::<Vec<_>>());
            let more = if count > shown.len() { ", …" } else { "" };
            let stay = if count == 1 {
                "1 VolumeSnapshot stays".to_owned()
            } else {
                format!("{count} VolumeSnapshots stay")
            };
            self.screen.say(&format!(
                "{stay} on node {node}: {}{more}. To move them too, add --with-snapshots",
                shown.join(", ")
            ));
        }
        Ok(())
    }

    /// Returns the snapshots that are on the node, as the controllers say; `None` if they cannot be asked.
    async fn snapshots_here(&mut self, args: &EvacuateArgs, cuts: &[Cut]) -> Option<BTreeSet<String>> {
        let driver = args.cluster.driver_name.as_str();
        let nodes = self.cluster.controller(driver, args.driver_namespace.as_deref()).await.ok()?;
        let (moving, namespace) = (HashMap::new(), args.namespace.as_deref());
        let wanted = Wanted { node: &args.node, to: None, namespace, cuts, moving: &moving, cordoned: &[] };
        let found = names(&nodes.ask_all().await.ok()?, &wanted);
        found.ok().map(|names| names.into_iter().collect())
    }

    fn sum_up(&mut self, args: &EvacuateArgs, follows: &[Follow]) -> Outcome {
        let node = &args.node;
        let bad: Vec<&Follow> = follows.iter().filter(|follow| !follow.is_good()).collect();
        let good = follows.len().saturating_sub(bad.len());
        let ready = follows.iter().any(|follow| follow.state == State::Ready);
        let what = match (args.cancel, ready) {
            (true, _) => "moves are given up",
            (false, true) => "volumes have a copy that is nearly up to date, or have moved",
            (false, false) => "volumes have moved",
        };
        self.screen.say(&format!("{good} of {} {what}", follows.len()));
        if bad.is_empty() && ready && args.to_pool.is_some() {
            self.screen.say("Each volume changes its pool as soon as its pods leave; with --now, the controller evicts them");
        } else if bad.is_empty() && ready {
            self.screen.say(&format!(
                "The pods may leave now: kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
            ));
        }
        if !bad.is_empty() {
            self.screen.say("These have not; the controller looks again at each that has a VolumeMove:");
            for follow in &bad {
                self.screen.say(&format!("  {}: {}", follow.name, follow.why()));
            }
        }
        Outcome::of(bad.is_empty())
    }
}

/// Returns the VolumeSnapshots, as `NAMESPACE/NAME`, whose snapshots were made on the node, for a user who cannot ask the controllers.
fn snapshots_on(cuts: &[Cut], node: &str, namespace: Option<&str>) -> BTreeSet<String> {
    let key = NodeKey::of(node);
    let here = cuts.iter().filter(|cut| SnapshotId::node_key_in(&cut.id) == Some(key.as_str()));
    let here = here.map(|cut| &cut.snapshot);
    here.filter(|name| namespace.is_none_or(|namespace| name.namespace == namespace))
        .map(Name::to_string)
        .collect()
}

/// Returns the claims that have a volume on the node, or one that is just leaving it.
fn on_node(
    volumes: &[Volume],
    moves: &[Move],
    node: &str,
    driver: &str,
    namespace: Option<&str>,
) -> BTreeSet<Name> {
    let ours = volumes.iter().filter(|volume| volume.driver == driver);
    let there = ours.filter(|volume| volume.node.as_deref() == Some(node)).map(|volume| &volume.claim);
    // Its PersistentVolume may have been deleted, to be created again with the other node.
    let is_leaving = |asked: &&Move| asked.told.is(&["CuttingOver"]) && asked.told.source_node == node;
    let leaving = moves.iter().filter(is_leaving).map(|asked| &asked.claim);
    let names = there.chain(leaving).cloned();
    names.filter(|name| namespace.is_none_or(|namespace| name.namespace == namespace)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::seen::Told;

    const DRIVER: &str = "hostloop.csi.dev";

    fn claim(name: &str) -> Name {
        Name { namespace: "shop".to_owned(), name: name.to_owned() }
    }

    #[test]
    fn the_claims_of_a_node_are_on_it_or_leave_it() {
        let volume = |driver: &str, node: &str, name: &str| Volume {
            driver: driver.to_owned(),
            node: Some(node.to_owned()),
            claim: claim(name),
        };
        let asked = |phase: &str, source: &str, name: &str| {
            let told = Told { phase: phase.to_owned(), source_node: source.to_owned(), ..Told::default() };
            Move { claim: claim(name), told, ..Move::default() }
        };
        let volumes = [volume(DRIVER, "n1", "data"), volume(DRIVER, "n2", "log"), volume("other", "n1", "x")];
        let moves = [
            asked("CuttingOver", "n1", "leaving"),
            asked("CuttingOver", "n2", "coming"),
            asked("Done", "n1", "gone"),
        ];
        let names = |namespace| {
            let names = on_node(&volumes, &moves, "n1", DRIVER, namespace);
            names.into_iter().map(|name| name.name).collect::<Vec<_>>()
        };
        assert_eq!(names(None), ["data", "leaving"]);
        assert_eq!(names(Some("shop")), ["data", "leaving"]);
        assert!(names(Some("else")).is_empty());
    }
}
