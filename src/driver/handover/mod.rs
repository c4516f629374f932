//! A snapshot moves to another node and keeps its id (docs/decisions/0027).
//!
//! The target copies it from the source ([`take_snapshot`](Driver::take_snapshot)), which records before that to which node it offers the
//! snapshot. Only then may the source delete what it has ([`release_snapshot`](Driver::release_snapshot)). As long as both may have it,
//! each of them names the other one in its record, and a deletion on one goes on to the other.

mod keep_snapshot;
mod offer;
mod release_snapshot;
mod take_snapshot;

use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::{Handover, Side, Snapshot};

impl Driver {
    /// Makes sure that this snapshot is not part of something that cannot be moved.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    fn expect_movable(snapshot: &Snapshot) -> Result<()> {
        match &snapshot.group {
            None => Ok(()),
            Some(group) => Err(Error::InUse(format!(
                "snapshot {} is a member of group {group}, and the snapshots of a group stay on their node; restore what you need of \
                 it on another node, and delete the group",
                snapshot.id
            ))),
        }
    }
}

/// Says why an order does not fit the record of a snapshot.
fn unfit(snapshot: &Snapshot, wanted: &str) -> Error {
    let id = &snapshot.id;
    Error::InUse(match &snapshot.handover {
        None => format!("{wanted}, and snapshot {id} is not being moved; nothing was changed"),
        Some(Handover { side, node_id, number }) => {
            let how = match side {
                Side::Offered => "is offered to",
                Side::Withdrawn => "is no longer offered to",
                Side::Taken => "was copied from",
            };
            format!(
                "{wanted}, and snapshot {id} {how} node {node_id:?} (offer {number}); nothing was changed"
            )
        }
    })
}
