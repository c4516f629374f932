//! What is said of a pool: its health, and its room in numbers.

use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use nix::errno::Errno;

use crate::harness::{self, DIRECTORIES, LetGo};
use crate::metrics::scrape::{Samples, address, get, scrape, watched};
use crate::requests::{Kind, Spec};
use crate::support::*;
use crate::wait::until;

/// The kernel still has what is asked of the filesystem in memory.
#[test]
fn an_unreadable_disk_of_a_pool_is_told() {
    let kernel = FakeKernel::new();
    kernel.add_disk("/pools/fast", FsType::Ext4, 10 << 30);
    let rig = Rig::on(kernel.clone(), &["--pool", "fast=/pools/fast"]);
    let storage = || rig.ok(csi::NodeGetStorageHealthRequest::default()).backend_health;
    assert_eq!(storage(), []);
    kernel.fail_every("read_through", Errno::EIO);
    let [found] = &storage()[..] else { panic!("each reason once") };
    assert_eq!(found.reason, "PoolUnreadable");
    assert!(found.message.contains("pool fast at /pools/fast: its disk does not answer"), "{found:?}");
    kernel.heal();
    assert_eq!(storage(), []);
}

/// Directories are promised nothing, so that there is no room beyond what is free.
#[test]
fn room_is_what_the_largest_volume_can_have() {
    let (kernel, address) = (harness::machine(), address());
    let mut settings = harness::settings();
    settings.pools.iter_mut().for_each(|pool| pool.overcommit = 3.0);
    let server = watched(kernel.os(), &settings, address);
    let samples = scrape(&server, address);
    let bytes = |pool: &str, kind: &str| {
        samples.get(&format!("hostloop_pool_bytes{{pool=\"{pool}\",kind=\"{kind}\"}}"))
    };
    assert_eq!(bytes("default", "room"), 3.0 * bytes("default", "usable"));
    assert_eq!(bytes(DIRECTORIES, "room"), bytes(DIRECTORIES, "usable"));
    server.stop();
}

#[test]
fn a_volume_being_made_is_promised_once() {
    let (kernel, address) = (harness::machine(), address());
    let server = watched(kernel.os(), &harness::settings(), address);
    kernel.hold("allocate");
    let _let_go = LetGo(kernel.clone());
    let client = server.client.clone();
    let request = Spec::thick(Kind::Block).create("v");
    let size = request.capacity_range.expect("a size").required_bytes as f64;
    let seen = server.block_on(async {
        let call = tokio::spawn(async move { client.call(request).await });
        until("it is being made", async || kernel.waiting() > 0).await;
        let reply = get(address, "/metrics").await;
        kernel.release();
        call.await.unwrap().unwrap();
        Samples::of(&reply.body)
    });
    let promised = "hostloop_pool_promised_bytes{pool=\"default\",to=\"thick\"}";
    assert_eq!((seen.get(promised), scrape(&server, address).get(promised)), (size, size));
    server.stop();
}
