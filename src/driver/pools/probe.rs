//! What a pool's filesystem can do. Only the filesystem itself knows, and asking it needs room for a file or two: on a
//! full disk there is no answer. Then it is asked again when something depends on the answer, which is when something is
//! to be made, and that needs room as well.

use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::error::{Error, OsContext, Result};
use crate::kernel::{Os, is_full};

/// What has been found out about a directory's filesystem. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct Probe {
    direct_io_alignment: Arc<OnceLock<Option<u32>>>,
    reflink: Arc<OnceLock<bool>>,
    largest_file: Arc<OnceLock<u64>>,
}

impl Probe {
    /// Asks for everything. What needs room that is not there stays unknown.
    ///
    /// # Errors
    /// The kernel's, but for a full disk.
    pub fn begin(os: &Os, directory: &Path) -> Result<Self> {
        let probe = Probe::default();
        let unknown = |error: Error| match &error {
            Error::Os { source, .. } if is_full(source) => {
                tracing::warn!(%error, "no room to find out; it is tried again when there is");
                Ok(())
            }
            _ => Err(error),
        };
        probe.direct_io_alignment(os, directory).map(drop).or_else(unknown)?;
        probe.reflink(os, directory).map(drop).or_else(unknown)?;
        probe.largest_file(os, directory).map(drop).or_else(unknown)?;
        Ok(probe)
    }

    /// The alignment in bytes that direct I/O needs; `None` where the filesystem cannot do it.
    ///
    /// # Errors
    /// The kernel's; RESOURCE_EXHAUSTED where there is no room to find it out.
    pub fn direct_io_alignment(&self, os: &Os, directory: &Path) -> Result<Option<u32>> {
        if let Some(known) = self.direct_io_alignment.get() {
            return Ok(*known);
        }
        let probing = || format!("probe direct I/O in {}", directory.display());
        let found = os.images.direct_io_alignment(directory).doing(probing)?;
        Ok(*self.direct_io_alignment.get_or_init(|| found))
    }

    /// Returns the most bytes that one file can have.
    ///
    /// # Errors
    /// The kernel's; RESOURCE_EXHAUSTED if there is no room to find it out.
    pub fn largest_file(&self, os: &Os, directory: &Path) -> Result<u64> {
        if let Some(known) = self.largest_file.get() {
            return Ok(*known);
        }
        let probing = || format!("probe the size of files in {}", directory.display());
        let found = os.images.largest_file(directory).doing(probing)?;
        Ok(*self.largest_file.get_or_init(|| found))
    }

    /// Whether files can share their blocks.
    ///
    /// # Errors
    /// The kernel's; RESOURCE_EXHAUSTED where there is no room to find it out.
    pub fn reflink(&self, os: &Os, directory: &Path) -> Result<bool> {
        if let Some(known) = self.reflink.get() {
            return Ok(*known);
        }
        let probing = || format!("probe reflinks in {}", directory.display());
        let found = os.images.can_reflink(directory).doing(probing)?;
        Ok(*self.reflink.get_or_init(|| found))
    }

    /// Whether files may have been made that share blocks: `true` as well as long as it is not known.
    pub fn may_reflink(&self) -> bool {
        self.reflink.get().copied().unwrap_or(true)
    }

    /// For a log line: `true`, `false` or `unknown`.
    pub fn describe_reflink(&self) -> &'static str {
        describe(self.reflink.get().copied())
    }

    /// The same for direct I/O.
    pub fn describe_direct_io(&self) -> &'static str {
        describe(self.direct_io_alignment.get().map(Option::is_some))
    }
}

fn describe(known: Option<bool>) -> &'static str {
    match known {
        Some(true) => "true",
        Some(false) => "false",
        None => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;
    use hostloop_fake_kernel::FakeKernel;

    #[test]
    fn probed_features_are_known_and_told() {
        let (kernel, directory) = (FakeKernel::new(), Path::new("/"));
        for (reflink, alignment, told) in [(true, Some(512), "true"), (false, None, "false")] {
            let probe = Probe::default();
            assert!(probe.may_reflink() && probe.describe_reflink() == "unknown");
            assert_eq!(probe.describe_direct_io(), "unknown");
            kernel.set_reflink("/", reflink);
            kernel.set_direct_io(alignment);
            assert_eq!(probe.reflink(&kernel.spawn(), directory).unwrap(), reflink);
            assert_eq!(probe.direct_io_alignment(&kernel.spawn(), directory).unwrap(), alignment);
            assert_eq!((probe.may_reflink(), probe.describe_reflink()), (reflink, told));
            assert_eq!(probe.describe_direct_io(), told);
        }
    }

    #[test]
    fn a_full_disk_leaves_a_probe_unknown() {
        let (kernel, directory) = (FakeKernel::new(), Path::new("/"));
        for name in ["statx", "clone in"] {
            kernel.fail_every(name, Errno::ENOSPC);
            assert!(Probe::begin(&kernel.spawn(), directory).is_ok(), "{name}");
            kernel.fail_every(name, Errno::EIO);
            assert!(Probe::begin(&kernel.spawn(), directory).is_err(), "{name}");
            kernel.heal();
        }
    }
}
