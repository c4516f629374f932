//! The messages with which a copy is brought up to date.

use super::{Malformed, consistency, cut, decode_piece, encode_cut, encode_piece};
use crate::error::{Error, Result};
use crate::model::copy_of::{Becomes, CompleteCopy, DeleteCopy, UpdateCopy, Updated};
use crate::model::pull::{Changes, Placed, SourceHandle, Way, Zeros};
use crate::model::{NodeKey, Permit, Retired, VolumeId};
use crate::wire::decode::fields;
use crate::wire::peer;
use peer::pull_changes_response::Message;

/// PullChanges from `base` to `cut`, from `offset` on.
pub fn encode_changes_request(
    base: &SourceHandle,
    cut: &SourceHandle,
    offset: u64,
    permit: &Permit,
) -> peer::PullChangesRequest {
    let (base, cut) = (Some(encode_cut(base)), Some(encode_cut(cut)));
    peer::PullChangesRequest { base, cut, offset, permit: permit.as_bytes().to_vec() }
}

/// PullChanges as it arrives: the earlier cut, the later one, and from where on.
///
/// # Errors
/// INVALID_ARGUMENT without both; NOT_FOUND for a cut that no node has.
pub fn changes_request(request: &peer::PullChangesRequest) -> Result<(SourceHandle, SourceHandle, u64)> {
    let (Some(base), Some(later)) = (&request.base, &request.cut) else {
        return Err(Error::Invalid("base or cut is missing".to_owned()));
    };
    Ok((cut(base)?, cut(later)?, request.offset))
}

/// A message of PullChanges' answer as it is sent.
pub fn encode_changes(Placed { after, message }: Placed<u64, Changes>) -> peer::PullChangesResponse {
    let message = match message {
        Changes::Data(piece) => Message::Data(encode_piece(piece)),
        Changes::Zeros(Zeros { offset, len, crc32 }) => Message::Zeros(peer::Zeros { offset, len, crc32 }),
        Changes::Unchanged { end } => Message::Unchanged(peer::Unchanged { end }),
        Changes::End { sent_bytes } => Message::End(peer::BlocksEnd { sent_bytes }),
    };
    peer::PullChangesResponse { message: Some(message), after }
}

/// The same as it arrives.
///
/// # Errors
/// [`Malformed`] for one that has no content.
pub fn decode_changes(answer: peer::PullChangesResponse) -> Result<Placed<u64, Changes>, Malformed> {
    let message = match answer.message {
        Some(Message::Data(data)) => Changes::Data(decode_piece(data)),
        Some(Message::Zeros(peer::Zeros { offset, len, crc32 })) => {
            Changes::Zeros(Zeros { offset, len, crc32 })
        }
        Some(Message::Unchanged(peer::Unchanged { end })) => Changes::Unchanged { end },
        Some(Message::End(end)) => Changes::End { sent_bytes: end.sent_bytes },
        None => return Err(Malformed("a message without content".to_owned())),
    };
    Ok(Placed { after: answer.after, message })
}

/// UpdateCopy as it arrives.
///
/// # Errors
/// INVALID_ARGUMENT for a permit that is too long, or without the address of the source.
pub fn update_copy(request: peer::UpdateCopyRequest) -> Result<UpdateCopy> {
    let consistency = consistency(request.no_freeze, request.freeze_timeout_ms);
    let permit = Permit::new(request.permit)
        .ok_or_else(|| Error::Invalid(format!("permit has more than {} bytes", Permit::LONGEST)))?;
    if request.source_address.is_empty() {
        return Err(Error::Invalid("source_address is missing".to_owned()));
    }
    let node_key = NodeKey::of(&fields::node_id(request.source_node_id)?);
    let way = Way { node_key, address: request.source_address, permit };
    let most_bytes = Some(request.most_bytes).filter(|most| *most > 0);
    Ok(UpdateCopy {
        volume_id: request.volume_id,
        consistency,
        way,
        whole: request.whole,
        most_bytes,
        last_pass: request.last_pass,
    })
}

/// Decodes CompleteCopy.
///
/// # Errors
/// INVALID_ARGUMENT for text that is no id, and for an id without a generation.
pub fn complete_copy(request: peer::CompleteCopyRequest) -> Result<CompleteCopy> {
    let peer::CompleteCopyRequest { volume_id, stale, source_volume_id, generation, least_bytes } = request;
    let becomes = match source_volume_id.is_empty() {
        true => None,
        false => Some(Becomes {
            id: id_of("source_volume_id", &source_volume_id)?,
            generation: moved(generation)?,
        }),
    };
    Ok(CompleteCopy { volume_id: id_of("volume_id", &volume_id)?, stale, becomes, least_bytes })
}

/// Decodes DeleteCopy.
///
/// # Errors
/// INVALID_ARGUMENT for text that is no id.
pub fn delete_copy(request: &peer::DeleteCopyRequest) -> Result<DeleteCopy> {
    let peer::DeleteCopyRequest { volume_id, source_volume_id, generation } = request;
    Ok(DeleteCopy {
        volume_id: id_of("volume_id", volume_id)?,
        source: id_of("source_volume_id", source_volume_id)?,
        generation: *generation,
    })
}

/// Decodes RetireVolume.
///
/// # Errors
/// INVALID_ARGUMENT for text that is no id, and without a generation.
pub fn retire_volume(request: peer::RetireVolumeRequest) -> Result<(VolumeId, Retired)> {
    let peer::RetireVolumeRequest { volume_id, generation, node_id } = request;
    let was = id_of("volume_id", &volume_id)?;
    let retired = Retired { was: was.clone(), by: moved(generation)?, node_id: fields::node_id(node_id)? };
    Ok((was, retired))
}

/// Decodes ReclaimVolume.
///
/// # Errors
/// INVALID_ARGUMENT for text that is no id, and for a generation below 2.
pub fn reclaim_volume(request: &peer::ReclaimVolumeRequest) -> Result<(VolumeId, u64)> {
    let peer::ReclaimVolumeRequest { volume_id, generation } = request;
    match generation {
        0 | 1 => Err(Error::Invalid(format!(
            "generation {generation} is too low: a volume that is taken back gets one that is two higher"
        ))),
        generation => Ok((id_of("volume_id", volume_id)?, *generation)),
    }
}

fn id_of(field: &str, id: &str) -> Result<VolumeId> {
    id.parse().map_err(|_| Error::Invalid(format!("{field} {id:?} is not the id of a volume")))
}

fn moved(generation: u64) -> Result<u64> {
    match generation {
        0 => Err(Error::Invalid("generation is missing: a volume that has moved has one above 0".to_owned())),
        generation => Ok(generation),
    }
}

/// The node of SealVolume; `None` where the seal is taken back.
///
/// # Errors
/// INVALID_ARGUMENT for one that is no node id.
pub fn moved_to(node_id: String) -> Result<Option<String>> {
    match node_id.is_empty() {
        true => Ok(None),
        false => fields::node_id(node_id).map(Some),
    }
}

/// ReleaseCuts as it arrives: the volume and its copy; `None` where either cannot be.
pub fn release_cuts(request: &peer::ReleaseCutsRequest) -> Option<(VolumeId, VolumeId)> {
    Some((request.volume_id.parse().ok()?, request.target_volume_id.parse().ok()?))
}

/// UpdateCopy's answer.
pub fn encode_updated(updated: &Updated) -> peer::UpdateCopyResponse {
    let Updated { cut, sent_bytes, changed_bytes } = updated;
    peer::UpdateCopyResponse {
        cut_ns: cut.created.as_nanos(),
        sealed: cut.sealed,
        sent_bytes: *sent_bytes,
        changed_bytes: *changed_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::pull::Piece;
    use crate::model::{SnapshotId, Timestamp};

    #[test]
    fn changes_are_read_as_they_were_sent() {
        for message in [
            Changes::Data(Piece::new(4096, b"data".to_vec())),
            Changes::Zeros(Zeros::new(8192, 4096)),
            Changes::Unchanged { end: 1 << 40 },
            Changes::End { sent_bytes: 4 },
        ] {
            let placed = Placed { after: 7, message };
            assert_eq!(decode_changes(encode_changes(placed.clone())), Ok(placed));
        }
        assert!(decode_changes(peer::PullChangesResponse::default()).is_err());
        let id = |name| SnapshotId::of_name(&NodeKey::of("n"), name);
        let [base, later] =
            ["a", "b"].map(|name| SourceHandle { id: id(name), created: Timestamp::from_nanos(3) });
        let permit = Permit::new(vec![1]).unwrap();
        let request = encode_changes_request(&base, &later, 5, &permit);
        assert_eq!(changes_request(&request).unwrap(), (base, later, 5));
        let without = peer::PullChangesRequest { base: None, ..request.clone() };
        assert!(matches!(changes_request(&without), Err(Error::Invalid(_))));
        let wrong = peer::Cut { handle: "../x".to_owned(), created_ns: 0 };
        let wrong = peer::PullChangesRequest { cut: Some(wrong), ..request };
        assert!(matches!(changes_request(&wrong), Err(Error::NotFound(_))));
    }

    #[test]
    fn an_order_to_update_needs_the_way() {
        let order = peer::UpdateCopyRequest {
            volume_id: "v".to_owned(),
            source_node_id: "a".to_owned(),
            source_address: "a:1".to_owned(),
            ..Default::default()
        };
        let decoded = update_copy(order.clone()).unwrap();
        assert_eq!((decoded.way.address.as_str(), decoded.most_bytes), ("a:1", None));
        assert_eq!(decoded.way.node_key, NodeKey::of("a"));
        let nobody = peer::UpdateCopyRequest { source_node_id: String::new(), ..order.clone() };
        assert!(matches!(update_copy(nobody), Err(Error::Invalid(_))));
        let limited = peer::UpdateCopyRequest { most_bytes: 5, ..order.clone() };
        assert_eq!(update_copy(limited).unwrap().most_bytes, Some(5));
        let last = peer::UpdateCopyRequest { last_pass: true, ..order.clone() };
        assert!(update_copy(last).unwrap().last_pass && !decoded.last_pass);
        let nowhere = peer::UpdateCopyRequest { source_address: String::new(), ..order.clone() };
        assert!(matches!(update_copy(nowhere), Err(Error::Invalid(_))));
        let long = peer::UpdateCopyRequest { permit: vec![0; Permit::LONGEST + 1], ..order };
        assert!(matches!(update_copy(long), Err(Error::Invalid(_))));
    }

    #[test]
    fn a_reclaim_needs_an_id_and_a_generation() {
        let id = VolumeId::of_name(&NodeKey::of("n"), "source");
        let request = peer::ReclaimVolumeRequest { volume_id: id.to_string(), generation: 2 };
        assert_eq!(reclaim_volume(&request).unwrap(), (id, 2));
        for wrong in [
            peer::ReclaimVolumeRequest { generation: 1, ..request.clone() },
            peer::ReclaimVolumeRequest { generation: 0, ..request.clone() },
            peer::ReclaimVolumeRequest { volume_id: "x".to_owned(), ..request },
        ] {
            assert!(matches!(reclaim_volume(&wrong), Err(Error::Invalid(_))), "{wrong:?}");
        }
    }

    #[test]
    fn a_completion_needs_ids_and_a_generation() {
        let [copy, source] = ["copy", "source"].map(|name| VolumeId::of_name(&NodeKey::of("n"), name));
        let order = peer::CompleteCopyRequest {
            volume_id: copy.to_string(),
            stale: true,
            source_volume_id: source.to_string(),
            generation: 2,
            least_bytes: 7,
        };
        let becomes = Some(Becomes { id: source.clone(), generation: 2 });
        let asked = CompleteCopy { volume_id: copy.clone(), stale: true, becomes, least_bytes: 7 };
        assert_eq!(complete_copy(order.clone()).unwrap(), asked);
        let plain = peer::CompleteCopyRequest { source_volume_id: String::new(), ..order.clone() };
        assert_eq!(complete_copy(plain).unwrap(), CompleteCopy { becomes: None, ..asked });
        let retire = peer::RetireVolumeRequest {
            volume_id: source.to_string(),
            generation: 2,
            node_id: "m".to_owned(),
        };
        let retired = Retired { was: source.clone(), by: 2, node_id: "m".to_owned() };
        assert_eq!(retire_volume(retire.clone()).unwrap(), (source, retired));
        for wrong in [
            complete_copy(peer::CompleteCopyRequest { volume_id: "x".to_owned(), ..order.clone() }).err(),
            complete_copy(peer::CompleteCopyRequest { source_volume_id: "x".to_owned(), ..order.clone() })
                .err(),
            complete_copy(peer::CompleteCopyRequest { generation: 0, ..order }).err(),
            retire_volume(peer::RetireVolumeRequest { volume_id: String::new(), ..retire.clone() }).err(),
            retire_volume(peer::RetireVolumeRequest { generation: 0, ..retire.clone() }).err(),
            retire_volume(peer::RetireVolumeRequest { node_id: String::new(), ..retire }).err(),
        ] {
            assert!(matches!(wrong, Some(Error::Invalid(_))), "{wrong:?}");
        }
    }
}
