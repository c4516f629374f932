//! Images on btrfs that are copy-on-write, as those are that an administrator has copied there from a backup: the start
//! names them, they are used as they are, and a copy into a file with the attribute C is written in place.

use std::path::Path;

use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, output, run, text};

const LEN: usize = 4 << 20;

/// lsattr(1) shows the attribute C.
fn is_in_place(image: &Path) -> bool {
    let shown = output("lsattr", &[text(image)]);
    assert!(shown.status.success(), "{shown:?}");
    String::from_utf8_lossy(&shown.stdout).split(' ').next().expect("attributes").contains('C')
}

/// Stops the driver, and puts a copy of an image in its place: as cp(1) makes it, or in place.
fn copy(world: &mut World, image: &Path, in_place: bool) {
    let before = world.driver().log_text().len();
    world.take_driver().stop();
    let new = image.with_extension("new");
    if in_place {
        std::fs::write(&new, "").expect("an empty file");
        run("chattr", &["+C", text(&new)]);
    }
    run("cp", &["--sparse=always", "--reflink=never", text(image), text(&new)]);
    assert_eq!(is_in_place(&new), in_place);
    run("sync", &["-f", text(&new)]);
    std::fs::rename(&new, image).expect("rename");
    world.start();
    let log = world.driver().log_text();
    assert_eq!(log[before..].contains("the image is copy-on-write"), !in_place, "{log}");
}

#[test]
fn an_image_from_a_backup_on_btrfs_is_named_and_used() {
    let mut world = World::on("btrfs", 2048 * MIB, &["--reserve", "0"]);
    let vol = Vol::create(&world, Kind::Xfs, "restored", Kind::Xfs.size(), &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
    vol.down();
    let volume = vol.info.clone();
    let image = world.image(&volume.volume_id);
    assert!(is_in_place(&image));
    copy(&mut world, &image, false);

    // It is used as before, and so are its clones.
    let vol = Vol::of(&world, Kind::Xfs, volume.clone());
    vol.up();
    assert!(read_at(&vol.file("a"), 0, LEN) == pattern(1, LEN));
    write_at(&vol.file("a"), 0, &pattern(2, LEN)).expect("write");
    let clone = vol.copy(&world, "clone", &[]);
    assert!(!is_in_place(&image) && !is_in_place(&world.image(clone.id())), "they share blocks");
    clone.up();
    assert!(read_at(&clone.file("a"), 0, LEN) == pattern(2, LEN));
    clone.remove();
    vol.down();

    copy(&mut world, &image, true);
    let vol = Vol::of(&world, Kind::Xfs, volume);
    vol.up();
    assert!(read_at(&vol.file("a"), 0, LEN) == pattern(2, LEN));
    vol.remove();
    world.finish();
}
