//! A filesystem is as large as its volume when it is staged: whatever was cut off, and whatever the process may do.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::kernel::{self, pattern, read_at, space, write_at};
use crate::harness::volume::clone_request;
use crate::harness::{Kind, MIB, Vol, World, attach, eventually, output, run, text};

const GIB: u64 = 1 << 30;
const LEN: usize = 4 << 20;

fn is_grown(vol: &Vol<'_>, bytes: u64) {
    let (total, _) = space(&vol.target("a"));
    assert!(total > bytes / 10 * 8, "{:?}: {total} of {bytes}", vol.kind);
    assert_eq!(read_at(&vol.file("a"), 0, LEN), pattern(1, LEN), "its data are there");
    // All of it can be used.
    let late = bytes / 2;
    write_at(&vol.file("a"), late, &pattern(2, LEN)).expect("write");
    assert_eq!(read_at(&vol.file("a"), late, LEN), pattern(2, LEN));
}

fn with_data<'a>(world: &'a World, kind: Kind, name: &str) -> Vol<'a> {
    let vol = Vol::create(world, kind, name, kind.size(), &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
    vol
}

/// A copy and the volume itself, made larger while it is not in use.
fn grows_before_it_is_used(world: &World) {
    let source = with_data(world, Kind::Ext4, "source");
    let bytes = 4 * source.bytes();
    let request = clone_request(Kind::Ext4, "clone", bytes, source.id(), &[]);
    let clone = Vol::of(world, Kind::Ext4, world.csi.create(request).expect("CreateVolume"));
    clone.up();
    is_grown(&clone, bytes);
    clone.remove();

    source.down();
    source.expand(bytes).expect("ControllerExpandVolume");
    source.up();
    is_grown(&source, bytes);
    source.node_expand("a", bytes).expect("NodeExpandVolume has nothing to do");
    source.down();
    let image = world.image(source.id());
    let left = std::fs::read_dir(image.parent().expect("a directory")).expect("list").count();
    assert_eq!(left, 3, "only the image, its mark and its record");
    run("e2fsck", &["-f", "-n", text(&image)]);
    source.up();
    assert_eq!(read_at(&source.file("a"), 0, LEN), pattern(1, LEN));
    source.remove();
}

#[test]
fn ext4_grows_before_it_is_used() {
    let world = World::new(&[]);
    grows_before_it_is_used(&world);
    world.finish();
}

#[test]
fn ext4_grows_before_use_where_blocks_are_shared() {
    let world = World::on("xfs", 2 * GIB, &[]);
    grows_before_it_is_used(&world);
    world.finish();
}

/// A thick one keeps its promise.
#[test]
fn thick_ext4_grows_before_it_is_used() {
    let world = World::new(&[]);
    let thick = [("provisioning", "thick")];
    let vol = Vol::create(&world, Kind::Ext4, "thick", 64 * MIB, &thick);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
    vol.down();
    vol.expand(256 * MIB).expect("ControllerExpandVolume");
    vol.up();
    is_grown(&vol, 256 * MIB);
    let allocated = kernel::allocated(&world.image(vol.id()));
    assert!(allocated >= 256 * MIB, "{allocated}");
    vol.remove();
    world.finish();
}

/// The same mount, made by a driver that was killed before the growth.
#[test]
fn a_staged_filesystem_grows_with_the_retry() {
    let world = World::new(&[]);
    for kind in [Kind::Xfs, Kind::Btrfs] {
        let vol = with_data(&world, kind, &format!("{kind:?}"));
        vol.down();
        let bytes = 2 * vol.bytes();
        vol.expand(bytes).expect("ControllerExpandVolume");
        let device = attach(&world.image(vol.id()), &[]);
        run("mount", &[&device, text(&vol.staging())]);
        let (before, _) = space(&vol.staging());
        vol.up();
        let (total, _) = space(&vol.target("a"));
        assert!(total > before + vol.bytes() / 10 * 8, "{kind:?}: {total} after {before}");
        assert_eq!(read_at(&vol.file("a"), 0, LEN), pattern(1, LEN));
        vol.remove();
    }
    world.finish();
}

/// A program that this driver runs, and not that of another test.
fn tool(driver: u32, name: &str) -> Option<i32> {
    let processes = std::fs::read_dir("/proc").expect("proc");
    let pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.into_iter().find(|pid| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        command.split(|b| *b == 0).next().is_some_and(|program| program.ends_with(name.as_bytes()))
            && status.lines().any(|line| line == format!("PPid:\t{driver}"))
    })
}

/// Kills the tool and the driver while the filesystem grows: it is whole afterwards, and grows with the retry.
#[test]
fn a_growth_that_is_killed_loses_nothing() {
    let mut world = World::new(&[]);
    let (id, volume) = {
        let vol = with_data(&world, Kind::Ext4, "volume");
        vol.down();
        (vol.id().to_owned(), vol.info.clone())
    };
    let (mut bytes, mut killed) = (GIB, 0);
    for round in 0..6u64 {
        bytes += 2 * GIB;
        let driver = world.take_driver();
        let vol = Vol::of(&world, Kind::Ext4, volume.clone());
        vol.expand(bytes).expect("ControllerExpandVolume");
        std::thread::scope(|scope| {
            let staged = scope.spawn(|| vol.stage());
            let started = Instant::now();
            while started.elapsed() < Duration::from_secs(20) && !staged.is_finished() {
                if let Some(pid) = tool(driver.pid(), "/resize2fs") {
                    std::thread::sleep(Duration::from_micros(700 * round));
                    if kill(Pid::from_raw(pid), Signal::SIGKILL).is_ok() {
                        killed += 1;
                        break;
                    }
                }
            }
            driver.kill();
            drop(staged.join());
        });
        if !kernel::mounts(&vol.staging()).is_empty() {
            run("umount", &[text(&vol.staging())]);
        }
        eventually("its device goes", || kernel::loops(&world.data).is_empty());
        whole(&world.image(&id));
        world.start();
        let vol = Vol::of(&world, Kind::Ext4, volume.clone());
        vol.up();
        is_grown(&vol, bytes);
        vol.down();
        let directory = world.volume_directory(&id);
        assert_eq!(
            std::fs::read_dir(directory).expect("list").count(),
            3,
            "only the image, its mark and its record"
        );
    }
    assert!(killed > 0, "no resize2fs was met");
    world.csi.delete(&id).expect("DeleteVolume");
    world.finish();
}

fn whole(image: &Path) {
    let checked = output("e2fsck", &["-f", "-n", text(image)]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stdout));
}
