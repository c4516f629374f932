//! `hostloop status`: the moves of a cluster, and its copies that stand by.

use std::collections::BTreeMap;

use super::screen::{Style, table};
use super::seen::{Claim, Name, Record, Told};
use super::{Failure, Outcome, Session};
use crate::cli::StatusArgs;

impl Session {
    pub(super) async fn show(&mut self, args: &StatusArgs) -> Result<Outcome, Failure> {
        let own = self.cluster.namespace.clone();
        let namespace = args.namespace.clone().unwrap_or(own);
        let namespace = (!args.all_namespaces).then_some(namespace.as_str());
        let claims = self.cluster.claims(namespace).await?;
        let records = match self.cluster.records().await {
            Ok(records) => records,
            Err(error @ Failure::Forbidden(_)) => {
                self.screen.problem(&format!("claims that are just being made again are not shown: {error}"));
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        let rows = rows(claims, records, namespace);
        if self.screen.style == Style::Json {
            for (name, told) in &rows {
                self.screen.json(name, told, None);
            }
            return Ok(Outcome::Done);
        }
        match (rows.is_empty(), namespace) {
            (false, _) => self.screen.line(&table(&rows)),
            (true, Some(namespace)) => {
                self.screen.line(&format!(
                    "no claim in namespace {namespace} moves, has moved or has a copy standing by"
                ));
            }
            (true, None) => self.screen.line("no claim moves, has moved or has a copy standing by"),
        }
        Ok(Outcome::Done)
    }
}

/// What is told of each claim, by namespace and name.
fn rows(claims: Vec<(Name, Claim)>, records: Vec<Record>, namespace: Option<&str>) -> Vec<(Name, Told)> {
    let of_records = records.into_iter().map(|record| {
        let Record { namespace, name, status } = record;
        (Name { namespace, name }, status)
    });
    let mut rows: BTreeMap<Name, Told> = of_records
        .filter(|(name, _)| namespace.is_none_or(|namespace| name.namespace == namespace))
        .collect();
    for (name, claim) in claims {
        if let Some(told) = claim.told {
            rows.insert(name, told);
        } else if claim.wanted().is_some() && !rows.contains_key(&name) {
            let told = Told {
                phase: "Asked".to_owned(),
                target: claim.wanted().unwrap_or_default().to_owned(),
                message: "no controller has looked at it yet".to_owned(),
                ..Told::default()
            };
            rows.insert(name, told);
        }
    }
    rows.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::mover::status::MOVE_TO;

    fn name(namespace: &str, name: &str) -> Name {
        Name { namespace: namespace.to_owned(), name: name.to_owned() }
    }

    fn told(phase: &str) -> Told {
        Told { phase: phase.to_owned(), ..Told::default() }
    }

    #[test]
    fn a_claim_is_shown_once_with_what_is_newest() {
        let record = |namespace: &str, name: &str| Record {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            status: told("Rebinding"),
        };
        let with = |phase: &str| Claim { told: Some(told(phase)), ..Claim::default() };
        let asked = [(MOVE_TO.to_owned(), "node-2".to_owned())].into();
        let claims = vec![
            (name("shop", "data"), with("Done")),
            (name("shop", "asked"), Claim { annotations: asked, ..Claim::default() }),
            (name("shop", "plain"), Claim::default()),
        ];
        let records = vec![record("shop", "data"), record("shop", "gone"), record("else", "gone")];
        let rows = rows(claims, records, Some("shop"));
        let shown: Vec<(&str, &str)> =
            rows.iter().map(|(name, told)| (name.name.as_str(), told.phase.as_str())).collect();
        assert_eq!(shown, [("asked", "Asked"), ("data", "Done"), ("gone", "Rebinding")]);
    }
}
