//! Tools that take long, such as the repair of a huge filesystem: as long as they come further they are left alone, and
//! callers hear how far they are. A wrapper in the tool's place, in a mount namespace of the driver's own, makes the
//! real one late.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use hostloop::wire::csi;
use tonic::{Code, Status};

use crate::client;
use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::namespace::in_own_namespace;
use crate::harness::process::binary;
use crate::harness::{Csi, Kind, Vol, World, eventually, kernel, run, text};

const LEN: usize = 1 << 20;

/// Where the driver looks for tools (in this order).
const PLACES: [&str; 4] = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// A driver that finds this in a tool's place: the lines of a shell, which get the program's arguments, and where `$real`
/// is the tool itself.
pub fn start_with(world: &mut World, tool: &str, script: &str) {
    let mut places = PLACES.iter().map(|place| format!("{place}/{tool}"));
    let real = places.find(|place| Path::new(place).exists()).expect("the tool");
    let (copy, wrapper) = (world.dir.join("real"), world.dir.join("wrapper"));
    std::fs::copy(&real, &copy).expect("copy");
    std::fs::write(&wrapper, format!("#!/bin/sh\nreal='{}'\n{script}\n", text(&copy))).expect("write");
    std::fs::set_permissions(&wrapper, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let line = format!("mount --bind '{}' {real} && exec \"$@\"", text(&wrapper));
    let mut start = in_own_namespace(&world.dir, &[]);
    start.args(["sh", "-c", &line, "sh", binary()]).args(world.arguments());
    world.start_as(&mut start);
}

/// A volume that its superblock marks as having errors, so that it is repaired before the next mount.
fn damaged(world: &World, name: &str) -> csi::Volume {
    let vol = Vol::create(world, Kind::Ext4, name, Kind::Ext4.size(), &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
    let [number] = kernel::loops(&world.volume_directory(vol.id()))[..] else { panic!("one device") };
    std::fs::write(format!("/sys/fs/ext4/loop{number}/trigger_fs_error"), "for a test").expect("an error");
    run("sync", &["--file-system", text(&vol.target("a"))]);
    vol.down();
    vol.info.clone()
}

/// NodeStageVolume of somebody who waits as long as it takes.
fn stage_meanwhile(world: &World, volume: &csi::Volume) -> Receiver<(Result<(), Status>, Duration)> {
    let (socket, volume) = (world.socket.clone(), volume.clone());
    let staging = Vol::of(world, Kind::Ext4, volume.clone()).staging();
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let started = Instant::now();
        let mode = csi::volume_capability::access_mode::Mode::SingleNodeMultiWriter;
        let staged = Csi::new(&socket).call(csi::NodeStageVolumeRequest {
            volume_context: volume.volume_context,
            ..client::stage(&volume.volume_id, &staging, Kind::Ext4.capability(mode))
        });
        let _ = tell.send((staged.map(drop), started.elapsed()));
    });
    told
}

/// Waits until another call hears that the tool works on the volume.
#[track_caller]
fn is_told(vol: &Vol<'_>) {
    eventually("callers hear of it", || {
        let status = vol.stage().expect_err("it is being repaired");
        assert_eq!(status.code(), Code::Aborted, "{status}");
        status.message().contains("e2fsck works for ") && status.message().contains(" read, ")
    });
}

fn in_use(vol: &Vol<'_>) {
    vol.publish("a").expect("NodePublishVolume");
}

#[test]
fn a_repair_that_works_is_told_of_and_ends_by_itself() {
    let mut world = World::new(&[]);
    let volume = damaged(&world, "v");
    world.take_driver().stop();
    let (began, go_on) = (world.dir.join("began"), world.dir.join("go on"));
    let wait =
        format!("while [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done", text(&world.dir), text(&go_on));
    start_with(&mut world, "e2fsck", &format!(": > '{}'\n{wait}\nexec \"$real\" \"$@\"", text(&began)));
    let staged = stage_meanwhile(&world, &volume);
    eventually("the repair begins", || began.exists());
    let vol = Vol::of(&world, Kind::Ext4, volume.clone());
    is_told(&vol);
    // Others do not wait for it.
    let other = Vol::create(&world, Kind::Xfs, "other", Kind::Xfs.size(), &[]);
    other.up();
    other.remove();
    let status = vol.delete().expect_err("it is being repaired");
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(staged.try_recv().is_err(), "it goes on");

    std::fs::write(&go_on, "").expect("write");
    let (staged, _) = staged.recv_timeout(Duration::from_secs(60)).expect("it ends");
    staged.expect("NodeStageVolume");
    vol.stage().expect("the same again");
    drop(vol);
    leaves_with_its_data(&mut world, volume);
}

/// By a driver with the tools of the machine.
fn leaves_with_its_data(world: &mut World, volume: csi::Volume) {
    let vol = Vol::of(world, Kind::Ext4, volume.clone());
    vol.unstage().expect("NodeUnstageVolume");
    drop(vol);
    world.take_driver().stop();
    world.start();
    let vol = Vol::of(world, Kind::Ext4, volume);
    assert!(world.csi.health(vol.id()).expect("health").health_statuses.is_empty(), "it was repaired");
    vol.stage().expect("NodeStageVolume");
    in_use(&vol);
    assert_eq!(read_at(&vol.file("a"), 0, LEN), pattern(1, LEN));
    vol.remove();
}
