//! The messages with which a copy is brought up to date.

use super::{Malformed, consistency, cut, decode_piece, encode_cut, encode_piece};
use crate::error::{Error, Result};
use crate::model::copy_of::{UpdateCopy, Updated};
use crate::model::pull::{Changes, Placed, SourceHandle, Way, Zeros};
use crate::model::{Permit, VolumeId};
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
    let way = Way { address: request.source_address, permit };
    let most_bytes = Some(request.most_bytes).filter(|most| *most > 0);
    Ok(UpdateCopy { volume_id: request.volume_id, consistency, way, whole: request.whole, most_bytes })
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
    use crate::model::{NodeKey, SnapshotId, Timestamp};

    #[test]
    fn there_and_back() {
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
            source_address: "a:1".to_owned(),
            ..Default::default()
        };
        let decoded = update_copy(order.clone()).unwrap();
        assert_eq!((decoded.way.address.as_str(), decoded.most_bytes), ("a:1", None));
        let limited = peer::UpdateCopyRequest { most_bytes: 5, ..order.clone() };
        assert_eq!(update_copy(limited).unwrap().most_bytes, Some(5));
        let nowhere = peer::UpdateCopyRequest { source_address: String::new(), ..order.clone() };
        assert!(matches!(update_copy(nowhere), Err(Error::Invalid(_))));
        let long = peer::UpdateCopyRequest { permit: vec![0; Permit::LONGEST + 1], ..order };
        assert!(matches!(update_copy(long), Err(Error::Invalid(_))));
    }
}
