//! The image is built from what `.dockerignore` admits.

use std::fs;
use std::path::Path;

use crate::collect;

/// What `cargo build --package hostloop` reads beside Cargo.toml and Cargo.lock.
const SOURCES: [&str; 3] = ["src", "crates", "proto"];

#[test]
fn image_context_has_the_sources_of_every_crate() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let ignored = fs::read_to_string(root.join(".dockerignore")).expect("a file");
    let admitted: Vec<&str> = ignored.lines().filter_map(|line| line.strip_prefix('!')).collect();
    let mut files = vec![root.join("Cargo.toml"), root.join("Cargo.lock")];
    for directory in SOURCES {
        collect(&root.join(directory), &["rs", "proto", "toml"], &mut files);
    }
    assert!(files.len() > 400, "only {} files", files.len());
    let missing: Vec<&Path> = files
        .iter()
        .map(|file| file.strip_prefix(root).expect("a file of it"))
        .filter(|file| !admitted.iter().any(|path| file.starts_with(path)))
        .collect();
    assert!(missing.is_empty(), ".dockerignore leaves out what the Dockerfile compiles: {missing:?}");
}
