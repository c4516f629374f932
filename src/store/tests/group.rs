//! Changes at the same time.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use super::*;
use crate::store::Durability;
use hostloop_fake_kernel::Kill;
use nix::errno::Errno;

#[test]
fn concurrent_changes_share_syncs_and_all_are_durable() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    disk.set_sync_time(Duration::from_millis(2));
    let before = disk.syncs();
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let store = &store;
            scope.spawn(move || {
                for round in 0..10 {
                    let number = thread * 10 + round;
                    store.put(volume(number, number as u64)).unwrap();
                    assert_eq!(store.get(&id(number)).unwrap().capacity_bytes, number as u64);
                }
            });
        }
    });
    let syncs = disk.syncs() - before;
    assert!(syncs < 80, "{syncs} syncs for 160 changes");
    disk.power_cut();
    assert_eq!(model(&open(&disk).unwrap()), (0..160).map(|number| (id(number), number as u64)).collect());
}

#[test]
fn readers_run_beside_writers_and_a_slow_sync() {
    let disk = Disk::new();
    let store = open_with(&disk, 20).unwrap();
    let done = AtomicBool::new(false);
    let reads = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let (all, page) = (store.volumes(), store.page(None, Some(3), |_| true).0);
                assert!(all.is_sorted_by_key(|volume| volume.id.clone()) && page.len() <= 3);
                reads.fetch_add(1, Ordering::Relaxed);
            }
        });
        let writers: Vec<_> = (0..4)
            .map(|thread| {
                let store = &store;
                scope.spawn(move || {
                    for round in 0..200 {
                        store.put(volume(thread, round)).unwrap();
                        store.delete(&id(thread), Durability::Lazy).unwrap();
                        assert!(store.get(&id(thread)).is_none());
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        done.store(true, Ordering::Relaxed);
    });
    assert!(store.is_empty() && reads.load(Ordering::Relaxed) > 0);
    assert!(open(&disk).unwrap().is_empty());
}

#[test]
fn a_failed_sync_fails_its_whole_batch_only() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    disk.set_sync_time(Duration::from_millis(1));
    let acked: Model = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|thread| {
                let (store, disk) = (&store, &disk);
                scope.spawn(move || {
                    let mut acked = Model::new();
                    for number in thread * 20..thread * 20 + 20 {
                        if number % 7 == 0 {
                            let done = [Kill::Before, Kill::Torn, Kill::After][number % 3];
                            disk.fail(0, Fault::Once(Errno::EIO), done);
                        }
                        if store.put(volume(number, 1)).is_ok() {
                            acked.insert(id(number), 1);
                        }
                    }
                    acked
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    disk.heal();
    assert!(acked.len() < 160, "something failed");
    assert_eq!(model(&store), acked);
    store.put(volume(1000, 1)).unwrap();
    disk.power_cut();
    let mut expected = acked;
    expected.insert(id(1000), 1);
    assert_eq!(model(&open(&disk).unwrap()), expected);
}

#[test]
fn a_panic_of_the_writer_leaves_nobody_waiting() {
    let disk = Disk::new();
    let store = open(&disk).unwrap();
    store.put(volume(0, 1)).unwrap();
    disk.set_sync_time(Duration::from_millis(5));
    disk.panic_at_sync();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (1..9).map(|_| scope.spawn(|| store.put(volume(1, 1)).is_ok())).collect();
        let panicked = threads.into_iter().filter_map(|thread| thread.join().err()).count();
        assert_eq!(panicked, 1);
    });
    store.put(volume(2, 1)).unwrap();
    let before = model(&store);
    disk.power_cut();
    assert_eq!(model(&open(&disk).unwrap()), before);
}
