//! A machine of the cluster: a fake kernel with its disks and its clock, and the driver's process on it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use hostloop::model::{FsType, InlineSettings, PoolKind, PoolName, PoolSettings, Reserve, Settings};
use hostloop_fake_kernel::FakeKernel;

use crate::harness::{Clock, DATA_DIR, DIRECTORIES, DIRECTORIES_DIR, KUBELET, Process};
use crate::net::Net;
use crate::pki::DRIVER;
use crate::random::Random;
use crate::{run, schedule};

/// A further pool, on a disk of its own, if volumes move within their nodes.
pub const FAST: &str = "fast";
pub const FAST_DIR: &str = "/mnt/fast";

pub struct Machine {
    pub id: String,
    pub kernel: FakeKernel,
    pub clock: Clock,
    /// How many nanoseconds its disk takes for a step, at the most.
    pub slow: Arc<AtomicI64>,
    pub process: Mutex<Option<Arc<Process>>>,
    /// How often it moved.
    pub moves: Mutex<u32>,
    /// Somebody is at its process.
    pub busy: AtomicBool,
    /// It is switched off.
    pub off: AtomicBool,
    /// How the controllers find the driver's process on it.
    pub listed: Mutex<Listed>,
}

/// What the Kubernetes Service says of the driver's process on a machine.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Listed {
    Here,
    WithoutAddress,
    Nowhere,
}

impl Machine {
    pub fn address(&self) -> String {
        format!("{}-{}:9443", self.id, self.moves.lock().unwrap())
    }

    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// The process that runs, unless it is dead.
    pub fn process(&self) -> Option<Arc<Process>> {
        self.process.lock().unwrap().clone().filter(|process| process.host.lives())
    }
}

/// A machine with two disks, whose steps take as long as the seed has it.
pub fn machine(id: &str, net: &Net, random: &Arc<Mutex<Random>>) -> Machine {
    let kernel = FakeKernel::new();
    kernel.create_directories("/var/lib");
    kernel.add_disk(DATA_DIR, FsType::Xfs, 64 << 30);
    kernel.add_disk(DIRECTORIES_DIR, FsType::Xfs, 64 << 30);
    if run::is_within() {
        kernel.add_disk(FAST_DIR, FsType::Xfs, 64 << 30);
    }
    kernel.create_directories(KUBELET);
    let (clock, slow) = (Clock::default(), Arc::new(AtomicI64::new(200_000)));
    let (net, random, id_of, clock_of, slow_of) =
        (net.clone(), Arc::clone(random), id.to_owned(), clock.clone(), Arc::clone(&slow));
    kernel.set_pace(move |name, subject| {
        schedule::set_ahead(clock_of.load(Ordering::Relaxed));
        while net.is_frozen(&id_of) {
            schedule::sleep(100_000_000);
        }
        let slow = slow_of.load(Ordering::Relaxed) as u64;
        let (time, waits) = {
            let mut random = random.lock().unwrap();
            (random.between(1_000, slow), random.one_in(400))
        };
        crate::log(|| {
            format!("{id_of} {name} {}", subject.replace(&run::directory().display().to_string(), "tmp"))
        });
        if waits { schedule::sleep(time * 1000) } else { schedule::step(time) }
    });
    Machine {
        id: id.to_owned(),
        kernel,
        clock,
        slow,
        process: Mutex::default(),
        moves: Mutex::default(),
        busy: AtomicBool::default(),
        off: AtomicBool::default(),
        listed: Mutex::new(Listed::Here),
    }
}

/// What the driver on a machine is told.
pub fn settings(id: &str) -> Settings {
    let pool = |name: PoolName, path: &str, directories| PoolSettings {
        name,
        path: path.into(),
        kind: PoolKind::Directory,
        reserve: Reserve::Bytes(0),
        overcommit: 1.0,
        directories,
    };
    let pools = [
        pool(PoolName::default(), DATA_DIR, false),
        pool(DIRECTORIES.parse().expect("a name"), DIRECTORIES_DIR, true),
    ];
    Settings {
        driver_name: DRIVER.to_owned(),
        node_id: id.to_owned(),
        data_dir: PathBuf::from(DATA_DIR),
        pools: pools
            .into_iter()
            .chain(run::is_within().then(|| pool(FAST.parse().expect("a name"), FAST_DIR, false)))
            .collect(),
        anchor_dir: None,
        attach: false,
        max_volumes_per_node: 0,
        max_volume_bytes: 1 << 40,
        inline: InlineSettings::default(),
        kubelet_dir: None,
        quota_ids: Default::default(),
        adopt_from: Vec::new(),
    }
}
