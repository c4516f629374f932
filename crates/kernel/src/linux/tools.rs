//! The programs that make, grow and check filesystems, and the one that guards a freeze.

use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;

use super::super::errno_error;
use super::exec::run;
use super::watch::PATIENCE;
use hostloop_model::FsType;

/// The program of this process, also when its file was replaced or removed meanwhile (proc_pid_exe(5)).
const MYSELF: &str = "/proc/self/exe";

/// Where programs are looked for; never in a PATH that somebody set.
pub(super) const DIRECTORIES: [&str; 6] =
    ["/usr/sbin", "/usr/bin", "/sbin", "/bin", "/usr/local/sbin", "/usr/local/bin"];

/// A program that the driver may start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Program {
    MkfsExt4,
    Resize2fs,
    E2fsck,
    MkfsXfs,
    XfsGrowfs,
    XfsRepair,
    MkfsBtrfs,
    Btrfs,
    Btrfstune,
}

impl Program {
    const ALL: [Program; 9] = [
        Program::MkfsExt4,
        Program::Resize2fs,
        Program::E2fsck,
        Program::MkfsXfs,
        Program::XfsGrowfs,
        Program::XfsRepair,
        Program::MkfsBtrfs,
        Program::Btrfs,
        Program::Btrfstune,
    ];

    /// Every program for a filesystem, the one that makes it first.
    pub(super) const fn of(fs_type: FsType) -> &'static [Program] {
        match fs_type {
            FsType::Ext4 => &[Program::MkfsExt4, Program::Resize2fs, Program::E2fsck],
            FsType::Xfs => &[Program::MkfsXfs, Program::XfsGrowfs, Program::XfsRepair],
            FsType::Btrfs => &[Program::MkfsBtrfs, Program::Btrfs, Program::Btrfstune],
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Program::MkfsExt4 => "mkfs.ext4",
            Program::Resize2fs => "resize2fs",
            Program::E2fsck => "e2fsck",
            Program::MkfsXfs => "mkfs.xfs",
            Program::XfsGrowfs => "xfs_growfs",
            Program::XfsRepair => "xfs_repair",
            Program::MkfsBtrfs => "mkfs.btrfs",
            Program::Btrfs => "btrfs",
            Program::Btrfstune => "btrfstune",
        }
    }

    /// The package that has it, as Debian, Alpine and others call it.
    const fn package(self) -> &'static str {
        match self {
            Program::MkfsExt4 | Program::Resize2fs | Program::E2fsck => "e2fsprogs",
            Program::MkfsXfs | Program::XfsGrowfs | Program::XfsRepair => "xfsprogs",
            Program::MkfsBtrfs | Program::Btrfs | Program::Btrfstune => "btrfs-progs",
        }
    }
}

/// The programs with their absolute paths, looked up once.
#[derive(Debug, Clone)]
pub struct Tools {
    programs: Vec<(Program, Option<PathBuf>)>,
    helper: PathBuf,
}

impl Tools {
    /// Looks for every program in a fixed list of directories.
    pub fn find() -> Self {
        Self::find_in(&DIRECTORIES)
    }

    fn find_in(directories: &[&str]) -> Self {
        let path_of = |program: Program| {
            let candidates = directories.iter().map(|directory| Path::new(directory).join(program.name()));
            // mkfs.ext4 is a link to mke2fs, which looks at the name it was called by: links stay as they are.
            candidates.into_iter().find(|path| path.is_file())
        };
        let programs = Program::ALL.into_iter().map(|program| (program, path_of(program))).collect();
        Tools { programs, helper: MYSELF.into() }
    }

    /// The same with another hostloop as the helper that guards a freeze (`hostloop freeze-guard`): for a process
    /// that is not hostloop itself, such as a test. The path is absolute.
    #[must_use]
    pub fn with_helper(self, helper: impl Into<PathBuf>) -> Self {
        Tools { helper: helper.into(), ..self }
    }

    pub(super) fn helper(&self) -> &Path {
        &self.helper
    }

    /// Each program that was found, with its path; for logs.
    pub fn found(&self) -> impl Iterator<Item = (&'static str, &Path)> {
        self.programs.iter().filter_map(|(program, path)| Some((program.name(), path.as_deref()?)))
    }

    /// Each program that was not found, with its package; for logs.
    pub fn missing(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        let missing = self.programs.iter().filter(|(_, path)| path.is_none());
        missing.map(|(program, _)| (program.name(), program.package()))
    }

    /// Each program for a filesystem, with its path if it was found.
    pub fn of(&self, fs_type: FsType) -> Vec<(&'static str, Option<&Path>)> {
        Program::of(fs_type).iter().map(|program| (program.name(), self.path(*program).ok())).collect()
    }

    /// The package that has the programs for a filesystem.
    pub fn package(fs_type: FsType) -> &'static str {
        Program::of(fs_type).first().map_or("", |program| program.package())
    }

    /// The version of that package, as the program that makes the filesystem tells it; `None` if it does not.
    pub fn version(&self, fs_type: FsType) -> Option<String> {
        let path = self.path(*Program::of(fs_type).first()?).ok()?;
        version_in(&run(path, &["-V"], None, PATIENCE, &mut drop).ok()?.output)
    }

    /// Where a program is.
    ///
    /// # Errors
    /// ENOENT naming it and its package.
    pub(super) fn path(&self, wanted: Program) -> io::Result<&Path> {
        let path =
            self.programs.iter().find(|(program, _)| *program == wanted).and_then(|(_, p)| p.as_deref());
        path.ok_or_else(|| {
            let context = format!("{} is missing, install {}", wanted.name(), wanted.package());
            errno_error(Errno::ENOENT, context)
        })
    }
}

/// The version in `mke2fs 1.47.0 (5-Feb-2023)`, `mkfs.xfs version 6.1.0` or `mkfs.btrfs, part of btrfs-progs v6.2`.
fn version_in(output: &str) -> Option<String> {
    let words = output.split_whitespace().map(|word| word.trim_start_matches('v'));
    let mut versions =
        words.filter(|word| word.starts_with(|c: char| c.is_ascii_digit()) && word.contains('.'));
    versions.next().map(str::to_owned)
}

#[cfg(test)]
#[allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "files of the test")]
mod tests {
    use super::*;
    use crate::is_errno;

    #[test]
    fn versions_of_all_packages_are_known() {
        let of = |text: &str| version_in(text).unwrap_or_default();
        assert_eq!(of("mke2fs 1.47.0 (5-Feb-2023)\n\tUsing EXT2FS Library version 1.47.0"), "1.47.0");
        assert_eq!(of("mkfs.xfs version 6.1.0"), "6.1.0");
        assert_eq!(of("mkfs.btrfs, part of btrfs-progs v6.2\n"), "6.2");
        assert_eq!(of("unknown option"), "");
    }

    #[test]
    fn a_missing_tool_is_named_with_its_package() {
        let tools = Tools::find_in(&["/nonexistent"]);
        assert_eq!((tools.found().count(), tools.missing().count()), (0, Program::ALL.len()));
        let error = tools.path(Program::XfsGrowfs).expect_err("missing");
        assert!(is_errno(&error, Errno::ENOENT));
        assert!(error.to_string().contains("xfs_growfs is missing, install xfsprogs"), "{error}");
    }

    #[test]
    fn each_filesystem_has_its_programs_and_a_version() {
        let temp = tempfile::tempdir().expect("tempdir");
        let link = |name: &str, program: &str| {
            std::os::unix::fs::symlink(program, temp.path().join(name)).expect("link");
        };
        // One that says nothing like a version to -V, and one that does.
        ["xfs_growfs", "mkfs.btrfs", "btrfs"].iter().for_each(|name| link(name, "/bin/echo"));
        link("mkfs.xfs", "/bin/mount");
        let tools = Tools::find_in(&[temp.path().to_str().expect("a path")]);
        let xfs = [("mkfs.xfs", true), ("xfs_growfs", true), ("xfs_repair", false)];
        let paths = xfs.map(|(name, there)| (name, there.then(|| temp.path().join(name))));
        let found: Vec<_> =
            tools.of(FsType::Xfs).into_iter().map(|(name, path)| (name, path.map(Path::to_owned))).collect();
        assert_eq!(found, paths);
        assert_eq!(tools.of(FsType::Ext4), [("mkfs.ext4", None), ("resize2fs", None), ("e2fsck", None)]);
        let said = tools.version(FsType::Xfs).expect("mount(8) has a version");
        assert!(said.starts_with('2') && said.contains('.'), "{said}");
        assert_eq!((tools.version(FsType::Btrfs), tools.version(FsType::Ext4)), (None, None));
    }
}
