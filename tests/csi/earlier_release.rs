//! What 0.1.0 left, which a later release mends.

use hostloop::model::FsType;
use hostloop::wire::csi;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

/// It made images on btrfs like that: a restore is the way to one that is written in place.
#[test]
fn an_image_that_is_copied_on_write_is_copied_and_mended() {
    for is_old in [false, true] {
        let rig = Rig::on(machine_with_fast(FsType::Btrfs), &WITH_FAST);
        let request =
            csi::CreateVolumeRequest { parameters: map(&[("pool", "fast")]), ..create("v", block()) };
        let (vol, _) = rig.in_use(csi::CreateVolumeRequest { capacity_range: range(4 * MIB, 0), ..request });
        rig.write(&vol, "text");
        let cut = rig.cut("s", &vol);
        let image = format!("{FAST}/snapshots/{}/disk.img", cut.snapshot_id);
        if is_old {
            let bytes = rig.kernel.read_file(&image).expect("read");
            rig.kernel.remove_file(&image).expect("remove");
            rig.kernel.write_file(&image, &bytes).expect("write");
        }
        rig.steps();
        let wanted = copy("restored", from_snapshot(&cut.snapshot_id), block(), &[("pool", "fast")]);
        let restored = rig.made(csi::CreateVolumeRequest { capacity_range: range(4 * MIB, 0), ..wanted });
        let steps = rig.steps();
        assert_eq!(
            (steps.contains(&"copy_range"), steps.contains(&"reflink")),
            (is_old, !is_old),
            "{steps:?}"
        );
        assert_eq!(rig.content(&restored, 4), "text");
    }
}
