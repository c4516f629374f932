//! `hostloop state adopt-node`: a node with a new name, and a disk in another machine.

use super::rebuilt::replace_state;
use super::*;
use hostloop::error::Error;
use hostloop::model::{Volume, VolumeId};
use hostloop::store::Beside;
use hostloop_fake_kernel::Kill;

use crate::harness::Server;

const OTHER: &str = "node-b";
/// The data directory of the other machine.
const OTHER_DATA: &str = "/var/lib/other";

/// The volumes of `node-a` go to `node-b`.
fn adoption() -> Task {
    let task = task(Verb::AdoptNode, true);
    let identity = Identity { node_id: OTHER.to_owned(), ..task.identity };
    Task { identity, from: Some(NODE.to_owned()), ..task }
}

/// The other machine, which has a pool of its own and the disk of `fast`.
fn other_machine() -> Task {
    let pools = [("default", OTHER_DATA), ("fast", FAST)];
    let pools = pools.map(|(name, path)| (name.parse::<PoolName>().expect("a name"), PathBuf::from(path)));
    Task { data_dir: PathBuf::from(OTHER_DATA), pools: pools.into(), ..adoption() }
}

/// All that callers see, but for the node.
fn without_node((mut volumes, mut snapshots, mut group): Seen) -> Seen {
    for entry in &mut volumes.entries {
        entry.volume.iter_mut().for_each(|volume| volume.accessible_topology.clear());
    }
    let members = group.group_snapshot.iter_mut().flat_map(|group| &mut group.snapshots);
    snapshots.iter_mut().chain(members).for_each(|snapshot| snapshot.accessible_topology.clear());
    (volumes, snapshots, group)
}

impl World {
    /// Starts the driver under the other name.
    fn start_renamed(&mut self) {
        self.rig.settings.node_id = OTHER.to_owned();
        self.rig.start_again();
    }

    /// Starts the driver of the other machine, with these pools.
    fn start_elsewhere(&self, pools: &[&str]) -> Server {
        let mut settings = self.rig.settings.clone();
        (settings.node_id, settings.data_dir) = (OTHER.to_owned(), PathBuf::from(OTHER_DATA));
        settings.pools.retain(|pool| pools.contains(&pool.name.as_str()));
        let default = settings.pools.iter_mut().find(|pool| pool.name.as_str() == "default");
        default.expect("the default pool").path = PathBuf::from(OTHER_DATA);
        Server::try_start(self.rig.kernel.restart(), &settings).expect("it starts")
    }
}

fn refusal(world: &World, task: &Task) -> String {
    match run(&world.rig.kernel.restart(), task).expect_err("it is refused") {
        Error::InUse(why) | Error::NotFound(why) => why,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_renamed_node_keeps_its_volumes_in_use() {
    let mut world = World::new();
    let before = without_node(world.seen());
    let mounts = world.rig.kernel.mounts().len();
    world.rig.kernel.kill();
    let report = run(&world.rig.kernel.restart(), &adoption()).expect("it runs");
    assert!(report.good, "{}", report.text);
    for vol in &world.vols {
        assert!(report.text.contains(&format!("volumeHandle {}\n", vol.id)), "{}", report.text);
    }
    assert!(report.text.contains(&format!("hostloop evacuate {NODE} --to {OTHER} --now")), "{}", report.text);
    let error = Server::try_start(world.rig.kernel.restart(), &world.rig.settings)
        .map(drop)
        .expect_err("it is the other's");
    assert!(error.to_string().contains("belongs to node \"node-b\""), "{error}");
    world.start_renamed();
    assert_eq!(without_node(world.seen()), before);
    assert_eq!(world.rig.kernel.mounts().len(), mounts, "no pod has noticed");
    for vol in &world.vols {
        let names = [format!("/volumes/{}/volume.json", vol.id), format!("/volumes/{}.json", vol.id)];
        let pools = task(Verb::Check, false).pools.into_iter();
        let mut paths =
            pools.flat_map(|(_, pool)| names.clone().map(|name| format!("{}{name}", pool.display())));
        let path = paths.find(|path| world.rig.kernel.exists(path)).expect("a record");
        let record = Beside::read(&world.rig.kernel.read_file(&path).expect("read")).expect("a record");
        assert_eq!(record.identity.node_id, OTHER, "{path}");
    }
    world.check_data();
}

/// What its earlier node may still have of it is not the volume.
#[test]
fn an_adopted_volume_has_the_next_generation() {
    let mut world = World::new();
    world.rig.kernel.kill();
    run(&world.rig.kernel.restart(), &adoption()).expect("it runs");
    world.rig.settings.node_id = OTHER.to_owned();
    let driver = world.rig.driver_on(world.rig.kernel.restart());
    let id: VolumeId = world.vols[0].id.parse().expect("an id");
    assert_eq!(driver.find_volume(&id).expect("a volume").generation, Some(2));
    drop(driver);
    let why = refusal(&world, &adoption());
    assert!(why.contains("is of node \"node-a\""), "nothing is adopted twice: {why}");
}

#[test]
fn a_disk_in_another_machine_is_adopted() {
    let world = World::new();
    world.rig.kernel.power_cut();
    world.rig.kernel.create_directories(OTHER_DATA);
    let server = world.start_elsewhere(&["default"]);
    let own = server.call(create("own", block())).expect("made").volume.expect("a volume").volume_id;
    drop(server);
    let report = run(&world.rig.kernel.restart(), &other_machine()).expect("it runs");
    assert!(report.good, "{}", report.text);
    assert!(!report.text.contains(&own), "{}", report.text);
    let server = world.start_elsewhere(&["default", "fast"]);
    let listed = server.call(csi::ListVolumesRequest::default()).expect("a list").entries.into_iter();
    let mut listed: Vec<String> =
        listed.filter_map(|entry| entry.volume).map(|volume| volume.volume_id).collect();
    let mut wanted = vec![own, world.vols[2].id.clone(), world.vols[6].id.clone()];
    listed.sort();
    wanted.sort();
    assert_eq!(listed, wanted);
    let snapshots = server.call(csi::ListSnapshotsRequest::default()).expect("a list").entries.len();
    assert_eq!(snapshots, 1, "the member of the group that is on this disk");
    let shared = &world.vols[2];
    server.call(world.rig.stage_request(shared)).expect("staged");
    server.call(world.rig.publish_request(shared, "pod")).expect("published");
    assert_eq!(world.rig.read(shared, 4), "text");
    drop(server);
    // Again, and nothing is adopted a second time.
    let again = run(&world.rig.kernel.restart(), &other_machine());
    assert!(
        matches!(&again, Err(Error::NotFound(why)) if why.contains("is of node \"node-a\"")),
        "{again:?}"
    );
}

#[test]
fn an_adoption_changes_nothing_without_yes() {
    let world = World::new();
    world.rig.kernel.kill();
    let os = world.rig.kernel.restart();
    world.rig.kernel.clear_steps();
    let report = run(&os, &Task { yes: false, ..adoption() }).expect("it runs");
    assert!(!report.good && report.text.contains("Nothing was changed"), "{}", report.text);
    assert_eq!(world.rig.kernel.steps().len(), 0);
}

#[test]
fn an_adoption_that_would_guess_is_refused() {
    let world = World::new();
    let older = world.rig.kernel.read_file(STATE).expect("read");
    world.rig.made(create("later", block()));
    world.rig.kernel.kill();
    let third = Task { from: Some("node-c".to_owned()), ..adoption() };
    assert!(refusal(&world, &third).contains("\"driver=hostloop.csi.dev node=node-a pool="));
    let whole = world.rig.kernel.read_file(STATE).expect("read");
    replace_state(&world, &older);
    let why = refusal(&world, &adoption());
    assert!(why.contains("is older than a record") && why.contains("hostloop state rebuild --yes"), "{why}");
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    replace_state(&world, &damaged);
    assert!(refusal(&world, &adoption()).contains("is damaged at line"));
    replace_state(&world, &whole);
    let mut renamed = adoption();
    renamed.pools[1].0 = "quick".parse().expect("a name");
    let why = refusal(&world, &renamed);
    assert!(why.contains("give --pool the name that the pool had on node \"node-a\""), "{why}");
}

#[test]
fn an_adoption_can_end_at_any_step() {
    let steps = {
        let world = World::new();
        world.rig.kernel.kill();
        let os = world.rig.kernel.restart();
        world.rig.kernel.clear_steps();
        run(&os, &adoption()).expect("it runs");
        world.rig.kernel.steps().len()
    };
    for n in 1..=steps {
        for power in [false, true] {
            let mut world = World::new();
            let before = without_node(world.seen());
            world.rig.kernel.kill();
            let os = world.rig.kernel.restart();
            world.rig.kernel.kill_at(n, Kill::Torn);
            let _ = run(&os, &adoption());
            assert!(world.rig.kernel.is_dead(), "step {n}");
            if power {
                world.rig.kernel.power_cut();
            }
            let report = run(&world.rig.kernel.restart(), &adoption()).expect("it runs");
            assert!(report.good, "step {n}: {}", report.text);
            world.start_renamed();
            assert_eq!(without_node(world.seen()), before, "step {n}, power {power}");
            if !power && n % 8 == 0 {
                world.check_data();
            }
        }
    }
}

/// The disk of a pool is in another machine for a while, and both nodes keep their state files.
#[test]
fn a_disk_that_comes_back_is_adopted_again() {
    let world = World::new();
    world.rig.kernel.power_cut();
    world.rig.kernel.create_directories(OTHER_DATA);
    drop(world.start_elsewhere(&["default"]));
    let report = run(&world.rig.kernel.restart(), &other_machine()).expect("it runs");
    assert!(report.good, "{}", report.text);
    let server = world.start_elsewhere(&["default", "fast"]);
    let (shared, grown) = (&world.vols[2], 3 * SIZE);
    let request = csi::ControllerExpandVolumeRequest {
        volume_id: shared.id.clone(),
        capacity_range: range(grown, 0),
        ..Default::default()
    };
    server.call(request).expect("grown");
    drop(server);
    let back =
        Task { identity: task(Verb::Check, false).identity, from: Some(OTHER.to_owned()), ..adoption() };
    let report = run(&world.rig.kernel.restart(), &back).expect("it runs");
    assert!(report.good && report.text.contains(&format!("{}: adopted", shared.id)), "{}", report.text);
    let driver = world.rig.driver_on(world.rig.kernel.restart());
    let found = driver.find_volume(&shared.id.parse().expect("an id")).expect("a volume");
    assert_eq!(found.generation, Some(4), "what was there before is not the volume");
    assert_eq!(found.adopted_from, [NODE, OTHER]);
    drop(driver);
    let mut world = world;
    world.rig.start_again();
    let listed = world.seen().0.entries.into_iter().filter_map(|entry| entry.volume);
    let shared = listed.into_iter().find(|volume| volume.volume_id == world.vols[2].id).expect("it is there");
    assert_eq!(shared.capacity_bytes, grown);
}

/// From the first use on, only a move changes the node.
#[test]
fn an_adoption_ends_with_the_first_use() {
    let mut world = World::new();
    world.rig.kernel.power_cut();
    run(&world.rig.kernel.restart(), &adoption()).expect("it runs");
    world.start_renamed();
    let vol = world.vols[0].clone();
    world.rig.stage(&vol);
    world.rig.unstage(&vol);
    world.rig.kernel.kill();
    let driver = world.rig.driver_on(world.rig.kernel.restart());
    let found =
        |vol: &Vol| driver.find_volume(&vol.id.parse().expect("an id")).expect("a volume").adopted_from;
    assert!(found(&vol).is_empty());
    assert_eq!(found(&world.vols[1]), [NODE]);
}

#[test]
fn a_pool_of_the_same_name_is_not_exchanged() {
    let world = World::new();
    world.rig.kernel.power_cut();
    world.rig.kernel.create_directories(OTHER_DATA);
    world.rig.kernel.add_disk("/pools/own", FsType::Xfs, 100 << 30);
    let mut settings = world.rig.settings.clone();
    (settings.node_id, settings.data_dir) = (OTHER.to_owned(), PathBuf::from(OTHER_DATA));
    settings.pools.retain(|pool| ["default", "fast"].contains(&pool.name.as_str()));
    settings.pools[0].path = PathBuf::from(OTHER_DATA);
    settings.pools[1].path = PathBuf::from("/pools/own");
    let server = Server::try_start(world.rig.kernel.restart(), &settings).expect("it starts");
    server.call(create_with("own", &[("pool", "fast")])).expect("made");
    drop(server);
    let why = refusal(&world, &other_machine());
    assert!(why.contains("has a pool of this name on another disk"), "{why}");
    world.rig.kernel.remove_file(format!("{OTHER_DATA}/known-pools/fast")).expect("remove");
    let why = refusal(&world, &other_machine());
    assert!(why.contains("has volumes that are not there"), "{why}");
}

#[test]
fn a_lost_state_file_is_rebuilt_before_an_adoption() {
    let world = World::new();
    world.lose_state();
    let why = refusal(&world, &adoption());
    assert!(why.contains("is lost; first run \"hostloop state rebuild --yes\""), "{why}");
}

/// The node to which it was moving may be lost as well.
#[test]
fn a_fenced_volume_is_adopted_if_somebody_says_so() {
    let mut world = World::new();
    let vol = world.vols[7].clone();
    let id: VolumeId = vol.id.parse().expect("an id");
    world.rig.restore_state(|store| {
        let volume = (*store.get(&id).expect("a volume")).clone();
        store.put(Volume { moved_to: Some("node-c".to_owned()), ..volume }).expect("put");
    });
    world.rig.kernel.kill();
    let report = run(&world.rig.kernel.restart(), &Task { yes: false, ..adoption() }).expect("it runs");
    assert!(report.text.contains("it is fenced, because it moves to node \"node-c\""), "{}", report.text);
    let keep = Wishes { keep: [vol.id.clone()].into(), ..Wishes::default() };
    let report = run(&world.rig.kernel.restart(), &Task { wishes: keep, ..adoption() }).expect("it runs");
    assert!(report.good && report.text.contains(&format!("volumeHandle {}\n", vol.id)), "{}", report.text);
    world.start_renamed();
    world.rig.stage(&vol);
}
