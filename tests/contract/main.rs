//! The fake kernel keeps the same contract as the real one (tests/root/os_contract.rs).
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test, which fails by panicking"
)]

use std::path::PathBuf;

use hostloop::kernel::MakeOptions;
use hostloop::kernel::Os;
use hostloop::model::FsType;
use hostloop_fake_kernel::{FakeKernel, Kill};
use hostloop_test_support::contract;
use nix::errno::Errno;

fn setup() -> (Os, PathBuf) {
    let kernel = FakeKernel::new();
    kernel.create_directories("/var/tmp/contract");
    (kernel.os(), PathBuf::from("/var/tmp/contract"))
}

#[test]
fn disks_keep_their_contract() {
    let (os, dir) = setup();
    contract::disks(&os, &dir);
}

#[test]
fn copied_trees_keep_their_contract() {
    let (os, dir) = setup();
    contract::copy_tree(&os, &dir);
}

#[test]
fn tree_streams_keep_their_contract() {
    let (os, dir) = setup();
    contract::tree_stream(&os, &dir);
}

#[test]
fn tree_changes_keep_their_contract() {
    let (os, dir) = setup();
    contract::tree_changes(&os, &dir);
}

#[test]
fn propagated_mounts_keep_their_contract() {
    let kernel = FakeKernel::new();
    let dir = PathBuf::from("/var/tmp/contract");
    kernel.create_directories(&dir);
    let slave = |path: &std::path::Path| kernel.set_slave_at(path);
    contract::propagated(&kernel.os(), &dir, &|path| kernel.set_shared_at(path, true), &slave);
}

#[test]
fn protected_files_keep_their_contract() {
    let kernel = FakeKernel::new();
    kernel.create_directories("/var/tmp/contract");
    let change = |word: &str, path: &std::path::Path| {
        let on = word.starts_with('+');
        kernel.set_attributes(path, on && word.contains('i'), on && word.contains('a'));
    };
    contract::protected(&kernel.os(), "/var/tmp/contract".as_ref(), &change);
}

#[test]
fn loops_keep_their_contract() {
    let (os, dir) = setup();
    contract::loops(&os, &dir);
    contract::let_go_late(&os, &dir);
}

#[test]
fn a_failed_sync_loses_what_was_written() {
    let kernel = FakeKernel::new();
    let (os, file) = (kernel.os(), PathBuf::from("/var/tmp/file"));
    kernel.create_directories("/var/tmp");
    contract::image(&os, &file, 8192);
    os.files.sync_file(&file).expect("sync");
    os.files.sync_directory(&PathBuf::from("/var/tmp")).expect("sync");
    // The write is the first step from there on.
    contract::failed_sync(&os, &file, &|| kernel.fail_at(2, Errno::EIO), &|| (), &|| kernel.power_cut());
}

/// Ends a program when it is dropped.
struct Working(FakeKernel);

impl Drop for Working {
    fn drop(&mut self) {
        self.0.settle();
    }
}

#[test]
fn a_program_keeps_its_device() {
    let kernel = FakeKernel::new();
    kernel.create_directories("/var/tmp/contract");
    let os = kernel.os();
    contract::working_program(&os, &PathBuf::from("/var/tmp/contract"), &|device| {
        kernel.set_program_time(u64::from(u32::MAX));
        kernel.kill_at(1, Kill::Left);
        let options = MakeOptions { extra: Vec::new(), zeroed: false };
        let killed = kernel.spawn().filesystems.make(device, FsType::Ext4, &options);
        killed.expect_err("its process is killed");
        Box::new(Working(kernel.clone()))
    });
}

#[test]
fn mounts_keep_their_contract() {
    let (os, dir) = setup();
    contract::mounts(&os, &dir);
    contract::stacked(&os, &dir);
    contract::apart(&os, &contract::directory(&os, dir.join("apart")));
}

#[test]
fn filesystems_keep_their_contract() {
    let (os, dir) = setup();
    contract::filesystems(&os, &dir);
}

#[test]
fn freezes_keep_their_contract() {
    let (os, dir) = setup();
    contract::freeze(&os, &dir);
}

/// A machine with a pool on each filesystem.
fn pools() -> (FakeKernel, Vec<PathBuf>) {
    let kernel = FakeKernel::new();
    let pool = |fs_type: FsType| {
        let path = PathBuf::from(format!("/pools/{fs_type}"));
        kernel.add_disk(&path, fs_type, 10 << 30);
        path
    };
    let paths = FsType::ALL.into_iter().map(pool).collect();
    (kernel, paths)
}

#[test]
fn copies_keep_their_contract() {
    let (kernel, pools) = pools();
    pools.iter().for_each(|pool| contract::copies(&kernel.os(), pool));
}

#[test]
fn identities_keep_their_contract() {
    let (kernel, pools) = pools();
    pools.iter().for_each(|pool| contract::identities(&kernel.os(), pool));
    assert_eq!(kernel.hazards(), [""; 0]);
}

#[test]
fn every_pool_filesystem_keeps_the_contract() {
    let (kernel, pools) = pools();
    for pool in pools {
        let place = |name| {
            let path = pool.join(name);
            kernel.create_directories(&path);
            path
        };
        contract::disks(&kernel.os(), &place("disks"));
        contract::in_place(&kernel.os(), &place("in place"));
        contract::loops(&kernel.os(), &place("loops"));
        contract::filesystems(&kernel.os(), &place("filesystems"));
    }
}

/// A pod of the fake kernel.
struct FakePod(FakeKernel);

impl contract::quotas::Pod for FakePod {
    fn append(&self, file: &std::path::Path, bytes: &[u8]) -> std::io::Result<()> {
        match self.0.stat(file) {
            None => self.0.write_file(file, bytes),
            Some(stat) => self.0.write(file, stat.size, bytes),
        }
    }
}

#[test]
fn quotas_keep_their_contract() {
    let (kernel, pools) = pools();
    let (os, pod) = (kernel.os(), FakePod(kernel.clone()));
    for pool in pools {
        contract::quotas::no_quotas(&os, &pool);
        kernel.set_quotas(&pool, true);
        let place = |name: &str| {
            let path = pool.join(name);
            kernel.create_directories(&path);
            path
        };
        let sync = || kernel.sync(&pool).expect("sync");
        contract::quotas::quotas(&os, &place("quotas"), &pod, &sync);
        if !pool.ends_with("btrfs") {
            contract::quotas::inode_quotas(&os, &place("inodes"), &pod);
            contract::quotas::adopted(&os, &place("adopted"), &pod);
        }
        assert_eq!(kernel.quotas(&pool), []);
    }
}

#[test]
fn full_qgroups_keep_their_contract() {
    let kernel = FakeKernel::new();
    kernel.add_disk("/mnt", hostloop::model::FsType::Btrfs, 20 << 30);
    let os = kernel.spawn();
    os.quotas.switch_on("/mnt".as_ref(), hostloop::kernel::Qgroups::Full).expect("switch on");
    let directory = contract::directory(&os, "/mnt/quotas".into());
    contract::quotas::quotas(&os, &directory, &FakePod(kernel.clone()), &|| {
        kernel.sync("/mnt").expect("sync")
    });
    assert_eq!(kernel.quotas("/mnt"), []);
}
