//! Writes the man pages of hostloop into a directory: `cargo run --example man -- DIRECTORY`. scripts/release does.
//! They are made here and not by the driver, which therefore has no code for it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a part of making a release, and its tests"
)]

use std::io;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;
use hostloop::cli::Cli;

fn main() -> io::Result<()> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    write(&directory.ok_or_else(|| io::Error::other("usage: man DIRECTORY"))?)
}

/// Writes a page for hostloop and one for each of its commands.
fn write(directory: &Path) -> io::Result<()> {
    std::fs::create_dir_all(directory)?;
    clap_mangen::generate_to(Cli::command(), directory)
}

#[cfg(test)]
mod tests {
    use std::fs::read_to_string;

    use super::*;

    /// Calls `check` with each command that help shows, and the name of its page.
    fn each(command: &clap::Command, page: &str, check: &mut impl FnMut(&clap::Command, &str)) {
        check(command, page);
        let shown = |command: &&clap::Command| !command.is_hide_set() && command.get_name() != "help";
        for command in command.get_subcommands().filter(shown) {
            each(command, &format!("{page}-{}", command.get_name()), check);
        }
    }

    #[test]
    fn every_command_has_a_page_with_all_its_flags() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        let mut pages = 0;
        each(&Cli::command(), "hostloop", &mut |command, page| {
            let source = read_to_string(directory.path().join(format!("{page}.1"))).expect(page);
            // roff(7) writes a hyphen that is to be copied as \-.
            let text = source.replace("\\-", "-");
            for flag in command.get_arguments().filter_map(|argument| argument.get_long()) {
                assert!(text.contains(&format!("--{flag}")), "{page}: --{flag}");
            }
            pages += 1;
        });
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), pages, "pages of nothing");
        assert!(pages > 10, "{pages}");
    }

    #[test]
    fn a_page_is_formatted_without_a_warning() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path()).unwrap();
        for entry in std::fs::read_dir(directory.path()).unwrap() {
            let page = entry.unwrap().path();
            let formatted =
                std::process::Command::new("groff").args(["-man", "-Tutf8", "-ww"]).arg(&page).output();
            let formatted = formatted.unwrap_or_else(|error| {
                panic!("groff: {error}; install the package groff-base, or run scripts/install-deps --quick")
            });
            let warnings = String::from_utf8_lossy(&formatted.stderr);
            assert!(formatted.status.success() && warnings.is_empty(), "{page:?}: {warnings}");
            assert!(formatted.stdout.len() > 500, "{page:?}");
        }
    }
}
