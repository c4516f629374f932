//! What is amiss on this node (`hostloop doctor`): what lies in the pools, what the kernel has, and what the records say, compared.
//!
//! The node says what it knows for certain, and hands out its records for the rest: only the API server knows which of them a
//! PersistentVolume names. Nothing is changed before someone asks for a fix. A fix takes the lock of what it is about, looks
//! again, and does nothing unless everything is as the caller has seen it. A deletion is the driver's own, which asks the kernel
//! who uses the volume.

mod files;
mod fix;
mod records;

use std::collections::{HashMap, HashSet};
use std::fmt::Debug;
use std::sync::Arc;

use super::details::Extent;
use super::locks::Key;
use super::locks::guarded::Guarded;
use super::request::token;
use super::{Driver, Pool};
use crate::error::{Error, Result};
use crate::model::findings::{Finding, FindingsPage, HeldRecord};
use crate::model::{ObjectId, Timestamp};

/// Entries of a page at most. A message of gRPC has 4 MiB.
const PAGE: usize = 500;

/// When devices, mounts and lost limits were seen first, which the kernel does not say: by a text that is of one of them only.
#[derive(Default)]
pub(super) struct FirstSeen(Guarded<HashMap<String, Timestamp>>);

impl FirstSeen {
    fn of(&self, seen: &str) -> Timestamp {
        *self.0.lock().entry(seen.to_owned()).or_insert_with(Timestamp::now)
    }

    fn retain(&self, there: &HashSet<String>) {
        self.0.lock().retain(|seen, _| there.contains(seen));
    }
}

/// All that a look has found.
#[derive(Default)]
struct Looked {
    findings: Vec<Finding>,
    records: Vec<HeldRecord>,
    /// What could not be looked at.
    unknown: Vec<String>,
}

/// An entry of a page, in the order of pages.
enum Entry {
    Finding(Finding),
    Record(HeldRecord),
}

impl Driver {
    /// Returns a page of what is amiss on this node, and of its records.
    ///
    /// # Errors
    /// NOT_FOUND if `node_id` is neither empty nor that of this node, ABORTED for a token that this driver did not give out.
    pub fn list_findings(
        self: &Arc<Self>,
        node_id: &str,
        starting_token: Option<&str>,
    ) -> Result<FindingsPage> {
        self.expect_this_node(node_id)?;
        let after: Option<String> = starting_token.map(token::parse).transpose()?;
        if after.is_none() {
            self.measure_details(Extent::Everything);
        }
        let looked = self.look_for_findings();
        let mut page = FindingsPage {
            node_id: self.node_id().to_owned(),
            driver_name: self.store.identity().driver.clone(),
            now: Timestamp::now(),
            ..FindingsPage::default()
        };
        if after.is_none() {
            page.unknown = looked.unknown;
        }
        let findings = looked
            .findings
            .into_iter()
            .map(|it| (format!("finding/{}/{}/{}", it.class, it.id, it.path), Entry::Finding(it)));
        let records = looked.records.into_iter().map(|it| (format!("record/{}", it.id), Entry::Record(it)));
        let mut entries: Vec<(String, Entry)> = findings.chain(records).collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries.retain(|(key, _)| after.as_ref().is_none_or(|after| key > after));
        let more = entries.len() > PAGE;
        entries.truncate(PAGE);
        page.next_token = entries.last().filter(|_| more).map(|(key, _)| token::make(key));
        for (_, entry) in entries {
            match entry {
                Entry::Finding(finding) => page.findings.push(finding),
                Entry::Record(record) => page.records.push(record),
            }
        }
        Ok(page)
    }

    fn expect_this_node(&self, node_id: &str) -> Result<()> {
        match [self.node_id(), ""].contains(&node_id) {
            true => Ok(()),
            false => Err(Error::NotFound(format!(
                "this is node {:?}, and node {node_id:?} was asked for",
                self.node_id()
            ))),
        }
    }

    fn look_for_findings(&self) -> Looked {
        let mut looked = Looked::default();
        if let Some(trouble) = self.troubles_of_state() {
            looked.unknown.push(trouble.message);
        }
        let mut pools: Vec<Arc<Pool>> = Vec::new();
        for name in self.pools.names() {
            match (self.pools.get(&name), self.pools.is_silent(std::slice::from_ref(&name))) {
                (Ok(pool), None) => pools.push(pool),
                (Ok(_), Some((_, why))) => looked.unknown.push(format!("pool {name}: {why}")),
                (Err(error), _) => looked.unknown.push(error.to_string()),
            }
        }
        self.look_at_records(&mut looked);
        for pool in &pools {
            self.look_at_files(pool, &mut looked);
        }
        self.look_at_freezes(&mut looked);
        let mounts = looked.records.iter().flat_map(|record| &record.mounts);
        let mounts = mounts.map(|mount| records::key_of_mount(&mount.path, &mount.seen));
        let there = looked.findings.iter().map(|finding| finding.seen.clone()).chain(mounts).collect();
        self.first_seen.retain(&there);
        looked
    }

    /// Reports whether a call is at work on it.
    fn is_at_work(&self, object: impl Into<ObjectId>) -> bool {
        self.locks.is_taken(&Key::Object(object.into()))
    }
}

/// Returns a text that changes with the value.
fn print_of(value: &impl Debug) -> String {
    format!("{:08x}", crc32fast::hash(format!("{value:?}").as_bytes()))
}
