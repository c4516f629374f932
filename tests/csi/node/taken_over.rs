//! Devices that an earlier process or somebody else left behind.

use hostloop::wire::csi;

use crate::life::*;
use crate::support::*;

fn thick(capability: csi::VolumeCapability) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest { parameters: map(&[("provisioning", "thick")]), ..create("v", capability) }
}

#[test]
fn a_device_is_brought_to_what_the_volume_is() {
    for capability in [mount(), block()] {
        let rig = Rig::new();
        let vol = rig.made(thick(capability));
        let image = format!("{}/disk.img", rig.directory(&vol));
        rig.stage(&vol);
        rig.rest(&vol);
        let left = rig.kernel.attach_foreign(&image, false).expect("attach");
        assert!(rig.kernel.loop_discards(left.number) && !left.direct_io);
        rig.stage(&vol);
        rig.publish(&vol, "pod");
        let now = rig.kernel.loops();
        assert_eq!(now.iter().map(|device| device.number).collect::<Vec<_>>(), [left.number]);
        assert!(now[0].direct_io && !rig.kernel.loop_discards(left.number));
        rig.rest(&vol);
        assert!(rig.kernel.loops().is_empty(), "whoever attached it, it goes with the volume");
    }
}

#[test]
fn the_number_of_a_thick_volume_discards_for_others() {
    for capability in [mount(), block()] {
        let mut rig = Rig::new();
        let vol = rig.made(thick(capability));
        let image = format!("{}/disk.img", rig.directory(&vol));
        let discards = |rig: &Rig| {
            let device = rig.kernel.attach_foreign(&image, false).expect("attach");
            let discards = rig.kernel.loop_discards(device.number);
            rig.kernel.detach_foreign(device.number);
            discards
        };
        rig.stage(&vol);
        rig.rest(&vol);
        assert!(discards(&rig));
        // A driver that is gone cannot; the next start does.
        rig.stage(&vol);
        let [device] = &rig.kernel.loops()[..] else { panic!("one device") };
        if device.autoclear {
            rig.kernel.unmount_foreign(vol.staging()).expect("unmount");
        } else {
            rig.kernel.detach_foreign(device.number);
        }
        assert!(!discards(&rig));
        rig.restart();
        assert!(discards(&rig));
    }
}
