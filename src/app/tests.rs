//! The life of the process on the fake kernel, with a driver that does nothing.

use std::sync::mpsc;

use super::*;
use crate::config::ServerConfig;
use crate::model::{FsType, InlineSettings, PoolKind, PoolName, PoolSettings, Reserve};
use crate::server::Endpoint;
use hostloop_fake_kernel::FakeKernel;

const DATA: &str = "/var/lib/hostloop";

fn pool(name: &str, path: &str) -> PoolSettings {
    let name = name.parse().unwrap();
    let (path, kind) = (path.into(), PoolKind::Directory);
    PoolSettings { name, path, kind, reserve: Reserve::Bytes(0), overcommit: 1.0, directories: false }
}

struct Machine {
    kernel: FakeKernel,
    dir: tempfile::TempDir,
    settings: Settings,
    server: ServerConfig,
}

fn machine() -> Machine {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings {
        driver_name: "hostloop.csi.dev".to_owned(),
        node_id: "node-1".to_owned(),
        data_dir: DATA.into(),
        pools: vec![pool(PoolName::DEFAULT, DATA)],
        anchor_dir: None,
        attach: false,
        max_volumes_per_node: 0,
        max_volume_bytes: 1 << 40,
        inline: InlineSettings::default(),
        kubelet_dir: None,
        quota_ids: Default::default(),
        adopt_from: Vec::new(),
    };
    let server = ServerConfig {
        endpoint: Endpoint::Unix(dir.path().join("csi.sock")),
        socket_mode: 0o600,
        shutdown_timeout: Duration::from_secs(5),
    };
    Machine { kernel: FakeKernel::new(), dir, settings, server }
}

impl Machine {
    async fn run(
        &self,
        os: Os,
        shutdown: Shutdown,
        parts: impl FnOnce(Settings, Os, Limits, &Starting) -> Result<Parts, StartError> + Send + 'static,
    ) -> Result<Ended, StartError> {
        let (server, operation) = (self.server.clone(), OperationConfig::default());
        let outside = Outside { server, operation, shutdown, certificate: None, api: None };
        run_with(self.settings.clone(), outside, os, (Behind::Everything, Behind::Nothing), parts, nobody)
            .await
    }

    fn socket_is_there(&self) -> bool {
        self.dir.path().join("csi.sock").exists()
    }

    async fn start_error(&self) -> String {
        let (trigger, shutdown) = Shutdown::new();
        trigger.pull();
        let ended = self.run(self.kernel.os(), shutdown, parts(|| ())).await;
        assert!(!self.socket_is_there());
        let line = ended.err().expect("it does not start").to_string();
        assert!(!line.contains('\n'), "{line}");
        line
    }
}

fn parts(
    recover: impl FnOnce() + Send + 'static,
) -> impl FnOnce(Settings, Os, Limits, &Starting) -> Result<Parts, StartError> {
    move |_, _, _, _| {
        let (routes, peer_routes, health) = (Routes::default(), Routes::default(), Arc::new(|| Ok(())));
        Ok(Parts { routes, peer_routes, health, driver: None, recover: Box::new(recover) })
    }
}

#[tokio::test]
async fn the_process_serves_during_recovery_and_is_locked() {
    let machine = machine();
    let (trigger, shutdown) = Shutdown::new();
    let (go_on, wait) = mpsc::channel::<()>();
    let recover = move || wait.recv().unwrap();
    let machine = Arc::new(machine);
    let os = machine.kernel.os();
    let running = Arc::clone(&machine);
    let process = tokio::spawn(async move { running.run(os, shutdown, parts(recover)).await });
    while !machine.socket_is_there() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(machine.kernel.mode(DATA), Some(0o700));
    go_on.send(()).unwrap();
    trigger.pull();
    let ended = process.await.unwrap().ok().unwrap();
    assert!(ended.stopped.cut == 0 && ended.failure.is_none() && !machine.socket_is_there());

    let second = machine.run(machine.kernel.spawn(), Shutdown::new().1, parts(|| ()));
    let line = second.await.err().expect("the lock is held").to_string();
    assert!(line.starts_with("--data-dir /var/lib/hostloop is in use by another process"), "{line}");
    drop(ended);
}

#[tokio::test]
async fn a_failed_recovery_ends_the_process() {
    let machine = machine();
    let recover = parts(|| panic!("a bug"));
    let ended = machine.run(machine.kernel.os(), Shutdown::new().1, recover).await;
    let line = ended.ok().unwrap().failure.unwrap().to_string();
    assert!(line.contains("a bug stopped recovery"), "{line}");
    assert!(!machine.socket_is_there());
}

#[tokio::test]
async fn a_wrong_machine_stops_the_start_with_its_flag() {
    let mut machine = machine();
    machine.settings.kubelet_dir = Some("/kubelet".into());
    let line = machine.start_error().await;
    assert!(line.starts_with("--kubelet-dir: /kubelet is not a directory"), "{line}");

    machine.kernel.create_directories("/kubelet");
    machine.kernel.create_directories("/mnt/a");
    machine.kernel.symlink("/mnt/a", "/mnt/b");
    let pools = vec![pool(PoolName::DEFAULT, DATA), pool("a", "/mnt/a"), pool("b", "/mnt/b")];
    machine.settings.pools = pools;
    let line = machine.start_error().await;
    assert!(line.contains("--pool b: /mnt/b is also the directory of the pool \"a\""), "{line}");

    machine.settings.data_dir = "/missing/data".into();
    let line = machine.start_error().await;
    assert!(line.starts_with("--data-dir: /missing is not a directory"), "{line}");

    machine.settings.data_dir = "/dev/loop-control".into();
    let line = machine.start_error().await;
    assert!(line.starts_with("--data-dir: /dev/loop-control is not a directory"), "{line}");
}

/// The chart mounts no more of kubelet's directory than it needs; the rest is the container's own.
#[test]
fn mounts_for_volumes_have_to_be_shared() {
    const PLACES: [&str; 2] = ["/kubelet/plugins/kubernetes.io/csi", "/kubelet/pods"];
    let kernel = FakeKernel::new();
    let private = || {
        let found = checks::private_mounts(&kernel.os(), "/kubelet".as_ref()).unwrap();
        found.into_iter().map(|found| found.mount.display().to_string()).collect::<Vec<_>>()
    };
    kernel.create_directories("/kubelet");
    assert_eq!(private(), [""; 0], "a shared root, and nothing made yet");
    kernel.set_shared_at("/", false);
    assert_eq!(private(), ["/"], "said once for both");
    for (place, left) in PLACES.into_iter().zip([&["/"][..], &[]]) {
        kernel.add_disk(place, FsType::Ext4, 1 << 30);
        kernel.set_shared_at(place, true);
        assert_eq!(private(), left, "{place}");
    }
    kernel.set_shared_at(PLACES[1], false);
    assert_eq!(private(), ["/kubelet/pods"]);
    kernel.set_shared_at(PLACES[1], true);
    kernel.set_shared_at("/", true);
    kernel.set_shared_at(PLACES[0], false);
    assert_eq!(private(), [PLACES[0]], "the mount that holds all of it does not help");

    // Links are followed to where the volumes would really be.
    let kernel = FakeKernel::new();
    kernel.create_directories("/kubelet");
    kernel.add_disk("/disk", FsType::Ext4, 1 << 30);
    kernel.set_shared_at("/disk", false);
    kernel.symlink("/disk", "/kubelet/pods");
    let found = checks::private_mounts(&kernel.os(), "/kubelet".as_ref()).unwrap();
    let (place, mount) = ("/kubelet/pods".into(), "/disk".into());
    assert_eq!(found, [checks::Private { place, mount }]);
}
