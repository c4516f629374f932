//! What a pool promised can be written, although filesystems take a part of their space for themselves.

use hostloop::kernel::Upkeep;
use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

const BLOCK: u64 = 4096;

/// A pool on a disk of its own, and what its filesystem takes.
fn pool_on(fs_type: FsType, bytes: u64, upkeep: Upkeep) -> Rig {
    let kernel = FakeKernel::new();
    kernel.add_disk("/var/lib/fast", fs_type, bytes);
    kernel.set_upkeep("/var/lib/fast", upkeep);
    Rig::on(kernel, &["--pool", "fast=/var/lib/fast,reserve=0"])
}

fn largest(rig: &Rig, parameters: &[(&str, &str)]) -> u64 {
    rig.ok(capacity(parameters)).maximum_volume_size.expect("a maximum") as u64
}

fn raw(rig: &Rig, name: &str, bytes: u64, parameters: &[(&str, &str)]) -> Vol {
    rig.made(csi::CreateVolumeRequest {
        capacity_range: range(bytes as i64, 0),
        volume_capabilities: vec![block()],
        ..create_with(name, parameters)
    })
}

/// Every second block, and then the others: none lies beside the one before it.
fn write_all(rig: &Rig, target: &str, bytes: u64, round: u8) {
    let blocks = bytes / BLOCK;
    for at in (0..blocks).step_by(2).chain((1..blocks).step_by(2)) {
        let written = rig.kernel.write(target, at * BLOCK, &[round; BLOCK as usize]);
        written.unwrap_or_else(|error| panic!("round {round}, block {at} of {blocks}: {error}"));
    }
}

#[test]
fn the_largest_volume_can_be_written_twice() {
    for fs_type in [FsType::Ext4, FsType::Xfs, FsType::Btrfs] {
        let upkeep = Upkeep { per_block: 34, unusable: 1 << 20, ..Upkeep::default() };
        for provisioning in ["thick", "thin"] {
            let rig = pool_on(fs_type, 32 << 20, upkeep);
            let parameters = [("pool", "fast"), ("provisioning", provisioning)];
            let bytes = largest(&rig, &parameters);
            assert!(bytes > 30 << 20, "{fs_type} {provisioning}: {bytes}");
            let vol = raw(&rig, "v", bytes, &parameters);
            rig.stage(&vol);
            let target = rig.publish(&vol, "pod");
            for round in [1, 2] {
                write_all(&rig, &target, bytes, round);
            }
        }
    }
}

#[test]
fn a_volume_with_a_snapshot_can_be_written_again() {
    for fs_type in [FsType::Xfs, FsType::Btrfs] {
        let whole_extents = fs_type == FsType::Btrfs;
        let upkeep = Upkeep { per_block: 34, unusable: 1 << 16, whole_extents, metadata: None };
        let rig = pool_on(fs_type, 6 << 20, upkeep);
        let parameters = [("pool", "fast"), ("provisioning", "thin")];
        let bytes = (largest(&rig, &parameters) / 2 - BLOCK) / BLOCK * BLOCK;
        let vol = raw(&rig, "v", bytes, &parameters);
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod");
        write_all(&rig, &target, bytes, 1);
        rig.ok(snapshot("s", &vol));
        write_all(&rig, &target, bytes, 2);
    }
}

/// Its blocks are there already: what is free now does not limit it, as it does a copy.
#[test]
fn a_snapshot_that_shares_blocks_needs_no_free_space() {
    let rig =
        Rig::on(machine_with_fast(FsType::Xfs), &["--pool", "fast=/pools/fast,reserve=0,overcommit=100"]);
    let request = csi::CreateVolumeRequest { parameters: map(&[("pool", "fast")]), ..create("v", block()) };
    let (vol, target) = rig.in_use(request);
    rig.kernel.write(&target, 0, &[1; 32 << 20]).expect("write");
    rig.kernel.set_space_at(FAST, 100 << 30, 4 << 20);
    let rig = rig.restart_with(&["--pool", "fast=/pools/fast,reserve=0,overcommit=100"]);
    rig.ok(snapshot("s", &vol));
}

/// What another snapshot keeps already is kept once, and what was written since counts before it is on the disk.
#[test]
fn a_snapshot_needs_room_for_what_no_other_keeps() {
    const FLAGS: [&str; 2] = ["--pool", "fast=/pools/fast,reserve=0"];
    for synced in [true, false] {
        let rig = Rig::on(machine_with_fast(FsType::Xfs), &FLAGS);
        let request =
            csi::CreateVolumeRequest { parameters: map(&[("pool", "fast")]), ..create("v", block()) };
        let (vol, target) = rig.in_use(request);
        rig.kernel.write(&target, 0, &[1; 32 << 20]).expect("write");
        rig.ok(snapshot("one", &vol));
        // 64 MiB are promised to the volume and 32 MiB kept; 16 MiB are left.
        rig.kernel.set_space_at(FAST, 100 << 30, 80 << 20);
        let rig = rig.restart_with(&FLAGS);
        rig.ok(snapshot("two", &vol));
        rig.kernel.write(&target, 0, &[2; 32 << 20]).expect("write");
        if synced {
            rig.kernel.sync(FAST).expect("sync");
        }
        let rig = rig.restart_with(&FLAGS);
        rig.fails(Code::ResourceExhausted, snapshot("three", &vol));
    }
}

/// What a snapshot keeps counts from the moment that it is there, and no longer than it is.
#[test]
fn a_deleted_snapshot_gives_back_what_it_kept() {
    let rig = Rig::on(machine_with_fast(FsType::Xfs), &["--pool", "fast=/pools/fast,reserve=0"]);
    let parameters = [("pool", "fast")];
    let request = csi::CreateVolumeRequest { parameters: map(&parameters), ..create("v", block()) };
    let (vol, target) = rig.in_use(request);
    rig.kernel.write(&target, 0, &[1; 32 << 20]).expect("write");
    let before = largest(&rig, &parameters);
    let cut = rig.cut("s", &vol);
    let kept = before - largest(&rig, &parameters);
    assert!(kept.abs_diff(32 << 20) < 1 << 20, "{kept}");
    rig.ok(delete_snapshot(&cut.snapshot_id));
    let after = largest(&rig, &parameters);
    assert!(after.abs_diff(before) < 1 << 20, "{after}, before {before}");
}

/// Both can come to own every block, and a few that are left keep all of what they shared.
#[test]
fn a_clone_needs_room_for_what_it_shares() {
    const FLAGS: [&str; 2] = ["--pool", "fast=/var/lib/fast,reserve=0"];
    for (whole_extents, provisioning, free, fits) in [
        // 64 MiB are allocated and promised already, as many are promised anew, and as many shared.
        (true, "thin", (128 << 20) + BLOCK, false),
        (true, "thin", (128 << 20) + 2 * BLOCK, true),
        // A copy shares nothing.
        (true, "thick", (64 << 20) + BLOCK, false),
        (true, "thick", (64 << 20) + 2 * BLOCK, true),
        (false, "thin", (64 << 20) + BLOCK, false),
        (false, "thin", (64 << 20) + 2 * BLOCK, true),
    ] {
        let rig = pool_on(FsType::Btrfs, 1 << 30, Upkeep { whole_extents, ..Upkeep::default() });
        let vol = raw(&rig, "v", SIZE as u64, &[("pool", "fast"), ("provisioning", "thin")]);
        rig.stage(&vol);
        let target = rig.publish(&vol, "pod");
        rig.kernel.write(&target, 0, &[1; SIZE as usize]).expect("write");
        rig.kernel.sync(rig.directory(&vol)).expect("sync");
        rig.rest(&vol);
        rig.kernel.set_space_at("/var/lib/fast", 1 << 30, free);
        let rig = rig.restart_with(&FLAGS);
        let parameters = [("pool", "fast"), ("provisioning", provisioning)];
        let request = copy("c", from_volume(&vol.id), block(), &parameters);
        match fits {
            true => drop(rig.made(request)),
            false => drop(rig.fails(Code::ResourceExhausted, request)),
        }
    }
}

#[test]
fn a_volume_becomes_thick_with_the_last_free_bytes() {
    // Two blocks are for records.
    let (size, records) = (SIZE as u64, 2 * BLOCK);
    for (overcommit, written, free, fits) in [
        // What is free limits it where more is promised than there is,
        (4, 0, size - BLOCK, false),
        (4, 0, size, true),
        // and else what is promised.
        (1, 0, size - BLOCK, false),
        (1, 0, size, true),
        // What it has already it keeps.
        (1, size / 2, size / 2 - BLOCK, false),
        (1, size / 2, size / 2, true),
    ] {
        let rig = pool_on(FsType::Xfs, 1 << 30, Upkeep::default());
        let thin = [("pool", "fast"), ("provisioning", "thin")];
        let vol = raw(&rig, "v", size, &thin);
        let mut fill = vec![(vol.clone(), written)];
        if overcommit > 1 {
            fill.push((raw(&rig, "w", size, &thin), size));
        }
        for (vol, bytes) in fill {
            rig.stage(&vol);
            rig.kernel.write(rig.publish(&vol, "pod"), 0, &vec![1; bytes as usize]).expect("write");
            rig.kernel.sync(rig.directory(&vol)).expect("sync");
        }
        rig.kernel.set_space_at("/var/lib/fast", 1 << 30, free + records);
        let rig =
            rig.restart_with(&["--pool", &format!("fast=/var/lib/fast,reserve=0,overcommit={overcommit}")]);
        let request = csi::ControllerModifyVolumeRequest {
            volume_id: vol.id.clone(),
            mutable_parameters: map(&[("provisioning", "thick")]),
            ..Default::default()
        };
        match fits {
            true => drop(rig.ok(request)),
            false => drop(rig.fails(Code::ResourceExhausted, request)),
        }
    }
}

/// Where it was copied, the room for that is held as long as the copy runs.
#[test]
fn a_deleted_copy_gives_back_its_room() {
    let kernel = FakeKernel::new();
    kernel.add_disk("/var/lib/fast", FsType::Ext4, 1 << 30);
    let rig = Rig::on(kernel, &["--pool", "fast=/var/lib/fast,reserve=0"]);
    let vol = raw(&rig, "v", SIZE as u64, &[("pool", "fast")]);
    rig.stage(&vol);
    let target = rig.publish(&vol, "pod");
    rig.kernel.write(&target, 0, &[1; SIZE as usize]).expect("write");
    rig.rest(&vol);
    let thick = [("pool", "fast"), ("provisioning", "thick")];
    let before = largest(&rig, &thick);
    let cut = rig.cut("s", &vol);
    assert!(before - largest(&rig, &thick) >= SIZE as u64);
    rig.ok(delete_snapshot(&cut.snapshot_id));
    let after = largest(&rig, &thick);
    assert!(after.abs_diff(before) < 1 << 20, "{after}, before {before}");
}
