//! What a checker's exit code means.

use std::io;
use std::path::Path;

use nix::errno::Errno;

use super::super::errno_error;
use super::exec::{Finished, last_lines};
use super::tools::Program;
use hostloop_model::FsType;

/// The checker of a filesystem, and its arguments before the device: everything is looked at, nothing changed.
pub(super) const fn checker(fs_type: FsType) -> (Program, &'static [&'static str]) {
    match fs_type {
        FsType::Ext4 => (Program::E2fsck, &["-f", "-n"]),
        FsType::Xfs => (Program::XfsRepair, &["-n"]),
        // By itself it would ask what else is mounted, and end as on damage where a loop device of others goes meanwhile
        // (btrfs-progs, check_mounted_where). That the device itself is not mounted is seen before.
        FsType::Btrfs => (Program::Btrfs, &["check", "--readonly", "--force"]),
    }
}

/// Judges how a checker ended. Its exit code says whether it has found damage: e2fsck adds 4 for it (e2fsck(8), EXIT
/// CODE), the others end with 1 (xfs_repair(8), btrfs-check(8)).
///
/// # Errors
/// EUCLEAN with what it found; without errno where it ended in another way.
pub(super) fn judge(fs_type: FsType, program: &Path, finished: &Finished) -> io::Result<()> {
    let damaged = match (fs_type, finished.status.code()) {
        (_, Some(0)) => return Ok(()),
        (FsType::Ext4, Some(code)) => code & 4 != 0,
        (FsType::Xfs | FsType::Btrfs, Some(code)) => code == 1,
        (_, None) => false, // by a signal
    };
    let said = last_lines(&findings(&finished.output));
    let context = format!("{}: {}: {said}", program.display(), finished.status);
    Err(if damaged { errno_error(Errno::EUCLEAN, context) } else { io::Error::other(context) })
}

/// The output without the lines that only say how far the checker is, which come last in every run.
fn findings(output: &str) -> String {
    const PROGRESS: [&str; 11] = [
        "Phase ",
        "- ",
        "No modify flag set",
        "Pass ",
        "[",
        "found ",
        "total ",
        "btree space waste",
        "file data blocks allocated",
        "referenced ",
        "e2fsck ",
    ];
    let is_finding = |line: &&str| !PROGRESS.iter().any(|word| line.trim_start().starts_with(word));
    output.lines().filter(is_finding).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;
    use crate::errno_of;

    fn ended(fs_type: FsType, wait_status: i32) -> Option<io::Error> {
        let status = std::process::ExitStatus::from_raw(wait_status);
        let output = "Phase 1\nagf_freeblks 7, counted 9 in ag 0\n        - agno = 0\nPhase 7".to_owned();
        judge(fs_type, Path::new("/sbin/checker"), &Finished { status, output }).err()
    }

    #[test]
    fn damage_is_told_from_other_failures() {
        for fs_type in FsType::ALL {
            assert!(ended(fs_type, 0).is_none());
            let killed = ended(fs_type, 9).expect("killed");
            assert_eq!(errno_of(&killed), None, "{killed}");
        }
        let damage =
            |fs_type, code| errno_of(&ended(fs_type, code << 8).expect("failed")) == Some(Errno::EUCLEAN);
        assert!(damage(FsType::Ext4, 4) && damage(FsType::Ext4, 12) && !damage(FsType::Ext4, 8));
        assert!(damage(FsType::Xfs, 1) && !damage(FsType::Xfs, 2));
        assert!(damage(FsType::Btrfs, 1) && !damage(FsType::Btrfs, 127));
    }

    #[test]
    fn the_message_has_what_was_found() {
        let error = ended(FsType::Xfs, 1 << 8).expect("damage");
        let told = "/sbin/checker: exit status: 1: agf_freeblks 7, counted 9 in ag 0: EUCLEAN";
        assert!(error.to_string().starts_with(told), "{error}");
    }
}
