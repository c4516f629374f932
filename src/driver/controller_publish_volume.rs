//! CSI ControllerPublishVolume: records that fence. There is nothing to attach on a node that owns its data.

use super::{Driver, request::check};
use crate::error::{Error, Result};
use crate::model::request::ControllerPublishVolume;
use crate::model::{Attachment, Volume};

impl Driver {
    /// Allows the node to stage the volume.
    ///
    /// # Errors
    /// NOT_FOUND for an unknown volume or node; ALREADY_EXISTS where it is published there in another way;
    /// FAILED_PRECONDITION where it is published to another node; RESOURCE_EXHAUSTED at the node's limit.
    pub fn controller_publish_volume(&self, request: ControllerPublishVolume) -> Result<()> {
        let (_guard, volume) = self.take_volume(&request.volume_id)?;
        if request.node_id != self.settings.node_id {
            let (node, own) = (&request.node_id, &self.settings.node_id);
            return Err(Error::NotFound(format!("node {node:?} does not exist; the volume is on {own:?}")));
        }
        check::may_change(&volume)?;
        check::context(&volume, &request.context)?;
        check::capability(&volume, &request.capability, Error::Invalid)?;
        let ControllerPublishVolume { node_id, read_only, capability, .. } = request;
        let attachment = Attachment { node_id, read_only, capability: check::without_flags(capability) };
        if is_published(&volume, &attachment)? {
            return Ok(());
        }
        let limit = self.settings.max_volumes_per_node;
        let _admission = self.attachments.enter(limit);
        if limit > 0 && self.attached_to(&attachment.node_id) >= limit as usize {
            let node = &attachment.node_id;
            return Err(Error::Exhausted(format!(
                "node {node:?} has reached its limit of {limit} volumes (--max-volumes-per-node)"
            )));
        }
        let mut published = (*volume).clone();
        published.attachments.push(attachment);
        self.record(published)?;
        Ok(())
    }
}

/// Whether the volume is published just so already; an error where another publish stands in the way.
fn is_published(volume: &Volume, wanted: &Attachment) -> Result<bool> {
    if let Some(there) = volume.attachments.iter().find(|there| there.node_id == wanted.node_id) {
        if there == wanted {
            return Ok(true);
        }
        let what =
            if there.read_only == wanted.read_only { "another capability" } else { "another readonly" };
        return Err(Error::AlreadyExists(format!(
            "volume {} is published to {:?} with {what}",
            volume.id, wanted.node_id
        )));
    }
    match volume.attachments.first() {
        Some(other) if !wanted.capability.mode.is_multi_node() => {
            Err(Error::InUse(format!("volume {} is published to node {:?}", volume.id, other.node_id)))
        }
        Some(_) | None => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::sample_volume;
    use crate::model::*;

    fn attachment(node: &str, read_only: bool, mode: AccessMode) -> Attachment {
        let access = AccessType::Mount { fs_type: None, flags: MountFlags::default() };
        Attachment { node_id: node.to_owned(), read_only, capability: Capability { access, mode } }
    }

    fn volume(attachments: Vec<Attachment>) -> Volume {
        Volume { attachments, ..sample_volume() }
    }

    #[test]
    fn another_node_is_fenced_off_by_a_single_mode() {
        let volume = volume(vec![attachment("a", false, AccessMode::SingleNodeWriter)]);
        let refused = is_published(&volume, &attachment("b", false, AccessMode::SingleNodeWriter));
        assert!(matches!(refused, Err(Error::InUse(message)) if message.contains("\"a\"")));
        assert!(matches!(
            is_published(&volume, &attachment("b", false, AccessMode::MultiNodeMultiWriter)),
            Ok(false)
        ));
    }

    #[test]
    fn the_same_again_is_fine_and_another_way_is_not() {
        let there = attachment("a", false, AccessMode::SingleNodeWriter);
        let volume = volume(vec![there.clone()]);
        assert!(matches!(is_published(&volume, &there), Ok(true)));
        for (other, what) in [
            (attachment("a", true, AccessMode::SingleNodeWriter), "another readonly"),
            (attachment("a", false, AccessMode::SingleNodeReaderOnly), "another capability"),
        ] {
            let refused = is_published(&volume, &other);
            assert!(matches!(refused, Err(Error::AlreadyExists(message)) if message.ends_with(what)));
        }
    }
}
