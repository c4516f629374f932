//! A file outside the data directory that remembers it, and exists even if the directory's disk is not mounted. Without
//! it, a start would find an empty directory in place of the state, and every volume would look deleted.
//!
//! The data directory has a file with a random id, and the *anchor* is its twin outside. The order is state, id, anchor:
//! the next start completes whatever a crash leaves of these. An anchor without its state, or with another id, stops the
//! start before anything is written.

use std::io;
use std::path::{Path, PathBuf};

use super::StartError;
use crate::inventory::INSTALLATION;
use crate::kernel::{FileKind, MountEntry, Os, holder, is_full, write_whole};
use crate::model::Settings;
use crate::server::Endpoint;
use crate::store::Store;

/// How the name of an anchor ends.
const ENDING: &str = ".hostloop-anchor";
/// More is not ours.
const MAX_BYTES: u64 = 4096;
/// Filesystems that are empty after a reboot.
const FORGETFUL: [&str; 3] = ["tmpfs", "ramfs", "rootfs"];

/// An anchor that was found.
struct Anchor {
    file: PathBuf,
    node: String,
    data_dir: String,
    installation: String,
}

/// Where anchors are.
pub(super) struct Anchors<'a> {
    os: &'a Os,
    settings: &'a Settings,
    /// The directory of the socket, if that is a file.
    socket_dir: Option<&'a Path>,
}

impl<'a> Anchors<'a> {
    pub(super) fn new(os: &'a Os, settings: &'a Settings, endpoint: &'a Endpoint) -> Self {
        let socket_dir = match endpoint {
            Endpoint::Unix(path) => path.parent(),
            Endpoint::Tcp(_) => None,
        };
        Anchors { os, settings, socket_dir }
    }

    /// Makes sure that the data directory holds what it held. Changes nothing.
    ///
    /// # Errors
    /// Where it does not, or where that cannot be known.
    pub(super) fn check(&self) -> Result<(), StartError> {
        self.check_place()?;
        let (state, installation) = (self.has_state()?, self.installation()?);
        let found = self.found()?;
        let data_dir = self.settings.data_dir.display().to_string();
        let here = || found.iter().filter(|anchor| anchor.data_dir == data_dir);
        if !state {
            let mut known: Vec<PathBuf> = here().map(|anchor| anchor.file.clone()).collect();
            known.extend(installation.is_some().then(|| self.identity()));
            if !known.is_empty() {
                return Err(self.gone(&known));
            }
        }
        for anchor in here() {
            match &installation {
                Some(id) if *id == anchor.installation => {}
                _ => return Err(self.exchanged(&anchor.file)),
            }
        }
        if state {
            return Ok(());
        }
        let elsewhere = found.iter().find(|anchor| anchor.node == self.settings.node_id);
        elsewhere.map_or(Ok(()), |anchor| Err(self.moved(anchor)))
    }

    /// Makes sure that what is in the data directory is remembered. What there is no room for, or no right to, is
    /// said, and the next start tries it again.
    ///
    /// # Errors
    /// Where the data directory cannot be read or written to, unless it is full.
    pub(super) fn cast(&self) -> Result<(), StartError> {
        if !self.has_state()? {
            return Ok(());
        }
        let Some(place) = self.place()? else { return Ok(()) };
        let installation = match self.installation()? {
            Some(id) => id,
            None => match self.write_identity() {
                Ok(id) => id,
                Err(error) if is_full(&error) => {
                    warn(&self.identity(), &error);
                    return Ok(());
                }
                Err(error) => return Err(self.unusable(error)),
            },
        };
        let file = place.join(self.name());
        if self.read(&file).is_ok_and(|found| found.is_some()) {
            return Ok(()); // it was compared before anything was done
        }
        let Settings { driver_name, node_id, data_dir, .. } = self.settings;
        let data_dir = data_dir.display();
        let text = format!(
            "driver={driver_name}\nnode={node_id}\ndata-dir={data_dir}\ninstallation={installation}\n\
             # Written by hostloop: the data directory above was in use. Remove this file only if you give that directory up.\n"
        );
        match write_whole(self.os.files.as_ref(), &file, text.as_bytes()) {
            Ok(()) => tracing::info!(anchor = %file.display(), "the data directory is remembered"),
            Err(error) => warn(&file, &error),
        }
        Ok(())
    }

    fn write_identity(&self) -> io::Result<String> {
        let files = self.os.files.as_ref();
        let id = files.random_id()?;
        let (driver, node) = (&self.settings.driver_name, &self.settings.node_id);
        let text = format!("driver={driver}\nnode={node}\ninstallation={id}\n");
        write_whole(files, &self.identity(), text.as_bytes())?;
        Ok(id)
    }

    fn identity(&self) -> PathBuf {
        self.settings.data_dir.join(INSTALLATION)
    }

    /// The name of the anchor: of the driver and the data directory, of both of which a machine may have several.
    fn name(&self) -> String {
        let mut hash = crc32fast::Hasher::new();
        hash.update(self.settings.data_dir.as_os_str().as_encoded_bytes());
        format!("{}-{:08x}{ENDING}", self.settings.driver_name, hash.finalize())
    }

    fn has_state(&self) -> Result<bool, StartError> {
        let state = Store::file(&self.settings.data_dir);
        self.os.files.stat(&state).map(|found| found.is_some()).map_err(|error| self.unusable(error))
    }

    fn installation(&self) -> Result<Option<String>, StartError> {
        let text = self.read(&self.identity()).map_err(|error| self.unusable(error))?;
        Ok(text.map(|text| value(&text, "installation=")))
    }

    /// A small file; one that cannot be ours reads as nothing.
    fn read(&self, file: &Path) -> io::Result<Option<String>> {
        let Some(stat) = self.os.files.stat(file)? else { return Ok(None) };
        let readable = stat.kind == FileKind::File && stat.size <= MAX_BYTES;
        let bytes = if readable { self.os.files.read(file)? } else { Vec::new() };
        Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// `--anchor-dir` is a directory.
    fn check_place(&self) -> Result<(), StartError> {
        match &self.settings.anchor_dir {
            Some(dir) if !self.is_directory(dir)? => {
                Err(StartError::NoDirectory { what: "--anchor-dir".to_owned(), path: dir.clone() })
            }
            _ => Ok(()),
        }
    }

    /// Every anchor of this driver: by name of this data directory, and beside the socket those of others too.
    fn found(&self) -> Result<Vec<Anchor>, StartError> {
        let mut found = Vec::new();
        let mut add = |file: PathBuf| -> Result<(), StartError> {
            if let Some(text) = self.read(&file).map_err(unreadable(&file))? {
                let of = |key| value(&text, key);
                let (node, data_dir, installation) = (of("node="), of("data-dir="), of("installation="));
                found.push(Anchor { file, node, data_dir, installation });
            }
            Ok(())
        };
        let own = match &self.settings.anchor_dir {
            Some(dir) => Some(dir.as_path()),
            None => self.socket_dir,
        };
        if let Some(dir) = own
            && self.is_directory(dir)?
        {
            let prefix = format!("{}-", self.settings.driver_name);
            let names = self.os.files.list(dir).map_err(unreadable(dir))?;
            let ours = |name: &&String| name.starts_with(&prefix) && name.ends_with(ENDING);
            names.iter().filter(ours).try_for_each(|name| add(dir.join(name)))?;
        }
        if self.settings.anchor_dir.is_none() {
            let above = self.settings.data_dir.ancestors().skip(1);
            above.filter(|dir| Some(*dir) != own).try_for_each(|dir| add(dir.join(self.name())))?;
        }
        Ok(found)
    }

    /// Where the anchor is to lie: in `--anchor-dir`; else beside the socket where that is still there after a reboot
    /// and not on the disk that could be missing; else beside the mount point of that disk. `None` where the data
    /// directory itself does not outlive a reboot.
    fn place(&self) -> Result<Option<PathBuf>, StartError> {
        if let Some(dir) = &self.settings.anchor_dir {
            return Ok(Some(dir.clone()));
        }
        let data_dir = &self.settings.data_dir;
        let mounts = self.os.mounts.list().map_err(unreadable(Path::new("/proc/self/mountinfo")))?;
        let resolve = |path: &Path| self.os.files.canonicalize(path);
        let data = resolve(data_dir).map_err(|error| self.unusable(error))?;
        let disk = holder(&mounts, &data);
        let lasts = |mount: Option<&MountEntry>| {
            mount.is_some_and(|mount| !FORGETFUL.contains(&mount.fs_type.as_str()))
        };
        if !lasts(disk) {
            return Ok(None);
        }
        let mount_point = disk.map(|mount| mount.target.as_path()).filter(|target| *target != Path::new("/"));
        if let Some(dir) = self.socket_dir
            && self.is_directory(dir)?
        {
            let real = resolve(dir).map_err(unreadable(dir))?;
            let there = holder(&mounts, &real);
            let elsewhere = mount_point.is_none() || there.map(|mount| mount.target.as_path()) != mount_point;
            if lasts(there) && elsewhere {
                return Ok(Some(dir.to_owned()));
            }
        }
        // By the name that the administrator gives: without the disk, links may lead nowhere.
        let is_below = |dir: &&Path| {
            mount_point.is_some_and(|disk| resolve(dir).is_ok_and(|real| real.starts_with(disk)))
        };
        let outside = data_dir.ancestors().skip(1).find(|dir| !is_below(dir));
        Ok(outside.map(Path::to_owned))
    }

    fn is_directory(&self, path: &Path) -> Result<bool, StartError> {
        super::checks::directory(self.os, path).map(|found| found.is_some()).map_err(unreadable(path))
    }

    fn unusable(&self, source: io::Error) -> StartError {
        StartError::DataDir { path: self.settings.data_dir.clone(), source }
    }

    fn gone(&self, known: &[PathBuf]) -> StartError {
        let state = Store::file(&self.settings.data_dir);
        let known: Vec<String> = known.iter().map(|file| file.display().to_string()).collect();
        self.lost(format!(
            "the state of this node's volumes was in {} and is not there: is its disk mounted? If only this file is lost, run: hostloop state \
             rebuild --node-id {} --data-dir {}, with the --pool of this driver. To give up all of its volumes, remove {}",
            state.display(),
            self.settings.node_id,
            self.settings.data_dir.display(),
            known.join(" and ")
        ))
    }

    fn exchanged(&self, anchor: &Path) -> StartError {
        self.lost(format!(
            "it belongs to another installation than the one that {} remembers: were disks exchanged, or was a \
             backup restored without {INSTALLATION}? If what is there now is right, remove {}",
            anchor.display(),
            anchor.display()
        ))
    }

    fn moved(&self, anchor: &Anchor) -> StartError {
        self.lost(format!(
            "it is empty, and the volumes of this node were in {}: correct the flag, or move that directory here with everything in it. To give up all of its volumes, remove {}",
            anchor.data_dir,
            anchor.file.display()
        ))
    }

    fn lost(&self, problem: String) -> StartError {
        StartError::LostDataDir { path: self.settings.data_dir.clone(), problem }
    }
}

fn warn(file: &Path, error: &io::Error) {
    tracing::warn!(
        file = %file.display(), %error,
        "the data directory is not remembered: a later start would not notice that its disk is missing; free some space or set another --anchor-dir, and start again"
    );
}

fn unreadable(path: &Path) -> impl FnOnce(io::Error) -> StartError + use<> {
    let path = path.to_owned();
    move |source| StartError::Look { what: "the anchor of --data-dir".to_owned(), path, source }
}

/// The rest of the line that begins with `key`.
fn value(text: &str, key: &str) -> String {
    text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default().to_owned()
}
