//! What a start finds that it must not touch, or not go on with.

use super::*;

#[test]
fn foreign_content_is_not_touched() {
    let mut managed = Managed::new("xfs");
    type Fill = fn(&Path);
    let fill: [(&str, Fill); 4] = [
        ("holds nothing", |_| {}),
        ("an ext4 filesystem", |image| run("mkfs.ext4", &["-q", text(image)])),
        ("a btrfs filesystem", |image| run("mkfs.btrfs", &["-q", text(image)])),
        ("data of an unknown kind", |image| write_at(image, 100 * MIB, &pattern(7, 100)).expect("write")),
    ];
    for (hint, fill) in fill {
        std::fs::File::create(&managed.image).and_then(|file| file.set_len(128 * MIB)).expect("an image");
        fill(&managed.image);
        let before = digest(&managed.image);
        let line = managed.refused();
        assert!(line.contains(hint), "{hint}: {line}");
        assert!(before == digest(&managed.image), "{hint} was written to");
        assert!(devices_of(&managed.image).is_empty() && kernel::mounts(&managed.world.dir).is_empty());
        std::fs::remove_file(&managed.image).expect("remove");
    }
    // An xfs with somebody's files. Mounting it writes to its journal; its files stay.
    make_filesystem(&managed.image, "xfs", 320 * MIB, &["-s", "size=4096"]);
    let place = managed.world.directory("place");
    mount_loop(&managed.image, &place);
    std::fs::write(place.join("thesis"), "precious").expect("write");
    // It is in use by somebody else, and not a pool.
    let line = managed.refused();
    assert!(line.contains("mounted elsewhere"), "{line}");
    assert_eq!(devices_of(&managed.image).len(), 1);
    run("umount", &[text(&place)]);
    eventually("the device goes", || devices_of(&managed.image).is_empty());
    let line = managed.refused();
    assert!(line.contains("\"thesis\""), "{line}");
    mount_loop(&managed.image, &place);
    assert_eq!(std::fs::read_to_string(place.join("thesis")).expect("read"), "precious");
    run("umount", &[text(&place)]);
    managed.world.assert_nothing_left();
}

#[test]
fn two_devices_on_the_image_stop_the_start() {
    let mut managed = Managed::new("xfs");
    managed.world.start();
    let device = managed.device();
    managed.world.take_driver().stop();
    let second = attach(&managed.image, &[]);
    let line = managed.refused();
    assert!(line.contains("attached 2 times") && line.contains(&second), "{line}");
    run("losetup", &["-d", &second]);
    eventually("it goes", || devices_of(&managed.image).len() == 1);
    managed.world.start();
    assert_eq!(managed.device(), device);
    managed.finish();
}

/// An administrator has attached the image to look at it: the device is used, and made what ours are.
#[test]
fn a_device_that_somebody_attached_is_adopted() {
    let mut managed = Managed::new("xfs");
    managed.world.start();
    managed.world.take_driver().stop();
    managed.unmount();
    let theirs = attach(&managed.image, &[]);
    managed.world.start();
    let devices = devices_of(&managed.image);
    assert_eq!(
        devices.iter().map(|number| format!("/dev/loop{number}")).collect::<Vec<_>>(),
        [theirs.as_str()]
    );
    assert_eq!(kernel::loop_attribute(devices[0], "dio"), "1");
    let discard = format!("/sys/block/loop{}/queue/discard_max_bytes", devices[0]);
    assert_eq!(std::fs::read_to_string(discard).expect("sysfs").trim(), "0");
    managed.world.take_driver().stop();
    run("umount", &[text(&managed.target)]);
    run("losetup", &["-d", &theirs]);
    eventually("it goes", || devices_of(&managed.image).is_empty());
    managed.world.assert_nothing_left();
}

/// A damaged filesystem stops the start with the tool to run, and serves again when that has run.
#[test]
fn damage_stops_the_start_and_names_the_tool() {
    let mut managed = Managed::new("xfs");
    managed.world.start();
    managed.world.take_driver().stop();
    managed.unmount();
    let image = text(&managed.image).to_owned();
    // The root directory's count of links, with a good checksum: a mount does not notice it.
    let write = ["-x", "-f", "-c", "sb 0", "-c", "addr rootino", "-c", "write -d core.nlinkv2 77", &image];
    run("xfs_db", &write);
    let damaged = output("xfs_repair", &["-n", "-f", &image]);
    assert!(!damaged.status.success(), "the damage is seen by the tool");
    for _ in 0..2 {
        let line = managed.refused();
        assert!(line.contains("damaged") && line.contains("xfs_repair"), "{line}");
        eventually("nothing is attached", || devices_of(&managed.image).is_empty());
        assert!(kernel::mounts(&managed.world.dir).is_empty());
    }
    run("xfs_repair", &["-f", &image]);
    managed.world.start();
    managed.finish();
}

/// The mkfs of a driver that was killed ends when the next one serves already, which has waited for it in vain.
#[test]
fn a_pool_is_made_soon_after_the_mkfs_of_an_earlier_start_has_ended() {
    let mut managed = Managed::new("xfs");
    let new = managed.world.dir.join("copies.img.hostloop-new");
    std::fs::File::create(&new).and_then(|file| file.set_len(SIZE)).expect("an image");
    run("losetup", &["--find", text(&new)]);
    managed.world.start();
    let found = managed.world.csi.storage_troubles().expect("NodeGetStorageHealth");
    assert!(matches!(&found[..], [(_, line)] if line.contains("still runs")), "{found:?}");
    let [number] = devices_of(&new)[..] else { panic!("one device") };
    run("losetup", &["--detach", &format!("/dev/loop{number}")]);
    eventually("the pool is made", || {
        managed.world.csi.capacity(&[("pool", "copies")]).is_ok_and(|room| room > 0)
    });
    let vol = managed.volume(Kind::Block, "v");
    vol.remove();
    managed.finish();
}
