//! The load: all that is done with volumes of one kind in one pool, call by call.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use hostloop::wire::csi;
use tonic::Status;

use crate::harness::kernel::pattern;
use crate::harness::volume::{create_request, restore_request};
use crate::harness::{Kind, Vol, World, clone_request};
use crate::model::{Call, Group, Model, Slots, Snapshot, Volume};
use crate::record::Recording;

/// Bytes of a slot.
pub const SLOT: usize = 64 << 10;

/// Volumes of one kind in one pool.
pub struct Load<'a> {
    pub world: &'a World,
    pub recording: &'a Recording,
    pub pool: &'static str,
    pub kind: Kind,
    pub model: Model,
    seed: u64,
}

/// Writes a slot, durably.
fn write(place: &Path, kind: Kind, slot: usize, seed: u64) -> io::Result<()> {
    let bytes = pattern(seed, SLOT);
    if kind == Kind::Block {
        let device = File::options().write(true).open(place)?;
        device.write_all_at(&bytes, (slot * SLOT) as u64)?;
        return device.sync_all();
    }
    let file = File::options().write(true).create(true).truncate(false).open(place.join(slot.to_string()))?;
    file.write_all_at(&bytes, 0)?;
    file.sync_all()?;
    File::open(place)?.sync_all()
}

/// Asserts that slots have their content.
pub fn assert_slots(place: &Path, kind: Kind, slots: &Slots, what: &str) {
    for (slot, seed) in slots {
        let mut bytes = vec![0; SLOT];
        let (path, offset) = match kind {
            Kind::Block => (place.to_owned(), (slot * SLOT) as u64),
            _ => (place.join(slot.to_string()), 0),
        };
        let read = File::open(&path).and_then(|file| file.read_exact_at(&mut bytes, offset));
        read.unwrap_or_else(|error| panic!("{what}: slot {slot}: {error}"));
        assert!(bytes == pattern(*seed, SLOT), "{what}: slot {slot} has other data");
    }
}

impl<'a> Load<'a> {
    pub fn new(
        world: &'a World,
        recording: &'a Recording,
        pool: &'static str,
        kind: Kind,
        seed: u64,
    ) -> Self {
        Load { world, recording, pool, kind, model: Model::default(), seed }
    }

    /// Does it, with the positions before and after it.
    fn call<T>(&self, call: impl FnOnce() -> T) -> (T, Call) {
        let begun = self.recording.position();
        let done = call();
        (done, Call { begun, done: self.recording.position() })
    }

    fn vol(&self, volume: usize) -> Vol<'a> {
        Vol::of(self.world, self.kind, self.model.volumes[volume].volume.clone())
    }

    /// CreateVolume; the number of the volume.
    fn make(&mut self, request: csi::CreateVolumeRequest, first: Slots) -> usize {
        let (volume, made) = self.call(|| self.world.csi.create(request.clone()).expect("CreateVolume"));
        let (kind, pool) = (self.kind, self.pool);
        self.model.volumes.push(Volume {
            kind,
            pool,
            request,
            volume,
            made,
            first,
            writes: Vec::new(),
            grown: Vec::new(),
            modified: Vec::new(),
            gone: None,
        });
        self.model.volumes.len() - 1
    }

    fn name(&self, name: &str) -> String {
        format!("{name}-{}-{:?}", self.pool, self.kind)
    }

    /// Does it while volumes are not in use, where nothing else holds back the writes to them.
    fn quiet<T>(&mut self, volumes: &[usize], call: impl FnOnce(&mut Self) -> T) -> T {
        let stops = matches!(self.kind, Kind::Directory | Kind::Block);
        let vols: Vec<_> = volumes.iter().filter(|_| stops).map(|volume| self.vol(*volume)).collect();
        vols.iter().for_each(Vol::down);
        let done = call(self);
        vols.iter().for_each(Vol::up);
        done
    }

    fn write(&mut self, volume: usize, slot: usize) {
        self.seed += 1;
        let (seed, vol) = (self.seed, self.vol(volume));
        let ((), call) = self.call(|| write(&vol.target("a"), self.kind, slot, seed).expect("write"));
        self.model.volumes[volume].writes.push((call, slot, seed));
    }

    fn slots(&self, volume: usize) -> Slots {
        self.model.volumes[volume].slots(usize::MAX)
    }

    fn snapshot(&mut self, volume: usize, name: &str) -> usize {
        let (name, source) = (self.name(name), self.model.volumes[volume].id().to_owned());
        let (snapshot, made) =
            self.call(|| self.world.csi.snapshot(&name, &source, &[]).expect("CreateSnapshot"));
        let (slots, kind, pool) = (self.slots(volume), self.kind, self.pool);
        self.model.snapshots.push(Snapshot { name, kind, pool, source, snapshot, made, slots, gone: None });
        self.model.snapshots.len() - 1
    }

    fn delete(&mut self, volume: usize) {
        let vol = self.vol(volume);
        let ((), call) = self.call(|| vol.delete().expect("DeleteVolume"));
        self.model.volumes[volume].gone = Some(call);
    }

    fn expand(&mut self, volume: usize) {
        let vol = self.vol(volume);
        let bytes = vol.bytes() + (32 << 20);
        let (_, call) = self.call(|| vol.expand(bytes).expect("ControllerExpandVolume"));
        self.model.volumes[volume].grown.push((call, bytes));
        // Not every machine lets ext4 grow while it is mounted: staging does it everywhere.
        vol.down();
        vol.up();
    }

    fn modify(&mut self, volume: usize, to: [(&'static str, &'static str); 1]) {
        let id = self.model.volumes[volume].id().to_owned();
        let ((), call) = self.call(|| self.world.csi.modify(&id, &to).expect("ControllerModifyVolume"));
        self.model.volumes[volume].modified.push((call, to));
    }

    fn group(&mut self, volumes: &[usize], name: &str) -> usize {
        let sources: Vec<_> = volumes.iter().map(|v| self.model.volumes[*v].id().to_owned()).collect();
        let (name, ids) = (self.name(name), sources.iter().map(String::as_str).collect::<Vec<_>>());
        let again = |status: &Status| status.message().contains("freezeTimeout");
        // On a slow machine a copy can take longer than a filesystem may be frozen: the sidecar tries again.
        let (group, made) = self.call(|| {
            let group = || self.world.csi.group(&name, &ids);
            let mut tries =
                std::iter::repeat_with(group).take(5).skip_while(|made| made.as_ref().is_err_and(again));
            tries.next().expect("within five tries").expect("CreateVolumeGroupSnapshot")
        });
        self.model.groups.push(Group { name, sources, group, made, gone: None });
        self.model.groups.len() - 1
    }

    /// The whole load.
    pub fn run(mut self) -> Model {
        let parameters = [("pool", self.pool)];
        let (kind, size) = (self.kind, self.kind.size());
        let a = self.make(create_request(kind, &self.name("a"), size, &parameters), Slots::new());
        self.vol(a).up();
        self.write(a, 0);
        self.write(a, 1);
        let first = self.quiet(&[a], |load| load.snapshot(a, "first"));
        self.write(a, 0);
        let Snapshot { snapshot, slots, .. } = &self.model.snapshots[first];
        let (id, slots) = (snapshot.snapshot_id.clone(), slots.clone());
        let b = self.make(restore_request(kind, &self.name("b"), size, &id, &parameters), slots);
        self.vol(b).up();
        self.write(b, 2);
        let (id, slots) = (self.model.volumes[a].id().to_owned(), self.slots(a));
        let request = clone_request(kind, &self.name("c"), size, &id, &parameters);
        let c = self.quiet(&[a], |load| load.make(request, slots));
        if kind != Kind::Directory {
            self.expand(a);
            let group = self.quiet(&[a, b], |load| load.group(&[a, b], "group"));
            self.write(a, 3);
            let id = self.model.groups[group].group.group_snapshot_id.clone();
            let ((), gone) =
                self.call(|| self.world.csi.delete_group(&id).expect("DeleteVolumeGroupSnapshot"));
            self.model.groups[group].gone = Some(gone);
            self.quiet(&[a, b], |load| load.group(&[b, a], "second-group"));
            // btrfs cannot give an image that has copies blocks of its own.
            if self.pool != "btrfs" {
                self.modify(a, [("provisioning", "thick")]);
            }
        }
        let id = self.model.snapshots[first].snapshot.snapshot_id.clone();
        let ((), gone) = self.call(|| self.world.csi.delete_snapshot(&id).expect("DeleteSnapshot"));
        self.model.snapshots[first].gone = Some(gone);
        self.vol(b).down();
        self.delete(b);
        self.quiet(&[a], |load| load.snapshot(a, "last"));
        self.write(a, 1);
        self.vol(c).up();
        self.write(c, 0);
        for vol in [self.vol(a), self.vol(c)] {
            vol.down();
        }
        self.model
    }
}
