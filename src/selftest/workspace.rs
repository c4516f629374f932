//! The directory that everything happens in, and its end: whatever was made below it is removed.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::errno::Errno;

use crate::kernel::{Os, is_errno};

/// Someone who just looks, such as udev, may keep a mount or a device busy for a moment.
const TRIES: u32 = 40;
const PAUSE: Duration = Duration::from_millis(50);

/// A new directory, removed with all that is in and on it when it is dropped.
pub(crate) struct Workspace {
    os: Os,
    path: PathBuf,
}

impl Workspace {
    /// Makes one below `dir`. Its name begins with `hostloop-` and the name of the command that needs it.
    pub(crate) fn create(os: &Os, dir: &Path, command: &str) -> io::Result<Self> {
        let dir = os.files.canonicalize(dir)?;
        for number in 0.. {
            let path = dir.join(format!("hostloop-{command}-{}.{number}", std::process::id()));
            match os.files.create_directory(&path, 0o700) {
                // An earlier one that was killed.
                Err(e) if is_errno(&e, Errno::EEXIST) && number < 100 => {}
                made => return made.map(|()| Workspace { os: os.clone(), path }),
            }
        }
        Err(io::Error::from(io::ErrorKind::AlreadyExists))
    }

    /// Its path, links resolved.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether anything is mounted at or below `path`.
    pub(super) fn is_mounted(&self, path: &Path) -> io::Result<bool> {
        Ok(self.os.mounts.list()?.iter().any(|mount| mount.target.starts_with(path)))
    }

    /// The loop devices whose backing file is, or was, below `path`, as sysfs names it.
    pub(super) fn attached(&self, path: &Path) -> Vec<String> {
        let Ok(names) = self.os.files.list(Path::new("/sys/block")) else { return Vec::new() };
        let ours = |name: &String| {
            let backing = self.os.files.read(&Path::new("/sys/block").join(name).join("loop/backing_file"));
            backing.is_ok_and(|file| Path::new(&*String::from_utf8_lossy(&file)).starts_with(path))
        };
        names.into_iter().filter(|name| name.starts_with("loop")).filter(ours).collect()
    }

    /// Removes everything. Says what is left, each in a line; nothing if all went well.
    pub(crate) fn remove(&self) -> Vec<String> {
        let mut left = Vec::new();
        retry(|| self.unmount()).unwrap_or_else(|error| left.push(error.to_string()));
        self.detach().unwrap_or_else(|error| left.push(error.to_string()));
        retry(|| self.os.trees.remove(&self.path)).unwrap_or_else(|error| left.push(error.to_string()));
        // A device without a mount goes with its last user, which may be a moment later.
        let gone = || match self.attached(&self.path).join(", ") {
            names if names.is_empty() => Ok(()),
            names => Err(io::Error::other(format!("{names} is still attached to a removed image"))),
        };
        retry(gone).unwrap_or_else(|error| left.push(error.to_string()));
        left
    }

    /// Unmounts what is mounted below, the latest first.
    fn unmount(&self) -> io::Result<()> {
        let mounts = self.os.mounts.list()?;
        let ours = mounts.iter().rev().filter(|mount| mount.target.starts_with(&self.path));
        ours.map(|mount| self.os.mounts.unmount(&mount.target)).fold(Ok(()), Result::and)
    }

    /// Detaches devices from the files below.
    fn detach(&self) -> io::Result<()> {
        if self.attached(&self.path).is_empty() {
            return Ok(());
        }
        let mut directories = vec![self.path.clone()];
        while let Some(directory) = directories.pop() {
            for name in self.os.files.list(&directory)? {
                let path = directory.join(name);
                let Some(stat) = self.os.files.stat(&path)? else { continue };
                match stat.kind {
                    crate::kernel::FileKind::Directory => directories.push(path),
                    crate::kernel::FileKind::File => {
                        for device in self.os.loops.find(stat.id)? {
                            self.os.loops.detach(&device)?;
                        }
                    }
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl Drop for Workspace {
    fn drop(&mut self) {
        if self.os.files.stat(&self.path).ok().flatten().is_some() {
            self.remove();
        }
    }
}

fn retry(work: impl Fn() -> io::Result<()>) -> io::Result<()> {
    for _ in 1..TRIES {
        match work() {
            Ok(()) => return Ok(()),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }
    work()
}
