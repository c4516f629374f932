//! What the flags of `hostloop certs` mean together.

use crate::cli::{CertsArgs, CertsCommand, ConfigError, InitArgs, IssueArgs};
use crate::cluster::certs::Task;
use crate::cluster::identity::PeerRole;

/// What to do with certificates.
///
/// # Errors
/// [`ConfigError`] for a flag that does not go with the others.
pub fn certs_task(args: &CertsArgs) -> Result<Task, ConfigError> {
    Ok(match &args.command {
        CertsCommand::Init(InitArgs { dir, secret, driver_name, valid }) => {
            let (driver, valid) = (driver_name.clone(), *valid);
            match secret.clone() {
                Some(secret) => Task::InitSecret { secret, driver, valid },
                None => Task::Init { dir: dir.clone().unwrap_or_default(), driver, valid },
            }
        }
        CertsCommand::Issue(args) => issue(args)?,
        CertsCommand::Renew(args) => Task::Renew {
            ca: args.ca.clone(),
            dirs: args.dir.clone(),
            before: args.before,
            valid: args.valid,
        },
        CertsCommand::Show(args) => Task::Show { dir: args.dir.clone() },
    })
}

fn issue(args: &IssueArgs) -> Result<Task, ConfigError> {
    if args.role == PeerRole::Controller && args.node_id.is_some() {
        return Err(ConfigError::of::<IssueArgs>("node_id", "a controller is not a node; leave it out"));
    }
    Ok(Task::Issue {
        ca: args.ca.clone(),
        driver: args.driver_name.clone(),
        role: args.role,
        node_id: args.node_id.clone(),
        out: args.out.clone(),
        valid: args.valid,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command, one_line};

    fn task(words: &str) -> Result<Task, String> {
        let words = ["hostloop", "certs"].into_iter().chain(words.split(' '));
        match Cli::try_parse_from(words)
            .map_err(|error| one_line(&error).unwrap_or(error.to_string()))?
            .command
        {
            Command::Certs(args) => certs_task(&args).map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_of_certs_have_defaults() {
        let Task::Init { driver, valid, .. } = task("init --dir a").unwrap() else { panic!() };
        assert_eq!((driver.as_str(), valid.whole_days()), ("hostloop.csi.dev", 3652));
        let Task::Issue { role, node_id, driver, valid, .. } =
            task("issue --ca a --role node --out b").unwrap()
        else {
            panic!()
        };
        assert_eq!((role, node_id, driver, valid.whole_days()), (PeerRole::Node, None, None, 90));
        let Task::Renew { dirs, before, valid, .. } = task("renew --ca a --dir b --dir c").unwrap() else {
            panic!()
        };
        assert_eq!((dirs.len(), before, valid), (2, None, None));
    }

    #[test]
    fn a_ca_is_in_a_directory_or_in_a_secret() {
        let Task::InitSecret { secret, .. } = task("init --secret storage/hostloop-ca").unwrap() else {
            panic!()
        };
        assert_eq!((secret.namespace.as_str(), secret.name.as_str()), ("storage", "hostloop-ca"));
        assert!(task("init --secret a/b --dir c").unwrap_err().contains("cannot be used with"));
        assert!(task("init --valid 1d").unwrap_err().contains("--dir"));
    }

    #[test]
    fn a_wrong_value_names_its_flag() {
        for (words, hint) in [
            ("init --secret name", "--secret: \"name\" is not a Secret"),
            ("init --secret a/b/c", "--secret: \"a/b/c\" is not a Secret"),
            ("init --secret a/../b", "--secret: "),
            ("init --dir a --valid soon", "--valid: \"soon\" is not a duration"),
            ("init --dir a --valid 1s", "--valid: \"1s\" is out of range"),
            ("init --dir a --valid 101y", "--valid: \"101y\" is out of range"),
            ("init --dir a --driver-name a/b", "--driver-name"),
            ("issue --ca a --role admin --out b", "--role: \"admin\" is not a role"),
            ("issue --ca a --role controller --node-id x --out b", "--node-id: a controller is not a node"),
            ("issue --ca a --role node --node-id a/b --out b", "--node-id: "),
            ("issue --ca a --role node --driver-name .. --out b", "--driver-name"),
            ("renew --ca a --dir b --before never", "--before: \"never\""),
        ] {
            let error = task(words).unwrap_err();
            assert!(error.contains(hint) && !error.contains('\n'), "{words}: {error}");
        }
    }
}
