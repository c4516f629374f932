//! What the flags of `hostloop bench` become, and which do not go together.

use super::*;

fn bench(words: &str) -> Result<BenchConfig, String> {
    match command("bench", &words.split_whitespace().collect::<Vec<_>>())? {
        Command::Bench(args) => BenchConfig::new(&args).map_err(|error| error.to_string()),
        _ => unreachable!(),
    }
}

fn disk(words: &str) -> DiskConfig {
    match bench(words).unwrap() {
        BenchConfig::Disk(config) => config,
        BenchConfig::Rpc(config) => panic!("{config:?}"),
    }
}

fn rpc(words: &str) -> RpcConfig {
    match bench(words).unwrap() {
        BenchConfig::Rpc(config) => config,
        BenchConfig::Disk(config) => panic!("{config:?}"),
    }
}

#[test]
fn flags_of_bench_choose_what_is_measured() {
    let config = disk("--dir /d");
    assert_eq!((config.bytes, config.turns, config.budget.as_secs()), (512 << 20, 5, 90));
    assert_eq!((config.candidates.as_slice(), config.svg, config.json), (&Candidate::ALL[..], None, false));
    let config =
        disk("--dir /d --only directory --only ext4 --size 64Mi --seconds 2 --turns 1 --svg a --json");
    assert_eq!(config.candidates, [Candidate::Ext4, Candidate::Directory]);
    assert_eq!((config.bytes, config.turns, config.budget.as_secs()), (64 << 20, 1, 2));
    assert!(config.json && config.svg == Some(PathBuf::from("a")));
}

#[test]
fn a_driver_and_one_beside_it() {
    let config = rpc("--endpoint unix:///a.sock");
    let driver = |uri: &str, pairs: &[(&str, &str)]| BenchDriver {
        uri: uri.to_owned(),
        parameters: pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
    };
    assert_eq!(config.drivers, [driver("unix:///a.sock", &[])]);
    assert_eq!((config.clients.as_slice(), config.volumes), (&[1, 4, 16, 64][..], 0));
    assert_eq!((config.bytes, config.fs_type.as_deref()), (64 << 20, Some("")));
    assert_eq!(config.dir, PathBuf::from("/var/tmp"));

    let both = "--endpoint /a.sock --beside tcp://127.0.0.1:7 --parameters a=b=c --parameters d=";
    let config = rpc(&format!("{both} --clients 8,2,8 --volumes 10000 --block --dir /k"));
    let class = [("a", "b=c"), ("d", "")];
    assert_eq!(config.drivers, [driver("unix:///a.sock", &class), driver("http://127.0.0.1:7", &class)]);
    assert_eq!((config.clients, config.volumes, config.fs_type), (vec![2, 8], 10_000, None));
    assert_eq!(config.dir, PathBuf::from("/k"));
    let config = rpc(&format!("{both} --beside-parameters x=y --fs-type xfs"));
    assert_eq!(config.drivers[1], driver("http://127.0.0.1:7", &[("x", "y")]));
    assert_eq!(config.fs_type.as_deref(), Some("xfs"));
}

#[test]
fn a_wrong_value_names_its_flag() {
    for (words, hint) in [
        ("", "--dir: is missing; name a directory"),
        ("--dir d", "--dir: \"d\" is not an absolute path"),
        ("--dir /d --size 1Mi", "--size: "),
        ("--dir /d --size 256Mi", "--size: xfs needs 300 MiB"),
        ("--dir /d --size 64Mi --only btrfs-thick", "--size: btrfs-thick needs 256 MiB"),
        ("--dir /d --only ext3", "--only: \"ext3\" is not a kind of volume; use ext4, "),
        ("--dir /d --seconds 0", "--seconds: \"0\" is not a whole number from 1 to 14400"),
        ("--dir /d --turns 1001", "--turns: \"1001\" is not a whole number from 1 to 1000"),
        ("--dir /d --clients 1", "--clients: is for drivers; add --endpoint"),
        ("--dir /d --volumes 1", "--volumes: is for drivers"),
        ("--dir /d --beside /a.sock", "--beside: is for drivers"),
        ("--dir /d --parameters a=b", "--parameters: is for drivers"),
        ("--dir /d --block", "--block: is for drivers"),
        ("--dir /d --fs-type xfs", "--fs-type: is for drivers"),
        ("--endpoint a.sock", "--endpoint: \"a.sock\" has no absolute path"),
        ("--endpoint /a.sock --only ext4", "--only: is for --dir"),
        ("--endpoint /a.sock --svg f", "--svg: is for --dir"),
        ("--endpoint /a.sock --parameters ab", "--parameters: \"ab\" is not a parameter; use KEY=VALUE"),
        ("--endpoint /a.sock --parameters =b", "--parameters: \"=b\" is not a parameter"),
        ("--endpoint /a.sock --clients 1,0", "--clients: \"0\" is not a whole number from 1 to 1024"),
        ("--endpoint /a.sock --volumes 10001", "--volumes: \"10001\" is not a whole number from 0 to 10000"),
        ("--endpoint /a.sock --beside /a.sock", "--beside: is the driver of --endpoint"),
        ("--endpoint /a.sock --beside-parameters a=b", "--beside-parameters: needs a second driver"),
        ("--endpoint /a.sock --block --fs-type xfs", "cannot be used with"),
    ] {
        let error = bench(words).unwrap_err();
        assert!(error.contains(hint) && !error.contains('\n'), "{words}: {error}");
    }
}
