//! The driver of an earlier release and this one on one data directory, in turns: an upgrade, a downgrade and an upgrade
//! again, while a pod writes. What either makes, the other uses, copies and removes.
//!
//! `HOSTLOOP_OLD_DRIVER=/path/hostloop cargo test --features fake-os --test root other_release:: -- --ignored --nocapture`

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::process::{BINARY, command};
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

#[test]
#[ignore = "it needs the driver of an earlier release, in HOSTLOOP_OLD_DRIVER"]
fn an_upgrade_a_downgrade_and_an_upgrade() {
    let old = std::env::var("HOSTLOOP_OLD_DRIVER")
        .expect("HOSTLOOP_OLD_DRIVER is the driver of an earlier release");
    let mut world = World::empty(&[]);
    let drivers = [old.as_str(), BINARY, old.as_str(), BINARY];
    let mut writer = None;
    for (number, driver) in (0..).zip(drivers) {
        world.start_as(command(driver).args(world.arguments()));
        writer.get_or_insert_with(|| {
            let vol = Vol::create(&world, Kind::Ext4, "written all the time", 64 * MIB, &[]);
            vol.up();
            Writer::begin(&vol.file("a"))
        });
        turn(&world, number);
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
