//! What holds at every moment at which the driver answers, whatever happened before.

use std::collections::BTreeMap;

use hostloop::kernel::{FileKind, MountEntry};
use hostloop::store::Beside;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use serde_json::Value;

use crate::harness::{DATA_DIR, KUBELET, LIMITED, QGROUPS, SNAPSHOTS, Server, VOLUMES};

/// Where volumes and snapshots lie, in every pool.
pub const PLACES: [&str; 16] = [
    VOLUMES,
    SNAPSHOTS,
    "/pools/sharing/volumes",
    "/pools/sharing/snapshots",
    "/pools/directories/volumes",
    "/pools/directories/snapshots",
    "/pools/sharing-directories/volumes",
    "/pools/sharing-directories/snapshots",
    "/pools/limited-xfs/volumes",
    "/pools/limited-xfs/snapshots",
    "/pools/limited-ext4/volumes",
    "/pools/limited-ext4/snapshots",
    "/pools/limited-btrfs/volumes",
    "/pools/limited-btrfs/snapshots",
    "/pools/limited-qgroups/volumes",
    "/pools/limited-qgroups/snapshots",
];

/// Panics with everything that is not as it must be; see [`broken`].
pub fn check_invariants(kernel: &FakeKernel, server: &Server) {
    let broken = broken(kernel, server);
    assert!(broken.is_empty(), "invariants broken:\n  {}", broken.join("\n  "));
}

/// The volumes that ListVolumes shows, with their sizes.
pub fn listed(server: &Server) -> BTreeMap<String, u64> {
    let entries = server.call(csi::ListVolumesRequest::default()).expect("ListVolumes").entries;
    let volumes = entries.into_iter().filter_map(|entry| entry.volume);
    volumes.map(|volume| (volume.volume_id, volume.capacity_bytes as u64)).collect()
}

/// The snapshots that ListSnapshots shows, with their sizes.
pub fn listed_snapshots(server: &Server) -> BTreeMap<String, u64> {
    let entries = server.call(csi::ListSnapshotsRequest::default()).expect("ListSnapshots").entries;
    let snapshots = entries.into_iter().filter_map(|entry| entry.snapshot);
    snapshots.map(|snapshot| (snapshot.snapshot_id, snapshot.size_bytes as u64)).collect()
}

/// What the state file tells of volumes, inline ones, too, which are not listed, of snapshots and of groups: their
/// records by id. After a failed write of the state it may hold changes that were not made.
pub fn recorded(kernel: &FakeKernel) -> BTreeMap<String, Value> {
    let state = kernel.read_file(format!("{DATA_DIR}/state.jsonl")).unwrap_or_default();
    let mut records = BTreeMap::new();
    for line in String::from_utf8_lossy(&state).lines() {
        let Ok(line) = serde_json::from_str::<Value>(line) else { break };
        for kind in ["volume", "snapshot", "groupSnapshot"] {
            let put = &line["put"][kind];
            if let Some(id) = put["id"].as_str() {
                records.insert(id.to_owned(), put.clone());
            }
            if let Some(gone) = line["delete"][kind].as_str() {
                records.remove(gone);
            }
        }
    }
    records
}

/// Where the files of a volume or a snapshot lie, if there are any.
pub fn directory_of(kernel: &FakeKernel, id: &str) -> Option<String> {
    let directories = PLACES.map(|place| format!("{place}/{id}"));
    directories.into_iter().find(|directory| kernel.exists(directory))
}

/// The record beside the data in this directory.
///
/// # Errors
/// Why there is none that can be used.
pub fn beside(kernel: &FakeKernel, directory: &str) -> Result<Beside, String> {
    let (place, _) = directory.rsplit_once('/').ok_or("there is no directory")?;
    let inside = match place.ends_with("snapshots") {
        true => "snapshot.json",
        false => "volume.json",
    };
    let paths = [format!("{directory}/{inside}"), format!("{directory}.json")];
    let there: Vec<&String> = paths.iter().filter(|path| kernel.exists(path)).collect();
    match there.as_slice() {
        [path] => Beside::read(&kernel.read_file(path).unwrap_or_default()),
        others => Err(format!("{} of {paths:?} are there", others.len())),
    }
}

/// Every invariant that does not hold, one line each.
pub fn broken(kernel: &FakeKernel, server: &Server) -> Vec<String> {
    let mut broken = kernel.hazards();
    let (mounts, loops) = (kernel.mounts(), kernel.loops());
    for (id, bytes) in listed(server).into_iter().chain(listed_snapshots(server)) {
        let directory = directory_of(kernel, &id).unwrap_or_default();
        let image = kernel.stat(format!("{directory}/disk.img"));
        let data = kernel.stat(format!("{directory}/data"));
        match (image, data) {
            (Some(image), None) if image.size == bytes => {}
            (Some(image), None) => {
                broken.push(format!("{id} has {bytes} bytes, its image {}", image.size));
            }
            (None, Some(data)) if data.kind == FileKind::Directory => {}
            _ => broken.push(format!("{id} has no image and no directory")),
        }
        broken.extend(
            beside(kernel, &directory).err().map(|why| format!("the record of {id} beside its data: {why}")),
        );
    }
    let sick =
        server.call(csi::ControllerListVolumeHealthRequest::default()).expect("ControllerListVolumeHealth");
    broken.extend(sick.entries.iter().map(|volume| format!("not healthy: {volume:?}")));
    let (recorded, mut images) = (recorded(kernel), BTreeMap::new());
    for place in PLACES {
        for path in kernel.tree(place) {
            let id = path[place.len() + 1..].split('/').next().unwrap_or_default().to_owned();
            if path.ends_with("/disk.img") && place.ends_with("volumes") {
                let thick = recorded.get(&id).is_some_and(|it| it["parameters"]["provisioning"] == "thick");
                let lacks = kernel.stat(&path).is_some_and(|image| image.allocated < image.size);
                if thick && lacks {
                    broken.push(format!("{path} lacks blocks, and the volume is thick"));
                }
                images.insert(kernel.stat(&path).map(|stat| stat.id), id.clone());
            }
            // The mark of a copy that is made in one step is beside it, and so is the record of a directory.
            let owner = [".making", ".json"].iter().find_map(|end| id.strip_suffix(end)).unwrap_or(&id);
            if !recorded.contains_key(owner) {
                broken.push(format!("{path} has no record"));
            }
        }
    }
    for device in &loops {
        let name = device.path();
        let owner = images.get(&device.backing).and_then(|id| recorded.get(id));
        let thick = owner.is_some_and(|record| record["parameters"]["provisioning"] == "thick");
        let root = format!("/{}", name.file_name().unwrap_or_default().to_string_lossy());
        let in_use = is_mounted(&mounts, device.number)
            || mounts.iter().any(|mount| mount.root == std::path::Path::new(&root));
        if thick && in_use && kernel.loop_discards(device.number) {
            broken.push(format!("{} is of a thick volume, in use, and discards", name.display()));
        }
        if !images.contains_key(&device.backing) {
            broken.push(format!("{} belongs to no volume", name.display()));
        }
        if device.autoclear && !is_mounted(&mounts, device.number) {
            broken.push(format!("{} has autoclear and no mount", name.display()));
        }
    }
    broken.extend(kernel.tree(DATA_DIR).into_iter().filter(|path| path.ends_with(".new")));
    broken.extend(kernel.frozen().iter().map(|target| format!("{} is frozen", target.display())));
    broken.extend(targets(kernel, &mounts));
    broken.extend(limits(kernel, &recorded));
    broken
}

/// Limits that are not those of a volume, and volumes whose limit is not there.
fn limits(kernel: &FakeKernel, recorded: &BTreeMap<String, Value>) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, path, _) in LIMITED.into_iter().filter(|(_, path, _)| kernel.exists(path)) {
        let here = |record: &&Value| record["parameters"]["pool"] == name && record["quota"].is_u64();
        // With full qgroups it is that of the volume's subvolume.
        let number = |record: &Value| match name == LIMITED[QGROUPS].0 {
            true => {
                let id = record["id"].as_str().unwrap_or_default();
                kernel.project(format!("{path}/volumes/{id}")).map(u64::from).unwrap_or_default()
            }
            false => record["quota"].as_u64().unwrap_or_default(),
        };
        let limits = kernel.quotas(path).into_iter();
        let limits: BTreeMap<u64, u64> = limits.map(|(id, limits)| (id.into(), limits.bytes)).collect();
        let of = |record: &Value| limits.get(&number(record)).copied();
        let owned = |id: &u64| recorded.values().filter(here).any(|record| number(record) == *id);
        // A snapshot of a subvolume has the limit of its original until that is lifted, and again after a power cut.
        let cuts =
            kernel.tree(format!("{path}/snapshots")).into_iter().filter_map(|path| kernel.project(path));
        let cuts: std::collections::BTreeSet<u64> = cuts.map(u64::from).collect();
        // A qgroup without a limit may be left by a power cut: it is nobody's, and whoever gets its number takes it over.
        let left = limits.iter().filter(|(id, bytes)| **bytes > 0 && !owned(id) && !cuts.contains(id));
        broken.extend(left.map(|(id, _)| format!("{path}: nobody has {id}")));
        // Of one that is being deleted it is given back first.
        let ready = recorded.values().filter(here).filter(|record| record["phase"] == "ready");
        let wrong = ready.filter(|record| of(record) != record["capacityBytes"].as_u64());
        broken.extend(
            wrong.map(|record| format!("{path} limits {:?} to {:?}: {record}", record["quota"], of(record))),
        );
        for (id, record) in recorded.iter().filter(|(_, record)| here(record)) {
            let directory = format!("{path}/volumes/{id}");
            let uncounted = kernel.tree(&directory).into_iter().chain([directory]).filter(|path| {
                let project = kernel.project(path).map(u64::from);
                project.is_some_and(|project| project != number(record))
            });
            broken.extend(uncounted.map(|path| format!("{path} does not count for its volume")));
        }
    }
    broken
}

/// What a start that nothing disturbs leaves of earlier processes, one line each: there must be nothing.
pub fn left_over(kernel: &FakeKernel) -> Vec<String> {
    let unfinished = recorded(kernel).into_iter().filter(|(_, record)| record["phase"] != "ready");
    let unfinished = unfinished.map(|(id, record)| format!("{id} is recorded as {}", record["phase"]));
    let markers = kernel.tree(format!("{DATA_DIR}/frozen")).into_iter();
    markers.map(|path| format!("{path} was left")).chain(unfinished).collect()
}

/// Paths below kubelet's directory that are neither mounted nor empty.
fn targets(kernel: &FakeKernel, mounts: &[MountEntry]) -> Vec<String> {
    let mut broken = Vec::new();
    for base in ["stage", "pods"] {
        let base = format!("{KUBELET}/{base}");
        for path in kernel.tree(&base) {
            let mounted = mounts.iter().any(|mount| path.starts_with(&*mount.target.to_string_lossy()));
            let is_top = !path[base.len() + 1..].contains('/');
            let is_empty_file = kernel.stat(&path).is_some_and(|s| s.kind == FileKind::File && s.size == 0);
            let is_directory = kernel.stat(&path).is_some_and(|stat| stat.kind == FileKind::Directory);
            if !mounted && !(is_top && (is_empty_file || is_directory)) {
                broken.push(format!("{path} is not mounted and not empty"));
            }
        }
    }
    broken
}

fn is_mounted(mounts: &[MountEntry], number: u32) -> bool {
    let device = format!("/dev/loop{number}");
    let node = format!("/loop{number}");
    mounts.iter().any(|mount| mount.source == device || mount.root.to_string_lossy() == node)
}
