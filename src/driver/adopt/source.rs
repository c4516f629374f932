//! What is to become a volume: found below a directory that the administrator has opened for this, and seen unused.
//!
//! The directory that it is in is held open, and no link below the administrator's directory is followed. So whoever may write there
//! cannot lead the driver elsewhere.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::driver::Driver;
use crate::error::{Error, OsContext, Result};
use crate::kernel::{FileKind, FileStat, MountEntry, Os, Pinned, is_errno};
use crate::model::{AdoptVolume, Volume, VolumeId};

use nix::errno::Errno;

/// How often who uses an image is asked again, each time after 10 ms.
const TRIES: u32 = 200;
/// The longest name of a file on Linux (NAME_MAX), in bytes.
const LONGEST_NAME: usize = 255;
/// Before the id of the volume in the name that a source gets when the volume has all of it.
const MARK: &str = ".adopted-";

/// The directory that a source is in, or was.
pub(super) struct Around {
    /// Where the source is, with the links of the administrator's directory resolved.
    real: PathBuf,
    /// The administrator's directory, links resolved.
    root: PathBuf,
    parent: Pinned,
    name: String,
}

impl Around {
    /// Where the source is, through the directory that is held.
    pub(super) fn at(&self) -> PathBuf {
        self.parent.path().join(&self.name)
    }

    /// The directory that is held.
    pub(super) fn parent(&self) -> &Path {
        self.parent.path()
    }

    /// The place of the source when the volume has all of it, through the directory that is held.
    pub(super) fn marked(&self, id: &VolumeId) -> PathBuf {
        self.parent.path().join(self.marked_name(id))
    }

    /// As above, for people.
    pub(super) fn shown_marked(&self, id: &VolumeId) -> PathBuf {
        self.real.with_file_name(self.marked_name(id))
    }

    fn marked_name(&self, id: &VolumeId) -> String {
        format!("{}{MARK}{id}", self.name)
    }
}

/// What a source is like. Only a change of it changes this.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Fingerprint {
    tree: u64,
    /// When the source's own inode changed. A rename changes it, too.
    changed: Option<SystemTime>,
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let since =
            self.changed.and_then(|changed| changed.duration_since(UNIX_EPOCH).ok()).unwrap_or_default();
        write!(f, "{}{}.{:09}", of_tree(self.tree), since.as_secs(), since.subsec_nanos())
    }
}

/// How the fingerprint of a tree that was renamed begins.
fn of_tree(tree: u64) -> String {
    format!("{tree:016x}-")
}

/// What is to become a volume.
pub(super) struct Source {
    pub(super) around: Around,
    pub(super) stat: FileStat,
}

impl Source {
    pub(super) fn at(&self) -> PathBuf {
        self.around.at()
    }

    /// Holds it open for reading, so that a change of its name does not matter.
    pub(super) fn hold(&self, os: &Os) -> Result<Pinned> {
        let held = os.files.open_below(self.around.parent(), Path::new(&self.around.name));
        held.doing(|| format!("open {}", self.shown()))
    }

    /// Returns its path, with the links of the administrator's directory resolved.
    pub(super) fn real(&self) -> &Path {
        &self.around.real
    }

    /// The administrator's directory that it is in, links resolved.
    pub(super) fn root(&self) -> &Path {
        &self.around.root
    }

    /// Its path in that directory.
    pub(super) fn below(&self) -> &Path {
        self.around.real.strip_prefix(&self.around.root).unwrap_or(Path::new(""))
    }

    /// Looks at all of it.
    pub(super) fn fingerprint(&self, os: &Os) -> Result<Fingerprint> {
        let (at, looking) = (self.at(), || format!("look at {}", self.shown()));
        let tree = os.trees.fingerprint(&at).doing(looking)?;
        Ok(Fingerprint { tree, changed: os.files.changed(&at).doing(looking)? })
    }

    /// For messages.
    pub(super) fn shown(&self) -> std::path::Display<'_> {
        self.around.real.display()
    }

    /// Returns the name of its volume: a repeated request finds the volume by it.
    pub(super) fn volume_name(&self, request: &AdoptVolume) -> String {
        format!("adopted {} {}", self.stat.id.ino, request.path.display())
    }
}

impl Driver {
    /// Makes sure that the source of a copy is what it was when the copy began.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if it is not.
    pub(super) fn expect_unwritten(&self, source: &Source, volume: &Volume) -> Result<()> {
        let Some(copied) = volume.adopted.as_ref().and_then(|adopted| adopted.fingerprint.as_deref()) else {
            return Ok(());
        };
        if source.fingerprint(&self.os)?.to_string() == copied {
            return Ok(());
        }
        let (id, shown) = (&volume.id, source.shown());
        Err(Error::InUse(format!(
            "{shown} was written to after it was copied to volume {id}, which does not have that; {shown} was left alone. To keep the \
             volume without it, move {shown} elsewhere and repeat the request; to make a volume of {shown} anew, delete volume {id} \
             first"
        )))
    }

    /// Whether a source that was renamed to `marked` has what was copied, and nothing else.
    pub(super) fn is_as_copied(&self, marked: &Path, volume: &Volume) -> Result<bool> {
        let Some(copied) = volume.adopted.as_ref().and_then(|adopted| adopted.fingerprint.as_deref()) else {
            return Ok(true);
        };
        let tree = self.os.trees.fingerprint(marked).doing(|| format!("look at {}", marked.display()))?;
        Ok(copied.starts_with(&of_tree(tree)))
    }

    /// Finds the directory that a source is in; `None` if that is gone.
    ///
    /// # Errors
    /// FAILED_PRECONDITION if nothing may be adopted here, INVALID_ARGUMENT for a path elsewhere or through a link.
    pub(super) fn around(&self, request: &AdoptVolume) -> Result<Option<Around>> {
        let path = request.path.as_path();
        let opened = &self.settings.adopt_from;
        if opened.is_empty() {
            return Err(Error::InUse(
                "this node adopts nothing; set --adopt-from (in the chart: node.adoptFrom) to the directory with what is to become volumes".to_owned(),
            ));
        }
        let root = opened.iter().find(|root| path.starts_with(root));
        let below = root.and_then(|root| path.strip_prefix(root).ok());
        let name = path.file_name().and_then(|name| name.to_str());
        let (Some(root), Some(below), Some(name)) =
            (root, below, name.filter(|_| below != Some(Path::new(""))))
        else {
            let all: Vec<String> = opened.iter().map(|root| root.display().to_string()).collect();
            return Err(Error::Invalid(format!(
                "{} is not below {} (--adopt-from)",
                path.display(),
                all.join(" or ")
            )));
        };
        let looking = || format!("look for {}", path.display());
        let real_root = self.os.files.canonicalize(root).doing(looking)?;
        match self.os.files.open_below(root, below.parent().unwrap_or(Path::new(""))) {
            Ok(parent) => {
                let (real, name) = (real_root.join(below), name.to_owned());
                Ok(Some(Around { real, root: real_root, parent, name }))
            }
            Err(error) if is_errno(&error, Errno::ENOENT) => Ok(None),
            Err(error) if is_errno(&error, Errno::ELOOP) => Err(Error::Invalid(format!(
                "there is a symbolic link in {}, and none is followed below {}; give the path without it",
                path.display(),
                root.display()
            ))),
            Err(error) => Err(error).doing(looking),
        }
    }

    /// Finds what is to become a volume; `None` if it is not there.
    ///
    /// # Errors
    /// Those of [`around`](Self::around); INVALID_ARGUMENT for what is neither an image nor a directory, as asked for.
    pub(super) fn find_source(&self, request: &AdoptVolume) -> Result<Option<Source>> {
        let Some(around) = self.around(request)? else { return Ok(None) };
        let shown = around.real.display();
        let looking = || format!("look at {}", request.path.display());
        let Some(stat) = self.os.files.stat(&around.at()).doing(looking)? else { return Ok(None) };
        let wanted = if request.is_directory { FileKind::Directory } else { FileKind::File };
        if stat.kind != wanted {
            let what = if request.is_directory { "a directory" } else { "a regular file" };
            return Err(Error::Invalid(format!("{shown} is not {what}")));
        }
        if let Some((_, id)) = around.name.rsplit_once(MARK)
            && id.parse::<VolumeId>().is_ok()
        {
            return Err(Error::Invalid(format!(
                "{shown} is what volume {id} was made of; rename it to make another volume of it"
            )));
        }
        if around.name.len() + MARK.len() + VolumeId::of_name(&self.node_key, "").as_str().len()
            > LONGEST_NAME
        {
            return Err(Error::Invalid(format!("the name of {shown} is too long; rename it")));
        }
        Ok(Some(Source { around, stat }))
    }

    /// Makes sure that nothing uses the source ([`expect_unused_source`](Self::expect_unused_source)), and that no other driver has a pool
    /// in it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION with what uses it; INVALID_ARGUMENT for what is a pool's.
    pub(super) fn expect_adoptable(&self, source: &Source) -> Result<()> {
        self.expect_unused_source(source)?;
        self.expect_no_pool_inside(source)
    }

    /// Makes sure that nothing has the source mounted, attached or, if it is a file, open, and that no pool is around it and none of this
    /// driver in it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION with what uses it; INVALID_ARGUMENT for what is a pool's.
    pub(super) fn expect_unused_source(&self, source: &Source) -> Result<()> {
        let (shown, at) = (source.shown(), source.at());
        let looking = || format!("look who uses {shown}");
        let mounts = self.os.mounts.list().doing(looking)?;
        let id = self.os.mounts.mount_at(&at).doing(looking)?;
        if id != self.os.mounts.mount_at(source.around.parent()).doing(looking)? {
            return Err(Error::InUse(format!(
                "{shown} is a mount point; unmount it, or give a directory or an image that is in it"
            )));
        }
        let real = &source.around.real;
        let (mount, inside) = within(&mounts, id, real)?;
        let of_it = |other: &&MountEntry| {
            (other.dev == mount.dev && other.root.starts_with(&inside)) || other.target.starts_with(real)
        };
        if let Some(mounted) = mounts.iter().find(of_it) {
            return Err(Error::InUse(format!(
                "{shown}, or a part of it, is mounted at {}; unmount that first",
                mounted.target.display()
            )));
        }
        self.expect_no_pool(source, &mounts)?;
        match source.stat.kind {
            FileKind::File => self.expect_closed(source),
            _ => Ok(()),
        }
    }

    /// A loop device goes a moment after its last user, which is waited for.
    fn expect_closed(&self, source: &Source) -> Result<()> {
        for _ in 1..TRIES {
            if self.user_of(source)?.is_none() {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        self.user_of(source)?.map_or(Ok(()), |why| Err(Error::InUse(why)))
    }

    /// Says what has an image attached or open.
    fn user_of(&self, source: &Source) -> Result<Option<String>> {
        let (shown, at) = (source.shown(), source.at());
        let devices = self.os.loops.list().doing(|| "find loop devices".to_owned())?;
        if let Some(device) = devices.iter().find(|device| device.backing == Some(source.stat.id)) {
            let device = device.path();
            return Ok(Some(format!(
                "{shown} is attached to {}; end what uses it, and detach it",
                device.display()
            )));
        }
        let closed = self.os.files.seen_closed(&at).doing(|| format!("look who uses {shown}"))?;
        Ok((!closed).then(|| {
            format!(
                "a process has {shown} open, or its filesystem does not say that none has; end what uses it"
            )
        }))
    }
}

/// The mount with this id, and where a path of it is within its filesystem.
///
/// # Errors
/// UNAVAILABLE if the mounts changed meanwhile.
pub(super) fn within<'a>(
    mounts: &'a [MountEntry],
    id: u64,
    path: &Path,
) -> Result<(&'a MountEntry, PathBuf)> {
    let mount = mounts.iter().find(|mount| mount.id == id);
    let place =
        mount.and_then(|mount| Some((mount, mount.root.join(path.strip_prefix(&mount.target).ok()?))));
    place.ok_or_else(|| {
        Error::Unavailable(format!(
            "the mounts around {} changed while they were read; try again",
            path.display()
        ))
    })
}
