//! `hostloop bench --endpoint`: what it calls, and that it leaves nothing, however it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hostloop::bench::Outcome;
use hostloop::bench::life::{Caller, Failure, Order, Rpc};
use hostloop::bench::rpc::{self, Names, load};
use hostloop::config::{BenchDriver, Check, RpcConfig};
use hostloop::model::Settings;
use hostloop::selftest::client::{self, Client};
use hostloop::shutdown::Shutdown;
use hostloop_fake_kernel::FakeKernel;

use crate::harness::{DIRECTORIES, KUBELET, Server, VOLUMES, machine, settings};
use crate::wait::until;

/// A bench with little to do, in kubelet's directory.
fn config(servers: &[&Server], parameters: &[(&str, &str)]) -> RpcConfig {
    let driver = |server: &&Server| BenchDriver {
        uri: format!("unix://{}", server.socket().display()),
        parameters: parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect(),
    };
    RpcConfig {
        dir: KUBELET.into(),
        bytes: 16 << 20,
        fs_type: Some(String::new()),
        drivers: servers.iter().map(driver).collect(),
        clients: vec![1, 3],
        volumes: 5,
        budget: Duration::from_millis(50),
        turns: 2,
        json: true,
    }
}

fn run(server: &Server, kernel: &FakeKernel, config: RpcConfig) -> Outcome {
    let (_trigger, shutdown) = Shutdown::new();
    server.block_on(rpc::run(config, kernel.os().files, (shutdown, Arc::default()), |_| ()))
}

fn nothing_is_left(kernel: &FakeKernel) {
    assert!(kernel.tree(VOLUMES).is_empty(), "{:?}", kernel.tree(VOLUMES));
    assert!(kernel.mounts().is_empty() && kernel.loops().is_empty());
    let left: Vec<_> =
        kernel.tree(KUBELET).into_iter().filter(|path| format!("{path:?}").contains("bench")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn bench_of_each_kind_leaves_nothing() {
    let kernel = machine();
    kernel.set_quotas("/", true);
    for attach in [false, true] {
        let server = Server::start(&kernel, &Settings { attach, ..settings() });
        let kinds: [(&[_], _); 4] = [
            (&[], Some("xfs")),
            (&[("provisioning", "thick")], None),
            (&[("backend", "directory"), ("pool", DIRECTORIES)], Some("")),
            (&[("backend", "directory"), ("enforcement", "required")], Some("")),
        ];
        for (parameters, fs_type) in kinds {
            let fs_type = fs_type.map(str::to_owned);
            let config = RpcConfig { fs_type, ..config(&[&server], parameters) };
            let outcome = run(&server, &kernel, config);
            assert!(outcome.problems.is_empty() && !outcome.interrupted, "{parameters:?}: {outcome:?}");
            nothing_is_left(&kernel);
        }
        server.stop();
        kernel.restart();
    }
}

#[test]
fn two_drivers_are_compared() {
    let kernel = machine();
    let server = Server::start(&kernel, &settings());
    let (one, two) = (config(&[&server], &[]), config(&[&server], &[("provisioning", "thick")]));
    let drivers = one.drivers.iter().chain(&two.drivers).cloned().collect();
    let outcome = run(&server, &kernel, RpcConfig { drivers, ..one });
    assert!(outcome.problems.is_empty(), "{outcome:?}");
    let result: serde_json::Value = serde_json::from_str(&outcome.result.unwrap()).unwrap();
    assert_eq!(result["drivers"][1]["parameters"], "provisioning=thick");
    let rows = |key: &str| -> Vec<u64> {
        let rows = result["ratios"].as_array().unwrap();
        rows.iter().filter_map(|row| row[key].as_u64()).collect()
    };
    assert_eq!((rows("clients"), rows("beside_volumes")), (vec![1, 3], vec![0, 5]));
    for row in result["ratios"].as_array().unwrap() {
        for name in ["lives/s", "life", "CreateVolume", "NodeStageVolume", "DeleteVolume"] {
            let [first, second, ratio] =
                ["first", "second", "ratio"].map(|key| row[name][key].as_f64().unwrap());
            assert!(first > 0.0 && second > 0.0 && (ratio - first / second).abs() < 1e-9, "{row}");
        }
    }
    nothing_is_left(&kernel);
}

/// The caller of a server, for one kind.
fn caller(server: &Server, kernel: &FakeKernel, check: Check, bytes: u64) -> Caller {
    Caller::new(server.client.clone(), kernel.os().files, Order::of(check, bytes))
}

#[test]
fn a_life_has_the_calls_that_the_driver_has() {
    let kernel = machine();
    let server = Server::start(&kernel, &Settings { attach: true, ..settings() });
    let place = std::path::Path::new(KUBELET).join("stage");
    let without = caller(&server, &kernel, Check::Ext4, 16 << 20);
    let with = Caller { node: Some(crate::harness::NODE.to_owned()), ..without };
    let times = server.block_on(with.life("a", &place)).unwrap();
    let called: Vec<Rpc> = times.0.iter().map(|(rpc, _)| *rpc).collect();
    assert_eq!(called, Rpc::ALL);
    assert_eq!(times.whole(), times.0.iter().map(|(_, time)| *time).sum::<Duration>());
    nothing_is_left(&kernel);
}

#[test]
fn a_life_that_fails_is_undone() {
    let kernel = machine();
    let server = Server::start(&kernel, &settings());
    let place = std::path::Path::new(KUBELET).join("stage");
    // Something is where the pod's path would be.
    kernel.create_directories(place.join("target/in-the-way").to_str().unwrap());
    let caller = caller(&server, &kernel, Check::Block, 16 << 20);
    let failure = server.block_on(caller.life("a", &place)).unwrap_err();
    let Failure::Answer { rpc, .. } = &failure else { panic!("{failure:?}") };
    assert_eq!(*rpc, Rpc::NodePublishVolume, "{failure}");
    assert!(kernel.tree(VOLUMES).is_empty() && kernel.loops().is_empty());
    let files = kernel.os().files;
    assert_eq!(files.stat(&place.join("staging")).unwrap(), None, "kubelet's part is removed, too");
}

#[test]
fn a_failure_ends_the_clients_and_says_why() {
    let kernel = machine();
    let server = Server::start(&kernel, &settings());
    let outcome = run(&server, &kernel, config(&[&server], &[("pool", "nowhere")]));
    let [problem] = outcome.problems.as_slice() else { panic!("{outcome:?}") };
    assert!(
        problem.contains("CreateVolume answered InvalidArgument") && problem.contains("nowhere"),
        "{problem}"
    );
    nothing_is_left(&kernel);
    // More than there is room for: what was made of the volumes beside is deleted.
    let room = RpcConfig { bytes: 10 << 30, clients: vec![1], volumes: 10_000, ..config(&[&server], &[]) };
    let outcome = run(&server, &kernel, room);
    let [problem] = outcome.problems.as_slice() else { panic!("{outcome:?}") };
    assert!(problem.contains("CreateVolume answered ResourceExhausted"), "{problem}");
    nothing_is_left(&kernel);
}

#[test]
fn interrupted_it_deletes_what_it_made() {
    let kernel = machine();
    let server = Server::start(&kernel, &settings());
    let (_trigger, shutdown) = Shutdown::new();
    let stop = Arc::new(AtomicBool::new(true));
    let outcome =
        server.block_on(rpc::run(config(&[&server], &[]), kernel.os().files, (shutdown, stop), |_| ()));
    assert!(outcome.interrupted && outcome.problems.is_empty(), "{outcome:?}");
    nothing_is_left(&kernel);
    // In the middle of the lives of many clients.
    let names = Names::new("bench".to_owned());
    let stop = Arc::new(AtomicBool::new(false));
    let caller = caller(&server, &kernel, Check::Ext4, 16 << 20);
    let hour = Duration::from_secs(3600);
    let dir = std::path::Path::new(KUBELET);
    let (done, ()) = server.block_on(async {
        tokio::join!(load(&caller, (4, hour), &names, dir, &stop), async {
            until("a life begins", async || !kernel.mounts().is_empty()).await;
            stop.store(true, Ordering::Relaxed);
        })
    });
    assert!(done.unwrap().lives.len() >= 4, "each client ends the life that it began");
    nothing_is_left(&kernel);
}

#[test]
fn a_driver_that_cannot_be_measured_is_named() {
    let kernel = machine();
    let server = Server::start(&kernel, &settings());
    let nobody = BenchDriver { uri: "unix:///nowhere/csi.sock".to_owned(), parameters: Default::default() };
    let outcome = run(&server, &kernel, RpcConfig { drivers: vec![nobody], ..config(&[], &[]) });
    let [problem] = outcome.problems.as_slice() else { panic!("{outcome:?}") };
    assert!(problem.starts_with("unix:///nowhere/csi.sock: nobody answers; start the driver"), "{problem}");
}

#[test]
fn a_life_whose_answer_is_lost_deletes_its_volume() {
    let kernel = machine();
    let server = Server::start(&kernel, &settings());
    let place = std::path::Path::new(KUBELET).join("stage");
    let patient = caller(&server, &kernel, Check::Block, 16 << 20);
    // Long enough for DeleteVolume on a busy machine.
    let patience = Duration::from_secs(2);
    let hasty = client::endpoint(server.socket()).unwrap().timeout(patience);
    let (failure, ()) = server.block_on(async {
        let caller = Caller { client: Client::on(hasty.connect_lazy()), ..patient };
        kernel.hold("set_size");
        tokio::join!(caller.life("a", &place), async {
            until("the image is made", async || kernel.waiting() > 0).await;
            // After that, the caller of CreateVolume does not wait any longer.
            tokio::time::sleep(patience * 2).await;
            kernel.release();
        })
    });
    let failure = failure.unwrap_err();
    assert!(matches!(failure, Failure::Answer { rpc: Rpc::CreateVolume, .. }), "{failure:?}");
    nothing_is_left(&kernel);
}
