//! The tokens of the lists: the last id of a page and a check value, by which a token that was given out can be told from
//! one that a caller made up or mixed up.

use std::str::FromStr;

use crate::error::{Error, Result};

/// The token for the page after the one that ends with this id.
pub(crate) fn make(id: &str) -> String {
    format!("{id}.{:08x}", crc32fast::hash(id.as_bytes()))
}

/// The id in a token.
///
/// # Errors
/// ABORTED.
pub(crate) fn parse<Id: FromStr>(text: &str) -> Result<Id> {
    let id = text.rsplit_once('.').filter(|(id, _)| make(id) == text).and_then(|(id, _)| id.parse().ok());
    id.ok_or_else(|| Error::BadToken(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NodeKey, SnapshotId, VolumeId};

    #[test]
    fn tokens_of_others_are_refused() {
        let id = VolumeId::of_name(&NodeKey::of("n"), "v");
        let token = make(id.as_str());
        assert_eq!(parse::<VolumeId>(&token).expect("token"), id);
        assert!(parse::<SnapshotId>(&token).is_err(), "of another list");
        assert!(token.len() <= 128);
        for text in
            ["0", "-1", "9999", "4294967295", id.as_str(), &format!("{id}.00000000"), "invalid-token", "é.ü"]
        {
            assert!(matches!(parse::<VolumeId>(text), Err(Error::BadToken(_))), "{text}");
        }
    }
}
