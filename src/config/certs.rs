//! What the flags of `hostloop certs` mean.

use time::Duration;

use super::{ConfigError, Flag, fields};
use crate::cli::{CertsArgs, CertsCommand, InitArgs, IssueArgs};
use crate::cluster::certs::{SecretName, Task};
use crate::cluster::identity::PeerRole;
use crate::model::check_topology_value;

/// The shortest validity: less is over before anybody has used it.
const MIN_VALID: Duration = Duration::minutes(1);
/// The longest one.
const MAX_VALID: Duration = Duration::days(366 * 100);

/// Checks the flags.
///
/// # Errors
/// [`ConfigError`] for the first value that cannot be.
pub fn certs_task(args: &CertsArgs) -> Result<Task, ConfigError> {
    Ok(match &args.command {
        CertsCommand::Init(args) => init(args)?,
        CertsCommand::Issue(args) => issue(args)?,
        CertsCommand::Renew(args) => Task::Renew {
            ca: args.ca.clone(),
            dirs: args.dir.clone(),
            before: args.before.as_deref().map(|text| duration("--before", text)).transpose()?,
            valid: args.valid.as_deref().map(valid).transpose()?,
        },
        CertsCommand::Show(args) => Task::Show { dir: args.dir.clone() },
    })
}

fn init(args: &InitArgs) -> Result<Task, ConfigError> {
    let (driver, valid) = (fields::driver_name(&args.driver_name)?, valid(&args.valid)?);
    match &args.secret {
        Some(text) => Ok(Task::InitSecret { secret: secret(text)?, driver, valid }),
        None => Ok(Task::Init { dir: args.dir.clone().unwrap_or_default(), driver, valid }),
    }
}

/// Names as the API server takes them, which become parts of a path there (RFC 1123).
fn secret(text: &str) -> Result<SecretName, ConfigError> {
    let plain = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
        (1..=253).contains(&part.len()) && part.chars().all(inner) && !part.starts_with(['-', '.'])
    };
    match text.split_once('/') {
        Some((namespace, name)) if plain(namespace) && plain(name) => {
            Ok(SecretName { namespace: namespace.to_owned(), name: name.to_owned() })
        }
        _ => {
            Err(Flag("--secret", "")
                .wrong(format_args!("{text:?} is not a Secret; write it as NAMESPACE/NAME")))
        }
    }
}

fn issue(args: &IssueArgs) -> Result<Task, ConfigError> {
    let roles = [PeerRole::Controller, PeerRole::Node];
    let role = roles.into_iter().find(|role| role.as_str() == args.role).ok_or_else(|| {
        Flag("--role", "")
            .wrong(format_args!("{:?} is not a role of a peer; use controller or node", args.role))
    })?;
    let flag = Flag("--node-id", "");
    if let Some(id) = &args.node_id {
        if role == PeerRole::Controller {
            return Err(flag.wrong("a controller is not a node; leave it out"));
        }
        check_topology_value(id).map_err(|error| flag.wrong(error))?;
    }
    Ok(Task::Issue {
        ca: args.ca.clone(),
        driver: args.driver_name.as_deref().map(fields::driver_name).transpose()?,
        role,
        node_id: args.node_id.clone(),
        out: args.out.clone(),
        valid: valid(&args.valid)?,
    })
}

fn valid(text: &str) -> Result<Duration, ConfigError> {
    let valid = duration("--valid", text)?;
    if (MIN_VALID..=MAX_VALID).contains(&valid) {
        return Ok(valid);
    }
    Err(Flag("--valid", "").wrong(format_args!("{text:?} is out of range; use 1min to 100y")))
}

fn duration(flag: &'static str, text: &str) -> Result<Duration, ConfigError> {
    let parsed = humantime::parse_duration(text).ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| {
        Flag(flag, "").wrong(format_args!("{text:?} is not a duration; write it like 90d, 12h or 10y"))
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn task(words: &str) -> Result<Task, String> {
        let words = ["hostloop", "certs"].into_iter().chain(words.split(' '));
        match Cli::try_parse_from(words).map_err(|error| error.to_string())?.command {
            Command::Certs(args) => certs_task(&args).map_err(|error| error.to_string()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults() {
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
