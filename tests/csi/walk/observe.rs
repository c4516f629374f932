//! What can be seen from outside, held against what was acknowledged.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use tonic::Status;

use super::call::{Call, Cut, Known, Model, id_of, inline_id_of};
use crate::harness::{DATA_DIR, KUBELET, LIMITED, SHARING_DIR, Server};
use crate::invariants::{PLACES, broken, directory_of, left_over};
use crate::requests::{Kind, MadeFrom, Spec, publish, stage, staging_path, target_path, unpublish, unstage};

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

/// Sizes and attachments by id, snapshots with their size, source and group, the members of groups, and the paths
/// below kubelet's directory where something is mounted.
#[derive(Debug, Clone, PartialEq)]
pub struct Seen {
    pub volumes: BTreeMap<String, (u64, bool)>,
    pub snapshots: BTreeMap<String, (u64, String, String)>,
    pub groups: BTreeMap<String, BTreeSet<String>>,
    pub mounted: BTreeSet<String>,
}

impl Seen {
    pub fn now(kernel: &FakeKernel, server: &Server) -> Seen {
        let entries = server.call(csi::ListVolumesRequest::default()).expect("ListVolumes").entries;
        let volumes = entries.into_iter().map(|entry| {
            let attached = entry.status.is_some_and(|status| !status.published_node_ids.is_empty());
            let volume = entry.volume.expect("a volume");
            (volume.volume_id, (volume.capacity_bytes as u64, attached))
        });
        let mounts = kernel.mounts().into_iter().map(|mount| mount.target.display().to_string());
        let entries = server.call(csi::ListSnapshotsRequest::default()).expect("ListSnapshots").entries;
        let snapshots = entries.into_iter().filter_map(|entry| entry.snapshot).map(|snapshot| {
            let rest = (snapshot.size_bytes as u64, snapshot.source_volume_id, snapshot.group_snapshot_id);
            (snapshot.snapshot_id, rest)
        });
        let snapshots: BTreeMap<_, _> = snapshots.collect();
        let groups: BTreeSet<_> = snapshots.values().map(|(_, _, group)| group.clone()).collect();
        let groups = groups.into_iter().filter(|group| !group.is_empty()).map(|group| {
            let group_snapshot_id = group.clone();
            let get = csi::GetVolumeGroupSnapshotRequest { group_snapshot_id, ..Default::default() };
            let found = server.call(get).expect("the group of a snapshot").group_snapshot;
            let members = found.expect("a group").snapshots.into_iter().map(|member| member.snapshot_id);
            (group, members.collect())
        });
        let groups = groups.collect();
        Seen { volumes: volumes.collect(), snapshots, groups, mounted: mounts.collect() }
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
        let (mut snapshots, mut groups) = (BTreeMap::new(), BTreeMap::<_, BTreeSet<_>>::new());
        for (id, cut) in &model.snapshots {
            let group = cut.group.clone().unwrap_or_default();
            snapshots.insert(id.clone(), (cut.bytes, cut.source.clone(), group.clone()));
            if !group.is_empty() {
                groups.entry(group).or_default().insert(id.clone());
            }
        }
        Seen { volumes, snapshots, groups, mounted: targets }
    }
}

/// Everything that a rolled-back call must leave as it was: trees, mounts, devices, what is listed.
pub fn snapshot(kernel: &FakeKernel, server: &Server) -> String {
    let (seen, loops) = (Seen::now(kernel, server), kernel.loops());
    // A marker that could not be removed does no harm, and the next start removes it.
    let pools = LIMITED.map(|(_, path, _)| path);
    let tops = [DATA_DIR, SHARING_DIR, KUBELET].into_iter().chain(pools);
    let trees = tops.map(|top| kernel.tree(top)).collect::<Vec<_>>().concat();
    // How far mkfs came is not a matter of a caller: it begins anew.
    let unformatted = |path: String| {
        let directory = ["/formatting", "/formatted"].iter().find_map(|mark| path.strip_suffix(mark));
        directory.map_or(path.clone(), |directory| format!("{directory}/blank"))
    };
    // The state file may be written anew in any call, and its previous content is kept then.
    let previous = format!("{DATA_DIR}/state.jsonl.previous");
    let kept = |path: &String| !path.starts_with(FROZEN) && *path != previous;
    let trees = trees.into_iter().filter(kept).map(unformatted);
    let trees: std::collections::BTreeSet<String> = trees.collect();
    format!("{seen:#?}\n{loops:#?}\n{trees:#?}\n{:#?}", kernel.mounts())
}

fn said(what: &str, id: &str) -> impl FnOnce(Status) -> String {
    let context = format!("{what} {id}");
    move |status| format!("{context}: {status}")
}

/// Whether every volume is what a repeat of the call that made it asks for.
pub fn fits(kernel: &FakeKernel, server: &Server, model: &Model) -> Verdict {
    for (id, known) in &model.volumes {
        let Some(request) = known.created.clone() else { continue };
        server.call(request).map_err(said("create again", id))?;
        let directory = directory_of(kernel, id).ok_or_else(|| format!("{id} has no files"))?;
        let Some(image) = kernel.stat(format!("{directory}/disk.img")) else { continue };
        let thick = known.parameter("provisioning") == Some("thick");
        ensure!(!thick || image.allocated >= known.bytes, "{id} is thick and has {} bytes", image.allocated);
    }
    Ok(())
}

/// Whether the devices of every volume are as its parameters say. They may be ahead of them after a call that was cut
/// off: until the retry, or until they are attached again.
pub fn in_force(kernel: &FakeKernel, model: &Model) -> Verdict {
    for (id, known) in &model.volumes {
        let directory = directory_of(kernel, id).unwrap_or_default();
        let Some(image) = kernel.stat(format!("{directory}/disk.img")) else { continue };
        let thick = known.parameter("provisioning") == Some("thick");
        for device in kernel.loops().into_iter().filter(|device| device.backing == Some(image.id)) {
            let direct_io = known.parameter("directIO") != Some("false");
            ensure!(device.direct_io == direct_io, "direct I/O of {id} is {}", device.direct_io);
            let keeps = thick || known.parameter("discard") == Some("false");
            ensure!(!keeps || !kernel.loop_discards(device.number), "{id} gives blocks back");
        }
    }
    Ok(())
}

/// Does again what callers do after a restart of the machine, and what must be harmless otherwise: attaches,
/// stages and publishes everything that the model has.
pub fn restore(server: &Server, model: &Model) -> Verdict {
    for (id, known) in &model.volumes {
        if let Some(request) = &known.staged {
            server.call(request.clone()).map_err(said("stage again", id))?;
        }
        for request in known.published.values() {
            server.call(request.clone()).map_err(said("publish again", id))?;
        }
    }
    Ok(())
}

/// Every invariant, and every mount and volume of the model, and none else.
pub fn check(kernel: &FakeKernel, server: &Server, model: &Model) -> Verdict {
    let (seen, expected) = (Seen::now(kernel, server), Seen::of(model, true));
    ensure!(seen == expected, "expected {expected:?}, found {seen:?}");
    invariants(kernel, server)?;
    fits(kernel, server, model)?;
    in_force(kernel, model)?;
    markers(kernel, server, model)
}

/// Nothing of earlier processes is left after a start.
pub fn clean_start(kernel: &FakeKernel, server: &Server) -> Verdict {
    let left = left_over(kernel);
    ensure!(left.is_empty(), "{}", left.join("; "));
    invariants(kernel, server)
}

pub fn invariants(kernel: &FakeKernel, server: &Server) -> Verdict {
    let broken = broken(kernel, server);
    ensure!(broken.is_empty(), "{}", broken.join("; "));
    Ok(())
}

/// Where the marks of frozen filesystems lie.
const FROZEN: &str = "/var/lib/hostloop/frozen/";
/// Where targets lie.
const PODS: &str = "/var/lib/kubelet/pods";
/// Where a marker lies within a volume's filesystem.
const MARKER: &str = "marker";
/// Where markers lie on a raw device: far enough from each other to be copied one by one.
const OFFSETS: [u64; 3] = [4096, 40 << 20, 300 << 20];

/// A pod writes a marker to a staged volume and syncs it; another one each time.
pub fn write_marker(kernel: &FakeKernel, model: &mut Model, id: &str) {
    let known = model.volumes.get_mut(id).expect("the scenario made this volume");
    let time = known.marker.as_ref().map_or(0, |last| 1 + last.last().map_or(0, |digit| digit - b'0'));
    let bytes = format!("written by a pod to {id}, {time}").into_bytes();
    if known.spec.kind == Kind::Block {
        let target = known.published.keys().next().expect("it is published");
        OFFSETS.iter().for_each(|at| kernel.write(target, *at, &bytes).unwrap());
        // Reaches the image, as fsync of the device does.
        kernel.sync(directory_of(kernel, id).expect("its directory")).unwrap();
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
        vec![kernel.read_file(format!("{}/{MARKER}", place_of(id, known)))]
    } else if let Some(target) = known.published.keys().next() {
        read_device(kernel, target, marker.len())
    } else {
        let capability = known.staged.as_ref().and_then(|staged| staged.volume_capability.clone());
        let request = publish(id, capability.unwrap_or(known.spec.capability()), "reader");
        server.call(request).map_err(said("publish to read", id))?;
        let found = read_device(kernel, &target_path("reader"), marker.len());
        server.call(unpublish(id, "reader")).map_err(said("unpublish", id))?;
        found
    };
    for found in found {
        let found = found.map_err(|error| format!("the data of {id} cannot be read: {error}"))?;
        ensure!(found == marker, "the data of {id} is {:?}", String::from_utf8_lossy(&found));
    }
    Ok(())
}

fn read_device(kernel: &FakeKernel, target: &str, len: usize) -> Vec<io::Result<Vec<u8>>> {
    OFFSETS.iter().map(|at| kernel.read(target, *at, len)).collect()
}

/// Reads the data of volumes that are not in use, takes everything down to nothing, and makes sure of that.
pub fn tear_down(kernel: &FakeKernel, server: &Server, model: &Model, attach: bool) -> Verdict {
    for (id, known) in &model.volumes {
        if known.marker.is_some() && known.staged.is_none() && !known.inline {
            read_at_rest(kernel, server, id, known, attach)?;
        }
        for target in known.published.keys() {
            let pod = target.rsplit('/').next().unwrap_or_default();
            server.call(unpublish(id, pod)).map_err(said("unpublish", id))?;
        }
        if known.inline {
            continue;
        }
        server.call(unstage(id)).map_err(said("unstage", id))?;
        if attach {
            Call::detach(id).run(server).map_err(said("detach", id))?;
        }
        Call::delete(id).run(server).map_err(said("delete", id))?;
        Call::delete(id).run(server).map_err(said("delete a second time", id))?;
    }
    // Snapshots survive their sources.
    for (id, cut) in &model.snapshots {
        read_snapshot(kernel, server, id, cut, attach)?;
        let delete = match &cut.group {
            Some(group) => Call::delete_group(group),
            None => Call::delete_snapshot(id),
        };
        let last = |(other, its): (&String, &Cut)| other > id && its.group == cut.group;
        if cut.group.is_none() || !model.snapshots.iter().any(last) {
            delete.run(server).map_err(said("delete", id))?;
            delete.run(server).map_err(said("delete a second time", id))?;
        }
    }
    nothing_left(kernel, server)
}

/// Reads what was in a volume when it was cut, in a volume made from the snapshot.
fn read_snapshot(kernel: &FakeKernel, server: &Server, id: &str, cut: &Cut, attach: bool) -> Verdict {
    let spec = Spec { bytes: cut.bytes as i64, ..cut.spec };
    let create = Call::create_from(spec, "restored", &MadeFrom::Snapshot(id.to_owned()));
    create.run(server).map_err(said("restore", id))?;
    let mut model = Model::default();
    model.snapshots.insert(id.to_owned(), cut.clone());
    model.apply(&create);
    let restored = id_of("restored");
    kernel.create_directories(staging_path(&restored));
    if cut.marker.is_some() {
        read_at_rest(kernel, server, &restored, &model.volumes[&restored], attach)?;
        if attach {
            Call::detach(&restored).run(server).map_err(said("detach", id))?;
        }
    }
    invariants(kernel, server)?;
    Call::delete(&restored).run(server).map_err(said("delete", &restored))
}

/// A target that was removed comes back with a power cut: nobody waits for that to be durable, as it is empty,
/// and kubelet removes what it finds of pods that are gone.
pub fn kubelet_cleans_up(kernel: &FakeKernel, model: &Model) {
    let known = |path: &String| model.volumes.values().any(|known| known.published.contains_key(path));
    for path in kernel.tree(PODS).into_iter().filter(|path| !known(path)) {
        let mounted = kernel.mounts().iter().any(|mount| Path::new(&path).starts_with(&mount.target));
        if !mounted {
            let files = kernel.spawn().files;
            let removed = files.remove_directory(Path::new(&path));
            removed.or_else(|_| files.remove_file(Path::new(&path))).expect("what is left is empty");
        }
    }
}

fn read_at_rest(kernel: &FakeKernel, server: &Server, id: &str, known: &Known, attach: bool) -> Verdict {
    if attach {
        Call::attach(id, known.spec).run(server).map_err(said("attach to read", id))?;
    }
    let request = stage(id, known.spec.capability());
    server.call(request.clone()).map_err(said("stage to read", id))?;
    let staged = Known { staged: Some(request), ..known.clone() };
    read_marker(kernel, server, id, &staged, staged.marker.as_deref().unwrap_or_default())?;
    server.call(unstage(id)).map_err(said("unstage", id)).map(drop)
}

fn nothing_left(kernel: &FakeKernel, server: &Server) -> Verdict {
    invariants(kernel, server)?;
    let left = PLACES.iter().chain([&PODS]).flat_map(|place| kernel.tree(place)).collect::<Vec<_>>();
    ensure!(left.is_empty(), "left after all was deleted: {left:?}");
    ensure!(kernel.mounts().is_empty(), "still mounted: {:?}", kernel.mounts());
    ensure!(kernel.loops().is_empty(), "still attached: {:?}", kernel.loops());
    Ok(())
}

/// Formats of a volume's image so far: none may follow once data is in it.
pub fn formats(kernel: &FakeKernel, model: &Model) -> BTreeMap<String, usize> {
    let directory = |id: &String, known: &Known| if known.inline { inline_id_of(id) } else { id.clone() };
    let count = |id: &String, known: &Known| {
        let directory = directory_of(kernel, &directory(id, known))?;
        let image = kernel.stat(format!("{directory}/disk.img"))?;
        Some(kernel.formats().iter().filter(|(file, _)| *file == image.id).count())
    };
    let marked = model.volumes.iter().filter(|(_, known)| known.marker.is_some());
    marked.filter_map(|(id, known)| Some((id.clone(), count(id, known)?))).collect()
}

/// The volume that every scenario has beside its own.
pub fn other() -> String {
    id_of("other")
}
