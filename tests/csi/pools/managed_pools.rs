//! Pools with a filesystem of the driver's own: made once, found again, never twice on one image.

mod devices;
mod refusals;
mod walk;

use hostloop::kernel::{FileId, Os};
use hostloop_fake_kernel::{FakeKernel, Kill};
use nix::errno::Errno;

use crate::harness::Server;
use crate::life::*;
use crate::support::*;

const IMAGE: &str = "/srv/copies.img";
const TARGET: &str = "/var/lib/hostloop/pools/copies";
const POOL: &str = "copies=/srv/copies.img,kind=image,size=1Gi";
const LARGER: &str = "copies=/srv/copies.img,kind=image,size=2Gi";
const BYTES: u64 = 1 << 30;

fn machine() -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.create_directories("/srv");
    kernel
}

fn rig() -> Rig {
    Rig::on(machine(), &["--pool", POOL])
}

/// Why a new process on this machine has no pool; the other one it has.
#[track_caller]
fn refused(kernel: &FakeKernel, pool: &str) -> String {
    kernel.restart();
    let rig = Rig::try_on(kernel.clone(), &["--pool", pool]).expect("it starts");
    let name = pool.split('=').next().expect("a name");
    assert_eq!(rig.ok(capacity(&[("pool", name)])).available_capacity, 0);
    rig.fails(tonic::Code::ResourceExhausted, create_with("refused", &[("pool", name)]));
    let found = rig.ok(hostloop::wire::csi::NodeGetStorageHealthRequest::default()).backend_health;
    let error =
        found.iter().find(|entry| entry.reason == "PoolUnavailable").expect("a trouble").message.clone();
    assert!(error.contains(&format!("pool {name}")) && !error.contains('\n'), "{error}");
    error
}

fn id(kernel: &FakeKernel, file: &str) -> FileId {
    kernel.stat(file).expect("a file").id
}

fn devices_of(kernel: &FakeKernel, file: &str) -> Vec<u32> {
    let id = id(kernel, file);
    kernel.loops().iter().filter(|device| device.backing == Some(id)).map(|device| device.number).collect()
}

fn formats_of(kernel: &FakeKernel, file: &str) -> usize {
    let id = id(kernel, file);
    kernel.formats().iter().filter(|(file, _)| *file == id).count()
}

/// The image is whole and mounted once, by its only device.
#[track_caller]
fn is_up(kernel: &FakeKernel, bytes: u64) {
    assert_eq!(kernel.stat(IMAGE).map(|stat| (stat.size, stat.allocated)), Some((bytes, bytes)));
    let mounts: Vec<_> =
        kernel.mounts().into_iter().filter(|mount| mount.target.as_os_str() == TARGET).collect();
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    let devices = devices_of(kernel, IMAGE);
    assert_eq!(devices.len(), 1, "{devices:?}");
    assert_eq!(mounts[0].source, format!("/dev/loop{}", devices[0]));
    assert!(!kernel.exists("/srv/copies.img.hostloop-new") && !kernel.exists(format!("{TARGET}.check")));
    assert_eq!(formats_of(kernel, IMAGE), 1, "made once");
    assert_eq!(kernel.hazards(), Vec::<String>::new());
}

fn in_pool(name: &str) -> hostloop::wire::csi::CreateVolumeRequest {
    create_with(name, &[("pool", "copies")])
}

/// A volume in the pool, in use, with data.
fn volume(rig: &Rig) -> (Vol, String) {
    let vol = rig.made(in_pool("v"));
    rig.stage(&vol);
    let file = format!("{}/file", rig.publish(&vol, "pod"));
    rig.kernel.write_file(&file, b"data").expect("write");
    rig.kernel.sync(&file).expect("sync");
    (vol, file)
}

#[test]
fn an_image_is_made_once_and_serves_volumes() {
    let rig = rig();
    is_up(&rig.kernel, BYTES);
    let device = rig.kernel.loops()[0].clone();
    assert!(device.autoclear && device.direct_io && !device.read_only);
    assert!(!rig.kernel.loop_discards(device.number), "its image keeps its blocks");
    let options = rig.kernel.make_options();
    assert_eq!(options[0].extra, ["-m", "reflink=1"]);
    let (vol, file) = volume(&rig);
    let image = format!("{TARGET}/volumes/{}/disk.img", vol.id);
    assert_eq!(devices_of(&rig.kernel, &image).len(), 1);
    assert_eq!(rig.kernel.read_file(&file).expect("read"), b"data");
    let free = rig.ok(capacity(&[("pool", "copies")])).available_capacity;
    assert!(free > 0 && free < BYTES as i64, "{free}: what the pool has, not its disk");
    rig.unpublish(&vol, "pod");
    rig.unstage(&vol);
    rig.ok(vol.delete_request());
    is_up(&rig.kernel, BYTES);
}

#[test]
fn a_filesystem_is_found_again_by_every_start() {
    for fs_type in ["xfs", "btrfs"] {
        let mut rig = Rig::on(machine(), &["--pool", &format!("{POOL},fs={fs_type}")]);
        let (vol, file) = volume(&rig);
        let (mounts, loops) = (rig.kernel.mounts(), rig.kernel.loops());
        rig.kernel.clear_steps();
        rig.restart();
        assert!(rig.kernel.steps().iter().all(|step| step.name != "grow"), "it has its size");
        assert_eq!((rig.kernel.mounts(), rig.kernel.loops()), (mounts, loops), "taken over");
        for power in [false, true] {
            match power {
                true => rig.power_cut(),
                false => rig.reboot(),
            }
            is_up(&rig.kernel, BYTES);
            rig.stage(&vol);
            rig.publish(&vol, "pod");
            assert_eq!(rig.kernel.read_file(&file).expect("read"), b"data", "{fs_type} {power}");
        }
        rig.unpublish(&vol, "pod");
        rig.unstage(&vol);
        rig.ok(vol.delete_request());
    }
}

/// The mount has gone, and a volume keeps the device: the namespace that had the mount is no more. The fake has no
/// namespaces; an open device is what comes close.
#[test]
fn a_device_that_is_only_open_is_used_and_checked() {
    let mut rig = rig();
    let device = devices_of(&rig.kernel, IMAGE)[0];
    let hold = rig.kernel.open(format!("/dev/loop{device}")).expect("open");
    let kernel = rig.kernel.clone();
    kernel.kill();
    drop(rig);
    kernel.restart();
    kernel.unmount_foreign(TARGET).expect("unmount");
    rig = Rig::on(kernel, &["--pool", POOL]);
    assert_eq!(devices_of(&rig.kernel, IMAGE), [device]);
    drop(hold);
    is_up(&rig.kernel, BYTES);
}

/// The journal is replayed at a mount point of its own, so that a start that is killed there is not taken for one
/// that has checked the filesystem.
#[test]
fn a_check_that_was_cut_off_is_done_again() {
    let checks = |kernel: &FakeKernel| {
        let steps = kernel.steps();
        let check =
            |step: &&hostloop_fake_kernel::Step| step.name == "mount" && step.subject.contains(".check");
        steps.iter().filter(check).map(|step| step.number).collect::<Vec<_>>()
    };
    let start = |kernel: &FakeKernel| {
        kernel.clear_steps();
        drop(Rig::on(kernel.clone(), &["--pool", POOL]));
        checks(kernel)
    };
    for step in 0..3 {
        let kernel = rebooted();
        let at = start(&kernel);
        assert_eq!(at.len(), 1, "a pool that nobody has mounted is checked");
        kernel.restart();
        assert!(start(&kernel).is_empty(), "one that is mounted is not");
        let kernel = rebooted();
        kernel.kill_at(at[0] + step, Kill::After);
        assert!(Rig::try_on(kernel.clone(), &["--pool", POOL]).is_err());
        kernel.restart();
        assert_eq!(start(&kernel).len(), 1, "cut off {step} steps after its mount");
        is_up(&kernel, BYTES);
    }
}

/// Somebody has attached it by hand, with the page cache and discard: it is used, as there must be no second one, and
/// made what ours are.
#[test]
fn a_device_that_somebody_attached_is_adopted() {
    let kernel = machine();
    drop(Rig::on(kernel.clone(), &["--pool", POOL]));
    kernel.reboot();
    let theirs = kernel.attach_foreign(IMAGE, false).expect("attach");
    assert!(!theirs.direct_io && kernel.loop_discards(theirs.number));
    let rig = Rig::on(kernel, &["--pool", POOL]);
    is_up(&rig.kernel, BYTES);
    assert_eq!(devices_of(&rig.kernel, IMAGE), [theirs.number]);
    assert!(rig.kernel.loops()[0].direct_io && !rig.kernel.loop_discards(theirs.number));
}

#[test]
fn a_pool_grows_and_never_shrinks() {
    let rig = rig();
    let (vol, file) = volume(&rig);
    let rig = rig.restart_with(&["--pool", POOL]);
    let before = rig.ok(capacity(&[("pool", "copies")])).available_capacity;
    rig.kernel.clear_steps();
    let mut rig = rig.restart_with(&["--pool", LARGER]);
    is_up(&rig.kernel, 2 * BYTES);
    let steps = rig.kernel.steps();
    let synced = steps.iter().position(|step| step.name == "sync_file" && step.subject == IMAGE);
    assert!(synced.is_some() && synced < steps.iter().position(|step| step.name == "grow"), "{steps:?}");
    let after = rig.ok(capacity(&[("pool", "copies")])).available_capacity;
    assert_eq!(after - before, BYTES as i64);
    rig = rig.restart_with(&["--pool", POOL]);
    is_up(&rig.kernel, 2 * BYTES);
    assert_eq!(rig.ok(capacity(&[("pool", "copies")])).available_capacity, after);
    rig.reboot();
    is_up(&rig.kernel, 2 * BYTES);
    rig.stage(&vol);
    rig.publish(&vol, "pod");
    assert_eq!(rig.kernel.read_file(&file).expect("read"), b"data");
    assert_eq!(rig.ok(capacity(&[("pool", "copies")])).available_capacity, after);
}

/// A loop device of somebody's stands for the disk.
#[test]
fn a_block_device_is_made_once_and_grown() {
    let kernel = machine();
    kernel.write_file("/srv/disk", b"").expect("write");
    kernel.os().images.set_size("/srv/disk".as_ref(), BYTES).expect("truncate");
    let disk = kernel.attach_foreign("/srv/disk", false).expect("attach");
    let flag = format!("copies={},kind=device", disk.path().display());
    let mut rig = Rig::on(kernel.clone(), &["--pool", &flag]);
    let (_, file) = volume(&rig);
    rig.restart();
    assert_eq!(rig.kernel.read_file(&file).expect("read"), b"data");
    assert_eq!(rig.mounts_at(TARGET), 1);
    let before = rig.ok(capacity(&[("pool", "copies")])).available_capacity;
    let os = kernel.spawn();
    os.images.set_size("/srv/disk".as_ref(), 2 * BYTES).expect("truncate");
    os.loops.update_size(&disk).expect("resize");
    rig.restart();
    let after = rig.ok(capacity(&[("pool", "copies")])).available_capacity;
    assert_eq!(after - before, BYTES as i64);
    assert_eq!(formats_of(&kernel, "/srv/disk"), 1);
    assert_eq!(kernel.hazards(), Vec::<String>::new());
}

fn with_data() -> FakeKernel {
    let rig = rig();
    volume(&rig);
    let kernel = rig.kernel.clone();
    kernel.kill();
    drop(rig);
    kernel
}

fn rebooted() -> FakeKernel {
    let kernel = with_data();
    kernel.reboot();
    kernel
}
