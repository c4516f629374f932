//! The file in the root of a pool of a directory that says whose it is, and its twin in the data directory, which is there
//! also where the pool's disk is not: so that a disk that is not mounted, and exchanged ones, are noticed. What a managed
//! pool does with such a file is in `managed/marker.rs`.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, OsContext, Result};
pub(super) use crate::inventory::POOL_MARKER as MARKER;
use crate::inventory::{KNOWN_POOLS, pool_owner};
use crate::kernel::{FileKind, Os, is_full, write_whole};
use crate::model::{PoolName, PoolSettings, Settings};
use crate::store::Store;

/// More is not ours.
const MAX_BYTES: u64 = 4096;

/// The marker of one pool.
pub(crate) struct Marker<'a> {
    os: &'a Os,
    store: &'a Store,
    pool: &'a PoolSettings,
    data_dir: &'a Path,
    /// In the pool, links resolved.
    path: PathBuf,
    /// The lines that are known beforehand.
    owner: String,
}

impl<'a> Marker<'a> {
    pub(crate) fn new(
        os: &'a Os,
        settings: &'a Settings,
        store: &'a Store,
        pool: &'a PoolSettings,
        path: &Path,
    ) -> Self {
        let (data_dir, owner) = (&settings.data_dir, owner(settings, &pool.name));
        Marker { os, store, pool, data_dir, path: path.join(MARKER), owner }
    }

    /// Makes sure that the directory is the pool's, or nobody's yet. Changes nothing.
    ///
    /// # Errors
    /// FAILED_PRECONDITION with what to do where it is not.
    pub(crate) fn check(&self) -> Result<()> {
        let (found, known) = (self.read(&self.path)?, self.read(&self.twin())?);
        let place = self.pool.path.display();
        match (found, known) {
            (None, Some(_)) => Err(self.refuse(format!(
                "{place} was its directory, and now has no file {MARKER}: is its disk mounted? To start the pool again there, remove {}",
                self.twin().display()
            ))),
            (Some(found), _) if !found.starts_with(&self.owner) => Err(self.refuse(format!(
                "{place} is another pool's: its file {MARKER} says \"{}\", not \"{}\"; were disks exchanged?",
                line(&found),
                line(&self.owner)
            ))),
            (Some(found), Some(known)) if found != known => Err(self.refuse(format!(
                "the file {MARKER} says that {place} is not the directory that it was: were disks exchanged? If it is right, remove {}",
                self.twin().display()
            ))),
            (Some(_), _) => Ok(()),
            (None, None) => self.expect_volumes(),
        }
    }

    /// Writes what is missing: the marker, then its twin. On a full disk it is tried again by the next start.
    pub(crate) fn write(&self) -> Result<()> {
        self.check()?; // another driver may have come in between, before the lock
        let text = match self.read(&self.path)? {
            Some(text) => text,
            None => {
                let id = self.os.files.random_id().doing(|| "make an id".to_owned())?;
                let text = format!("{}id={id}\n", self.owner);
                if !self.put(&self.path, &text)? {
                    return Ok(());
                }
                text
            }
        };
        let twin = self.twin();
        if self.read(&twin)?.is_some() {
            return Ok(());
        }
        let directory = self.data_dir.join(KNOWN_POOLS);
        let making = || self.doing(&format!("make {}", directory.display()));
        if self.os.files.stat(&directory).doing(making)?.is_none() {
            let made = self.os.files.create_directory(&directory, 0o700);
            match made.and_then(|()| self.os.files.sync_directory(self.data_dir)) {
                Err(error) if is_full(&error) => return Ok(()),
                made => made.doing(making)?,
            }
        }
        self.put(&twin, &text).map(drop)
    }

    /// Checks a pool without a marker, such as one restored from a backup. It gets a marker if it holds the volumes that the
    /// state file lists.
    fn expect_volumes(&self) -> Result<()> {
        let volumes = self.store.volumes().into_iter();
        let volumes = volumes.filter(|volume| *volume.pool() == self.pool.name && volume.is_ready());
        let volumes = volumes.map(|volume| Path::new("volumes").join(volume.directory().as_str()));
        let snapshots = self.store.snapshots().into_iter();
        let snapshots = snapshots.filter(|snapshot| snapshot.pool == self.pool.name && snapshot.is_ready());
        let snapshots = snapshots.map(|snapshot| Path::new("snapshots").join(snapshot.id.as_str()));
        let (mut count, place) = (0, self.path.parent().unwrap_or(&self.path));
        for name in volumes.chain(snapshots) {
            count += 1;
            let path = place.join(name);
            if self.os.files.stat(&path).doing(|| self.doing("look at what it holds"))?.is_some() {
                return Ok(());
            }
        }
        match count {
            0 => Ok(()),
            count => Err(self.refuse(format!(
                "{} holds none of the {count} volumes and snapshots that are in it: is its disk mounted?",
                self.pool.path.display()
            ))),
        }
    }

    fn twin(&self) -> PathBuf {
        self.data_dir.join(KNOWN_POOLS).join(self.pool.name.as_str())
    }

    fn read(&self, file: &Path) -> Result<Option<String>> {
        read(self.os, file).doing(|| self.doing(&format!("read {}", file.display())))
    }

    /// Writes a file; whether there was room.
    fn put(&self, file: &Path, text: &str) -> Result<bool> {
        match write_whole(self.os.files.as_ref(), file, text.as_bytes()) {
            Err(error) if is_full(&error) => {
                self.warn(file, &error);
                Ok(false)
            }
            written => written.doing(|| self.doing(&format!("write {}", file.display()))).map(|()| true),
        }
    }

    fn warn(&self, file: &Path, error: &io::Error) {
        tracing::warn!(
            pool = %self.pool.name, file = %file.display(), %error,
            "nothing remembers the pool's disk: a later start would not notice that it is missing; make room"
        );
    }

    fn doing(&self, what: &str) -> String {
        format!("pool {}: {what}", self.pool.name)
    }

    fn refuse(&self, why: String) -> Error {
        Error::InUse(format!("pool {}: {why}", self.pool.name))
    }
}

/// The lines that say whose a pool is.
pub(super) fn owner(settings: &Settings, pool: &PoolName) -> String {
    pool_owner(&settings.driver_name, &settings.node_id, pool)
}

/// A marker's text, if there is one; a file that cannot be ours reads as nothing.
pub(super) fn read(os: &Os, file: &Path) -> io::Result<Option<String>> {
    let Some(stat) = os.files.stat(file)? else { return Ok(None) };
    let readable = stat.kind == FileKind::File && stat.size <= MAX_BYTES;
    let bytes = if readable { os.files.read(file)? } else { Vec::new() };
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// A text as one line.
pub(super) fn line(text: &str) -> String {
    text.lines().collect::<Vec<_>>().join(" ")
}
