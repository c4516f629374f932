//! The driver of an earlier release and this one on one data directory, in turns: an upgrade, a downgrade and an upgrade
//! again, while a pod writes. What either makes, the other uses, copies and removes.
//!
//! The same in a cluster, where controller and nodes are replaced one after the other, in both orders. `make test-upgrade`
//! builds the earlier releases and runs this with each; by hand:
//! `HOSTLOOP_OLD_DRIVER=/path/hostloop cargo test --test root other_release:: -- --ignored --nocapture`

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::client;
use crate::cluster::{Cluster, content};
use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::process::{binary, command};
use crate::harness::volume::{create_request, restore_request};
use crate::harness::{Kind, MIB, Vol, World, output};

const LEN: usize = 16 << 10;
const KINDS: [Kind; 4] = [Kind::Ext4, Kind::Xfs, Kind::Btrfs, Kind::Block];

/// A pod that writes and syncs as often as it can; it ends with the first write that fails.
struct Writer {
    end: Arc<AtomicBool>,
    thread: Option<JoinHandle<std::io::Result<(u64, Duration)>>>,
}

impl Writer {
    fn begin(path: &Path) -> Writer {
        let mut file = File::create(path).expect("a file in the volume");
        let end = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            let (mut count, mut longest, mut last) = (0_u64, Duration::ZERO, Instant::now());
            while !ended.load(Ordering::Acquire) {
                file.write_all(&count.to_le_bytes())?;
                file.sync_data()?;
                count += 1;
                longest = longest.max(last.elapsed());
                last = Instant::now();
                std::thread::sleep(Duration::from_millis(2));
            }
            Ok((count, longest))
        });
        Writer { end, thread: Some(thread) }
    }

    /// How many numbers it has written, and the longest time for one.
    fn end(mut self) -> (u64, Duration) {
        self.end.store(true, Ordering::Release);
        self.thread.take().expect("it runs").join().expect("the writer").expect("no write fails")
    }
}

impl Drop for Writer {
    /// Otherwise it keeps the volume of a test that fails.
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Deletes a volume of the turn before. 0.1.0 does not know the empty files (marks) that its successors leave beside an
/// image: it deletes the data, and then says that the directory is not empty. Gives the directory that is left.
fn delete(world: &World, vol: &Vol<'_>, knows_marks: bool) -> Option<PathBuf> {
    let directory = world.volume_directory(vol.id());
    vol.down();
    match vol.delete() {
        Err(refused) if !knows_marks && refused.message().contains("ENOTEMPTY") => {
            assert!(!world.image(vol.id()).exists(), "{refused:?}");
            Some(directory)
        }
        deleted => {
            deleted.expect("DeleteVolume");
            assert!(!directory.exists(), "{directory:?}");
            None
        }
    }
}

/// One driver's turn, after those before it. Gives the directories that it could not delete.
fn turn(world: &World, turn: u64, knows_marks: bool) -> Vec<PathBuf> {
    let mut left = Vec::new();
    let seed = |kind: usize, turn: u64| 1 + turn * 8 + u64::try_from(kind).expect("small");
    let at = |turn: u64| turn * LEN as u64;
    for (index, kind) in KINDS.into_iter().enumerate() {
        let vol = Vol::create(world, kind, &format!("kept {index}"), kind.size(), &[]);
        // The other one has staged it.
        if turn > 0 {
            vol.down();
        }
        vol.up();
        for before in 0..turn {
            assert_eq!(
                read_at(&vol.file("a"), at(before), LEN),
                pattern(seed(index, before), LEN),
                "{kind:?}"
            );
        }
        write_at(&vol.file("a"), at(turn), &pattern(seed(index, turn), LEN)).expect("write");
        // The pool cannot share blocks: a raw device in use is copied only where it is said that this will do.
        let parameters: &[_] = if kind == Kind::Block { &[("freeze", "false")] } else { &[] };
        for before in 0..turn {
            let snapshot = world.csi.snapshot(&format!("{index} in turn {before}"), vol.id(), parameters);
            let snapshot = snapshot.expect("CreateSnapshot gives the one that is there");
            let bytes = vol.bytes().max(u64::try_from(snapshot.size_bytes).expect("a size"));
            let copy = Vol::restore(world, kind, &format!("{index} {before} {turn}"), bytes, &snapshot, &[]);
            copy.up();
            assert_eq!(
                read_at(&copy.file("a"), at(before), LEN),
                pattern(seed(index, before), LEN),
                "{kind:?}"
            );
            copy.remove();
        }
        world.csi.snapshot(&format!("{index} in turn {turn}"), vol.id(), parameters).expect("CreateSnapshot");
        let bytes = vol.bytes() + 32 * MIB;
        assert_eq!(vol.expand(bytes).expect("ControllerExpandVolume").0, bytes);
        if turn > 0 {
            let name = format!("of turn {} {index}", turn - 1);
            left.extend(delete(world, &Vol::create(world, kind, &name, kind.size(), &[]), knows_marks));
        }
        Vol::create(world, kind, &format!("of turn {turn} {index}"), kind.size(), &[]).up();
    }
    left
}

fn old_driver() -> String {
    std::env::var("HOSTLOOP_OLD_DRIVER").expect("HOSTLOOP_OLD_DRIVER is the driver of an earlier release")
}

#[test]
#[ignore = "it needs the driver of an earlier release, in HOSTLOOP_OLD_DRIVER"]
fn an_upgrade_a_downgrade_and_an_upgrade() {
    let old = old_driver();
    let mut world = World::empty(&[]);
    let drivers = [old.as_str(), binary(), old.as_str(), binary()];
    let mut writer = None;
    let mut left: Vec<PathBuf> = Vec::new();
    for (number, driver) in (0..).zip(drivers) {
        world.start_as(command(driver).args(world.arguments()));
        for directory in std::mem::take(&mut left) {
            assert!(!directory.exists(), "the start finishes its deletion: {directory:?}");
        }
        writer.get_or_insert_with(|| {
            let vol = Vol::create(&world, Kind::Ext4, "written all the time", 64 * MIB, &[]);
            vol.up();
            Writer::begin(&vol.file("a"))
        });
        let said = output(driver, &["--version"]);
        left = turn(&world, number, !String::from_utf8_lossy(&said.stdout).contains(" 0.1.0"));
        let driver = world.take_driver();
        if number == 1 { driver.kill() } else { driver.stop() }
    }
    world.start();
    let (count, longest) = writer.expect("the writer").end();
    println!("{count} synced writes, none failed; the longest took {} ms", longest.as_millis());
    let vol = Vol::create(&world, Kind::Ext4, "written all the time", 64 * MIB, &[]);
    let written = read_at(&vol.file("a"), 0, usize::try_from(count * 8).expect("small"));
    assert!(written.chunks(8).zip(0_u64..).all(|(found, number)| found == number.to_le_bytes()));
    vol.remove();
    for (index, kind) in KINDS.into_iter().enumerate() {
        Vol::create(&world, kind, &format!("kept {index}"), kind.size(), &[]).remove();
        Vol::create(&world, kind, &format!("of turn 3 {index}"), kind.size(), &[]).remove();
    }
    for snapshot in world.csi.list_snapshots().expect("ListSnapshots") {
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    }
    world.finish();
}

/// What is there at every step of an upgrade of a cluster.
struct Kept {
    /// On either node, staged and written to all the time.
    volumes: [csi::Volume; 2],
    snapshots: [csi::Snapshot; 2],
    data: Vec<u8>,
}

fn make_on(
    cluster: &Cluster,
    node: usize,
    request: csi::CreateVolumeRequest,
) -> Result<csi::Volume, tonic::Status> {
    let accessibility_requirements = cluster.nodes[node].here();
    cluster.csi.create(csi::CreateVolumeRequest { accessibility_requirements, ..request })
}

impl Kept {
    fn make(cluster: &Cluster) -> Kept {
        let data = pattern(3, LEN);
        let made = [0, 1].map(|node| {
            let request = create_request(Kind::Ext4, &format!("kept {node}"), Kind::Ext4.size(), &[]);
            let volume = make_on(cluster, node, request).expect("CreateVolume");
            let vol = Vol::of(&cluster.nodes[node].world, Kind::Ext4, volume.clone());
            vol.up();
            write_at(&vol.file("a"), 0, &data).expect("write");
            let snapshot = cluster.csi.snapshot(&format!("kept {node}"), vol.id(), &[]);
            (volume, snapshot.expect("CreateSnapshot"))
        });
        let [(first, of_first), (second, of_second)] = made;
        Kept { volumes: [first, second], snapshots: [of_first, of_second], data }
    }

    fn vol<'a>(&self, cluster: &'a Cluster, node: usize) -> Vol<'a> {
        Vol::of(&cluster.nodes[node].world, Kind::Ext4, self.volumes[node].clone())
    }
}

/// Everything that users do, at one step of an upgrade. A copy to the other node is made; where not all are of the same
/// release it may be refused with a code after which the sidecars try again.
fn use_cluster(cluster: &Cluster, kept: &Kept, step: &str, all_the_same: bool) {
    assert_eq!(cluster.csi.list(0, "").expect("ListVolumes").entries.len(), 2, "{step}");
    for node in [0, 1] {
        let (here, name) = (&cluster.nodes[node], format!("{step} {node}"));
        let request = || create_request(Kind::Ext4, &name, Kind::Ext4.size(), &[]);
        let volume = make_on(cluster, node, request()).expect("CreateVolume");
        assert_eq!(make_on(cluster, node, request()).expect("CreateVolume again"), volume, "{step}");
        let vol = Vol::of(&here.world, Kind::Ext4, volume.clone());
        vol.up();
        write_at(&vol.file("a"), 0, &kept.data).expect("write");
        vol.down();
        let grown = vol.bytes() + 32 * MIB;
        let expand = csi::ControllerExpandVolumeRequest {
            volume_capability: Some(Kind::Ext4.capability(Mode::SingleNodeMultiWriter)),
            ..client::expand(&volume.volume_id, grown)
        };
        let expanded = cluster.csi.call(expand).expect("ControllerExpandVolume");
        assert_eq!(u64::try_from(expanded.capacity_bytes).expect("a size"), grown, "{step}");
        assert!(content(here, Kind::Ext4, &volume, LEN) == kept.data, "{step}");

        let snapshot = &kept.snapshots[node];
        let restore =
            |name: &str| restore_request(Kind::Ext4, name, Kind::Ext4.size(), &snapshot.snapshot_id, &[]);
        let restored =
            make_on(cluster, node, restore(&format!("{name} restored"))).expect("a restore at home");
        let other = 1 - node;
        let moved = match make_on(cluster, other, restore(&format!("{name} moved"))) {
            Ok(volume) => {
                assert!(content(&cluster.nodes[other], Kind::Ext4, &volume, LEN) == kept.data, "{step}");
                Some(volume)
            }
            Err(refused) => {
                let again = [Code::Unavailable, Code::FailedPrecondition].contains(&refused.code());
                assert!(!all_the_same && again && !refused.message().is_empty(), "{step}: {refused:?}");
                println!("{step}, from node {node}: {:?}: {}", refused.code(), refused.message());
                None
            }
        };
        assert!(content(here, Kind::Ext4, &restored, LEN) == kept.data, "{step}");
        for gone in [Some(volume), Some(restored), moved].into_iter().flatten() {
            cluster.csi.delete(&gone.volume_id).expect("DeleteVolume");
        }
        let vol = kept.vol(cluster, node);
        assert!(read_at(&vol.file("a"), 0, LEN) == kept.data, "{step}");
    }
}

/// The file that is written to all the time.
fn written(vol: &Vol<'_>) -> PathBuf {
    vol.target("a").join("written all the time")
}

#[test]
#[ignore = "it needs the driver of an earlier release, in HOSTLOOP_OLD_DRIVER"]
fn a_cluster_of_two_releases_in_both_orders() {
    let old = old_driver();
    let mut cluster = Cluster::start_as(&old);
    let kept = Kept::make(&cluster);
    let writers = [0, 1].map(|node| Writer::begin(&written(&kept.vol(&cluster, node))));
    // The nodes are 0 and 1, the controller is 2. There, back in the other order, there in that order, and back.
    let there = [2, 0, 1];
    let orders =
        [(binary(), there), (&*old, [1, 0, 2]), (binary(), [0, 1, 2]), (&*old, there), (binary(), there)];
    use_cluster(&cluster, &kept, "before", true);
    for (turn, (program, order)) in orders.into_iter().enumerate() {
        for (at, which) in order.into_iter().enumerate() {
            match which {
                2 => cluster.replace_controller(program),
                node => cluster.nodes[node].replace(program),
            }
            use_cluster(&cluster, &kept, &format!("turn {turn}, step {at}"), at == order.len() - 1);
        }
    }
    for (node, writer) in writers.into_iter().enumerate() {
        let (count, longest) = writer.end();
        println!(
            "node {node}: {count} synced writes, none failed; the longest took {} ms",
            longest.as_millis()
        );
        let vol = kept.vol(&cluster, node);
        let found = read_at(&written(&vol), 0, usize::try_from(count * 8).expect("small"));
        assert!(found.chunks(8).zip(0_u64..).all(|(found, number)| found == number.to_le_bytes()));
        vol.down();
        cluster.csi.delete(vol.id()).expect("DeleteVolume");
        cluster.csi.delete_snapshot(&kept.snapshots[node].snapshot_id).expect("DeleteSnapshot");
    }
    cluster.finish();
}
