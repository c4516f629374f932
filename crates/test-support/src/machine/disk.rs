//! Directories, filesystems in files, and loop devices of a test's own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::{output, run, text};

/// Creates a directory on a disk. It is removed when the returned TempDir is dropped. The path contains no symbolic link.
pub fn new_directory(prefix: &str) -> (TempDir, PathBuf) {
    super::require_machine();
    let temp = tempfile::Builder::new().prefix(prefix).tempdir_in("/var/tmp").expect("tempdir");
    let path = temp.path().canonicalize().expect("path");
    (temp, path)
}

/// Returns the paths in a directory, in order.
pub fn entries(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).expect("list");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("entry").path()).collect();
    paths.sort();
    paths
}

/// Creates a file of `size` bytes with a filesystem in it; `options` are for its mkfs(8).
pub fn make_filesystem(image: &Path, fs_type: &str, size: u64, options: &[&str]) {
    File::create(image).and_then(|file| file.set_len(size)).expect("an image");
    run(&format!("mkfs.{fs_type}"), &[&["-q"], options, &[text(image)]].concat());
}

/// Creates a file with a filesystem in it and mounts it.
pub fn mount_image(image: &Path, mount_point: &Path, fs_type: &str, size: u64) {
    std::fs::create_dir(mount_point).expect("mkdir");
    make_filesystem(image, fs_type, size, &[]);
    mount_loop(image, mount_point);
}

/// Mounts an image through a loop device. Retries, because mount(8) fails if another process takes the device that it has
/// found, or opens it while it is being attached.
pub fn mount_loop(image: &Path, mount_point: &Path) {
    mount_loop_with(image, mount_point, "loop").unwrap_or_else(|told| panic!("{told}"));
}

/// Mounts an image with these mount options.
///
/// # Errors
/// The message of mount(8).
pub fn mount_loop_with(image: &Path, mount_point: &Path, options: &str) -> Result<(), String> {
    let mut told = String::new();
    for _ in 0..10 {
        let done = output("mount", &["-o", options, text(image), text(mount_point)]);
        if done.status.success() {
            return Ok(());
        }
        told = String::from_utf8_lossy(&done.stderr).into_owned();
        if !told.contains("failed to setup loop device") {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Err(told)
}

/// Attaches a file with losetup(8) and these options. Returns the path of the device.
pub fn attach(file: &Path, options: &[&str]) -> String {
    let done = output("losetup", &[&["--find", "--show"], options, &[text(file)]].concat());
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).expect("a path").trim().to_owned()
}
