//! The messages with which a snapshot moves to another node, to plain types and back, on both sides.

use super::decode::fields;
use super::peer;
use super::pull::{Malformed, consistency};
use crate::error::{Error, Result};
use crate::model::pull::Way;
use crate::model::{
    FoundSnapshot, GroupSnapshot, Handover, KeepSnapshot, MovingId, MovingSnapshot, NodeKey, Permit, Phase,
    ReleaseSnapshot, Side, SnapshotId, SnapshotObject, TakeSnapshot, Timestamp, VolumeId,
};

/// The longest name of an object of Kubernetes, in bytes.
const LONGEST: usize = 253;

/// Encodes the answer to FindSnapshot.
pub fn encode_found(found: FoundSnapshot) -> peer::FindSnapshotResponse {
    let FoundSnapshot { found, incomplete, handover, moved_to } = found;
    let (handover, moved_to) = (handover.map(encode), moved_to.unwrap_or_default());
    peer::FindSnapshotResponse { found, incomplete, handover, moved_to }
}

/// Decodes the answer to FindSnapshot.
pub fn decode_found(answer: peer::FindSnapshotResponse) -> FoundSnapshot {
    let peer::FindSnapshotResponse { found, incomplete, handover, moved_to } = answer;
    let moved_to = Some(moved_to).filter(|node_id| !node_id.is_empty());
    FoundSnapshot { found, incomplete, handover: handover.and_then(decode), moved_to }
}

/// Encodes the other node that may have a snapshot.
pub fn encode(handover: Handover) -> peer::Handover {
    let side = match handover.side {
        Side::Offered => peer::handover::Side::Offered,
        Side::Withdrawn => peer::handover::Side::Withdrawn,
        Side::Taken => peer::handover::Side::Taken,
    };
    peer::Handover { side: side.into(), node_id: handover.node_id, number: handover.number }
}

/// Decodes the other node that may have a snapshot; `None` for a side that only a later version knows.
pub fn decode(handover: peer::Handover) -> Option<Handover> {
    let side = match handover.side() {
        peer::handover::Side::Unspecified => return None,
        peer::handover::Side::Offered => Side::Offered,
        peer::handover::Side::Withdrawn => Side::Withdrawn,
        peer::handover::Side::Taken => Side::Taken,
    };
    Some(Handover { side, node_id: handover.node_id, number: handover.number })
}

/// Encodes what a snapshot has beside its data.
pub fn encode_moving(moving: &MovingSnapshot) -> peer::MovingSnapshot {
    let MovingSnapshot { name, source, object, pool, group, number } = moving.clone();
    let (namespace, snapshot_name, content_name) =
        object.map(|object| (object.namespace, object.name, object.content)).unwrap_or_default();
    let (volume_id, pool) = (source.to_string(), pool.to_string());
    let group = group.map(encode_group);
    peer::MovingSnapshot { name, volume_id, namespace, snapshot_name, content_name, number, pool, group }
}

fn encode_group(group: GroupSnapshot) -> peer::MovingGroup {
    let GroupSnapshot { id, name, created, sources, snapshots, consistency, .. } = group;
    peer::MovingGroup {
        id: id.to_string(),
        name,
        created_ns: created.as_nanos(),
        volume_ids: sources.iter().map(ToString::to_string).collect(),
        snapshot_ids: snapshots.iter().map(ToString::to_string).collect(),
        no_freeze: !consistency.freeze,
        freeze_timeout_ms: consistency.freeze_timeout_ms,
    }
}

/// Decodes the record of a group, as one that is being made.
fn decode_group(group: peer::MovingGroup) -> std::result::Result<GroupSnapshot, Malformed> {
    let wrong = |what: &str| Malformed(format!("its group has {what}"));
    let parsed = |ids: &[String]| ids.iter().map(|id| id.parse().ok()).collect::<Option<Vec<VolumeId>>>();
    let sources = parsed(&group.volume_ids).ok_or_else(|| wrong("a volume without an id of hostloop"))?;
    let members = group.snapshot_ids.iter().map(|id| id.parse().ok()).collect::<Option<Vec<SnapshotId>>>();
    let snapshots = members.ok_or_else(|| wrong("a member without an id of hostloop"))?;
    if sources.len() != snapshots.len() || sources.is_empty() {
        return Err(wrong("another number of members than of volumes"));
    }
    Ok(GroupSnapshot {
        id: group.id.parse().map_err(|_| wrong("no id of hostloop"))?,
        name: fields::name(group.name).map_err(|error| Malformed(format!("its group: {error}")))?,
        phase: Phase::Creating,
        created: Timestamp::from_nanos(group.created_ns),
        sources,
        snapshots,
        consistency: consistency(group.no_freeze, group.freeze_timeout_ms),
        handover: None,
    })
}

/// Decodes what a snapshot has beside its data.
///
/// # Errors
/// [`Malformed`].
pub fn decode_moving(moving: peer::MovingSnapshot) -> std::result::Result<MovingSnapshot, Malformed> {
    let peer::MovingSnapshot { name, volume_id, namespace, snapshot_name, content_name, number, pool, group } =
        moving;
    if let Some(long) = [&namespace, &snapshot_name, &content_name].iter().find(|name| name.len() > LONGEST) {
        return Err(Malformed(format!("it names an object with {} bytes", long.len())));
    }
    let object = (!snapshot_name.is_empty()).then_some(SnapshotObject {
        namespace,
        name: snapshot_name,
        content: content_name,
    });
    let source = volume_id.parse().map_err(|_| Malformed("its volume has no id of hostloop".to_owned()))?;
    let name = fields::name(name).map_err(|error| Malformed(format!("its {error}")))?;
    let pool = pool.parse().map_err(|_| Malformed("its pool has no name of a pool".to_owned()))?;
    let group = group.map(decode_group).transpose()?;
    Ok(MovingSnapshot { name, source, object, pool, group, number })
}

/// Decodes TakeSnapshot.
///
/// # Errors
/// INVALID_ARGUMENT.
pub fn take(request: peer::TakeSnapshotRequest) -> Result<TakeSnapshot> {
    let peer::TakeSnapshotRequest { snapshot_id, source_address, source_node_id, permit, members } = request;
    if source_address.is_empty() {
        return Err(Error::Invalid("source_address is missing".to_owned()));
    }
    let (id, node_id) = (id(&snapshot_id)?, fields::node_id(source_node_id)?);
    let way = |permit: Vec<u8>| {
        let permit = Permit::new(permit)
            .ok_or_else(|| Error::Invalid(format!("permit has more than {} bytes", Permit::LONGEST)))?;
        Ok::<_, Error>(Way { node_key: NodeKey::of(&node_id), address: source_address.clone(), permit })
    };
    let member = |member: peer::take_snapshot_request::Member| {
        let id = member.snapshot_id.parse();
        let id =
            id.map_err(|_| Error::Invalid(format!("{:?} is not the id of a snapshot", member.snapshot_id)))?;
        Ok::<_, Error>((id, way(member.permit)?))
    };
    let ways = match &id {
        MovingId::Snapshot(snapshot) => vec![(snapshot.clone(), way(permit)?)],
        MovingId::Group(_) if members.is_empty() => {
            return Err(Error::Invalid("members are missing: a group has some".to_owned()));
        }
        MovingId::Group(_) => members.into_iter().map(member).collect::<Result<Vec<_>>>()?,
    };
    Ok(TakeSnapshot { id, node_id, ways })
}

/// Decodes ReleaseSnapshot.
///
/// # Errors
/// INVALID_ARGUMENT, also without a number: each offer has one.
pub fn release(request: peer::ReleaseSnapshotRequest) -> Result<ReleaseSnapshot> {
    let peer::ReleaseSnapshotRequest { snapshot_id, node_id, number } = request;
    Ok(ReleaseSnapshot {
        id: id(&snapshot_id)?,
        node_id: fields::node_id(node_id)?,
        number: offered(number)?,
    })
}

/// Decodes KeepSnapshot.
///
/// # Errors
/// INVALID_ARGUMENT, also without a number.
pub fn keep(request: peer::KeepSnapshotRequest) -> Result<KeepSnapshot> {
    let peer::KeepSnapshotRequest { snapshot_id, node_id, number, alone } = request;
    let (id, node_id) = (id(&snapshot_id)?, fields::node_id(node_id)?);
    Ok(KeepSnapshot { id, node_id, number: offered(number)?, alone })
}

/// Returns the id of a snapshot or a group snapshot that a request names.
///
/// # Errors
/// INVALID_ARGUMENT for text that is no id.
pub fn id(id: &str) -> Result<MovingId> {
    let wrong =
        |_| Error::Invalid(format!("snapshot_id {id:?} is not the id of a snapshot or a group snapshot"));
    id.parse().map_err(wrong)
}

fn offered(number: u64) -> Result<u64> {
    match number {
        0 => Err(Error::Invalid("number is missing: each offer has one".to_owned())),
        number => Ok(number),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Consistency, GroupSnapshotId, PoolName};

    fn group() -> GroupSnapshot {
        let node = NodeKey::of("a");
        let id = GroupSnapshotId::of_name(&node, "g");
        let source = VolumeId::of_name(&node, "v");
        GroupSnapshot {
            name: "g".to_owned(),
            phase: Phase::Creating,
            created: Timestamp::from_nanos(3),
            snapshots: vec![SnapshotId::of_member(&id, &node, &source)],
            sources: vec![source],
            consistency: Consistency { freeze: false, ..Consistency::default() },
            handover: None,
            id,
        }
    }

    fn moving() -> MovingSnapshot {
        let object = SnapshotObject {
            namespace: "shop".to_owned(),
            name: "before".to_owned(),
            content: "content-1".to_owned(),
        };
        let source = VolumeId::of_name(&NodeKey::of("a"), "v");
        let (name, pool) = ("snapshot-1".to_owned(), PoolName::default());
        MovingSnapshot { name, source, object: Some(object), pool, group: None, number: 7 }
    }

    #[test]
    fn a_handover_is_read_as_it_was_sent() {
        for side in [Side::Offered, Side::Withdrawn, Side::Taken] {
            let handover = Handover { side, node_id: "b".to_owned(), number: 3 };
            let moved_to = Some("b".to_owned());
            let found = FoundSnapshot { found: true, incomplete: true, handover: Some(handover), moved_to };
            assert_eq!(decode_found(encode_found(found.clone())), found);
        }
        assert_eq!(decode(peer::Handover { side: 99, ..Default::default() }), None);
        let unnamed = MovingSnapshot { object: None, ..moving() };
        let member = MovingSnapshot { group: Some(group()), ..moving() };
        for moving in [moving(), unnamed, member] {
            assert_eq!(decode_moving(encode_moving(&moving)), Ok(moving));
        }
    }

    #[test]
    fn a_wrong_record_of_a_snapshot_is_refused() {
        let good = || encode_moving(&moving());
        for wrong in [
            peer::MovingSnapshot { name: String::new(), ..good() },
            peer::MovingSnapshot { name: "a\0b".to_owned(), ..good() },
            peer::MovingSnapshot { pool: "../x".to_owned(), ..good() },
            peer::MovingSnapshot { volume_id: "../x".to_owned(), ..good() },
            peer::MovingSnapshot { content_name: "x".repeat(LONGEST + 1), ..good() },
        ] {
            assert!(decode_moving(wrong.clone()).is_err(), "{wrong:?}");
        }
        let of_group = |wrong: peer::MovingGroup| peer::MovingSnapshot { group: Some(wrong), ..good() };
        assert!(decode_moving(of_group(encode_group(group()))).is_ok());
        for wrong in [
            peer::MovingGroup { id: "x".to_owned(), ..encode_group(group()) },
            peer::MovingGroup { snapshot_ids: Vec::new(), ..encode_group(group()) },
            peer::MovingGroup { snapshot_ids: vec!["../x".to_owned()], ..encode_group(group()) },
            peer::MovingGroup { volume_ids: vec!["x".to_owned()], ..encode_group(group()) },
            peer::MovingGroup { name: String::new(), ..encode_group(group()) },
        ] {
            assert!(decode_moving(of_group(wrong.clone())).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn an_order_about_a_snapshot_needs_all_fields() {
        let snapshot_id = SnapshotId::of_name(&NodeKey::of("a"), "s").to_string();
        let take_it = peer::TakeSnapshotRequest {
            snapshot_id: snapshot_id.clone(),
            source_address: "a:1".to_owned(),
            source_node_id: "a".to_owned(),
            permit: vec![1],
            members: Vec::new(),
        };
        assert_eq!(take(take_it.clone()).unwrap().ways[0].1.node_key, NodeKey::of("a"));
        let group = peer::TakeSnapshotRequest { snapshot_id: group().id.to_string(), ..take_it.clone() };
        let member =
            |id: &str| peer::take_snapshot_request::Member { snapshot_id: id.to_owned(), permit: vec![1] };
        let of = |members| peer::TakeSnapshotRequest { members, ..group.clone() };
        assert_eq!(take(of(vec![member(&snapshot_id)])).unwrap().ways.len(), 1);
        let release_it = peer::ReleaseSnapshotRequest { snapshot_id, node_id: "b".to_owned(), number: 3 };
        assert_eq!(release(release_it.clone()).unwrap().number, 3);
        for wrong in [
            take(peer::TakeSnapshotRequest { source_address: String::new(), ..take_it.clone() }).err(),
            take(peer::TakeSnapshotRequest { source_node_id: String::new(), ..take_it.clone() }).err(),
            take(peer::TakeSnapshotRequest { permit: vec![0; Permit::LONGEST + 1], ..take_it.clone() }).err(),
            take(peer::TakeSnapshotRequest { snapshot_id: "x".to_owned(), ..take_it }).err(),
            take(of(Vec::new())).err(),
            take(of(vec![member("x")])).err(),
            release(peer::ReleaseSnapshotRequest { number: 0, ..release_it.clone() }).err(),
            release(peer::ReleaseSnapshotRequest { node_id: String::new(), ..release_it }).err(),
            keep(peer::KeepSnapshotRequest::default()).err(),
        ] {
            assert!(matches!(wrong, Some(Error::Invalid(_))), "{wrong:?}");
        }
    }
}
