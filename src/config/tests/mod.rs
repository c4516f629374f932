//! What flags and variables become: values, pools, limits and addresses here, the roles of a cluster in their own file.

mod bench;
mod roles;

use clap::Parser;

use super::*;
use crate::cli::{Cli, Command, one_line};
use crate::model::{BackendKind, FsType, GRANULARITY, InlineSettings, PoolKind, PoolName, Reserve};
use crate::telemetry::{LogFormat, LogLevel};

/// What follows of `hostloop COMMAND FLAGS`, or the line that is printed instead.
fn command(command: &str, flags: &[&str]) -> Result<Command, String> {
    let words = ["hostloop", command].into_iter().chain(flags.iter().copied());
    Cli::try_parse_from(words).map(|cli| cli.command).map_err(|error| one_line(&error).unwrap())
}

fn serve(flags: &[&str]) -> Result<Config, String> {
    match command("serve", flags)? {
        Command::Serve(args) => {
            Config::new(&args, Some("host-1".to_owned())).map_err(|error| error.to_string())
        }
        _ => unreachable!(),
    }
}

/// The settings of a process with volumes.
fn settings(flags: &[&str]) -> Settings {
    serve(flags).unwrap().role.settings().unwrap().clone()
}

fn selftest(flags: &[&str]) -> Result<SelftestConfig, String> {
    match command("selftest", flags)? {
        Command::Selftest(args) => Ok(SelftestConfig::from(&args)),
        _ => unreachable!(),
    }
}

#[test]
fn flags_of_serve_have_defaults() {
    let config = serve(&[]).unwrap();
    assert!(matches!(config.role, Role::All(_)));
    assert_eq!(config.server.endpoint, Endpoint::Unix("/run/hostloop/csi.sock".into()));
    assert_eq!(config.server.socket_mode, 0o600);
    assert_eq!(config.server.shutdown_timeout, Duration::from_secs(25));
    assert_eq!(config.logging, Logging { level: LogLevel::Info, format: LogFormat::Text });
    let settings = config.role.settings().unwrap();
    assert_eq!((settings.driver_name.as_str(), settings.node_id.as_str()), ("hostloop.csi.dev", "host-1"));
    assert_eq!(settings.data_dir, PathBuf::from("/var/lib/hostloop"));
    assert_eq!(settings.pools.len(), 1);
    assert_eq!((settings.pools[0].reserve, settings.pools[0].overcommit), (Reserve::Auto, 1.0));
    assert_eq!(
        (settings.attach, settings.max_volumes_per_node, settings.max_volume_bytes),
        (false, 0, i64::MAX as u64 / GRANULARITY * GRANULARITY)
    );
    assert_eq!(settings.kubelet_dir, None);
    assert!(!settings.pools[0].directories);
    let inline = &settings.inline;
    assert_eq!((inline.max_bytes, inline.backends.as_slice()), (10 << 30, &[BackendKind::Loop][..]));
    assert_eq!(inline.pools, [PoolName::default()]);
}

#[test]
fn inline_volumes_take_pools_backends_and_a_size() {
    let pools = ["--pool", "fast=/a; dirs=/b,directories=true; plain=/c,directories=false", "--directories"];
    let directories: Vec<bool> = settings(&pools).pools.iter().map(|pool| pool.directories).collect();
    assert_eq!(directories, [true, false, true, false]);
    let flags =
        ["--inline-max-size", "1Ti", "--inline-pools", "dirs, fast,dirs", "--inline-backends", "directory"];
    let inline = settings(&[&pools[..], &flags[..]].concat()).inline;
    assert_eq!((inline.max_bytes, inline.backends), (1 << 40, vec![BackendKind::Directory]));
    assert_eq!(inline.pools.iter().map(PoolName::as_str).collect::<Vec<_>>(), ["dirs", "fast"]);
    // An empty variable is how a manifest leaves it out.
    let empty = ["--inline-max-size", "", "--inline-pools", "", "--inline-backends", ""];
    assert_eq!(settings(&empty).inline, InlineSettings::default());
}

#[test]
fn pools_take_what_they_do_not_say_from_the_default() {
    let flags = ["--reserve", "10%", "--overcommit", "1.5", "--data-dir", "/d//x/./y/"];
    let pools = ["--pool", "fast=/mnt/a,reserve=5Gi", "--pool", "b=/mnt/b,overcommit=2; c=/mnt/c ;"];
    let settings = settings(&[&flags[..], &pools[..]].concat());
    let found: Vec<_> = settings
        .pools
        .iter()
        .map(|p| (p.name.as_str(), p.path.to_str().unwrap(), p.reserve, p.overcommit))
        .collect();
    assert_eq!(
        found,
        [
            ("default", "/d/x/y", Reserve::Percent(10.0), 1.5),
            ("fast", "/mnt/a", Reserve::Bytes(5 << 30), 1.5),
            ("b", "/mnt/b", Reserve::Percent(10.0), 2.0),
            ("c", "/mnt/c", Reserve::Percent(10.0), 1.5),
        ]
    );
}

#[test]
fn a_managed_pool_is_mounted_in_the_data_directory() {
    let flags = ["--data-dir", "/d", "--reserve", "5%", "--pool"];
    let pools = "a=/d/a.img,kind=image,size=1000Mi;b=/srv/b.img,fs=btrfs,overcommit=2,kind=image,size=300000001;\
                 c=/dev/disk/by-id/x,kind=device;d=/srv,kind=directory";
    let settings = settings(&[&flags[..], &[pools]].concat());
    let found: Vec<_> = settings.pools.iter().map(|p| (p.path.to_str().unwrap(), p.kind.clone())).collect();
    let image = |file: &str, bytes, fs_type| PoolKind::Image { file: file.into(), bytes, fs_type };
    assert_eq!(
        found,
        [
            ("/d", PoolKind::Directory),
            ("/d/pools/a", image("/d/a.img", 1000 << 20, FsType::Xfs)),
            // Rounded up to whole blocks.
            ("/d/pools/b", image("/srv/b.img", 300_003_328, FsType::Btrfs)),
            ("/d/pools/c", PoolKind::Device { device: "/dev/disk/by-id/x".into(), fs_type: FsType::Xfs }),
            ("/srv", PoolKind::Directory),
        ]
    );
    assert_eq!((settings.pools[2].reserve, settings.pools[2].overcommit), (Reserve::Percent(5.0), 2.0));
}

#[test]
fn flags_of_serve_take_good_values() {
    assert!(settings(&["--attach"]).attach);
    assert!(!settings(&["--attach=false"]).attach);
    assert_eq!(serve(&["--socket-mode", "0660"]).unwrap().server.socket_mode, 0o660);
    assert_eq!(serve(&["--socket-mode", "0o600"]).unwrap().server.socket_mode, 0o600);
    assert_eq!(settings(&["--kubelet-dir", ""]).kubelet_dir, None);
    assert_eq!(settings(&["--quota-ids", ""]).quota_ids.to_string(), "1073741824-2147483647");
    assert_eq!(settings(&["--quota-ids", "5000-6000"]).quota_ids.to_string(), "5000-6000");
    assert_eq!(settings(&["--kubelet-dir", "/k/"]).kubelet_dir, Some("/k".into()));
    assert_eq!(settings(&["--driver-name", "1a.B-2.3"]).driver_name, "1a.B-2.3");
    assert_eq!(settings(&["--node-id", "n.1_a"]).node_id, "n.1_a");
    assert_eq!(settings(&["--max-volume-size", "1Mi"]).max_volume_bytes, 1 << 20);
    assert_eq!(serve(&["--shutdown-timeout", "0"]).unwrap().server.shutdown_timeout, Duration::ZERO);
}

/// A wrong value: its flag, the value, and a part of the message beside the flag and its variable.
const WRONG: &[(&str, &str, &str)] = &[
    ("--endpoint", "", "absolute path"),
    ("--endpoint", "csi.sock", "absolute path"),
    ("--endpoint", "unix://csi.sock", "absolute path"),
    ("--endpoint", "http://x", "unix:///"),
    ("--endpoint", "tcp://0.0.0.0:9000", "loopback"),
    ("--endpoint", "tcp://localhost:9000", "127.0.0.1"),
    ("--endpoint", "unix:///run/", "is a directory"),
    ("--endpoint", "/run/../csi.sock", ".."),
    ("--socket-mode", "rw", "octal"),
    ("--socket-mode", "+600", "octal"),
    ("--socket-mode", "01777", "octal"),
    ("--socket-mode", "0400", "owner"),
    ("--role", "leader", "use all, node or controller"),
    ("--driver-name", "", "domain name"),
    ("--driver-name", "-a", "domain name"),
    ("--driver-name", "a.", "domain name"),
    ("--driver-name", "a..b", "domain name"),
    ("--driver-name", "a.-b", "domain name"),
    ("--driver-name", "a_b", "domain name"),
    ("--driver-name", "a\nb", "domain name"),
    ("--node-id", "", "topology value"),
    ("--node-id", "a/b", "topology value"),
    ("--data-dir", "data", "absolute path"),
    ("--data-dir", "/", "root"),
    ("--data-dir", "/a/../b", ".."),
    ("--kubelet-dir", "var", "absolute path"),
    ("--reserve", "10 %", "percentage"),
    ("--reserve", "100%", "percentage"),
    ("--reserve", "nan%", "percentage"),
    ("--reserve", "-1", "not a size"),
    ("--reserve", "10", "use a percentage such as 10%, a size of at least 1 MiB such as 10Gi, or 0"),
    ("--reserve", "0.5", "use a percentage such as 10%"),
    ("--pool", "a=/mnt/a,reserve=10", "use a percentage such as 10%"),
    ("--stream-rate", "10", "use at least 64 KiB such as 100Mi, or 0 for no limit"),
    ("--overcommit", "0.5", "ratio"),
    ("--overcommit", "1001", "ratio"),
    ("--overcommit", "inf", "ratio"),
    ("--max-volumes-per-node", "-1", "no limit"),
    ("--max-volume-size", "1023Ki", "at least 1 MiB"),
    ("--max-volume-size", "1TB", "not a size"),
    ("--log-level", "INFO", "debug"),
    ("--log-format", "yaml", "json"),
    ("--shutdown-timeout", "25s", "seconds"),
    ("--shutdown-timeout", "3601", "seconds"),
    ("--attach", "maybe", "not true or false"),
    ("--pool", "/mnt/a", "NAME=PATH"),
    ("--pool", "A=/mnt/a", "pool name"),
    ("--pool", "default=/mnt/a", "--data-dir"),
    ("--pool", "a=mnt", "absolute path"),
    ("--pool", "a=/mnt/a,colour=red", "reserve="),
    ("--pool", "a=/mnt/a,size=3", "kind=image"),
    ("--pool", "a=/mnt/a,fs=xfs", "kind=image"),
    ("--pool", "a=/mnt/a,kind=directory,fs=xfs", "kind=image"),
    ("--pool", "a=/mnt/a,directories=yes", "not true or false"),
    ("--directories", "maybe", "not true or false"),
    ("--inline-max-size", "10", "at least 1 MiB"),
    ("--quota-ids", "many", "FIRST-LAST"),
    ("--quota-ids", "1000", "FIRST-LAST"),
    ("--quota-ids", "1000-5000000000", "FIRST-LAST"),
    ("--quota-ids", "0-1000", "use 1 or more"),
    ("--quota-ids", "1000-4294967295", "at most 4294967294"),
    ("--quota-ids", "20-10", "use 10-20"),
    ("--quota-ids", "1-1048577", "kubelet"),
    ("--quota-ids", "2097152-3000000", "kubelet"),
    ("--inline-pools", "default,fast", "the pools are: default"),
    ("--inline-backends", "zfs", "loop or directory"),
    ("--volume-metrics", "many", "from 0 to 100000"),
    ("--volume-metrics", "100001", "from 0 to 100000"),
    ("--pool", "a=/mnt/a,kind=zfs", "not a kind"),
    ("--pool", "a=/a.img,kind=image", "size="),
    ("--pool", "a=/a.img,kind=image,size=1TB", "not a size"),
    ("--pool", "a=/a.img,kind=image,size=299Mi", "at least 300 MiB"),
    ("--pool", "a=/a.img,kind=image,size=255Mi,fs=btrfs", "at least 256 MiB"),
    ("--pool", "a=/a.img,kind=image,size=1Gi,fs=ext4", "cannot share blocks"),
    ("--pool", "a=/a.img,kind=image,size=1Gi,fs=zfs", "fs=xfs"),
    ("--pool", "a=a.img,kind=image,size=1Gi", "absolute path"),
    ("--pool", "a=/srv/lock,kind=image,size=1Gi", "another name"),
    ("--pool", "a=/srv/b.img.hostloop-lock,kind=image,size=1Gi", "another name"),
    ("--pool", "a=/srv/b.img.hostloop-new,kind=image,size=1Gi", "another name"),
    ("--pool", "a=/dev/sdb,kind=device,size=1Gi", "leave size= out"),
    ("--pool", "a=/dev/sdb,kind=device,fs=ext4", "cannot share blocks"),
    ("--pool", "a=/dev/sdb,kind=device;b=/dev/sdb,kind=device", "same image or device"),
    ("--pool", "a=/a.img,kind=image,size=1Gi;b=/a.img,kind=image,size=1Gi", "same image or device"),
    ("--pool", "a=/var/lib/hostloop/volumes/a,kind=image,size=1Gi", "belongs to the pool \"default\""),
    ("--pool", "a=/var/lib/hostloop/snapshots/a,kind=image,size=1Gi", "belongs to"),
    ("--pool", "a=/var/lib/hostloop/pools/b/a,kind=image,size=1Gi", "belongs to"),
    ("--pool", "a=/var/lib/hostloop/state.jsonl,kind=image,size=1Gi", "belongs to"),
    ("--pool", "b=/mnt/b;a=/mnt/b/volumes/x,kind=image,size=1Gi", "belongs to the pool \"b\""),
    ("--pool", "a=/mnt/b/volumes/x,kind=image,size=1Gi;b=/mnt/b", "around the image"),
    ("--pool", "default=/a.img,kind=image,size=1Gi", "--data-dir"),
    ("--pool", "a=/mnt/a,reserve=x", "not a size"),
    ("--pool", "a=/mnt/a,overcommit=0", "ratio"),
    ("--pool", "a=/mnt/a;a=/mnt/b", "twice"),
    ("--pool", "a=/mnt/a;b=/mnt/a/", "same directory"),
    ("--pool", "a=/mnt/a;b=/mnt/a/b", "inside"),
    ("--pool", "a=/mnt/a/b;b=/mnt/a", "around"),
    ("--pool", "a=/var/lib/hostloop/a", "inside"),
    ("--pool", "a=/var/lib", "around"),
];

#[test]
fn a_wrong_value_names_its_flag_and_variable() {
    for (flag, value, hint) in WRONG {
        let line = serve(&[&format!("{flag}={value}")]).expect_err(&format!("{flag} {value:?}"));
        let variable = match *flag {
            "--endpoint" => "CSI_ENDPOINT".to_owned(),
            "--node-id" => "NODE_ID".to_owned(),
            "--pool" => "HOSTLOOP_POOLS".to_owned(),
            other => format!("HOSTLOOP_{}", other.trim_start_matches('-').replace('-', "_").to_uppercase()),
        };
        assert!(line.starts_with(&format!("{flag} ({variable}): ")), "{line}");
        assert!(line.contains(hint) && !line.contains('\n'), "{flag} {value:?}: {line}");
    }
}

#[test]
fn long_values_are_refused() {
    let name = "a".repeat(64);
    assert!(serve(&["--driver-name", &name]).unwrap_err().contains("63"));
    assert!(serve(&["--node-id", &name]).unwrap_err().contains("63"));
    let path = format!("unix:///{}.sock", "s".repeat(102));
    assert!(serve(&["--endpoint", &path]).unwrap_err().contains("107 bytes"));
    assert!(serve(&["--endpoint", &path.replace("ss", "s")]).is_ok());
}

#[test]
fn the_node_id_must_be_given_without_a_host_name() {
    let error = node_id::<ServeArgs>(None, None).unwrap_err().to_string();
    assert!(error.contains("--node-id (NODE_ID)"), "{error}");
    let error = node_id::<ServeArgs>(None, Some("a b".to_owned())).unwrap_err().to_string();
    assert!(error.contains("the host name \"a b\""), "{error}");
}

#[test]
fn flags_of_selftest_choose_its_checks() {
    let config = selftest(&["--dir", "/t", "--only", "block", "--only", "ext4", "--size", "64Mi"]).unwrap();
    assert_eq!(config.checks, [Check::Ext4, Check::Block]);
    assert_eq!((config.dir, config.size), (PathBuf::from("/t"), 64 << 20));
    assert!(config.named);
    let all = selftest(&["--dir", "/t"]).unwrap();
    assert_eq!((all.checks.as_slice(), all.named), (&Check::ALL[..], false));
    for (flag, value) in [("--dir", "t"), ("--size", "x"), ("--size", "1Mi"), ("--only", "ext3")] {
        let line = selftest(&["--dir=/t", &format!("{flag}={value}")][usize::from(flag == "--dir")..]);
        let line = line.unwrap_err();
        assert!(line.starts_with(flag), "{line}");
    }
}

#[test]
fn a_rate_of_zero_is_no_limit() {
    for (text, rate) in [("", None), ("0", None), ("0Mi", None), ("0.0", None), ("64Ki", Some(1 << 16))] {
        assert_eq!(serve(&["--stream-rate", text]).unwrap().operation.limits.stream_rate, rate, "{text}");
    }
}

#[test]
fn metrics_and_registration_are_off_unless_asked_for() {
    let default = OperationConfig { volume_metrics: 1000, ..OperationConfig::default() };
    assert_eq!(serve(&[]).unwrap().operation, default);
    let empty = [
        "--metrics-listen",
        "",
        "--volume-metrics",
        "",
        "--register=false",
        "--registration-dir",
        "nonsense",
    ];
    assert_eq!(serve(&empty).unwrap().operation, default);
    assert_eq!(serve(&["--volume-metrics", "0"]).unwrap().operation.volume_metrics, 0);

    let operation = serve(&["--metrics-listen", "[::1]:9808", "--register"]).unwrap().operation;
    assert_eq!(operation.metrics_listen, Some("[::1]:9808".parse().unwrap()));
    let both = serve(&["--metrics-listen", "[::1]:9808", "--health-listen", "[::1]:9810"]).unwrap().operation;
    assert_eq!(both.health_listen, Some("[::1]:9810".parse().unwrap()));
    let introduction = operation.registration.unwrap();
    assert_eq!(introduction.endpoint, "/run/hostloop/csi.sock");
    let socket = "/var/lib/kubelet/plugins_registry/hostloop.csi.dev@reg.sock";
    assert_eq!(introduction.socket(), PathBuf::from(socket));

    for path in ["/var/lib/kubelet/plugins/h/csi.sock", "unix:///var/lib/kubelet/plugins/h/csi.sock"] {
        let flags = ["--register", "--kubelet-endpoint", path, "--registration-dir", "/registration/"];
        let introduction = serve(&flags).unwrap().operation.registration.unwrap();
        assert_eq!(introduction.endpoint, "/var/lib/kubelet/plugins/h/csi.sock");
        assert_eq!(introduction.socket(), PathBuf::from("/registration/hostloop.csi.dev@reg.sock"));
    }
}

#[test]
fn unreachable_addresses_and_sockets_are_refused() {
    let long = format!("/{}", "d".repeat(90));
    for (flags, hint) in [
        (
            &["--metrics-listen", "9808"][..],
            "--metrics-listen (HOSTLOOP_METRICS_LISTEN): \"9808\" is not an address",
        ),
        (&["--metrics-listen", "localhost:9808"], "is not an address"),
        (
            &["--health-listen", "9810"],
            "--health-listen (HOSTLOOP_HEALTH_LISTEN): \"9810\" is not an address",
        ),
        (
            &["--metrics-listen", "[::]:9808", "--health-listen", "[::]:9808"],
            "it is the address of --metrics-listen",
        ),
        (&["--register=perhaps"], "--register (HOSTLOOP_REGISTER): \"perhaps\" is not true or false"),
        (
            &["--register", "--endpoint", "tcp://127.0.0.1:1"],
            "--register (HOSTLOOP_REGISTER): kubelet does not",
        ),
        (&["--register", "--kubelet-endpoint", "csi.sock"], "--kubelet-endpoint (HOSTLOOP_KUBELET_ENDPOINT)"),
        (&["--register", "--kubelet-endpoint", "tcp://127.0.0.1:1"], "kubelet does not reach tcp://"),
        (&["--register", "--registration-dir", "here"], "--registration-dir (HOSTLOOP_REGISTRATION_DIR)"),
        (&["--register", "--registration-dir", &long], "at most 107 bytes"),
        (
            &["--role=controller", "--peer=a=h:1", "--register"],
            "--register (HOSTLOOP_REGISTER): it works with",
        ),
    ] {
        let line = serve(flags).unwrap_err();
        assert!(line.contains(hint) && !line.contains('\n'), "{flags:?}: {line}");
    }
}
