//! What was once in a data directory is remembered elsewhere, so that a disk that is not mounted is noticed.

use std::path::{Path, PathBuf};

use crate::harness::{Kind, MIB, Vol, World, kernel, run, text};

fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("list");
    let mut names: Vec<String> =
        entries.map(|entry| entry.expect("list").file_name().into_string().expect("text")).collect();
    names.sort();
    names
}

/// The anchors in a directory.
fn anchors(directory: &Path) -> Vec<PathBuf> {
    let names = names(directory).into_iter().filter(|name| name.ends_with(".hostloop-anchor"));
    names.map(|name| directory.join(name)).collect()
}

#[test]
fn a_data_directory_without_its_disk_stops_the_start() {
    let mut world = World::on("ext4", 256 * MIB, &[]);
    let id = Vol::create(&world, Kind::Ext4, "v", 16 * MIB, &[]).id().to_owned();
    world.take_driver().stop();
    world.unmount_disk();
    for _ in 0..2 {
        let line = world.refused();
        assert!(line.contains("--data-dir") && line.contains("is its disk mounted"), "{line}");
        let [anchor] = &anchors(&world.dir)[..] else { panic!("{:?}", names(&world.dir)) };
        assert!(line.contains(&format!("remove {}", text(anchor))), "{line}");
        assert_eq!(names(&world.dir.join("pool")), [""; 0], "nothing was written below");
    }
    let anchor = &anchors(&world.dir)[0];
    world.mount_disk();
    world.start();
    assert!(world.image(&id).exists());

    // Given up by the one who may.
    world.take_driver().stop();
    world.unmount_disk();
    std::fs::remove_file(anchor).expect("remove");
    world.start();
    assert!(world.csi.list(0, "").expect("ListVolumes").entries.is_empty());
    world.take_driver().stop();
    let second = std::fs::read_to_string(anchor).expect("a new one");
    std::fs::remove_dir_all(&world.data).expect("remove");

    // Now the old disk is another installation's.
    world.mount_disk();
    let line = world.refused();
    assert!(line.contains("another installation") && line.contains(text(anchor)), "{line}");
    assert!(world.image(&id).exists());
    assert_eq!(std::fs::read_to_string(anchor).expect("left"), second);
    std::fs::remove_file(anchor).expect("remove");
    world.start();
    world.csi.delete(&id).expect("DeleteVolume");
    world.finish();
}

/// A state that was restored, and nothing that tells of it.
#[test]
fn a_state_without_an_anchor_gets_one() {
    let mut world = World::empty(&[]);
    world.start();
    let vol = Vol::create(&world, Kind::Ext4, "v", 16 * MIB, &[]);
    let id = vol.id().to_owned();
    drop(vol);
    world.take_driver().stop();
    let identity = world.data.join("hostloop-installation");
    for left in [&[&identity][..], &[]] {
        anchors(&world.dir).iter().for_each(|anchor| std::fs::remove_file(anchor).expect("remove"));
        left.iter().for_each(|path| std::fs::remove_file(path).expect("remove"));
        world.start();
        assert!(identity.exists() && anchors(&world.dir).len() == 1);
        assert!(world.image(&id).exists());
        world.take_driver().kill();
    }
    // The state file alone is gone.
    let state = world.data.join("state.jsonl");
    std::fs::rename(&state, world.dir.join("kept")).expect("rename");
    let line = world.refused();
    assert!(line.contains(text(&state)), "{line}");
    assert!(!state.exists());
    std::fs::rename(world.dir.join("kept"), &state).expect("rename");
    world.start();
    world.csi.delete(&id).expect("DeleteVolume");
    world.finish();
}

/// Another --data-dir by mistake is an empty state as well.
#[test]
fn another_data_directory_stops_the_start() {
    let mut world = World::empty(&[]);
    world.start();
    world.take_driver().stop();
    let first = std::mem::replace(&mut world.data, world.dir.join("data2"));
    let line = world.refused();
    assert!(line.contains(text(&first)) && line.contains(text(&anchors(&world.dir)[0])), "{line}");
    assert!(!world.data.exists());
    // Moved with all that is in it.
    std::fs::rename(&first, &world.data).expect("rename");
    world.start();
    world.finish();
}

#[test]
fn the_anchor_has_a_place_of_its_own() {
    let mut world = World::on("ext4", 256 * MIB, &[]);
    world.take_driver().stop();
    anchors(&world.dir).iter().for_each(|anchor| std::fs::remove_file(anchor).expect("remove"));
    let place = world.dir.join("an anchor");
    world.set_flags(&["--anchor-dir", text(&place)]);
    let line = world.refused();
    assert!(line.contains("--anchor-dir") && line.contains("is not a directory"), "{line}");
    std::fs::create_dir(&place).expect("mkdir");
    world.start();
    assert!(anchors(&place).len() == 1 && anchors(&world.dir).is_empty());
    world.take_driver().stop();
    world.unmount_disk();
    assert!(world.refused().contains(text(&place)));
    world.mount_disk();

    // The socket's directory is gone after a reboot: the anchor lies beside the disk's mount point.
    std::fs::remove_dir_all(&place).expect("remove");
    std::fs::create_dir(world.dir.join("run")).expect("mkdir");
    run("mount", &["-t", "tmpfs", "run", text(&world.dir.join("run"))]);
    world.set_flags(&[]);
    world.set_socket(&world.dir.join("run/csi.sock"));
    world.start();
    assert!(names(&world.dir.join("run")) == ["csi.sock"] && anchors(&world.dir).len() == 1);
    world.take_driver().stop();
    world.unmount_disk();
    assert!(world.refused().contains("is its disk mounted"));
    world.mount_disk();
    world.start();
    world.take_driver().stop();
    run("umount", &[text(&world.dir.join("run"))]);
    world.assert_nothing_left();
}

/// A start does not depend on room for the anchor; the next one writes it.
#[test]
fn an_anchor_that_cannot_be_written_is_said() {
    let mut world = World::empty(&[]);
    let place = world.directory("anchor");
    run("mount", &["-t", "tmpfs", "-o", "size=64k", "anchor", text(&place)]);
    let full = place.join("full");
    let wrote = kernel::write_at(&full, 0, &[7; 128 * 1024]);
    assert!(wrote.is_err());
    world.set_flags(&["--anchor-dir", text(&place)]);
    world.start();
    assert!(world.driver().log_text().contains("is not remembered"), "{}", world.driver().log_text());
    world.take_driver().stop();
    std::fs::remove_file(&full).expect("remove");
    run("mount", &["-o", "remount,ro", text(&place)]);
    world.start();
    world.take_driver().stop();
    run("mount", &["-o", "remount,rw", text(&place)]);
    world.start();
    assert_eq!(anchors(&place).len(), 1);
    world.take_driver().stop();
    run("umount", &[text(&place)]);
    world.assert_nothing_left();
}
