//! The file with the record of a volume or a snapshot beside its data, in the filesystem of the data. It survives the loss of the state
//! file. It is `volume.json` or `snapshot.json` in the directory of an image, and `<id>.json` beside the directory of a tree. There it neither counts in the
//! quota of the tree nor comes along with a snapshot of it. The store reads and writes its text.

use std::path::{Path, PathBuf};

use super::{Shape, VolumePaths};
use crate::error::{OsContext, Result};
use crate::kernel::{Os, write_whole};

/// The name in the directory of an image of a volume.
const OF_VOLUME: &str = "volume.json";
/// The name in the directory of an image of a snapshot.
const OF_SNAPSHOT: &str = "snapshot.json";
/// The end of the name beside the directory of a tree.
const SUFFIX: &str = ".json";
/// The end of the name of a record that is being written.
const NEW: &str = ".new";

/// Returns the path of the record.
pub(crate) fn record_path(paths: &VolumePaths) -> PathBuf {
    match (paths.shape(), paths.directory.file_name()) {
        (Shape::Tree(_), Some(name)) => paths.parent.join(format!("{}{SUFFIX}", name.to_string_lossy())),
        _ if paths.parent.ends_with("snapshots") => paths.directory.join(OF_SNAPSHOT),
        _ => paths.directory.join(OF_VOLUME),
    }
}

/// Returns the name of the directory to which a file beside directories belongs, if it is a record or one that is being written.
pub(super) fn owner_of_record(name: &str) -> Option<&str> {
    name.strip_suffix(NEW).unwrap_or(name).strip_suffix(SUFFIX)
}

/// Writes the record of something new. It is durable when this returns, and its name is with the next sync of its directory.
pub(super) fn write_new(os: &Os, paths: &VolumePaths, record: &[u8]) -> Result<()> {
    let path = record_path(paths);
    let written = os.files.open_log(&path, 0).and_then(|mut log| {
        log.append(record)?;
        log.sync()
    });
    written.doing(|| format!("write {}", path.display()))
}

/// Writes the record of something that exists, whole and durable when this returns.
///
/// # Errors
/// The kernel's; the record is what it was before.
pub(crate) fn replace_record(os: &Os, paths: &VolumePaths, record: &[u8]) -> Result<()> {
    let path = record_path(paths);
    write_whole(os.files.as_ref(), &path, record).doing(|| format!("write {}", path.display()))
}

/// Reads the record; `None` if there is none.
pub(crate) fn read_record(os: &Os, path: &Path) -> Result<Option<Vec<u8>>> {
    let reading = || format!("read {}", path.display());
    match os.files.stat(path).doing(reading)? {
        Some(_) => os.files.read(path).doing(reading).map(Some),
        None => Ok(None),
    }
}

/// Removes the record, and one that was being written.
pub(super) fn remove(os: &Os, paths: &VolumePaths) -> Result<()> {
    let path = record_path(paths);
    os.files.remove_file(&path).doing(|| format!("remove {}", path.display()))?;
    remove_new_record(os, paths)
}

/// Removes a record that was being written when a driver was killed.
pub(crate) fn remove_new_record(os: &Os, paths: &VolumePaths) -> Result<()> {
    let mut new = record_path(paths).into_os_string();
    new.push(NEW);
    let new = PathBuf::from(new);
    os.files.remove_file(&new).doing(|| format!("remove {}", new.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_beside_a_tree_has_its_name() {
        assert_eq!(owner_of_record("vol-1.json"), Some("vol-1"));
        assert_eq!(owner_of_record("vol-1.json.new"), Some("vol-1"));
        assert_eq!((owner_of_record("vol-1"), owner_of_record("vol-1.making")), (None, None));
    }
}
