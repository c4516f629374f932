//! `hostloop doctor` on a node, as an administrator runs it.

use std::fs::File;

use crate::harness::kernel::{self, pattern, write_at};
use crate::harness::process::binary;
use crate::harness::{Kind, Vol, World, attach, output, run, text};

/// Runs the command, and returns whether it ends with success, and what it prints.
fn doctor(world: &World, flags: &[&str]) -> (bool, String) {
    let endpoint = format!("unix://{}", text(&world.socket));
    let fixed = ["doctor", "--grace", "0s", "--endpoint", &endpoint];
    let output = output(binary(), &[&fixed[..], flags].concat());
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn a_device_goes_unless_a_program_has_it_open() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    vol.up();
    assert_eq!(doctor(&world, &[]), (true, "nothing is amiss\n".to_owned()));
    vol.down();
    let device = attach(&world.image(vol.id()), &[]);
    let open = File::open(&device).expect("open");
    let (is_well, said) = doctor(&world, &["--fix"]);
    assert!(!is_well && said.contains("stale-device") && said.contains("nothing: in use"), "{said}");
    assert_eq!(kernel::loops(&world.data).len(), 1);
    drop(open);
    let (is_well, said) = doctor(&world, &["--fix"]);
    assert!(is_well && said.contains(&format!("done: detached {device}")), "{said}");
    assert!(kernel::loops(&world.data).is_empty());
    vol.remove();
}

#[test]
fn a_filesystem_left_frozen_lets_its_pod_write() {
    let world = World::new(&[]);
    let vol = Vol::create(&world, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    vol.up();
    File::create(world.data.join("frozen").join(vol.id())).expect("a mark");
    run("fsfreeze", &["--freeze", text(&vol.staging())]);
    let (is_well, said) = doctor(&world, &["--fix"]);
    // Also if the test fails: what is left frozen keeps its device and its disk.
    let was_frozen = output("fsfreeze", &["--unfreeze", text(&vol.staging())]).status.success();
    assert!(is_well && said.contains("is not frozen") && !was_frozen, "{said}");
    write_at(&vol.file("a"), 0, &pattern(1, 4096)).expect("write");
    vol.down();
    vol.remove();
}

#[test]
fn a_directory_goes_only_if_it_is_empty() {
    let world = World::new(&[]);
    let name = "vol-0123456789ab-11111111-1111-5111-8111-111111111111";
    let directory = world.data.join("volumes").join(name);
    std::fs::create_dir(&directory).expect("mkdir");
    let (is_well, said) = doctor(&world, &["--fix"]);
    assert!(is_well && said.contains("removed the empty directory") && !directory.exists(), "{said}");
    std::fs::create_dir(&directory).expect("mkdir");
    std::fs::write(directory.join("disk.img"), b"data").expect("write");
    let (is_well, said) = doctor(&world, &["--fix"]);
    assert!(!is_well && said.contains("hostloop state rebuild"), "{said}");
    assert!(directory.join("disk.img").exists());
}
