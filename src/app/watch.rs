//! What a driver with volumes does now and then, as long as it serves.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

use crate::driver::Driver;
use crate::model::PoolName;

/// A cut of a volume that another node has opened is removed when nobody has read from it for so long.
pub const IDLE_SOURCES: Duration = Duration::from_secs(600);

/// An inline volume whose pod is gone is deleted if that was seen for so long, so that kubelet has time to do it.
pub const ORPHANED: Duration = Duration::from_secs(300);

/// What a deletion could not remove is tried again after so long, if its caller did not try again by then.
const REFUSED: Duration = Duration::from_secs(60);

/// How often a pool that cannot be used is tried again.
const AGAIN: Duration = Duration::from_secs(5);

/// Removes, every minute, the cuts of volumes that other nodes have opened and not read from for
/// [`IDLE_SOURCES`]. Runs until it is dropped.
pub async fn watch_sources(driver: Arc<Driver>) -> Infallible {
    let mut minute = tokio::time::interval(Duration::from_secs(60));
    loop {
        minute.tick().await;
        let driver = Arc::clone(&driver);
        // A bug in it was logged by its panic.
        let _ = tokio::task::spawn_blocking(move || driver.remove_idle_sources(IDLE_SOURCES)).await;
    }
}

/// Examines the volumes, looks for files without a record, removes unused loop devices, and what no caller may ask for again: inline volumes whose pods
/// are gone, what a deletion could not remove, and records that could not be written. Now and every minute. Runs until it is dropped.
pub(super) async fn watch_health(driver: Option<Arc<Driver>>) -> Infallible {
    let Some(driver) = driver else { return std::future::pending().await };
    let mut minute = tokio::time::interval(Duration::from_secs(60));
    minute.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        minute.tick().await;
        let driver = Arc::clone(&driver);
        // A bug in it was logged by its panic.
        let _ = tokio::task::spawn_blocking(move || {
            driver.examine_volumes();
            driver.look_for_strangers();
            driver.remove_unused_loop_devices();
            driver.delete_orphaned_inline_volumes(ORPHANED);
            driver.retry_removals(REFUSED);
            driver.retry_records();
        })
        .await;
    }
}

/// Removes what is left of large directories that were deleted. Runs until it is dropped.
pub(super) async fn watch_removals(driver: Option<Arc<Driver>>) -> Infallible {
    let _removing = driver.as_ref().map(Driver::remove_in_background);
    drop(driver);
    std::future::pending().await
}

/// Tries pools that cannot be used again, and looks whether the others still can be. Runs until it is dropped.
pub(super) async fn watch_pools(driver: Option<Arc<Driver>>) -> Infallible {
    let Some(driver) = driver else { return std::future::pending().await };
    let mut tick = tokio::time::interval(AGAIN);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    tick.tick().await; // the start has just tried
    let mut running: HashMap<PoolName, JoinHandle<()>> = HashMap::new();
    loop {
        tick.tick().await;
        // Each on a thread of its own: a disk that does not answer holds up nobody else's.
        running.retain(|_, tried| !tried.is_finished());
        for pool in driver.pool_names() {
            running.entry(pool).or_insert_with_key(|name| {
                let (driver, name) = (Arc::clone(&driver), name.clone());
                tokio::task::spawn_blocking(move || driver.try_pool_again(&name))
            });
        }
    }
}
