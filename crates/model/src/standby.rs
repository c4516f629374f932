//! Copies that stand by on another node: what a StorageClass or a claim asks for (docs/moving.md).

use std::time::Duration;

/// How old the data of a standby copy may become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standby {
    pub interval: Duration,
}

impl Standby {
    /// The parameters of a StorageClass.
    pub const PARAMETER: &str = "standby";
    pub const INTERVAL_PARAMETER: &str = "standbyInterval";
    /// Lets each claim of the class ask for a standby copy.
    pub const BY_CLAIM_PARAMETER: &str = "standbyByClaim";
    /// A round costs a cut of the volume.
    const SHORTEST: Duration = Duration::from_secs(10);
    /// The cuts of a copy that nobody updates for a day go.
    const LONGEST: Duration = Duration::from_secs(12 * 60 * 60);
    const DEFAULT: Duration = Duration::from_secs(60);

    /// What `standby` and `standbyInterval` say; `None` where no copy is to stand by.
    ///
    /// # Errors
    /// What is wrong with either, and what it has to be.
    pub fn of(standby: Option<&str>, interval: Option<&str>) -> Result<Option<Standby>, String> {
        let interval = interval.map_or(Ok(Self::DEFAULT), Self::interval)?;
        match standby.map(str::trim) {
            None | Some("0") => Ok(None),
            Some("1") => Ok(Some(Standby { interval })),
            Some(other) => Err(format!("{} is {other:?}; it must be 0 or 1", Self::PARAMETER)),
        }
    }

    fn interval(text: &str) -> Result<Duration, String> {
        let read = humantime::parse_duration(text.trim()).ok();
        read.filter(|time| (Self::SHORTEST..=Self::LONGEST).contains(time)).ok_or_else(|| {
            format!(
                "{} is {text:?}; it must be a time from {} to {}, such as 1m",
                Self::INTERVAL_PARAMETER,
                humantime::format_duration(Self::SHORTEST),
                humantime::format_duration(Self::LONGEST)
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_stands_by_where_it_is_asked_for() {
        let of = |standby, interval| Standby::of(standby, interval).unwrap().map(|s| s.interval.as_secs());
        assert_eq!(of(None, None), None);
        assert_eq!(of(Some("0"), Some("1m")), None);
        assert_eq!(of(Some("1"), None), Some(60));
        assert_eq!(of(Some(" 1 "), Some("10s")), Some(10));
        assert_eq!(of(Some("1"), Some("12h")), Some(43_200));
        for interval in ["9s", "13h", "soon", "", "-1m"] {
            let why = Standby::of(Some("1"), Some(interval)).unwrap_err();
            assert!(why.contains("from 10s to 12h, such as 1m"), "{why}");
        }
        assert_eq!(Standby::of(Some("2"), None).unwrap_err(), "standby is \"2\"; it must be 0 or 1");
    }
}
