//! Trees that somebody changes while they are copied.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::{copy, on};
use crate::contract::directory;
use hostloop::kernel::Os;
use hostloop::model::FsType;

/// Ends the other thread, also where an assertion fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Copies `source` again and again while something goes on in it.
fn meanwhile(os: &Os, dir: &Path, rounds: usize, act: impl Fn(usize) + Sync, check: impl Fn(&Path)) {
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let actor = scope.spawn(|| {
            let mut n = 0;
            while !stop.load(Ordering::Relaxed) {
                act(n);
                n += 1;
                // A disk that is kept busy makes the test long, not better.
                std::thread::sleep(Duration::from_micros(200));
            }
        });
        let at_the_end = Stop(&stop);
        for round in 0..rounds {
            let target = dir.join(format!("target-{round}"));
            copy(os, &dir.join("source"), &target, false);
            check(&target);
            os.trees.remove(&target).expect("remove");
        }
        drop(at_the_end);
        actor.join().expect("the other one");
    });
}

#[test]
fn a_file_that_grows_is_copied_to_an_end() {
    on(FsType::Ext4, 1 << 30, |os, dir| {
        let source = directory(os, dir.join("source"));
        let pattern: Vec<u8> = (0..65536u32).map(|n| (n % 251) as u8).collect();
        let path = source.join("log");
        let log = std::fs::OpenOptions::new().create_new(true).append(true).open(&path).expect("create");
        (&log).write_all(&pattern.repeat(64)).expect("write");
        let append = |_| {
            // It never ends, but it does not fill the disk either.
            if log.metadata().expect("stat").len() < 128 << 20 {
                (&log).write_all(&pattern).expect("write");
            }
        };
        meanwhile(os, dir, 10, append, |target| {
            let copied = std::fs::read(target.join("log")).expect("read");
            assert!(copied.len() >= pattern.len() * 64);
            assert!(copied.chunks(pattern.len()).all(|chunk| pattern.starts_with(chunk)), "{}", copied.len());
        });
    });
}

#[test]
fn a_file_that_is_cut_off_and_grows_again() {
    on(FsType::Ext4, 1 << 30, |os, dir| {
        let source = directory(os, dir.join("source"));
        let path = source.join("file");
        std::fs::write(&path, vec![7; 4 << 20]).expect("write");
        let file = std::fs::OpenOptions::new().write(true).open(&path).expect("open");
        let cut = |n: usize| file.set_len(if n.is_multiple_of(2) { 100 } else { 4 << 20 }).expect("truncate");
        meanwhile(os, dir, 200, cut, |target| {
            let copied = std::fs::read(target.join("file")).expect("read");
            assert!((100..=4 << 20).contains(&copied.len()), "{}", copied.len());
            assert!(copied[..100].iter().all(|byte| *byte == 7));
        });
    });
}

#[test]
fn files_that_come_and_go_end_no_copy() {
    on(FsType::Ext4, 1 << 30, |os, dir| {
        let source = directory(os, dir.join("source"));
        for i in 0..20 {
            let sub = directory(os, source.join(format!("{i}")));
            for j in 0..50 {
                std::fs::write(sub.join(format!("stays {j}")), "it stays").expect("write");
            }
        }
        let act = |n: usize| {
            let sub = source.join(format!("{}", n % 20));
            let (file, moved, tree) = (sub.join("file"), sub.join("moved"), sub.join("tree"));
            std::fs::write(&file, vec![1; 10_000]).expect("write");
            std::fs::rename(&file, &moved).expect("rename");
            std::fs::hard_link(&moved, source.join("linked")).expect("link");
            std::fs::create_dir_all(tree.join("of/directories")).expect("mkdir");
            std::fs::write(tree.join("of/file"), "x").expect("write");
            // As programs save a file.
            std::fs::write(sub.join("new"), "it stays").expect("write");
            std::fs::rename(sub.join("new"), sub.join("stays 7")).expect("rename");
            std::fs::remove_file(source.join("linked")).expect("unlink");
            std::fs::remove_dir_all(&tree).expect("remove");
        };
        meanwhile(os, dir, 20, act, |target| {
            for i in 0..20 {
                for j in (0..50).filter(|j| *j != 7) {
                    let path = target.join(format!("{i}/stays {j}"));
                    assert_eq!(std::fs::read(&path).expect("what stays is copied"), b"it stays");
                }
            }
        });
    });
}

/// Directories of a deep tree are moved about, so that the way up is another one than the way down.
#[test]
fn directories_that_move_end_no_copy() {
    on(FsType::Ext4, 1 << 30, |os, dir| {
        let source = directory(os, dir.join("source"));
        let mut path = source.clone();
        for _ in 0..80 {
            path = directory(os, path.join("down"));
            for i in 0..20 {
                std::fs::write(path.join(format!("{i}")), "x").expect("write");
            }
            directory(os, path.join("aside"));
        }
        std::fs::write(source.join("stays"), "it stays").expect("write");
        let middle = source.join("down/".repeat(60));
        let (elsewhere, outside) = (source.join("elsewhere"), dir.join("outside"));
        let act = |n: usize| {
            let to = if n.is_multiple_of(2) { &elsewhere } else { &outside };
            std::fs::rename(&middle, to).expect("rename");
            std::fs::rename(to, &middle).expect("rename");
        };
        meanwhile(os, dir, 40, act, |target| {
            assert_eq!(std::fs::read(target.join("stays")).expect("read"), b"it stays");
            let above = target.join("down/".repeat(59));
            assert!(above.join("19").exists() && above.join("aside").exists());
        });
    });
}

/// Somebody exchanges a directory, and a file, for a link to where the copy must not get.
#[test]
fn links_that_take_a_place_are_not_followed() {
    on(FsType::Ext4, 1 << 30, |os, dir| {
        let (source, outside) = (directory(os, dir.join("source")), directory(os, dir.join("outside")));
        std::fs::write(outside.join("secret"), "secret").expect("write");
        let (name, link) = (directory(os, source.join("name")), source.join("link"));
        let (file, file_link) = (source.join("file"), source.join("file link"));
        std::fs::write(name.join("inside"), "x").expect("write");
        std::fs::write(&file, "x").expect("write");
        std::os::unix::fs::symlink(&outside, &link).expect("symlink");
        std::os::unix::fs::symlink(outside.join("secret"), &file_link).expect("symlink");
        let act = |_| {
            for (a, b) in [(&name, &link), (&file, &file_link)] {
                renameat2(AT_FDCWD, a, AT_FDCWD, b, RenameFlags::RENAME_EXCHANGE).expect("exchange");
            }
        };
        meanwhile(os, dir, 200, act, |target| {
            for entry in std::fs::read_dir(target).expect("list") {
                let path = entry.expect("an entry").path();
                let kind = path.symlink_metadata().expect("stat");
                assert!(!kind.is_dir() || !path.join("secret").exists());
                assert!(!kind.is_file() || std::fs::read(&path).expect("read") == b"x");
            }
        });
    });
}
