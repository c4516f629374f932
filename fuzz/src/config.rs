//! Command lines, one word a line: a wrong value is one line that names what is wrong.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use clap::Parser;
use hostloop::cli::{Cli, Command, completions, one_line};
use hostloop::config::{BenchConfig, Config, Role, SelftestConfig, state_task};

/// Runs one input.
pub fn run(input: &[u8]) {
    let words = input.split(|byte| *byte == b'\n').map(|word| OsString::from_vec(word.to_vec()));
    let command = match Cli::try_parse_from(std::iter::once("hostloop".into()).chain(words)) {
        Ok(cli) => cli.command,
        Err(error) => {
            if let Some(line) = one_line(&error) {
                assert!(!line.contains(['\n', '\r']), "{line:?}");
            }
            return;
        }
    };
    match command {
        Command::Serve(args) => match Config::new(&args, Some("host".to_owned())) {
            Ok(config) => check(&config),
            Err(error) => assert_one_line(&error),
        },
        Command::Selftest(args) => assert!(SelftestConfig::from(&args).dir.is_absolute()),
        Command::Bench(args) => match BenchConfig::new(&args) {
            Ok(BenchConfig::Disk(config)) => {
                assert!(config.dir.is_absolute() && config.turns > 0 && !config.candidates.is_empty());
            }
            Ok(BenchConfig::Rpc(config)) => {
                assert!(config.dir.is_absolute() && config.turns > 0 && !config.clients.contains(&0));
                assert!(!config.clients.is_empty() && (1..=2).contains(&config.drivers.len()));
            }
            Err(error) => assert_one_line(&error),
        },
        Command::Completions(args) => assert!(!completions(args.shell).is_empty()),
        Command::State(args) => {
            if let Err(error) = state_task(&args, Some("host".to_owned())) {
                assert_one_line(&error);
            }
        }
        // These act at once on what they are given.
        Command::Adopt(_)
        | Command::Certs(_)
        | Command::Admin(_)
        | Command::Inspect(_)
        | Command::Doctor(_)
        | Command::SupportBundle(_)
        | Command::FreezeGuard(_) => {}
    }
}

fn assert_one_line(error: &hostloop::config::ConfigError) {
    let text = error.to_string();
    assert!(text.starts_with("--") && !text.contains(['\n', '\r']), "{text:?}");
}

fn check(config: &Config) {
    if let Role::All(settings) | Role::Node(settings, _) = &config.role {
        assert!(settings.data_dir.is_absolute());
        assert!(settings.pools.iter().all(|pool| pool.path.is_absolute()));
        assert!(!settings.node_id.is_empty() && !settings.driver_name.is_empty());
    }
}
