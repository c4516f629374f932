//! Mount options of a filesystem, as the kernel reads them before it has a device (fsopen(2), fsconfig(2)).

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};

use super::super::is_errno;
use super::errno;
use hostloop_model::{FsType, OptionName};

/// A word that no filesystem has. A kernel that takes it only collects the words: ext4 before Linux 5.17, btrfs before 6.8.
const UNKNOWN: &str = "hostloop-asks";

/// The words for SELinux, which mount(8) leaves out on a kernel without it.
const LABELS: [&str; 5] = ["context", "fscontext", "defcontext", "rootcontext", "seclabel"];

/// Returns the first of the words that the kernel refuses; `None` if it refuses none, or does not tell.
pub(super) fn refused(fs_type: FsType, words: &[String]) -> Option<OptionName> {
    let words = without_idle_labels(words);
    if words.is_empty() || !is_refusal(&set(&open(fs_type)?, UNKNOWN)) {
        return None;
    }
    // Never created, so that no device is looked for.
    let context = open(fs_type)?;
    words.into_iter().find(|word| is_refusal(&set(&context, word))).map(OptionName::of)
}

/// Returns the words without those for SELinux, if the kernel has none: it would refuse the whole mount for them.
pub(super) fn without_idle_labels(words: &[String]) -> Vec<&str> {
    let is_label = |word: &&str| LABELS.contains(&word.split('=').next().unwrap_or(word));
    let words = words.iter().map(String::as_str);
    if words.clone().any(|word| is_label(&word)) && !has_selinux() {
        words.filter(|word| !is_label(word)).collect()
    } else {
        words.collect()
    }
}

/// Returns whether SELinux is on. Its filesystem may be mounted nowhere that a container sees.
#[allow(clippy::disallowed_methods, reason = "the kernel's own table, for Mounts")]
fn has_selinux() -> bool {
    // If the table cannot be read, the kernel gets the label and decides.
    std::fs::read_to_string("/proc/filesystems")
        .map_or(true, |all| all.lines().any(|line| line.split_whitespace().last() == Some("selinuxfs")))
}

/// Mounts a filesystem where only the holder of the descriptor gets to.
///
/// # Errors
/// Those of fsopen(2), fsconfig(2) and fsmount(2).
pub(super) fn mount_apart(device: &Path, fs_type: FsType, read_only: bool) -> nix::Result<OwnedFd> {
    let context = fsopen(fs_type.as_str(), FsOpenFlags::FSOPEN_CLOEXEC).map_err(errno)?;
    fsconfig_set_string(context.as_fd(), "source", device).map_err(errno)?;
    if read_only {
        fsconfig_set_flag(context.as_fd(), "ro").map_err(errno)?;
    }
    if fs_type == FsType::Xfs {
        // A copy has the UUID of its source, which may be mounted.
        fsconfig_set_flag(context.as_fd(), "nouuid").map_err(errno)?;
    }
    fsconfig_create(context.as_fd()).map_err(errno)?;
    let attributes = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes).map_err(errno)
}

fn open(fs_type: FsType) -> Option<OwnedFd> {
    fsopen(fs_type.as_str(), FsOpenFlags::FSOPEN_CLOEXEC).ok()
}

/// Hands a word to the kernel as mount(2) does with each word of its data.
fn set(context: &OwnedFd, word: &str) -> io::Result<()> {
    match word.split_once('=') {
        // Of quotes only SELinux knows, in the data of mount(2).
        Some((name, value)) if LABELS.contains(&name) => {
            fsconfig_set_string(context.as_fd(), name, value.trim_matches('"'))?;
        }
        Some((name, value)) => fsconfig_set_string(context.as_fd(), name, value)?,
        None => fsconfig_set_flag(context.as_fd(), word)?,
    }
    Ok(())
}

/// Returns whether the kernel says that the word itself is wrong. Another error, such as ENOMEM, says nothing of it.
fn is_refusal(done: &io::Result<()>) -> bool {
    let refusals = [Errno::EINVAL, Errno::EOPNOTSUPP, Errno::ERANGE];
    done.as_ref().is_err_and(|error| refusals.iter().any(|errno| is_errno(error, *errno)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_dropped_without_selinux() {
        let words = ["context=\"a:b\"", "commit=5", "seclabel"].map(str::to_owned);
        let kept =
            if has_selinux() { vec![words[0].as_str(), "commit=5", "seclabel"] } else { vec!["commit=5"] };
        assert_eq!(without_idle_labels(&words), kept);
    }

    #[test]
    fn some_errors_of_mount_are_refusals() {
        for (errno, refuses) in [(Errno::EINVAL, true), (Errno::EOPNOTSUPP, true), (Errno::ENOMEM, false)] {
            assert_eq!(is_refusal(&Err(io::Error::from(errno))), refuses, "{errno}");
        }
        assert!(!is_refusal(&Ok(())));
    }
}
