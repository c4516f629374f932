//! A pool on a whole block device, for which a loop device of the test's stands.

use super::*;

/// A loop device of the test's stands for the disk.
struct Disk {
    file: PathBuf,
    device: String,
}

impl Disk {
    fn new(world: &World, bytes: u64) -> Disk {
        let file = world.dir.join("disk");
        std::fs::File::create(&file).and_then(|file| file.set_len(bytes)).expect("a file");
        let device = attach(&file, &[]);
        Disk { file, device }
    }

    fn number(&self) -> u32 {
        self.device["/dev/loop".len()..].parse().expect("a number")
    }

    fn remove(self) {
        run("losetup", &["-d", &self.device]);
        eventually("the disk goes", || devices_of(&self.file).is_empty());
    }
}

#[test]
fn a_block_device_is_a_pool() {
    for fs in ["xfs", "btrfs"] {
        let mut world = World::empty(&[]);
        let disk = Disk::new(&world, 512 * MIB);
        let flag = format!("copies={},kind=device,fs={fs}", disk.device);
        world.set_flags(&["--pool", &flag]);
        world.start();
        let target = world.data.join("pools/copies");
        assert_eq!(filesystem_of(&target), fs);
        let vol = Vol::create(&world, Kind::Ext4, "v", 64 * MIB, &[("pool", "copies")]);
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(1, 1 << 20)).expect("write");
        let volume = vol.info.clone();
        world.restart_after_kill();
        // The disk has become larger.
        let before = kernel::space(&target).0;
        world.take_driver().stop();
        std::fs::File::options()
            .write(true)
            .open(&disk.file)
            .and_then(|file| file.set_len(SIZE))
            .expect("grow");
        run("losetup", &["-c", &disk.device]);
        world.start();
        assert!(kernel::space(&target).0 > before + 400 * MIB, "{fs}");
        let vol = Vol::of(&world, Kind::Ext4, volume);
        assert_eq!(read_at(&vol.file("a"), 0, 1 << 20), pattern(1, 1 << 20), "{fs}");
        vol.remove();
        world.take_driver().kill();
        run("umount", &[text(&target)]);
        world.start();
        assert!(world.driver().log_text().contains("it is sound"));
        assert_eq!(devices_of(&disk.file), [disk.number()]);
        world.take_driver().stop();
        run("umount", &[text(&target)]);
        disk.remove();
        world.assert_nothing_left();
    }
}

/// As with an image, but that nothing but the pool's own directory can be locked: a disk has no name of its own.
#[test]
fn of_two_drivers_at_once_on_a_device_one_wins() {
    let world = World::empty(&[]);
    let disk = Disk::new(&world, 512 * MIB);
    let datas = [world.data.clone(), world.dir.join("data2")];
    let anchors = [world.directory("anchor"), world.directory("anchor2")];
    let flag = format!("copies={},kind=device", disk.device);
    let targets = datas.each_ref().map(|data| data.join("pools/copies"));
    for round in 0..6 {
        let start = |n: usize| {
            let socket = world.dir.join(format!("{n}.sock"));
            let mut start = command(binary());
            start.args(serve_flags(&socket, &datas[n]));
            start.args(["--pool", &flag, "--anchor-dir", text(&anchors[n])]);
            (Driver::spawn(&mut start, &world.dir.join(format!("log-{round}-{n}"))), socket)
        };
        let drivers = [start(round % 2), start(1 - round % 2)];
        let has_pool = |socket: &Path| {
            Csi::new(socket).capacity(&[("pool", "copies")]).is_ok_and(|available| available > 0)
        };
        // Each can come in the other's way once; they try again.
        eventually("both serve, and one has the pool", || {
            drivers.iter().all(|(_, socket)| socket.exists())
                && drivers.iter().filter(|(_, socket)| has_pool(socket)).count() == 1
        });
        let (with, without): (Vec<_>, Vec<_>) = drivers.into_iter().partition(|(_, socket)| has_pool(socket));
        // The one without it first: it would take it as soon as it is free.
        without.into_iter().for_each(|(driver, _)| driver.stop());
        let mounted: Vec<_> = targets.iter().filter(|target| !kernel::mounts(target).is_empty()).collect();
        assert_eq!(mounted.len(), 1, "the other one has unmounted it again");
        let kept = mounted[0].join("volumes/kept");
        if round > 0 {
            assert_eq!(read_at(&kept, 0, 1 << 20), pattern(9, 1 << 20), "it was made once");
        }
        write_at(&kept, 0, &pattern(9, 1 << 20)).expect("write");
        with.into_iter().for_each(|(driver, _)| driver.stop());
        run("umount", &[text(mounted[0])]);
    }
    disk.remove();
    world.assert_nothing_left();
}

/// Of a disk with anything on it not a byte is written.
#[test]
fn a_block_device_of_somebody_is_not_touched() {
    let mut world = World::empty(&[]);
    let disk = Disk::new(&world, 128 * MIB);
    let flag = format!("copies={},kind=device", disk.device);
    world.set_flags(&["--pool", &flag]);
    let refused = |world: &mut World, disk: &Disk, hint: &str| {
        let before = digest(&disk.file);
        let line = super::refused(world);
        assert!(line.contains(hint), "{hint}: {line}");
        assert!(before == digest(&disk.file), "{hint}: it was written to");
    };
    let empty = || run("blkdiscard", &["-z", &disk.device]);
    for (tool, arguments, hint) in [
        ("mkfs.ext4", vec!["-q"], "an ext4 filesystem"),
        ("mkswap", vec![], "swap space"),
        ("mkfs.btrfs", vec!["-q"], "a btrfs filesystem"),
    ] {
        run(tool, &[arguments, vec![disk.device.as_str()]].concat());
        refused(&mut world, &disk, hint);
        empty();
    }
    // Wiped of its label, and yet not blank.
    run("mkfs.ext4", &["-q", &disk.device]);
    run("wipefs", &["-a", "-q", &disk.device]);
    refused(&mut world, &disk, "blkdiscard");
    empty();
    // A partition that the kernel knows, while the table is gone.
    let partition = format!("{}p1", disk.device);
    let added = output("addpart", &[&disk.device, "1", "2048", "4096"]);
    if added.status.success() {
        refused(&mut world, &disk, "has partitions");
        run("delpart", &[&disk.device, "1"]);
        eventually("it goes", || !Path::new(&partition).exists());
    }
    disk.remove();
    // Mounted by somebody else.
    let disk = Disk::new(&world, 320 * MIB);
    let flag = format!("copies={},kind=device", disk.device);
    world.set_flags(&["--pool", &flag]);
    run("mkfs.xfs", &["-q", &disk.device]);
    let place = world.directory("place");
    run("mount", &[&disk.device, text(&place)]);
    std::fs::write(place.join("thesis"), "precious").expect("write");
    let line = super::refused(&mut world);
    assert!(line.contains("mounted elsewhere"), "{line}");
    assert_eq!(std::fs::read_to_string(place.join("thesis")).expect("read"), "precious");
    run("umount", &[text(&place)]);
    disk.remove();
    world.assert_nothing_left();
}
