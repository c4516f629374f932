//! A start that takes long, as where a large managed pool is made or checked: the socket is served meanwhile.

use std::os::unix::fs::PermissionsExt;

use tonic::Code;

use crate::harness::namespace::in_own_namespace;
use crate::harness::process::binary;
use crate::harness::{Driver, MIB, World, eventually, text};

/// Where the driver looks for it (in this order).
const PLACES: [&str; 4] = ["/usr/sbin/mkfs.xfs", "/usr/bin/mkfs.xfs", "/sbin/mkfs.xfs", "/bin/mkfs.xfs"];

#[test]
fn the_socket_is_served_while_a_pool_is_made() {
    let mut world = World::empty(&[]);
    let pool = format!("copies={},kind=image,size={},fs=xfs", text(&world.dir.join("copies.img")), 512 * MIB);
    world.set_flags(&["--pool", &pool]);
    // In a mount namespace of its own the driver finds another mkfs, which waits for a file and is the real one then.
    let real = PLACES.iter().find(|place| std::path::Path::new(place).exists()).expect("xfsprogs");
    let (copy, slow, go_on) = (world.dir.join("mkfs"), world.dir.join("slow"), world.dir.join("go on"));
    std::fs::copy(real, &copy).expect("copy");
    let script = format!(
        "#!/bin/sh\nwhile [ -d '{}' ] && [ ! -e '{}' ]; do sleep 0.05; done\nexec '{}' \"$@\"\n",
        text(&world.dir),
        text(&go_on),
        text(&copy)
    );
    std::fs::write(&slow, script).expect("write");
    std::fs::set_permissions(&slow, std::fs::Permissions::from_mode(0o755)).expect("chmod");
    let line = format!("mount --bind '{}' {real} && exec \"$@\"", text(&slow));
    let mut start = in_own_namespace(&world.dir, &[]);
    start.args(["sh", "-c", &line, "sh", binary()]).args(world.arguments());
    let mut driver = Driver::spawn(&mut start, &world.dir.join("log"));

    eventually("it serves", || world.csi.probe().is_ok() || !driver.runs());
    assert!(driver.runs(), "{}", driver.log_text());
    assert_eq!(world.csi.probe().expect("Probe").ready, Some(false), "{}", driver.log_text());
    assert_eq!(
        world.csi.call(hostloop::wire::csi::GetPluginInfoRequest {}).expect("GetPluginInfo").name,
        "hostloop.csi.dev"
    );
    eventually("it says what is going on", || {
        let status = world.csi.list(0, "").expect_err("there is nothing to list yet");
        assert_eq!(status.code(), Code::Unavailable, "{status}");
        status.message().contains("pool copies is being made, checked or mounted")
    });

    std::fs::write(&go_on, "").expect("write");
    driver.wait_ready(&world.csi);
    assert!(world.csi.list(0, "").expect("ListVolumes").entries.is_empty());
    driver.stop();
    assert!(!world.socket.exists());
}
