//! Inline ephemeral volumes: made by NodePublishVolume for one pod, deleted by NodeUnpublishVolume.
//!
//! Their CSI volume id is the caller's choice (kubelet sends `csi-<sha256>`), so they are kept under an id
//! derived from it. Their attributes are written by a pod's author, not by the administrator.

use std::collections::{HashSet, VecDeque};

use super::{has_flags, same_or_exists};
use crate::backend::{Stage, Target, content_for, presence_of};
use crate::driver::create_volume::{Wanted, fits};
use crate::driver::locks::guarded::Guarded;
use crate::driver::{Driver, request::check};
use crate::error::{Error, Result};
use crate::model::request::NodePublishVolume;
use crate::model::{PoolName, SizeRange, Volume, VolumeId, VolumeParameters, format_two};

/// The inline volumes deleted last: a repeated NodeUnpublishVolume of one is fine.
#[derive(Default)]
pub(crate) struct Gone(Guarded<(HashSet<VolumeId>, VecDeque<VolumeId>)>);

impl Gone {
    /// How many are remembered: far more than pods that a kubelet tears down at a time.
    const KEEP: usize = 10_000;

    /// Remembers a deleted inline volume.
    pub(crate) fn remember(&self, id: &VolumeId) {
        let mut gone = self.0.lock();
        let (set, order) = &mut *gone;
        if set.insert(id.clone()) {
            order.push_back(id.clone());
        }
        while order.len() > Self::KEEP {
            if let Some(oldest) = order.pop_front() {
                set.remove(&oldest);
            }
        }
    }

    /// Whether an unknown volume was an inline one: one that we remember, or one of kubelet's inline ids
    /// (`csi-` and 64 hex digits), which it may repeat after our restart.
    pub(crate) fn was_inline(&self, id: &VolumeId, volume_id: &str) -> bool {
        let kubelets = volume_id
            .strip_prefix("csi-")
            .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit()));
        kubelets || self.0.lock().0.contains(id)
    }
}

impl Driver {
    /// Makes an inline volume, if it is not there yet, and mounts it at the target.
    pub(crate) fn publish_inline(&self, request: &NodePublishVolume) -> Result<()> {
        let Some(inline) = request.inline.clone() else {
            return Err(Error::Invalid("the volume is not an inline ephemeral one".to_owned()));
        };
        if self.controller_id(&request.volume_id).is_some() {
            return Err(Error::Invalid(
                "volume_id is that of a persistent volume, not of an inline ephemeral one".to_owned(),
            ));
        }
        let wanted = Wanted {
            id: VolumeId::of_inline(&self.node_key, &request.volume_id),
            name: request.volume_id.clone(),
            size: inline.size,
            capabilities: vec![request.capability.clone()],
            parameters: inline.parameters,
            source: None,
            consistency: crate::model::Consistency::default(),
            way: None,
            as_copy: false,
            convert: false,
            claim: None,
            generation: None,
            inline_target: None,
        };
        let _guard = self.lock(&wanted.id)?;
        match self.existing(&wanted)? {
            Some(volume) => {
                fits(&volume, &wanted, None)?;
                self.mount_inline(&volume, request)
            }
            None => {
                let target = self.usable_target(&request.target_path)?; // before anything is made
                let inline_target = recorded(&target);
                let volume = self.make_volume(Wanted { inline_target, ..self.allowed(wanted)? })?;
                self.mount_inline(&volume, request).map_err(|cause| {
                    let volume = self.store.get(&volume.id).unwrap_or(volume);
                    cause.after_undo(self.delete(&volume))
                })
            }
        }
    }

    /// What the author of a pod may have: the administrator decides, and what is there already stays.
    ///
    /// # Errors
    /// INVALID_ARGUMENT that names the flag.
    fn allowed(&self, wanted: Wanted) -> Result<Wanted> {
        let allowed = &self.settings.inline;
        let VolumeParameters { backend, pool, .. } = &wanted.parameters;
        let refuse = |attribute: &str, value: &str, flag: &str, instead: String| {
            Err(Error::Invalid(format!(
                "volume attribute {attribute}: the administrator has not allowed {value} for inline volumes ({flag}); \
                 use {instead}, or a PersistentVolumeClaim"
            )))
        };
        if !allowed.backends.contains(backend) {
            let instead: Vec<&str> = allowed.backends.iter().map(|backend| backend.as_str()).collect();
            return refuse("backend", backend.as_str(), "--inline-backends", instead.join(" or "));
        }
        if !allowed.pools.contains(pool) {
            let instead: Vec<&str> = allowed.pools.iter().map(PoolName::as_str).collect();
            return refuse("pool", pool.as_str(), "--inline-pools", instead.join(" or "));
        }
        let most = allowed.max_bytes.min(self.settings.max_volume_bytes);
        let least = content_for(&wanted.parameters, &wanted.capabilities)?.minimum_bytes();
        let bytes = wanted.size.required.max(least);
        if bytes > most {
            let [bytes, most] = format_two(bytes, most);
            return refuse("size", &bytes, "--inline-max-size", format!("at most {most}"));
        }
        Ok(Wanted { size: SizeRange { limit: most, ..wanted.size }, ..wanted })
    }

    fn mount_inline(&self, volume: &Volume, request: &NodePublishVolume) -> Result<()> {
        check::capability(volume, &request.capability, Error::InUse)?;
        if volume.is_block() {
            return Err(Error::Invalid(
                "an inline ephemeral volume has a filesystem, not a raw block device".to_owned(),
            ));
        }
        let flags = request.capability.mount_flags();
        let read_only = request.read_only || flags.read_only || request.capability.mode.is_read_only();
        let target = self.usable_target(&request.target_path)?;
        let paths = self.paths(volume)?;
        let (place, presence) = (self.place(volume, &paths), presence_of(&volume.content));
        let uses = presence.uses(place)?;
        uses.sound(place)?;
        let record = |format| self.record_format(volume, format);
        let room = |bytes| self.room_for_copy(volume, bytes);
        let stage = Stage { target: &target, flags: &flags, read_only, record: &record, room: &room };
        if let Some(there) = uses.top_at(&self.os, target.path())? {
            let same = presence.is_read_only(place, there, &uses)? == read_only && has_flags(there, &flags);
            same_or_exists(same, || format!("{} is published at {}", volume.id, target.path().display()))?;
            self.record_inline_target(volume, &target)?;
            return presence.finish_stage(place, &stage, &uses);
        }
        if let Some(other) = uses.elsewhere(&self.os, None, target.path())? {
            let other = other.display();
            return Err(Error::InUse(format!(
                "the inline volume {:?} is published at {other} already",
                volume.name
            )));
        }
        self.nothing_else_at(&target)?;
        self.record_inline_target(volume, &target)?;
        presence.stage(place, &stage, &uses)
    }

    /// Records the path that a volume is published at, if its record has the path of an earlier call that failed.
    fn record_inline_target(&self, volume: &Volume, target: &Target) -> Result<()> {
        let inline_target = recorded(target);
        if volume.inline_target != inline_target {
            self.record(Volume { inline_target, ..volume.clone() })?;
        }
        Ok(())
    }
}

/// What the record says of a target. A path that is not text is not kubelet's.
fn recorded(target: &Target) -> Option<String> {
    target.path().to_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::NodeKey;

    #[test]
    fn remembers_the_last_ones_and_knows_kubelets_ids() {
        let gone = Gone::default();
        let id = |n: usize| VolumeId::of_inline(&NodeKey::of("n"), &n.to_string());
        for n in 0..Gone::KEEP + 1 {
            gone.remember(&id(n));
        }
        assert!(!gone.was_inline(&id(0), "0"));
        assert!(gone.was_inline(&id(1), "1") && gone.was_inline(&id(Gone::KEEP), "last"));
        assert!(gone.was_inline(&id(0), &format!("csi-{}", "a1".repeat(32))));
        assert!(!gone.was_inline(&id(0), "csi-a1"));
    }
}
