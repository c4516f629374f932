//! What can be seen from outside, held against what was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use hostloop::os::fake::FakeKernel;
use tonic::Status;

use super::call::{Call, Known, Model, id_of, inline_id_of};
use crate::harness::{DATA_DIR, KUBELET, Server, VOLUMES};
use crate::invariants::broken;
use crate::requests::{Kind, publish, stage, staging_path, target_path, unpublish, unstage};

/// Why a walk failed.
pub type Verdict = Result<(), String>;

/// Fails the walk with a message.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(format!($($message)+));
        }
    };
}
pub(crate) use ensure;

/// Sizes and attachments by id, and the paths below kubelet's directory where something is mounted.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub volumes: BTreeMap<String, (u64, bool)>,
    pub mounted: BTreeSet<String>,
}

impl Seen {
    pub fn now(kernel: &FakeKernel, server: &Server) -> Seen {
        let entries = server.list_volumes(Default::default()).expect("ListVolumes").entries;
        let volumes = entries.into_iter().map(|entry| {
            let attached = entry.status.is_some_and(|status| !status.published_node_ids.is_empty());
            let volume = entry.volume.expect("a volume");
            (volume.volume_id, (volume.capacity_bytes as u64, attached))
        });
        let mounts = kernel.mounts().into_iter().map(|mount| mount.target.display().to_string());
        Seen { volumes: volumes.collect(), mounted: mounts.collect() }
    }

    /// What a model looks like; after a power cut nothing is mounted.
    pub fn of(model: &Model, mounted: bool) -> Seen {
        let listed = model.volumes.iter().filter(|(_, known)| !known.inline);
        let volumes = listed.map(|(id, known)| (id.clone(), (known.bytes, known.attached))).collect();
        let mut targets = BTreeSet::new();
        for known in model.volumes.values().filter(|_| mounted) {
            targets.extend(known.published.keys().cloned());
            let staged = known.staged.iter().filter(|_| known.spec.kind != Kind::Block);
            targets.extend(staged.map(|request| request.staging_target_path.clone()));
        }
        Seen { volumes, mounted: targets }
    }
}

/// Everything that a rolled-back call must leave as it was: trees, mounts, devices, what is listed.
pub fn snapshot(kernel: &FakeKernel, server: &Server) -> String {
    let (seen, loops) = (Seen::now(kernel, server), kernel.loops());
    let (data, kubelet) = (kernel.tree(DATA_DIR), kernel.tree(KUBELET));
    format!("{seen:#?}\n{loops:#?}\n{data:#?}\n{kubelet:#?}\n{:#?}", kernel.mounts())
}

fn said(what: &str, id: &str) -> impl FnOnce(Status) -> String {
    let context = format!("{what} {id}");
    move |status| format!("{context}: {status}")
}

/// Does again what callers do after a restart of the machine, and what must be harmless otherwise: attaches,
/// stages and publishes everything that the model has.
pub fn restore(server: &Server, model: &Model) -> Verdict {
    for (id, known) in &model.volumes {
        if let Some(request) = &known.staged {
            server.node_stage_volume(request.clone()).map_err(said("stage again", id))?;
        }
        for request in known.published.values() {
            server.node_publish_volume(request.clone()).map_err(said("publish again", id))?;
        }
    }
    Ok(())
}

/// Every invariant, and every mount and volume of the model, and none else.
pub fn check(kernel: &FakeKernel, server: &Server, model: &Model) -> Verdict {
    let (seen, expected) = (Seen::now(kernel, server), Seen::of(model, true));
    ensure!(seen == expected, "expected {expected:?}, found {seen:?}");
    invariants(kernel, server)?;
    markers(kernel, server, model)
}

pub fn invariants(kernel: &FakeKernel, server: &Server) -> Verdict {
    let broken = broken(kernel, server);
    ensure!(broken.is_empty(), "{}", broken.join("; "));
    Ok(())
}

/// Where targets lie.
const PODS: &str = "/var/lib/kubelet/pods";
/// Where a marker lies within a volume's filesystem.
const MARKER: &str = "marker";

/// A pod writes a marker to a staged volume and syncs it.
pub fn write_marker(kernel: &FakeKernel, model: &mut Model, id: &str) {
    let known = model.volumes.get_mut(id).expect("the scenario made this volume");
    let bytes = format!("written by a pod to {id}").into_bytes();
    if known.spec.kind == Kind::Block {
        kernel.write(known.published.keys().next().expect("it is published"), 4096, &bytes).unwrap();
        // Reaches the image, as fsync of the device does.
        kernel.sync(VOLUMES).unwrap();
    } else {
        let directory = place_of(id, known);
        kernel.write_file(format!("{directory}/{MARKER}"), &bytes).unwrap();
        kernel.sync(&directory).unwrap();
    }
    known.marker = Some(bytes);
}

fn place_of(id: &str, known: &Known) -> String {
    match known.published.keys().next() {
        Some(target) => target.clone(),
        None => staging_path(id),
    }
}

/// Reads back what pods have written to every volume that is staged.
fn markers(kernel: &FakeKernel, server: &Server, model: &Model) -> Verdict {
    for (id, known) in &model.volumes {
        let in_use = known.staged.is_some() || !known.published.is_empty();
        if let Some(marker) = known.marker.as_ref().filter(|_| in_use) {
            read_marker(kernel, server, id, known, marker)?;
        }
    }
    Ok(())
}

fn read_marker(kernel: &FakeKernel, server: &Server, id: &str, known: &Known, marker: &[u8]) -> Verdict {
    let found = if known.spec.kind != Kind::Block {
        kernel.read_file(format!("{}/{MARKER}", place_of(id, known)))
    } else if let Some(target) = known.published.keys().next() {
        kernel.read(target, 4096, marker.len())
    } else {
        let capability = known.staged.as_ref().and_then(|staged| staged.volume_capability.clone());
        let request = publish(id, capability.unwrap_or(known.spec.capability()), "reader");
        server.node_publish_volume(request).map_err(said("publish to read", id))?;
        let found = kernel.read(target_path("reader"), 4096, marker.len());
        server.node_unpublish_volume(unpublish(id, "reader")).map_err(said("unpublish", id))?;
        found
    };
    let found = found.map_err(|error| format!("the data of {id} cannot be read: {error}"))?;
    ensure!(found == marker, "the data of {id} is {:?}", String::from_utf8_lossy(&found));
    Ok(())
}

/// Reads the data of volumes that are not in use, takes everything down to nothing, and makes sure of that.
pub fn tear_down(kernel: &FakeKernel, server: &Server, model: &Model, attach: bool) -> Verdict {
    for (id, known) in &model.volumes {
        if known.marker.is_some() && known.staged.is_none() && !known.inline {
            read_at_rest(kernel, server, id, known, attach)?;
        }
        for target in known.published.keys() {
            let pod = target.rsplit('/').next().unwrap_or_default();
            server.node_unpublish_volume(unpublish(id, pod)).map_err(said("unpublish", id))?;
        }
        if known.inline {
            continue;
        }
        server.node_unstage_volume(unstage(id)).map_err(said("unstage", id))?;
        if attach {
            Call::detach(id).run(server).map_err(said("detach", id))?;
        }
        Call::delete(id).run(server).map_err(said("delete", id))?;
        Call::delete(id).run(server).map_err(said("delete a second time", id))?;
    }
    nothing_left(kernel, server)
}

/// A target that was removed comes back with a power cut: nobody waits for that to be durable, as it is empty,
/// and kubelet removes what it finds of pods that are gone.
pub fn kubelet_cleans_up(kernel: &FakeKernel, model: &Model) {
    let known = |path: &String| model.volumes.values().any(|known| known.published.contains_key(path));
    for path in kernel.tree(PODS).into_iter().filter(|path| !known(path)) {
        let mounted = kernel.mounts().iter().any(|mount| Path::new(&path).starts_with(&mount.target));
        if !mounted {
            let disks = kernel.spawn().disks;
            let removed = disks.remove_directory(Path::new(&path));
            removed.or_else(|_| disks.remove_file(Path::new(&path))).expect("what is left is empty");
        }
    }
}

fn read_at_rest(kernel: &FakeKernel, server: &Server, id: &str, known: &Known, attach: bool) -> Verdict {
    if attach {
        Call::attach(id, known.spec).run(server).map_err(said("attach to read", id))?;
    }
    let request = stage(id, known.spec.capability());
    server.node_stage_volume(request.clone()).map_err(said("stage to read", id))?;
    let staged = Known { staged: Some(request), ..known.clone() };
    read_marker(kernel, server, id, &staged, staged.marker.as_deref().unwrap_or_default())?;
    server.node_unstage_volume(unstage(id)).map_err(said("unstage", id)).map(drop)
}

fn nothing_left(kernel: &FakeKernel, server: &Server) -> Verdict {
    invariants(kernel, server)?;
    let left = [kernel.tree(VOLUMES), kernel.tree(PODS)].concat();
    ensure!(left.is_empty(), "left after all was deleted: {left:?}");
    ensure!(kernel.mounts().is_empty(), "still mounted: {:?}", kernel.mounts());
    ensure!(kernel.loops().is_empty(), "still attached: {:?}", kernel.loops());
    Ok(())
}

/// Formats of a volume's image so far: none may follow once data is in it.
pub fn formats(kernel: &FakeKernel, model: &Model) -> BTreeMap<String, usize> {
    let directory = |id: &String, known: &Known| if known.inline { inline_id_of(id) } else { id.clone() };
    let count = |id: &String, known: &Known| {
        let image = kernel.stat(format!("{VOLUMES}/{}/disk.img", directory(id, known)))?;
        Some(kernel.formats().iter().filter(|(file, _)| *file == image.id).count())
    };
    let marked = model.volumes.iter().filter(|(_, known)| known.marker.is_some());
    marked.filter_map(|(id, known)| Some((id.clone(), count(id, known)?))).collect()
}

/// The volume that every scenario has beside its own.
pub fn other() -> String {
    id_of("other")
}
