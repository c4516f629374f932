//! Many clients against a model on the fake kernel, with kills of the process and of the power in between.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    reason = "tests fail by panicking"
)]
#![allow(missing_docs)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use hostloop::model::Settings;
use hostloop::wire::csi;
use hostloop_fake_kernel::{FakeKernel, Kill};
use hostloop_test_support::{harness, model};

use hostloop_test_support::harness::{DIRECTORIES, KUBELET, NODE, SHARING, Server};
use hostloop_test_support::invariants::{PLACES, broken, left_over};
use hostloop_test_support::model::{Clients, Ending, Epoch, History, Kind, Machine, Name, Random, Setup};

const MIB: u64 = 1 << 20;
const CLIENTS: usize = 32;
/// Calls between two starts of the driver.
const EPOCH: usize = 500;

fn setup() -> Setup {
    let all = [
        (Kind::Ext4, None),
        (Kind::Block, None),
        (Kind::Directory, Some(DIRECTORIES)),
        (Kind::Xfs, Some(SHARING)),
        (Kind::Ext4, Some(SHARING)),
        (Kind::Block, Some(SHARING)),
        (Kind::Ext4, None),
        (Kind::Xfs, None),
    ];
    let name = |(number, (kind, pool))| Name::new(kind, number, 512 * MIB, pool);
    let volumes = (0..).zip(all).map(name).collect();
    Setup {
        node: NODE.to_owned(),
        volumes,
        snapshots: 4,
        groups: 2,
        pods: 2,
        step: 64 * MIB,
        ext4_grows: true,
    }
}

/// What is wrong with the machine when no call runs.
fn check_machine(kernel: &FakeKernel, server: &Server, when: &str) {
    let wrong: Vec<String> = broken(kernel, server).into_iter().chain(left_over(kernel)).collect();
    assert!(wrong.is_empty(), "{when}: {wrong:#?}");
}

/// One run: a driver, 32 clients, and ends of the driver in between.
struct Run {
    kernel: FakeKernel,
    settings: Settings,
    clients: Arc<Clients>,
    randoms: Vec<Random>,
    random: Random,
    history: History,
}

impl Run {
    fn new(seed: u64) -> Run {
        let kernel = harness::machine();
        let settings = harness::with_sharing(&kernel, Settings { attach: true, ..harness::settings() });
        Run {
            clients: Arc::new(Clients::new(setup(), Arc::new(kernel.clone()))),
            kernel,
            settings,
            randoms: (0..CLIENTS as u64).map(|client| Random::new(seed ^ (client << 32))).collect(),
            random: Random::new(!seed),
            history: History::default(),
        }
    }

    fn start(&self, ending: Ending) -> Server {
        let os = match ending {
            Ending::Power => self.kernel.power_cut(),
            Ending::Kill | Ending::Stop | Ending::Pause => self.kernel.restart(),
        };
        Server::try_start(os, &self.settings).expect("the driver starts again")
    }

    /// From a start to the next end.
    fn epoch(&mut self, server: Server, calls: usize) -> Ending {
        let ending = self.random.of(&[Ending::Stop, Ending::Kill, Ending::Kill, Ending::Power]);
        check_machine(&self.kernel, &server, "after the start");
        let mounted = model::mounted(&self.clients.setup, &self.kernel);
        let rpc = server.client.clone();
        server.block_on(async {
            self.clients.clear_probes(&rpc).await;
            self.clients.look(&rpc).await;
            if ending != Ending::Stop {
                // About as many steps as an epoch has calls.
                let kill = self.random.of(&[Kill::Before, Kill::Torn, Kill::After]);
                self.kernel.kill_at(1 + self.random.below(calls), kill);
            }
            self.clients.run(&[rpc], &mut self.randoms, calls).await;
        });
        self.history.epochs.push(Epoch { mounted, calls: self.clients.take_made(), ending });
        self.end(server, ending);
        ending
    }

    fn end(&self, server: Server, ending: Ending) {
        if ending == Ending::Stop {
            check_machine(&self.kernel, &server, "before the stop");
            return server.stop();
        }
        self.kernel.clear_plans();
        self.kernel.kill();
        server.abandon();
    }

    /// Everything is read, taken away, and looked for.
    fn finish(&mut self) {
        let server = self.start(Ending::Stop);
        check_machine(&self.kernel, &server, "at the end");
        let (volumes, snapshots) = lists(&server);
        server.stop();
        let server = self.start(Ending::Stop);
        assert_eq!((volumes, snapshots), lists(&server), "a restart changes what is listed");
        let (rpc, mounted) = (server.client.clone(), model::mounted(&self.clients.setup, &self.kernel));
        server.block_on(async {
            self.clients.clear_probes(&rpc).await;
            self.clients.look(&rpc).await;
            self.clients.read_all(&rpc).await;
            self.clients.tear_down(&rpc).await;
        });
        let calls = self.clients.take_made();
        assert_eq!(lists(&server), (Vec::new(), Vec::new()), "{calls:#?}");
        self.history.epochs.push(Epoch { mounted, calls, ending: Ending::Stop });
        check_machine(&self.kernel, &server, "when all is deleted");
        let left: Vec<String> = PLACES.iter().flat_map(|place| self.kernel.tree(place)).collect();
        assert!(left.is_empty(), "left: {left:#?}");
        let pools = [DIRECTORIES, SHARING].map(|name| format!("/pools/{name}"));
        let below = |target: &String| {
            target.starts_with(KUBELET) || pools.iter().any(|p| target.starts_with(&format!("{p}/")))
        };
        let mounts: Vec<String> = Machine::mounts(&self.kernel).into_keys().filter(below).collect();
        assert!(mounts.is_empty() && self.kernel.loops().is_empty(), "{mounts:?} {:?}", self.kernel.loops());
        server.stop();
    }
}

/// Every volume and every snapshot.
type Lists = (Vec<csi::list_volumes_response::Entry>, Vec<csi::list_snapshots_response::Entry>);

fn lists(server: &Server) -> Lists {
    let volumes = server.call(csi::ListVolumesRequest::default()).expect("ListVolumes").entries;
    let snapshots = server.call(csi::ListSnapshotsRequest::default()).expect("ListSnapshots").entries;
    (volumes, snapshots)
}

/// So many calls, each of which must be explained.
fn run(calls: usize) {
    let (seed, started) = (model::seed(), Instant::now());
    let mut run = Run::new(seed);
    let mut endings = BTreeMap::<String, usize>::new();
    let (mut made, mut ending) = (0, Ending::Stop);
    while made < calls {
        let server = run.start(ending);
        ending = run.epoch(server, EPOCH);
        made += run.history.epochs.last().expect("an epoch").calls.len();
        *endings.entry(format!("{ending:?}")).or_default() += 1;
        let wrong = run.clients.take_wrong();
        assert!(wrong.is_empty(), "HOSTLOOP_SEED={seed}: {wrong:#?}");
    }
    // After a kill the machine starts once more.
    drop(run.start(ending));
    run.finish();
    let wrong = run.clients.take_wrong();
    assert!(wrong.is_empty(), "HOSTLOOP_SEED={seed}: {wrong:#?}");
    for (copy, value) in run.clients.take_held() {
        run.history.hold(copy, value).unwrap_or_else(|why| panic!("HOSTLOOP_SEED={seed}: {why}"));
    }
    let ran = started.elapsed();
    println!("{made} calls in {ran:.1?}, ends {endings:?}\n{}", run.history.summary());
    let unexplained = run.history.unexplained(&run.clients.setup);
    println!("checked in {:.1?}", started.elapsed().saturating_sub(ran));
    assert!(unexplained.is_empty(), "HOSTLOOP_SEED={seed}: {}", unexplained.join("\n\n"));
}

#[test]
fn every_answer_is_explained_by_the_model() {
    run(5_000);
}

/// `make model CALLS=100000`.
#[test]
#[ignore = "long; `make model` runs it"]
fn every_answer_of_a_long_run_is_explained() {
    #[allow(clippy::disallowed_methods, reason = "chosen by whoever runs the test")]
    let calls = std::env::var("CALLS").expect("CALLS says how many calls");
    run(calls.parse().expect("CALLS is a number"));
}
