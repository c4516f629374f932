//! Why the state file could not be read or written.

use std::io;
use std::path::PathBuf;

/// What to do about a damaged state file that no start can read.
pub(super) const ADVICE: &str = "\"hostloop state rebuild\" with the --node-id, --data-dir and --pool of this driver makes it anew from \
    the records beside the data; or restore it from a backup";

/// Why the state file could not be opened or changed. Everything but [`StoreError::Io`] can only come from
/// [`Store::open`](super::Store::open): it stops the start, and the file is left as it is.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The kernel refused to read or write the file. A change that meets it has not been made.
    #[error("state file: {0}")]
    Io(#[from] io::Error),
    /// The file does not hold what was once written to it, and no crash explains that.
    #[error("{} is damaged at line {line}: {reason}; {advice}", file.display())]
    Damaged {
        /// The state file.
        file: PathBuf,
        /// The first line that is not as it was written, counted from 1.
        line: u64,
        /// What is wrong with it.
        reason: String,
        /// What to do.
        advice: &'static str,
    },
    /// The file is another driver's or another node's.
    #[error(
        "{} belongs to {what} {found:?}, but this is {what} {expected:?}: start with {flag} {found}, or with \
         a --data-dir of its own{}", file.display(), advice(what, found, expected)
    )]
    Foreign {
        /// The state file.
        file: PathBuf,
        /// `driver` or `node`.
        what: &'static str,
        /// The name in the file.
        found: String,
        /// Our name.
        expected: String,
        /// The flag that sets the name.
        flag: &'static str,
    },
    /// The file was written by a later hostloop in a format that this one cannot read.
    #[error(
        "{} has format {found}, this version of hostloop reads up to {supported}: run the version that wrote it, \
         or a later one", file.display()
    )]
    Version {
        /// The state file.
        file: PathBuf,
        /// The file's format.
        found: u64,
        /// The latest format that is understood.
        supported: u64,
    },
    /// A line is intact, but this version does not know what it says.
    #[error(
        "{} line {line} holds a record that this version of hostloop does not know ({reason}): run the version \
         that wrote it, or a later one", file.display()
    )]
    Unknown {
        /// The state file.
        file: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// What is not known.
        reason: String,
    },
}

/// Returns what else to do about a state file of another name: a disk can go to another node, but not to another driver.
fn advice(what: &str, found: &str, expected: &str) -> String {
    match what {
        "node" => format!(
            "; if node {expected:?} has this disk from now on, run: hostloop state adopt-node --from {found}"
        ),
        _ => String::new(),
    }
}
