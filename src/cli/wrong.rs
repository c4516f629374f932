//! What is said of a wrong value: one line that begins with the flag and its variable.

use std::fmt;

use clap::builder::{StringValueParser, TypedValueParser};
use clap::error::ErrorKind as Kind;
use clap::{Arg, Args, Command};

/// A wrong value: one line that names the flag and says what to change.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    /// A value that does not go with others. `field` is the flag's field in `A`, the flags of its command.
    pub(crate) fn of<A: Args>(field: &str, problem: impl fmt::Display) -> Self {
        let command = A::augment_args(Command::new(""));
        let arg = command.get_arguments().find(|arg| arg.get_id() == field);
        Self::about(arg, problem)
    }

    fn about(arg: Option<&Arg>, problem: impl fmt::Display) -> Self {
        let flag = match arg.and_then(Arg::get_long) {
            Some(flag) => format!("--{flag}"),
            // A word without a flag.
            None => {
                arg.and_then(Arg::get_value_names).into_iter().flatten().map(ToString::to_string).collect()
            }
        };
        let variable = arg.and_then(Arg::get_env).map(|name| format!(" ({})", name.display()));
        let line = format!("{flag}{}: {problem}", variable.unwrap_or_default());
        // A value may hold anything; the message stays one line.
        ConfigError(line.replace(['\n', '\r'], " "))
    }
}

/// A value parser for clap, from a function: what it says of a wrong value becomes a [`ConfigError`].
#[derive(Clone)]
pub(super) struct Value<F>(pub(super) F);

impl<F, T, E> TypedValueParser for Value<F>
where
    F: Fn(&str) -> Result<T, E> + Clone + Send + Sync + 'static,
    T: Clone + Send + Sync + 'static,
    E: fmt::Display,
{
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<T, clap::Error> {
        let text = StringValueParser::new().parse_ref(command, arg, value)?;
        self.0(&text).map_err(|e| clap::Error::raw(Kind::ValueValidation, ConfigError::about(arg, e)))
    }
}

/// What to print of an error of the command line. A wrong value is one line; for an unknown flag clap's own
/// answer helps more, as it names similar ones.
pub fn one_line(error: &clap::Error) -> Option<String> {
    let about_a_value = matches!(
        error.kind(),
        Kind::InvalidValue
            | Kind::ValueValidation
            | Kind::InvalidUtf8
            | Kind::NoEquals
            | Kind::TooManyValues
            | Kind::TooFewValues
            | Kind::WrongNumberOfValues
            | Kind::ArgumentConflict
    );
    let text = error.to_string();
    // What may be written instead is in the lines after the first.
    let first: Vec<&str> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    about_a_value.then(|| first.join(" ").trim_start_matches("error: ").replace('\r', " "))
}
