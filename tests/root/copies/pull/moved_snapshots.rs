//! A snapshot moves to another node.

use std::os::unix::fs::MetadataExt as _;

use hostloop::cluster::permit::expiry;
use hostloop::model::pull::Way;
use hostloop::model::{
    Grant, KeepSnapshot, MovingId, NodeKey, ReleaseSnapshot, SnapshotId, TakeSnapshot, VolumeId, VolumeSource,
};

use super::*;

/// Moves a snapshot, and looks at both copies before the source deletes its own.
fn move_it(source: &World, target: &World, id: &str, look: impl FnOnce()) {
    together(source, target, |nodes| {
        let [from, to] = [&nodes.source, &nodes.target].map(|driver| driver.settings().node_id.clone());
        let id: SnapshotId = id.parse().expect("an id");
        let grant = Grant {
            source_node: from.clone(),
            target_node: to.clone(),
            source: VolumeSource::Snapshot(id.clone()),
            target: VolumeId::of_taken(&NodeKey::of(&to), &id),
            expires: expiry(),
        };
        let (node_key, address) = (NodeKey::of(&from), ADDRESS.to_owned());
        let way = Way { node_key, address, permit: orders::permit(&grant) };
        let moving = MovingId::Snapshot(id.clone());
        let take = TakeSnapshot { id: moving.clone(), node_id: from.clone(), ways: vec![(id, way)] };
        let number = nodes.target.take_snapshot(&take).expect("TakeSnapshot");
        look();
        let release = ReleaseSnapshot { id: moving.clone(), node_id: to, number };
        nodes.source.release_snapshot(&release).expect("ReleaseSnapshot");
        nodes
            .target
            .keep_snapshot(&KeepSnapshot { id: moving, node_id: from, number, alone: true })
            .expect("KeepSnapshot");
    });
}

#[test]
fn a_moved_snapshot_is_restored_byte_for_byte() {
    for kind in [Kind::Ext4, Kind::Btrfs, Kind::Block] {
        let (mut source, mut target) = worlds();
        let size = kind.size().max(512 * MIB);
        let vol = Vol::create(&source, kind, "source", size, &[]);
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(1, 24 << 20)).expect("write");
        vol.down();
        let snapshot = source.csi.snapshot("snapshot", vol.id(), &[]).expect("CreateSnapshot").snapshot_id;
        let id = vol.id().to_owned();
        source.take_driver().stop();
        let image = |world: &World| world.data.join("snapshots").join(&snapshot).join("disk.img");
        move_it(&source, &target, &snapshot, || {
            let [before, after] = [&source, &target].map(|world| image(world).metadata().expect("an image"));
            assert!(same_bytes(&image(&source), &image(&target)), "{kind:?}");
            assert!(after.blocks() <= before.blocks() + 2048, "{kind:?}: {after:?}, holes stay holes");
        });
        assert!(!image(&source).exists() && image(&target).exists());
        target.start();
        let request = restore_request(kind, "restored", size, &snapshot, &[]);
        let copy = Vol::of(&target, kind, target.csi.create(request).expect("CreateVolume"));
        copy.up();
        assert!(read_at(&copy.file("a"), 0, 24 << 20) == pattern(1, 24 << 20), "{kind:?}");
        copy.remove();
        target.csi.delete_snapshot(&snapshot).expect("DeleteSnapshot");
        target.finish();
        source.start();
        source.csi.delete(&id).expect("DeleteVolume");
        source.finish();
    }
}

#[test]
fn a_moved_tree_has_everything_in_it() {
    let (mut source, mut target) = worlds_for(Kind::Directory);
    let vol = Vol::create(&source, Kind::Directory, "source", 512 * MIB, &[]);
    let id = vol.id().to_owned();
    let top = source.volume_directory(&id).join("data");
    everything(&top.join("tree"));
    let before = metas(&top);
    let snapshot = source.csi.snapshot("snapshot", &id, &[]).expect("CreateSnapshot").snapshot_id;
    source.take_driver().stop();
    let place = |world: &World| {
        let volumes = world.volume_directory(&id);
        let pool = volumes.parent().and_then(Path::parent).expect("a pool");
        pool.join("snapshots").join(&snapshot).join("data")
    };
    move_it(&source, &target, &snapshot, || assert_equal(&before, &place(&source), &place(&target)));
    assert!(!place(&source).exists());
    target.start();
    target.csi.delete_snapshot(&snapshot).expect("DeleteSnapshot");
    target.finish();
    source.start();
    source.csi.delete(&id).expect("DeleteVolume");
    source.finish();
}
