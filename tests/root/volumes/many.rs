//! Ten thousand volumes.

use std::collections::HashSet;
use std::time::Instant;

use hostloop::kernel::linux::{Tools, os};
use hostloop::model::{
    AccessMode, AccessType, Capability, Content, NodeKey, Phase, Volume, VolumeId, VolumeParameters,
};
use hostloop::store::{Identity, Store};

use crate::harness::process::node_of;
use crate::harness::{MIB, World};

const COUNT: usize = 10_000;
const THREADS: usize = 250;

/// A raw block volume with a sparse image, as CreateVolume makes it.
fn volume(world: &World, number: usize) -> Volume {
    let name = format!("pvc-{number}");
    let id = VolumeId::of_name(&NodeKey::of(&node_of(&world.data)), &name);
    let volume = Volume {
        name,
        capacity_bytes: MIB,
        capabilities: vec![Capability { access: AccessType::Block, mode: AccessMode::SingleNodeWriter }],
        block_size: 512,
        ..Volume::new(id, Phase::Ready, Content::Block, VolumeParameters::default())
    };
    std::fs::create_dir(world.volume_directory(volume.id.as_str())).expect("mkdir");
    let image = std::fs::File::create(world.image(volume.id.as_str()));
    image.and_then(|image| image.set_len(MIB)).expect("image");
    volume
}

/// Every volume, read page by page.
fn listed(world: &World, max_entries: i32) -> HashSet<String> {
    let (mut seen, mut token) = (HashSet::new(), String::new());
    loop {
        let page = world.csi.list(max_entries, &token).expect("ListVolumes");
        let count = page.entries.len();
        let before = seen.len();
        seen.extend(page.entries.into_iter().map(|entry| entry.volume.expect("a volume").volume_id));
        assert_eq!(seen.len(), before + count, "none is there twice");
        token = page.next_token;
        if token.is_empty() {
            return seen;
        }
    }
}

#[test]
fn ten_thousand_volumes_are_there_after_a_start() {
    let mut world = World::empty(&["--log-level", "info"]);
    std::fs::create_dir_all(world.data.join("volumes")).expect("mkdir");
    let identity = Identity { driver: "hostloop.csi.dev".to_owned(), node_id: node_of(&world.data) };
    let store = Store::open(os(Tools::find()).files, &world.data, identity).expect("a new state file");
    // Side by side, so that they share syncs.
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (world, store) = (&world, &store);
            scope.spawn(move || {
                for number in (thread..COUNT).step_by(THREADS) {
                    store.put(volume(world, number)).expect("put");
                }
            });
        }
    });
    drop(store);
    let started = Instant::now();
    world.start();
    eprintln!("{COUNT} volumes: ready after {:?}", started.elapsed());
    let started = Instant::now();
    assert_eq!(listed(&world, 0).len(), COUNT);
    eprintln!("{COUNT} volumes: listed in {:?}", started.elapsed());
    let seen = listed(&world, 999);
    assert_eq!(seen.len(), COUNT);
    for id in seen.iter().take(10) {
        world.csi.delete(id).expect("DeleteVolume");
        assert!(!world.volume_directory(id).exists());
    }
    assert_eq!(listed(&world, 0).len(), COUNT - 10);
    world.take_driver().stop();
}
