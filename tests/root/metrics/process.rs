//! What an administrator and a supervisor see of the process.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU8, Ordering};

use nix::sys::signal::Signal;

use hostloop::wire::registration::RegistrationStatus;
use hostloop::wire::registration::registration_client::RegistrationClient;

use crate::harness::process::{binary, command, node_of, serve_flags};
use crate::harness::{Csi, Driver, Kind, MIB, Vol, World, kernel};

/// A process that ends by itself.
fn ends(command: &mut Command) -> (Option<i32>, String) {
    let Output { status, stderr, stdout } = command.output().expect("it starts");
    assert!(stdout.is_empty(), "logs are on stderr");
    (status.code(), String::from_utf8(stderr).expect("text"))
}

fn mode(path: &Path) -> u32 {
    path.symlink_metadata().expect("stat").permissions().mode() & 0o7777
}

#[test]
fn a_second_process_is_told_the_holder() {
    let mut world = World::new(&[]);
    let arguments = serve_flags(&world.dir.join("other.sock"), &world.data);
    let (code, log) = ends(command(binary()).args(&arguments));
    assert_eq!(code, Some(1));
    let pid = world.driver().pid();
    assert!(log.contains(&format!("process {pid} (hostloop)")), "{log}");
    assert!(log.contains("--data-dir") && !world.dir.join("other.sock").exists(), "{log}");
    // The same socket with another driver's data directory: the first one is not disturbed.
    let arguments = serve_flags(&world.socket, &world.dir.join("data2"));
    let (code, log) = ends(command(binary()).args(arguments).args(["--driver-name", "other.example.com"]));
    assert_eq!(code, Some(1));
    assert!(log.contains("another process serves") && log.contains("--endpoint"), "{log}");
    assert_eq!(world.csi.probe().expect("Probe").ready, Some(true));
    world.finish();
}

#[test]
fn a_data_directory_of_another_node_is_refused() {
    let mut world = World::new(&[]);
    world.take_driver().stop();
    let mut arguments = serve_flags(&world.socket, &world.data);
    arguments[2] = "node-2".to_owned();
    let (code, log) = ends(command(binary()).args(&arguments));
    assert_eq!(code, Some(1));
    assert!(log.contains(&node_of(&world.data)) && log.contains("node-2"), "{log}");
    world.assert_nothing_left();
}

#[test]
fn the_socket_is_private_and_replaces_stale_ones() {
    let mut world = World::empty(&[]);
    // Left by a process that was killed: bound, and nobody listens.
    drop(UnixListener::bind(&world.socket).expect("bind"));
    assert!(world.socket.exists());
    world.start();
    assert_eq!(mode(&world.socket), 0o600);
    assert!(world.socket.symlink_metadata().expect("stat").file_type().is_socket());
    assert_eq!(mode(&world.data), 0o700);
    world.restart_after_kill();
    world.take_driver().stop();
    assert!(!world.socket.exists());
    std::fs::write(&world.socket, "precious").expect("write");
    let (code, log) = ends(command(binary()).args(world.arguments()));
    assert_eq!(code, Some(1));
    assert!(log.contains("csi.sock") && log.contains("--endpoint"), "{log}");
    assert_eq!(std::fs::read_to_string(&world.socket).expect("read"), "precious");
    std::fs::remove_file(&world.socket).expect("unlink");
    let names: Vec<_> =
        std::fs::read_dir(&world.dir).expect("list").map(|e| e.expect("entry").file_name()).collect();
    assert_eq!(names.len(), 4, "nothing but the anchor is made beside the socket: {names:?}");
    world.assert_nothing_left();
}

#[test]
fn a_socket_mode_is_what_the_flag_says() {
    let world = World::new(&["--socket-mode", "0660"]);
    assert_eq!(mode(&world.socket), 0o660);
    world.finish();
}

#[test]
fn sigterm_ends_it_well_and_leaves_mounts_alone() {
    let mut world = World::new(&[]);
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let vol = Vol::create(&world, Kind::Ext4, "v", 16 * MIB, &[]);
        vol.up();
        std::fs::write(vol.file("a"), "data").expect("write");
        let volume = vol.info.clone();
        let mut driver = world.take_driver();
        driver.signal(signal);
        assert_eq!(driver.wait().code(), Some(0), "{}", driver.log_text());
        assert!(driver.log_text().contains("stopped") && !world.socket.exists());
        assert_eq!(kernel::mounts(&world.kubelet).len(), 2);
        world.start();
        let vol = Vol::of(&world, Kind::Ext4, volume);
        assert_eq!(std::fs::read(vol.file("a")).expect("read"), b"data");
        vol.remove();
    }
    world.finish();
}

/// One line that names the flag, and exit code 2.
#[test]
fn a_wrong_flag_is_one_line_and_exit_code_2() {
    let wrong = [
        ("--endpoint", "http://x"),
        ("--endpoint", "tcp://0.0.0.0:1"),
        ("--socket-mode", "rw"),
        ("--role", "some"),
        ("--driver-name", "-x"),
        ("--node-id", ""),
        ("--data-dir", "relative"),
        ("--pool", "x"),
        ("--pool", "x=/x,reserve=much"),
        ("--reserve", "101%"),
        ("--overcommit", "0.5"),
        ("--attach", "perhaps"),
        ("--max-volumes-per-node", "-1"),
        ("--max-volume-size", "1"),
        ("--kubelet-dir", "relative"),
        ("--log-level", "loud"),
        ("--log-format", "xml"),
        ("--shutdown-timeout", "soon"),
    ];
    for (flag, value) in wrong {
        let (code, log) = ends(command(binary()).args(["serve", &format!("{flag}={value}")]));
        assert_eq!(code, Some(2), "{flag}={value}: {log}");
        assert!(log.contains(flag) && log.trim_end().lines().count() == 1, "{flag}={value}: {log}");
    }
    let (code, log) = ends(command(binary()).args(["serve", "--nodeid=x"]));
    assert_eq!(code, Some(2));
    assert!(log.contains("--node-id"), "clap names a similar one: {log}");
    // By its variable, it is named with both names.
    let (code, log) = ends(command(binary()).arg("serve").env("HOSTLOOP_RESERVE", "much"));
    assert_eq!(code, Some(2));
    assert!(log.contains("--reserve") && log.contains("HOSTLOOP_RESERVE"), "{log}");
}

#[test]
fn a_missing_directory_stops_the_start_and_is_named() {
    let world = World::empty(&[]);
    let missing = world.dir.join("not/there");
    let start = |extra: [&str; 2], data: &Path| {
        let (code, log) = ends(command(binary()).args(serve_flags(&world.socket, data)).args(extra));
        assert_eq!(code, Some(1), "{log}");
        log
    };
    let missing_text = missing.to_str().expect("text");
    assert!(start(["--reserve", "0"], &missing).contains("--data-dir"));
    assert!(start(["--kubelet-dir", missing_text], &world.data).contains("--kubelet-dir"));
    let link = world.dir.join("link");
    std::os::unix::fs::symlink(&world.data, &link).expect("symlink");
    let same = format!("fast={}", link.display());
    assert!(start(["--pool", &same], &world.data).contains("is also the directory"));
    assert!(!missing.exists() && !world.socket.exists());
    world.assert_nothing_left();
}

#[test]
fn the_environment_of_csi_is_enough() {
    let world = World::empty(&[]);
    let socket = world.dir.join("made/by-env.sock");
    let mut start = command(binary());
    start.arg("serve").env("CSI_ENDPOINT", format!("unix://{}", socket.display())).env("NODE_ID", "node-9");
    start.env("HOSTLOOP_DATA_DIR", &world.data).env("HOSTLOOP_DRIVER_NAME", "other.example.com");
    let mut driver = Driver::spawn(&mut start, &world.dir.join("log"));
    let csi = Csi::new(&socket);
    driver.wait_ready(&csi);
    let info = csi.call(hostloop::wire::csi::GetPluginInfoRequest {}).expect("GetPluginInfo");
    assert_eq!(
        (info.name.as_str(), info.vendor_version.as_str()),
        ("other.example.com", env!("CARGO_PKG_VERSION"))
    );
    driver.stop();
    assert!(!socket.exists());
    world.assert_nothing_left();
}

/// What kubelet would say to the plugin at this socket.
fn notify(socket: &Path, plugin_registered: bool) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let address = format!("unix://{}", socket.display());
        let endpoint = tonic::transport::Endpoint::try_from(address).expect("an address");
        let mut client = RegistrationClient::new(endpoint.connect().await.expect("the plugin is there"));
        let status = RegistrationStatus { plugin_registered, error: "not wanted".to_owned() };
        client.notify_registration_status(status).await.expect("an answer");
    });
}

/// Returns an address for metrics that no other test has.
pub fn metrics_address() -> String {
    static TAKEN: AtomicU8 = AtomicU8::new(0);
    let [_, _, high, low] = std::process::id().to_be_bytes();
    let number = 1 + TAKEN.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{low}.{number}:9808", 1 + high % 254)
}

/// Returns the metrics of a driver, with the headers of the answer.
pub fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("connect");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: driver\r\n\r\n").expect("ask");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn a_refusal_of_kubelet_is_exit_code_1() {
    let mut world = World::empty(&[]);
    let (plugins, address) = (world.dir.join("plugins"), metrics_address());
    std::fs::create_dir(&plugins).expect("mkdir");
    let directory = plugins.to_str().expect("text").to_owned();
    world.set_flags(&["--register", "--registration-dir", &directory, "--metrics-listen", &address]);
    world.start();
    let plugin = plugins.join("hostloop.csi.dev@reg.sock");
    crate::harness::eventually("the plugin is there", || plugin.exists());
    assert_eq!(mode(&plugin), 0o600);
    notify(&plugin, true);

    let answer = scrape(&address);
    for part in ["HTTP/1.1 200 OK", "hostloop_ready 1.0", "kind=\"size\"", "process_open_fds"] {
        assert!(answer.contains(part), "{part}: {answer}");
    }

    notify(&plugin, false);
    let mut driver = world.take_driver();
    assert_eq!(driver.wait().code(), Some(1), "{}", driver.log_text());
    let log = driver.log_text();
    let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR")).collect();
    assert!(errors.len() == 1 && errors[0].contains("not wanted"), "{log}");
    assert!(!plugin.exists() && !world.socket.exists());
    world.assert_nothing_left();
}

#[test]
fn status_without_a_kubeconfig_is_one_sentence() {
    let home = tempfile::tempdir().expect("tempdir");
    let mut command = command(binary());
    for name in ["KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"] {
        command.env_remove(name);
    }
    let done = command.arg("status").env("HOME", home.path()).output().expect("it starts");
    let said = String::from_utf8(done.stderr).expect("text");
    let config = home.path().join(".kube/config");
    let expected = format!(
        "hostloop: there is no kubeconfig at {}; set KUBECONFIG or use --kubeconfig\n",
        config.display()
    );
    assert_eq!((done.status.code(), said), (Some(1), expected));
}

#[test]
fn the_version_has_the_commit() {
    let done = command(binary()).arg("--version").output().expect("it starts");
    let said = String::from_utf8(done.stdout).expect("text");
    let start = format!("hostloop {} (", env!("CARGO_PKG_VERSION"));
    let rest = said.strip_prefix(&start).and_then(|rest| rest.strip_suffix(")\n"));
    let known = |rest: &str| {
        let (commit, tree) = rest.split_once(", ").unwrap_or((rest, ""));
        commit.len() == 12
            && commit.chars().all(|c| c.is_ascii_hexdigit())
            && ["clean", "modified"].contains(&tree)
    };
    // A tree without its repository says so.
    assert!(rest.is_some_and(|rest| known(rest) || rest == "commit unknown"), "{said}");
}
