//! A machine's part for one scenario: pools, a driver, and the paths and ids of what calls name.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use hostloop::kernel::linux::{Tools, os};
use hostloop::kernel::{Qgroups, Quota};
use hostloop::model::{GroupSnapshotId, NodeKey, QuotaIds, SnapshotId, VolumeId};
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Status;

use super::model::{Call, Model, Origin, Spec};
use crate::client::parameters as map;
use crate::harness::process::node_of;
use crate::harness::volume::{clone_request, create_request, restore_request};
use crate::harness::{Kind, MIB, Vol, World, eventually, kernel, mount_image, run, text};

/// The pool whose filesystem is the driver's own.
pub const MANAGED: &str = "managed";
/// The volume that is there, staged and written to, all the time.
pub const OTHER: &str = "other";
const INLINE_ID: &str = "csi-0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a";

/// The filesystem below the default pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Disk {
    /// That of the machine; beside it a pool for directories.
    Machine,
    /// One that shares blocks.
    Sharing(&'static str),
    /// A btrfs with simple quotas.
    Limiting,
    /// That of the machine; beside it a pool of the driver's own, of this type.
    Managed(&'static str),
}

impl Disk {
    /// What comes after the name of what is on it.
    pub fn name(self) -> String {
        match self {
            Disk::Machine => String::new(),
            Disk::Sharing(fs_type) => format!(" on {fs_type}"),
            Disk::Limiting => " with an enforced size".to_owned(),
            Disk::Managed(fs_type) => format!(" on managed {fs_type}"),
        }
    }
}

/// The disk and the flags; nothing has been started yet.
pub fn world(disk: Disk) -> World {
    match disk {
        Disk::Sharing(fs_type) => World::empty_on(fs_type, 4096 * MIB, &["--overcommit", "4"]),
        Disk::Limiting => {
            let world = World::empty_on("btrfs", 4096 * MIB, &["--overcommit", "4"]);
            let disk = world.data.parent().expect("the mount point");
            os(Tools::find()).quotas.switch_on(disk, Qgroups::Simple).expect("simple quotas");
            world
        }
        Disk::Machine => {
            let mut world = World::empty(&[]);
            let mount_point = world.dir.join("directories");
            mount_image(&world.dir.join("directories.img"), &mount_point, "ext4", 512 * MIB);
            let flag = format!("directories={},directories=true", text(&mount_point));
            let inline = ["--inline-pools", "default,directories", "--inline-backends", "loop,directory"];
            world.set_flags(&[&["--pool", &flag][..], &inline].concat());
            world
        }
        Disk::Managed(fs_type) => {
            let mut world = World::empty(&[]);
            let image = world.dir.join("managed.img");
            let size = 2048 * MIB;
            let flag = format!("{MANAGED}={},kind=image,size={size},fs={fs_type}", text(&image));
            world.set_flags(&["--pool", &flag]);
            world
        }
    }
}

/// Ends the driver, and takes away what is not a volume. Nothing is left.
pub fn take_down(mut world: World, disk: Disk) {
    match disk {
        Disk::Sharing(_) | Disk::Limiting => return world.finish(),
        Disk::Machine => {
            world.take_driver().stop();
            run("umount", &[text(&world.dir.join("directories"))]);
        }
        Disk::Managed(_) => {
            world.take_driver().stop();
            run("umount", &[text(&world.data.join("pools").join(MANAGED))]);
            eventually("the pool's device goes", || kernel::loops(&world.dir).is_empty());
        }
    }
    world.assert_nothing_left();
}

pub struct Bench {
    pub world: World,
    /// How long something may take that takes milliseconds.
    pub patience: Duration,
    disk: Disk,
    /// By name: the driver's answers.
    volumes: RefCell<BTreeMap<&'static str, csi::Volume>>,
}

impl Bench {
    pub fn new(disk: Disk) -> Bench {
        let mut world = world(disk);
        world.start();
        let bench = Bench { world, patience: Duration::from_secs(20), disk, volumes: RefCell::default() };
        let mut model = Model::default();
        bench.must(&mut model, Call::Create(OTHER, Spec::new(Kind::Ext4), Origin::Nothing));
        bench.must(&mut model, Call::Stage(OTHER));
        bench
    }

    /// What is there from the beginning.
    pub fn model() -> Model {
        let mut model = Model::default();
        model.apply(Call::Create(OTHER, Spec::new(Kind::Ext4), Origin::Nothing));
        model.apply(Call::Stage(OTHER));
        model
    }

    /// Asserts that nothing is left, and ends the driver.
    pub fn finish(self) {
        let mut model = Bench::model();
        self.surely(&mut model, Call::Unstage(OTHER)).expect("NodeUnstageVolume");
        self.surely(&mut model, Call::Delete(OTHER)).expect("DeleteVolume");
        take_down(self.world, self.disk);
    }

    /// Makes a call that has to succeed.
    #[track_caller]
    pub fn must(&self, model: &mut Model, call: Call) {
        self.run(model, call).unwrap_or_else(|status| panic!("{call:?}: {status:?}"));
        model.apply(call);
    }

    /// Makes a call that takes something away, again and again as callers do: whoever makes a mount namespace meanwhile has
    /// a copy of each mount for a moment.
    pub fn surely(&self, model: &mut Model, call: Call) -> Result<(), Status> {
        let started = Instant::now();
        while let Err(status) = self.run(model, call) {
            if started.elapsed() > self.patience {
                return Err(status);
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        model.apply(call);
        Ok(())
    }

    /// What the disk counts under the number that a volume of this name gets, and limits.
    pub fn quota(&self, name: &str) -> Option<Quota> {
        let id = QuotaIds::default().candidates(&VolumeId::of_name(&self.node(), name)).next()?;
        let quota = || os(Tools::find()).quotas.quota(&self.world.data, id).expect("a quota");
        (self.disk == Disk::Limiting).then(quota)
    }

    fn node(&self) -> NodeKey {
        NodeKey::of(&node_of(&self.world.data))
    }

    pub fn id(&self, name: &str) -> String {
        VolumeId::of_name(&self.node(), name).to_string()
    }

    pub fn inline_id(&self) -> String {
        VolumeId::of_inline(&self.node(), INLINE_ID).to_string()
    }

    pub fn group_id(&self, name: &str) -> String {
        GroupSnapshotId::of_name(&self.node(), name).to_string()
    }

    /// The id of a snapshot, or of the member of a group that is of a volume.
    pub fn snapshot_id(&self, (group, name): (Option<&str>, &str)) -> String {
        let Some(group) = group else { return SnapshotId::of_name(&self.node(), name).to_string() };
        let group = GroupSnapshotId::of_name(&self.node(), group);
        SnapshotId::of_member(&group, &self.node(), &VolumeId::of_name(&self.node(), name)).to_string()
    }

    /// What differs from bench to bench, and what to call it.
    pub fn names(&self) -> Vec<(String, String)> {
        let volumes = [OTHER, "volume", "copy", "restored"];
        let mut names: Vec<_> = volumes.iter().map(|name| (self.id(name), format!("<{name}>"))).collect();
        names.extend(
            volumes.map(|name| (self.snapshot_id((Some("group"), name)), format!("<group: {name}>"))),
        );
        names.push((self.snapshot_id((None, "snapshot")), "<snapshot>".to_owned()));
        names.push((self.group_id("group"), "<group>".to_owned()));
        names.push((self.inline_id(), "<inline>".to_owned()));
        names.push((text(&self.world.dir).to_owned(), "~".to_owned()));
        names
    }

    /// Where a pool keeps what it has.
    pub fn pool(&self, spec: Spec) -> PathBuf {
        match spec.pool {
            None => self.world.data.clone(),
            Some(MANAGED) => self.world.data.join("pools").join(MANAGED),
            Some(name) => self.world.dir.join(name),
        }
    }

    /// Where each pool keeps what it has.
    pub fn pools(&self) -> Vec<PathBuf> {
        let more = match self.disk {
            Disk::Sharing(_) | Disk::Limiting => None,
            Disk::Machine => Some(self.world.dir.join("directories")),
            Disk::Managed(_) => Some(self.world.data.join("pools").join(MANAGED)),
        };
        [self.world.data.clone()].into_iter().chain(more).collect()
    }

    /// The volume for calls of kubelet.
    pub fn vol(&self, model: &Model, name: &'static str) -> Vol<'_> {
        let known = self.volumes.borrow().get(name).cloned();
        let volume = known.unwrap_or_else(|| csi::Volume { volume_id: self.id(name), ..Default::default() });
        let mut vol = Vol::of(&self.world, model.known(name).spec.kind, volume);
        if model.known(name).read_only {
            vol.capability = vol.kind.capability(Mode::SingleNodeReaderOnly);
        }
        vol
    }

    /// Where a pod finds an inline volume.
    pub fn inline_target(&self, name: &str) -> PathBuf {
        self.world.kubelet.join(name)
    }

    /// The CreateVolume request for a volume, as its callers repeat it.
    pub fn request(&self, model: &Model, name: &str, spec: Spec, origin: Origin) -> csi::CreateVolumeRequest {
        let (kind, parameters) = (spec.kind, spec.parameters());
        let mut request = match origin {
            Origin::Nothing => create_request(kind, name, spec.bytes, &parameters),
            Origin::Snapshot(from) => {
                restore_request(kind, name, spec.bytes, &self.snapshot_id((None, from)), &parameters)
            }
            Origin::Volume(from) => clone_request(kind, name, spec.bytes, &self.id(from), &parameters),
        };
        if let Some(known) = model.volumes.get(name) {
            let modified: Vec<_> = known.modified.iter().map(|(key, value)| (*key, *value)).collect();
            request.mutable_parameters = map(&modified);
        }
        request
    }

    /// Makes a call.
    pub fn run(&self, model: &Model, call: Call) -> Result<(), Status> {
        let csi = &self.world.csi;
        match call {
            Call::Create(name, spec, origin) => {
                let volume = csi.create(self.request(model, name, spec, origin))?;
                self.volumes.borrow_mut().insert(name, volume);
                Ok(())
            }
            Call::Delete(name) => csi.delete(&self.id(name)),
            Call::Stage(name) => self.vol(model, name).stage(),
            Call::StageReadOnly(name) => {
                let mut vol = self.vol(model, name);
                vol.capability = vol.kind.capability(Mode::SingleNodeReaderOnly);
                vol.stage()
            }
            Call::Unstage(name) => self.vol(model, name).unstage(),
            Call::Publish(name, pod, read_only) => self.vol(model, name).publish_as(pod, read_only),
            Call::Unpublish(name, pod) => self.vol(model, name).unpublish(pod),
            Call::Expand(name, bytes) => self.vol(model, name).expand(bytes).map(drop),
            Call::NodeExpand(name, bytes) => self.vol(model, name).node_expand("pod", bytes).map(drop),
            Call::Modify(name, changes) => csi.modify(&self.id(name), changes),
            Call::Snapshot(name, source) => csi.snapshot(name, &self.id(source), &[]).map(drop),
            Call::DeleteSnapshot(name) => csi.delete_snapshot(&self.snapshot_id((None, name))),
            Call::Group(name, sources) => {
                let ids: Vec<_> = sources.iter().map(|source| self.id(source)).collect();
                csi.group(name, &ids.iter().map(String::as_str).collect::<Vec<_>>()).map(drop)
            }
            Call::DeleteGroup(name) => csi.delete_group(&self.group_id(name)),
            Call::PublishInline(name, kind) => csi.publish(self.inline_request(name, kind)),
            Call::UnpublishInline(name) => csi.unpublish(INLINE_ID, &self.inline_target(name)),
        }
    }

    fn inline_request(&self, name: &str, kind: Kind) -> csi::NodePublishVolumeRequest {
        let size = kind.size().to_string();
        let mut context = vec![("csi.storage.k8s.io/ephemeral", "true"), ("size", &*size)];
        if kind == Kind::Directory {
            context.extend([("backend", "directory"), ("pool", "directories")]);
        }
        csi::NodePublishVolumeRequest {
            volume_id: INLINE_ID.to_owned(),
            target_path: text(&self.inline_target(name)).to_owned(),
            volume_capability: Some(kind.capability(Mode::SingleNodeWriter)),
            volume_context: map(&context),
            ..Default::default()
        }
    }
}
