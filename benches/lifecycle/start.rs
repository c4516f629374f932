//! How long the driver takes to be ready, and what it keeps in memory, with none and with many volumes.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use hostloop::kernel::linux::{self, Tools};
use hostloop::model::{
    BackendKind, Content, NodeKey, Phase, PoolName, Provisioning, Volume, VolumeId, VolumeParameters,
};
use hostloop::store::{Identity, Store};

use super::{Sample, driver, show};

const MANY: usize = 10_000;
const STARTS: usize = 10;

pub async fn measure(dir: &Path) {
    for volumes in [0, 1000, MANY] {
        let dir = tempfile::Builder::new().prefix("hostloop-bench-").tempdir_in(dir).unwrap();
        let path = dir.path().to_owned();
        tokio::task::spawn_blocking(move || prepare(&path, volumes)).await.unwrap();
        let (mut ready, mut memory) = (Sample::default(), Vec::new());
        for _ in 0..STARTS {
            let started = Instant::now();
            let (driver, _) = driver(dir.path()).await;
            ready.add_time(started.elapsed());
            memory.push(resident(driver.id()));
            driver.stop().await.unwrap();
        }
        memory.sort_unstable();
        let mib = memory[memory.len() / 2] as f64 / 1024.0;
        println!("{volumes} volumes: ready {} ms after exec, {mib:.1} MiB resident", show(&ready));
    }
}

/// A data directory with raw block volumes and their sparse images.
pub fn prepare(dir: &Path, volumes: usize) {
    let os = linux::os(Tools::find());
    let data = dir.join("data");
    std::fs::create_dir_all(data.join("volumes")).unwrap();
    let identity = Identity { driver: "hostloop.csi.dev".to_owned(), node_id: "selftest".to_owned() };
    let store = Arc::new(Store::open(Arc::clone(&os.files), &data, identity).unwrap());
    let key = NodeKey::of("selftest");
    // Many at once share one sync.
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let (store, key) = (&store, &key);
            scope.spawn(move || {
                for number in (thread..volumes).step_by(64) {
                    let volume = volume(key, number);
                    // The image is sparse: it takes an inode.
                    let image = dir.join("data/volumes").join(volume.id.as_str()).join("disk.img");
                    std::fs::create_dir(image.parent().unwrap()).unwrap();
                    std::fs::write(&image, b"").unwrap();
                    std::fs::OpenOptions::new().write(true).open(&image).unwrap().set_len(1 << 30).unwrap();
                    store.put(volume).unwrap();
                }
            });
        }
    });
}

fn volume(key: &NodeKey, number: usize) -> Volume {
    let name = format!("pvc-{number:08}-0000-4000-8000-000000000000");
    let parameters = VolumeParameters {
        backend: BackendKind::Loop,
        provisioning: Provisioning::Thin,
        pool: PoolName::default(),
        mkfs_options: Vec::new(),
        direct_io: true,
        discard: true,
        shared_on_node: false,
        enforcement: None,
        inodes: None,
    };
    let id = VolumeId::of_name(key, &name);
    Volume {
        name,
        capacity_bytes: 1 << 30,
        block_size: 512,
        ..Volume::new(id, Phase::Ready, Content::Block, parameters)
    }
}

/// VmRSS of a process in KiB (proc_pid_status(5)).
pub fn resident(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}
