//! Directories whose size their filesystem enforces.
//!
//! Project quotas of xfs and ext4 take a kernel that has them, as Debian's (CONFIG_XFS_QUOTA, CONFIG_QFMT_V2). On another one
//! these tests say so, and hold the driver to what it does there; `make test-vm` runs them on Debian's, where nothing is
//! left out. Simple quotas of btrfs take Linux 6.7, which is newer than that of Debian 12.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hostloop::kernel::linux::{Tools, os};
use hostloop::kernel::{Os, Qgroups, errno_of, is_full};
use nix::errno::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use crate::contract::quotas::{Pod, adopted, inode_quotas, no_quotas, number, quotas};
use tonic::Code;

use crate::harness::kernel::space as kernel_space;
use crate::harness::volume::create_request;
use crate::harness::{
    Kind, MIB, Vol, World, eventually_within, make_filesystem, mount_loop_with, new_directory, output, run,
    text,
};

/// Whether this is the emulated machine (tests/vm/root), which has project quotas.
pub fn has_project_quotas() -> bool {
    std::env::var_os("HOSTLOOP_DEBIAN_KERNEL").is_some()
}

/// A filesystem of its own, until it is dropped.
pub struct Disk {
    pub path: PathBuf,
    /// Directories with an enforced size can be copied while they are in use.
    pub copies_in_one_step: bool,
    _temp: tempfile::TempDir,
}

impl Drop for Disk {
    fn drop(&mut self) {
        output("umount", &[text(&self.path)]);
    }
}

/// Makes and mounts a filesystem; why not, where this kernel cannot.
pub fn disk(fs_type: &str, features: &[&str], options: &str) -> Result<Disk, String> {
    let (temp, dir) = new_directory("hostloop-quota-");
    let (path, image) = (dir.join("disk"), dir.join("disk.img"));
    std::fs::create_dir(&path).expect("mkdir");
    make_filesystem(&image, fs_type, 1 << 30, features);
    mount_loop_with(&image, &path, options).map(|()| Disk { path, copies_in_one_step: false, _temp: temp })
}

/// A filesystem as mkfs makes it, which limits nothing.
pub fn plain_disk(fs_type: &str) -> Disk {
    disk(fs_type, &[], "loop").expect("mount")
}

/// An ext4 or xfs with project quotas, where this kernel has them.
pub fn with_project_quotas(fs_type: &str) -> Option<Disk> {
    let features: &[&str] = match fs_type {
        "ext4" => &["-O", "quota,project", "-E", "quotatype=prjquota"],
        _ => &[],
    };
    match disk(fs_type, features, "loop,prjquota") {
        Ok(disk) => Some(disk),
        Err(told) => {
            assert!(!has_project_quotas(), "Debian's kernel has project quotas of {fs_type}: {told}");
            println!(
                "this kernel has no project quotas of {fs_type}; make test-vm runs this test on one that has"
            );
            None
        }
    }
}

/// A process without the capability that lets it go beyond limits of ext4.
pub struct Unprivileged;

impl Pod for Unprivileged {
    fn append(&self, file: &Path, bytes: &[u8]) -> std::io::Result<()> {
        // Capabilities are those of a thread.
        let write = || {
            let held = capabilities(None).expect("capget");
            let effective = held.effective.difference(CapabilitySet::SYS_RESOURCE);
            set_capabilities(None, CapabilitySets { effective, ..held }).expect("capset");
            let mut file = std::fs::File::options()
                .append(true)
                .create(true)
                .custom_flags(libc::O_NOFOLLOW)
                .open(file)?;
            file.write_all(bytes)?;
            // Space of a write that is delayed is taken for sure when it is placed.
            file.sync_data()
        };
        std::thread::scope(|scope| scope.spawn(write).join().expect("no panic"))
    }
}

pub fn kernel() -> Os {
    os(Tools::find())
}

pub fn sync(path: &Path) {
    let directory = std::fs::File::open(path).expect("open");
    nix::unistd::syncfs(&directory).expect("syncfs");
}

pub fn place(disk: &Disk, name: &str) -> PathBuf {
    let path = disk.path.join(name);
    std::fs::create_dir(&path).expect("mkdir");
    path
}

#[test]
fn a_directory_without_quotas_has_no_limit() {
    for (fs_type, options) in [("ext4", "loop"), ("xfs", "loop"), ("btrfs", "loop")] {
        let disk = disk(fs_type, &[], options).expect("mount");
        no_quotas(&kernel(), &place(&disk, "plain"));
    }
    let (temp, dir) = new_directory("hostloop-quota-");
    let disk = Disk { path: dir.join("disk"), copies_in_one_step: false, _temp: temp };
    std::fs::create_dir(&disk.path).expect("mkdir");
    run("mount", &["-t", "tmpfs", "tmpfs", text(&disk.path)]);
    no_quotas(&kernel(), &disk.path);
}

fn project_quotas(fs_type: &str) {
    let Some(disk) = with_project_quotas(fs_type) else { return };
    quotas(&kernel(), &place(&disk, "bytes"), &Unprivileged, &|| sync(&disk.path));
    inode_quotas(&kernel(), &place(&disk, "inodes"), &Unprivileged);
    adopted(&kernel(), &place(&disk, "adopted"), &Unprivileged);
}

#[test]
fn project_quotas_of_ext4_keep_their_promises() {
    project_quotas("ext4");
}

#[test]
fn project_quotas_of_xfs_keep_their_promises() {
    project_quotas("xfs");
}

/// Whether this kernel has simple quotas of btrfs: Linux 6.7.
pub fn has_simple_quotas() -> bool {
    let release = nix::sys::utsname::uname().expect("uname").release().to_string_lossy().into_owned();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|n| n.parse().ok()).take(2).collect();
    numbers >= vec![6, 7]
}

/// A btrfs with simple quotas, where this kernel has them.
pub fn with_simple_quotas() -> Option<Disk> {
    let disk = disk("btrfs", &[], "loop").expect("mount");
    match kernel().quotas.switch_on(&disk.path, Qgroups::Simple) {
        Ok(()) => Some(disk),
        Err(error) => {
            assert_eq!(errno_of(&error), Some(Errno::EOPNOTSUPP), "{error}");
            assert!(!has_simple_quotas(), "Linux 6.7 and later has simple quotas: {error}");
            println!("this kernel has no simple quotas of btrfs");
            None
        }
    }
}

#[test]
fn simple_quotas_of_btrfs_keep_their_promises() {
    let Some(disk) = with_simple_quotas() else { return };
    kernel().quotas.switch_on(&disk.path, Qgroups::Simple).expect("they are on");
    quotas(&kernel(), &place(&disk, "bytes"), &Unprivileged, &|| sync(&disk.path));
}

/// As long as a snapshot of a volume is there, even one that counts elsewhere, whoever rewrites the volume reaches its limit.
/// When the kernel has taken the snapshot back, everything counts as before. See decision 17.
#[test]
fn a_snapshot_takes_room_from_its_volume_while_it_is() {
    let Some(disk) = with_simple_quotas() else { return };
    run("mount", &["-o", "remount,commit=1", text(&disk.path)]); // as often the kernel looks for what is to be taken back
    let (os, id) = (kernel(), number("for a while"));
    let (volume, cut) = (disk.path.join("volume"), disk.path.join("cut"));
    let limits = hostloop::kernel::QuotaLimits { bytes: 64 * MIB, inodes: 0 };
    os.quotas.create_directory(&volume, 0o755, id, limits).expect("make");
    let rewrite = || {
        let options = std::fs::OpenOptions::new().create(true).write(true).truncate(false).to_owned();
        let file = options.open(volume.join("file")).expect("open");
        let write = |n: &u64| {
            std::os::unix::fs::FileExt::write_all_at(&file, &[7; 1 << 20], n * MIB)
                .and_then(|()| file.sync_data())
        };
        (0..40).take_while(|n| write(n).is_ok()).count()
    };
    assert_eq!((rewrite(), rewrite()), (40, 40), "what it has it can rewrite");
    let count = || {
        sync(&disk.path);
        os.quotas.quota(&volume, id).expect("quota").bytes
    };
    let before = count();
    run("btrfs", &["-q", "subvolume", "snapshot", "-r", text(&volume), text(&cut)]);
    assert!(!os.quotas.counts(&volume, &cut, id).expect("ask"));
    let written = rewrite();
    assert!((16..=24).contains(&written), "{written} MiB of the 24 that were free");
    assert!(count() > 60 * MIB, "{} of {before}", count());
    run("btrfs", &["-q", "subvolume", "delete", text(&cut)]);
    run("btrfs", &["subvolume", "sync", text(&disk.path)]);
    assert!(count().abs_diff(before) < MIB, "{} of {before}", count());
    assert_eq!(rewrite(), 40);
    os.quotas.remove_at_once(&volume).expect("remove");
    os.quotas.give_back(&volume, id).expect("give back");
}

/// What a pod makes in its volume counts, also a subvolume or a snapshot, and goes with it.
#[test]
fn a_nested_subvolume_counts() {
    let Some(disk) = with_simple_quotas() else { return };
    let (os, id) = (kernel(), number("nested"));
    let volume = disk.path.join("volume");
    let limits = hostloop::kernel::QuotaLimits { bytes: 64 * MIB, inodes: 0 };
    os.quotas.create_directory(&volume, 0o755, id, limits).expect("make");
    let [nested, deep, snapshot] = ["nested", "nested/deep", "snapshot"].map(|name| volume.join(name));
    for path in [&nested, &deep] {
        run("btrfs", &["-q", "subvolume", "create", text(path)]);
    }
    run("btrfs", &["-q", "subvolume", "snapshot", text(&nested), text(&snapshot)]);
    let all = [&volume, &nested, &deep, &snapshot];
    all.iter()
        .for_each(|path| assert!(os.quotas.counts(&volume, path, id).expect("ask"), "{}", path.display()));
    let mut written = 0;
    let pod = Unprivileged;
    'full: loop {
        for path in all {
            match pod.append(&path.join("file"), &vec![7; 256 << 10]) {
                Ok(()) => written += 256 << 10,
                Err(error) => {
                    assert_eq!(errno_of(&error), Some(Errno::EDQUOT), "{error}");
                    break 'full;
                }
            }
        }
    }
    assert!((63 * MIB..=64 * MIB).contains(&written), "{written}");
    os.trees.remove(&volume).expect("remove");
    os.quotas.give_back(&volume, id).expect("give back");
    sync(&disk.path);
    assert!(os.quotas.quota(&volume, id).expect("quota").is_free());
}

pub const POOL: [(&str, &str); 1] = [("pool", "limited")];

/// A driver with a pool on the disk.
pub fn world_on(disk: &Disk) -> World {
    let pool = place(disk, "pool");
    World::new(&["--pool", &format!("limited={},reserve=0", text(&pool))])
}

/// Fills a file until its volume is full; how much fitted.
pub fn fill(file: &Path) -> u64 {
    let mut written = 0;
    loop {
        match Unprivileged.append(file, &vec![7; 256 << 10]) {
            Ok(()) => written += 256 << 10,
            Err(error) => {
                assert!(is_full(&error), "{error}");
                return written;
            }
        }
    }
}

/// The whole life of a directory with an enforced size, and of what is made from it.
pub fn lives(fs_type: &str, disk: &Disk) {
    let mut world = world_on(disk);
    let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &POOL);
    let other = Vol::create(&world, Kind::Directory, "other", 64 * MIB, &POOL);
    [&vol, &other].iter().for_each(|vol| vol.up());
    let written = fill(&vol.file("a"));
    assert!((63 * MIB..=64 * MIB).contains(&written), "{written}");
    std::fs::write(other.file("a"), vec![1; 1 << 20]).expect("a neighbour has room");
    sync(&disk.path);
    let stats = vol.stats("a").expect("NodeGetVolumeStats");
    let [total, used, available] = stats[0].1.map(|n| u64::try_from(n).expect("a size"));
    assert_eq!(total, 64 * MIB);
    assert!(used >= written && available <= MIB, "{stats:?}");
    assert_eq!(stats.len(), if fs_type == "btrfs" { 1 } else { 2 }, "{stats:?}");
    if fs_type != "btrfs" {
        assert_eq!(kernel_space(&vol.target("a")).0, 64 * MIB, "what df shows");
    }
    let bytes = 96 * MIB;
    assert_eq!(vol.expand(bytes).expect("ControllerExpandVolume"), (bytes, false));
    let more = fill(&vol.target("a").join("more"));
    assert!((31 * MIB..=32 * MIB + MIB / 4).contains(&more), "{more}");
    // A process that is killed leaves it as it is, and so does a new one.
    let volumes = [vol.info.clone(), other.info.clone()];
    world.restart_after_kill();
    let [vol, other] = volumes.map(|volume| Vol::of(&world, Kind::Directory, volume));
    assert!(std::fs::metadata(vol.file("a")).expect("stat").len() >= written);
    assert!(is_full(&Unprivileged.append(&vol.file("a"), &vec![1; 1 << 20]).expect_err("it is full")));
    vol.publish("b").expect("NodePublishVolume, another pod");
    vol.unpublish("b").expect("NodeUnpublishVolume");
    assert_eq!(
        world.csi.node_health(vol.id(), &vol.target("a"), &vol.staging()).expect("health").health_statuses,
        []
    );
    match world.csi.snapshot("in use", vol.id(), &[]) {
        Ok(cut) => {
            assert!(disk.copies_in_one_step, "nothing holds its writes back");
            world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
        }
        Err(refused) => {
            assert!(!disk.copies_in_one_step, "{refused}");
            assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
        }
    }

    std::fs::remove_file(vol.target("a").join("more")).expect("unlink");
    vol.down();
    copies(&world, &vol, bytes);
    vol.up();
    vol.remove();
    other.remove();
    // A large subvolume goes after the answer.
    let places = ["volumes", "snapshots"].map(|name| disk.path.join("pool").join(name));
    let count = |place: &PathBuf| std::fs::read_dir(place).expect("list").count();
    eventually_within(Duration::from_secs(300), "nothing is left", || {
        places.iter().all(|place| count(place) == 0)
    });
    world.finish();
}

/// A snapshot of it, and what is restored from that: limited as it is.
fn copies(world: &World, vol: &Vol<'_>, bytes: u64) {
    let snapshot = world.csi.snapshot("s", vol.id(), &[]).expect("CreateSnapshot");
    let copy = Vol::restore(world, Kind::Directory, "copy", bytes, &snapshot, &POOL);
    copy.up();
    let size = |vol: &Vol<'_>| std::fs::metadata(vol.file("a")).expect("stat").len();
    let (there, more) = (size(&copy), fill(&copy.target("a").join("more")));
    assert!((bytes - 2 * MIB..=bytes).contains(&(there + more)), "{there} and {more} of {bytes}");
    world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    copy.remove();
}

#[test]
fn a_directory_on_btrfs_lives() {
    let Some(disk) = with_simple_quotas() else { return };
    lives("btrfs", &disk);
}

#[test]
fn a_directory_on_ext4_lives() {
    let Some(disk) = with_project_quotas("ext4") else { return };
    lives("ext4", &disk);
}

#[test]
fn a_directory_on_xfs_lives() {
    let Some(disk) = with_project_quotas("xfs") else { return };
    lives("xfs", &disk);
}

#[test]
fn a_pool_without_quotas_says_what_to_do() {
    let disk = disk("ext4", &[], "loop").expect("mount");
    let world = world_on(&disk);
    let error =
        world.csi.create(create_request(Kind::Directory, "v", 64 * MIB, &POOL)).expect_err("no quotas");
    assert_eq!(error.code(), Code::ResourceExhausted, "{error}");
    assert!(error.message().contains("prjquota") && error.message().contains("backend=loop"), "{error}");
    assert_eq!(world.csi.room(&[POOL[0], ("backend", "directory")]).expect("GetCapacity"), (0, 0));
    world.finish();
}

/// A filesystem of the driver's own is mounted with quotas where the kernel has them, and without them elsewhere.
#[test]
fn a_managed_xfs_pool_limits_directories() {
    let has_quotas = with_project_quotas("xfs").is_some();
    let mut world = World::empty(&[]);
    world.set_flags(&["--pool", &format!("own={},kind=image,size=640Mi", text(&world.dir.join("own.img")))]);
    world.start();
    let own = [("pool", "own")];
    Vol::create(&world, Kind::Ext4, "loop", 64 * MIB, &own).delete().expect("DeleteVolume");
    let directory = world.csi.create(create_request(Kind::Directory, "v", 64 * MIB, &own));
    match directory {
        Err(refused) => {
            assert!(!has_quotas, "{refused}");
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
        }
        Ok(volume) => {
            assert!(has_quotas);
            let vol = Vol::of(&world, Kind::Directory, volume);
            vol.up();
            let written = fill(&vol.file("a"));
            assert!((63 * MIB..=64 * MIB).contains(&written), "{written}");
            vol.remove();
        }
    }
    world.take_driver().stop();
    run("umount", &[text(&world.data.join("pools/own"))]);
    world.assert_nothing_left();
}
