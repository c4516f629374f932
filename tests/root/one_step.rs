//! A bind appears with its flags at once: nobody ever sees it without them, also not where it propagates to, and a driver
//! that is killed leaves it whole or not at all. What a driver of before left half done is corrected.

use std::path::Path;
use std::process::{Child, Stdio};

use tonic::Code;

use crate::harness::kernel;
use crate::harness::namespace::in_own_namespace;
use crate::harness::{Kind, Vol, World, eventually, run, text};

fn code(result: Result<(), tonic::Status>) -> Code {
    result.map_or_else(|e| e.code(), |()| Code::Ok)
}

/// A process in a mount namespace of its own, to which mounts propagate where ours are shared, as from a driver's
/// container to the host; killed when it is dropped.
struct Peer(Child);

impl Peer {
    fn new(own: &Path) -> Peer {
        let mut start = in_own_namespace(own, &["--propagation", "slave"]);
        let child = start.args(["sleep", "600"]).stdin(Stdio::null()).spawn().expect("unshare");
        let own = std::fs::read_link("/proc/self/ns/mnt").expect("a namespace");
        let path = format!("/proc/{}/ns/mnt", child.id());
        eventually("it has a namespace", || std::fs::read_link(&path).is_ok_and(|ns| ns != own));
        let name = format!("/proc/{}/comm", child.id());
        eventually("it sleeps", || std::fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep"));
        Peer(child)
    }

    fn mounts(&self, below: &Path) -> Vec<kernel::Mount> {
        kernel::mounts_of(&self.0.id().to_string(), below)
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_publish_reaches_other_namespaces_with_its_flags() {
    let mut world = World::new(&[]);
    run("mount", &["--bind", text(&world.kubelet), text(&world.kubelet)]);
    run("mount", &["--make-shared", text(&world.kubelet)]);
    let peer = Peer::new(&world.dir);
    for kind in [Kind::Ext4, Kind::Directory] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("peer {kind:?}"), kind.size(), &[]);
        let vol = vol.with_flags(&["noexec", "nodev"]);
        vol.stage().expect("NodeStageVolume");
        vol.publish_as("a", true).expect("NodePublishVolume");
        for path in [vol.target("a"), vol.staging()] {
            let seen = peer.mounts(&path);
            assert_eq!(seen.len(), 1, "{kind:?}: it propagates: {seen:?}");
            let options: Vec<&str> = seen[0].options.split(',').collect();
            assert!(options.contains(&"noexec") && options.contains(&"nodev"), "{kind:?}: {options:?}");
            assert_eq!(options[0] == "ro", path == vol.target("a"), "{kind:?}: {options:?}");
        }
        vol.unpublish("a").expect("NodeUnpublishVolume");
        vol.unstage().expect("NodeUnstageVolume");
        let base = vol.staging();
        assert!(peer.mounts(base.parent().expect("a parent")).is_empty(), "{kind:?}: it goes everywhere");
        vol.delete().expect("DeleteVolume");
    }
    drop(peer);
    run("umount", &[text(&world.kubelet)]);
    world.finish();
}

/// As a driver of before left it that was killed after its bind: writable, without the flags.
fn half_done(vol: &Vol) {
    std::fs::create_dir(vol.target("a")).expect("mkdir");
    run("mount", &["--bind", text(&vol.staging()), text(&vol.target("a"))]);
}

fn options(path: &Path) -> Vec<String> {
    let mounts = kernel::mounts(path);
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    mounts[0].options.split(',').map(str::to_owned).collect()
}

#[test]
fn a_bind_without_its_flags_is_put_right() {
    let mut world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Directory] {
        world.serve(kind);
        let vol = Vol::create(&world, kind, &format!("half {kind:?}"), kind.size(), &[]);
        vol.stage().expect("NodeStageVolume");
        half_done(&vol);
        // Somebody writes through it: it was used as what it is.
        let writer = std::fs::File::create(vol.file("a")).expect("a file");
        assert_eq!(code(vol.publish_as("a", true)), Code::AlreadyExists, "{kind:?}");
        assert_eq!(options(&vol.target("a"))[0], "rw", "{kind:?}");
        drop(writer);
        vol.publish_as("a", true).expect("the retry of a read-only publish");
        assert_eq!(options(&vol.target("a"))[0], "ro", "{kind:?}");
        assert!(std::fs::File::create(vol.target("a").join("other")).is_err(), "{kind:?}: it is writable");
        vol.publish_as("a", true).expect("the same again");
        assert_eq!(code(vol.publish("a")), Code::AlreadyExists, "{kind:?}: it is never loosened");
        vol.unpublish("a").expect("NodeUnpublishVolume");
        // One that was answered is what was asked for.
        vol.publish("a").expect("NodePublishVolume");
        assert_eq!(code(vol.publish_as("a", true)), Code::AlreadyExists, "{kind:?}: it was answered");
        assert_eq!(options(&vol.target("a"))[0], "rw", "{kind:?}");
        vol.remove();
    }
    world.serve(Kind::Ext4);
    let vol = Vol::create(&world, Kind::Ext4, "half, other flags", Kind::Ext4.size(), &[]);
    vol.stage().expect("NodeStageVolume");
    half_done(&vol);
    let volume = vol.info.clone();
    world.restart_after_kill();
    let vol = Vol::of(&world, Kind::Ext4, volume).with_flags(&["nosuid", "noexec"]);
    vol.publish("a").expect("the retry");
    let found = options(&vol.target("a"));
    assert!(
        found[0] == "rw" && ["nosuid", "noexec"].iter().all(|f| found.iter().any(|o| o == f)),
        "{found:?}"
    );
    vol.remove();
    world.finish();
}
