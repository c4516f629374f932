//! What another node may read here: what its permit says, and without a permit nothing.

use crate::error::{Error, Result};
use crate::model::pull::{Keep, OpenSource};
use crate::model::{Grant, NodeKey, SnapshotId, VolumeId, VolumeSource};

/// Makes sure of permits.
pub trait Permits: Send + Sync {
    /// What a controller permits with this, if it is good now.
    ///
    /// # Errors
    /// Why it is not, to follow "the permit is refused:".
    fn open(&self, permit: &[u8]) -> std::result::Result<Grant, String>;
}

/// For a process that no other node can reach.
pub struct NoPermits;

impl Permits for NoPermits {
    fn open(&self, _permit: &[u8]) -> std::result::Result<Grant, String> {
        Err("this node serves no other nodes".to_owned())
    }
}

/// What the caller may read on the node `here`. `caller` is the node that its certificate names; one that all nodes share
/// names nobody, and the permit alone says for whom it is.
///
/// # Errors
/// `Denied`.
pub(super) fn grant(
    permits: &dyn Permits,
    permit: &[u8],
    here: &str,
    caller: Option<&NodeKey>,
) -> Result<Grant> {
    if permit.is_empty() {
        return Err(Error::Denied("the call has no permit of a controller".to_owned()));
    }
    let grant = permits.open(permit).map_err(refused)?;
    let Grant { source_node, target_node, target, .. } = &grant;
    let maker = NodeKey::of(target_node);
    if source_node != here {
        return Err(refused(format!("it is for reading on node {source_node:?}, and this is {here:?}")));
    }
    if let Some(caller) = caller.filter(|caller| **caller != maker) {
        return Err(refused(format!(
            "it is for node {target_node:?}, and the caller's certificate belongs to another node (key {caller})"
        )));
    }
    if target.node_key() != maker.as_str() {
        return Err(refused(format!("volume {target} is not one of node {target_node:?}")));
    }
    Ok(grant)
}

/// Whether this may be opened.
///
/// # Errors
/// `Denied`.
pub(super) fn may_open(grant: &Grant, request: &OpenSource) -> Result<()> {
    if grant.source != request.source {
        let text = format!("it is for {}, and not for {}", grant.source, request.source);
        return Err(refused(text));
    }
    if grant.target != request.target {
        let text = format!("it is for making volume {}, and not {}", grant.target, request.target);
        return Err(refused(text));
    }
    match (&request.keep, &grant.source) {
        (Keep::Moves { node_id, .. }, VolumeSource::Snapshot(id)) => may_take(grant, (node_id, id)),
        (Keep::Moves { .. }, VolumeSource::Volume(_)) => Err(refused("volumes do not move by it")),
        _ => Ok(()),
    }
}

/// Whether a snapshot may move to this node: a permit to make a volume of it does not suffice.
///
/// # Errors
/// `Denied`.
fn may_take(grant: &Grant, (node_id, id): (&str, &SnapshotId)) -> Result<()> {
    let Grant { target_node, target, .. } = grant;
    match target_node == node_id && *target == VolumeId::of_taken(&NodeKey::of(node_id), id) {
        true => Ok(()),
        false => Err(refused(format!("it is not for moving {id} to node {node_id:?}"))),
    }
}

/// Whether what was opened may be read and closed.
///
/// # Errors
/// `Denied`.
pub(super) fn may_read(grant: &Grant, handle: &SnapshotId) -> Result<()> {
    match grant.covers(handle) {
        true => Ok(()),
        false => Err(refused(format!(
            "it is for {} and volume {}, and source {handle} is another one",
            grant.source, grant.target
        ))),
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::Denied(format!("the permit is refused: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Consistency, Timestamp};

    /// Takes every permit for the same grant.
    struct Always(Grant);

    impl Permits for Always {
        fn open(&self, _permit: &[u8]) -> std::result::Result<Grant, String> {
            Ok(self.0.clone())
        }
    }

    fn ids() -> (SnapshotId, VolumeId) {
        (SnapshotId::of_name(&NodeKey::of("a"), "s"), VolumeId::of_name(&NodeKey::of("b"), "t"))
    }

    fn permitted() -> Grant {
        let (snapshot, target) = ids();
        Grant {
            source_node: "a".to_owned(),
            target_node: "b".to_owned(),
            source: VolumeSource::Snapshot(snapshot),
            target,
            expires: 0,
        }
    }

    #[track_caller]
    fn denied<T: std::fmt::Debug>(answer: Result<T>, hint: &str) {
        let error = answer.expect_err("it is denied");
        assert!(matches!(&error, Error::Denied(why) if why.contains(hint)), "{error:?}");
    }

    #[test]
    fn a_permit_is_for_one_source_and_one_target_node() {
        let [named, other] = ["b", "c"].map(NodeKey::of);
        let always = Always(permitted());
        let ask = |here: &str, caller| grant(&always, b"permit", here, caller);
        assert_eq!(ask("a", Some(&named)).expect("permitted"), permitted());
        assert_eq!(ask("a", None).expect("a shared certificate"), permitted());
        denied(ask("c", Some(&named)), "this is \"c\"");
        denied(ask("a", Some(&other)), "the caller's certificate belongs to another node");
        denied(grant(&always, b"", "a", Some(&named)), "has no permit");
        denied(grant(&NoPermits, b"permit", "a", Some(&named)), "no other nodes");
        let target = VolumeId::of_name(&other, "t");
        let wrong = Always(Grant { target, ..permitted() });
        denied(grant(&wrong, b"permit", "a", None), "is not one of node \"b\"");
    }

    #[test]
    fn a_permit_is_for_one_source_and_one_volume() {
        let (snapshot, target) = ids();
        let [source_of, target_of] = ["a", "b"].map(NodeKey::of);
        let open = OpenSource {
            by_file: false,
            source: VolumeSource::Snapshot(snapshot.clone()),
            target,
            consistency: Consistency::default(),
            began: Timestamp::now(),
            keep: crate::model::pull::Keep::Nothing,
        };
        assert!(may_open(&permitted(), &open).is_ok() && may_read(&permitted(), &snapshot).is_ok());
        let other = SnapshotId::of_name(&source_of, "x");
        let of_other = OpenSource { source: VolumeSource::Snapshot(other.clone()), ..open.clone() };
        denied(may_open(&permitted(), &of_other), "and not for snapshot");
        denied(may_read(&permitted(), &other), "is another one");
        let volume = VolumeId::of_name(&source_of, "v");
        denied(
            may_open(&permitted(), &OpenSource { source: VolumeSource::Volume(volume), ..open.clone() }),
            "volume",
        );
        let for_other = OpenSource { target: VolumeId::of_name(&target_of, "u"), ..open };
        denied(may_open(&permitted(), &for_other), "it is for making volume");
    }

    /// The permit for a restore says nothing of where the snapshot is to be.
    #[test]
    fn a_permit_to_read_a_snapshot_does_not_move_it() {
        let (snapshot, target) = ids();
        let order = |target: &VolumeId, node_id: &str| OpenSource {
            by_file: false,
            source: VolumeSource::Snapshot(snapshot.clone()),
            target: target.clone(),
            consistency: Consistency::default(),
            began: Timestamp::now(),
            keep: Keep::Moves { node_id: node_id.to_owned(), group: None },
        };
        denied(may_open(&permitted(), &order(&target, "b")), "not for moving");
        let taken = VolumeId::of_taken(&NodeKey::of("b"), &snapshot);
        let grant = Grant { target: taken.clone(), ..permitted() };
        assert!(may_open(&grant, &order(&taken, "b")).is_ok());
        denied(may_open(&grant, &order(&taken, "c")), "not for moving");
    }
}
