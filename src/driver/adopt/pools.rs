//! What is of a pool is not adopted: not of a pool of this driver, also while it cannot be used, nor of one of another driver.

use std::path::{Component, Path, PathBuf};

use super::source::{Source, within};
use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::inventory::{INSTALLATION, POOL_MARKER};
use crate::kernel::{FileId, FileKind, MountEntry};
use crate::model::Settings;

/// The directories of a pool, or of the data directory, with what is hostloop's.
const OWN: [&str; 3] = ["volumes", "snapshots", Settings::POOLS_DIR];

/// The files of which a pool has one: the data directory has the second.
const MARKERS: [&str; 2] = [POOL_MARKER, INSTALLATION];

/// A path as its filesystem sees it, so that two ways to it are known as one.
struct Spot {
    /// The device number of the filesystem.
    dev: u64,
    path: PathBuf,
}

impl Driver {
    /// Makes sure that no pool of this driver is in the source or around it, and none of another driver around it.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the pool, or with the file that says that there is one.
    pub(super) fn expect_no_pool(&self, source: &Source, mounts: &[MountEntry]) -> Result<()> {
        let here = self.spot(mounts, source.real())?;
        for (name, path, medium) in self.pools.places() {
            // A disk that does not answer is not asked: the path alone decides.
            let is_silent = self.pools.is_silent(std::slice::from_ref(&name)).is_some();
            let spot = |path: &Path| if is_silent { Ok(by_path(path)) } else { self.spot(mounts, path) };
            let here = if is_silent { &by_path(source.real()) } else { &here };
            let directory = spot(&path)?;
            let medium = medium.map(|medium| spot(&medium)).transpose()?;
            if here.is_of_pool(&directory) || medium.is_some_and(|medium| here.has(&medium)) {
                return Err(Error::Invalid(format!(
                    "{} belongs to pool {name} or has it inside; what is to be adopted can be in a directory of its own in the pool",
                    source.shown()
                )));
            }
        }
        self.expect_unmarked(source)
    }

    /// Makes sure that neither the source nor a directory around it is one of a pool that this driver does not serve.
    fn expect_unmarked(&self, source: &Source) -> Result<()> {
        let looking = || format!("look for pools around {}", source.shown());
        let own: Vec<FileId> = self.pools.open().iter().map(|pool| pool.id).collect();
        for above in source.root().ancestors() {
            self.expect_no_marker(above, above, &own)?;
        }
        let below: Vec<Component<'_>> = source.below().components().collect();
        for depth in 1..=below.len() {
            let part: PathBuf = below.iter().take(depth).collect();
            let held = self.os.files.open_below(source.root(), &part).doing(looking)?;
            let is_directory = depth < below.len() || source.stat.kind == FileKind::Directory;
            if is_directory {
                self.expect_no_marker(held.path(), &source.root().join(part), &own)?;
            }
        }
        Ok(())
    }

    /// Makes sure that no directory below the source is one of a pool. This reads the whole tree: an adoption does it twice, since another
    /// driver can make a pool in the tree as long as the tree is in its place. The first time is before anything is changed. The second
    /// time is right before the rename of the tree, or after the copy, before the tree gets another name.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the file that says that there is one.
    pub(super) fn expect_no_pool_inside(&self, source: &Source) -> Result<()> {
        if source.stat.kind != FileKind::Directory {
            return Ok(());
        }
        let looking = || format!("look for pools in {}", source.shown());
        match self.os.trees.find(&source.at(), &MARKERS).doing(looking)? {
            Some(found) => Err(marked(&source.real().join(found))),
            None => Ok(()),
        }
    }

    /// `shown` is the directory for people.
    fn expect_no_marker(&self, directory: &Path, shown: &Path, own: &[FileId]) -> Result<()> {
        let looking = || format!("look at {}", shown.display());
        let mut found = None;
        for marker in MARKERS {
            if self.os.files.stat(&directory.join(marker)).doing(looking)?.is_some() {
                found = Some(marker);
            }
        }
        let Some(marker) = found else { return Ok(()) };
        let stat = self.os.files.stat(directory).doing(looking)?;
        let is = |id: FileId| stat.as_ref().is_some_and(|stat| stat.id == id);
        // It may be closed or silent at the moment.
        let data_dir = &self.settings.data_dir;
        let is_own = own.iter().any(|id| is(*id))
            || self.os.files.stat(data_dir).doing(looking)?.is_some_and(|own| is(own.id));
        match is_own {
            true => Ok(()),
            false => Err(marked(&shown.join(marker))),
        }
    }

    /// Finds out where a path is, or would be if its directories existed.
    fn spot(&self, mounts: &[MountEntry], path: &Path) -> Result<Spot> {
        let looking = || format!("look for {}", path.display());
        for above in path.ancestors() {
            let real = match self.os.files.canonicalize(above) {
                // What cannot be read is below what can.
                Err(_) if above.parent().is_some() => continue,
                real => real.doing(looking)?,
            };
            let id = self.os.mounts.mount_at(&real).doing(looking)?;
            let (mount, inside) = within(mounts, id, &real)?;
            let rest = path.strip_prefix(above).unwrap_or(Path::new(""));
            return Ok(Spot { dev: mount.dev, path: inside.join(rest) });
        }
        Err(Error::Invalid(format!("{} is not an absolute path", path.display())))
    }
}

impl Spot {
    /// Whether the other one is at or below this one.
    fn has(&self, other: &Spot) -> bool {
        self.dev == other.dev && other.path.starts_with(&self.path)
    }

    /// Whether this one is hostloop's in the directory of a pool, or has that directory in it.
    fn is_of_pool(&self, pool: &Spot) -> bool {
        match self.path.strip_prefix(&pool.path) {
            Ok(below) if self.dev == pool.dev => {
                below.components().count() < 2 || OWN.iter().any(|own| below.starts_with(own))
            }
            _ => self.has(pool),
        }
    }
}

/// A path that is compared as it is written.
fn by_path(path: &Path) -> Spot {
    Spot { dev: 0, path: path.to_owned() }
}

fn marked(marker: &Path) -> Error {
    Error::Invalid(format!(
        "{} says that its directory is a pool, and this driver has no such pool that can be used now: it may be one of another driver. \
         Nothing in it or around it is adopted. If no driver uses it, remove that file",
        marker.display()
    ))
}
