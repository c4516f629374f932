//! `--pool`, `--reserve` and `--overcommit`.

use std::path::{Path, PathBuf};

use super::{ConfigError, Flag, fields};
use crate::cli::ServeArgs;
use crate::model::{
    FsType, GRANULARITY, PoolKind, PoolName, PoolSettings, Reserve, Settings, format_bytes, parse_quantity,
};

const POOL: Flag = Flag("--pool", "HOSTLOOP_POOLS");
pub(super) const DIRECTORIES: Flag = Flag("--directories", "HOSTLOOP_DIRECTORIES");
/// More than this many bytes promised for each that exists is a typing error.
const MAX_OVERCOMMIT: f64 = 1000.0;

/// Names that an image cannot have: the driver truncates or replaces files with these names.
const TAKEN_NAMES: [&str; 1] = ["lock"];
const TAKEN_ENDS: [&str; 2] = [".hostloop-lock", ".hostloop-new"];

/// Every pool, the default one (which is the data directory) first.
pub(super) fn pools(args: &ServeArgs, data_dir: &Path) -> Result<Vec<PoolSettings>, ConfigError> {
    let default = PoolSettings {
        name: PoolName::default(),
        path: data_dir.to_owned(),
        kind: PoolKind::Directory,
        reserve: reserve(args.reserve.as_deref().unwrap_or("auto"))
            .map_err(|e| Flag("--reserve", "HOSTLOOP_RESERVE").wrong(e))?,
        overcommit: overcommit(args.overcommit.as_deref().unwrap_or("1.0"))
            .map_err(|e| Flag("--overcommit", "HOSTLOOP_OVERCOMMIT").wrong(e))?,
        directories: fields::truth(DIRECTORIES, &args.directories)?,
    };
    let mut pools = vec![default];
    for text in
        args.pool.iter().flat_map(|value| value.split(';')).map(str::trim).filter(|text| !text.is_empty())
    {
        let wrong = |problem: String| POOL.wrong(format_args!("{text:?}: {problem}"));
        let new =
            pools.first().ok_or_else(String::new).and_then(|default| pool(text, default)).map_err(wrong)?;
        if let Some(problem) = pools.iter().find_map(|other| conflict(&new, other)) {
            return Err(wrong(problem));
        }
        pools.push(new);
    }
    Ok(pools)
}

/// One `NAME=PATH[,OPTION=VALUE]...`; what it leaves out is as in the default pool, whose directory is the data
/// directory.
fn pool(text: &str, default: &PoolSettings) -> Result<PoolSettings, String> {
    let mut parts = text.split(',');
    let (name, path) = parts.next().and_then(|part| part.split_once('=')).ok_or("write it as NAME=PATH")?;
    let name: PoolName = name.parse().map_err(|e: crate::model::InvalidPoolName| e.to_string())?;
    let mut pool =
        PoolSettings { name, path: fields::absolute(path)?, directories: false, ..default.clone() };
    let (mut kind, mut size, mut fs) = (None, None, None);
    for option in parts {
        match option.split_once('=') {
            Some(("reserve", value)) => pool.reserve = reserve(value)?,
            Some(("overcommit", value)) => pool.overcommit = overcommit(value)?,
            Some(("directories", "true")) => pool.directories = true,
            Some(("directories", "false")) => pool.directories = false,
            Some(("directories", value)) => {
                return Err(format!("directories={value:?} is not true or false"));
            }
            Some(("kind", value)) => kind = Some(value),
            Some(("size", value)) => size = Some(value),
            Some(("fs", value)) => fs = Some(value),
            _ => {
                return Err(format!(
                    "{option:?} is not an option of a pool; use reserve=auto|SIZE|PERCENT%, overcommit=RATIO, \
                     kind=image|device, size=SIZE, fs=xfs|btrfs or directories=true"
                ));
            }
        }
    }
    let medium = pool.path.clone();
    pool.kind = match kind.unwrap_or("directory") {
        "directory" => match size.map(|_| "size").or(fs.map(|_| "fs")) {
            Some(option) => {
                return Err(format!("{option}= is for a pool that hostloop makes; add kind=image"));
            }
            None => PoolKind::Directory,
        },
        "image" => image(medium, size, fs)?,
        "device" => device(medium, size, fs)?,
        other => return Err(format!("{other:?} is not a kind of pool; use directory, image or device")),
    };
    if pool.kind.medium().is_some() {
        pool.path = default.path.join(Settings::POOLS_DIR).join(pool.name.as_str());
    }
    Ok(pool)
}

fn image(file: PathBuf, size: Option<&str>, fs: Option<&str>) -> Result<PoolKind, String> {
    let fs_type = managed_fs_type(fs)?;
    let size = size.ok_or("an image needs a size; add size=SIZE such as size=200Gi")?;
    let bytes = parse_quantity(size).map_err(|e| e.to_string())?;
    let bytes = bytes.checked_next_multiple_of(GRANULARITY).ok_or("its size is too large")?;
    let least = fs_type.minimum_bytes();
    if bytes < least {
        let least = format_bytes(least);
        return Err(format!("{size:?} is too small for {fs_type}, use at least {least}"));
    }
    let name =
        file.file_name().and_then(|name| name.to_str()).ok_or("the name of the image is not valid UTF-8")?;
    if TAKEN_NAMES.contains(&name) || TAKEN_ENDS.iter().any(|end| name.ends_with(end)) {
        return Err(format!("{name:?} is like the name of a file of the driver; choose another name"));
    }
    Ok(PoolKind::Image { file, bytes, fs_type })
}

fn device(device: PathBuf, size: Option<&str>, fs: Option<&str>) -> Result<PoolKind, String> {
    match size {
        Some(_) => Err("the size of a device cannot be set; leave size= out".to_owned()),
        None => Ok(PoolKind::Device { device, fs_type: managed_fs_type(fs)? }),
    }
}

/// The filesystem of a managed pool, which is there for the sake of reflinks.
fn managed_fs_type(fs: Option<&str>) -> Result<FsType, String> {
    match fs.unwrap_or("xfs").parse() {
        Ok(FsType::Ext4) => {
            Err("ext4 cannot share blocks between files, which instant copies need: use fs=xfs or fs=btrfs"
                .to_owned())
        }
        Ok(fs_type) => Ok(fs_type),
        Err(_) => Err(format!("fs={} is not supported; use fs=xfs or fs=btrfs", fs.unwrap_or_default())),
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

fn reserve(text: &str) -> Result<Reserve, String> {
    if text == "auto" {
        return Ok(Reserve::Auto);
    }
    let Some(percent) = text.strip_suffix('%') else {
        return parse_quantity(text)
            .map(Reserve::Bytes)
            .map_err(|e| format!("{e}, or a percentage such as 10%, or auto"));
    };
    let percent = plain_number(percent).filter(|percent| (0.0..100.0).contains(percent));
    percent
        .map(Reserve::Percent)
        .ok_or_else(|| format!("{text:?} is not a percentage from 0% to less than 100%"))
}

fn overcommit(text: &str) -> Result<f64, String> {
    let ratio = plain_number(text).filter(|ratio| (1.0..=MAX_OVERCOMMIT).contains(ratio));
    ratio.ok_or_else(|| format!("{text:?} is not a ratio from 1.0 to {MAX_OVERCOMMIT}"))
}

/// A number in digits: `f64`'s own parser also takes `nan`, `inf` and `1e3`.
fn plain_number(text: &str) -> Option<f64> {
    let plain = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    if plain { text.parse().ok() } else { None }
}
