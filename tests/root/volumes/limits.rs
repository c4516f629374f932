//! The size is a hard limit: a full volume is full for its pod and for nobody else.

use nix::errno::Errno;

use crate::harness::kernel::{self, allocated, pattern, write_at};
use crate::harness::volume::create_request;
use crate::harness::{Kind, MIB, Vol, World};

#[test]
fn a_full_volume_takes_no_more_than_its_size() {
    let world = World::on("ext4", 1024 * MIB, &[]);
    for kind in [Kind::Ext4, Kind::Block, Kind::Xfs, Kind::Btrfs] {
        let vol = Vol::create(&world, kind, &format!("full {kind:?}"), kind.size(), &[]);
        let (_, before) = kernel::space(&world.data);
        vol.up();
        let (written, error) = kernel::fill(&vol.file("a"));
        assert_eq!(error.raw_os_error(), Some(Errno::ENOSPC as i32), "{kind:?}");
        let least = if kind == Kind::Block { vol.bytes() } else { vol.bytes() / 3 };
        assert!(written >= least && written <= vol.bytes(), "{kind:?}: {written} of {}", vol.bytes());
        assert!(allocated(&world.image(vol.id())) <= vol.bytes() + MIB);
        let (_, after) = kernel::space(&world.data);
        assert!(before - after <= vol.bytes() + 2 * MIB, "{kind:?}: {before} {after}");
        // The neighbour does not notice.
        let other = Vol::create(&world, Kind::Ext4, &format!("beside {kind:?}"), 16 * MIB, &[]);
        other.up();
        write_at(&other.file("a"), 0, &pattern(1, 4 << 20)).expect("write beside a full volume");
        other.remove();
        vol.remove();
    }
    world.finish();
}

#[test]
fn a_pool_promises_what_it_has() {
    let world = World::on("ext4", 512 * MIB, &["--reserve", "64Mi"]);
    let (_, free) = kernel::space(&world.data);
    for provisioning in ["thin", "thick"] {
        let parameters = [("provisioning", provisioning)];
        let request = |name, bytes| create_request(Kind::Ext4, name, bytes, &parameters);
        let error = world.csi.create(request("too large", free - 32 * MIB)).expect_err("too large");
        assert_eq!(error.code(), tonic::Code::ResourceExhausted, "{error:?}");
        let fits = world.csi.create(request("fits", free - 128 * MIB)).expect("fits");
        let error = world.csi.create(request("no room", 128 * MIB)).expect_err("the room was promised");
        assert_eq!(error.code(), tonic::Code::ResourceExhausted, "{error:?}");
        let vol = Vol::of(&world, Kind::Ext4, fits);
        let error = vol.expand(free).expect_err("no room");
        assert_eq!(error.code(), tonic::Code::ResourceExhausted, "{error:?}");
        assert_eq!(world.image(vol.id()).metadata().expect("stat").len(), vol.bytes());
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}
