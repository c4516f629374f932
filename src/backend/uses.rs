//! Who uses a volume according to the kernel, and what proves it.
//!
//! A name alone is never enough, and a file that is missing or does not answer never means that nobody uses it. The
//! backing file of a loop device is the volume's image if it has the identity of the file that is there now: as long as
//! the device is attached, no other file can get that identity. If the identity is unknown, or the image is another file
//! by now, the name of the backing file counts. The kernel derives it from the place where the file is, or was last, and
//! the directory of a volume has a name that nobody else has. See [`Evidence`].

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use memchr::memmem::Finder;

use super::image::growing_image;
use super::{Place, VolumePaths};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{LoopDevice, MountEntry, Os};
use crate::model::Volume;

use super::propagated::goes_with;

/// What the kernel says about a volume now.
#[derive(Debug, Clone, Default)]
pub struct Uses {
    /// Mounts of the whole volume: staged, published, and those that others made of them.
    pub mounts: Vec<MountEntry>,
    /// Mounts of a part of it, such as kubelet's subPath mounts.
    pub partial: Vec<MountEntry>,
    pub loops: Vec<LoopDevice>,
    /// Loop devices that may be its own: they forbid what must not be done to a volume in use, and are left alone.
    pub suspected: Vec<LoopDevice>,
    /// Why what uses the volume is not what lies in its pool now; it can only be taken away.
    pub astray: Option<String>,
}

impl Uses {
    /// Whether anything uses the volume.
    pub fn any(&self) -> bool {
        self.all().next().is_some() || !(self.loops.is_empty() && self.suspected.is_empty())
    }

    /// Every mount of the volume.
    pub fn all(&self) -> impl Iterator<Item = &MountEntry> {
        self.mounts.iter().chain(&self.partial)
    }

    /// The devices of a raw block volume that are there to stay. One that was detached while somebody had it open
    /// has autoclear from then on and goes with its last user: nothing new may be built on it.
    pub fn live_loops(&self) -> impl Iterator<Item = &LoopDevice> {
        self.loops.iter().filter(|device| !device.autoclear)
    }

    /// The volume's mounts at `path`, whatever they show of it.
    pub fn at<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a MountEntry> {
        self.all().filter(move |mount| mount.target == path)
    }

    /// The volume's mount that is seen at `path`; `None` where it has none there.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where something else hides it.
    pub fn top_at<'a>(&'a self, os: &Os, path: &Path) -> Result<Option<&'a MountEntry>> {
        if self.at(path).next().is_none() {
            return Ok(None);
        }
        let seen = os.mounts.mount_at(path).ok();
        match self.all().find(|mount| mount.target == path && Some(mount.id) == seen) {
            Some(top) => Ok(Some(top)),
            None => Err(hidden(os, path)),
        }
    }

    /// Of these mounts one that can be reached, since nothing hides it; `None` where there is none of them at all.
    ///
    /// # Errors
    /// FAILED_PRECONDITION where something else hides each of them.
    pub fn reachable<'a>(
        &'a self,
        os: &Os,
        which: impl Fn(&MountEntry) -> bool,
    ) -> Result<Option<&'a MountEntry>> {
        let mut hides = None;
        for mount in self.all().filter(|mount| which(mount)) {
            match os.mounts.mount_at(&mount.target) {
                Ok(id) if id == mount.id => return Ok(Some(mount)),
                _ => hides = hides.or(Some(&mount.target)),
            }
        }
        hides.map_or(Ok(None), |path| Err(hidden(os, path)))
    }

    /// Where the whole volume is mounted, besides `target`, its staging path, the copies that the kernel has made of
    /// these two mounts, and what kubelet itself made of a block volume. What is whole is what the staged mount shows,
    /// which is not the top of a btrfs that has another default subvolume.
    ///
    /// # Errors
    /// Where the mounts cannot be read.
    pub fn elsewhere(&self, os: &Os, staging: Option<&Path>, target: &Path) -> Result<Option<&Path>> {
        let staged = staging.and_then(|staging| self.at(staging).next());
        let whole = |mount: &&MountEntry| match staged {
            Some(staged) => (mount.dev, &mount.root) == (staged.dev, &staged.root),
            None => self.mounts.contains(mount),
        };
        let other = |mount: &&MountEntry| {
            mount.target != target
                && staging.is_none_or(|staging| mount.target != staging)
                && !is_kubelet_block_map(&mount.target)
        };
        let others: Vec<&MountEntry> = self.all().filter(whole).filter(other).collect();
        if others.is_empty() {
            return Ok(None);
        }
        let table = os.mounts.list().doing(|| "look for mounts".to_owned())?;
        let is_ours = |mount: &&MountEntry| mount.target == target || staging == Some(mount.target.as_path());
        let is_copy =
            |other: &MountEntry| self.all().filter(is_ours).any(|ours| goes_with(&table, ours, other));
        Ok(others.into_iter().find(|other| !is_copy(other)).map(|mount| mount.target.as_path()))
    }

    /// Returns whether the mounts at a path are the last of the volume: all others are copies that the kernel unmounts with
    /// them.
    ///
    /// # Errors
    /// If the mounts cannot be read.
    pub fn are_last_at(&self, os: &Os, path: &Path) -> Result<bool> {
        let (here, others): (Vec<&MountEntry>, Vec<&MountEntry>) =
            self.all().partition(|mount| mount.target == path);
        if others.is_empty() {
            return Ok(true);
        }
        let table = os.mounts.list().doing(|| "look for mounts".to_owned())?;
        Ok(others.iter().all(|other| here.iter().any(|ours| goes_with(&table, ours, other))))
    }

    /// Makes sure that what uses the volume is what lies in its pool, so that more can be built on it.
    ///
    /// # Errors
    /// FAILED_PRECONDITION.
    pub fn sound(&self, place: Place<'_>) -> Result<()> {
        let refuse = |why: &String| {
            let (id, uses) = (&place.volume.id, self.describe());
            Error::InUse(format!("volume {id} is {uses}, but {why}: stop its pods, so that it is unstaged"))
        };
        self.astray.as_ref().map_or(Ok(()), |why| Err(refuse(why)))
    }

    /// A line for people: who uses it.
    pub fn describe(&self) -> String {
        let mounts = self.all().map(|m| format!("mounted at {}", m.target.display()));
        let loops = self.loops.iter().map(|l| format!("attached as {}", l.path().display()));
        let suspected = self.suspected.iter().map(|l| {
            format!("perhaps attached as {} (see losetup, and detach it if it is)", l.path().display())
        });
        mounts.chain(loops).chain(suspected).collect::<Vec<_>>().join(", ")
    }
}

/// Whether the path is one at which kubelet binds the device of a block volume for itself,
/// `…/volumeDevices/<pv>/dev/<pod uid>`, below the path that NodePublishVolume was given: it is not a second publish.
fn is_kubelet_block_map(path: &Path) -> bool {
    let name = |levels: usize| path.ancestors().nth(levels).and_then(Path::file_name);
    name(1).is_some_and(|n| n == "dev") && name(3).is_some_and(|n| n == "volumeDevices")
}

/// NOT_FOUND for a volume that is not at a path.
pub(crate) fn not_at(volume: &Volume, path: &Path) -> Error {
    Error::NotFound(format!("volume {} is not at {}", volume.id, path.display()))
}

/// FAILED_PRECONDITION for a mount at `path` that another one hides, which is named.
pub fn hidden(os: &Os, path: &Path) -> Error {
    let on_the_way = path.ancestors().find_map(|path| Some((path, os.mounts.mount_at(path).ok()?)));
    let mounts = os.mounts.list().unwrap_or_default();
    let other = on_the_way.and_then(|(_, id)| mounts.iter().find(|mount| mount.id == id));
    let other = other.map_or_else(String::new, |other| {
        format!(" ({} from {} at {})", other.fs_type, other.source, other.target.display())
    });
    let path = path.display();
    Error::InUse(format!("another mount hides the volume's at {path}{other}: unmount that first"))
}

/// What the name of a file says of whose it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evidence {
    /// It is not in a directory with the name of the volume's, or is found where that of another driver is.
    Foreign,
    /// It was in a directory with the name of the volume's, of which nobody can say where it is.
    Suspected,
    /// It is, or was, in the directory of the volume.
    Proven,
}

/// Whose a file is that the kernel shows at this path, or did before it was removed; it is not the volume's image as
/// it lies there now.
///
/// Where the path is that of the volume's directory, the file was in it, unless it still is in another one with the same
/// path: that of another mount namespace. Any other path ends with the name of the directory at least. Where a directory
/// is found there, it is that of another driver, which has a volume of the same name. Where none is found, the mount is
/// in no namespace any more, as after `umount -l` of the pool, and the path begins at its root, so that the end of the
/// volume's path is the same; or it is in another namespace, and the two have nothing else in common.
pub(super) fn evidence(place: Place<'_>, shown: &Path) -> Result<Evidence> {
    let (Some(directory), own) = (shown.parent(), &place.paths.directory) else {
        return Ok(Evidence::Foreign);
    };
    // What a growth that was cut off has left was never mounted, and is looked at by itself (`remove_growing`).
    let growing = growing_image(place.paths);
    let is_growing = shown
        .file_name()
        .zip(growing.file_name())
        .is_some_and(|(shown, growing)| shown.as_encoded_bytes().starts_with(growing.as_encoded_bytes()));
    if is_growing || !directory.ends_with(last_two(own)) {
        return Ok(Evidence::Foreign);
    }
    let files = &place.os.files;
    if directory == own {
        // Neither gone nor the image: of the same name, and elsewhere.
        let seen = files.stat(shown).is_ok_and(|stat| stat.is_some());
        return Ok(if seen { Evidence::Suspected } else { Evidence::Proven });
    }
    match files.stat(directory) {
        Ok(Some(there)) => {
            let own = files.stat(own).ok().flatten();
            let same = own.is_some_and(|own| own.id == there.id);
            Ok(if same { Evidence::Proven } else { Evidence::Foreign })
        }
        // It does not answer, but is at another place.
        Err(_) => Ok(Evidence::Foreign),
        Ok(None) => Ok(match directory.strip_prefix("/").is_ok_and(|end| own.ends_with(end)) {
            true => Evidence::Proven,
            false => Evidence::Suspected,
        }),
    }
}

/// `volumes/<id>`, the part of a path that belongs to nobody else.
pub(super) fn last_two(directory: &Path) -> PathBuf {
    let names: Vec<_> = directory.components().rev().take(2).collect();
    names.into_iter().rev().collect()
}

/// The suffix of the root of a bind in mountinfo whose directory was removed (fs/d_path.c, dentry_path).
const DELETED: &str = "//deleted";

/// Whose a directory is that is bound somewhere: the volume's, a part of the volume's, or another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bound {
    Whole,
    Part,
    Other,
}

/// Whether a mount shows a directory that has the name of the volume's or lies in one: where its filesystem is mounted
/// decides whose it is ([`bound`]).
pub(super) fn may_be_bound<'a>(paths: &'a VolumePaths) -> impl Fn(&MountEntry) -> bool + 'a {
    // Every mount of the node is asked, which by the names of paths takes longer than the rest of a call.
    let name = Finder::new(paths.directory.file_name().map_or(&[][..], OsStr::as_encoded_bytes));
    move |mount| {
        name.find(mount.root.as_os_str().as_encoded_bytes()).is_some() && shown_of(mount, paths).is_some()
    }
}

/// Whether a mount is inside of the volume's data, where someone made it.
pub(super) fn is_inside(paths: &VolumePaths) -> impl Fn(&MountEntry) -> bool {
    let data = paths.data();
    move |mount| {
        let [target, data_bytes] = [&mount.target, &data].map(|path| path.as_os_str().as_encoded_bytes());
        target.starts_with(data_bytes) && mount.target.starts_with(&data)
    }
}

/// The root of a mount, cut behind the first place where it has the name of the volume's data.
fn shown_of(mount: &MountEntry, paths: &VolumePaths) -> Option<(PathBuf, PathBuf)> {
    let root = mount.root.to_str().and_then(|root| root.strip_suffix(DELETED)).map(Path::new);
    split_after(root.unwrap_or(&mount.root), &own_name(paths))
}

/// The part of the path of a volume's data that belongs to nobody else.
fn own_name(paths: &VolumePaths) -> PathBuf {
    last_two(&paths.directory).join(paths.data().file_name().unwrap_or_default())
}

/// The mounts through which ways may lead to the directories that these show.
///
/// # Errors
/// Where the mounts cannot be read.
pub(super) fn ways_to(os: &Os, mounts: &[MountEntry], paths: &VolumePaths) -> Result<Vec<MountEntry>> {
    let shown = |mount: &MountEntry| Some((mount.dev, shown_of(mount, paths)?.0));
    let shown: Vec<(u64, PathBuf)> = mounts.iter().filter_map(shown).collect();
    mounts_where(os, |other| shown.iter().any(|(dev, whole)| below(other, *dev, whole).is_some()))
}

/// A directory of the filesystem `dev` as the path below the root of `other`; `None` where it is not there, or is all of
/// it.
fn below<'a>(other: &MountEntry, dev: u64, whole: &'a Path) -> Option<&'a Path> {
    let [root, path] = [other.root.as_path(), whole].map(|path| path.as_os_str().as_encoded_bytes());
    if other.dev != dev || !root.starts_with(b"/") || !path.starts_with(root) {
        return None;
    }
    whole.strip_prefix(&other.root).ok().filter(|below| !below.as_os_str().is_empty())
}

/// Whose directory a mount shows, among the [ways to it](ways_to). It is the volume's if one of the mounts of its filesystem, hidden or
/// not, leads to the place of the volume's data. Where none leads to it, the filesystem is mounted nowhere any more but
/// for such binds, as after `umount -l` of the pool: then the name counts.
pub(super) fn bound(mount: &MountEntry, mounts: &[MountEntry], paths: &VolumePaths) -> Bound {
    let data = paths.data();
    let Some((whole, part)) = shown_of(mount, paths) else { return Bound::Other };
    let found = if part.as_os_str().is_empty() { Bound::Whole } else { Bound::Part };
    let leads = mounts.iter().filter_map(|other| Some(other.target.join(below(other, mount.dev, &whole)?)));
    let places: Vec<PathBuf> = leads.collect();
    let ours = match places.is_empty() {
        true => {
            whole.strip_prefix("/").is_ok_and(|end| data.ends_with(end)) || data.ends_with(own_name(paths))
        }
        false => places.contains(&data),
    };
    if ours { found } else { Bound::Other }
}

/// A path cut after the first place where it has these names, one after the other.
fn split_after(path: &Path, names: &Path) -> Option<(PathBuf, PathBuf)> {
    let whole = path.ancestors().filter(|path| path.ends_with(names)).last()?;
    Some((whole.to_owned(), path.strip_prefix(whole).ok()?.to_owned()))
}

/// The mounts of this machine for which this is true.
pub(super) fn mounts_where(os: &Os, wanted: impl Fn(&MountEntry) -> bool) -> Result<Vec<MountEntry>> {
    os.mounts.matching(&wanted).doing(|| "look for mounts".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::VolumeId;

    #[test]
    fn kubelets_own_binds_are_no_publish() {
        let map = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pv/dev/pod";
        let publish = "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pv/pod";
        assert!(is_kubelet_block_map(Path::new(map)));
        assert!(!is_kubelet_block_map(Path::new(publish)));
    }

    #[test]
    fn the_mount_that_hides_another_one_is_named() {
        let kernel = hostloop_fake_kernel::FakeKernel::new();
        let os = kernel.spawn();
        for path in ["/x", "/y/below", "/z"] {
            kernel.create_directories(path);
        }
        for (source, target) in [("/x", "/z"), ("/x", "/y")] {
            let flags = crate::model::MountFlags::default();
            os.mounts.bind(Path::new(source), Path::new(target), &flags).unwrap();
        }
        let message = hidden(&os, Path::new("/y/below")).to_string();
        assert!(message.contains(" at /y)") && message.contains("unmount that first"), "{message}");
    }

    fn mount(dev: u64, root: &str, target: &str) -> MountEntry {
        MountEntry {
            id: 0,
            parent: 0,
            dev,
            root: root.into(),
            target: target.into(),
            fs_type: "ext4".to_owned(),
            source: "/dev/vda".to_owned(),
            read_only: false,
            flags: Vec::new(),
            superblock_read_only: false,
            propagation: crate::kernel::Propagation::default(),
        }
    }

    #[test]
    fn whose_directory_a_bind_shows() {
        let id: VolumeId = "vol-0123456789ab-00000000-0000-5000-8000-000000000000".parse().expect("an id");
        let paths = VolumePaths::new(Path::new("/srv/pool"), &id, crate::model::BackendKind::Directory);
        let pool = mount(2, "/", "/srv");
        let hidden = [mount(1, "/", "/"), pool.clone(), mount(9, "/", "/srv")];
        let detached = [mount(1, "/", "/")];
        let elsewhere = [mount(1, "/", "/"), mount(2, "/", "/mnt/of-others")];
        let cases = [
            ("/pool/volumes/ID/data", [Bound::Whole, Bound::Whole, Bound::Other]),
            ("/pool/volumes/ID/data//deleted", [Bound::Whole, Bound::Whole, Bound::Other]),
            ("/pool/volumes/ID/data/a/b", [Bound::Part, Bound::Part, Bound::Other]),
            ("/pool/volumes/ID", [Bound::Other, Bound::Other, Bound::Other]),
            ("/pool/volumes/IDx/data", [Bound::Other, Bound::Other, Bound::Other]),
            ("/other/volumes/ID/data", [Bound::Other, Bound::Whole, Bound::Other]),
        ];
        for (root, expected) in cases {
            let bind = mount(2, &root.replace("ID", id.as_str()), "/kubelet/target");
            let tables = [&hidden[..], &detached[..], &elsewhere[..]];
            for (table, expected) in tables.into_iter().zip(expected) {
                let table: Vec<MountEntry> = table.iter().chain([&bind]).cloned().collect();
                assert_eq!(bound(&bind, &table, &paths), expected, "{root} {table:?}");
            }
        }
    }
}
