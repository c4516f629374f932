//! ControllerPublishVolume and ControllerUnpublishVolume, as external-attacher calls them.

use hostloop::wire::csi;
use tonic::Code;

use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::{Kind, Vol, World};

const LEN: usize = 1 << 20;

/// Staging needs the publish to this node. What is published for reading is read-only, also for root.
#[test]
fn a_published_volume_is_written_and_then_only_read() {
    let world = World::new(&["--attach"]);
    let node = world.csi.call(csi::NodeGetInfoRequest {}).expect("NodeGetInfo").node_id;
    let mut vol = Vol::create(&world, Kind::Ext4, "published", Kind::Ext4.size(), &[]);
    let refused = vol.stage().expect_err("it is not published to the node");
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    for readonly in [false, true] {
        let published = world.csi.call(vol.attach_request(&node, readonly)).expect("ControllerPublishVolume");
        vol.publish_context = published.publish_context;
        vol.up();
        let file = vol.file("a");
        match write_at(&file, 0, &pattern(1, LEN)) {
            Ok(()) => assert!(!readonly, "{} was written", file.display()),
            Err(error) => assert!(readonly && error.raw_os_error() == Some(libc::EROFS), "{error}"),
        }
        assert_eq!(read_at(&file, 0, LEN), pattern(1, LEN));
        vol.down();
        world.csi.call(vol.detach_request(&node)).expect("ControllerUnpublishVolume");
    }
    vol.delete().expect("DeleteVolume");
    world.finish();
}
