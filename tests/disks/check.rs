//! A driver is started on what a loss of power left: what was acknowledged is there, and nothing half-made is.

use std::collections::BTreeSet;
use std::path::Path;

use crate::harness::volume::restore_request;
use crate::harness::{Kind, Vol, World};
use crate::load::assert_slots;
use crate::model::{At, Left, Model, Volume};
use crate::node;

/// The names in a directory. A directory of a volume or a snapshot has its record beside it, which counts under its name.
fn names(directory: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("text"));
    names.map(|name| name.strip_suffix(".json").map(str::to_owned).unwrap_or(name)).collect()
}

/// What the driver has, and its pools.
fn shown(world: &World, pools: &[&'static str]) -> (BTreeSet<String>, BTreeSet<String>) {
    let listed = world.csi.list(0, "").expect("ListVolumes").entries;
    let volumes: BTreeSet<_> =
        listed.into_iter().map(|entry| entry.volume.expect("a volume").volume_id).collect();
    let snapshots: BTreeSet<_> =
        world.csi.list_snapshots().expect("ListSnapshots").into_iter().map(|s| s.snapshot_id).collect();
    let there = |what: &str| {
        pools.iter().flat_map(|pool| names(&node::pool(world, pool).join(what))).collect::<BTreeSet<_>>()
    };
    assert_eq!(there("volumes"), volumes, "what the pools hold, and the volumes that are listed");
    assert_eq!(there("snapshots"), snapshots, "what the pools hold, and the snapshots that are listed");
    (volumes, snapshots)
}

/// Asserts that exactly what was acknowledged is listed, and of what was under way all or nothing.
fn assert_lists(model: &Model, cut: At, volumes: &BTreeSet<String>, snapshots: &BTreeSet<String>) {
    let mut unknown = volumes.clone();
    for volume in &model.volumes {
        let there = unknown.remove(volume.id());
        match volume.left(cut) {
            Left::There => assert!(there, "{}, acknowledged, is gone", volume.request.name),
            Left::Absent => assert!(!there, "{} should not be there", volume.request.name),
            Left::Either => {}
        }
    }
    assert!(unknown.is_empty(), "nobody asked for the volumes {unknown:?}");
    let mut unknown = snapshots.clone();
    for snapshot in &model.snapshots {
        let there = unknown.remove(&snapshot.snapshot.snapshot_id);
        match snapshot.left(cut) {
            Left::There => assert!(there, "{}, acknowledged, is gone", snapshot.name),
            Left::Absent => assert!(!there, "{} should not be there", snapshot.name),
            Left::Either => {}
        }
    }
    for group in &model.groups {
        let there = group.members().filter(|id| unknown.remove(*id)).count();
        match group.left(cut) {
            Left::There => assert_eq!(there, group.sources.len(), "{} is not whole", group.name),
            Left::Absent => assert_eq!(there, 0, "{} should not be there", group.name),
            Left::Either => {
                assert!([0, group.sources.len()].contains(&there), "{}: {there} members", group.name)
            }
        }
    }
    assert!(unknown.is_empty(), "nobody asked for the snapshots {unknown:?}");
}

/// Repeats the calls that were not answered, and the last ones that were, as a caller does that heard nothing.
fn repeat_calls(world: &World, model: &Model, cut: At) {
    for volume in &model.volumes {
        match (volume.left(cut), volume.gone.filter(|gone| gone.may(cut))) {
            (_, Some(_)) => world.csi.delete(volume.id()).expect("DeleteVolume again"),
            (Left::Absent, _) => {}
            _ if volume.request.volume_content_source.is_some() && volume.made.acknowledged(cut) => {}
            // A volume that was changed since is another one than the call asks for.
            _ if volume.grown.iter().any(|(call, _)| call.may(cut)) => {}
            _ => {
                let again = world.csi.create(volume.request.clone()).expect("CreateVolume again");
                assert_eq!(again.volume_id, volume.id());
            }
        }
    }
    for snapshot in &model.snapshots {
        let id = &snapshot.snapshot.snapshot_id;
        match (snapshot.left(cut), snapshot.gone.filter(|gone| gone.may(cut))) {
            (_, Some(_)) => world.csi.delete_snapshot(id).expect("DeleteSnapshot again"),
            (Left::Absent, _) => {}
            _ => {
                let again =
                    world.csi.snapshot(&snapshot.name, &snapshot.source, &[]).expect("CreateSnapshot again");
                assert_eq!(&again.snapshot_id, id);
            }
        }
    }
    for group in &model.groups {
        let id = &group.group.group_snapshot_id;
        match (group.left(cut), group.gone.filter(|gone| gone.may(cut))) {
            (_, Some(_)) => world.csi.delete_group(id).expect("DeleteVolumeGroupSnapshot again"),
            (Left::Either, _) => {
                let ids: Vec<&str> = group.sources.iter().map(String::as_str).collect();
                let again = world.csi.group(&group.name, &ids).expect("CreateVolumeGroupSnapshot again");
                assert_eq!(&again.group_snapshot_id, id);
            }
            _ => {}
        }
    }
}

/// Uses a volume: its data and its size are there, and a call that changes it can come again.
fn use_volume(world: &World, volume: &Volume, cut: At) {
    let mut vol = Vol::of(world, volume.kind, volume.volume.clone());
    vol.up();
    let place = vol.target("a");
    let name = &volume.request.name;
    assert_slots(&place, volume.kind, &volume.slots(cut), name);
    if volume.kind != Kind::Directory {
        for (_, bytes) in volume.grown.iter().filter(|(call, _)| call.may(cut)) {
            vol.expand(*bytes).expect("ControllerExpandVolume again");
            vol.down();
            vol.up();
        }
        let bytes = volume.bytes(cut);
        let image = std::fs::metadata(
            node::pool(world, volume.pool).join("volumes").join(volume.id()).join("disk.img"),
        );
        assert!(image.expect("the image").len() >= bytes, "{name} is smaller than {bytes} bytes");
        for (_, to) in volume.modified.iter().filter(|(call, _)| call.may(cut)) {
            world.csi.modify(volume.id(), to).expect("ControllerModifyVolume again");
        }
    }
    vol.info.capacity_bytes = volume.bytes(cut).cast_signed();
    assert_slots(&place, volume.kind, &volume.slots(cut), name);
    vol.down();
}

/// All of it; `restores` snapshots are restored, from the `from`th on.
pub fn check(
    world: &mut World,
    model: &Model,
    cut: At,
    pools: &[&'static str],
    from: usize,
    restores: usize,
) {
    world.start();
    let world: &World = world;
    let (volumes, snapshots) = shown(world, pools);
    assert_lists(model, cut, &volumes, &snapshots);
    repeat_calls(world, model, cut);
    shown(world, pools);
    for volume in model
        .volumes
        .iter()
        .filter(|volume| volume.gone.is_none_or(|gone| !gone.may(cut)) && volume.left(cut) != Left::Absent)
    {
        use_volume(world, volume, cut);
    }
    let there: Vec<_> = model.snapshots.iter().filter(|snapshot| snapshot.left(cut) == Left::There).collect();
    for number in 0..restores.min(there.len()) {
        let snapshot = there[(from + number) % there.len()];
        let (id, parameters) = (&snapshot.snapshot.snapshot_id, [("pool", snapshot.pool)]);
        let bytes = snapshot.snapshot.size_bytes.cast_unsigned().max(snapshot.kind.size());
        let request = restore_request(snapshot.kind, "restored", bytes, id, &parameters);
        let vol = Vol::of(world, snapshot.kind, world.csi.create(request).expect("a restore"));
        vol.up();
        assert_slots(
            &vol.target("a"),
            snapshot.kind,
            &snapshot.slots,
            &format!("a restore of {}", snapshot.name),
        );
        vol.remove();
    }
    remove_all(world, model, cut);
    let (volumes, snapshots) = shown(world, pools);
    assert!(volumes.is_empty() && snapshots.is_empty(), "{volumes:?} {snapshots:?}");
}

/// Deletes everything.
fn remove_all(world: &World, model: &Model, cut: At) {
    for group in model.groups.iter().filter(|group| group.left(cut) != Left::Absent) {
        world.csi.delete_group(&group.group.group_snapshot_id).expect("DeleteVolumeGroupSnapshot");
    }
    for snapshot in world.csi.list_snapshots().expect("ListSnapshots") {
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    }
    for entry in world.csi.list(0, "").expect("ListVolumes").entries {
        world.csi.delete(&entry.volume.expect("a volume").volume_id).expect("DeleteVolume");
    }
}
