//! A pool that was made into one of the other kind of volumes, with what it still holds.

use hostloop::model::FsType;
use hostloop_fake_kernel::FakeKernel;
use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

const LOOPS: [&str; 2] = ["--pool", "fast=/pools/fast,reserve=0"];
const DIRECTORIES: [&str; 2] = ["--pool", "fast=/pools/fast,reserve=0,directories=true"];
const IN_FAST: (&str, &str) = ("pool", "fast");

fn directory(name: &str) -> hostloop::wire::csi::CreateVolumeRequest {
    create_with(name, &[IN_FAST, ("backend", "directory"), ("enforcement", "none")])
}

fn rig(flags: &[&str]) -> Rig {
    let kernel = FakeKernel::new();
    kernel.add_disk(FAST, FsType::Xfs, 100 << 30);
    Rig::on(kernel, flags)
}

#[test]
fn loop_volumes_in_a_pool_of_directories_still_work() {
    let rig = rig(&LOOPS);
    let vol = rig.made(create_with("v", &[IN_FAST]));
    let cut = rig.cut("before", &vol);
    let rig = rig.restart_with(&DIRECTORIES);
    let said = rig.fails(Code::FailedPrecondition, snapshot("s", &vol));
    assert!(said.contains("clone the volume into another pool"), "{said}");
    rig.made(copy("elsewhere", from_volume(&vol.id), mount(), &[]));
    for (remove, left) in
        [(false, "size: 1, snapshots of loop volumes: 1"), (true, "size: 0, snapshots of loop volumes: 1")]
    {
        if remove {
            rig.ok(vol.delete_request());
        }
        let said = rig.fails(Code::ResourceExhausted, directory("d"));
        assert!(said.contains(left), "{said}");
    }
    rig.ok(delete_snapshot(&cut.snapshot_id));
    let vol = rig.made(directory("d"));
    rig.cut("of a directory", &vol);
}

#[test]
fn directories_in_a_pool_of_loop_volumes_still_work() {
    let rig = rig(&DIRECTORIES);
    let vol = rig.made(directory("d"));
    let rig = rig.restart_with(&LOOPS);
    rig.cut("s", &vol);
    rig.made(create_with("v", &[IN_FAST]));
    let said = rig.fails(Code::InvalidArgument, directory("more"));
    assert!(said.contains("not for directory volumes"), "{said}");
    rig.ok(vol.delete_request());
}
