use std::time::Duration;

use super::pulse::PATIENCE;
use super::*;
use crate::model::{FsType, InlineSettings, PoolKind, Reserve};
use crate::os::fake::FakeKernel;
use crate::store::Identity;

const DATA: &str = "/var/lib/hostloop";
const SLOW: &str = "/srv/slow";

fn pool(name: &PoolName, path: &str) -> PoolSettings {
    let (name, path, kind) = (name.clone(), path.into(), PoolKind::Directory);
    PoolSettings { name, path, kind, reserve: Reserve::Bytes(0), overcommit: 1.0, directories: false }
}

#[test]
fn a_pool_whose_disk_is_silent_stays_open() {
    let kernel = FakeKernel::new();
    kernel.add_disk(SLOW, FsType::Xfs, 1 << 30);
    let os = kernel.spawn();
    let slow: PoolName = "slow".parse().unwrap();
    let settings = Settings {
        driver_name: "hostloop.csi.dev".to_owned(),
        node_id: "node-1".to_owned(),
        data_dir: DATA.into(),
        pools: vec![pool(&PoolName::default(), DATA), pool(&slow, SLOW)],
        anchor_dir: None,
        attach: false,
        max_volumes_per_node: 0,
        max_volume_bytes: 1 << 40,
        inline: InlineSettings::default(),
        kubelet_dir: None,
    };
    os.files.create_directory(Path::new(DATA), 0o700).unwrap();
    let identity = Identity { driver: settings.driver_name.clone(), node_id: settings.node_id.clone() };
    let store = Store::open(os.files.clone(), Path::new(DATA), identity).unwrap();
    let pools = Pools::prepare(&settings, &os, &store).unwrap();
    pools.recovered(&slow);
    pools.get(&slow).unwrap();

    let slot = pools.slot(&slow).unwrap();
    let pulse = &slot.pulse;
    pulse.pretend_to_wait(Instant::now().checked_sub(PATIENCE + Duration::from_secs(1)));
    for _ in 0..2 {
        *slot.opening.lock().unwrap() = Attempt::default();
        assert!(!pools.reopen(&slow, &store), "it is of no use now");
        assert!(pools.get(&slow).unwrap_err().to_string().contains("has not answered for"));
        assert_eq!(pools.trouble(&slow), "PoolUnreadable", "it was not closed");
    }
    pulse.pretend_to_wait(None);
    pools.get(&slow).unwrap();
    assert!(!pools.reopen(&slow, &store), "what is in it was there all the time");
}
