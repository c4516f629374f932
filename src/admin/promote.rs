//! `hostloop promote`: claims go on with their copies, because the node of their volumes is lost.

use super::api::permitted;
use super::follow::{Ending, Follow, Goal};
use super::screen::age;
use super::seen::{Name, Replica};
use super::wait::{Until, Waited};
use super::{Failure, Outcome, Session, parting};
use crate::cli::{AdminCommand, PromoteArgs};
use crate::cluster::moves::decide::ONLY_COPY;

impl Session {
    pub(super) async fn promote(&mut self, args: &PromoteArgs) -> Result<Outcome, Failure> {
        let driver = &args.cluster.driver_name;
        let replicas = self.cluster.replicas(driver).await?;
        let mut follows = Vec::new();
        let mut copies = Vec::new();
        for name in self.names(args.namespace.as_deref(), &args.claims) {
            let copy = match self.cluster.claim(&name).await? {
                Some(claim) => copy(&replicas, &name, &claim.uid),
                None => Err(Ending::Gone),
            };
            match copy {
                Ok(replica) => {
                    self.say_what_is_lost(replica).await?;
                    copies.push(replica);
                }
                Err(ending) => follows.push(self.ended(name, Goal::Promoted, ending)),
            }
        }
        if !args.yes && !copies.is_empty() {
            self.screen.say("Nothing was done. If the loss is accepted, give the command --yes.");
            return Ok(Outcome::Unconfirmed);
        }
        for replica in copies {
            if !replica.promoted {
                self.cluster.promote(replica).await?;
            }
            follows.push(Follow::of_replica(replica, Goal::Promoted));
        }
        if self.wait(&mut follows, Until::Ended, driver).await? == Waited::ForNobody {
            self.nobody_moves(&parting(&AdminCommand::Promote(args.clone()), self.program));
            return Ok(Outcome::Failed);
        }
        Ok(Outcome::of(follows.iter().all(Follow::is_good)))
    }

    async fn say_what_is_lost(&mut self, replica: &Replica) -> Result<(), Failure> {
        let (name, source, target) = (&replica.claim, &replica.spec.source_node, &replica.spec.target_node);
        self.screen.say(&format!("{name}: {}", loss(replica)));
        let machine = permitted(self.cluster.machine(source).await)?.flatten();
        // Of a copy on the same node, the disk of the volume is lost.
        if machine.is_some_and(|machine| machine.ready) && source != target {
            self.screen.say(&format!(
                "{name}: node {source} is Ready, so nothing has to be lost: {} move {} -n {} --to {target}",
                self.program, name.name, name.namespace
            ));
        }
        Ok(())
    }
}

/// Returns what is lost with the volume.
fn loss(replica: &Replica) -> String {
    let (to, from) = (&replica.spec.target_node, &replica.spec.source_node);
    match &replica.last_pass {
        Some(asked) => format!(
            "gets its copy on node {to}, of {asked} ({} ago). What was written after that on node {from} is lost",
            age(replica.age)
        ),
        None => format!("gets its copy on node {to}, whose age is not known. What is not in it is lost"),
    }
}

/// Returns the copy of a claim that has data, or why there is none.
fn copy<'a>(replicas: &'a [Replica], name: &Name, uid: &str) -> Result<&'a Replica, Ending> {
    let refused = |why: String| Err(Ending::Refused(why));
    let is_its = |replica: &&Replica| replica.claim == *name && replica.spec.claim.uid == uid;
    // What an earlier move has left says nothing of the copy that there is now.
    let is_past =
        |replica: &&Replica| ["Retiring", "Left", "Stranded"].contains(&replica.told.phase.as_str());
    let its = || replicas.iter().filter(is_its);
    let Some(replica) = its().find(|replica| !is_past(replica)).or_else(|| its().next()) else {
        return refused("it has no copy; docs/moving.md says how to have one stand by".to_owned());
    };
    let target = &replica.spec.target_node;
    match replica.told.phase.as_str() {
        "Pending" | "Copying" => refused(format!("its copy on node {target} has no data yet")),
        "Abandoning" if !replica.told.message.starts_with(ONLY_COPY) => {
            refused(format!("its copy on node {target} is being deleted: {}", replica.told.message))
        }
        "Stranded" => refused(format!("its copy has gone with node {target}: {}", replica.told.message)),
        "Retiring" | "Left" => {
            refused(format!("its volume is on node {target} already, and it has no other copy"))
        }
        _ => Ok(replica),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn replica(phase: &str) -> Replica {
        let spec = json!({"claim": {"namespace": "shop", "name": "data", "uid": "u"}, "sourceNode": "n1",
            "targetNode": "n2", "purpose": "Standby"});
        Replica::read(&spec, &json!({"phase": phase, "lastPass": {"asked": "2026-01-02T03:04:05Z"}}))
    }

    #[test]
    fn a_copy_without_data_is_not_promoted() {
        let name = replica("").claim;
        for phase in ["Following", "Ready", "Standby", "CuttingOver", "Exchanging", "LastPass", "Levitating"]
        {
            assert!(copy(&[replica(phase)], &name, "u").is_ok(), "{phase}");
        }
        let why = |phase: &str, uid| match copy(&[replica(phase)], &name, uid) {
            Err(Ending::Refused(why)) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(why("Pending", "u"), "its copy on node n2 has no data yet");
        assert_eq!(why("Copying", "u"), "its copy on node n2 has no data yet");
        assert!(why("Abandoning", "u").starts_with("its copy on node n2 is being deleted"));
        let mut only = replica("Abandoning");
        only.told.message = format!("{ONLY_COPY}, and is kept: node n1 does not answer");
        assert!(copy(&[only], &name, "u").is_ok());
        assert!(why("Left", "u").starts_with("its volume is on node n2 already"));
        assert!(why("Stranded", "u").starts_with("its copy has gone with node n2"));
        let both = ["Left", "Stranded", "Standby"].map(replica);
        assert_eq!(copy(&both, &name, "u").ok().map(|copy| copy.told.phase.as_str()), Some("Standby"));
        assert!(why("Standby", "of a later claim").starts_with("it has no copy"));
    }

    #[test]
    fn a_loss_has_a_time() {
        let known = Replica { age: Some(3 * 86400), ..replica("Standby") };
        let text = loss(&known);
        assert!(text.contains("node n2, of 2026-01-02T03:04:05Z (3d ago)"), "{text}");
        assert!(loss(&Replica { last_pass: None, ..known }).contains("not known"));
    }
}
