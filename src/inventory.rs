//! What is in a pool: the directories of volumes and snapshots, with the records beside their data and their marks. The driver and
//! `hostloop state` read it if the state file is lost or damaged.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::backend::{Mark, VolumePaths, read_record, record_path};
use crate::error::{OsContext, Result};
use crate::kernel::{FileKind, Os};
use crate::model::{BackendKind, PoolName, SnapshotId, VolumeId};
use crate::store::Beside;

/// The file in the root of a pool that says whose the pool is.
pub const POOL_MARKER: &str = "hostloop-pool";
/// The file in a data directory that says whose that is. The data directory is a pool without the other file.
pub const INSTALLATION: &str = "hostloop-installation";
/// The directory of the twins of those files in the data directory, each with the name of its pool.
pub const KNOWN_POOLS: &str = "known-pools";

/// Returns the lines of a pool's marker that say whose the pool is: of which driver, node and pool. None of the three can have a line
/// break.
pub fn pool_owner(driver: &str, node_id: &str, pool: &PoolName) -> String {
    format!("driver={driver}\nnode={node_id}\npool={pool}\n")
}

/// What a directory in a pool is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    Volume,
    Snapshot,
}

impl Place {
    const ALL: [Place; 2] = [Place::Volume, Place::Snapshot];

    /// Its directory in a pool.
    fn name(self) -> &'static str {
        match self {
            Place::Volume => "volumes",
            Place::Snapshot => "snapshots",
        }
    }

    /// The paths of what has this name, as a backend keeps it; `None` if it is not the name of such a thing.
    fn paths(self, pool: &Path, name: &str, backend: BackendKind) -> Option<VolumePaths> {
        match self {
            Place::Volume => Some(VolumePaths::new(pool, &name.parse::<VolumeId>().ok()?, backend)),
            Place::Snapshot => {
                Some(VolumePaths::of_snapshot(pool, &name.parse::<SnapshotId>().ok()?, backend))
            }
        }
    }
}

/// The record beside data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    Whole(Box<Beside>),
    /// It cannot be used, and why.
    Bad(String),
    Missing,
}

/// The data of a volume or a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// An image of this size, and its allocated bytes.
    Image {
        bytes: u64,
        allocated: u64,
    },
    Tree,
    Missing,
}

/// One directory, or what lies beside one that is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub pool: PoolName,
    pub place: Place,
    /// The name of the directory.
    pub name: String,
    pub directory: PathBuf,
    pub record: Record,
    pub data: Data,
    /// Its deletion has begun.
    pub deleting: bool,
    /// The marks of what was made in its image (`backend::Mark`).
    pub formatting: bool,
    pub formatted: bool,
}

/// Reads what lies in a pool, in the order of names. What is none of the driver's is left out.
///
/// # Errors
/// The kernel's.
pub fn read(os: &Os, pool: &PoolName, path: &Path) -> Result<Vec<Entry>> {
    let mut entries = Vec::new();
    for place in Place::ALL {
        let directory = path.join(place.name());
        let names = os.files.list(&directory).doing(|| format!("list {}", directory.display()))?;
        let names: BTreeSet<&str> = names.iter().map(|name| Mark::owner_of(name)).collect();
        for name in names {
            entries.extend(entry(os, (pool, path), place, name)?);
        }
    }
    Ok(entries)
}

/// Reads what has one name in a pool; `None` if it is not the name of a volume or a snapshot.
///
/// # Errors
/// The kernel's.
pub fn entry(os: &Os, (pool, path): (&PoolName, &Path), place: Place, name: &str) -> Result<Option<Entry>> {
    let paths = |backend| place.paths(path, name, backend);
    let (Some(image), Some(tree)) = (paths(BackendKind::Loop), paths(BackendKind::Directory)) else {
        return Ok(None);
    };
    let data = data(os, &image, &tree)?;
    let found = match data {
        Data::Image { .. } => read_record(os, &record_path(&image))?,
        Data::Tree => read_record(os, &record_path(&tree))?,
        Data::Missing => match read_record(os, &record_path(&image))? {
            None => read_record(os, &record_path(&tree))?,
            found => found,
        },
    };
    let record = match found.map(|bytes| Beside::read(&bytes)) {
        Some(Ok(beside)) => Record::Whole(Box::new(beside)),
        Some(Err(why)) => Record::Bad(why),
        None => Record::Missing,
    };
    let is_set = |mark: Mark| mark.is_set(os, &image);
    Ok(Some(Entry {
        pool: pool.clone(),
        place,
        name: name.to_owned(),
        directory: image.directory.clone(),
        record,
        data,
        deleting: is_set(Mark::Deleting)?,
        formatting: is_set(Mark::Formatting)?,
        formatted: is_set(Mark::Formatted)?,
    }))
}

fn data(os: &Os, image: &VolumePaths, tree: &VolumePaths) -> Result<Data> {
    let stat = |path: PathBuf| os.files.stat(&path).doing(|| format!("look at {}", path.display()));
    if let Some(found) = stat(image.data())?.filter(|found| found.kind == FileKind::File) {
        return Ok(Data::Image { bytes: found.size, allocated: found.allocated });
    }
    let is_tree = stat(tree.data())?.is_some_and(|found| found.kind == FileKind::Directory);
    Ok(if is_tree { Data::Tree } else { Data::Missing })
}
