//! The checks of the walk see what is wrong: each of these is done behind the driver's back.

use std::fs;
use std::time::Duration;

use super::bench::{Bench, Disk};
use super::check::{check, tear_down, write};
use super::model::{Call, Model, Origin, Spec};
use crate::harness::kernel::{self, pattern, write_at};
use crate::harness::{Kind, attach, run, text};

const NAME: &str = "volume";

/// A bench with a volume in use.
fn in_use(kind: Kind) -> (Bench, Model) {
    let (mut bench, mut model) = (Bench::new(Disk::Machine), Bench::model());
    for call in [
        Call::Create(NAME, Spec::new(kind), Origin::Nothing),
        Call::Stage(NAME),
        Call::Publish(NAME, "pod", false),
    ] {
        bench.must(&mut model, call);
    }
    write(&bench, &mut model, NAME);
    check(&bench, &model).expect("all is well");
    bench.patience = AT_ONCE;
    (bench, model)
}

/// For what does not come right by itself.
const AT_ONCE: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(20);

/// The walk sees a problem, named by these words.
#[track_caller]
fn is_seen(bench: &Bench, model: &Model, words: &str) {
    let problem = check(bench, model).expect_err("nothing is seen");
    assert!(problem.contains(words), "{problem}");
}

#[test]
fn what_is_wrong_with_a_filesystem_is_seen() {
    let (mut bench, mut model) = in_use(Kind::Ext4);
    let vol = bench.vol(&model, NAME);
    let (target, file) = (vol.target("pod"), vol.file("pod"));
    let volume = bench.world.volume_directory(vol.id());

    let [number] = kernel::loops(&volume.join("disk.img"))[..] else { panic!("one device") };
    let device = format!("/dev/loop{number}");
    let limit = format!("/sys/block/loop{number}/queue/discard_max_bytes");
    run("losetup", &["--direct-io=off", &device]);
    is_seen(&bench, &model, "direct I/O");
    run("losetup", &["--direct-io=on", &device]);

    for (stray, words) in [("making", "making"), ("state.new", "state.new")] {
        fs::write(volume.join(stray), "").expect("write");
        is_seen(&bench, &model, words);
        fs::remove_file(volume.join(stray)).expect("unlink");
    }
    let stray = bench.world.data.join("snapshots").join("stray");
    fs::create_dir_all(&stray).expect("mkdir");
    is_seen(&bench, &model, "stray");
    fs::remove_dir(&stray).expect("rmdir");

    let seed = model.known(NAME).marker.expect("it was written to");
    write_at(&file, 4096 + 512, &pattern(seed + 1, 512)).expect("write");
    is_seen(&bench, &model, "other data");
    write(&bench, &mut model, NAME);
    fs::remove_file(&file).expect("unlink");
    is_seen(&bench, &model, "is lost");
    write(&bench, &mut model, NAME);

    run("mount", &["-o", "remount,bind,ro", text(&target)]);
    is_seen(&bench, &model, "has ro");
    run("mount", &["-o", "remount,bind,rw", text(&target)]);
    run("fsfreeze", &["-f", text(&vol.staging())]);
    is_seen(&bench, &model, "is frozen");
    run("umount", &[text(&target)]);
    is_seen(&bench, &model, "expected one of");
    bench.must(&mut model, Call::Publish(NAME, "pod", false));

    drop(vol);
    // There is no way back from that but another attachment, and the start gives the number back.
    fs::write(&limit, "0").expect("sysfs");
    is_seen(&bench, &model, "does not discard");
    bench.patience = LONG;
    bench.must(&mut model, Call::Unpublish(NAME, "pod"));
    bench.must(&mut model, Call::Unstage(NAME));
    bench.world.restart_after_kill();
    tear_down(&bench, &mut model).expect("all is well");
    bench.finish();
}

#[test]
fn what_is_wrong_at_rest_is_seen() {
    let (mut bench, mut model) = in_use(Kind::Ext4);
    bench.must(&mut model, Call::Unpublish(NAME, "pod"));
    bench.must(&mut model, Call::Unstage(NAME));
    let image = bench.world.image(&bench.id(NAME));
    let device = attach(&image, &[]);
    let problem = check(&bench, &model).expect_err("nothing is seen");
    assert!(problem.contains("devices"), "{problem}");
    run("losetup", &["-d", &device]);
    bench.patience = LONG;
    check(&bench, &model).expect("all is well");

    // Nothing that a mount would notice, or corrected.
    run("debugfs", &["-w", "-R", "set_inode_field /file links_count 2", text(&image)]);
    let problem = tear_down(&bench, &mut model).expect_err("nothing is seen");
    assert!(problem.contains("e2fsck"), "{problem}");
    bench.must(&mut model, Call::Delete(NAME));
    check(&bench, &model).expect("all is well");
    bench.finish();
}
