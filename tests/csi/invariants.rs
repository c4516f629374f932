//! What holds at every moment at which the driver answers, whatever happened before.

use std::collections::{BTreeMap, BTreeSet};

use hostloop::os::fake::FakeKernel;
use hostloop::os::{FileKind, MountEntry};

use crate::harness::{DATA_DIR, KUBELET, Server, VOLUMES};

/// Panics with everything that is not as it must be; see [`broken`].
pub fn check_invariants(kernel: &FakeKernel, server: &Server) {
    let broken = broken(kernel, server);
    assert!(broken.is_empty(), "invariants broken:\n  {}", broken.join("\n  "));
}

/// The volumes that ListVolumes shows, with their sizes.
pub fn listed(server: &Server) -> BTreeMap<String, u64> {
    let entries = server.list_volumes(Default::default()).expect("ListVolumes").entries;
    let volumes = entries.into_iter().filter_map(|entry| entry.volume);
    volumes.map(|volume| (volume.volume_id, volume.capacity_bytes as u64)).collect()
}

/// The ids of the volumes in the state file: inline ones, too, which are not listed. After a failed write of the
/// state it may hold changes that were not made.
pub fn recorded(kernel: &FakeKernel) -> BTreeSet<String> {
    let state = kernel.read_file(format!("{DATA_DIR}/state.jsonl")).unwrap_or_default();
    let mut ids = BTreeSet::new();
    for line in String::from_utf8_lossy(&state).lines() {
        let Ok(line) = serde_json::from_str::<serde_json::Value>(line) else { break };
        let text = |value: &serde_json::Value| value.as_str().map(str::to_owned);
        ids.extend(text(&line["put"]["volume"]["id"]));
        if let Some(gone) = text(&line["delete"]["volume"]) {
            ids.remove(&gone);
        }
    }
    ids
}

/// Every invariant that does not hold, one line each.
pub fn broken(kernel: &FakeKernel, server: &Server) -> Vec<String> {
    let mut broken = kernel.hazards();
    let (volumes, mounts, loops) = (listed(server), kernel.mounts(), kernel.loops());
    for (id, bytes) in &volumes {
        let image = kernel.stat(format!("{VOLUMES}/{id}/disk.img"));
        let data = kernel.stat(format!("{VOLUMES}/{id}/data"));
        match (image, data) {
            (Some(image), None) if image.size == *bytes => {}
            (Some(image), None) => {
                broken.push(format!("{id} has {bytes} bytes, its image {}", image.size));
            }
            (None, Some(data)) if data.kind == FileKind::Directory => {}
            _ => broken.push(format!("{id} has no image and no directory")),
        }
    }
    let (recorded, mut images) = (recorded(kernel), BTreeMap::new());
    for path in kernel.tree(VOLUMES) {
        let id = path[VOLUMES.len() + 1..].split('/').next().unwrap_or_default().to_owned();
        if path.ends_with("/disk.img") {
            images.insert(kernel.stat(&path).map(|stat| stat.id), id.clone());
        }
        if !recorded.contains(&id) {
            broken.push(format!("{path} belongs to no volume"));
        }
    }
    for device in &loops {
        let name = device.path();
        if !images.contains_key(&Some(device.backing)) {
            broken.push(format!("{} belongs to no volume", name.display()));
        }
        if device.autoclear && !is_mounted(&mounts, device.number) {
            broken.push(format!("{} has autoclear and no mount", name.display()));
        }
    }
    for path in kernel.tree(DATA_DIR).into_iter().filter(|path| !path.starts_with(VOLUMES)) {
        if path.ends_with(".new") {
            broken.push(format!("{path} was left"));
        }
    }
    broken.extend(targets(kernel, &mounts));
    broken
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
