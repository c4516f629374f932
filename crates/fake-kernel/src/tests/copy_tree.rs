//! Copying a tree: what a fault, a kill and a power cut leave of it.

use super::*;

/// A tree of five entries with everything that the fake knows of, durable.
fn source() -> FakeKernel {
    let kernel = FakeKernel::new();
    kernel.create_directories("/pool/a/sub");
    kernel.write_file("/pool/a/sub/one", b"first").unwrap();
    kernel.link("/pool/a/sub/one", "/pool/a/two").unwrap();
    kernel.symlink("/pool/outside", "/pool/a/link");
    kernel.write_file("/pool/a/large", &[7; 100_000]).unwrap();
    kernel.write_file("/pool/outside", b"precious").unwrap();
    kernel.sync("/pool").unwrap();
    kernel.clear_steps();
    kernel
}

fn copy(os: &Os) -> std::io::Result<()> {
    os.trees.copy(p("/pool/a"), p("/pool/b"), false, &mut |_| Ok(()))
}

/// The copy is the source's equal.
fn assert_whole(kernel: &FakeKernel) {
    let below = |top: &str| -> Vec<String> {
        kernel.tree(top).iter().map(|path| path.strip_prefix(top).unwrap().to_owned()).collect()
    };
    assert_eq!(below("/pool/b"), below("/pool/a"));
    assert_eq!(kernel.read_file("/pool/b/sub/one").unwrap(), b"first");
    assert_eq!(kernel.read_file("/pool/b/large").unwrap(), [7; 100_000]);
    let id = |path: &str| kernel.stat(path).unwrap().id;
    assert_eq!(id("/pool/b/two"), id("/pool/b/sub/one"), "still one file");
    assert_ne!(id("/pool/b/two"), id("/pool/a/two"));
    assert_eq!(kernel.stat("/pool/b/link").unwrap().kind, hostloop_kernel::FileKind::Symlink);
    assert_eq!(kernel.mode("/pool/b/sub"), kernel.mode("/pool/a/sub"));
}

#[test]
fn a_copy_is_whole_and_durable_but_for_its_own_entry() {
    for synced in [true, false] {
        let kernel = source();
        let os = kernel.os();
        copy(&os).unwrap();
        assert_whole(&kernel);
        if synced {
            os.files.sync_directory(p("/pool")).unwrap();
        }
        kernel.power_cut();
        assert_eq!(kernel.exists("/pool/b"), synced);
        if synced {
            assert_whole(&kernel);
        }
    }
}

/// One step for each entry, one for the root and one to make it durable.
const STEPS: usize = 7;

#[test]
fn every_step_can_fail_or_be_the_last() {
    copy(&source().os()).unwrap();
    for step in 1..=STEPS {
        let kernel = source();
        kernel.fail_at(step, Errno::ENOSPC);
        errno_is(copy(&kernel.os()), Errno::ENOSPC);
        assert_eq!(kernel.steps().len(), step);
        kernel.os().trees.remove(p("/pool/b")).unwrap();
        copy(&kernel.os()).unwrap();
        assert_whole(&kernel);
        for kill in [Kill::Before, Kill::Torn, Kill::After] {
            let kernel = source();
            kernel.kill_at(step, kill);
            errno_is(copy(&kernel.os()), Errno::EIO);
            assert!(kernel.is_dead());
            assert_eq!(kernel.read_file("/pool/a/large").unwrap(), [7; 100_000]);
            let os = kernel.restart();
            os.trees.remove(p("/pool/b")).unwrap();
            copy(&os).unwrap();
            assert_whole(&kernel);
        }
    }
    let kernel = source();
    copy(&kernel.os()).unwrap();
    assert_eq!(kernel.steps().len(), STEPS);
}

#[test]
fn a_kill_in_a_file_leaves_half_of_it() {
    let kernel = source();
    // The root, and then the entries in their order: large, link, sub, two.
    kernel.kill_at(2, Kill::Torn);
    errno_is(copy(&kernel.os()), Errno::EIO);
    assert_eq!(kernel.read_file("/pool/b/large").unwrap(), [7; 50_000]);
}

#[test]
fn a_vanished_entry_is_left_out_and_a_full_disk_fails() {
    let kernel = source();
    let vanish = &mut |_: u64| {
        let _ = kernel.remove_file("/pool/a/sub/one");
        Ok(())
    };
    kernel.os().trees.copy(p("/pool/a"), p("/pool/b"), false, vanish).unwrap();
    assert!(kernel.exists("/pool/b/two") && !kernel.exists("/pool/b/sub/one"));

    let kernel = source();
    kernel.set_space(1 << 30, 8192);
    errno_is(copy(&kernel.os()), Errno::ENOSPC);
}
