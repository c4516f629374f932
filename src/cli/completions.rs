//! `hostloop completions`.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use super::Cli;

pub(super) const AFTER: &str = "\
Examples:
  hostloop completions bash > /usr/share/bash-completion/completions/hostloop
  hostloop completions zsh > /usr/local/share/zsh/site-functions/_hostloop
  hostloop completions fish > /usr/share/fish/vendor_completions.d/hostloop.fish";

#[derive(Debug, Args)]
pub struct CompletionsArgs {
    #[arg(value_name = "SHELL")]
    pub shell: Shell,
}

/// Returns the script with which this shell completes commands and flags.
pub fn completions(shell: Shell) -> Vec<u8> {
    // clap_complete panics if it writes to a closed pipe.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "hostloop", &mut script);
    script
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::cli::one_line;

    #[test]
    #[allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "bash says whether it can read its script"
    )]
    fn every_shell_completes_every_command() {
        use clap::ValueEnum as _;
        for shell in Shell::value_variants() {
            let script = String::from_utf8(completions(*shell)).unwrap();
            for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
                assert!(script.contains(command.get_name()), "{shell}: {}", command.get_name());
            }
            assert!(script.contains("max-volumes-per-node"), "{shell}");
        }
        let wrong = Cli::try_parse_from(["hostloop", "completions", "csh"]).unwrap_err();
        let line = one_line(&wrong).unwrap();
        assert!(line.contains("'csh'") && line.contains("bash, elvish, fish"), "{line}");
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("hostloop");
        std::fs::write(&file, completions(Shell::Bash)).unwrap();
        let read = std::process::Command::new("bash").arg("-n").arg(&file).output().unwrap();
        assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    }
}
