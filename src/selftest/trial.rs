//! A volume, and the paths at which a pod would have it. After each call comes a look at the machine.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};

use tonic::Status;

use super::data::{Data, length};
use super::life::{Done, Failure, World};
use super::requests::{self, MadeFrom};
use super::volume::Volume;
use crate::config::Check;
use crate::kernel::{holder, is_full};
use crate::model::{format_bytes, format_two};

/// What is written, where the volume is not too small for it.
const WRITTEN: u64 = 16 << 20;

/// A volume that the selftest takes through its life, with its paths.
pub(super) struct Trial {
    world: World,
    check: Check,
    /// Its own directory in the workspace; kubelet makes the parents of the paths.
    directory: PathBuf,
    /// Where the pod has it.
    pub(super) target: PathBuf,
    volume: Option<Volume>,
    /// Tells what it holds, see [`Data`].
    pub(super) seed: u64,
}

impl Trial {
    /// One without a volume.
    pub(super) fn new(world: &World, check: Check, name: &str, seed: u64) -> Self {
        let directory = world.dir.join(name);
        let target = directory.join("pod");
        Trial { world: world.clone(), check, directory, target, volume: None, seed }
    }

    /// Makes the directory of the paths.
    pub(super) fn prepare(&self) -> Done {
        Ok(self.world.os.files.create_directory(&self.directory, 0o700)?)
    }

    /// The volume that was put here.
    pub(super) fn volume(&self) -> Result<&Volume, Failure> {
        self.volume.as_ref().ok_or_else(|| Failure::wrong("there is no volume"))
    }

    /// CreateVolume of a volume of at least so many bytes, which comes here; with an origin a copy of that. Without `freeze`
    /// the driver is told that nobody writes to the origin.
    pub(super) async fn create(&mut self, name: &str, wanted: u64, copy: Option<(MadeFrom, bool)>) -> Done {
        let mut request = requests::create_kind(name, wanted, self.check);
        if let Some((origin, freeze)) = copy {
            request.parameters.extend(freezing(freeze));
            request = origin.source_of(request);
        }
        let made = self.world.client.call(request).await?.volume;
        let made = made.ok_or_else(|| Status::internal("the answer has no volume"))?;
        let volume = Volume::new(made, requests::writer(self.check), self.directory.join("staging"));
        let (files, bytes) = (self.files(&volume), volume.bytes());
        self.volume = Some(volume);
        if self.check != Check::Directory && bytes < wanted {
            let [bytes, wanted] = format_two(bytes, wanted);
            return Err(Failure::wrong(format_args!("the volume has only {bytes} of {wanted}")));
        }
        self.world.there(&files)
    }

    /// ControllerExpandVolume, and NodeExpandVolume where the answer asks for it. Returns the new size.
    pub(super) async fn expand(&mut self, wanted: u64) -> Result<u64, Failure> {
        let (client, volume) = (&self.world.client, self.volume()?);
        let answer = client.call(volume.expand_request(wanted)).await?;
        if answer.node_expansion_required {
            client.call(volume.node_expand_request(&self.target, Some(wanted))).await?;
        }
        let Some(volume) = &mut self.volume else { return Ok(0) };
        volume.info.capacity_bytes = answer.capacity_bytes;
        Ok(volume.bytes())
    }

    /// Where the driver keeps it.
    fn files(&self, volume: &Volume) -> PathBuf {
        self.world.dir.join("data/volumes").join(&volume.id)
    }

    /// NodeStageVolume.
    pub(super) async fn stage(&self) -> Done {
        // kubelet makes the staging directory before the call, and removes it after NodeUnstageVolume.
        let volume = self.volume()?;
        self.world.os.files.create_directory(&volume.staging, 0o750)?;
        self.world.client.call(volume.stage_request()).await?;
        match self.check == Check::Block || self.world.workspace.is_mounted(&volume.staging)? {
            true => Ok(()),
            false => Err(Failure::wrong("nothing is mounted at the staging path")),
        }
    }

    /// NodePublishVolume.
    pub(super) async fn publish(&self) -> Done {
        self.world.client.call(self.volume()?.publish_request(&self.target)).await?;
        match self.world.workspace.is_mounted(&self.target)? {
            true => Ok(()),
            false => Err(Failure::wrong("nothing is mounted at the target path")),
        }
    }

    /// Bytes that are written: at most an eighth of the volume.
    pub(super) fn written(&self) -> u64 {
        WRITTEN.min(self.world.size / 8 / 4096 * 4096)
    }

    /// Works on the volume's data as a pod does.
    pub(super) async fn with_data(&self, work: fn(&Data) -> io::Result<()>) -> Done {
        let device = self.check == Check::Block;
        let path = if device { self.target.clone() } else { self.target.join("data") };
        let data = Data { path, device, seed: self.seed, len: self.written() };
        match tokio::task::spawn_blocking(move || work(&data)).await {
            Ok(result) => Ok(result?),
            Err(_) => Err(Failure::wrong("the selftest met a bug")),
        }
    }

    /// The size that a pod sees.
    pub(super) fn size(&self) -> io::Result<u64> {
        match self.check {
            Check::Block => length(&self.target),
            _ => self.world.os.files.space(&self.target).map(|space| space.total),
        }
    }

    /// A pod cannot take more of the disk than the volume has, where the filesystem limits it.
    pub(super) fn limit(&self) -> Done {
        let os = &self.world.os;
        let mounts = os.mounts.list()?;
        // Limits of ext4 do not hold whoever has CAP_SYS_RESOURCE, as this process (fs/quota/dquot.c).
        let is_ext4 = holder(&mounts, &self.target).is_some_and(|mount| mount.fs_type == "ext4");
        if self.check != Check::DirectoryEnforced || is_ext4 {
            return Ok(());
        }
        let (file, bytes) = (self.target.join("too much"), self.volume()?.bytes());
        os.files.create_file(&file)?;
        let allocated = os.images.allocate(&file, bytes);
        os.files.remove_file(&file)?;
        match allocated {
            Err(error) if is_full(&error) => Ok(()),
            Err(error) => Err(error.into()),
            Ok(()) => {
                let bytes = format_bytes(bytes);
                Err(Failure::wrong(format_args!(
                    "a file of {bytes} fits beside the data: no limit is enforced"
                )))
            }
        }
    }

    /// NodeUnpublishVolume.
    pub(super) async fn unpublish(&self) -> Done {
        self.world.client.call(self.volume()?.unpublish_request(&self.target)).await?;
        self.world.gone(&self.target)
    }

    /// NodeUnstageVolume.
    pub(super) async fn unstage(&self) -> Done {
        let volume = self.volume()?;
        self.world.client.call(volume.unstage_request()).await?;
        if self.world.workspace.is_mounted(&volume.staging)? {
            return Err(Failure::wrong("the staging path is still mounted"));
        }
        Ok(self.world.os.files.remove_directory(&volume.staging)?)
    }

    /// DeleteVolume.
    pub(super) async fn delete(&mut self) -> Done {
        let volume = self.volume()?;
        let files = self.files(volume);
        self.world.client.call(volume.delete_request()).await?;
        self.world.gone(&files)?;
        match self.world.workspace.attached(&files).join(", ") {
            names if names.is_empty() => {
                self.volume = None;
                Ok(())
            }
            names => Err(Failure::wrong(format_args!("{names} is still attached"))),
        }
    }

    /// After a failure: backwards, as far as the driver goes along. What it leaves is swept up at the end.
    pub(super) async fn undo(&self) {
        let (client, Some(volume)) = (&self.world.client, &self.volume) else { return };
        let _ = client.call(volume.unpublish_request(&self.target)).await;
        let _ = client.call(volume.unstage_request()).await;
        let _ = client.call(volume.delete_request()).await;
    }
}

/// Parameters of a request that copies. The default is left out, as in most classes.
pub(super) fn freezing(freeze: bool) -> HashMap<String, String> {
    requests::parameters(if freeze { &[] } else { &[("freeze", "false")] })
}

impl World {
    /// Something has to be there.
    pub(super) fn there(&self, path: &Path) -> Done {
        match self.os.files.stat(path)? {
            Some(_) => Ok(()),
            None => Err(Failure::wrong(format_args!("{} is missing", path.display()))),
        }
    }

    /// Nothing may be there.
    pub(super) fn gone(&self, path: &Path) -> Done {
        match self.os.files.stat(path)? {
            None => Ok(()),
            Some(_) => Err(Failure::wrong(format_args!("{} is still there", path.display()))),
        }
    }
}
