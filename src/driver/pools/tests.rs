use std::time::Duration;

use nix::errno::Errno;

use super::pulse::PATIENCE;
use super::*;
use crate::model::{FsType, InlineSettings, PoolKind, Reserve};
use crate::store::Identity;
use hostloop_fake_kernel::FakeKernel;

const DATA: &str = "/var/lib/hostloop";
const SLOW: &str = "/srv/slow";

fn pool(name: &PoolName, path: &str) -> PoolSettings {
    let (name, path, kind) = (name.clone(), path.into(), PoolKind::Directory);
    PoolSettings { name, path, kind, reserve: Reserve::Bytes(0), overcommit: 1.0, directories: false }
}

fn slow() -> PoolName {
    "slow".parse().unwrap()
}

/// A machine with a disk for the pool `slow`.
fn machine() -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.add_disk(SLOW, FsType::Xfs, 1 << 30);
    kernel.create_directories(DATA);
    kernel
}

/// The default pool with further ones, and the state file.
fn prepared(kernel: &FakeKernel, further: impl IntoIterator<Item = PoolSettings>) -> Result<(Pools, Store)> {
    let os = kernel.restart();
    let settings = Settings {
        driver_name: "hostloop.csi.dev".to_owned(),
        node_id: "node-1".to_owned(),
        data_dir: DATA.into(),
        pools: [pool(&PoolName::default(), DATA)].into_iter().chain(further).collect(),
        anchor_dir: None,
        attach: false,
        max_volumes_per_node: 0,
        max_volume_bytes: 1 << 40,
        inline: InlineSettings::default(),
        kubelet_dir: None,
        quota_ids: Default::default(),
        adopt_from: Vec::new(),
    };
    let identity = Identity { driver: settings.driver_name.clone(), node_id: settings.node_id.clone() };
    let store = Store::open(os.files.clone(), Path::new(DATA), identity).unwrap();
    Ok((Pools::prepare(&settings, &os, &store)?, store))
}

/// The names of the pools that can be used.
fn usable(pools: &Pools) -> Vec<String> {
    pools.open().iter().map(|pool| pool.name.to_string()).collect()
}

#[test]
fn a_pool_whose_disk_is_silent_stays_open() {
    let (pools, store) = prepared(&machine(), [pool(&slow(), SLOW)]).unwrap();
    let slow = slow();
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

/// Opening it would take as long as the disk does not answer.
#[test]
fn a_closed_pool_whose_disk_is_silent_is_not_opened() {
    let (pools, store) = prepared(&machine(), [pool(&slow(), SLOW)]).unwrap();
    assert_eq!(usable(&pools), ["default", "slow"]);
    let slot = pools.slot(&slow()).unwrap();
    slot.close("closed".to_owned());
    assert_eq!(usable(&pools), ["default"]);
    slot.pulse.pretend_to_wait(Instant::now().checked_sub(PATIENCE + Duration::from_secs(1)));
    *slot.opening.lock().unwrap() = Attempt::default();
    assert!(!pools.reopen(&slow(), &store));
    assert_eq!(pools.trouble(&slow()), "PoolUnavailable", "it was not opened");
    assert!(pools.get(&slow()).unwrap_err().to_string().contains("has not answered for"));
    slot.pulse.pretend_to_wait(None);
    assert!(pools.reopen(&slow(), &store), "what is in it waits for recovery");
    assert_eq!(usable(&pools), ["default", "slow"]);
}

#[test]
fn a_disk_that_says_an_error_is_told_of_with_its_pool() {
    let kernel = machine();
    let (pools, _store) = prepared(&kernel, [pool(&slow(), SLOW)]).unwrap();
    let names = pools.names();
    assert_eq!(pools.silent(&names), []);
    kernel.fail_every("read_through", Errno::EIO);
    kernel.fail_every("statvfs", Errno::EIO);
    let silent = pools.silent(&[slow()]);
    let [(name, why)] = &silent[..] else { panic!("one pool: {silent:?}") };
    assert_eq!(*name, slow());
    assert!(why.contains("its disk does not answer"), "{why}");
    kernel.heal();
    assert_eq!(pools.silent(&names), []);
}

#[test]
fn directories_share_no_filesystem_with_promises() {
    let directories = |path| PoolSettings { directories: true, ..pool(&slow(), path) };
    let kernel = machine();
    kernel.create_directories("/srv/beside");
    let error = prepared(&kernel, [directories("/srv/beside")]).err().expect("refused").to_string();
    assert!(error.contains("on the same filesystem as pool default"), "{error}");
    let (pools, _store) = prepared(&machine(), [directories(SLOW)]).unwrap();
    assert_eq!(usable(&pools), ["default", "slow"]);
}

/// loop(4) falls back to buffered I/O on a device of smaller blocks than direct I/O needs.
#[test]
fn a_device_has_the_blocks_that_direct_io_needs() {
    for (alignment, block_size) in [
        (None, 512),
        (Some(1), 512),
        (Some(512), 512),
        (Some(1536), 512),
        (Some(2048), 2048),
        (Some(4096), 4096),
        (Some(8192), 512),
    ] {
        let kernel = machine();
        kernel.set_direct_io(alignment);
        let (pools, _store) = prepared(&kernel, []).unwrap();
        let pool = pools.get(&PoolName::default()).unwrap();
        assert_eq!(pool.block_size(&kernel.spawn(), true).unwrap(), block_size, "{alignment:?}");
        assert_eq!(pool.block_size(&kernel.spawn(), false).unwrap(), 512, "{alignment:?}");
    }
}

#[test]
fn a_missing_path_is_told_from_one_that_fails() {
    let kernel = machine();
    kernel.symlink("/srv/round", "/srv/round");
    kernel.write_file("/srv/file", b"").unwrap();
    for (path, missing) in [("/srv/none", true), ("/srv/file/none", true), ("/srv/round", false)] {
        let (pools, _store) = prepared(&kernel, [pool(&slow(), path)]).unwrap();
        let why = pools.get(&slow()).unwrap_err().to_string();
        assert!(why.contains(path) && why.contains("is its disk mounted?") == missing, "{why}");
    }
}

#[test]
fn two_pools_are_never_one_directory() {
    let (pools, _store) = prepared(&machine(), [pool(&slow(), DATA)]).unwrap();
    let why = pools.get(&slow()).unwrap_err().to_string();
    assert!(why.contains(&format!("{DATA} is the directory of pool default already")), "{why}");
    assert_eq!(usable(&pools), ["default"]);
}

#[test]
fn a_closed_pool_is_tried_again_when_it_is_due() {
    let (pools, store) = prepared(&machine(), [pool(&slow(), SLOW)]).unwrap();
    pools.recovered(&slow());
    let slot = pools.slot(&slow()).unwrap();
    *slot.opening.lock().unwrap() = Attempt::default();
    assert!(!pools.reopen(&slow(), &store));
    assert_eq!(usable(&pools), ["default", "slow"], "an open one stays as it is");
    slot.close("closed".to_owned());
    let dear = Instant::now().checked_sub(Duration::from_secs(3)).unwrap();
    *slot.opening.lock().unwrap() = Attempt::ended(dear, &Ok(()));
    assert!(!pools.reopen(&slow(), &store));
    assert_eq!(usable(&pools), ["default"], "the last try was dear");
    *slot.opening.lock().unwrap() = Attempt::default();
    assert!(pools.reopen(&slow(), &store));
    assert_eq!(usable(&pools), ["default", "slow"]);
}
