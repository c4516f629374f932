//! The fence of a volume that moves away, on the real kernel.

use std::path::Path;

use hostloop::driver::Driver;
use hostloop::error::{Error, Result};
use hostloop::model::request::{NodePublishVolume, NodeUnpublishVolume, NodeUnstageVolume};

use crate::harness::{Kind, Vol, World};

fn publish(driver: &Driver, id: &str, staging: &Path, target: &Path) -> Result<()> {
    let record = driver.store().get(&id.parse().expect("an id")).expect("a volume");
    driver.node_publish_volume(NodePublishVolume {
        volume_id: id.to_owned(),
        staging_path: Some(staging.to_owned()),
        target_path: target.to_owned(),
        capability: record.capabilities[0].clone(),
        read_only: false,
        context: Default::default(),
        inline: None,
    })
}

/// A pod that is made again on the same node may come before kubelet has unstaged the volume.
#[test]
fn a_fence_holds_while_a_pod_still_has_the_volume() {
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Block, Kind::Directory] {
        let mut world = World::for_kind(kind, &[]);
        let vol = Vol::create(&world, kind, "v", kind.size(), &[]);
        vol.stage().expect("NodeStageVolume");
        vol.publish("first").expect("NodePublishVolume");
        let (id, staging_path) = (vol.id().to_owned(), vol.staging());
        let [first, second] = ["first", "second"].map(|pod| vol.target(pod));
        world.take_driver().stop();
        {
            let driver = super::driver(&world);
            assert_eq!(driver.recover().damaged, 0);
            let seal = || driver.seal_volume(&id, (0, 0), Some("other".to_owned()));
            assert!(matches!(seal(), Err(Error::InUse(why)) if why.contains("is in use")), "{kind:?}");
            publish(&driver, &id, &staging_path, &first).expect("it is published");
            let refused = publish(&driver, &id, &staging_path, &second).expect_err("it moves");
            assert!(refused.to_string().contains("its data move to node"), "{kind:?}: {refused}");
            let (volume_id, target_path) = (id.clone(), first);
            driver
                .node_unpublish_volume(NodeUnpublishVolume { volume_id, target_path })
                .expect("unpublished");
            assert!(matches!(seal(), Err(Error::InUse(_))), "{kind:?}: it is staged");
            let volume_id = id.clone();
            driver.node_unstage_volume(NodeUnstageVolume { volume_id, staging_path }).expect("unstaged");
            seal().unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            driver.seal_volume(&id, (0, 0), None).expect("taken back");
        }
        world.start();
        world.csi.delete(&id).expect("DeleteVolume");
        world.finish();
    }
}
