//! The fake kernel keeps the same contract as the real one (tests/root/os_contract.rs).
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::disallowed_methods,
    reason = "a test, which fails by panicking"
)]

#[path = "mod.rs"]
mod contract;

use std::path::PathBuf;

use hostloop::os::Os;
use hostloop::os::fake::FakeKernel;

fn setup() -> (Os, PathBuf) {
    let kernel = FakeKernel::new();
    kernel.create_directories("/var/tmp/contract");
    (kernel.os(), PathBuf::from("/var/tmp/contract"))
}

#[test]
fn disks() {
    let (os, dir) = setup();
    contract::disks(&os, &dir);
}

#[test]
fn loops() {
    let (os, dir) = setup();
    contract::loops(&os, &dir);
}

#[test]
fn mounts() {
    let (os, dir) = setup();
    contract::mounts(&os, &dir);
}

#[test]
fn filesystems() {
    let (os, dir) = setup();
    contract::filesystems(&os, &dir);
}
