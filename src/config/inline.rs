//! `--inline-max-size`, `--inline-pools` and `--inline-backends`: what the author of a pod may ask for.

use crate::cli::{ConfigError, ServeArgs};
use crate::model::{InlineSettings, PoolName, PoolSettings, rounded};

/// What inline volumes may be, of what these pools can hold.
pub(super) fn inline(args: &ServeArgs, pools: &[PoolSettings]) -> Result<InlineSettings, ConfigError> {
    let defaults = InlineSettings::default();
    let names = once(&args.inline_pools).map(|names| names.iter().map(|name| pool(name, pools)).collect());
    let inline = InlineSettings {
        max_bytes: rounded(args.inline_max_size.flatten().unwrap_or(defaults.max_bytes), 0),
        pools: names.transpose()?.unwrap_or(defaults.pools),
        backends: once(&args.inline_backends).unwrap_or(defaults.backends),
    };
    Ok(inline)
}

/// The entries of a list, each once; `None` where there are none, as in a variable that a manifest leaves empty.
fn once<T: PartialEq + Clone>(list: &Option<Vec<T>>) -> Option<Vec<T>> {
    let mut all = Vec::new();
    for entry in list.iter().flatten() {
        if !all.contains(entry) {
            all.push(entry.clone());
        }
    }
    (!all.is_empty()).then_some(all)
}

fn pool(name: &str, pools: &[PoolSettings]) -> Result<PoolName, ConfigError> {
    let found = pools.iter().find(|pool| pool.name.as_str() == name);
    found.map(|pool| pool.name.clone()).ok_or_else(|| {
        let names: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        let problem = format!("{name:?} is not a pool; the pools are: {}", names.join(", "));
        ConfigError::of::<ServeArgs>("inline_pools", problem)
    })
}
