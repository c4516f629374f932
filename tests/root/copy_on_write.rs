//! Images on btrfs that are copy-on-write, as 0.1.0 made them: they stay so, the start names them, and a restore mends
//! them.

use std::path::Path;

use crate::harness::kernel::{allocated, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, output, run, text};

const LEN: usize = 4 << 20;

/// lsattr(1) shows the attribute C.
fn is_in_place(image: &Path) -> bool {
    let shown = output("lsattr", &[text(image)]);
    assert!(shown.status.success(), "{shown:?}");
    String::from_utf8_lossy(&shown.stdout).split(' ').next().expect("attributes").contains('C')
}

/// What 0.1.0 would have made: the same bytes in a file without the attribute.
fn as_of_0_1_0(image: &Path) {
    let new = image.with_extension("cow");
    run("cp", &["--sparse=always", "--reflink=never", text(image), text(&new)]);
    assert!(is_in_place(image) && !is_in_place(&new));
    run("sync", &["-f", text(&new)]);
    std::fs::rename(&new, image).expect("rename");
}

#[test]
fn images_of_0_1_0_on_btrfs() {
    let mut world = World::on("btrfs", 2048 * MIB, &["--reserve", "0"]);
    let vol = Vol::create(&world, Kind::Xfs, "old", Kind::Xfs.size(), &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
    vol.down();
    let (id, volume) = (vol.id().to_owned(), vol.volume.clone());
    let image = world.image(&id);
    world.take_driver().stop();
    as_of_0_1_0(&image);
    world.start();
    let log = world.driver().log_text();
    let named = log.lines().any(|line| line.contains("the image is copy-on-write") && line.contains(&id));
    assert!(named, "the start names it:\n{log}");

    // It is used as before, and so are its clones.
    let vol = Vol::of(&world, Kind::Xfs, volume);
    vol.up();
    assert!(read_at(&vol.file("a"), 0, LEN) == pattern(1, LEN));
    write_at(&vol.file("a"), 0, &pattern(2, LEN)).expect("write");
    let snapshot = world.csi.snapshot("s", &id, &[]).expect("CreateSnapshot");
    let clone = vol.copy(&world, "clone", &[]);
    assert!(!is_in_place(&image) && !is_in_place(&world.image(clone.id())), "they share blocks");
    clone.up();
    assert!(read_at(&clone.file("a"), 0, LEN) == pattern(2, LEN));
    clone.remove();

    // The way to mend it.
    write_at(&vol.file("a"), 0, &pattern(3, LEN)).expect("write");
    let restored = Vol::restore(&world, Kind::Xfs, "mended", vol.bytes(), &snapshot, &[]);
    let mended = world.image(restored.id());
    assert!(is_in_place(&mended) && allocated(&mended) > LEN as u64);
    restored.up();
    assert!(read_at(&restored.file("a"), 0, LEN) == pattern(2, LEN));
    restored.remove();
    world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    vol.remove();
    world.finish();
}
