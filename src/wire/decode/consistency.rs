//! How a copy of a volume in use is taken: `freeze` and `freezeTimeout` of a VolumeSnapshotClass, a
//! VolumeGroupSnapshotClass, or, for clones, a StorageClass.

use std::collections::HashMap;

use super::keys::{Given, YES_NO};
use crate::error::Error;
use crate::model::Consistency;

pub(super) const FREEZE: &str = "freeze";
pub(super) const FREEZE_TIMEOUT: &str = "freezeTimeout";

/// What a VolumeSnapshotClass and a VolumeGroupSnapshotClass can set.
const KEYS: [&str; 2] = [FREEZE, FREEZE_TIMEOUT];
/// Shortest `freezeTimeout` in milliseconds: less would fail under any load.
const SHORTEST_MS: u64 = 100;
/// Longest `freezeTimeout` in milliseconds.
const LONGEST_MS: u64 = Consistency::LONGEST_FREEZE_MS;

/// `parameters` of CreateSnapshot and CreateVolumeGroupSnapshot. The error says what to change.
pub(super) fn snapshot_class(parameters: &HashMap<String, String>) -> Result<Consistency, String> {
    let given = Given::new("parameter", parameters);
    given.only(&KEYS)?;
    of(&given)
}

/// What the parameters of a StorageClass, whatever else is in them, say of how a source in use is copied.
///
/// # Errors
/// INVALID_ARGUMENT with what to change.
pub fn consistency(parameters: &HashMap<String, String>) -> Result<Consistency, Error> {
    of(&Given::new("parameter", parameters)).map_err(Error::Invalid)
}

/// The two keys among others.
pub(super) fn of(given: &Given<'_>) -> Result<Consistency, String> {
    let default = Consistency::default();
    let freeze = given.choose(FREEZE, &YES_NO)?.unwrap_or(default.freeze);
    let freeze_timeout_ms = match given.get(FREEZE_TIMEOUT) {
        Some(text) => milliseconds(text).ok_or_else(|| {
            format!(
                "{} {FREEZE_TIMEOUT} is {text:?}; write a whole number with ms, s or m from 100ms to 5m, such as 30s",
                given.kind
            )
        })?,
        None => default.freeze_timeout_ms,
    };
    Ok(Consistency { freeze, freeze_timeout_ms })
}

/// A duration within the limits.
fn milliseconds(text: &str) -> Option<u64> {
    let (count, unit) = text.split_at_checked(text.find(|c: char| !c.is_ascii_digit())?)?;
    let unit_ms: u64 = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        _ => return None,
    };
    let ms = count.parse::<u64>().ok()?.checked_mul(unit_ms)?;
    (SHORTEST_MS..=LONGEST_MS).contains(&ms).then_some(ms)
}

#[cfg(test)]
mod tests {
    use super::super::samples::map;
    use super::*;

    #[test]
    fn defaults_and_every_key_are_read() {
        assert_eq!(snapshot_class(&map(&[])), Ok(Consistency { freeze: true, freeze_timeout_ms: 30_000 }));
        let all = map(&[
            ("freeze", "false"),
            ("freezeTimeout", "2m"),
            ("csi.storage.k8s.io/snapshotter-secret-name", "x"),
        ]);
        assert_eq!(snapshot_class(&all), Ok(Consistency { freeze: false, freeze_timeout_ms: 120_000 }));
    }

    #[test]
    fn other_parameters_of_a_class_are_left_out() {
        let class = map(&[("backend", "directory"), ("freeze", "false"), ("freezeTimeout", "1s")]);
        assert_eq!(consistency(&class).ok(), Some(Consistency { freeze: false, freeze_timeout_ms: 1_000 }));
        let wrong = consistency(&map(&[("freeze", "sometimes")]));
        assert!(matches!(&wrong, Err(Error::Invalid(why)) if why.contains("parameter freeze")), "{wrong:?}");
    }

    #[test]
    fn durations_have_a_unit_and_a_range() {
        for (text, want) in [
            ("100ms", 100),
            ("500ms", 500),
            ("1s", 1_000),
            ("30s", 30_000),
            ("5m", 300_000),
            ("300s", 300_000),
        ] {
            assert_eq!(milliseconds(text), Some(want), "{text}");
        }
        for text in [
            "",
            "30",
            "s",
            "99ms",
            "0s",
            "6m",
            "301s",
            "1h",
            "1.5s",
            "-1s",
            "+1s",
            " 1s",
            "1 s",
            "1S",
            "1s1s",
            "1m30s",
            "18446744073709551615m",
            "99999999999999999999s",
            "١s",
            "é",
        ] {
            assert_eq!(milliseconds(text), None, "{text}");
        }
    }

    #[test]
    fn a_wrong_value_is_named() {
        let reason = |entry| snapshot_class(&map(&[entry])).expect_err("refused");
        let timeout = reason(("freezeTimeout", "1h"));
        assert!(timeout.contains("freezeTimeout is \"1h\"") && timeout.contains("100ms to 5m"), "{timeout}");
        assert!(reason(("freeze", "no")).contains("freeze is \"no\"; write true or false"));
        for key in ["discard", "pool", "Freeze", "timeout"] {
            let unknown = reason((key, "true"));
            assert!(
                unknown.contains(&format!("{key:?} is not known; there are freeze, freezeTimeout")),
                "{unknown}"
            );
        }
    }
}
