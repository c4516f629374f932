//! `--pool`, `--reserve` and `--overcommit`.

use std::path::PathBuf;

use super::value::{List, absolute, list};
use crate::model::{
    FsType, GRANULARITY, InvalidPoolName, PoolKind, PoolName, Reserve, format_bytes, parse_quantity,
};

/// More than this many bytes promised for each that exists is a typing error.
const MAX_OVERCOMMIT: f64 = 1000.0;

/// The smallest `--reserve` in bytes, but for none: less is a typing error, such as a forgotten unit or `%`.
const MIN_RESERVE: u64 = 1 << 20;

/// Names that an image cannot have: the driver truncates or replaces files with these names.
const TAKEN_NAMES: [&str; 1] = ["lock"];
const TAKEN_ENDS: [&str; 2] = [".hostloop-lock", ".hostloop-new"];

/// One `NAME=PATH[,OPTION=VALUE]...`. What it leaves out is as in the pool `default`.
#[derive(Debug, Clone)]
pub struct PoolArg {
    /// As it was written.
    pub(crate) text: String,
    pub(crate) name: PoolName,
    /// The directory, image or device.
    pub(crate) path: PathBuf,
    pub(crate) kind: PoolKind,
    pub(crate) reserve: Option<Reserve>,
    pub(crate) overcommit: Option<f64>,
    pub(crate) directories: bool,
}

pub(super) fn pools(text: &str) -> Result<List<PoolArg>, String> {
    list(text, ';', |entry| pool(entry).map_err(|problem| format!("{entry:?}: {problem}")))
}

fn pool(text: &str) -> Result<PoolArg, String> {
    let mut parts = text.split(',');
    let (name, path) = parts.next().and_then(|part| part.split_once('=')).ok_or("write it as NAME=PATH")?;
    let name = name.parse().map_err(|e: InvalidPoolName| e.to_string())?;
    let mut pool = PoolArg {
        text: text.to_owned(),
        name,
        path: absolute(path)?,
        kind: PoolKind::Directory,
        reserve: None,
        overcommit: None,
        directories: false,
    };
    let (mut kind, mut size, mut fs) = (None, None, None);
    for option in parts {
        match option.split_once('=') {
            Some(("reserve", value)) => pool.reserve = Some(reserve(value)?),
            Some(("overcommit", value)) => pool.overcommit = Some(overcommit(value)?),
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
    pool.kind = match kind.unwrap_or("directory") {
        "directory" => match size.map(|_| "size").or(fs.map(|_| "fs")) {
            Some(option) => {
                return Err(format!("{option}= is for a pool that hostloop makes; add kind=image"));
            }
            None => PoolKind::Directory,
        },
        "image" => image(pool.path.clone(), size, fs)?,
        "device" => device(pool.path.clone(), size, fs)?,
        other => return Err(format!("{other:?} is not a kind of pool; use directory, image or device")),
    };
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

pub(super) fn reserve(text: &str) -> Result<Reserve, String> {
    if text == "auto" {
        return Ok(Reserve::Auto);
    }
    let Some(percent) = text.strip_suffix('%') else {
        let bytes = parse_quantity(text).map_err(|e| format!("{e}, or a percentage such as 10%, or auto"))?;
        if (1..MIN_RESERVE).contains(&bytes) {
            return Err(format!(
                "{text:?} is a size of {bytes} bytes; use a percentage such as 10%, a size of at least {} such as 10Gi, or 0",
                format_bytes(MIN_RESERVE)
            ));
        }
        return Ok(Reserve::Bytes(bytes));
    };
    let percent = plain_number(percent).filter(|percent| (0.0..100.0).contains(percent));
    percent
        .map(Reserve::Percent)
        .ok_or_else(|| format!("{text:?} is not a percentage from 0% to less than 100%"))
}

pub(super) fn overcommit(text: &str) -> Result<f64, String> {
    let ratio = plain_number(text).filter(|ratio| (1.0..=MAX_OVERCOMMIT).contains(ratio));
    ratio.ok_or_else(|| format!("{text:?} is not a ratio from 1.0 to {MAX_OVERCOMMIT}"))
}

/// A number in digits: `f64`'s own parser also takes `nan`, `inf` and `1e3`.
fn plain_number(text: &str) -> Option<f64> {
    let plain = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    if plain { text.parse().ok() } else { None }
}
