//! A volume that moves to another pool of its node. Its pods are created again on that node, often before kubelet has unstaged the volume for
//! the earlier ones. kubelet then keeps it staged, and the last pass would wait for as long as the new pods wait for the volume. So the node
//! unstages it for the move, remembers that its caller takes it for staged, and stages it again when it is published.

use std::path::Path;
use std::sync::Arc;

use crate::backend::{Target, Uses, presence_of, resolve};
use crate::driver::{Driver, settled};
use crate::error::Result;
use crate::model::{Volume, pod_uid_in};

impl Driver {
    /// Unstages a sealed volume if it is staged and nothing else uses it. The record says so first: a crash leaves a volume that is still
    /// staged, or one that is staged again.
    ///
    /// # Errors
    /// The kernel's; FAILED_PRECONDITION if something else hides its mount.
    pub(super) fn unstage_for_move(&self, volume: &Arc<Volume>) -> Result<()> {
        let paths = self.paths_of_use(volume)?;
        let (place, presence) = (self.place(volume, &paths), presence_of(&volume.content));
        let uses = settled(|| presence.uses(place))?;
        let Some(staging) = staged_only(volume, &uses) else { return Ok(()) };
        let target = match volume.is_block() {
            // It has no mount at its staging path, and any path will do.
            true => resolve(&self.os, Path::new("/dev"))?,
            false => match self.mount_target(Path::new(&staging)) {
                Ok(target) => target,
                // An administrator has mounted it elsewhere.
                Err(_) => return Ok(()),
            },
        };
        let staging = Some(staging);
        if volume.staged_before != staging {
            self.record(Volume { staged_before: staging, ..(**volume).clone() })?;
        }
        presence.unstage(place, &target, &uses)?;
        self.bound.forget(target.path());
        tracing::info!(volume.id = %volume.id, "unstaged, so that its data can move to another pool");
        Ok(())
    }

    /// Forgets that a caller takes a volume for staged: it stages or unstages the volume itself.
    ///
    /// # Errors
    /// The kernel's.
    pub(in crate::driver) fn forget_staged_before(&self, volume: &Arc<Volume>) -> Result<Arc<Volume>> {
        match volume.staged_before.is_some() {
            true => self.record(Volume { staged_before: None, ..(**volume).clone() }),
            false => Ok(Arc::clone(volume)),
        }
    }

    /// Reports whether a caller takes the volume for staged at this path because a move has unstaged it.
    pub(in crate::driver) fn was_staged_at(&self, volume: &Volume, staging: &Target) -> bool {
        let before = volume.staged_before.as_deref();
        before.is_some_and(|before| volume.is_block() || Path::new(before) == staging.path())
    }
}

/// Returns where a volume is staged, if that is all that uses it; empty for a raw block volume.
fn staged_only(volume: &Volume, uses: &Uses) -> Option<String> {
    let mut targets: Vec<&Path> = uses.all().map(|mount| mount.target.as_path()).collect();
    targets.dedup();
    match (targets.as_slice(), volume.is_block()) {
        ([], true) if !uses.loops.is_empty() => Some(String::new()),
        ([only], false) if uses.partial.is_empty() => {
            only.to_str().filter(|path| pod_uid_in(path).is_none()).map(str::to_owned)
        }
        _ => None,
    }
}
