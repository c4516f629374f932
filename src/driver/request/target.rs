//! Staging and target paths of a request.

use std::path::{Path, PathBuf};

use crate::backend::{Target, resolve};
use crate::driver::Driver;
use crate::error::{Error, Result};
use crate::model::PoolName;

impl Driver {
    /// [`Driver::mount_target`] for a path that is to be used: to the caller NOT_FOUND is a missing volume, never a
    /// missing directory.
    pub(crate) fn usable_target(&self, path: &Path) -> Result<Target> {
        self.mount_target(path).map_err(|error| match error {
            Error::NotFound(message) => Error::InUse(message),
            other => other,
        })
    }

    /// Resolves a staging or target path and makes sure that nothing is mounted where it would do harm: not in
    /// or over a pool, and only below `--kubelet-dir` if that is given.
    pub(crate) fn mount_target(&self, path: &Path) -> Result<Target> {
        let target = resolve(&self.os, path)?;
        let allowed = |root: &PathBuf| target.path().starts_with(root);
        if let Some(dir) = self.pools.kubelet_dir().filter(|dir| !allowed(dir)) {
            let (path, dir) = (target.path().display(), dir.display());
            return Err(Error::Invalid(format!(
                "{path} is not below {dir}, the directory of kubelet (--kubelet-dir)"
            )));
        }
        let harmful = |(_, pool, medium): &(PoolName, PathBuf, Option<PathBuf>)| {
            target.path().starts_with(pool)
                || pool.starts_with(target.path())
                // What is mounted over an image hides it from the next start.
                || medium.as_ref().is_some_and(|medium| medium.starts_with(target.path()))
        };
        match self.pools.places().iter().find(|pool| harmful(pool)) {
            Some((pool, ..)) => {
                let path = target.path().display();
                Err(Error::Invalid(format!(
                    "{path} is in or above the directory of pool {pool}; choose another path"
                )))
            }
            None => Ok(target),
        }
    }
}
