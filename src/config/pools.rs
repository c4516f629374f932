//! `--pool`, `--reserve` and `--overcommit`.

use std::path::Path;

use super::{ConfigError, Flag, fields};
use crate::cli::ServeArgs;
use crate::model::{PoolName, PoolSettings, Reserve, parse_quantity};

const POOL: Flag = Flag("--pool", "HOSTLOOP_POOLS");
/// More than this many bytes promised for each that exists is a typing error.
const MAX_OVERCOMMIT: f64 = 1000.0;

/// Every pool, the default one (which is the data directory) first.
pub(super) fn pools(args: &ServeArgs, data_dir: &Path) -> Result<Vec<PoolSettings>, ConfigError> {
    let default = PoolSettings {
        name: PoolName::default(),
        path: data_dir.to_owned(),
        reserve: reserve(&args.reserve).map_err(|e| Flag("--reserve", "HOSTLOOP_RESERVE").wrong(e))?,
        overcommit: overcommit(&args.overcommit)
            .map_err(|e| Flag("--overcommit", "HOSTLOOP_OVERCOMMIT").wrong(e))?,
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

/// One `NAME=PATH[,reserve=…][,overcommit=…]`; what it leaves out is as in the default pool.
fn pool(text: &str, default: &PoolSettings) -> Result<PoolSettings, String> {
    let mut parts = text.split(',');
    let (name, path) = parts.next().and_then(|part| part.split_once('=')).ok_or("write it as NAME=PATH")?;
    let name: PoolName = name.parse().map_err(|e: crate::model::InvalidPoolName| e.to_string())?;
    let mut pool = PoolSettings { name, path: fields::absolute(path)?, ..default.clone() };
    for option in parts {
        match option.split_once('=') {
            Some(("reserve", value)) => pool.reserve = reserve(value)?,
            Some(("overcommit", value)) => pool.overcommit = overcommit(value)?,
            _ => {
                return Err(format!(
                    "{option:?} is no option of a pool, use reserve=SIZE|PERCENT% or overcommit=RATIO"
                ));
            }
        }
    }
    Ok(pool)
}

/// Why two pools cannot be together.
fn conflict(new: &PoolSettings, other: &PoolSettings) -> Option<String> {
    if new.name == other.name && new.name.as_str() == PoolName::DEFAULT {
        return Some(
            "the pool \"default\" is the data directory (--data-dir), choose another name".to_owned(),
        );
    }
    if new.name == other.name {
        return Some(format!("the name {:?} is given twice", new.name.as_str()));
    }
    let what = if new.path == other.path {
        "the same directory as"
    } else if new.path.starts_with(&other.path) {
        "inside the directory of"
    } else if other.path.starts_with(&new.path) {
        "around the directory of"
    } else {
        return None;
    };
    Some(format!(
        "it is {what} the pool {:?} ({}), choose another one",
        other.name.as_str(),
        other.path.display()
    ))
}

fn reserve(text: &str) -> Result<Reserve, String> {
    let Some(percent) = text.strip_suffix('%') else {
        return parse_quantity(text)
            .map(Reserve::Bytes)
            .map_err(|e| format!("{e}, or a percentage such as 10%"));
    };
    let percent = plain_number(percent).filter(|percent| (0.0..100.0).contains(percent));
    percent
        .map(Reserve::Percent)
        .ok_or_else(|| format!("{text:?} is no percentage from 0% to less than 100%"))
}

fn overcommit(text: &str) -> Result<f64, String> {
    let ratio = plain_number(text).filter(|ratio| (1.0..=MAX_OVERCOMMIT).contains(ratio));
    ratio.ok_or_else(|| format!("{text:?} is no ratio from 1.0 to {MAX_OVERCOMMIT}"))
}

/// A number in digits: `f64`'s own parser also takes `nan`, `inf` and `1e3`.
fn plain_number(text: &str) -> Option<f64> {
    let plain = text.chars().all(|c| c.is_ascii_digit() || c == '.');
    if plain { text.parse().ok() } else { None }
}
