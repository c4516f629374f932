//! What a start makes of what an earlier process left: of a group that was cut off, of records that are older than the
//! disk, and of a pool that comes back.

mod cuts;

use std::time::{Duration, Instant};

use hostloop::app;
use hostloop::driver::{Driver, Recovered};
use hostloop::model::request::CreateVolumeGroupSnapshot;
use hostloop::model::{
    Consistency, Format, FsType, GroupSnapshot, Phase, PoolName, Settings, Snapshot, Volume,
};
use hostloop::store::{Durability, Identity, Store};
use hostloop_fake_kernel::{FakeKernel, Kill};
use nix::errno::Errno;

use crate::harness::{
    DATA_DIR, DIRECTORIES_DIR, NODE, SHARING, SHARING_DIR, Server, machine, settings, with_sharing,
};
use crate::requests::{
    Kind, Spec, delete, delete_group, delete_snapshot, group, publish, snapshot, stage, staging_path,
    target_path, unpublish, unstage,
};
use crate::wait::eventually;

/// A machine after its driver was killed, and what there is on it.
struct Left {
    kernel: FakeKernel,
    settings: Settings,
}

impl Left {
    fn new() -> Left {
        let kernel = machine();
        let settings = with_sharing(&kernel, settings());
        Left { kernel, settings }
    }

    fn server(&self) -> Server {
        Server::try_start(self.kernel.restart(), &self.settings).expect("it starts")
    }

    fn kill(&self, server: Server) {
        self.kernel.clear_plans();
        self.kernel.kill();
        server.abandon();
    }

    /// The next process, before and after its recovery.
    fn recovered(&self) -> (Driver, Recovered) {
        let driver = app::driver(self.settings.clone(), self.kernel.restart()).expect("it starts");
        let found = driver.recover();
        (driver, found)
    }

    /// The marks beside the snapshots that say that they are not whole.
    fn marks(&self) -> Vec<String> {
        let pools = [DATA_DIR, DIRECTORIES_DIR].map(|pool| self.kernel.tree(format!("{pool}/snapshots")));
        let is_mark = |path: &String| path.ends_with("/making") || path.ends_with("/deleting");
        pools.concat().into_iter().filter(is_mark).collect()
    }

    /// Records as an older state file has them.
    fn rewrite(&self, rewrite: impl FnOnce(&Store)) {
        let identity = Identity { driver: "hostloop.csi.dev".to_owned(), node_id: NODE.to_owned() };
        let files = self.kernel.restart().files;
        rewrite(&Store::open(files, std::path::Path::new(DATA_DIR), identity).expect("the state file"));
    }
}

/// A volume with data in it that nobody uses.
fn written(server: &Server, kernel: &FakeKernel, spec: &Spec, name: &str) -> String {
    let id = server.call(spec.create(name)).expect("create").volume.expect("a volume").volume_id;
    kernel.create_directories(staging_path(&id));
    server.call(stage(&id, spec.capability())).expect("stage");
    server.call(publish(&id, spec.capability(), name)).expect("publish");
    let target = target_path(name);
    let file = if spec.kind == Kind::Block { target } else { format!("{target}/file") };
    kernel.write_file(&file, b"data").expect("write");
    kernel.sync(DATA_DIR).expect("sync");
    server.call(unpublish(&id, name)).expect("unpublish");
    server.call(unstage(&id)).expect("unstage");
    id
}

/// Two volumes, of which one is a directory.
fn two(server: &Server, kernel: &FakeKernel) -> [String; 2] {
    [Kind::Block, Kind::Directory].map(|kind| written(server, kernel, &Spec::new(kind), kind.name()))
}

#[test]
fn a_group_that_was_cut_off_is_whole_or_gone() {
    for deleting in [false, true] {
        let mut seen = [false; 2];
        for n in 1.. {
            let left = Left::new();
            let server = left.server();
            let ids = two(&server, &left.kernel);
            let request = group("g", &ids.each_ref().map(String::as_str));
            let made = deleting.then(|| server.call(request.clone()).expect("a group"));
            left.kernel.clear_steps();
            left.kernel.kill_at(n, Kill::After);
            let ended = match made {
                None => server.call(request).is_err(),
                Some(made) => {
                    let id = made.group_snapshot.expect("a group").group_snapshot_id;
                    server.call(delete_group(&id)).is_err()
                }
            };
            left.kill(server);
            if !ended {
                break;
            }
            let (driver, found) = left.recovered();
            assert_eq!((found.volumes, found.damaged), (2, 0), "step {n}");
            let (groups, snapshots) = (driver.store().groups(), driver.store().snapshots());
            let whole = groups.len() == 1 && snapshots.len() == 2;
            assert!(
                whole || (groups.is_empty() && snapshots.is_empty()),
                "step {n}: {groups:?} {snapshots:?}"
            );
            assert!(groups.iter().all(|group| group.phase == Phase::Ready));
            assert!(snapshots.iter().all(|snapshot| snapshot.is_ready()));
            let marks = left.marks();
            assert_eq!(marks, Vec::<String>::new(), "step {n}: what is kept is not half deleted");
            // A deletion may have been done but for its answer.
            assert!(found.removed <= 1 && (found.removed == 0 || !whole), "step {n}: {found:?}");
            assert!(found.removed == 1 || whole || deleting, "step {n}: {found:?}");
            seen[usize::from(whole)] = true;
            assert_eq!(driver.recover().removed, 0);
        }
        assert_eq!(seen, [true, true], "deleting: {deleting}");
    }
}

#[test]
fn a_snapshot_whose_deletion_was_cut_off_is_whole_or_gone() {
    for kind in [Kind::Block, Kind::Directory] {
        let mut seen = [false; 2];
        for n in 1.. {
            let left = Left::new();
            let server = left.server();
            let id = written(&server, &left.kernel, &Spec::new(kind), "v");
            let made = server.call(snapshot("s", &id)).expect("a snapshot").snapshot.expect("a snapshot");
            left.kernel.clear_steps();
            left.kernel.kill_at(n, Kill::After);
            let ended = server.call(delete_snapshot(&made.snapshot_id)).is_err();
            left.kill(server);
            if !ended {
                break;
            }
            let (driver, found) = left.recovered();
            let whole = driver.store().snapshots().iter().filter(|snapshot| snapshot.is_ready()).count();
            assert_eq!((found.damaged, driver.store().snapshots().len()), (0, whole), "{kind:?} step {n}");
            let files = left.kernel.tree(format!("{DATA_DIR}/snapshots"));
            assert!(whole == 1 || kind == Kind::Directory || files.is_empty(), "step {n}: {files:?}");
            seen[whole] = true;
        }
        assert!(seen[0], "{kind:?}: {seen:?}");
    }
}

/// Gives a group and its members records as an older state file has them.
fn older(store: &Store, phase: Phase) {
    for group in store.groups() {
        store.put_group(GroupSnapshot { phase, ..(*group).clone() }).expect("put");
    }
    for snapshot in store.snapshots() {
        store.put_snapshot(Snapshot { phase, ..(*snapshot).clone() }).expect("put");
    }
}

/// What becomes of a group of these kinds with other records: how many groups are left, are removed and need attention.
fn settled(kinds: [Kind; 2], rewrite: impl FnOnce(&Store)) -> [usize; 3] {
    let left = Left::new();
    let server = left.server();
    let ids = [("one", kinds[0]), ("two", kinds[1])]
        .map(|(name, kind)| written(&server, &left.kernel, &Spec::new(kind), name));
    server.call(group("g", &ids.each_ref().map(String::as_str))).expect("a group");
    left.kill(server);
    left.rewrite(rewrite);
    let (driver, found) = left.recovered();
    let groups = driver.store().groups();
    if found.damaged == 0 {
        assert!(groups.iter().all(|group| group.phase == Phase::Ready));
        let snapshots = driver.store().snapshots();
        assert!(snapshots.len() == 2 * groups.len() && snapshots.iter().all(|one| one.is_ready()));
    }
    [groups.len(), found.removed, found.damaged]
}

#[test]
fn a_group_that_is_whole_is_kept_whatever_an_older_record_says() {
    let kinds = [Kind::Block, Kind::Directory];
    for phase in [Phase::Creating, Phase::Deleting] {
        assert_eq!(settled(kinds, |store| older(store, phase)), [1, 0, 0], "{phase:?}");
    }
    // One of its members is not recorded.
    let lacking = |store: &Store| {
        older(store, Phase::Creating);
        store.delete_snapshot(&store.snapshots()[0].id, Durability::Synced).expect("delete");
    };
    assert_eq!(settled(kinds, lacking), [1, 0, 1]);
}

/// A retry decides as the start does: here of what no start has looked at.
#[test]
fn a_retry_keeps_a_group_that_is_whole_with_all_members() {
    let left = Left::new();
    let server = left.server();
    let ids = two(&server, &left.kernel);
    server.call(group("g", &ids.each_ref().map(String::as_str))).expect("a group");
    let source_volume_ids = ids.to_vec();
    left.kill(server);
    left.rewrite(|store| older(store, Phase::Creating));
    let driver = app::driver(left.settings.clone(), left.kernel.restart()).expect("it starts");
    let consistency = Consistency::default();
    let request = CreateVolumeGroupSnapshot { name: "g".to_owned(), source_volume_ids, consistency };
    let made = driver.create_volume_group_snapshot(request).expect("the group");
    assert_eq!((made.members.len(), made.group.phase), (2, Phase::Ready));
    assert!(driver.store().snapshots().iter().all(|snapshot| snapshot.is_ready()));
}

#[test]
fn a_volume_that_holds_data_is_kept_whatever_an_older_record_says() {
    for kind in [Kind::Block, Kind::Directory] {
        for (phase, is_written, kept) in [
            (Phase::Creating, true, 1),
            (Phase::Creating, false, 0),
            (Phase::Deleting, true, 1),
            (Phase::Deleting, false, 1),
        ] {
            let left = Left::new();
            let (server, spec) = (left.server(), Spec::new(kind));
            match is_written {
                true => drop(written(&server, &left.kernel, &spec, "v")),
                false => drop(server.call(spec.create("v")).expect("create")),
            }
            left.kill(server);
            left.rewrite(|store| {
                let volume = store.volumes().remove(0);
                store.put(Volume { phase, ..(*volume).clone() }).expect("put");
            });
            let (driver, found) = left.recovered();
            let what = format!("{kind:?} {phase:?} {is_written}");
            assert_eq!((found.volumes, found.removed, found.damaged), (1, 1 - kept, 0), "{what}");
            assert_eq!(driver.store().volumes().len(), kept, "{what}");
            assert!(driver.store().volumes().iter().all(|volume| volume.is_ready()), "{what}");
        }
    }
}

#[test]
fn what_is_only_recorded_as_being_deleted_is_kept() {
    let left = Left::new();
    let (server, spec) = (left.server(), Spec::new(Kind::Directory));
    let id = written(&server, &left.kernel, &spec, "v");
    let cut = server.call(snapshot("s", &id)).expect("a snapshot").snapshot.expect("a snapshot");
    left.kill(server);
    for what in ["snapshot", "volume"] {
        let server = left.server();
        // The step after the record is on the disk.
        left.kernel.clear_steps();
        left.kernel.fail_every("create_file", Errno::EIO);
        match what {
            "snapshot" => drop(server.call(delete_snapshot(&cut.snapshot_id)).expect_err("no mark")),
            _ => drop(server.call(delete(&id)).expect_err("no mark")),
        }
        left.kernel.heal();
        left.kill(server);
        let (driver, found) = left.recovered();
        assert_eq!((found.removed, found.damaged), (0, 0), "{what}");
        assert!(driver.store().volumes()[0].is_ready() && driver.store().snapshots()[0].is_ready(), "{what}");
    }
}

/// Tries a pool again until it can be used.
fn until_usable(driver: &Driver, pool: &PoolName) {
    let closed = || driver.pool_states().into_iter().any(|(name, why)| name == *pool && why.is_some());
    eventually("the pool can be used", || {
        driver.try_pool_again(pool);
        !closed()
    });
}

#[test]
fn what_is_in_a_pool_that_comes_back_is_recovered() {
    for what in ["volume", "snapshot", "group"] {
        let left = Left::new();
        let server = left.server();
        let ids =
            ["one", "two"].map(|name| written(&server, &left.kernel, &Spec::sharing(Kind::Block), name));
        server.call(snapshot("whole", &ids[0])).expect("a snapshot");
        left.kernel.clear_steps();
        left.kernel.kill_at(5, Kill::After);
        let ended = match what {
            "volume" => server.call(Spec::sharing(Kind::Block).create("half")).map(drop),
            "snapshot" => server.call(snapshot("half", &ids[1])).map(drop),
            _ => {
                let request = group("half", &ids.each_ref().map(String::as_str));
                server.call(request).map(drop)
            }
        };
        assert!(ended.is_err());
        left.kill(server);
        left.kernel.set_failed(SHARING_DIR, true);
        let (driver, found) = left.recovered();
        assert!(found.removed == 0 && found.damaged > 2, "{what}: {found:?}");
        let unfinished = || {
            let store = driver.store();
            store.volumes().iter().filter(|volume| !volume.is_ready()).count()
                + store.snapshots().iter().filter(|snapshot| !snapshot.is_ready()).count()
                + store.groups().iter().filter(|group| group.phase != Phase::Ready).count()
        };
        assert!(unfinished() > 0, "{what}");
        left.kernel.set_failed(SHARING_DIR, false);
        until_usable(&driver, &SHARING.parse().expect("a name"));
        let store = driver.store();
        assert_eq!((store.volumes().len(), store.snapshots().len(), unfinished()), (2, 1, 0), "{what}");
    }
}

/// Its state file is open: nothing else is taken for it.
#[test]
fn another_disk_is_never_the_default_pool() {
    let left = Left::new();
    let (driver, _) = left.recovered();
    let pool = PoolName::default();
    left.kernel.add_disk(DATA_DIR, FsType::Ext4, 10 << 30);
    let began = Instant::now();
    let said = loop {
        driver.try_pool_again(&pool);
        let said = driver.pool_states().remove(0).1.expect("it is closed");
        // A try that is dear is not repeated at once.
        if said.contains("started on") || began.elapsed() > Duration::from_secs(5) {
            break said;
        }
    };
    assert!(said.contains("is not the directory that the driver was started on"), "{said}");
    left.kernel.unmount_lazily(DATA_DIR).expect("unmount");
    until_usable(&driver, &pool);
}

#[test]
fn a_filesystem_is_used_whatever_an_older_record_says_of_it() {
    for format in [Format::Blank, Format::Formatting] {
        let (left, spec) = (Left::new(), Spec::new(Kind::Ext4));
        let server = left.server();
        let id = written(&server, &left.kernel, &spec, "v");
        left.kill(server);
        let rewrite = |store: &Store| {
            let volume = store.volumes().remove(0);
            let content = volume.content.with_format(format);
            store.put(Volume { content, ..(*volume).clone() }).expect("put");
        };
        left.rewrite(rewrite);
        let server = left.server();
        server.call(stage(&id, spec.capability())).expect("stage");
        assert_eq!(left.kernel.read_file(format!("{}/file", staging_path(&id))).expect("read"), b"data");
        server.call(unstage(&id)).expect("unstage");
        left.kill(server);
        // Nothing says that it is of the driver.
        left.kernel.remove_file(format!("{DATA_DIR}/volumes/{id}/formatted")).expect("remove");
        left.rewrite(rewrite);
        let server = left.server();
        let status = server.call(stage(&id, spec.capability())).expect_err("refused");
        let said = status.message();
        assert!(said.contains("already holds an ext4 filesystem"), "{said}");
    }
}
