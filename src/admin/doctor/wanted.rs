//! What may still want a volume or a snapshot: by its CSI id, by its CSI name, and by what it was made for.

use super::join::Look;
use crate::admin::api::doctor::{Content, KnownClaim};
use crate::model::Claim;
use crate::model::findings::{Finding, HeldRecord};

/// What a node knows about what it has.
pub(super) struct Held<'a> {
    pub(super) id: &'a str,
    /// Its CSI name; empty if that is not known.
    name: &'a str,
    claim: Option<&'a Claim>,
    content: Option<&'a str>,
}

impl<'a> From<&'a HeldRecord> for Held<'a> {
    fn from(record: &'a HeldRecord) -> Self {
        let HeldRecord { id, name, claim, content, .. } = record;
        Held { id, name, claim: claim.as_ref(), content: content.as_deref() }
    }
}

impl<'a> From<&'a Finding> for Held<'a> {
    fn from(finding: &'a Finding) -> Self {
        let Finding { id, name, claim, content, .. } = finding;
        Held { id, name, claim: claim.as_ref(), content: content.as_deref() }
    }
}

impl Held<'_> {
    /// The names that its PersistentVolume may have: the one that its caller said, and the CSI name, which external-provisioner uses for
    /// both.
    fn persistent_volumes(&self) -> impl Iterator<Item = &str> {
        let said = self.claim.map(|claim| claim.persistent_volume.as_str());
        said.into_iter().chain([self.name]).filter(|name| !name.is_empty())
    }

    fn is_claimed_by(&self, claim: &KnownClaim) -> bool {
        // external-provisioner names a volume after the uid of its claim, and makes the PersistentVolume after it.
        let is_made_for = !claim.uid.is_empty() && self.name.contains(&claim.uid);
        let wants = self.persistent_volumes().any(|name| claim.volume == name);
        let is_same = |it: &Claim| it.namespace == claim.name.namespace && it.name == claim.name.name;
        is_made_for || wants || self.claim.is_some_and(is_same)
    }

    fn is_content_of(&self, content: &Content) -> bool {
        let is_made_for = !content.snapshot_uid.is_empty() && self.name.contains(&content.snapshot_uid);
        is_made_for || self.content == Some(content.name.as_str())
    }
}

fn unknown(kinds: &str) -> String {
    format!("which {kinds} exist is not known")
}

/// Returns which kind of objects is not known that could want a volume.
pub(super) fn unknown_of_volumes(look: &Look) -> Option<String> {
    let known = &look.known;
    let kinds = [
        ("PersistentVolumes", known.volumes.is_none()),
        ("claims", known.claims.is_none()),
        ("VolumeReplicas", known.replicas.is_none()),
        ("VolumeAttachments", known.attached.is_none()),
    ];
    kinds.into_iter().find(|(_, is_unknown)| *is_unknown).map(|(kinds, _)| unknown(kinds))
}

/// Returns which object wants a volume: a PersistentVolume, a claim whose volume is being made or is to come back, a move, an attachment.
pub(super) fn wants_volume(look: &Look, held: &Held<'_>) -> Option<String> {
    let known = &look.known;
    let volumes = known.volumes.as_deref().unwrap_or_default();
    if let Some(volume) = volumes.iter().find(|volume| volume.handle == held.id) {
        return Some(format!("PersistentVolume {} names it", volume.name));
    }
    let claims = known.claims.as_deref().unwrap_or_default();
    if let Some(claim) = claims.iter().find(|claim| held.is_claimed_by(claim)) {
        return Some(format!("it was made for claim {}, which exists", claim.name));
    }
    if let Some(volume) = volumes.iter().find(|volume| held.persistent_volumes().any(|it| it == volume.name))
    {
        return Some(format!(
            "there is a PersistentVolume {}, with the volume handle {:?}",
            volume.name, volume.handle
        ));
    }
    if known.replicas.as_ref().is_some_and(|replicas| replicas.contains(held.id)) {
        return Some("a VolumeReplica names it".to_owned());
    }
    let attached = known.attached.as_ref()?;
    let attached = held.persistent_volumes().find(|name| attached.contains(*name))?;
    Some(format!("a VolumeAttachment names PersistentVolume {attached}"))
}

/// Returns why it is not known what could want a snapshot.
pub(super) fn unknown_of_snapshots(look: &Look) -> Option<String> {
    look.known.contents.is_none().then(|| unknown("VolumeSnapshotContents"))
}

/// Returns which object wants a snapshot.
pub(super) fn wants_snapshot(look: &Look, held: &Held<'_>) -> Option<String> {
    let contents = look.known.contents.as_deref().unwrap_or_default();
    if let Some(content) = contents.iter().find(|it| it.handle.as_deref() == Some(held.id)) {
        return Some(format!("VolumeSnapshotContent {} names it", content.name));
    }
    let wanting = contents.iter().find(|content| held.is_content_of(content))?;
    Some(format!("VolumeSnapshotContent {} wants it, and does not name it yet", wanting.name))
}
