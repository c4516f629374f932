//! `--inline-max-size`, `--inline-pools` and `--inline-backends`: what the author of a pod may ask for.

use super::{ConfigError, Flag, fields};
use crate::cli::ServeArgs;
use crate::model::{BackendKind, InlineSettings, PoolName, PoolSettings};

pub(super) const MAX_SIZE: Flag = Flag("--inline-max-size", "HOSTLOOP_INLINE_MAX_SIZE");
pub(super) const POOLS: Flag = Flag("--inline-pools", "HOSTLOOP_INLINE_POOLS");
pub(super) const BACKENDS: Flag = Flag("--inline-backends", "HOSTLOOP_INLINE_BACKENDS");

/// What inline volumes may be, of what these pools can hold.
pub(super) fn inline(args: &ServeArgs, pools: &[PoolSettings]) -> Result<InlineSettings, ConfigError> {
    let defaults = InlineSettings::default();
    let max_size = args.inline_max_size.as_deref().filter(|text| !text.is_empty());
    let inline = InlineSettings {
        max_bytes: max_size.map_or(Ok(defaults.max_bytes), |text| fields::largest(MAX_SIZE, text))?,
        pools: names(args.inline_pools.as_deref(), |name| pool(name, pools))?.unwrap_or(defaults.pools),
        backends: names(args.inline_backends.as_deref(), backend)?.unwrap_or(defaults.backends),
    };
    let given = |name: &PoolName| pools.iter().find(|pool| pool.name == *name);
    let directories = inline.pools.iter().filter_map(given).any(|pool| pool.directories);
    if inline.backends.iter().any(|backend| !backend.is_sized()) && !directories {
        return Err(BACKENDS.wrong(
            "none of the pools for inline volumes is for directory volumes: name one with --inline-pools (a pool \
             is made one with directories=true, the pool \"default\" with --directories), or leave directory out",
        ));
    }
    Ok(inline)
}

/// The entries of a list, each once; `None` where there are none, as in a variable that a manifest leaves empty.
fn names<T: PartialEq>(
    text: Option<&str>,
    entry: impl Fn(&str) -> Result<T, ConfigError>,
) -> Result<Option<Vec<T>>, ConfigError> {
    let mut all = Vec::new();
    for name in text.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let value = entry(name)?;
        if !all.contains(&value) {
            all.push(value);
        }
    }
    Ok((!all.is_empty()).then_some(all))
}

fn pool(name: &str, pools: &[PoolSettings]) -> Result<PoolName, ConfigError> {
    let found = pools.iter().find(|pool| pool.name.as_str() == name);
    found.map(|pool| pool.name.clone()).ok_or_else(|| {
        let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        POOLS.wrong(format_args!("{name:?} is not a pool; the pools are: {}", names.join(", ")))
    })
}

fn backend(name: &str) -> Result<BackendKind, ConfigError> {
    let found = BackendKind::ALL.into_iter().find(|backend| backend.as_str() == name);
    found.ok_or_else(|| BACKENDS.wrong(format_args!("{name:?} is not a backend; use loop or directory")))
}
