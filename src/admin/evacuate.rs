//! `hostloop evacuate`: every volume of a node moves to another one.

use std::collections::BTreeSet;

use super::api::inspect::Cut;
use super::api::permitted;
use super::ask::Wish;
use super::follow::{Follow, State};
use super::seen::{Move, Name, Volume};
use super::wait::{Until, Waited};
use super::{Failure, Outcome, Session, parting, target, when};
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
        let names = on_node(&volumes, &moves, node, driver, args.namespace.as_deref());
        let names = match &args.pool {
            None => names,
            Some(pool) => match self.in_pool((node, pool), driver, &names).await? {
                Some(names) => names,
                None => return Ok(Outcome::Failed),
            },
        };
        if args.to_pool.is_some() && args.to_pool == args.pool {
            self.screen.problem("--to-pool: it is the pool that is to be emptied; name another one");
            return Ok(Outcome::Failed);
        }
        if !args.cancel && args.to_pool.is_none() {
            self.tell_of(node, names.is_empty()).await?;
            self.tell_of_snapshots(args).await?;
        }
        let (to, when) = (
            target(args.to_pool.as_ref().map_or(&args.to, |_| &args.node), args.to_pool.clone()),
            when(args.now),
        );
        let spec = VolumeMoveSpec { target: to, when, ..VolumeMoveSpec::default() };
        let wish = Wish { spec, away_from: Some(args.node.clone()), in_place: false };
        let mut follows = Vec::new();
        for name in names {
            follows.push(match args.cancel {
                true => self.cancel(name, driver).await?,
                false => self.ask(name, &wish).await?,
            });
        }
        if follows.is_empty() {
            let place = args.pool.as_ref().map_or_else(String::new, |pool| format!("in pool {pool} "));
            self.screen.say(&format!("no claim has a volume of {driver} {place}on node {node}"));
            return Ok(Outcome::Done);
        }
        let until = if args.now || args.cancel { Until::Ended } else { Until::Ready };
        if self.wait(&mut follows, until, driver).await? == Waited::ForNobody {
            self.nobody_moves(&parting(&AdminCommand::Evacuate(args.clone()), self.program));
            return Ok(Outcome::Failed);
        }
        Ok(self.sum_up(args, &follows))
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
        let staying = snapshots_on(&cuts, node, args.namespace.as_deref());
        if !staying.is_empty() {
            let (count, shown) = (staying.len(), staying.iter().take(SHOWN).cloned().collect::<Vec<_>>());
            let more = if count > shown.len() { ", …" } else { "" };
            let stay = if count == 1 {
                "1 VolumeSnapshot stays".to_owned()
            } else {
                format!("{count} VolumeSnapshots stay")
            };
            self.screen.say(&format!(
                "{stay} on node {node}: {}{more}. To keep one if you give up the node's disk, restore it on another node",
                shown.join(", ")
            ));
        }
        Ok(())
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

/// Returns the VolumeSnapshots, as `NAMESPACE/NAME`, whose snapshots were made on the node.
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
