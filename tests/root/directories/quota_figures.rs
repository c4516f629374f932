//! What a directory with an enforced size costs, in figures: `cargo test … quota_figures -- --ignored --nocapture`. They are
//! ratios within one run, taken in turns.

use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::directories::qgroups::with_full_qgroups;
use crate::directories::quotas::{Disk, place, sync, with_project_quotas, with_simple_quotas, world_on};
use crate::harness::{Kind, MIB, Vol, World, run, text};

const TURNS: usize = 9;
/// Of what takes little time and varies.
const MANY_TURNS: usize = 31;

/// Something that is done in a directory, and how often.
type Pattern = (&'static str, fn(&Path));

const PATTERNS: [Pattern; 4] = [
    ("write 4 KiB at random and sync", |dir| {
        let file =
            File::options().write(true).create(true).truncate(false).open(dir.join("random")).expect("open");
        for n in 0..150_u64 {
            let at = (n * 7919) % 4096 * 4096;
            file.write_all_at(&[n as u8; 4096], at).and_then(|()| file.sync_data()).expect("write");
        }
    }),
    ("create a file and sync", |dir| {
        for n in 0..100 {
            let mut file = File::create(dir.join(n.to_string())).expect("create");
            file.write_all(b"x").and_then(|()| file.sync_all()).expect("write");
        }
        (0..100).for_each(|n| std::fs::remove_file(dir.join(n.to_string())).expect("unlink"));
    }),
    ("write 32 MiB and sync", |dir| {
        let mut file = File::create(dir.join("stream")).expect("create");
        (0..32).for_each(|_| file.write_all(&[1; 1 << 20]).expect("write"));
        file.sync_all().expect("sync");
    }),
    ("create 2000 files", |dir| {
        (0..2000).for_each(|n| drop(File::create(dir.join(format!("c{n}"))).expect("create")));
        (0..2000).for_each(|n| std::fs::remove_file(dir.join(format!("c{n}"))).expect("unlink"));
    }),
];

fn timed(work: impl FnOnce()) -> Duration {
    let started = Instant::now();
    work();
    started.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

/// The data path: the directory of a volume beside a plain one of the same filesystem.
fn data_path(name: &str, limited: &Path, plain: &Path) {
    for (what, work) in PATTERNS {
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        // What each begins with, such as the first blocks of a file, counts for neither.
        [limited, plain].iter().for_each(|dir| work(dir));
        for turn in 0..MANY_TURNS {
            // Who is first may find more to do.
            if turn % 2 == 0 {
                theirs.push(timed(|| work(plain)));
            }
            ours.push(timed(|| work(limited)));
            if turn % 2 == 1 {
                theirs.push(timed(|| work(plain)));
            }
        }
        let (ours, theirs) = (median(ours), median(theirs));
        let ratio = theirs.as_secs_f64() / ours.as_secs_f64();
        println!("{name}: {what}: {ours:.1?}, plain {theirs:.1?}: {ratio:.2} of it");
    }
}

/// Create, stage, publish and back.
fn life(world: &World, kind: Kind, name: &str) -> Duration {
    timed(|| {
        let vol = Vol::create(world, kind, name, 64 * MIB, &[("pool", "limited")]);
        vol.up();
        vol.remove();
    })
}

fn lives(name: &str, world: &World) {
    let kinds = [Kind::Directory, Kind::Block, Kind::Ext4];
    let mut times = kinds.map(|_| Vec::new());
    for turn in 0..TURNS {
        for (kind, times) in kinds.iter().zip(&mut times) {
            times.push(life(world, *kind, &format!("life-{turn}")));
        }
    }
    for (kind, times) in kinds.iter().zip(times) {
        println!("{name}: a life of {}: {:.1?}", kind.name(), median(times));
    }
}

/// What should not depend on the number of files.
fn with_files(name: &str, world: &World, disk: &Disk, files: usize) {
    let class = [("pool", "limited"), ("inodes", "200000")];
    let class = if name.starts_with("btrfs") { &class[..1] } else { &class };
    let vol = Vol::create(world, Kind::Directory, &format!("files-{files}"), 256 * MIB, class);
    vol.up();
    for n in 0..files {
        let directory = vol.target("a").join((n / 1000).to_string());
        if n % 1000 == 0 {
            std::fs::create_dir(&directory).expect("mkdir");
        }
        File::create(directory.join(n.to_string())).expect("create");
    }
    sync(&disk.path);
    let stats = median((0..TURNS).map(|_| timed(|| drop(vol.stats("a").expect("stats")))).collect());
    let grow = |n: u64| timed(|| assert!(vol.expand((256 + n) * MIB).is_ok()));
    let grown = median((1..=TURNS as u64).map(grow).collect());
    if disk.copies_in_one_step {
        copies(name, world, &vol, files);
    }
    vol.down();
    let deleted = timed(|| vol.delete().expect("DeleteVolume"));
    println!("{name}: {files} files: statistics {stats:.1?}, expansion {grown:.1?}, deletion {deleted:.1?}");
}

/// Snapshots of a volume in use, and restores of them.
fn copies(name: &str, world: &World, vol: &Vol<'_>, files: usize) {
    let (mut cuts, mut restores, mut deletions) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS {
        // Something that is not on the disk yet.
        std::fs::write(vol.file("a"), vec![turn as u8; 1 << 20]).expect("write");
        let (started, cut_name) = (Instant::now(), format!("{files}-{turn}"));
        let cut = world.csi.snapshot(&cut_name, vol.id(), &[]).expect("CreateSnapshot");
        cuts.push(started.elapsed());
        let started = Instant::now();
        let pool = [("pool", "limited")];
        let restored = Vol::restore(world, Kind::Directory, &cut_name, 272 * MIB, &cut, &pool);
        restores.push(started.elapsed());
        restored.delete().expect("DeleteVolume");
        deletions.push(timed(|| world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot")));
    }
    let (cut, restore, deletion) = (median(cuts), median(restores), median(deletions));
    println!(
        "{name}: {files} files: snapshot in use {cut:.1?}, restore {restore:.1?}, its deletion {deletion:.1?}"
    );
}

fn figures(name: &str, disk: &Disk) {
    let world = world_on(disk);
    lives(name, &world);
    let vol = Vol::create(&world, Kind::Directory, "data", 256 * MIB, &[("pool", "limited")]);
    vol.up();
    data_path(name, &vol.target("a"), &place(disk, "plain"));
    if name.starts_with("btrfs") {
        let subvolume = disk.path.join("subvolume");
        run("btrfs", &["-q", "subvolume", "create", text(&subvolume)]);
        data_path(&format!("{name}, beside a plain subvolume"), &vol.target("a"), &subvolume);
    }
    vol.remove();
    [10, 10_000, 100_000].iter().for_each(|files| with_files(name, &world, disk, *files));
    world.finish();
}

/// DeleteVolume of a subvolume with many files, and DeleteSnapshot of its snapshot where that is one too; while the kernel
/// does not take back the blocks of another one.
fn deletions(name: &str, disk: &Disk) {
    let (world, files) = (world_on(disk), 100_000);
    let directory = disk.path.join("pool/volumes");
    let (mut volumes, mut snapshots) = (Vec::new(), Vec::new());
    let rest = |left: usize| {
        while std::fs::read_dir(&directory).expect("list").count() > left {
            std::thread::sleep(Duration::from_millis(20));
        }
        run("btrfs", &["subvolume", "sync", text(&disk.path)]);
        sync(&disk.path);
    };
    let make = |name: &str| {
        let vol = Vol::create(&world, Kind::Directory, name, 256 * MIB, &[("pool", "limited")]);
        vol.up();
        crate::directories::removals::fill(&vol.target("a"), files);
        sync(&disk.path);
        vol
    };
    for turn in 0..3 {
        let vol = make(&format!("v-{turn}"));
        vol.down();
        volumes.push(timed(|| vol.delete().expect("DeleteVolume")));
        rest(0);
    }
    if disk.copies_in_one_step {
        let vol = make("cut");
        for turn in 0..3 {
            let cut = world.csi.snapshot(&format!("s-{turn}"), vol.id(), &[]).expect("CreateSnapshot");
            let delete = || world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
            snapshots.push(timed(delete));
            rest(1);
        }
        vol.remove();
    }
    println!("{name}: deletion of {files} files: volumes {volumes:.1?}, snapshots {snapshots:.1?}");
    world.finish();
}

#[test]
#[ignore = "it measures, which takes minutes"]
fn deletion_of_subvolumes_is_measured() {
    deletions("btrfs with full qgroups", &with_full_qgroups());
    if let Some(disk) = with_simple_quotas() {
        deletions("btrfs with simple quotas", &disk);
    }
}

#[test]
#[ignore = "it measures, which takes minutes"]
fn figures_agree_on_every_filesystem() {
    figures("btrfs with full qgroups", &with_full_qgroups());
    if let Some(disk) = with_simple_quotas() {
        figures("btrfs with simple quotas", &disk);
    }
    for fs_type in ["ext4", "xfs"] {
        if let Some(disk) = with_project_quotas(fs_type) {
            figures(fs_type, &disk);
        }
    }
}
