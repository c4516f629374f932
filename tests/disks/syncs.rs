//! What promises to be durable is synced, and nothing else is: the system calls that the kernel sees, by strace(1).

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use hostloop::kernel::linux::{Tools, os};
use hostloop::kernel::{AttachOptions, MakeOptions, Os, write_whole};
use hostloop::model::{FsType, MountFlags};

use crate::harness::process::binary;
use crate::harness::{MIB, new_directory, require_machine, text};

/// Where the traced process works.
const DIRECTORY: &str = "HOSTLOOP_SYNCS_DIRECTORY";
/// A path that is not there: looking at it tells the trace which call comes next.
const MARK: &str = "/hostloop-syncs/";

/// The calls of `kernel`, and exactly the syncs that belong to each. A path is below the directory of the test; `DEVICE` is the
/// loop device.
const EXPECTED: [(&str, &[&str]); 16] = [
    ("create_directory", &[]),
    ("create_file", &[]),
    ("set_size", &[]),
    ("allocate", &[]),
    ("write_at", &[]),
    ("sync_file", &["fsync file"]),
    ("sync_directory", &["fsync tree"]),
    ("rename", &[]),
    ("log.append", &[]),
    ("log.sync", &["fdatasync log"]),
    ("write_whole", &["fdatasync small.new", "fsync "]),
    ("copy_tree", &["syncfs copy"]),
    ("write_tree", &["syncfs written"]),
    ("make", &["fsync DEVICE"]),
    ("freeze", &["syncfs mounted"]),
    ("flush", &["fsync DEVICE"]),
];

fn mark(name: &str) {
    assert!(std::fs::metadata(format!("{MARK}{name}")).is_err(), "{MARK} is only to be looked at");
}

/// Makes each call once, after its mark.
fn calls(os: &Os, dir: &Path) {
    let (file, tree, log) = (dir.join("file"), dir.join("tree"), dir.join("log"));
    mark("create_directory");
    os.files.create_directory(&tree, 0o755).unwrap();
    mark("create_file");
    os.files.create_file(&file).unwrap();
    mark("set_size");
    os.images.set_size(&file, MIB).unwrap();
    mark("allocate");
    os.images.allocate(&file, MIB).unwrap();
    mark("write_at");
    os.images.write_at(&file, 4096, &[1; 4096]).unwrap();
    mark("sync_file");
    os.files.sync_file(&file).unwrap();
    mark("sync_directory");
    os.files.sync_directory(&tree).unwrap();
    mark("rename");
    os.files.rename(&file, &tree.join("file")).unwrap();
    mark("log.append");
    let mut open = os.files.open_log(&log, 0).unwrap();
    open.append(b"a line").unwrap();
    mark("log.sync");
    open.sync().unwrap();
    mark("write_whole");
    write_whole(&*os.files, &dir.join("small"), b"all of it").unwrap();
    mark("copy_tree");
    os.trees.copy(&tree, &dir.join("copy"), false, &mut |_| Ok(())).unwrap();
    mark("write_tree");
    write_tree(os, &tree, &dir.join("written"));
    devices(os, dir);
}

/// A tree that is read and written as a pull does it.
fn write_tree(os: &Os, from: &Path, to: &Path) {
    use hostloop::model::tree::{Item, Position};
    let mut writer = os.trees.write(to, None).unwrap();
    let mut take = |item: Item| {
        match item {
            Item::Entry(entry) => writer.entry(entry).unwrap(),
            Item::Data(piece) => writer.data(piece.offset, &piece.data).unwrap(),
            Item::Zeros(_) | Item::Alive | Item::End { .. } => {}
        }
        true
    };
    os.trees.read(from, None, Position::default(), &mut take).unwrap();
    writer.finish().unwrap();
}

fn devices(os: &Os, dir: &Path) {
    let (image, place) = (dir.join("image"), dir.join("mounted"));
    os.files.create_file(&image).unwrap();
    os.images.set_size(&image, 64 * MIB).unwrap();
    os.files.create_directory(&place, 0o755).unwrap();
    let options =
        AttachOptions { read_only: false, autoclear: true, direct_io: false, block_size: 512, discard: true };
    let open = os.loops.attach(&image, options).unwrap();
    let device = open.device.path();
    println!("DEVICE={}", device.display());
    mark("make");
    os.filesystems.make(&device, FsType::Ext4, &MakeOptions { extra: Vec::new(), zeroed: true }).unwrap();
    mark("mount");
    let flags = MountFlags::parse(std::iter::empty::<&str>()).unwrap();
    os.mounts.mount(&device, &place, FsType::Ext4, &flags).unwrap();
    mark("freeze");
    os.mounts.freeze(&place, std::time::Duration::from_secs(10)).unwrap().thaw().unwrap();
    mark("unmount");
    os.mounts.unmount(&place).unwrap();
    mark("flush");
    os.loops.flush(&open.device).unwrap();
    mark("end");
}

/// The syncs after each mark, as `CALL PATH`, in a trace of strace.
fn syncs(trace: &str, dir: &Path, device: &str) -> Vec<(String, BTreeSet<String>)> {
    let mut found: Vec<(String, BTreeSet<String>)> = Vec::new();
    for line in trace.lines() {
        if let Some((_, name)) = line.split_once(MARK) {
            found.push((name.split('"').next().unwrap_or_default().to_owned(), BTreeSet::new()));
        }
        // "PID fsync(3</path>) = 0", also without its end where another thread came in between.
        let Some((call, rest)) = line.split_once(' ').and_then(|(_, call)| call.trim_start().split_once('('))
        else {
            continue;
        };
        if !["fsync", "fdatasync", "sync", "syncfs"].contains(&call) {
            continue;
        }
        let path =
            rest.split_once('<').and_then(|(_, path)| path.split_once('>')).map_or("", |(path, _)| path);
        let path = path.strip_prefix(text(dir)).map_or(path, |below| below.trim_start_matches('/'));
        let path = if path == device { "DEVICE" } else { path };
        if let Some((_, syncs)) = found.last_mut() {
            syncs.insert(format!("{call} {path}"));
        }
    }
    found
}

#[test]
fn promises_are_synced_if_they_are_durable() {
    require_machine();
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        return calls(&os(Tools::find().with_helper(binary())), &PathBuf::from(directory));
    }
    let (_temp, path) = new_directory("hostloop-syncs-");
    let (dir, trace) = (path.join("work"), path.join("trace"));
    std::fs::create_dir(&dir).expect("mkdir");
    let mut strace = Command::new("strace");
    strace.args([
        "-f",
        "-y",
        "-e",
        "trace=fsync,fdatasync,sync,syncfs,statx,stat,newfstatat",
        "-o",
        text(&trace),
    ]);
    strace.arg(std::env::current_exe().expect("a path"));
    strace.args(["--exact", "syncs::promises_are_synced_if_they_are_durable", "--nocapture"]);
    let done = strace.env(DIRECTORY, &dir).output().expect("strace (scripts/install-deps --test)");
    let out = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{out} {}", String::from_utf8_lossy(&done.stderr));
    let device = out.lines().find_map(|line| line.split_once("DEVICE=")).expect("a device").1;
    let trace = std::fs::read_to_string(&trace).expect("the trace");
    let found = syncs(&trace, &dir, device.trim());
    for (name, expected) in EXPECTED {
        let seen: Vec<_> = found.iter().filter(|(call, _)| call == name).collect();
        assert_eq!(seen.len(), 1, "{name} was called once");
        let expected = expected.iter().map(|sync| (*sync).to_owned()).collect();
        assert_eq!(seen[0].1, expected, "{name}: {trace}");
    }
}
