//! Files that appear whole.
//!
//! An identity is three files that must belong together, and a process may read them at any moment. So they are written
//! as kubelet writes the mount of a Secret: into a directory of their own. One symbolic link points to it, and one
//! rename(2) switches that link.
//!
//! ```text
//! tls/ca.crt -> ..data/ca.crt     tls/..data -> ..2026_11_21_18_17_29.123456789/
//! ```
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "certificates are no volume's files: the fake kernel knows nothing of them"
)]

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use time::OffsetDateTime;

use super::CertsError;

/// The link to the files that count.
const DATA: &str = "..data";
/// Permissions of directories; private keys have their own.
const DIRECTORY: u32 = 0o755;
/// The files of a process that died before the switch are removed when they are older.
const ABANDONED: Duration = Duration::from_secs(60);

/// A file's name, contents and permissions.
pub type NewFile<'a> = (&'a str, &'a [u8], u32);

/// Puts files into `dir` in the place of those of the same names, all at once, and on the disk when this returns.
///
/// # Errors
/// [`CertsError::Io`]; what was there before is unchanged then.
pub fn switch(dir: &Path, files: &[NewFile<'_>]) -> Result<(), CertsError> {
    make_directory(dir)?;
    let version = version_name(OffsetDateTime::now_utc());
    let fresh = dir.join(&version);
    DirBuilder::new().mode(DIRECTORY).create(&fresh).map_err(failed("make", &fresh))?;
    let switched = fill(dir, &fresh, files).and_then(|()| point(dir, DATA, Path::new(&version)));
    if let Err(error) = switched {
        // It may have come so far or not: what nobody points to is of no use.
        let _ = fs::remove_dir_all(&fresh);
        return Err(error);
    }
    for (name, ..) in files {
        let target = Path::new(DATA).join(name);
        let path = dir.join(name);
        if fs::read_link(&path).ok().as_ref() != Some(&target) {
            point(dir, name, &target)?;
        }
    }
    sync(dir)?;
    sweep(dir, &version);
    Ok(())
}

/// Puts a new file into `dir`, whole and on the disk. `beside` must not be there either.
///
/// # Errors
/// [`CertsError::Exists`], [`CertsError::Io`]
pub fn create(dir: &Path, name: &str, bytes: &[u8], mode: u32, beside: &str) -> Result<(), CertsError> {
    make_directory(dir)?;
    for name in [beside, name] {
        let path = dir.join(name);
        if fs::symlink_metadata(&path).is_ok() {
            return Err(CertsError::Exists(path));
        }
    }
    let (path, part) = (dir.join(name), dir.join(format!(".{name}.{}", std::process::id())));
    let _ = fs::remove_file(&part);
    write(&part, bytes, mode)?;
    // Unlike a rename, a link replaces nothing.
    let linked = fs::hard_link(&part, &path);
    let _ = fs::remove_file(&part);
    linked.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => CertsError::Exists(path.clone()),
        _ => failed("make", &path)(error),
    })?;
    sync(dir)
}

fn make_directory(dir: &Path) -> Result<(), CertsError> {
    DirBuilder::new().recursive(true).mode(DIRECTORY).create(dir).map_err(failed("make the directory", dir))
}

fn fill(dir: &Path, fresh: &Path, files: &[NewFile<'_>]) -> Result<(), CertsError> {
    for (name, bytes, mode) in files {
        write(&fresh.join(name), bytes, *mode)?;
    }
    sync(fresh)?;
    sync(dir)
}

fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), CertsError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path);
    let written = file.and_then(|mut file| {
        file.write_all(bytes)?;
        file.sync_all()
    });
    written.map_err(failed("write", path))
}

/// Makes `dir/name` a link to `target`, in one step where there is one already.
fn point(dir: &Path, name: &str, target: &Path) -> Result<(), CertsError> {
    let (path, new) = (dir.join(name), dir.join(format!("..{name}.{}", std::process::id())));
    let _ = fs::remove_file(&new);
    symlink(target, &new).map_err(failed("make the link", &new))?;
    fs::rename(&new, &path).map_err(|error| {
        let _ = fs::remove_file(&new);
        failed("replace", &path)(error)
    })
}

fn sync(dir: &Path) -> Result<(), CertsError> {
    File::open(dir).and_then(|dir| dir.sync_all()).map_err(failed("sync", dir))
}

/// As kubelet names them, so that nobody takes them for their own.
fn version_name(now: OffsetDateTime) -> String {
    let ((year, month, day), (hour, minute, second)) = (now.to_calendar_date(), now.to_hms());
    let month = u8::from(month);
    format!("..{year:04}_{month:02}_{day:02}_{hour:02}_{minute:02}_{second:02}.{:09}", now.nanosecond())
}

fn is_version_name(name: &str) -> bool {
    let digits = |c: char| c.is_ascii_digit() || matches!(c, '_' | '.');
    name.len() == version_name(OffsetDateTime::UNIX_EPOCH).len()
        && name.strip_prefix("..").is_some_and(|rest| rest.chars().all(digits))
}

/// Removes the versions before this one. One that is younger may be that of another process at work. The keys in
/// there are of no use to anybody any more, so that what cannot be removed is left alone.
fn sweep(dir: &Path, version: &str) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let old = name.to_str().is_some_and(|name| is_version_name(name) && name < version);
        let age = entry.metadata().and_then(|found| found.modified()).ok();
        let age = age.and_then(|modified| SystemTime::now().duration_since(modified).ok());
        // A reader has opened all three files long before that.
        if old && age.is_some_and(|age| age > ABANDONED) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

fn failed(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> CertsError {
    let path: PathBuf = path.to_owned();
    move |source| CertsError::Io { doing, path, source }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn files_are_exchanged_together_and_old_ones_removed() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().join("new/tls");
        switch(&dir, &[("a", b"1", 0o644), ("b", b"1", 0o600)]).unwrap();
        assert_eq!((mode(&dir.join("b")), mode(&dir.join("a")) & 0o600), (0o600, 0o600));
        // The first version, and one of a process that died, become old.
        let first = fs::read_link(dir.join(DATA)).unwrap();
        let dead = dir.join("..2001_01_01_00_00_00.000000000");
        fs::create_dir(&dead).unwrap();
        fs::create_dir(dir.join("..mine")).unwrap();
        let past = SystemTime::now() - ABANDONED * 2;
        for path in [&dir.join(&first), &dead] {
            File::open(path).unwrap().set_modified(past).unwrap();
        }
        switch(&dir, &[("a", b"2", 0o644), ("b", b"2", 0o600)]).unwrap();
        assert_eq!(fs::read(dir.join("a")).unwrap(), b"2");
        assert_eq!(fs::read(dir.join("b")).unwrap(), b"2");
        let second = fs::read_link(dir.join(DATA)).unwrap().into_os_string().into_string().unwrap();
        assert_eq!(names(&dir), [second.as_str(), DATA, "..mine", "a", "b"]);
    }

    #[test]
    fn old_versions_alone_are_swept_away() {
        let dir = tempfile::tempdir().unwrap();
        let now = "..2030_01_01_00_00_00.000000000";
        let old = "..2029_01_01_00_00_00.000000000";
        let others = [
            now,
            "..2031_01_01_00_00_00.000000000",
            "..2029_01_01_00_00_00.00000000x",
            "..2029_01_01_00_00_00.00000000",
            "22029_01_01_00_00_00.0000000000",
            "..mine",
        ];
        let past = SystemTime::now() - ABANDONED * 2;
        for name in others.iter().chain([&old]) {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        sweep(dir.path(), now);
        assert!(dir.path().join(old).exists(), "somebody may be reading it");
        for name in others.iter().chain([&old]) {
            File::open(dir.path().join(name)).unwrap().set_modified(past).unwrap();
        }
        sweep(dir.path(), now);
        let mut left = others;
        left.sort_unstable();
        assert_eq!(names(dir.path()), left);
    }

    #[test]
    fn plain_files_are_replaced_unless_a_write_fails() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "plain").unwrap();
        switch(dir.path(), &[("a", b"1", 0o644)]).unwrap();
        assert_eq!(fs::read(dir.path().join("a")).unwrap(), b"1");
        let before = names(dir.path());
        // The same name twice: the second one cannot be made.
        switch(dir.path(), &[("a", b"2", 0o644), ("a", b"3", 0o644)]).unwrap_err();
        assert_eq!((fs::read(dir.path().join("a")).unwrap(), names(dir.path())), (b"1".to_vec(), before));
    }

    #[test]
    fn a_new_file_replaces_nothing() {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), "ca.key", b"1", 0o600, "ca.crt").unwrap();
        assert_eq!(mode(&dir.path().join("ca.key")), 0o600);
        let again = create(dir.path(), "ca.key", b"2", 0o600, "ca.crt").unwrap_err().to_string();
        assert!(again.contains("/ca.key already exists"), "{again}");
        let beside = create(dir.path(), "other", b"2", 0o600, "ca.key").unwrap_err().to_string();
        assert!(beside.contains("/ca.key already exists"), "{beside}");
        assert_eq!(names(dir.path()), ["ca.key"]);
        assert_eq!(fs::read(dir.path().join("ca.key")).unwrap(), b"1");
    }
}
