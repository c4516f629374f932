//! Copies of a volume whose mkfs was cut off: they are formatted when they are used, as the volume itself is.

use hostloop_fake_kernel::Kill;
use nix::errno::Errno;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

#[test]
fn a_copy_of_a_half_made_filesystem_is_formatted() {
    for half in [true, false] {
        let rig = Rig::new();
        let (vol, target) = rig.published("whole", mount());
        rig.kernel.write_file(format!("{target}/file"), b"text").expect("write");
        rig.unpublish(&vol, "pod-1");
        let make = 1 + {
            let other = rig.volume("other", mount());
            rig.steps();
            rig.stage(&other);
            rig.steps().iter().position(|step| *step == "make").expect("mkfs")
        };
        rig.unstage(&vol);
        let vol = if half {
            let vol = rig.volume("half", mount());
            rig.kernel.fail_having_done_at(make, Errno::EIO, Kill::Torn);
            rig.call(rig.stage_request(&vol)).expect_err("mkfs fails");
            vol
        } else {
            vol
        };
        let marked = |vol: &Vol| rig.kernel.exists(format!("{}/formatting", vol.directory()));
        assert_eq!(marked(&vol), half);
        let cut = rig.cut("s", &vol);
        for (name, source) in
            [("cloned", from_volume(&vol.id)), ("restored", from_snapshot(&cut.snapshot_id))]
        {
            let made = rig.made(copy(name, source, mount(), &[]));
            assert_eq!(marked(&made), half, "{name}");
            rig.stage(&made);
            let file = format!("{}/file", rig.publish(&made, "pod"));
            assert_eq!(rig.kernel.exists(&file), !half, "{name}");
            assert!(!marked(&made), "{name}");
        }
    }
}
