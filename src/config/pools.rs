//! The pools: that they do not get in each other's way.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::cli::{ConfigError, DisksArgs, PoolArg, ServeArgs};
use crate::model::{PoolKind, PoolName, PoolSettings, Reserve, Settings};

/// Every pool, the default one (which is the data directory) first.
pub(super) fn pools(args: &ServeArgs, data_dir: &Path) -> Result<Vec<PoolSettings>, ConfigError> {
    let default = PoolSettings {
        name: PoolName::default(),
        path: data_dir.to_owned(),
        kind: PoolKind::Directory,
        reserve: args.reserve.unwrap_or(Reserve::Auto),
        overcommit: args.overcommit.unwrap_or(1.0),
        directories: args.directories,
    };
    together::<ServeArgs>(default, args.pool.iter().flatten())
}

fn together<'a, A: Args>(
    default: PoolSettings,
    args: impl Iterator<Item = &'a PoolArg>,
) -> Result<Vec<PoolSettings>, ConfigError> {
    let mut pools = vec![default.clone()];
    for arg in args {
        let new = pool(arg, &default);
        if let Some(problem) = pools.iter().find_map(|other| conflict(&new, other)) {
            return Err(ConfigError::of::<A>("pool", format_args!("{:?}: {problem}", arg.text)));
        }
        pools.push(new);
    }
    Ok(pools)
}

/// Returns the name and the directory of every pool, the default one first.
pub(super) fn at<'a>(
    data_dir: &Path,
    args: impl Iterator<Item = &'a PoolArg>,
) -> Result<Vec<(PoolName, PathBuf)>, ConfigError> {
    let default = PoolSettings {
        name: PoolName::default(),
        path: data_dir.to_owned(),
        kind: PoolKind::Directory,
        reserve: Reserve::Auto,
        overcommit: 1.0,
        directories: false,
    };
    let pools = together::<DisksArgs>(default, args)?;
    Ok(pools.into_iter().map(|pool| (pool.name, pool.path)).collect())
}

/// What the flag leaves out is as in the default pool, whose directory is the data directory.
fn pool(arg: &PoolArg, default: &PoolSettings) -> PoolSettings {
    let managed = || default.path.join(Settings::POOLS_DIR).join(arg.name.as_str());
    PoolSettings {
        name: arg.name.clone(),
        path: arg.kind.medium().map_or_else(|| arg.path.clone(), |_| managed()),
        kind: arg.kind.clone(),
        reserve: arg.reserve.unwrap_or(default.reserve),
        overcommit: arg.overcommit.unwrap_or(default.overcommit),
        directories: arg.directories,
    }
}

/// Why two pools cannot be together.
fn conflict(new: &PoolSettings, other: &PoolSettings) -> Option<String> {
    if new.name == other.name && new.name.as_str() == PoolName::DEFAULT {
        return Some(
            "the pool \"default\" is the data directory (--data-dir); choose another name".to_owned(),
        );
    }
    if new.name == other.name {
        return Some(format!("the name {:?} is given twice", new.name.as_str()));
    }
    let (ours, theirs) = (new.kind.medium(), other.kind.medium());
    let what = match (ours, theirs) {
        (Some(ours), Some(theirs)) if ours == theirs => "on the same image or device as",
        (Some(_), Some(_)) => return None,
        (Some(medium), None) if is_kept_from(medium, other) => "in what belongs to",
        (None, Some(medium)) if is_kept_from(medium, new) => "around the image of",
        (Some(_), None) | (None, Some(_)) => return None,
        (None, None) if new.path == other.path => "the same directory as",
        (None, None) if new.path.starts_with(&other.path) => "inside the directory of",
        (None, None) if other.path.starts_with(&new.path) => "around the directory of",
        (None, None) => return None,
    };
    let path = theirs.unwrap_or(&other.path).display();
    Some(format!("it is {what} the pool {:?} ({path}); choose another one", other.name.as_str()))
}

/// Whether an image or device lies where a directory pool has its own files: it may lie beside them, but not among
/// the volumes, the snapshots, the other pools or the state, and not in the place of the directory itself.
fn is_kept_from(medium: &Path, pool: &PoolSettings) -> bool {
    let Ok(inside) = medium.strip_prefix(&pool.path) else { return false };
    match inside.components().next().map(|first| first.as_os_str().to_string_lossy()) {
        None => true,
        Some(first) => {
            ["volumes", "snapshots", Settings::POOLS_DIR].contains(&&*first) || first.starts_with("state.")
        }
    }
}
