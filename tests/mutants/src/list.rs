//! The mutants: cargo-mutants finds them, and leaves out what `.cargo/mutants.toml` lists.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use crate::Result;
use crate::tree::PACKAGES;

/// A place in a file; both numbers count from 1, and a column is a character.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
pub struct Place {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

/// From a place to the one behind its end.
#[derive(Debug, Clone, Copy, Deserialize)]
pub struct Span {
    /// The first character.
    pub start: Place,
    /// Behind the last.
    pub end: Place,
}

/// The function around a mutant.
#[derive(Debug, Clone, Deserialize)]
pub struct Function {
    /// With its arrow, or empty.
    pub return_type: String,
}

/// One change of the source, as `cargo mutants --list --json` has it.
#[derive(Debug, Clone, Deserialize)]
pub struct Mutant {
    /// Below the root of the repository.
    pub file: String,
    /// What kind of change.
    pub genre: String,
    /// For people; unique.
    pub name: String,
    /// What comes in the place of `span`.
    pub replacement: String,
    /// What is changed.
    pub span: Span,
    /// None outside of functions.
    pub function: Option<Function>,
}

/// The modules with a score of their own, longest path first where one lies in another.
pub const MODULES: [(&str, &str, f64); 6] = [
    ("driver", "src/driver/", 95.0),
    ("store", "src/store/", 95.0),
    ("backend", "src/backend/", 95.0),
    ("wire", "src/wire/", 95.0),
    ("cluster", "src/cluster/", 85.0),
    ("kernel/linux", "crates/kernel/src/linux/", 85.0),
];

impl Mutant {
    /// Its module of [`MODULES`], "" for another.
    pub fn module(&self) -> &'static str {
        MODULES.iter().find(|(_, path, _)| self.file.starts_with(path)).map_or("", |(name, ..)| name)
    }
}

/// All mutants of `files` (globs below `root`), those of the lines that `diff` changes where there is one.
///
/// # Errors
/// Where cargo-mutants is not on the PATH, or fails.
pub fn list(root: &Path, files: &[String], diff: Option<&Path>) -> Result<Vec<Mutant>> {
    let mut command = Command::new("cargo-mutants");
    command.current_dir(root).args(["mutants", "--list", "--json"]);
    for (package, _) in PACKAGES {
        command.args(["--package", package]);
    }
    for file in files {
        command.args(["--file", file]);
    }
    if let Some(diff) = diff {
        command.arg("--in-diff").arg(diff);
    }
    let output = command.output().map_err(|error| format!("cargo-mutants: {error}"))?;
    if !output.status.success() {
        return Err(format!("cargo-mutants: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    // Without anything to mutate in a diff there is no list.
    if output.stdout.iter().all(u8::is_ascii_whitespace) {
        return Ok(Vec::new());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// The indices of `mutants` in the order that `seed` decides: the same for a mutant whatever others there are.
pub fn sample<'a>(mutants: impl Iterator<Item = (usize, &'a Mutant)>, seed: u64) -> Vec<usize> {
    let mut keyed: Vec<(u64, &str, usize)> =
        mutants.map(|(index, mutant)| (hash(seed, &mutant.name), mutant.name.as_str(), index)).collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(.., index)| index).collect()
}

/// The hash FNV-1a, with an end that spreads: the same everywhere and in each release of Rust.
fn hash(seed: u64, name: &str) -> u64 {
    let start = 0xcbf2_9ce4_8422_2325 ^ seed;
    let hash = name.bytes().fold(start, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    (hash ^ (hash >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}
