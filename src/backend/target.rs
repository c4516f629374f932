//! Paths that a caller chose: resolved once, never followed if they are links, never removed if they contain anything.

use std::path::{Path, PathBuf};

use nix::errno::Errno;

use crate::error::{Error, OsContext, Result};
use crate::kernel::{FileKind, MountEntry, Os, is_errno};

use super::uses::{Uses, hidden};

/// A staging or target path with every link of its parents resolved, as mountinfo shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    path: PathBuf,
    /// What is there now; `None` for nothing.
    found: Option<FileKind>,
}

impl Target {
    /// The resolved path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether anything is at the path.
    pub fn exists(&self) -> bool {
        self.found.is_some()
    }
}

/// Resolves the parents of an absolute path and looks at its last component without following it.
///
/// # Errors
/// NOT_FOUND where the parent is missing; INVALID_ARGUMENT where the last component is a symbolic link.
pub fn resolve(os: &Os, path: &Path) -> Result<Target> {
    let invalid = || Error::Invalid(format!("nothing can be mounted at {}", path.display()));
    let (parent, name) = path.parent().zip(path.file_name()).ok_or_else(invalid)?;
    let parent = match os.files.canonicalize(parent) {
        Ok(parent) => parent,
        Err(e) if is_errno(&e, Errno::ENOENT) || is_errno(&e, Errno::ENOTDIR) => {
            return Err(Error::NotFound(format!("{} does not exist; create it first", parent.display())));
        }
        Err(e) => return Err(e).doing(|| format!("resolve {}", parent.display())),
    };
    let path = parent.join(name);
    let found = match os.files.stat(&path) {
        // What is mounted there does not answer any more, and can still be unmounted.
        Err(error) if has_stopped(&error) => Some(FileKind::Other),
        found => found.doing(|| format!("look at {}", path.display()))?.map(|stat| stat.kind),
    };
    match found {
        Some(FileKind::Symlink) => {
            Err(Error::Invalid(format!("{} is a symbolic link, which is never followed", path.display())))
        }
        found => Ok(Target { path, found }),
    }
}

/// Whether a filesystem says with this that it has shut down after an error: xfs and btrfs refuse even lstat(2) of
/// their root then.
pub(super) fn has_stopped(error: &std::io::Error) -> bool {
    [Errno::EIO, Errno::EUCLEAN, Errno::ESHUTDOWN].iter().any(|errno| is_errno(error, *errno))
}

/// Makes sure that an empty directory is at the target; says whether it was made.
pub(super) fn make_directory(os: &Os, target: &Target) -> Result<bool> {
    match target.found {
        None => os
            .files
            .create_directory(&target.path, 0o750)
            .doing(|| "create the target directory".to_owned())
            .map(|()| true),
        Some(FileKind::Directory) => {
            match os.files.list(&target.path).doing(|| "read the target directory".to_owned())? {
                names if names.is_empty() => Ok(false),
                _ => Err(Error::InUse(format!(
                    "{} is not empty: mounting would hide what is in it",
                    target.path.display()
                ))),
            }
        }
        Some(_) => Err(Error::InUse(format!("{} is not a directory", target.path.display()))),
    }
}

/// Makes sure that an empty regular file is at the target; says whether it was made.
pub(super) fn make_file(os: &Os, target: &Target) -> Result<bool> {
    let stat = os.files.stat(&target.path).doing(|| format!("look at {}", target.path.display()))?;
    match stat {
        None => {
            os.files.create_file(&target.path).doing(|| "create the target file".to_owned()).map(|()| true)
        }
        Some(stat) if stat.kind == FileKind::File && stat.size == 0 => Ok(false),
        Some(_) => {
            Err(Error::InUse(format!("{} already exists and is not an empty file", target.path.display())))
        }
    }
}

/// Runs `mount` on a target that was just prepared; removes the target again if it fails and we made it.
pub(super) fn or_remove(
    os: &Os,
    target: &Target,
    made: bool,
    mount: impl FnOnce() -> Result<()>,
) -> Result<()> {
    mount().map_err(|cause| match made {
        true => cause.after_undo(remove(os, target.path())),
        false => cause,
    })
}

/// Takes the volume's mounts at a path away, the topmost first, and never one that is not the volume's. One that is
/// busy stays, unless its filesystem has stopped: whoever waits for that would keep it for ever.
///
/// # Errors
/// FAILED_PRECONDITION where another mount hides them, or others are inside, which are named; and EBUSY.
pub fn take_away(os: &Os, path: &Path, uses: &Uses) -> Result<()> {
    for already in 0..uses.at(path).count() {
        // The kernel may have unmounted the others with the one before: they were copies of it.
        if already > 0 && !are_left(os, path, uses)? {
            break;
        }
        let Some(top) = uses.top_at(os, path)? else { break };
        let unmounting = || format!("unmount {}", path.display());
        match os.mounts.unmount_exactly(top) {
            Err(error) if is_errno(&error, Errno::ESTALE) => return Err(hidden(os, path)),
            Err(error) if has_died(os, top) => {
                os.mounts.detach(top).doing(unmounting)?;
                tracing::warn!(
                    path = %path.display(), %error,
                    "its filesystem has stopped and it cannot be unmounted: it is detached lazily and goes with its last user"
                );
            }
            Err(error) if is_errno(&error, Errno::EBUSY) => {
                let busy = Err(error).doing(unmounting);
                return busy.map_err(|cause| mounts_inside(os, top).unwrap_or(cause));
            }
            unmounted => unmounted.doing(unmounting)?,
        }
    }
    Ok(())
}

/// Returns whether any of the volume's mounts at a path is still there.
fn are_left(os: &Os, path: &Path, uses: &Uses) -> Result<bool> {
    let is_ours = |mount: &MountEntry| mount.target == path && uses.at(path).any(|ours| ours.id == mount.id);
    os.mounts.matching(&is_ours).doing(|| "look for mounts".to_owned()).map(|left| !left.is_empty())
}

/// FAILED_PRECONDITION that names what is mounted inside of a mount and so keeps it busy; `None` if nothing is.
fn mounts_inside(os: &Os, mount: &MountEntry) -> Option<Error> {
    let table = os.mounts.list().ok()?;
    busy_with(&mount.target, &inside_of(&table, mount))
}

/// Returns the mounts inside of a mount, at any depth.
fn inside_of<'a>(table: &'a [MountEntry], mount: &MountEntry) -> Vec<&'a MountEntry> {
    let (mut ids, mut found) = (vec![mount.id], Vec::new());
    // One that was moved may come before the one that it is on.
    loop {
        let is_new = |inner: &&MountEntry| ids.contains(&inner.parent) && !ids.contains(&inner.id);
        let Some(inner) = table.iter().find(is_new) else { return found };
        ids.push(inner.id);
        found.push(inner);
    }
}

/// FAILED_PRECONDITION that names what is mounted below a directory, if that is why it cannot be removed.
pub(super) fn blame_mounts(os: &Os, directory: &Path, cause: Error) -> Error {
    if !matches!(cause.errno(), Some(Errno::EBUSY | Errno::EXDEV)) {
        return cause;
    }
    let table = os.mounts.list().unwrap_or_default();
    let below: Vec<&MountEntry> = table.iter().filter(|mount| mount.target.starts_with(directory)).collect();
    busy_with(directory, &below).unwrap_or(cause)
}

/// FAILED_PRECONDITION for a path that these mounts keep busy; `None` if there are none.
fn busy_with(path: &Path, inside: &[&MountEntry]) -> Option<Error> {
    /// A container engine may have hundreds.
    const NAMED: usize = 5;
    let names =
        inside.iter().take(NAMED).map(|inner| format!("{} ({})", inner.target.display(), inner.fs_type));
    let mut names: Vec<String> = names.collect();
    match inside.len() {
        0 => return None,
        all if all > NAMED => names.push(format!("{} more", all - NAMED)),
        _ => {}
    }
    let (path, names) = (path.display(), names.join(", "));
    Some(Error::InUse(format!(
        "{path} has other mounts inside, which keep it busy: {names}; unmount them first"
    )))
}

/// Whether what is mounted here will never answer again.
fn has_died(os: &Os, mount: &MountEntry) -> bool {
    let path = &mount.target;
    let refused = match os.files.stat(path) {
        Err(error) => Some(error),
        Ok(Some(stat)) if stat.kind == FileKind::BlockDevice => os.images.read_at(path, 0, 4096).err(),
        // ext4 answers a look after it has shut down; then it refuses to write, or is read-only by itself.
        Ok(_) if mount.superblock_read_only && !mount.read_only => return true,
        Ok(_) => os.files.sync_directory(path).err(),
    };
    refused.as_ref().is_some_and(has_stopped)
}

/// Removes what is left at a target after its mount is gone: an empty directory or an empty file, nothing else.
///
/// # Errors
/// FAILED_PRECONDITION where something else is there; it is left alone.
pub fn remove(os: &Os, path: &Path) -> Result<()> {
    let stat = os.files.stat(path).doing(|| format!("look at {}", path.display()))?;
    match stat {
        None => Ok(()),
        Some(stat) if stat.kind == FileKind::Directory => match os.files.remove_directory(path) {
            Err(e) if is_errno(&e, Errno::ENOTEMPTY) => Err(Error::InUse(format!(
                "{} is not empty; its content does not belong to the volume and stays",
                path.display()
            ))),
            other => other.doing(|| format!("remove {}", path.display())),
        },
        Some(stat) if stat.kind == FileKind::File && stat.size == 0 => {
            os.files.remove_file(path).doing(|| format!("remove {}", path.display()))
        }
        Some(_) => {
            Err(Error::InUse(format!("{} is not an empty file or directory and stays", path.display())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use hostloop_fake_kernel::FakeKernel;

    #[test]
    fn a_look_is_left_out_for_what_has_stopped() {
        let (kernel, path) = (FakeKernel::new(), Path::new("/a/b"));
        kernel.create_directories(path);
        for (errno, is_used) in
            [(Errno::EIO, true), (Errno::EUCLEAN, true), (Errno::ESHUTDOWN, true), (Errno::EACCES, false)]
        {
            kernel.fail_every("stat", errno);
            assert_eq!(
                resolve(&kernel.spawn(), path).is_ok_and(|target| target.exists()),
                is_used,
                "{errno}"
            );
            kernel.heal();
        }
        let there = |path| resolve(&kernel.spawn(), Path::new(path)).unwrap().exists();
        assert!(there("/a/b") && !there("/a/c"));
    }

    #[test]
    fn the_first_five_mounts_inside_are_named() {
        let mount = |n: usize| MountEntry {
            id: n as u64,
            parent: 0,
            dev: 7,
            root: "/".into(),
            target: format!("/a/{n}").into(),
            fs_type: "ext4".to_owned(),
            source: "/dev/loop0".to_owned(),
            read_only: false,
            flags: Vec::new(),
            superblock_read_only: false,
            propagation: Default::default(),
        };
        let mounts: Vec<MountEntry> = (0..6).map(mount).collect();
        let why = |count: usize| {
            let inside: Vec<&MountEntry> = mounts.iter().take(count).collect();
            busy_with(Path::new("/a"), &inside).map(|error| error.to_string())
        };
        assert_eq!(why(0), None);
        let five = why(5).unwrap();
        assert!(five.contains("/a/4") && !five.contains("more"), "{five}");
        assert!(why(6).is_some_and(|why| why.contains("/a/4") && why.contains("1 more")));
    }

    #[test]
    fn a_target_is_removed_only_if_it_is_empty() {
        let kernel = FakeKernel::new();
        let os = kernel.spawn();
        let [file, directory] = ["/t/file", "/t/directory"].map(Path::new);
        kernel.create_directories(directory);
        kernel.write_file(file, b"").unwrap();
        kernel.write_file("/t/directory/data", b"somebody's").unwrap();
        kernel.write_file("/t/data", b"somebody's").unwrap();
        for path in ["/t/data", "/t/directory"] {
            let refused = remove(&os, Path::new(path)).unwrap_err();
            assert!(matches!(refused, Error::InUse(_)), "{refused}");
        }
        assert_eq!(kernel.read_file("/t/data").unwrap(), b"somebody's");
        assert_eq!(kernel.read_file("/t/directory/data").unwrap(), b"somebody's");
        kernel.remove_file("/t/directory/data").unwrap();
        kernel.fail_every("remove_directory", Errno::EIO);
        assert_eq!(remove(&os, directory).unwrap_err().errno(), Some(Errno::EIO));
        kernel.heal();
        for path in [file, directory, Path::new("/t/none")] {
            remove(&os, path).unwrap();
            assert!(!kernel.exists(path), "{}", path.display());
        }
    }
}
