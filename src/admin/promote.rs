//! `hostloop promote`: claims go on with their copies, because the node of their volumes is lost.

use super::ask::Promotion;
use super::follow::{Ending, Follow, Goal};
use super::screen::age;
use super::seen::{Name, PROMOTE, Seen, Told};
use super::wait::{Until, Waited};
use super::{Failure, Outcome, Session, parting};
use crate::cli::{AdminCommand, PromoteArgs};

impl Session {
    pub(super) async fn promote(&mut self, args: &PromoteArgs) -> Result<Outcome, Failure> {
        let mut follows = Vec::new();
        let mut standing_by = Vec::new();
        for name in self.names(args.namespace.as_deref(), &args.claims) {
            let seen = self.cluster.look(&name).await?;
            match copy(&seen) {
                Ok(told) => {
                    self.say_what_is_lost(&name, &told).await?;
                    standing_by.push((name, told.target));
                }
                Err(ending) => {
                    let follow = Follow::ended(name, Goal::Promoted(String::new()), ending);
                    self.screen.ended(&follow);
                    follows.push(follow);
                }
            }
        }
        if !args.yes && !standing_by.is_empty() {
            self.screen.say("Nothing was done. If the loss is accepted, give the command --yes.");
            return Ok(Outcome::Unconfirmed);
        }
        for (name, to) in standing_by {
            follows.push(self.ask(name, &Promotion { to }).await?);
        }
        if self.wait(&mut follows, Until::Ended, &args.cluster.driver_name).await? == Waited::ForNobody {
            self.nobody_moves(&parting(&AdminCommand::Promote(args.clone()), self.program));
            return Ok(Outcome::Failed);
        }
        Ok(Outcome::of(follows.iter().all(Follow::is_good)))
    }

    async fn say_what_is_lost(&mut self, name: &Name, told: &Told) -> Result<(), Failure> {
        self.screen.say(&format!("{name}: {}", loss(told)));
        let ready = match self.cluster.machine(&told.source).await {
            Ok(machine) => machine.is_some_and(|machine| machine.ready),
            Err(Failure::Forbidden(_)) => false,
            Err(error) => return Err(error),
        };
        if ready {
            self.screen.say(&format!(
                "{name}: node {} is Ready, so nothing has to be lost: {} move {} --to {}",
                told.source, self.program, name.name, told.target
            ));
        }
        Ok(())
    }
}

/// What is lost with the volume.
fn loss(told: &Told) -> String {
    let (to, from) = (&told.target, &told.source);
    match &told.last_cut {
        Some(cut) => format!(
            "gets its copy on node {to}, of {cut} ({} ago). What was written after that on node {from} is lost",
            age(Some(cut))
        ),
        None => format!("gets its copy on node {to}, whose age is not known. What is not in it is lost"),
    }
}

/// What is told of the claim's copy, or why there is none.
fn copy(seen: &Seen) -> Result<Told, Ending> {
    if seen.claim.is_none() && seen.record.is_none() {
        return Err(Ending::Gone);
    }
    let asked = seen.claim.as_ref().is_some_and(|claim| claim.annotations.contains_key(PROMOTE));
    match seen.told() {
        Some(told) if (told.stands_by() || asked) && !told.target.is_empty() => Ok(told.clone()),
        _ => Err(Ending::Refused("no copy of it stands by; docs/moving.md says how to have one".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::seen::Claim;

    #[test]
    fn only_a_copy_that_stands_by_is_promoted() {
        let of = |phase: &str, standby| {
            let told =
                Told { phase: phase.to_owned(), target: "node-2".to_owned(), standby, ..Told::default() };
            Seen { claim: Some(Claim { told: Some(told), ..Claim::default() }), ..Seen::default() }
        };
        assert_eq!(copy(&of("Standby", true)).unwrap().target, "node-2");
        assert!(copy(&of("CatchingUp", true)).is_ok());
        for seen in [of("Copying", false), Seen { claim: Some(Claim::default()), ..Seen::default() }] {
            assert!(copy(&seen).is_err(), "{seen:?}");
        }
        assert!(copy(&Seen::default()).is_err());
    }

    #[test]
    fn a_loss_has_a_time() {
        let told = Told {
            source: "node-1".to_owned(),
            target: "node-2".to_owned(),
            last_cut: Some("2026-01-02T03:04:05Z".to_owned()),
            ..Told::default()
        };
        let text = loss(&told);
        assert!(text.contains("node-2, of 2026-01-02T03:04:05Z (") && text.contains("d ago)"), "{text}");
        assert!(loss(&Told { last_cut: None, ..told }).contains("not known"));
    }
}
