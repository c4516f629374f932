//! Cuts of volumes for other nodes that an earlier process did not finish, or did not finish removing.

use hostloop::error::Error;
use hostloop::model::pull::{Blocks, Keep, OpenSource, SourceHandle};
use hostloop::model::tree::{Item, Position};
use hostloop::model::{NodeKey, SnapshotId, Timestamp, VolumeId, VolumeSource};

use super::*;

fn open(id: &str) -> OpenSource {
    OpenSource {
        by_file: false,
        source: VolumeSource::Volume(id.parse().expect("an id")),
        target: VolumeId::of_name(&NodeKey::of("node-b"), "pulled"),
        consistency: Consistency::default(),
        began: Timestamp::from_nanos(1),
        keep: Keep::Nothing,
    }
}

/// A driver on a volume from which a node pulls.
fn with_volume(spec: Spec) -> (Left, Driver, String) {
    let left = Left::new();
    let server = left.server();
    let id = written(&server, &left.kernel, &spec, "v");
    left.kill(server);
    let (driver, _) = left.recovered();
    (left, driver, id)
}

fn snapshots(driver: &Driver) -> Vec<SnapshotId> {
    driver.store().snapshots().iter().map(|snapshot| snapshot.id.clone()).collect()
}

const GONE: &str = "is gone; open it again";

/// Reads all of a cut: how many bytes were sent, and how many its end tells of; or the end of the message.
fn read(driver: &Driver, kind: Kind, handle: &SourceHandle) -> Result<(u64, u64), &'static str> {
    let (mut sent, mut told) = (0, 0);
    let done = match kind {
        Kind::Directory => driver.pull_tree(handle, None, Position::default(), &mut |placed| {
            match placed.message {
                Item::Entry(_) => {}
                Item::Data(piece) => sent += piece.data.len() as u64,
                Item::End { sent_bytes, .. } => told = sent_bytes,
                Item::Zeros(_) | Item::Alive => {}
            }
            true
        }),
        _ => driver.pull_blocks(handle, 0, &mut |placed| {
            match placed.message {
                Blocks::Data(piece) => sent += piece.data.len() as u64,
                Blocks::End { sent_bytes } => told = sent_bytes,
            }
            true
        }),
    };
    match done {
        Ok(()) => Ok((sent, told)),
        Err(error) => {
            assert!(matches!(&error, Error::NotFound(said) if said.ends_with(GONE)), "{error}");
            Err(GONE)
        }
    }
}

#[test]
fn a_cut_is_read_by_its_handle_only() {
    for kind in [Kind::Block, Kind::Directory] {
        let (_, driver, id) = with_volume(Spec::new(kind));
        let handle = driver.open_source(&open(&id), None).expect("a cut").handle;
        let (sent, told) = read(&driver, kind, &handle).expect("it is there");
        assert!(sent >= 4 && told == sent, "{kind:?}: {sent} {told}");
        let later = SourceHandle { created: Timestamp::now(), ..handle };
        assert_eq!(read(&driver, kind, &later), Err(GONE), "one of another time");
    }
}

/// Nobody's data are in it but those of its volume, whatever is left of it.
#[test]
fn one_whose_removal_has_only_been_recorded_goes() {
    for kind in [Kind::Block, Kind::Directory] {
        let (left, driver, id) = with_volume(Spec::new(kind));
        let opened = driver.open_source(&open(&id), None).expect("a cut");
        left.kernel.fail_every("create_file", Errno::EIO);
        driver.close_source(&opened.handle.id).expect_err("no mark");
        assert_eq!(read(&driver, kind, &opened.handle).expect_err("it is being removed"), GONE);
        left.kernel.heal();
        left.kernel.kill();
        let (driver, found) = left.recovered();
        assert_eq!((found.snapshots, found.removed, found.damaged), (1, 1, 0), "{kind:?}");
        assert_eq!(snapshots(&driver), []);
    }
}

/// A whole one is left to whoever reads it, and one that is half made goes.
#[test]
fn a_pool_that_comes_back_keeps_only_whole_cuts() {
    for (kill_at, kept) in [(4, 0), (100, 1)] {
        let (left, driver, id) = with_volume(Spec::sharing(Kind::Block));
        left.kernel.clear_steps();
        left.kernel.kill_at(kill_at, Kill::After);
        assert_eq!(driver.open_source(&open(&id), None).is_ok(), kept == 1);
        left.kernel.clear_plans();
        left.kernel.kill();
        left.kernel.set_failed(SHARING_DIR, true);
        let (driver, _) = left.recovered();
        assert_eq!(snapshots(&driver).len(), 1);
        left.kernel.set_failed(SHARING_DIR, false);
        let pool = SHARING.parse().expect("a name");
        assert!(driver.pool_names().contains(&pool), "it is among those that are tried again");
        until_usable(&driver, &pool);
        assert_eq!(snapshots(&driver).len(), kept);
        assert!(driver.store().snapshots().iter().all(|snapshot| snapshot.is_ready()));
    }
}
