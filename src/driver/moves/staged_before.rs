//! A volume that moves to another pool of its node. Its pods are created again on that node, often before kubelet has unstaged the volume for
//! the earlier ones. kubelet then keeps it staged, and the last pass would wait for as long as the new pods wait for the volume. So the node
//! unstages it for the move, remembers that its caller takes it for staged, and stages it again when it is published.

use std::path::Path;
use std::sync::Arc;

use crate::backend::{Target, Uses, presence_of, resolve};
use crate::driver::{Driver, settled};
use crate::error::Result;
use crate::model::{Volume, pod_uid_in};

/// A part of the paths at which kubelet stages volumes.
const STAGING: &str = "/plugins/kubernetes.io/csi/";

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
        let Some(target) = self.only_staged(volume, &uses)? else { return Ok(()) };
        let mut staged: Vec<String> =
            uses.all().filter_map(|mount| Some(mount.target.to_str()?.to_owned())).collect();
        staged.sort();
        staged.dedup();
        if volume.is_block() {
            staged = vec![String::new()];
        }
        if volume.staged_before != staged {
            self.record(Volume { staged_before: staged, ..(**volume).clone() })?;
        }
        presence.unstage(place, &target, &uses)?;
        self.bound.forget(target.path());
        tracing::info!(volume.id = %volume.id, "unstaged, so that its data can move to another pool");
        Ok(())
    }

    /// Returns where a volume is staged, if that is all that uses it; for a raw block volume, which has no mount there, any path.
    ///
    /// # Errors
    /// The kernel's.
    fn only_staged(&self, volume: &Volume, uses: &Uses) -> Result<Option<Target>> {
        if volume.is_block() {
            let is_only = uses.all().next().is_none() && !uses.loops.is_empty();
            return is_only.then(|| resolve(&self.os, Path::new("/dev"))).transpose();
        }
        for mount in uses.all().filter(|mount| self.is_of_kubelet(&mount.target)) {
            // The kernel may show one mount at several paths.
            if uses.are_last_at(&self.os, &mount.target)? {
                return Ok(self.mount_target(&mount.target).ok());
            }
        }
        Ok(None)
    }

    /// Reports whether kubelet may have staged a volume at a path: no pod has it there, and no administrator has mounted it there.
    fn is_of_kubelet(&self, path: &Path) -> bool {
        let is_its = |path: &str| match self.pools.kubelet_dir() {
            Some(directory) => Path::new(path).starts_with(directory),
            None => path.contains(STAGING),
        };
        path.to_str().is_some_and(|path| pod_uid_in(path).is_none() && is_its(path))
    }

    /// Forgets that a caller takes a volume for staged at this path: it stages or unstages the volume there itself.
    ///
    /// # Errors
    /// The kernel's.
    pub(in crate::driver) fn forget_staged_before(
        &self,
        volume: &Arc<Volume>,
        path: &Path,
    ) -> Result<Arc<Volume>> {
        let is_there = |path: &Path| self.was_staged_at(volume, path);
        match is_there(path) || resolve(&self.os, path).is_ok_and(|target| is_there(target.path())) {
            true => self.record(Volume { staged_before: Vec::new(), ..(**volume).clone() }),
            false => Ok(Arc::clone(volume)),
        }
    }

    /// Reports whether a caller takes the volume for staged at this path because a move has unstaged it.
    pub(in crate::driver) fn was_staged_at(&self, volume: &Volume, path: &Path) -> bool {
        let mut before = volume.staged_before.iter();
        before.any(|before| volume.is_block() || Path::new(before) == path)
    }
}
