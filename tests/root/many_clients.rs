//! Many clients against a model, with kills in between (`tests/model`), and a soak of the same load.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hostloop::selftest::client::endpoint;
use hostloop::wire::csi;

use crate::harness::kernel::{self, read_at, write_at};
use crate::harness::process::{binary, command, node_of};
use crate::harness::{MIB, World, mount_image, run, text};
use crate::life::can_grow;
use crate::model::{self, Clients, Ending, Epoch, History, Kind, Machine, Name, Random, Rpc, Setup};

const CLIENTS: usize = 32;
const CONNECTIONS: usize = 4;
/// Where a pod writes on a raw device.
const AT: u64 = 4096;

/// Pods on this machine.
struct Pods {
    kubelet: PathBuf,
    killed: AtomicBool,
}

impl Machine for Pods {
    fn staging(&self, id: &str) -> String {
        text(&self.kubelet.join("stage").join(id)).to_owned()
    }

    fn target(&self, id: &str, pod: usize) -> String {
        text(&self.kubelet.join("pods").join(format!("{id}-{pod}"))).to_owned()
    }

    fn prepare(&self, id: &str) {
        std::fs::create_dir_all(self.staging(id)).expect("mkdir");
    }

    fn is_gone(&self) -> bool {
        self.killed.load(Ordering::SeqCst)
    }

    fn mounts(&self) -> BTreeMap<String, bool> {
        let mounts = kernel::mounts(&self.kubelet).into_iter();
        mounts.map(|m| (text(&m.target).to_owned(), m.options.split(',').any(|o| o == "ro"))).collect()
    }

    fn write(&self, _id: &str, kind: Kind, target: &str, value: u32) -> io::Result<()> {
        let text = model::text_of(value);
        match kind {
            Kind::Block => write_at(Path::new(target), AT, text.as_bytes()),
            _ => write_at(&Path::new(target).join("number"), 0, text.as_bytes()),
        }
    }

    fn read(&self, kind: Kind, target: &str) -> io::Result<u32> {
        let (file, at) = match kind {
            Kind::Block => (PathBuf::from(target), AT),
            _ => (Path::new(target).join("number"), 0),
        };
        match file.exists() {
            true => Ok(model::value_of(&read_at(&file, at, model::text_of(0).len()))),
            false => Ok(0),
        }
    }
}

/// A driver, 32 clients, and what they were answered.
pub struct Run {
    pub world: World,
    pub clients: Arc<Clients>,
    pods: Arc<Pods>,
    randoms: Vec<Random>,
    random: Random,
    runtime: tokio::runtime::Runtime,
    history: History,
    disks: [PathBuf; 2],
    seed: u64,
}

impl Run {
    /// A driver of this program on pools of its own.
    pub fn new(driver: &str) -> Run {
        let seed = model::seed();
        let mut world = World::empty(&[]);
        let disks = ["directories", "sharing"].map(|name| world.dir.join(name));
        mount_image(&world.dir.join("directories.img"), &disks[0], "ext4", 1024 * MIB);
        // Sparse: room that is promised and not used.
        mount_image(&world.dir.join("sharing.img"), &disks[1], "xfs", 65_536 * MIB);
        let pools = [
            format!("directories={},directories=true", text(&disks[0])),
            format!("sharing={}", text(&disks[1])),
        ];
        let flags = ["--attach", "--log-level", "warn", "--max-volume-size", "16Ti"];
        world.set_flags(&[&flags[..], &["--pool", &pools[0], "--pool", &pools[1]]].concat());
        world.start_as(command(driver).args(world.arguments()));
        for name in ["stage", "pods"] {
            world.directory(name);
        }
        let pods = Arc::new(Pods { kubelet: world.kubelet.clone(), killed: AtomicBool::new(false) });
        let setup = setup(node_of(&world.data));
        Run {
            clients: Arc::new(Clients::new(setup, Arc::clone(&pods) as Arc<dyn Machine>)),
            world,
            pods,
            randoms: (0..CLIENTS as u64).map(|client| Random::new(seed ^ (client << 32))).collect(),
            random: Random::new(!seed),
            runtime: tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime"),
            history: History::default(),
            disks,
            seed,
        }
    }

    fn connect(&self) -> Vec<Rpc> {
        let endpoint = endpoint(&self.world.socket).expect("a path");
        let one = || Rpc::on(self.runtime.block_on(endpoint.connect()).expect("a connection"));
        (0..CONNECTIONS).map(|_| one()).collect()
    }

    /// So many calls, ended by a kill within this time if there is to be one.
    pub fn epoch(&mut self, calls: usize, kill_within: Option<Duration>) {
        let rpc = self.connect();
        let mounted = model::mounted(&self.clients.setup, &*self.pods);
        self.runtime.block_on(async {
            self.clients.clear_probes(&rpc[0]).await;
            self.clients.look(&rpc[0]).await;
        });
        let killer = kill_within.map(|within| {
            let (driver, pods) = (self.world.take_driver(), Arc::clone(&self.pods));
            let after = Duration::from_micros(self.random.below(within.as_micros() as usize) as u64);
            std::thread::spawn(move || {
                std::thread::sleep(after);
                pods.killed.store(true, Ordering::SeqCst);
                driver.kill();
            })
        });
        let (clients, randoms) = (&self.clients, &mut self.randoms);
        self.runtime.block_on(clients.run(&rpc, randoms, calls));
        let mut ending = Ending::Pause;
        if let Some(killer) = killer {
            killer.join().expect("the kill");
            self.world.start();
            self.pods.killed.store(false, Ordering::SeqCst);
            ending = Ending::Kill;
        }
        self.history.epochs.push(Epoch { mounted, calls: self.clients.take_made(), ending });
        self.check_wrong();
    }

    fn check_wrong(&self) {
        let wrong = self.clients.take_wrong();
        assert!(wrong.is_empty(), "HOSTLOOP_SEED={}: {wrong:#?}", self.seed);
    }

    pub fn calls(&self) -> usize {
        self.history.epochs.iter().map(|epoch| epoch.calls.len()).sum()
    }

    fn lists(&self) -> (Vec<csi::list_volumes_response::Entry>, Vec<csi::Snapshot>) {
        let volumes = self.world.csi.list(0, "").expect("ListVolumes").entries;
        let snapshots = self.world.csi.list_snapshots().expect("ListSnapshots");
        (volumes, snapshots)
    }

    /// Reads everything, deletes it, and looks whether all answers have an explanation.
    pub fn finish(mut self, restart: bool) {
        if restart {
            let before = self.lists();
            self.world.take_driver().stop();
            self.world.start();
            self.history.epochs.last_mut().expect("an epoch").ending = Ending::Stop;
            assert_eq!(before, self.lists(), "a restart changes what is listed");
        }
        let (rpc, mounted) = (self.connect(), model::mounted(&self.clients.setup, &*self.pods));
        self.runtime.block_on(async {
            self.clients.clear_probes(&rpc[0]).await;
            self.clients.look(&rpc[0]).await;
            self.clients.read_all(&rpc[0]).await;
            self.clients.tear_down(&rpc[0]).await;
        });
        let calls = self.clients.take_made();
        self.history.epochs.push(Epoch { mounted, calls, ending: Ending::Stop });
        self.check_wrong();
        for (copy, value) in self.clients.take_held() {
            let held = self.history.hold(copy, value);
            held.unwrap_or_else(|why| panic!("HOSTLOOP_SEED={}: {why}", self.seed));
        }
        eprintln!("{}", self.history.summary());
        let unexplained = self.history.unexplained(&self.clients.setup);
        assert!(unexplained.is_empty(), "HOSTLOOP_SEED={}: {}", self.seed, unexplained.join("\n\n"));
        self.take_down(rpc);
    }

    /// Nothing is left.
    fn take_down(mut self, rpc: Vec<Rpc>) {
        drop(rpc);
        assert_eq!(self.lists(), (Vec::new(), Vec::new()), "something is still listed");
        self.world.take_driver().stop();
        for disk in &self.disks {
            for place in ["volumes", "snapshots"] {
                let left = std::fs::read_dir(disk.join(place)).map_or(0, Iterator::count);
                assert_eq!(left, 0, "{} in {}", place, disk.display());
            }
            run("umount", &[text(disk)]);
        }
        self.world.assert_nothing_left();
    }
}

fn setup(node: String) -> Setup {
    let all = [
        (Kind::Ext4, 64, None),
        (Kind::Block, 64, None),
        (Kind::Directory, 64, Some("directories")),
        (Kind::Xfs, 304, Some("sharing")),
        (Kind::Ext4, 64, Some("sharing")),
        (Kind::Block, 64, Some("sharing")),
    ];
    let name = |(number, (kind, mib, pool))| Name::new(kind, number, mib * MIB, pool);
    let volumes = (0..).zip(all).map(name).collect();
    let ext4_grows = can_grow(crate::harness::Kind::Ext4);
    Setup { node, volumes, snapshots: 3, groups: 2, pods: 2, step: 16 * MIB, ext4_grows }
}

fn run_with_kills(calls: usize) {
    let (mut run, started) = (Run::new(binary()), Instant::now());
    let mut kills = 0;
    while run.calls() < calls {
        run.epoch(500, Some(Duration::from_millis(1500)));
        kills += 1;
    }
    eprintln!("{} calls and {kills} kills in {:.1?}", run.calls(), started.elapsed());
    run.finish(true);
}

#[test]
fn every_answer_is_explained_by_the_model() {
    run_with_kills(1000);
}

/// `make model CALLS=10000`.
#[test]
#[ignore = "long; `make model` runs it"]
fn every_answer_of_a_long_run_is_explained_by_the_model() {
    let calls = std::env::var("CALLS").expect("CALLS says how many calls");
    run_with_kills(calls.parse().expect("CALLS is a number"));
}
