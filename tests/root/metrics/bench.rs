//! `hostloop bench` as people run it: what it prints, and that it leaves nothing, however it ends.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::directories::quotas::{place, plain_disk, with_simple_quotas};
use crate::harness::process::{binary, command};
use crate::harness::{World, kernel, text};
use crate::metrics::selftest::{directory, nothing_is_left};

/// A bench that ends by itself.
fn bench(arguments: &[&str]) -> Output {
    command(binary()).arg("bench").args(arguments).output().expect("it starts")
}

/// One that is ended: its stderr is to be read.
fn started(arguments: &[&str]) -> Child {
    let mut command = command(binary());
    command.arg("bench").args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("it starts")
}

fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// What is said on stderr, and the exit code.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
    String::from_utf8(output.stderr.clone()).expect("text")
}

#[test]
fn bench_measures_every_kind_and_leaves_nothing() {
    let (dir, pictures) = (directory(), tempfile::tempdir().expect("tempdir"));
    let svg = pictures.path().join("disk.svg");
    let kinds = ["ext4", "ext4-thick", "block", "directory", "managed"];
    let mut arguments = vec!["--dir", text(dir.path()), "--size", "64Mi", "--seconds", "1", "--turns", "2"];
    arguments.extend(["--json", "--svg", text(&svg)]);
    arguments.extend(kinds.iter().flat_map(|kind| ["--only", kind]));
    let result = json(&bench(&arguments));
    let places = result["places"].as_array().expect("places");
    let names: Vec<&str> = places.iter().map(|place| place["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["plain directory", "ext4", "ext4-thick", "block", "managed", "directory"]);
    for (place, name) in places.iter().zip(names) {
        for pattern in ["random_read", "random_write", "write_sync", "create_sync", "read", "write"] {
            let figure = &place["figures"][pattern];
            if name == "block" && pattern == "create_sync" {
                assert!(figure.is_null(), "{place}");
                continue;
            }
            let turns = figure["turns"].as_array().expect("turns");
            assert_eq!(turns.len(), 2, "{place}");
            let median = turns.iter().map(|turn| turn.as_f64().expect("a rate")).sum::<f64>() / 2.0;
            assert!(median > 0.0 && (figure["median"].as_f64().expect("median") / median - 1.0).abs() < 1e-9);
            assert!(figure["ratio"].as_f64().expect("a ratio") > 0.0, "{place}");
        }
    }
    assert_eq!((&result["left_out"], &result["disk"]["turns"]), (&Value::Array(Vec::new()), &Value::from(2)));
    let said = result["summary"][0].as_str().expect("a sentence");
    assert!(said.starts_with("A directory volume gives "), "{said}");
    let drawn = std::fs::read_to_string(&svg).expect("the picture");
    assert!(drawn.starts_with("<svg ") && drawn.contains(">managed</text>"), "{drawn}");
    nothing_is_left(dir.path());
}

/// On a filesystem that can.
#[test]
fn bench_measures_a_directory_with_an_enforced_size() {
    let Some(disk) = with_simple_quotas() else { return };
    let work = place(&disk, "work");
    let few = ["--size", "64Mi", "--seconds", "1", "--turns", "1", "--json"];
    let only = ["--only", "directory", "--only", "directory-enforced"];
    let result = json(&bench(&[&["--dir", text(&work)], &few[..], &only[..]].concat()));
    let places = result["places"].as_array().expect("places");
    let names: Vec<&str> = places.iter().map(|place| place["name"].as_str().expect("a name")).collect();
    assert_eq!(names, ["plain directory", "directory-enforced", "directory"]);
    assert!(places[1]["figures"]["create_sync"]["median"].as_f64().expect("a rate") > 0.0, "{result}");
    let said = result["summary"][0].as_str().expect("a sentence");
    assert!(said.contains("With enforcement=required it is"), "{said}");
    nothing_is_left(&work);
}

#[test]
fn bench_without_enforced_sizes_says_so() {
    let disk = plain_disk("btrfs");
    let work = place(&disk, "work");
    let few = ["--dir", text(&work), "--size", "16Mi", "--seconds", "1", "--turns", "1", "--json"];
    let both = ["--only", "directory", "--only", "directory-enforced"];
    let result = json(&bench(&[&few[..], &both[..]].concat()));
    let left_out = &result["left_out"].as_array().expect("a list")[0];
    assert!(left_out.to_string().contains("directory-enforced"), "{result}");
    assert!(left_out.to_string().contains("simple"), "what to do: {result}");
    assert!(result["summary"][0].as_str().expect("a sentence").ends_with("cannot be on this filesystem."));
    let said = refused(&bench(&[&few[..], &both[2..]].concat()));
    assert!(said.contains("there is no volume to measure: directory-enforced: "), "{said}");
    nothing_is_left(&work);
}

#[test]
fn interrupted_while_it_measures_it_leaves_nothing() {
    let dir = directory();
    let only = ["--size", "64Mi", "--only", "ext4", "--only", "block", "--only", "directory"];
    let mut child = started(&[&["--dir", text(dir.path()), "--seconds", "14400"], &only[..]].concat());
    let mut said = BufReader::new(child.stderr.take().expect("stderr"));
    let mut line = String::new();
    while !line.starts_with("Warming up") {
        line.clear();
        assert_ne!(said.read_line(&mut line).expect("text"), 0, "it ended");
    }
    assert_eq!(kernel::mounts(&dir.path().canonicalize().expect("path")).len(), 5);
    kill(Pid::from_raw(i32::try_from(child.id()).expect("a pid")), Signal::SIGINT).expect("kill");
    let mut rest = String::new();
    said.read_to_string(&mut rest).expect("text");
    let done = child.wait_with_output().expect("wait");
    assert_eq!((done.status.code(), done.stdout.len()), (Some(1), 0), "{rest}");
    assert!(rest.ends_with("Cleaning up\nbench interrupted\n"), "{rest}");
    nothing_is_left(dir.path());
}

#[test]
fn bench_refused_says_why() {
    let dir = directory();
    let path = text(dir.path());
    let missing = dir.path().join("missing");
    let said = refused(&bench(&["--dir", text(&missing)]));
    assert!(said.contains("missing is not a directory; create it or correct --dir"), "{said}");
    let said = refused(&bench(&["--dir", "/proc/version"]));
    assert!(said.contains("/proc/version is not a directory"), "{said}");
    let said = refused(&bench(&["--dir", path, "--svg", text(&missing.join("x.svg"))]));
    assert!(said.contains("missing is not a directory; create it or correct --svg"), "{said}");
    let said = refused(&bench(&["--dir", path, "--size", "8000Pi"]));
    assert!(said.contains("are needed; lower --size, choose volumes with --only"), "{said}");
    let said = refused(&bench(&["--endpoint", text(&dir.path().join("csi.sock"))]));
    assert!(said.contains("csi.sock: nobody answers; start the driver or correct the flag"), "{said}");
    // Like a user who is not root: what counts is the capability.
    let mut without = command("setpriv");
    without.args([
        "--bounding-set",
        "-sys_admin",
        "--inh-caps",
        "-sys_admin",
        binary(),
        "bench",
        "--dir",
        path,
    ]);
    let said = refused(&without.output().expect("setpriv of util-linux"));
    assert!(said.contains("CAP_SYS_ADMIN is missing; run it as root"), "{said}");
    nothing_is_left(dir.path());
}

#[test]
fn bench_of_two_drivers_leaves_nothing() {
    let (world, beside) = (World::new(&["--attach"]), World::new(&[]));
    // Both allow only paths below a directory of their own: the one of the first has to do for both.
    let kubelet = text(&world.kubelet);
    let few =
        ["--dir", kubelet, "--size", "16Mi", "--seconds", "1", "--turns", "1", "--clients", "1,2", "--json"];
    let one = json(&bench(&[&["--endpoint", text(&world.socket), "--volumes", "3"], &few[..]].concat()));
    let rows = one["drivers"][0]["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 4, "1 and 2 clients, beside 0 and 3 volumes: {one}");
    for row in rows {
        assert_eq!(row["rpcs"].as_object().expect("calls").len(), 8, "{row}");
        assert!(row["rpcs"]["ControllerPublishVolume"]["p99_ms"].as_f64().expect("a time") > 0.0, "{row}");
    }
    let both = ["--endpoint", text(&world.socket), "--beside", text(&beside.socket)];
    let said = refused(&bench(&[&both[..], &few[..]].concat()));
    assert!(said.contains("NodeStageVolume answered InvalidArgument"), "the second one's directory: {said}");
    world.finish();
    beside.finish();
}
