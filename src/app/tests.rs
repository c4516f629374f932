//! The life of the process on the fake kernel, with a driver that does nothing.

use std::sync::mpsc;

use super::*;
use crate::config::{Role, ServerConfig};
use crate::model::{PoolKind, PoolName, PoolSettings, Reserve};
use crate::os::fake::FakeKernel;
use crate::server::Endpoint;
use crate::telemetry::{LogFormat, LogLevel, Logging};

const DATA: &str = "/var/lib/hostloop";

fn pool(name: &str, path: &str) -> PoolSettings {
    let name = name.parse().unwrap();
    let (path, kind) = (path.into(), PoolKind::Directory);
    PoolSettings { name, path, kind, reserve: Reserve::Bytes(0), overcommit: 1.0 }
}

struct Place {
    kernel: FakeKernel,
    dir: tempfile::TempDir,
    config: Config,
}

fn place() -> Place {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        driver_name: "hostloop.csi.dev".to_owned(),
        node_id: "node-1".to_owned(),
        data_dir: DATA.into(),
        pools: vec![pool(PoolName::DEFAULT, DATA)],
        attach: false,
        max_volumes_per_node: 0,
        max_volume_bytes: 1 << 40,
        kubelet_dir: None,
    };
    let server = ServerConfig {
        endpoint: Endpoint::Unix(dir.path().join("csi.sock")),
        socket_mode: 0o600,
        shutdown_timeout: Duration::from_secs(5),
    };
    let logging = Logging { level: LogLevel::Info, format: LogFormat::Text };
    let config = Config { role: Role::All, settings, server, logging };
    Place { kernel: FakeKernel::new(), dir, config }
}

impl Place {
    fn socket_is_there(&self) -> bool {
        self.dir.path().join("csi.sock").exists()
    }

    async fn start_error(&self) -> String {
        let (trigger, shutdown) = Shutdown::new();
        trigger.pull();
        let ended = run_with(self.config.clone(), self.kernel.os(), shutdown, parts(|| ())).await;
        assert!(!self.socket_is_there());
        let line = ended.err().expect("it does not start").to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    }
}

fn parts(recover: impl FnOnce() + Send + 'static) -> impl FnOnce(Settings, Os) -> Result<Parts, StartError> {
    move |_, _| Ok(Parts { routes: Routes::default(), recover: Box::new(recover) })
}

#[tokio::test]
async fn it_serves_while_it_recovers_and_keeps_the_lock_to_the_end() {
    let place = place();
    let (trigger, shutdown) = Shutdown::new();
    let (go_on, wait) = mpsc::channel::<()>();
    let recover = move || wait.recv().unwrap();
    let process = tokio::spawn(run_with(place.config.clone(), place.kernel.os(), shutdown, parts(recover)));
    while !place.socket_is_there() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(place.kernel.mode(DATA), Some(0o700));
    go_on.send(()).unwrap();
    trigger.pull();
    let ended = process.await.unwrap().ok().unwrap();
    assert!(ended.stopped.cut == 0 && ended.failure.is_none() && !place.socket_is_there());

    let second = run_with(place.config.clone(), place.kernel.spawn(), Shutdown::new().1, parts(|| ()));
    let line = second.await.err().expect("the lock is held").to_string();
    assert!(line.starts_with("--data-dir /var/lib/hostloop is in use by another process"), "{line}");
    drop(ended);
}

#[tokio::test]
async fn a_failed_recovery_ends_the_process() {
    let place = place();
    let recover = parts(|| panic!("a bug"));
    let ended = run_with(place.config.clone(), place.kernel.os(), Shutdown::new().1, recover).await;
    let line = ended.ok().unwrap().failure.unwrap().to_string();
    assert!(line.contains("recovery met a bug"), "{line}");
    assert!(!place.socket_is_there());
}

#[tokio::test]
async fn what_is_wrong_on_the_machine_stops_the_start_with_the_flag() {
    let mut place = place();
    place.config.settings.kubelet_dir = Some("/kubelet".into());
    let line = place.start_error().await;
    assert!(line.starts_with("--kubelet-dir: /kubelet is no directory"), "{line}");

    place.kernel.create_directories("/kubelet");
    place.kernel.create_directories("/mnt/a");
    place.kernel.symlink("/mnt/a", "/mnt/b");
    place.config.settings.pools.push(pool("a", "/mnt/none"));
    let line = place.start_error().await;
    assert!(line.starts_with("--pool a: /mnt/none is no directory"), "{line}");

    let pools = vec![pool(PoolName::DEFAULT, DATA), pool("a", "/mnt/a"), pool("b", "/mnt/b")];
    place.config.settings.pools = pools;
    let line = place.start_error().await;
    assert!(line.contains("--pool b: /mnt/b is the same directory as that of the pool \"a\""), "{line}");

    place.config.settings.data_dir = "/missing/data".into();
    let line = place.start_error().await;
    assert!(line.starts_with("--data-dir: /missing is no directory"), "{line}");

    place.config.settings.data_dir = "/dev/loop-control".into();
    let line = place.start_error().await;
    assert!(line.starts_with("--data-dir: /dev/loop-control is no directory"), "{line}");
}
