//! Directories, filesystems in files, and loop devices of a test's own.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use super::{output, run, text};

/// Makes a directory on a disk, which goes when the first of the answer is dropped. The path has no link in it.
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

/// Makes a filesystem in a new file, with these options of its mkfs(8).
pub fn make_filesystem(image: &Path, fs_type: &str, size: u64, options: &[&str]) {
    File::create(image).and_then(|file| file.set_len(size)).expect("an image");
    run(&format!("mkfs.{fs_type}"), &[&["-q"], options, &[text(image)]].concat());
}

/// Makes a filesystem in a file and mounts it.
pub fn mount_image(image: &Path, mount_point: &Path, fs_type: &str, size: u64) {
    std::fs::create_dir(mount_point).expect("mkdir");
    make_filesystem(image, fs_type, size, &[]);
    mount_loop(image, mount_point);
}

/// Mounts an image through a loop device. mount(8) gives up where another takes the device that it has found, and where it is
/// looked at in the moment in which it is attached.
pub fn mount_loop(image: &Path, mount_point: &Path) {
    mount_loop_with(image, mount_point, "loop").unwrap_or_else(|told| panic!("{told}"));
}

/// The same with these options; what mount(8) says where they cannot be.
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

/// Attaches a file with these options of losetup(8). Returns the path of the device.
pub fn attach(file: &Path, options: &[&str]) -> String {
    let done = output("losetup", &[&["--find", "--show"], options, &[text(file)]].concat());
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).expect("a path").trim().to_owned()
}
