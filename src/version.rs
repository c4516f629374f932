//! Which build this is: the version, the commit, and whether the tree was clean.
//!
//! `main.rs` reads the commit, because the compiler then builds only that file again when the commit changes.

use std::sync::{LazyLock, OnceLock};

/// The version of this crate. A build of main has the next version with `-dev`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// What follows the commit if the tree had changes that were not committed.
pub const MODIFIED: &str = "-modified";

static DESCRIBED: OnceLock<&'static str> = OnceLock::new();

/// Where a build comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The commit; `unknown` if the build had no repository.
    pub commit: &'static str,
    /// Whether all of the tree was committed: `clean`, `modified` or `unknown`.
    pub tree: &'static str,
}

/// Records the commit of this build, with [`MODIFIED`] behind it if the tree was not clean. A second call changes
/// nothing.
pub fn set_commit(described: &'static str) {
    let _ = DESCRIBED.set(described);
}

/// Returns where this build comes from.
pub fn origin() -> Origin {
    read(DESCRIBED.get().copied().unwrap_or_default())
}

/// Returns the version with the commit, for people: `0.3.0-dev (1a2b3c4d5e6f, clean)`.
pub fn long() -> &'static str {
    static LONG: LazyLock<String> = LazyLock::new(|| {
        let Origin { commit, tree } = origin();
        match tree {
            "unknown" => format!("{VERSION} (commit {commit})"),
            tree => format!("{VERSION} ({commit}, {tree})"),
        }
    });
    &LONG
}

fn read(described: &'static str) -> Origin {
    let (commit, tree) = match described.strip_suffix(MODIFIED) {
        Some(commit) => (commit, "modified"),
        None => (described, "clean"),
    };
    let is_commit = commit.len() >= 7 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_commit { Origin { commit, tree } } else { Origin { commit: "unknown", tree: "unknown" } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_without_a_repository_is_unknown() {
        let unknown = Origin { commit: "unknown", tree: "unknown" };
        for text in ["", "unknown", "unknown-modified", "v1.2.3", "12345"] {
            assert_eq!(read(text), unknown, "{text}");
        }
        assert_eq!(read("1a2b3c4d5e6f"), Origin { commit: "1a2b3c4d5e6f", tree: "clean" });
        assert_eq!(read("1a2b3c4d5e6f-modified"), Origin { commit: "1a2b3c4d5e6f", tree: "modified" });
    }
}
