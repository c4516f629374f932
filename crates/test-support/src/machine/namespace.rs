//! Mount namespaces of their own, as containers have them.

use std::path::Path;
use std::process::Command;

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
