//! GetCapacity, held against what CreateVolume then does.

use hostloop::kernel::Upkeep;
use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use hostloop_fake_kernel::FakeKernel;
use tonic::Code;

use crate::harness::DIRECTORIES_DIR;
use crate::life::*;
use crate::support::*;

/// A machine whose disk has `free` bytes left.
fn disk(total: i64, free: i64) -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.create_directories("/var/lib/fast");
    kernel.set_space(total as u64, free as u64);
    kernel
}

fn sized(name: &str, bytes: i64, parameters: &[(&str, &str)]) -> csi::CreateVolumeRequest {
    csi::CreateVolumeRequest { capacity_range: range(bytes, 0), ..create_with(name, parameters) }
}

/// What is said is sane, and is exactly what can be made.
fn largest(rig: &Rig, parameters: &[(&str, &str)]) -> i64 {
    let reply = rig.ok(capacity(parameters));
    let maximum = reply.maximum_volume_size.expect("a maximum");
    let minimum = reply.minimum_volume_size.expect("a minimum");
    assert!(reply.available_capacity >= 0 && maximum >= 0 && minimum >= 0, "{reply:?}");
    assert!(maximum <= reply.available_capacity, "{reply:?}");
    maximum
}

#[test]
fn the_maximum_can_be_made_and_no_byte_more() {
    for parameters in [
        &[("provisioning", "thin")][..],
        &[("provisioning", "thick")],
        &[("backend", "directory"), ("pool", "directories")],
        &[("provisioning", "thin"), ("pool", "fast")],
    ] {
        let flags = ["--reserve", "1Gi", "--pool", "fast=/var/lib/fast,reserve=10%"];
        let rig = Rig::on(disk(20 * GIB, 10 * GIB), &flags);
        rig.kernel.set_space_at(DIRECTORIES_DIR, 20 << 30, 10 << 30);
        let maximum = largest(&rig, parameters);
        assert!(maximum > 7 * GIB && maximum < 10 * GIB, "{parameters:?}: {maximum}");
        rig.fails(Code::ResourceExhausted, sized("v", maximum + 4096, parameters));
        let vol = rig.made(sized("v", maximum, parameters));
        assert_eq!(vol.info.capacity_bytes, maximum);
        if parameters[0].0 != "backend" {
            assert!(largest(&rig, parameters) < 4 * MIB, "all of it is promised");
            rig.fails(Code::ResourceExhausted, sized("w", 4 * MIB, parameters));
            rig.ok(vol.delete_request());
            let after = largest(&rig, parameters);
            assert!(after.abs_diff(maximum) < 1 << 20, "{after} is {maximum} again");
        }
    }
}

#[test]
fn overcommit_promises_more_to_thin_volumes_only() {
    let rig = Rig::on(disk(20 * GIB, 10 * GIB), &["--overcommit", "3"]);
    let (thin, thick) = ([("provisioning", "thin")], [("provisioning", "thick")]);
    assert!(largest(&rig, &thin) > 29 * GIB && largest(&rig, &thick) < 10 * GIB + 1);
    rig.made(sized("thick", 4 * GIB, &thick));
    let left = largest(&rig, &thin);
    assert!(left > 17 * GIB && left <= 18 * GIB, "{left}");
    rig.made(sized("thin", 9 * GIB, &thin));
    let left = largest(&rig, &thick);
    assert!(left > 2 * GIB && left <= 3 * GIB, "9 GiB promised thrice need 3 GiB: {left}");
    rig.fails(Code::ResourceExhausted, sized("more", 4 * GIB, &thick));
}

#[test]
fn a_full_disk_has_nothing() {
    for free in [0, 4096] {
        let rig = Rig::on(disk(10 * GIB, 1 << 20), &["--overcommit", "10", "--reserve", "2Gi"]);
        rig.kernel.set_space(10 << 30, free);
        rig.kernel.set_space_at(DIRECTORIES_DIR, 10 << 30, free);
        for parameters in [
            &[("provisioning", "thin")][..],
            &[("provisioning", "thick")],
            &[("backend", "directory"), ("pool", "directories")],
        ] {
            let reply = rig.ok(capacity(parameters));
            assert_eq!((reply.available_capacity, reply.maximum_volume_size), (0, Some(0)), "{parameters:?}");
        }
        rig.fails(Code::ResourceExhausted, create("v", mount()));
    }
}

#[test]
fn the_largest_volume_is_bounded_by_the_flag() {
    let rig = Rig::with(&["--max-volume-size", "2Gi"]);
    let reply = rig.ok(capacity(&[]));
    assert!(reply.available_capacity > 90 * GIB);
    assert_eq!(reply.maximum_volume_size, Some(2 * GIB));
    rig.made(sized("v", 2 * GIB, &[]));
    rig.fails(Code::OutOfRange, sized("w", 2 * GIB + 1, &[]));
}

/// Without the flag there is no limit but the room, and what one file of the pool's filesystem can have.
#[test]
fn a_large_pool_has_large_volumes() {
    const TIB: i64 = 1 << 40;
    for (fs_type, most) in [(FsType::Ext4, 16 * TIB - 4096), (FsType::Xfs, 60 * TIB)] {
        let kernel = FakeKernel::new();
        kernel.add_disk("/pools/fast", fs_type, 6 << 40);
        let rig = Rig::on(kernel, &["--pool", "fast=/pools/fast,reserve=0,overcommit=10"]);
        let largest = rig.ok(capacity(&[("pool", "fast")])).maximum_volume_size.expect("a size");
        assert!(largest <= most && largest > 15 * TIB, "{fs_type}: {largest}");
        if fs_type == FsType::Ext4 {
            rig.fails(Code::OutOfRange, sized("w", 16 * TIB, &[("pool", "fast")]));
        }
        rig.made(sized("v", 6 * TIB, &[("pool", "fast")]));
    }
}

#[test]
fn the_largest_volume_of_a_flag_is_possible() {
    const LARGEST: i64 = 5_000_000_000;
    let rig = Rig::with(&["--max-volume-size", "5G"]);
    let maximum = rig.ok(capacity(&[])).maximum_volume_size.expect("a maximum");
    assert!((LARGEST..LARGEST + 4096).contains(&maximum), "{maximum}");
    assert_eq!(rig.made(sized("v", LARGEST, &[])).info.capacity_bytes, maximum);
    rig.fails(Code::OutOfRange, sized("w", maximum + 1, &[]));
}

#[test]
fn the_smallest_volume_is_that_of_the_filesystem() {
    let rig = Rig::new();
    for (capability, minimum) in
        [(mount(), 4 * MIB), (fs("xfs"), 300 * MIB), (fs("btrfs"), 256 * MIB), (block(), 4096)]
    {
        let request =
            csi::GetCapacityRequest { volume_capabilities: vec![capability.clone()], ..capacity(&[]) };
        assert_eq!(rig.ok(request).minimum_volume_size, Some(minimum));
        let request = csi::CreateVolumeRequest {
            capacity_range: range(1, minimum),
            ..create(&format!("v{minimum}"), capability)
        };
        assert_eq!(rig.made(request).info.capacity_bytes, minimum);
    }
}

#[test]
fn too_little_room_for_the_smallest_volume_is_zero() {
    let rig = Rig::on(disk(10 * GIB, 200 * MIB), &[]);
    let request = csi::GetCapacityRequest { volume_capabilities: vec![fs("xfs")], ..capacity(&[]) };
    assert_eq!(rig.ok(request).maximum_volume_size, Some(0));
}

#[test]
fn elsewhere_and_for_what_cannot_be_there_is_nothing() {
    let rig = Rig::new();
    let zero = |request: csi::GetCapacityRequest| {
        let reply = rig.ok(request);
        assert_eq!((reply.available_capacity, reply.maximum_volume_size), (0, Some(0)));
    };
    let at = |topology| csi::GetCapacityRequest { accessible_topology: Some(topology), ..capacity(&[]) };
    let used =
        |capability| csi::GetCapacityRequest { volume_capabilities: vec![capability], ..capacity(&[]) };
    assert!(rig.ok(at(topology(NODE))).available_capacity > 0);
    assert!(rig.ok(at(csi::Topology::default())).available_capacity > 0);
    zero(at(topology("node-z")));
    zero(at(csi::Topology { segments: map(&[("zone", "z")]) }));
    assert!(rig.ok(used(block())).available_capacity > 0);
    zero(used(mode(Mode::MultiNodeMultiWriter)));
    zero(used(fs("ntfs")));
    zero(csi::GetCapacityRequest {
        parameters: map(&[("backend", "directory"), ("pool", "directories")]),
        ..used(block())
    });
}

#[test]
fn parameters_are_those_of_the_storage_class() {
    let rig = Rig::new();
    let raw = [
        ("csi.storage.k8s.io/fstype", "xfs"),
        ("csi.storage.k8s.io/provisioner-secret-name", "s"),
        ("provisioning", "thin"),
    ];
    assert!(rig.ok(capacity(&raw)).available_capacity > 0);
    for bad in [("kind", "fast"), ("pool", "none"), ("backend", "zfs")] {
        rig.fails(Code::InvalidArgument, capacity(&[bad]));
    }
}

#[test]
fn the_upkeep_of_each_block_is_not_promised() {
    let most = |per_block| {
        let kernel = disk(20 * GIB, 10 * GIB);
        kernel.set_upkeep("/var/lib", Upkeep { per_block, ..Upkeep::default() });
        largest(&Rig::on(kernel, &[]), &[("provisioning", "thick")])
    };
    let (without, with) = (most(0), most(1024));
    let expected = without * 4 / 5;
    assert!(with.abs_diff(expected) < 16 * MIB as u64, "{with} of {without}, expected {expected}");
}

/// It was mounted without quotas: what directories take of what they were promised is not known, so they count in full.
#[test]
fn a_pool_that_lost_its_quotas_has_less_room() {
    let flags = ["--pool", "limited=/pools/limited,reserve=0"];
    let kernel = FakeKernel::new();
    kernel.add_disk("/pools/limited", FsType::Xfs, 20 << 30);
    kernel.set_quotas("/pools/limited", true);
    let rig = Rig::on(kernel, &flags);
    let directories = [("backend", "directory"), ("pool", "limited")];
    let (vol, target) = rig.in_use(sized("v", 8 * GIB, &directories));
    rig.kernel.write_file(format!("{target}/file"), &vec![7; 64 << 20]).expect("write");
    rig.rest(&vol);
    let rig = rig.restart_with(&flags);
    let images = [("pool", "limited")];
    let before = largest(&rig, &images);
    rig.kernel.set_quotas("/pools/limited", false);
    let rig = rig.restart_with(&flags);
    let after = largest(&rig, &images);
    assert!((before - after).abs_diff(64 * MIB) < MIB as u64, "{after} after {before}");
    rig.made(sized("image", after, &images));
}
