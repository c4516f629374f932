//! Mount namespaces of their own, as containers have them.

use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};

use super::process::command;
use super::text;

/// A new mount namespace begins with a copy of every mount, those of the tests beside it among them: their filesystems
/// would stay mounted in it when they unmount them, and their devices would be in use. The first argument is what stays;
/// the others are the program. Mounts of ours reach nobody: the namespace is private or a slave. mountinfo writes a space
/// as \040, which is \0040 for printf(1).
const FORGET_OTHERS: &str = r#"
own=$1
shift
grep ' /var/tmp/hostloop' /proc/self/mountinfo | sed -E 's/\\([0-7]{3})/\\0\1/g' | while read -r _ _ _ _ place _; do
    place=$(printf %b "$place")
    case $place in
        "$own"/*) ;;
        /var/tmp/hostloop*) umount --lazy "$place" 2>/dev/null ;;
    esac
done
exec "$@""#;

/// Runs what is added as arguments in a mount namespace of its own, with nothing of other tests in it.
///
/// `own` is the directory of the test. `options` are those of unshare(1): what else is unshared, and another propagation
/// than private, of which only slave is allowed.
pub fn in_own_namespace(own: &Path, options: &[&str]) -> Command {
    let mut start = command("unshare");
    start.arg("--mount").args(options).args(["sh", "-c", FORGET_OTHERS, "sh", text(own)]);
    start
}

/// A volume of another test is unstaged and its device is gone, while a driver in a namespace of its own runs.
#[test]
fn others_are_not_held() {
    use super::{Kind, Vol, World, kernel};
    let (other, world) = (World::new(&[]), World::empty(&[]));
    let vol = Vol::create(&other, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    vol.up();
    let mine = world.directory("mine");
    super::run("mount", &["-t", "tmpfs", "tmpfs", text(&mine)]);
    let mut start = in_own_namespace(&world.dir, &[]);
    let mut started = start
        .args(["sh", "-c", "echo started; exec cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let namespace = started.as_mut().expect("unshare");
    let mut said = [0; 8];
    namespace.stdout.take().expect("stdout").read_exact(&mut said).expect("it starts");
    let pid = namespace.id().to_string();
    assert_eq!(kernel::mounts_of(&pid, &world.dir).len(), 1, "its own are there");
    assert!(kernel::mounts_of(&pid, &other.dir).is_empty());
    vol.down();
    other
        .csi
        .snapshot("cut", vol.id(), &[])
        .and_then(|cut| other.csi.delete_snapshot(&cut.snapshot_id))
        .expect("nobody uses the volume");
    vol.delete().expect("DeleteVolume");
    // It ends with its standard input.
    drop(namespace.stdin.take());
    assert!(namespace.wait().expect("wait").success());
    super::run("umount", &[text(&mine)]);
    other.finish();
}
