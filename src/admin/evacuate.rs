//! `hostloop evacuate`: every volume of a node moves to another one.

use std::collections::BTreeSet;

use super::ask::{Cancel, Wish, away_from};
use super::follow::{Follow, State};
use super::seen::{Name, Seen, Volume};
use super::wait::{Until, Waited};
use super::{Failure, Outcome, Session, parting};
use crate::cli::{AdminCommand, EvacuateArgs};

impl Session {
    pub(super) async fn evacuate(&mut self, args: &EvacuateArgs) -> Result<Outcome, Failure> {
        let (node, driver) = (args.node.as_str(), args.cluster.driver_name.as_str());
        if args.to == node {
            self.screen.problem(&format!(
                "--to: {node} is the node that is to be emptied; name another one, or any"
            ));
            return Ok(Outcome::Failed);
        }
        let names = on_node(&self.cluster.volumes().await?, node, driver, args.namespace.as_deref());
        if !args.cancel {
            self.tell_of(node, names.is_empty()).await?;
        }
        let mut follows = Vec::new();
        for name in names {
            let seen = self.cluster.look(&name).await?;
            if !is_on(&seen, node) {
                continue;
            }
            let to = away_from(node, &args.to, &seen);
            follows.push(match args.cancel {
                true => self.ask(name, &Cancel).await?,
                false => {
                    let wish = Wish { to, now: args.now.then_some(true), keep_source: None, bare_pods: None };
                    self.ask(name, &wish).await?
                }
            });
        }
        if follows.is_empty() {
            self.screen.say(&format!("no claim has a volume of {driver} on node {node}"));
            return Ok(Outcome::Done);
        }
        let until = if args.now || args.cancel { Until::Ended } else { Until::Ready };
        if self.wait(&mut follows, until, driver).await? == Waited::ForNobody {
            self.nobody_moves(&parting(&AdminCommand::Evacuate(args.clone()), self.program));
            return Ok(Outcome::Failed);
        }
        Ok(self.sum_up(args, &follows))
    }

    /// What to know of the node before.
    async fn tell_of(&mut self, node: &str, empty: bool) -> Result<(), Failure> {
        match self.cluster.machine(node).await {
            Ok(None) if empty => {
                self.screen.say(&format!("there is no node {node} in this cluster"));
            }
            Ok(None) => self.screen.say(&format!(
                "there is no node {node} any more: volumes that nobody can read do not move; see `{} promote`",
                self.program
            )),
            Ok(Some(machine)) if !machine.cordoned && !empty => self.screen.say(&format!(
                "node {node} is not cordoned: pods that are made again may come back to it, and new volumes too. \
                 First: kubectl cordon {node}"
            )),
            Ok(Some(_)) | Err(Failure::Forbidden(_)) => {}
            Err(error) => return Err(error),
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
        if bad.is_empty() && ready {
            self.screen.say(&format!(
                "The pods may leave now: kubectl drain {node} --ignore-daemonsets --delete-emptydir-data"
            ));
        }
        if !bad.is_empty() {
            self.screen
                .say("These have not; the controller tries them again as long as they are asked to move:");
            for follow in &bad {
                let why = follow.told.as_ref().map(|told| told.message.as_str()).unwrap_or_default();
                self.screen.say(&format!("  {}: {why}", follow.name));
            }
        }
        Outcome::of(bad.is_empty())
    }
}

/// The claims that may have a volume on the node, by the PersistentVolumes of the cluster.
fn on_node(volumes: &[Volume], node: &str, driver: &str, namespace: Option<&str>) -> BTreeSet<Name> {
    let ours = volumes.iter().filter(|volume| volume.driver == driver);
    let names = ours.flat_map(|volume| {
        let there = volume.claim.clone().filter(|_| volume.node.as_deref() == Some(node));
        // While a claim is made again, its new PersistentVolume says where it came from.
        let record = volume.record.as_ref().filter(|record| record.status.source == node);
        let leaving = record.map(|r| Name { namespace: r.namespace.clone(), name: r.name.clone() });
        [there, leaving].into_iter().flatten()
    });
    names.filter(|name| namespace.is_none_or(|namespace| name.namespace == namespace)).collect()
}

/// Whether the volume of a claim is on the node, or is just leaving it. An old PersistentVolume may name a claim that has
/// another one by now.
fn is_on(seen: &Seen, node: &str) -> bool {
    let leaving = seen.told().is_some_and(|told| told.source == node && told.is_under_way());
    leaving || seen.claim.is_some() && seen.node.as_deref().is_none_or(|of_volume| of_volume == node)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::seen::{Claim, Record, Told};

    fn volume(name: &str, node: &str, claim: &str) -> Volume {
        Volume {
            name: name.to_owned(),
            driver: "hostloop.csi.dev".to_owned(),
            node: Some(node.to_owned()),
            claim: Some(Name { namespace: "shop".to_owned(), name: claim.to_owned() }),
            record: None,
        }
    }

    fn told(phase: &str) -> Told {
        Told { phase: phase.to_owned(), source: "node-1".to_owned(), ..Told::default() }
    }

    #[test]
    fn the_claims_of_a_node_are_on_it_or_leave_it() {
        let other = Volume { driver: "other".to_owned(), ..volume("d", "node-1", "other") };
        let record =
            Record { namespace: "shop".to_owned(), name: "leaving".to_owned(), status: told("Rebinding") };
        let leaving = Volume { record: Some(record), ..volume("c", "node-2", "leaving") };
        let volumes = [volume("a", "node-1", "data"), volume("b", "node-2", "log"), leaving, other];
        let names = |namespace| {
            let names = on_node(&volumes, "node-1", "hostloop.csi.dev", namespace);
            names.into_iter().map(|name| name.name).collect::<Vec<_>>()
        };
        assert_eq!(names(None), ["data", "leaving"]);
        assert_eq!(names(Some("shop")), ["data", "leaving"]);
        assert!(names(Some("else")).is_empty());
    }

    #[test]
    fn a_claim_that_has_left_is_not_moved_again() {
        let seen = |node: &str, phase: &str| Seen {
            claim: Some(Claim { told: Some(told(phase)), ..Claim::default() }),
            node: Some(node.to_owned()),
            record: None,
        };
        assert!(is_on(&seen("node-1", "Copying"), "node-1"));
        assert!(is_on(&seen("node-2", "Rebinding"), "node-1"));
        assert!(!is_on(&seen("node-2", "Done"), "node-1"));
        assert!(!is_on(&Seen::default(), "node-1"));
    }
}
