//! Snapshots, groups and volumes made from others: their requests, and a machine with a pool that can share blocks.

use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop::wire::csi::volume_content_source::{SnapshotSource, Type as Source, VolumeSource};
use hostloop_fake_kernel::FakeKernel;

use crate::client;
pub use crate::client::{delete_snapshot, group};
use crate::harness::DIRECTORIES_DIR;
use crate::life::*;
use crate::support::*;

/// Where the pool `fast` lies, whose files can share blocks. Those of the default pool cannot.
pub const FAST: &str = "/pools/fast";
/// The same for directory volumes.
const FAST_DIRECTORIES: &str = "/pools/fast-directories";
pub const WITH_FAST: [&str; 2] =
    ["--pool", "fast=/pools/fast; fast-directories=/pools/fast-directories,directories=true"];
/// A class that takes copies while writes go on.
pub const AS_IT_IS: [(&str, &str); 1] = [("freeze", "false")];

pub fn machine_with_fast(fs_type: FsType) -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.add_disk(FAST, fs_type, 100 << 30);
    kernel.add_disk(FAST_DIRECTORIES, fs_type, 100 << 30);
    kernel
}

/// A driver with both pools.
pub fn both_pools() -> Rig {
    Rig::on(machine_with_fast(FsType::Xfs), &WITH_FAST)
}

pub fn snapshot(name: &str, vol: &Vol) -> csi::CreateSnapshotRequest {
    snapshot_with(name, vol, &[])
}

pub fn snapshot_with(name: &str, vol: &Vol, parameters: &[(&str, &str)]) -> csi::CreateSnapshotRequest {
    csi::CreateSnapshotRequest { parameters: map(parameters), ..client::snapshot(name, &vol.id) }
}

pub fn get_snapshot(id: &str) -> csi::GetSnapshotRequest {
    csi::GetSnapshotRequest { snapshot_id: id.to_owned(), ..Default::default() }
}

pub fn delete_group(id: &str, members: &[&str]) -> csi::DeleteVolumeGroupSnapshotRequest {
    let snapshot_ids = members.iter().map(|id| (*id).to_owned()).collect();
    csi::DeleteVolumeGroupSnapshotRequest { snapshot_ids, ..client::delete_group(id) }
}

pub fn get_group(id: &str, members: &[&str]) -> csi::GetVolumeGroupSnapshotRequest {
    csi::GetVolumeGroupSnapshotRequest {
        group_snapshot_id: id.to_owned(),
        snapshot_ids: members.iter().map(|id| (*id).to_owned()).collect(),
        ..Default::default()
    }
}

pub fn from_snapshot(id: &str) -> csi::VolumeContentSource {
    csi::VolumeContentSource { r#type: Some(Source::Snapshot(SnapshotSource { snapshot_id: id.to_owned() })) }
}

pub fn from_volume(id: &str) -> csi::VolumeContentSource {
    csi::VolumeContentSource { r#type: Some(Source::Volume(VolumeSource { volume_id: id.to_owned() })) }
}

/// A volume made from something, of the size of its source.
pub fn copy(
    name: &str,
    source: csi::VolumeContentSource,
    capability: csi::VolumeCapability,
    parameters: &[(&str, &str)],
) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest {
        volume_content_source: Some(source),
        capacity_range: None,
        parameters: map(parameters),
        ..create(name, capability)
    }
}

impl Rig {
    /// Makes a snapshot.
    #[track_caller]
    pub fn cut(&self, name: &str, vol: &Vol) -> csi::Snapshot {
        self.ok(snapshot(name, vol)).snapshot.expect("a snapshot")
    }

    /// The snapshots that are listed.
    pub fn snapshots(&self) -> Vec<csi::Snapshot> {
        let entries = self.ok(csi::ListSnapshotsRequest::default()).entries;
        entries.into_iter().map(|entry| entry.snapshot.expect("a snapshot")).collect()
    }

    /// Makes, stages and publishes a volume, and gives its target path.
    #[track_caller]
    pub fn in_use(&self, request: csi::CreateVolumeRequest) -> (Vol, String) {
        let vol = self.made(request);
        self.stage(&vol);
        let target = self.publish(&vol, "pod");
        (vol, target)
    }

    /// Takes a volume out of use.
    #[track_caller]
    pub fn rest(&self, vol: &Vol) {
        self.unpublish(vol, "pod");
        self.unstage(vol);
    }

    /// A pod writes to a published volume, and syncs.
    #[track_caller]
    pub fn write(&self, vol: &Vol, text: &str) {
        let target = vol.target("pod");
        let file = if vol.is_block() { target } else { format!("{target}/file") };
        self.kernel.write_file(&file, text.as_bytes()).expect("write");
        self.kernel.sync(if vol.is_block() { self.directory(vol) } else { file }).expect("sync");
    }

    /// What a pod reads in a published volume.
    #[track_caller]
    pub fn read(&self, vol: &Vol, len: usize) -> String {
        let target = vol.target("pod");
        let file = if vol.is_block() { target } else { format!("{target}/file") };
        let bytes = self.kernel.read(file, 0, len).expect("read");
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// What is in a volume that is not in use.
    #[track_caller]
    pub fn content(&self, vol: &Vol, len: usize) -> String {
        self.stage(vol);
        self.publish(vol, "pod");
        let text = self.read(vol, len);
        self.rest(vol);
        text
    }

    /// The directory of a volume, in whichever pool.
    pub fn directory(&self, vol: &Vol) -> String {
        let directories = [DATA, FAST, "/var/lib/fast", DIRECTORIES_DIR, FAST_DIRECTORIES]
            .map(|pool| format!("{pool}/volumes/{}", vol.id));
        directories.into_iter().find(|path| self.kernel.exists(path)).expect("a directory")
    }

    /// The names of the steps since the last time.
    pub fn steps(&self) -> Vec<&'static str> {
        let steps = self.kernel.steps().iter().map(|step| step.name).collect();
        self.kernel.clear_steps();
        steps
    }

    /// Nothing of any snapshot is left, and nothing is frozen.
    #[track_caller]
    pub fn assert_no_snapshot(&self) {
        assert!(self.snapshots().is_empty());
        let pools = [DATA, FAST, DIRECTORIES_DIR, FAST_DIRECTORIES].map(|pool| format!("{pool}/snapshots"));
        let places = pools.into_iter().chain([format!("{DATA}/frozen")]).collect::<Vec<_>>();
        let left: Vec<String> = places.iter().flat_map(|place| self.kernel.tree(place)).collect();
        assert_eq!(left, Vec::<String>::new());
        assert_eq!(self.kernel.frozen(), Vec::<std::path::PathBuf>::new());
        assert_eq!(self.kernel.hazards(), Vec::<String>::new());
    }
}

/// The kinds of volumes, each with what makes one.
pub fn kinds() -> Vec<csi::CreateVolumeRequest> {
    let large = |request| csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..request };
    vec![
        create("ext4", mount()),
        large(create("xfs", fs("xfs"))),
        large(create("btrfs", fs("btrfs"))),
        create("block", block()),
        create_with("directory", &[("backend", "directory"), ("pool", "directories")]),
        large(csi::CreateVolumeRequest {
            parameters: map(&[("pool", "fast")]),
            ..create("fast", fs("btrfs"))
        }),
        csi::CreateVolumeRequest { parameters: map(&[("pool", "fast")]), ..create("fast-block", block()) },
        create_with("fast-directory", &[("pool", "fast-directories"), ("backend", "directory")]),
    ]
}
