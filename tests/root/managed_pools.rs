//! Pools with a filesystem of the driver's own. After everything that happens here its image has one loop device.

mod devices;
mod namespaces;
mod refusals;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::kernel::{self, digest, pattern, read_at, write_at};
use crate::harness::process::{binary, command, serve_flags};
use crate::harness::{
    Csi, Driver, Kind, MIB, Vol, World, attach, eventually, make_filesystem, mount_loop, output, run, text,
};

const SIZE: u64 = 1024 * MIB;

/// A world with a managed pool `copies`, and what belongs to it.
pub struct Managed {
    pub world: World,
    fs: &'static str,
    image: PathBuf,
    target: PathBuf,
}

impl Managed {
    pub fn new(fs: &'static str) -> Managed {
        let world = World::empty(&[]);
        let (image, target) = (world.dir.join("copies.img"), world.data.join("pools/copies"));
        let mut managed = Managed { world, fs, image, target };
        managed.set_size(SIZE);
        managed
    }

    fn flag(&self, bytes: u64) -> String {
        format!("copies={},kind=image,size={bytes},fs={}", text(&self.image), self.fs)
    }

    fn set_size(&mut self, bytes: u64) {
        let flag = self.flag(bytes);
        self.world.set_flags(&["--pool", &flag]);
    }

    /// The pool's device, which is the only one on its image and does direct I/O.
    #[track_caller]
    fn device(&self) -> u32 {
        let devices = devices_of(&self.image);
        assert_eq!(devices.len(), 1, "{devices:?}");
        assert_eq!(kernel::loop_attribute(devices[0], "dio"), "1");
        assert_eq!(kernel::loop_attribute(devices[0], "autoclear"), "1");
        devices[0]
    }

    /// A volume in the pool, in use.
    fn volume(&self, kind: Kind, name: &str) -> Vol<'_> {
        let vol = Vol::create(&self.world, kind, name, kind.size(), &[("pool", "copies")]);
        vol.up();
        vol
    }

    /// Starts a process that has to refuse the pool, gives what it says of it, and ends the process.
    #[track_caller]
    fn refused(&mut self) -> String {
        refused(&mut self.world)
    }

    /// Unmounts the pool, as an administrator does.
    pub fn unmount(&self) {
        run("umount", &[text(&self.target)]);
        eventually("the pool's device goes", || devices_of(&self.image).is_empty());
    }

    /// Ends everything.
    pub fn finish(mut self) {
        self.device();
        self.world.take_driver().stop();
        self.unmount();
        self.world.assert_nothing_left();
    }
}

/// Starts the driver, which has to refuse the pool `copies`, gives what it says of it, and ends the driver.
#[track_caller]
fn refused(world: &mut World) -> String {
    world.start();
    assert_eq!(world.csi.capacity(&[("pool", "copies")]).expect("GetCapacity"), 0);
    assert!(world.csi.capacity(&[]).expect("GetCapacity") > 0);
    let found = world.csi.storage_troubles().expect("NodeGetStorageHealth");
    world.take_driver().stop();
    let [(reason, line)] = &found[..] else { panic!("{found:?}") };
    assert!(reason == "PoolUnavailable" && line.contains("pool copies"), "{found:?}");
    line.clone()
}

/// The loop devices whose backing file this is, by the kernel's (device, inode) of it: a mount namespace that is gone
/// leaves no path.
fn devices_of(file: &Path) -> Vec<u32> {
    let stat = file.metadata().expect("the file");
    let (major, minor) = (nix::sys::stat::major(stat.dev()), nix::sys::stat::minor(stat.dev()));
    let listed = output("losetup", &["--list", "--noheadings", "--raw", "-O", "NAME,BACK-INO,BACK-MAJ:MIN"]);
    // It pads the numbers with escaped blanks.
    let listed = String::from_utf8(listed.stdout).expect("text").replace("\\x20", " ");
    let is_of = |line: &&str| {
        let fields: Vec<_> = line.split_whitespace().collect();
        fields[1..] == [stat.ino().to_string(), format!("{major}:{minor}")]
    };
    let number = |line: &str| {
        line.split_whitespace().next().and_then(|name| name.strip_prefix("/dev/loop")?.parse().ok())
    };
    listed.lines().filter(is_of).filter_map(number).collect()
}

fn filesystem_of(path: &Path) -> String {
    let found = output("findmnt", &["-n", "-o", "FSTYPE", text(path)]);
    String::from_utf8(found.stdout).expect("text").trim().to_owned()
}

/// Volumes live in the pool, on a disk that cannot reflink, and its data outlive the driver.
fn lives(fs: &'static str) {
    let mut managed = Managed::new(fs);
    managed.world.start();
    assert_eq!(filesystem_of(&managed.target), fs);
    let device = managed.device();
    assert_eq!(kernel::allocated(&managed.image) / MIB, SIZE / MIB, "all of it is allocated");
    let (a, b) = (managed.target.join("a"), managed.target.join("b"));
    write_at(&a, 0, &pattern(1, 1 << 20)).expect("write");
    run("cp", &["--reflink=always", text(&a), text(&b)]);
    std::fs::remove_file(&a).and_then(|()| std::fs::remove_file(&b)).expect("remove");
    let kinds = [Kind::Ext4, Kind::Block];
    let mut volumes = Vec::new();
    for kind in kinds {
        let vol = managed.volume(kind, &format!("{kind:?}"));
        write_at(&vol.file("a"), 0, &pattern(2, 1 << 20)).expect("write");
        let image = managed.target.join("volumes").join(vol.id()).join("disk.img");
        let [inner] = devices_of(&image)[..] else { panic!("one device") };
        assert_eq!(kernel::loop_attribute(inner, "dio"), "1", "no page cache between volume and disk");
        volumes.push((kind, vol.info.clone()));
    }
    managed.world.restart_after_kill();
    assert_eq!(managed.device(), device, "the same one");
    for (kind, volume) in volumes {
        let vol = Vol::of(&managed.world, kind, volume);
        vol.up();
        assert_eq!(read_at(&vol.file("a"), 0, 1 << 20), pattern(2, 1 << 20), "{kind:?}");
        vol.remove();
    }
    // As after a reboot: nothing is mounted, and the filesystem is checked.
    managed.world.take_driver().kill();
    managed.unmount();
    managed.world.start();
    assert!(managed.world.driver().log_text().contains("it is sound"));
    managed.finish();
}

#[test]
fn volumes_live_in_a_managed_xfs() {
    lives("xfs");
}

#[test]
fn volumes_live_in_a_managed_btrfs() {
    lives("btrfs");
}

/// A whole life with growing, as in any other pool.
#[test]
fn a_whole_life_in_a_managed_pool() {
    let mut managed = Managed::new("xfs");
    managed.world.start();
    for kind in [Kind::Ext4, Kind::Block] {
        let vol = managed.volume(kind, "v");
        write_at(&vol.file("a"), 0, &pattern(1, 1 << 20)).expect("write");
        if crate::life::can_grow(kind) {
            let bytes = vol.bytes() + 64 * MIB;
            vol.expand(bytes).expect("ControllerExpandVolume");
            assert_eq!(vol.node_expand("a", bytes).expect("NodeExpandVolume"), bytes);
        }
        assert_eq!(read_at(&vol.file("a"), 0, 1 << 20), pattern(1, 1 << 20));
        vol.remove();
    }
    managed.finish();
}

/// Two drivers, each with a data directory of its own, start at once on one image: one serves.
#[test]
fn of_two_drivers_at_once_one_wins() {
    let managed = Managed::new("xfs");
    let datas = [managed.world.data.clone(), managed.world.dir.join("data2")];
    let anchors = [managed.world.directory("anchor"), managed.world.directory("anchor2")];
    for round in 0..6 {
        let start = |n: usize| {
            let socket = managed.world.dir.join(format!("{n}.sock"));
            let flags = serve_flags(&socket, &datas[n]);
            let log = managed.world.dir.join(format!("log-{round}-{n}"));
            let mut start = command(binary());
            start.args(flags).args(["--pool", &managed.flag(SIZE), "--anchor-dir", text(&anchors[n])]);
            (Driver::spawn(&mut start, &log), socket, log)
        };
        let drivers = [start(round % 2), start(1 - round % 2)];
        let lost =
            |log: &Path| std::fs::read_to_string(log).expect("log").contains("in use by another driver");
        eventually("both serve, and one has the pool", || {
            drivers.iter().all(|(_, socket, _)| socket.exists())
                && managed.image.exists()
                && devices_of(&managed.image).len() == 1
                && drivers.iter().filter(|(_, _, log)| lost(log)).count() == 1
        });
        managed.device();
        // The one without it first: it would take it as soon as it is free.
        let (without, with): (Vec<_>, Vec<_>) = drivers.into_iter().partition(|(_, _, log)| lost(log));
        without.into_iter().chain(with).for_each(|(driver, _, _)| driver.stop());
        for data in &datas {
            let target = data.join("pools/copies");
            if !kernel::mounts(&target).is_empty() {
                run("umount", &[text(&target)]);
            }
        }
        eventually("the device goes", || devices_of(&managed.image).is_empty());
    }
    managed.world.assert_nothing_left();
}

/// Killed at any moment of its first start, also while mkfs runs, which goes on without it.
#[test]
fn a_first_start_that_is_killed_leaves_a_whole_image_or_none() {
    let mut managed = Managed::new("btrfs");
    let mut new = managed.world.dir.join("copies.img.hostloop-new");
    let (mut absent, mut cut) = (0, 0);
    for round in 0..40 {
        let log = managed.world.dir.join("log");
        let made = |new: &Path| new.metadata().and_then(|metadata| metadata.created()).ok();
        let before = made(&new);
        let driver = Driver::spawn(command(binary()).args(managed.world.arguments()), &log);
        if round % 2 == 0 {
            std::thread::sleep(Duration::from_millis(round));
        } else {
            // On a busy machine no time is the right one.
            let started = Instant::now();
            while made(&new) == before
                && !managed.image.exists()
                && started.elapsed() < Duration::from_secs(60)
            {
                std::thread::sleep(Duration::from_micros(200));
            }
            std::thread::sleep(Duration::from_millis(round / 4));
        }
        driver.kill();
        cut += u32::from(new.exists());
        if managed.image.exists() {
            if cut > 0 {
                break;
            }
            // It was faster than the look at it.
            managed.world.start();
            managed.finish();
            managed = Managed::new("btrfs");
            new = managed.world.dir.join("copies.img.hostloop-new");
            continue;
        }
        absent += 1;
    }
    println!("absent {absent} times, of which half made {cut} times");
    assert!(absent > 0 && cut > 0, "it was never killed early enough: {absent} {cut}");
    managed.world.start();
    managed.device();
    assert!(!new.exists());
    let vol = managed.volume(Kind::Ext4, "v");
    write_at(&vol.file("a"), 0, &pattern(1, 4096)).expect("write");
    vol.remove();
    managed.finish();
}

#[test]
fn it_grows_in_use_and_never_shrinks() {
    for fs in ["xfs", "btrfs"] {
        let mut managed = Managed::new(fs);
        managed.set_size(512 * MIB);
        managed.world.start();
        let volume = {
            let vol = managed.volume(Kind::Ext4, "v");
            write_at(&vol.file("a"), 0, &pattern(1, 1 << 20)).expect("write");
            vol.info.clone()
        };
        let device = managed.device();
        for (bytes, expected) in [(SIZE, SIZE), (512 * MIB, SIZE), (SIZE + 4096, SIZE + 4096)] {
            managed.world.take_driver().kill();
            managed.set_size(bytes);
            managed.world.start();
            assert_eq!(managed.device(), device);
            assert_eq!(managed.image.metadata().expect("stat").len(), expected);
            assert!(kernel::allocated(&managed.image) >= expected);
            let shown = kernel::space(&managed.target).0;
            assert!(shown > SIZE - 100 * MIB && shown <= expected, "{fs}: {shown}");
        }
        assert!(managed.world.driver().log_text().contains("nothing is ever shrunk"));
        let vol = Vol::of(&managed.world, Kind::Ext4, volume);
        assert_eq!(read_at(&vol.file("a"), 0, 1 << 20), pattern(1, 1 << 20));
        vol.remove();
        managed.finish();
    }
}
