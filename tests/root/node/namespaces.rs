//! A test that runs a driver in a mount namespace of its own does not hold the mounts of the tests beside it.

use std::io::Read;
use std::process::Stdio;

use crate::harness::namespace::in_own_namespace;
use crate::harness::{Kind, Vol, World, kernel, run, text};

/// A volume of another test is unstaged and its device is gone, while a driver in a namespace of its own runs.
#[test]
fn others_are_not_held() {
    let (other, world) = (World::new(&[]), World::empty(&[]));
    let vol = Vol::create(&other, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    vol.up();
    let mine = world.directory("mine");
    run("mount", &["-t", "tmpfs", "tmpfs", text(&mine)]);
    let mut start = in_own_namespace(&world.dir, &[]);
    let mut started = start
        .args(["sh", "-c", "echo started; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let namespace = started.as_mut().expect("unshare");
    let mut said = [0; 8];
    namespace.stdout.take().expect("stdout").read_exact(&mut said).expect("it starts");
    let pid = namespace.id().to_string();
    assert_eq!(kernel::mounts_of(&pid, &world.dir).len(), 1, "its own are there");
    assert!(kernel::mounts_of(&pid, &other.dir).is_empty());
    vol.down();
    other
        .csi
        .snapshot("cut", vol.id(), &[])
        .and_then(|cut| other.csi.delete_snapshot(&cut.snapshot_id))
        .expect("nobody uses the volume");
    vol.delete().expect("DeleteVolume");
    // It ends with its standard input.
    drop(namespace.stdin.take());
    assert!(namespace.wait().expect("wait").success());
    run("umount", &[text(&mine)]);
    other.finish();
}
