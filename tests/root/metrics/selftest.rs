//! `hostloop selftest` as people run it: what it prints, and that it leaves nothing, however it ends.

use std::io::{BufReader, Read};
use std::path::Path;
use std::process::{Child, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::directories::quotas::{place, plain_disk, with_simple_quotas};
use crate::harness::namespace::in_own_namespace;
use crate::harness::process::{binary, command};
use crate::harness::{eventually, kernel, new_directory, text};

fn selftest(dir: &Path, only: &[&str]) -> Child {
    let mut command = command(binary());
    command.args(["selftest", "--size", "64Mi", "--dir", text(dir)]);
    only.iter().for_each(|kind| {
        command.args(["--only", kind]);
    });
    command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().expect("it starts")
}

/// A directory on a disk, for what makes one of its own in it.
pub fn directory() -> tempfile::TempDir {
    new_directory("hostloop-root-").0
}

/// Asserts that it has removed all.
pub fn nothing_is_left(dir: &Path) {
    let dir = dir.canonicalize().expect("path");
    assert_eq!(std::fs::read_dir(&dir).expect("list").count(), 0, "files are left");
    assert!(kernel::mounts(&dir).is_empty(), "mounts are left");
    eventually("no loop device is left", || kernel::loops(&dir).is_empty());
}

#[test]
fn selftest_reads_copies_back_and_leaves_nothing() {
    let dir = directory();
    let done = selftest(dir.path(), &["ext4", "block", "directory"]).wait_with_output().expect("wait");
    let said = String::from_utf8(done.stdout).expect("text");
    assert!(done.status.success() && said.ends_with("selftest passed\n"), "{said}");
    let row = |name: &str| {
        let of = |line: &&str| line.strip_prefix(' ').is_some_and(|line| line.starts_with(name));
        said.lines().find(of).unwrap_or_else(|| panic!("no row {name}: {said}"))
    };
    for step in ["snapshot", "restore", "clone", "read copies"] {
        let times = row(step)[step.len() + 1..].split_whitespace();
        let all: Vec<f64> = times.map(|ms| ms.parse().expect("milliseconds")).collect();
        assert!(all.len() == 3 && all.iter().all(|ms| *ms > 0.0), "{said}");
    }
    assert!(said.contains("- a snapshot of the volume in use, restored, holds what was written"), "{said}");
    nothing_is_left(dir.path());
}

/// Hides programs from the command that follows, in a mount namespace of its own: the driver looks for its tools in
/// fixed directories, and takes only regular files.
const WITHOUT_TOOLS: &str = "for tool in mkfs.xfs xfs_growfs xfs_repair mkfs.btrfs btrfs btrfstune; do
  for file in /usr/sbin/$tool /usr/bin/$tool; do [ ! -f $file ] || mount --bind /dev/null $file || exit 99; done
done
exec \"$@\"";

#[test]
fn a_filesystem_without_tools_is_left_out() {
    let dir = directory();
    let said_by = |only: &[&str]| {
        let mut command = in_own_namespace(dir.path(), &[]);
        command.args(["sh", "-c", WITHOUT_TOOLS, "sh", binary(), "selftest", "--size", "64Mi"]);
        command.args(["--dir", text(dir.path())]).args(only);
        let done = command.stdin(Stdio::null()).output().expect("it starts");
        (done.status.code(), String::from_utf8(done.stdout).expect("text"))
    };
    let (code, said) = said_by(&[]);
    assert_eq!(code, Some(0), "{said}");
    for (kind, package) in [("xfs", "xfsprogs"), ("btrfs", "btrfs-progs")] {
        let line = said.lines().find(|line| line.starts_with(&format!("  {kind:<20}left out: ")));
        assert!(line.is_some_and(|line| line.contains(package)), "{kind}: {said}");
    }
    assert!(said.contains("Verified on ext4, block and directory"), "{said}");
    assert!(said.ends_with("not checked: xfs and btrfs\nselftest passed\n"), "{said}");
    nothing_is_left(dir.path());
    let (code, said) = said_by(&["--only", "xfs"]);
    assert!(code == Some(1) && said.contains("xfs is not possible: "), "{said}");
    nothing_is_left(dir.path());
}

/// Standard output of a selftest with these variables, on a terminal or not.
fn output_with(dir: &Path, on_terminal: bool, variables: &[(&str, &str)]) -> String {
    let mut command = command(binary());
    command.args(["selftest", "--size", "64Mi", "--only", "block", "--dir", text(dir)]).stdin(Stdio::null());
    for name in ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"] {
        command.env_remove(name);
    }
    command.env("TERM", "xterm").envs(variables.iter().copied());
    if !on_terminal {
        return String::from_utf8(command.output().expect("it starts").stdout).expect("text");
    }
    let pty = nix::pty::openpty(None, None).expect("a terminal");
    let mut child = command.stdout(pty.slave).spawn().expect("it starts");
    // The last end of the terminal that this process has.
    drop(command);
    let mut read = Vec::new();
    // EIO is the end: the other side is closed.
    let _ = std::fs::File::from(pty.master).read_to_end(&mut read);
    assert!(child.wait().expect("wait").success());
    String::from_utf8(read).expect("text")
}

#[test]
fn colours_follow_the_terminal_and_its_variables() {
    let dir = directory();
    for (on_terminal, variables, coloured) in [
        (true, &[][..], true),
        (true, &[("NO_COLOR", "1")], false),
        (true, &[("CLICOLOR", "0")], false),
        (true, &[("TERM", "dumb")], false),
        (false, &[], false),
        (false, &[("CLICOLOR_FORCE", "1")], true),
    ] {
        let said = output_with(dir.path(), on_terminal, variables);
        assert!(said.contains("selftest passed"), "{said}");
        assert_eq!(said.contains("\x1b["), coloured, "on a terminal: {on_terminal}, {variables:?}: {said}");
    }
    nothing_is_left(dir.path());
}

/// What the disk can limit is said, and where it can, a directory with an enforced size goes through its life.
#[test]
fn selftest_covers_directories_with_an_enforced_size() {
    let Some(disk) = with_simple_quotas() else { return };
    let work = place(&disk, "work");
    let done = selftest(&work, &["directory-enforced"]).wait_with_output().expect("wait");
    let said = String::from_utf8(done.stdout).expect("text");
    assert!(done.status.success() && said.ends_with("selftest passed\n"), "{said}");
    assert!(said.contains("limits       bytes: a directory can have an enforced size"), "{said}");
    assert!(said.contains("Verified on directory-enforced, each of 64 MiB"), "{said}");
    nothing_is_left(&work);
}

/// A disk without quotas says so with what to do. It is a fault only for who asks for such a volume.
#[test]
fn a_disk_that_enforces_no_size_says_what_to_do() {
    let disk = plain_disk("btrfs");
    let work = place(&disk, "work");
    let said_by = |only: &[&str]| {
        let done = selftest(&work, only).wait_with_output().expect("wait");
        (done.status.success(), String::from_utf8(done.stdout).expect("text"))
    };
    let (passed, said) = said_by(&["directory-enforced"]);
    assert!(!passed && said.contains("directory-enforced  not possible here: "), "{said}");
    assert!(said.contains("limits       nothing, so a directory has no enforced size here: "), "{said}");
    assert!(said.contains("selftest failed: directory-enforced is not possible: "), "{said}");
    nothing_is_left(&work);
}

/// The volume and its two copies are there when it is interrupted, one of them half made.
#[test]
fn interrupted_among_its_copies_it_leaves_nothing() {
    let dir = directory();
    let mut child = selftest(dir.path(), &["ext4"]);
    let (mut said, mut out) = (String::new(), BufReader::new(child.stdout.take().expect("stdout")));
    while !said.ends_with("clone · ") {
        let mut byte = [0];
        // Byte by byte and lossy: only the ASCII in front of the dot matters.
        assert_eq!(out.read(&mut byte).expect("read"), 1, "it ended before its copies: {said}");
        match byte[0] {
            0xc2 => {}
            0xb7 => said.push('·'),
            other => said.push(char::from(other)),
        }
    }
    kill(Pid::from_raw(i32::try_from(child.id()).expect("a pid")), Signal::SIGINT).expect("kill");
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).expect("read");
    let rest = String::from_utf8_lossy(&rest);
    assert_eq!(child.wait().expect("wait").code(), Some(1), "{said}{rest}");
    assert!(rest.ends_with("selftest interrupted\n") && !rest.contains("left behind:"), "{said}{rest}");
    nothing_is_left(dir.path());
}
