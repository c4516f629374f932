//! Another driver and this one on one data directory, in turns, while a pod writes. What either makes, the other uses,
//! copies and removes. The same in a cluster, where controller and nodes are replaced one after the other, in both orders.
//!
//! - `same_format`: the driver of an earlier release with the same format of the state file. There is a way back.
//! - `later_format`: a driver that writes a later format. This one refuses it, and changes nothing.
//!
//! `make test-upgrade` builds the other drivers; by hand: `HOSTLOOP_OTHER_DRIVER=/path/hostloop cargo test
//! --test root other_release::later_format -- --ignored --nocapture`

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
use crate::cluster::processes::{Cluster, content};
use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::process::{binary, command};
use crate::harness::volume::{create_request, restore_request};
use crate::harness::{Kind, MIB, Vol, World};

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

/// One driver's turn, after those before it.
fn turn(world: &World, turn: u64) {
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
            Vol::create(world, kind, &format!("of turn {} {index}", turn - 1), kind.size(), &[]).remove();
        }
        Vol::create(world, kind, &format!("of turn {turn} {index}"), kind.size(), &[]).up();
    }
}

fn other_driver() -> String {
    std::env::var("HOSTLOOP_OTHER_DRIVER").expect("HOSTLOOP_OTHER_DRIVER is the program of another driver")
}

/// The volume that a pod writes to all the time.
fn written_all_the_time(world: &World) -> Vol<'_> {
    Vol::create(world, Kind::Ext4, "written all the time", 64 * MIB, &[])
}

fn begin_writing(world: &World) -> Writer {
    let vol = written_all_the_time(world);
    vol.up();
    Writer::begin(&vol.file("a"))
}

/// Looks at what was written, and removes all that is there after this turn.
fn end(world: World, writer: Writer, turn: u64) {
    let (count, longest) = writer.end();
    println!("{count} synced writes, none failed; the longest took {} ms", longest.as_millis());
    let vol = written_all_the_time(&world);
    assert_numbers(&vol.file("a"), count);
    vol.remove();
    for (index, kind) in KINDS.into_iter().enumerate() {
        for name in [format!("kept {index}"), format!("of turn {turn} {index}")] {
            Vol::create(&world, kind, &name, kind.size(), &[]).remove();
        }
    }
    for snapshot in world.csi.list_snapshots().expect("ListSnapshots") {
        world.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    }
    world.finish();
}

/// Asserts that the file holds the first `count` numbers, in order.
fn assert_numbers(file: &Path, count: u64) {
    let found = read_at(file, 0, usize::try_from(count * 8).expect("small"));
    assert!(found.chunks(8).zip(0_u64..).all(|(found, number)| found == number.to_le_bytes()));
}

#[test]
#[ignore = "it needs another driver, in HOSTLOOP_OTHER_DRIVER"]
fn same_format_an_upgrade_a_downgrade_and_an_upgrade() {
    let old = other_driver();
    let mut world = World::empty(&[]);
    let mut writer = None;
    for (number, driver) in (0..).zip([&*old, binary(), &*old, binary()]) {
        world.start_as(command(driver).args(world.arguments()));
        writer.get_or_insert_with(|| begin_writing(&world));
        turn(&world, number);
        let driver = world.take_driver();
        if number == 1 { driver.kill() } else { driver.stop() }
    }
    world.start();
    end(world, writer.expect("the writer"), 3);
}

fn state(world: &World) -> String {
    std::fs::read_to_string(world.data.join("state.jsonl")).expect("the state file")
}

/// The format that the state file names.
fn format_of(state: &str) -> u64 {
    let header: serde_json::Value =
        serde_json::from_str(state.lines().next().expect("a header")).expect("JSON");
    header["hostloop"].as_u64().expect("a format")
}

#[test]
#[ignore = "it needs another driver, in HOSTLOOP_OTHER_DRIVER"]
fn later_format_an_upgrade_without_a_way_back() {
    let later = other_driver();
    let mut world = World::empty(&[]);
    world.start();
    let writer = begin_writing(&world);
    turn(&world, 0);
    let format = format_of(&state(&world));
    world.take_driver().kill();
    for number in [1, 2] {
        world.start_as(command(&later).args(world.arguments()));
        assert_eq!(format_of(&state(&world)), format + 1, "the start writes it anew");
        turn(&world, number);
        world.take_driver().stop();
        let written = state(&world);
        let said = world.refused();
        let wanted = format!("has format {}, this version of hostloop reads up to {format}", format + 1);
        assert!(said.contains(&wanted), "{said}");
        assert!(state(&world) == written, "it is left as it is");
    }
    world.start_as(command(&later).args(world.arguments()));
    end(world, writer, 2);
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

/// The controller, among the nodes 0 and 1.
const CONTROLLER: usize = 2;

fn replace(cluster: &mut Cluster, which: usize, program: &str) {
    match which {
        CONTROLLER => cluster.replace_controller(program),
        node => cluster.nodes[node].replace(program),
    }
}

/// Looks at what was written, and removes all that is there.
fn end_of_cluster(cluster: Cluster, kept: &Kept, writers: [Writer; 2]) {
    for (node, writer) in writers.into_iter().enumerate() {
        let (count, longest) = writer.end();
        println!(
            "node {node}: {count} synced writes, none failed; the longest took {} ms",
            longest.as_millis()
        );
        let vol = kept.vol(&cluster, node);
        assert_numbers(&written(&vol), count);
        vol.down();
        cluster.csi.delete(vol.id()).expect("DeleteVolume");
        cluster.csi.delete_snapshot(&kept.snapshots[node].snapshot_id).expect("DeleteSnapshot");
    }
    cluster.finish();
}

#[test]
#[ignore = "it needs another driver, in HOSTLOOP_OTHER_DRIVER"]
fn same_format_a_cluster_in_both_orders() {
    let old = other_driver();
    let mut cluster = Cluster::start_as(&old);
    let kept = Kept::make(&cluster);
    let writers = [0, 1].map(|node| Writer::begin(&written(&kept.vol(&cluster, node))));
    // There, back in the other order, there in that order, and back.
    let there = [CONTROLLER, 0, 1];
    let orders = [
        (binary(), there),
        (&*old, [1, 0, CONTROLLER]),
        (binary(), [0, 1, CONTROLLER]),
        (&*old, there),
        (binary(), there),
    ];
    use_cluster(&cluster, &kept, "before", true);
    for (turn, (program, order)) in orders.into_iter().enumerate() {
        for (at, which) in order.into_iter().enumerate() {
            replace(&mut cluster, which, program);
            use_cluster(&cluster, &kept, &format!("turn {turn}, step {at}"), at == order.len() - 1);
        }
    }
    end_of_cluster(cluster, &kept, writers);
}

#[test]
#[ignore = "it needs another driver, in HOSTLOOP_OTHER_DRIVER"]
fn later_format_a_cluster_in_both_orders() {
    let later = other_driver();
    for order in [[CONTROLLER, 0, 1], [1, 0, CONTROLLER]] {
        let mut cluster = Cluster::start_as(binary());
        let kept = Kept::make(&cluster);
        let writers = [0, 1].map(|node| Writer::begin(&written(&kept.vol(&cluster, node))));
        for which in order {
            replace(&mut cluster, which, &later);
            use_cluster(&cluster, &kept, &format!("{order:?}, after {which}"), true);
        }
        // A controller keeps no state file.
        for program in [binary(), &later] {
            replace(&mut cluster, CONTROLLER, program);
            use_cluster(&cluster, &kept, &format!("{order:?}, the controller is {program}"), true);
        }
        end_of_cluster(cluster, &kept, writers);
    }
}
