//! How values are read: text in, a value that cannot be wrong out, or what to write instead.

use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use crate::model::{BackendKind, Limits, check_topology_value, format_bytes, parse_quantity};
use crate::telemetry::{LogFormat, LogLevel};

/// A value that may be empty, which is how a manifest leaves a variable out. clap gives `Option<Option<T>>` another
/// meaning; it does not see through this name.
pub(crate) type Maybe<T> = Option<T>;
/// The values of one use of a flag that can be repeated. clap would take `Vec<Vec<T>>` for something else.
pub(crate) type List<T> = Vec<T>;

type Result<T> = std::result::Result<T, String>;

/// CSI: a plugin name has at most 63 characters (csi.proto, GetPluginInfoResponse).
const MAX_DRIVER_NAME: usize = 63;
/// The smallest `--max-volume-size` in bytes: less than this is a typing error, such as a forgotten unit.
const MIN_MAX_VOLUME: u64 = 1 << 20;
/// The smallest rate in bytes per second, for the same reason.
const MIN_RATE: u64 = 1 << 16;
/// The longest `--shutdown-timeout` in seconds.
const MAX_SHUTDOWN: u64 = 3600;

/// What `--role` can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoleName {
    /// Everything in one process.
    All,
    /// The volumes of one node, for a controller.
    Node,
    /// No volumes: it finds the node for each call.
    Controller,
}

impl RoleName {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            RoleName::All => "all",
            RoleName::Node => "node",
            RoleName::Controller => "controller",
        }
    }
}

/// Reads a value unless it is empty.
pub(super) fn maybe<T>(
    read: impl Fn(&str) -> Result<T> + Clone,
) -> impl Fn(&str) -> Result<Maybe<T>> + Clone {
    move |text| if text.is_empty() { Ok(None) } else { read(text).map(Some) }
}

/// Reads the entries of a list, of which some may be empty: variables are put together by templates.
pub(super) fn list<T>(text: &str, separator: char, read: impl Fn(&str) -> Result<T>) -> Result<List<T>> {
    text.split(separator).map(str::trim).filter(|entry| !entry.is_empty()).map(read).collect()
}

/// Finds the value of this name. `what` has its article.
pub(super) fn named<T: Copy>(
    text: &str,
    what: &str,
    all: &[T],
    name: impl Fn(T) -> &'static str,
) -> Result<T> {
    all.iter().copied().find(|value| name(*value) == text).ok_or_else(|| {
        let names: Vec<&str> = all.iter().copied().map(name).collect();
        let (last, others) = names.split_last().unwrap_or((&"", &[]));
        format!("{text:?} is not {what}; use {} or {last}", others.join(", "))
    })
}

pub(super) fn role(text: &str) -> Result<RoleName> {
    named(text, "a role", &[RoleName::All, RoleName::Node, RoleName::Controller], RoleName::as_str)
}

pub(super) fn log_level(text: &str) -> Result<LogLevel> {
    named(text, "a level", &LogLevel::ALL, LogLevel::as_str)
}

pub(super) fn log_format(text: &str) -> Result<LogFormat> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(format!("{text:?} is not a format; use text or json")),
    }
}

pub(super) fn backends(text: &str) -> Result<List<BackendKind>> {
    list(text, ',', |name| named(name, "a backend", &BackendKind::ALL, BackendKind::as_str))
}

pub(super) fn socket_mode(text: &str) -> Result<u32> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let octal = !digits.is_empty() && digits.chars().all(|c| c.is_digit(8));
    match u32::from_str_radix(digits, 8) {
        Ok(mode) if octal && mode <= 0o777 && mode & 0o600 == 0o600 => Ok(mode),
        Ok(mode) if octal && mode <= 0o777 => Err(format!("{text:?} locks the owner out; use 0600 or more")),
        _ => Err(format!("{text:?} are not permissions; use octal such as 0600 or 0660")),
    }
}

/// What CSI asks of a plugin name: letters, digits, dashes and dots, a letter or digit at both ends, and domain
/// name notation, so that no label between the dots is empty or begins or ends with a dash.
pub(super) fn driver_name(text: &str) -> Result<String> {
    let alphanumeric = |c: char| c.is_ascii_alphanumeric();
    let label = |label: &str| {
        label.starts_with(alphanumeric)
            && label.ends_with(alphanumeric)
            && label.chars().all(|c| alphanumeric(c) || c == '-')
    };
    if text.len() <= MAX_DRIVER_NAME && text.split('.').all(label) {
        return Ok(text.to_owned());
    }
    Err(format!(
        "{text:?} is not a plugin name; use a domain name of at most {MAX_DRIVER_NAME} characters such as hostloop.csi.dev"
    ))
}

pub(super) fn node_id(text: &str) -> Result<String> {
    check_topology_value(text).map_err(|e| e.to_string())?;
    Ok(text.to_owned())
}

pub(super) fn node_ids(text: &str) -> Result<List<String>> {
    list(text, ';', node_id)
}

/// Absolute paths of directories.
pub(super) fn directories(text: &str) -> Result<List<PathBuf>> {
    list(text, ';', absolute)
}

/// Names, whatever they are.
pub(super) fn names(text: &str) -> Result<List<String>> {
    list(text, ',', |name| Ok(name.to_owned()))
}

/// An absolute path other than `/` in its plain spelling: no `.`, no `..`, no doubled slash, so that paths can be
/// compared.
pub(crate) fn absolute(text: &str) -> Result<PathBuf> {
    let path = Path::new(text);
    if !path.is_absolute() {
        return Err(format!("{text:?} is not an absolute path; begin it with /"));
    }
    if path.components().any(|c| c == Component::ParentDir) || text.contains('\0') {
        return Err(format!("{text:?} contains ..; write the path without it"));
    }
    if path.parent().is_none() {
        return Err("\"/\" is the root directory; choose a directory below it".to_owned());
    }
    Ok(path.components().collect())
}

/// A flag that is on or off.
pub(super) fn truth(text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err(format!("{text:?} is not true or false")),
    }
}

pub(super) fn max_volumes(text: &str) -> Result<u32> {
    text.parse()
        .map_err(|_| format!("{text:?} is not a number of volumes; use 0 for no limit or up to {}", u32::MAX))
}

/// The largest size of volumes of some kind, in bytes.
pub(super) fn largest(text: &str) -> Result<u64> {
    at_least(MIN_MAX_VOLUME, text)
}

/// A size in bytes, which must not be below `least`.
pub(super) fn at_least(least: u64, text: &str) -> Result<u64> {
    match parse_quantity(text).map_err(|e| e.to_string())? {
        bytes if bytes >= least => Ok(bytes),
        _ => Err(format!("{text:?} is too small; use at least {}", format_bytes(least))),
    }
}

/// Reads a number of bytes per second; `None` for no limit.
pub(super) fn rate(text: &str) -> Result<Maybe<u64>> {
    if text.is_empty() {
        return Ok(None);
    }
    match parse_quantity(text).map_err(|e| e.to_string())? {
        0 => Ok(None),
        bytes if bytes >= MIN_RATE => Ok(Some(bytes)),
        bytes => Err(format!(
            "{text:?} is a rate of {bytes} bytes per second; use at least {} such as 100Mi, or 0 for no limit",
            format_bytes(MIN_RATE)
        )),
    }
}

pub(super) fn at_a_time(text: &str) -> Result<usize> {
    let most = Limits::MOST;
    text.parse()
        .ok()
        .filter(|count| (1..=most).contains(count))
        .ok_or_else(|| format!("{text:?} is not a number from 1 to {most}; each has its own thread"))
}

/// The most volumes with metrics of each; 0 for none.
pub(super) fn volumes_shown(text: &str) -> Result<usize> {
    const MOST: usize = 100_000;
    let number = text.parse().ok().filter(|number| *number <= MOST);
    number.ok_or_else(|| format!("{text:?} is not a number from 0 to {MOST}; 0 turns these metrics off"))
}

pub(super) fn shutdown_timeout(text: &str) -> Result<Duration> {
    let seconds = text.parse().ok().filter(|seconds| *seconds <= MAX_SHUTDOWN);
    seconds
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{text:?} is not a whole number of seconds from 0 to {MAX_SHUTDOWN}"))
}

/// The time between two answers.
pub(super) fn every(text: &str) -> Result<Duration> {
    const MOST: u64 = 3600;
    let seconds = text.parse().ok().filter(|seconds| (1..=MOST).contains(seconds));
    let seconds = seconds.map(Duration::from_secs);
    seconds.ok_or_else(|| format!("{text:?} is not a whole number of seconds from 1 to {MOST}"))
}

/// An address that only processes of this machine, or of this pod, reach.
pub(super) fn loopback(text: &str) -> Result<SocketAddr> {
    match address(9811)(text) {
        Ok(address) if address.ip().is_loopback() => Ok(address),
        Ok(_) => Err(format!("{text:?} can be reached from outside; use 127.0.0.1:PORT or [::1]:PORT")),
        Err(_) => {
            Err(format!("{text:?} is not an address; use IP:PORT such as 127.0.0.1:9811 or [::1]:9811"))
        }
    }
}

/// An address to listen on. The port is the one of the example.
pub(super) fn address(port: u16) -> impl Fn(&str) -> Result<SocketAddr> + Clone {
    move |text| {
        text.parse().map_err(|_| {
            format!("{text:?} is not an address; use IP:PORT such as 0.0.0.0:{port} or [::]:{port}")
        })
    }
}
