//! One function per flag: text in, a valid value out.

use std::path::{Component, Path, PathBuf};
use std::time::Duration;

use super::{ConfigError, Flag};
use crate::model::{check_topology_value, format_bytes, parse_quantity};
use crate::telemetry::{LogFormat, LogLevel};

type Result<T> = std::result::Result<T, ConfigError>;

/// CSI: a plugin name has at most 63 characters (csi.proto, GetPluginInfoResponse).
const MAX_DRIVER_NAME: usize = 63;
/// The smallest `--max-volume-size`: less than this is a typing error, such as a forgotten unit.
const MIN_MAX_VOLUME: u64 = 1 << 20;
/// The longest `--shutdown-timeout` in seconds.
const MAX_SHUTDOWN: u64 = 3600;

pub(super) fn socket_mode(text: &str) -> Result<u32> {
    let wrong =
        |why: &str| Flag("--socket-mode", "HOSTLOOP_SOCKET_MODE").wrong(format_args!("{text:?} {why}"));
    let digits = text.strip_prefix("0o").unwrap_or(text);
    let octal = !digits.is_empty() && digits.chars().all(|c| c.is_digit(8));
    let mode = u32::from_str_radix(digits, 8).ok().filter(|mode| octal && *mode <= 0o777);
    let mode = mode.ok_or_else(|| wrong("are not permissions; use octal such as 0600 or 0660"))?;
    if mode & 0o600 == 0o600 { Ok(mode) } else { Err(wrong("locks the owner out; use 0600 or more")) }
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
    Err(Flag("--driver-name", "HOSTLOOP_DRIVER_NAME").wrong(format_args!(
        "{text:?} is not a plugin name; use a domain name of at most {MAX_DRIVER_NAME} characters such as hostloop.csi.dev"
    )))
}

pub(super) fn node_id(given: Option<String>, host_name: Option<String>) -> Result<String> {
    let flag = Flag("--node-id", "NODE_ID");
    let (id, origin) = match (given, host_name) {
        (Some(id), _) => (id, ""),
        (None, Some(name)) => (name, "the host name "),
        (None, None) => return Err(flag.wrong("the host has no name; set the node's id")),
    };
    check_topology_value(&id).map_err(|e| flag.wrong(format_args!("{origin}{e}")))?;
    Ok(id)
}

pub(super) fn data_dir(text: &str) -> Result<PathBuf> {
    absolute(text).map_err(|why| Flag("--data-dir", "HOSTLOOP_DATA_DIR").wrong(why))
}

pub(super) fn anchor_dir(text: Option<&str>) -> Result<Option<PathBuf>> {
    // An empty variable is how a manifest leaves it out.
    let given = text.filter(|text| !text.is_empty()).map(absolute).transpose();
    given.map_err(|why| Flag("--anchor-dir", "HOSTLOOP_ANCHOR_DIR").wrong(why))
}

pub(super) fn kubelet_dir(text: Option<&str>) -> Result<Option<PathBuf>> {
    // An empty variable is how a manifest leaves it out.
    let given = text.filter(|text| !text.is_empty()).map(absolute).transpose();
    given.map_err(|why| Flag("--kubelet-dir", "HOSTLOOP_KUBELET_DIR").wrong(why))
}

/// An absolute path other than `/` in its plain spelling: no `.`, no `..`, no doubled slash, so that paths can be
/// compared.
pub(super) fn absolute(text: &str) -> std::result::Result<PathBuf, String> {
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

pub(super) fn attach(text: &str) -> Result<bool> {
    truth(Flag("--attach", "HOSTLOOP_ATTACH"), text)
}

/// A flag that is on or off.
pub(super) fn truth(flag: Flag, text: &str) -> Result<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "1" | "yes" | "on" => Ok(true),
        "false" | "0" | "no" | "off" | "" => Ok(false),
        _ => Err(flag.wrong(format_args!("{text:?} is not true or false"))),
    }
}

pub(super) fn max_volumes_per_node(text: &str) -> Result<u32> {
    text.parse().map_err(|_| {
        Flag("--max-volumes-per-node", "HOSTLOOP_MAX_VOLUMES_PER_NODE").wrong(format_args!(
            "{text:?} is not a number of volumes; use 0 for no limit or up to {}",
            u32::MAX
        ))
    })
}

pub(super) fn max_volume_size(text: &str) -> Result<u64> {
    largest(Flag("--max-volume-size", "HOSTLOOP_MAX_VOLUME_SIZE"), text)
}

/// The largest size of volumes of some kind.
pub(super) fn largest(flag: Flag, text: &str) -> Result<u64> {
    let bytes = parse_quantity(text).map_err(|e| flag.wrong(e))?;
    if bytes >= MIN_MAX_VOLUME {
        return Ok(bytes);
    }
    Err(flag.wrong(format_args!("{text:?} is too small; use at least {}", format_bytes(MIN_MAX_VOLUME))))
}

pub(super) fn shutdown_timeout(text: &str) -> Result<Duration> {
    let seconds = text.parse().ok().filter(|seconds| *seconds <= MAX_SHUTDOWN);
    seconds.map(Duration::from_secs).ok_or_else(|| {
        Flag("--shutdown-timeout", "HOSTLOOP_SHUTDOWN_TIMEOUT")
            .wrong(format_args!("{text:?} is not a whole number of seconds from 0 to {MAX_SHUTDOWN}"))
    })
}

pub(super) fn log_level(text: &str) -> Result<LogLevel> {
    LogLevel::ALL.into_iter().find(|level| level.as_str() == text).ok_or_else(|| {
        Flag("--log-level", "HOSTLOOP_LOG_LEVEL")
            .wrong(format_args!("{text:?} is not a level; use error, warn, info, debug or trace"))
    })
}

pub(super) fn log_format(text: &str) -> Result<LogFormat> {
    match text {
        "text" => Ok(LogFormat::Text),
        "json" => Ok(LogFormat::Json),
        _ => Err(Flag("--log-format", "HOSTLOOP_LOG_FORMAT")
            .wrong(format_args!("{text:?} is not a format; use text or json"))),
    }
}
