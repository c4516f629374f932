//! A node that sends what a script says, and one that pulls from it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hostloop::app;
use hostloop::driver::{Broken, Driver, RemoteSource, RemoteSources, Take};
use hostloop::error::{Error, Result};
use hostloop::model::pull::{Blocks, Changes, OpenSource, Placed, SourceDescription, SourceHandle, Way};
use hostloop::model::request::{CreateVolume, Source};
use hostloop::model::tree::{Item, Position};
use hostloop::model::{
    AccessMode, AccessType, BackendKind, Capability, Consistency, Content, Limits, MountFlags, NodeKey,
    Permit, Settings, SnapshotId, Timestamp, VolumeId, VolumeParameters,
};
use hostloop_fake_kernel::FakeKernel;

use super::nodes::{SOURCE, TARGET};
use crate::harness::{DATA_DIR, DIRECTORIES, DIRECTORIES_DIR, LIMITED, machine, settings, with_limits};

/// The size of the image.
pub(super) const SIZE: u64 = 1 << 20;
/// How long a break is tried again.
const PATIENCE: Duration = Duration::from_millis(500);

pub(super) type Block = Placed<u64, Blocks>;
pub(super) type Part = Placed<Position, Item>;

/// What one stream of the node has; the last one is repeated.
#[derive(Clone)]
pub(super) enum Script {
    Blocks(Vec<Block>),
    Tree(Vec<Part>),
    Changes(Vec<Placed<u64, Changes>>),
}

/// A node that sends what its script says, whatever it is asked for.
pub(super) struct Scripted {
    description: SourceDescription,
    scripts: Mutex<VecDeque<Script>>,
    pub(super) streams: AtomicUsize,
    pub(super) closed: AtomicUsize,
    pub(super) ended: AtomicUsize,
    /// What is done behind each message that was taken.
    pub(super) behind: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Scripted {
    fn next(&self) -> Script {
        self.streams.fetch_add(1, Ordering::Relaxed);
        let mut scripts = self.scripts.lock().unwrap();
        if scripts.len() > 1 { scripts.pop_front() } else { scripts.front().cloned() }.expect("a script")
    }

    /// Sends messages.
    fn send<M>(&self, messages: Vec<M>, take: &mut dyn FnMut(M) -> Result<(), Broken>) -> Result<(), Broken> {
        messages.into_iter().try_for_each(|message| {
            take(message)?;
            self.behind.get().into_iter().for_each(|behind| behind());
            Ok(())
        })
    }
}

impl RemoteSource for Scripted {
    fn description(&self) -> &SourceDescription {
        &self.description
    }

    fn blocks(&self, _: u64, take: Take<'_, u64, Blocks>) -> Result<(), Broken> {
        let Script::Blocks(messages) = self.next() else { unreachable!("it is an image") };
        self.send(messages, take)
    }

    fn tree(
        &self,
        _: Option<&SourceHandle>,
        _: Position,
        take: Take<'_, Position, Item>,
    ) -> Result<(), Broken> {
        let Script::Tree(messages) = self.next() else { unreachable!("it is a tree") };
        self.send(messages, take)
    }

    fn show(&self, _: &Way) {}

    fn moves(&self) -> u64 {
        0
    }

    fn changes(&self, _: &SourceHandle, _: u64, take: Take<'_, u64, Changes>) -> Result<(), Broken> {
        let Script::Changes(messages) = self.next() else { unreachable!("it is a copy") };
        self.send(messages, take)
    }

    fn end(&self) {
        self.ended.fetch_add(1, Ordering::Relaxed);
    }

    fn close(&self, _: &SnapshotId) {
        self.closed.fetch_add(1, Ordering::Relaxed);
    }
}

/// The only node there is.
struct Only(Arc<Scripted>, Duration);

impl RemoteSources for Only {
    fn open(&self, _: &Way, _: &OpenSource) -> Result<Arc<dyn RemoteSource>> {
        Ok(Arc::clone(&self.0) as Arc<dyn RemoteSource>)
    }

    fn patience(&self) -> Duration {
        PATIENCE
    }

    fn longest_pass(&self, _: u64) -> Duration {
        self.1
    }
}

/// A node that makes a volume from what the other one sends.
pub(super) struct Target {
    pub(super) kernel: FakeKernel,
    pub(super) driver: Arc<Driver>,
    pub(super) source: Arc<Scripted>,
    /// Name and path of the pool for directories.
    directories: (&'static str, &'static str),
}

impl Target {
    pub(super) fn new(scripts: Vec<Script>) -> Target {
        Self::with(scripts, SIZE, Duration::MAX, Limits::default())
    }

    /// Creates a node with these limits, and a source of `size_bytes` whose passes may take `longest_pass`.
    pub(super) fn with(
        scripts: Vec<Script>,
        size_bytes: u64,
        longest_pass: Duration,
        limits: Limits,
    ) -> Target {
        Self::of(scripts, (size_bytes, None), longest_pass, limits)
    }

    /// The same for a source that says that it was requested with this size.
    pub(super) fn of(
        scripts: Vec<Script>,
        (size_bytes, requested_bytes): (u64, Option<u64>),
        longest_pass: Duration,
        limits: Limits,
    ) -> Target {
        let kernel = machine();
        let is_tree = matches!(scripts[0], Script::Tree(_));
        let handle = SourceHandle { id: snapshot(), created: Timestamp::from_nanos(1) };
        let description = SourceDescription {
            handle,
            content: if is_tree { Content::Directory } else { Content::Block },
            size_bytes,
            requested_bytes,
            block_size: 512,
            data_bytes: size_bytes,
            sealed: false,
            generation: 0,
            volume_created: None,
            moving: None,
        };
        let scripts = Mutex::new(scripts.into());
        let [streams, closed, ended] = [0; 3].map(AtomicUsize::new);
        let behind = OnceLock::new();
        let source = Arc::new(Scripted { description, scripts, streams, closed, ended, behind });
        let settings = Settings { node_id: TARGET.to_owned(), ..with_limits(&kernel, settings()) };
        let driver = app::driver(settings, kernel.os()).expect("the state can be used");
        let driver = Arc::new(
            driver.with_limits(limits).with_remote_sources(Arc::new(Only(Arc::clone(&source), longest_pass))),
        );
        assert_eq!(driver.recover().damaged, 0);
        Target { kernel, driver, source, directories: (DIRECTORIES, DIRECTORIES_DIR) }
    }

    /// Makes directories in a pool in which ext4 enforces their size.
    pub(super) fn with_quotas(self) -> Target {
        let (name, path, _) = LIMITED[0];
        Target { directories: (name, path), ..self }
    }

    /// Returns the files of a directory volume.
    pub(super) fn tree(&self, id: &VolumeId) -> Vec<String> {
        self.kernel.tree(format!("{}/volumes/{id}", self.directories.1))
    }

    fn is_tree(&self) -> bool {
        self.source.description.content == Content::Directory
    }

    pub(super) fn request(&self) -> CreateVolume {
        let access = match self.is_tree() {
            true => AccessType::Mount { fs_type: None, flags: MountFlags::default() },
            false => AccessType::Block,
        };
        let parameters = match self.is_tree() {
            true => VolumeParameters {
                backend: BackendKind::Directory,
                pool: self.directories.0.parse().expect("a name"),
                ..VolumeParameters::default()
            },
            false => VolumeParameters::default(),
        };
        CreateVolume {
            name: "pulled".to_owned(),
            size: Default::default(),
            capabilities: vec![Capability { access, mode: AccessMode::SingleNodeWriter }],
            parameters,
            source: Some(Source::Snapshot(snapshot().to_string())),
            consistency: Consistency::default(),
            topology: None,
            way: Some(Way {
                node_key: NodeKey::of(SOURCE),
                address: SOURCE.to_owned(),
                permit: Permit::default(),
            }),
            reservation: None,
            as_copy: false,
            convert: false,
            generation: None,
            claim: None,
        }
    }

    /// Makes the volume: what it holds, with how many streams.
    pub(super) fn made(&self) -> Result<(Vec<u8>, usize)> {
        let id = self.driver.create_volume(self.request())?.id.clone();
        let path = match self.is_tree() {
            true => format!("{}/volumes/{id}/data/file", self.directories.1),
            false => format!("{DATA_DIR}/volumes/{id}/disk.img"),
        };
        let streams = self.source.streams.load(Ordering::Relaxed);
        Ok((self.kernel.read_file(path).expect("its data"), streams))
    }

    /// Why no volume was made, of which nothing is left, and how many streams there were.
    pub(super) fn refused(&self) -> (Error, usize) {
        let error = self.made().expect_err("it is refused");
        for pool in [DATA_DIR, DIRECTORIES_DIR] {
            assert_eq!(self.kernel.tree(format!("{pool}/volumes")), Vec::<String>::new());
        }
        assert!(self.driver.store().volumes().is_empty());
        (error, self.source.streams.load(Ordering::Relaxed))
    }
}

pub(super) fn snapshot() -> SnapshotId {
    SnapshotId::of_name(&NodeKey::of(SOURCE), "s")
}
