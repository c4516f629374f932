//! CSI ListVolumes.

use super::Driver;
use crate::error::{Error, Result};
use crate::model::answer::ListPage;
use crate::model::request::ListVolumes;
use crate::model::{Volume, VolumeId};

impl Driver {
    /// Lists the volumes that CreateVolume made. A token names the last volume of its page, so volumes may
    /// come and go between pages and none that stays is missed or seen twice.
    ///
    /// # Errors
    /// ABORTED for a token that this driver did not give out.
    pub fn list_volumes(&self, request: ListVolumes) -> Result<ListPage> {
        let after = request.starting_token.as_deref().map(parse_token).transpose()?;
        let listed = |volume: &Volume| volume.is_ready() && !volume.id.is_inline();
        let (volumes, more) = self.store.page(after.as_ref(), request.max_entries, listed);
        let next_token = volumes.last().filter(|_| more).map(|last| token(&last.id));
        Ok(ListPage { volumes, next_token })
    }
}

/// The id and a check value: what a caller makes up or mixes up is told from what we gave out.
fn token(id: &VolumeId) -> String {
    format!("{id}.{:08x}", crc32fast::hash(id.as_str().as_bytes()))
}

fn parse_token(text: &str) -> Result<VolumeId> {
    let id =
        text.rsplit_once('.').and_then(|(id, _)| id.parse::<VolumeId>().ok()).filter(|id| token(id) == text);
    id.ok_or_else(|| Error::BadToken(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeKey;

    #[test]
    fn only_our_tokens_are_taken() {
        let id = VolumeId::of_name(&NodeKey::of("n"), "v");
        assert_eq!(parse_token(&token(&id)).expect("token"), id);
        assert!(token(&id).len() <= 128);
        for text in
            ["0", "-1", "9999", "4294967295", id.as_str(), &format!("{id}.00000000"), "invalid-token", "é.ü"]
        {
            assert!(matches!(parse_token(text), Err(Error::BadToken(_))), "{text}");
        }
    }
}
