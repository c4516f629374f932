//! The backends on the fake kernel, a call at a time: what a whole server comes to only where a call fails midway, or where
//! others have done something to a volume.

mod device;
mod devices_of_pods;
mod directory;
mod filesystem;
mod growth;
mod image;
mod limit;
mod target;

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use super::*;
use crate::error::Error;
use crate::model::{AccessMode, AccessType, Capability, FsType, NodeKey, Phase, VolumeId, VolumeParameters};
use hostloop_fake_kernel::FakeKernel;

const BYTES: u64 = 512 << 20;
const STAGING: &str = "/stage/a";

/// A volume in a pool of the fake machine.
struct Machine {
    kernel: FakeKernel,
    os: Os,
    volume: Volume,
    paths: VolumePaths,
}

fn filesystem(fs_type: FsType, format: Format) -> Content {
    Content::Filesystem { fs_type, format }
}

impl Machine {
    /// With its files, as CreateVolume makes them.
    fn new(content: Content) -> Self {
        let machine = Self::empty(content);
        machine.paths.bytes().create(machine.place(), b"").unwrap();
        machine
    }

    /// Without any file. Those of its pool can share blocks.
    fn empty(content: Content) -> Self {
        let kernel = FakeKernel::new();
        for directory in ["/pool", "/stage", "/pods"] {
            kernel.create_directories(directory);
        }
        kernel.add_disk("/pool", FsType::Btrfs, 100 << 30);
        kernel.create_directories("/pool/volumes");
        let id = VolumeId::of_name(&NodeKey::of("node-a"), "pvc-1");
        let parameters = VolumeParameters { backend: content.backend(), ..VolumeParameters::default() };
        let volume = Volume {
            name: "pvc-1".to_owned(),
            capacity_bytes: BYTES,
            capabilities: vec![Capability { access: AccessType::Block, mode: AccessMode::SingleNodeWriter }],
            block_size: 512,
            ..Volume::new(id, Phase::Ready, content, parameters)
        };
        let paths = VolumePaths::new(Path::new("/pool"), &volume.id, volume.parameters.backend);
        Machine { os: kernel.os(), kernel, volume, paths }
    }

    /// With a filesystem that was staged once.
    fn formatted(fs_type: FsType) -> Self {
        let mut machine = Self::new(filesystem(fs_type, Format::Blank));
        machine.stage().unwrap();
        machine.volume.content = filesystem(fs_type, Format::Formatted);
        machine
    }

    fn place(&self) -> Place<'_> {
        Place { os: &self.os, volume: &self.volume, paths: &self.paths }
    }

    fn presence(&self) -> &'static dyn Presence {
        presence_of(&self.volume.content)
    }

    fn uses(&self) -> Uses {
        self.presence().uses(self.place()).unwrap()
    }

    fn image(&self) -> PathBuf {
        self.paths.data()
    }

    /// Calls `with` with what NodeStageVolume tells, and gives the formats that were recorded meanwhile.
    fn staging(
        &self,
        flags: &MountFlags,
        with: impl FnOnce(&Stage<'_>) -> Result<()>,
    ) -> Result<Vec<Format>> {
        let recorded = RefCell::new(Vec::new());
        let record = |format| {
            recorded.borrow_mut().push(format);
            Ok(())
        };
        let room = |_| -> Result<Box<dyn CopyRoom>> { Ok(Box::new(Room)) };
        let target = resolve(&self.os, Path::new(STAGING))?;
        with(&Stage { target: &target, flags, read_only: false, record: &record, room: &room })?;
        Ok(recorded.into_inner())
    }

    fn stage_with(&self, flags: &MountFlags) -> Result<Vec<Format>> {
        let uses = self.uses();
        self.staging(flags, |stage| self.presence().stage(self.place(), stage, &uses))
    }

    fn stage(&self) -> Result<Vec<Format>> {
        self.stage_with(&MountFlags::default())
    }

    fn finish_stage(&self) -> Result<()> {
        let uses = self.uses();
        let finishing = |stage: &Stage<'_>| self.presence().finish_stage(self.place(), stage, &uses);
        self.staging(&MountFlags::default(), finishing).map(drop)
    }

    fn unstage(&self) -> Result<()> {
        let target = resolve(&self.os, Path::new(STAGING))?;
        self.presence().unstage(self.place(), &target, &self.uses())
    }

    fn publish(&self, at: &str, read_only: bool) -> Result<()> {
        let target = resolve(&self.os, Path::new(at))?;
        let flags = MountFlags::default();
        let publish = Publish { staging: Path::new(STAGING), target: &target, flags: &flags, read_only };
        self.presence().publish(self.place(), &publish, &self.uses())
    }

    /// Binds a directory of the staged filesystem, as kubelet does for a subPath.
    fn bind_part(&self, at: &str) {
        let part = Path::new(STAGING).join("part");
        self.kernel.create_directories(&part);
        self.kernel.create_directories(at);
        self.os.mounts.bind(&part, Path::new(at), &MountFlags::default()).unwrap();
    }

    /// Whether anything is mounted there.
    fn is_mounted(&self, at: &str) -> bool {
        self.kernel.mounts().iter().any(|mount| mount.target == Path::new(at))
    }

    fn size_of_image(&self) -> u64 {
        self.kernel.stat(self.image()).unwrap().size
    }

    /// What `call` answers while each `step` fails with `errno`.
    fn failing<T>(&self, step: &str, errno: nix::errno::Errno, call: impl FnOnce() -> T) -> T {
        self.kernel.fail_every(step, errno);
        let answer = call();
        self.kernel.heal();
        answer
    }
}

/// Room for any copy.
struct Room;

impl CopyRoom for Room {
    fn report(&mut self, _done: u64) {}
}

#[track_caller]
fn assert_in_use<T>(answer: Result<T>, words: &str) {
    match answer.map(drop) {
        Err(Error::InUse(message)) => assert!(message.contains(words), "{message}"),
        other => panic!("not FAILED_PRECONDITION: {other:?}"),
    }
}

#[track_caller]
fn assert_errno<T>(answer: Result<T>, errno: nix::errno::Errno) {
    let error = answer.map(drop).expect_err("it failed");
    assert_eq!(error.errno(), Some(errno), "{error}");
}
