//! The messages with which a controller reserves the name of a volume, to plain types and back, on both sides.

use crate::error::{Error, Result};
use crate::model::VolumeId;
use crate::model::answer::{Found, Location, Reserved};
use crate::wire::peer;
use peer::VolumePresence as Presence;

/// The volume of a request as it arrives.
///
/// # Errors
/// NOT_FOUND for text that is not an id of hostloop.
pub fn volume(id: &str) -> Result<VolumeId> {
    id.parse().map_err(|_| Error::NotFound(format!("volume {id:?} does not exist")))
}

/// What there is of a volume, as it is sent.
pub fn encode(found: Found) -> Presence {
    match found {
        Found::Nothing => Presence::None,
        Found::Reserved => Presence::Reserved,
        Found::Held => Presence::Held,
    }
}

/// Encodes a node's answer to FindVolume.
pub fn encode_location(location: &Location) -> peer::FindVolumeResponse {
    let Location { found, generation, moved_to, deleted, unsealed, unusable, pool, adopted_from } = location;
    peer::FindVolumeResponse {
        presence: encode(*found).into(),
        generation: *generation,
        moved_to: moved_to.clone().unwrap_or_default(),
        deleted: *deleted,
        unsealed: *unsealed,
        unusable: unusable.clone().unwrap_or_default(),
        adopted_from: adopted_from.clone(),
        pool: pool.as_ref().map(ToString::to_string).unwrap_or_default(),
    }
}

/// Decodes a node's answer to FindVolume.
pub fn decode_location(answer: peer::FindVolumeResponse) -> Location {
    Location {
        found: decode(answer.presence()),
        generation: answer.generation,
        moved_to: Some(answer.moved_to).filter(|node| !node.is_empty()),
        deleted: answer.deleted,
        unsealed: answer.unsealed,
        unusable: Some(answer.unusable).filter(|why| !why.is_empty()),
        // A name that no pool can have is that of none.
        pool: answer.pool.parse().ok(),
        adopted_from: answer.adopted_from,
    }
}

/// Decodes whether an id is in use. A value that only a newer node knows counts as in use.
pub fn decode(presence: Presence) -> Found {
    match presence {
        Presence::None => Found::Nothing,
        Presence::Reserved => Found::Reserved,
        Presence::Held | Presence::Unspecified => Found::Held,
    }
}

/// A reservation as it is sent.
pub fn encode_reserved(reserved: Reserved) -> peer::ReserveNameResponse {
    let token = match reserved {
        Reserved::Token(token) => token,
        Reserved::Held => String::new(),
    };
    peer::ReserveNameResponse { token }
}

pub fn decode_reserved(answer: peer::ReserveNameResponse) -> Reserved {
    match answer.token.is_empty() {
        true => Reserved::Held,
        false => Reserved::Token(answer.token),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn found_and_reserved_names_arrive_as_sent() {
        for found in [Found::Nothing, Found::Reserved, Found::Held] {
            assert_eq!(decode(encode(found)), found);
        }
        for (generation, moved_to) in [(Some(0), None), (Some(3), None), (None, Some("b".to_owned()))] {
            for (deleted, unusable) in [(false, None), (true, None), (false, Some("no disk".to_owned()))] {
                let moved_to = moved_to.clone();
                let (found, unsealed) = (Found::Held, generation.unwrap_or(1));
                let adopted_from = moved_to.clone().into_iter().collect();
                let pool = generation.map(|_| "fast".parse().unwrap());
                let location =
                    Location { found, generation, moved_to, deleted, unsealed, unusable, pool, adopted_from };
                assert_eq!(decode_location(encode_location(&location)), location);
            }
        }
        for reserved in [Reserved::Held, Reserved::Token("1-a".to_owned())] {
            assert_eq!(decode_reserved(encode_reserved(reserved.clone())), reserved);
        }
        assert!(volume("vol-x").is_err() && volume("").is_err());
    }
}
