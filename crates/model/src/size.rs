//! Sizes in bytes: quantities as people write them, and the choice of a size from a CSI `CapacityRange`.

/// Sizes are rounded up to this many bytes: the largest logical block size that a pool's disk may ask a loop
/// device for, so that an image is always a whole number of the device's blocks.
pub const GRANULARITY: u64 = 4096;

/// The size of a volume for which the caller named none.
pub const DEFAULT_BYTES: u64 = 1 << 30;

/// Text that is not a size.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a size; write bytes or a number with Ki, Mi, Gi, Ti, Pi, k, M, G, T or P, such as 10Gi"
)]
pub struct InvalidQuantity(pub String);

const SUFFIXES: [(&str, u64); 10] = [
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
    ("Pi", 1 << 50),
    ("k", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("P", 1_000_000_000_000_000),
];

/// Reads a size as Kubernetes writes quantities: `1073741824`, `1Gi`, `1.5Gi`, `500M`.
///
/// # Errors
/// `InvalidQuantity` for anything else, also for a size beyond `i64::MAX`, which CSI cannot carry.
pub fn parse_quantity(text: &str) -> Result<u64, InvalidQuantity> {
    let invalid = || InvalidQuantity(text.to_owned());
    let (number, unit) = SUFFIXES
        .iter()
        .find_map(|(suffix, unit)| text.strip_suffix(suffix).map(|number| (number, *unit)))
        .unwrap_or((text, 1));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = |s: &str| s.chars().all(|c| c.is_ascii_digit());
    if whole.is_empty() || !digits(whole) || !digits(fraction) || fraction.len() > 9 || number.ends_with('.')
    {
        return Err(invalid());
    }
    let scale = 10u128.pow(u32::try_from(fraction.len()).map_err(|_| invalid())?);
    let value: u128 = format!("{whole}{fraction}").parse().map_err(|_| invalid())?;
    let bytes = value.checked_mul(u128::from(unit)).ok_or_else(invalid)?.div_ceil(scale);
    u64::try_from(bytes).ok().filter(|b| i64::try_from(*b).is_ok()).ok_or_else(invalid)
}

/// Returns a size for people: in the largest binary unit, with one decimal if it is not whole.
pub fn format_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let mut unit = "B";
    let mut size = bytes as f64;
    for next in UNITS {
        if size < 1024.0 {
            break;
        }
        size /= 1024.0;
        unit = next;
    }
    if size.fract() == 0.0 { format!("{size:.0} {unit}") } else { format!("{size:.1} {unit}") }
}

/// Returns a size that a person has to give exactly: `5 GiB`, or `1000001536 bytes (953.7 MiB)` if a unit would round it.
pub fn format_exactly(bytes: u64) -> String {
    let unit = 1 << (bytes.max(1).ilog2() / 10 * 10);
    match u128::from(bytes) * 10 % unit {
        0 => format_bytes(bytes),
        _ => format!("{bytes} bytes ({})", format_bytes(bytes)),
    }
}

/// Returns `bytes` and five percent: what a copy of a volume of this size may take on another node's disk,
/// with the data that describe it.
pub const fn with_margin(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 20)
}

/// The bytes that a node may add to the size of a volume of any size.
const ROUNDED_UP: u64 = 16 << 20;

/// Returns the largest size in bytes of a volume whose size was requested as `bytes`: nodes round sizes up.
pub const fn most_bytes(bytes: u64) -> u64 {
    with_margin(bytes).saturating_add(ROUNDED_UP)
}

/// Returns two sizes that a message compares: exactly if they would look the same.
pub fn format_two(one: u64, other: u64) -> [String; 2] {
    let rounded = [one, other].map(format_bytes);
    // 1 TiB and a byte more are `1 TiB` and `1.0 TiB`.
    let [a, b] = rounded.each_ref().map(|text| text.replace(".0 ", " "));
    if one != other && a == b { [one, other].map(format_exactly) } else { rounded }
}

/// Returns the size of a volume for a request: at least `minimum`, in whole blocks of [`GRANULARITY`].
pub fn rounded(required: u64, minimum: u64) -> u64 {
    let bytes = required.max(minimum).max(1);
    bytes.checked_next_multiple_of(GRANULARITY).unwrap_or(u64::MAX)
}

/// What the caller asks for: CSI `CapacityRange`, with 0 read as "not given" (csi.proto, CapacityRange).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SizeRange {
    /// The volume must have at least this many bytes; 0 for no wish.
    pub required: u64,
    /// The volume must not have more bytes than this; 0 for no limit.
    pub limit: u64,
}

/// A range that no volume can fulfil; OUT_OF_RANGE on the wire.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SizeError {
    /// The two ends contradict each other.
    #[error("limit_bytes {} is less than required_bytes {}", format_exactly(*limit), format_exactly(*required))]
    LimitBelowRequired { required: u64, limit: u64 },
    /// More than the driver's largest volume.
    #[error(
        "{} is more than the largest volume of {} (--max-volume-size, and what one file of the pool can have)",
        format_exactly(*required),
        format_exactly(*maximum)
    )]
    AboveMaximum {
        required: u64,
        /// The largest size of a volume.
        maximum: u64,
    },
    /// The smallest possible volume is above the limit.
    #[error(
        "limit_bytes {} is too small: the smallest possible size is {}",
        format_exactly(*limit),
        format_exactly(*minimum)
    )]
    LimitBelowMinimum {
        limit: u64,
        /// The smallest size that can be made.
        minimum: u64,
    },
}

impl SizeRange {
    /// The size of a new volume: what is required, at least `minimum`, rounded up to [`GRANULARITY`];
    /// `DEFAULT_BYTES` (or the limit, if that is less) if nothing is required.
    ///
    /// # Errors
    /// [`SizeError`] where no whole number of blocks lies in the range; nothing is ever rounded past the limit.
    pub fn choose(self, minimum: u64, maximum: u64) -> Result<u64, SizeError> {
        let SizeRange { required, limit } = self;
        if limit != 0 && limit < required {
            return Err(SizeError::LimitBelowRequired { required, limit });
        }
        if required > maximum {
            return Err(SizeError::AboveMaximum { required, maximum });
        }
        let ceiling = if limit == 0 { maximum } else { limit.min(maximum) };
        let wish =
            if required == 0 { DEFAULT_BYTES.min(ceiling / GRANULARITY * GRANULARITY) } else { required };
        let size = rounded(wish, minimum);
        match size <= ceiling {
            true => Ok(size),
            false if limit != 0 => Err(SizeError::LimitBelowMinimum { limit, minimum: size }),
            false => Err(SizeError::AboveMaximum { required: size, maximum }),
        }
    }

    /// Returns what a record says of the request for a volume of `bytes`, if that is more than was asked for.
    pub fn requested(self, bytes: u64) -> Option<u64> {
        Some(self.required).filter(|required| (1..bytes).contains(required))
    }

    /// Whether a volume of `size` bytes is what the caller asks for.
    pub fn contains(self, size: u64) -> bool {
        size >= self.required && (self.limit == 0 || size <= self.limit)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const TIB: u64 = 1 << 40;

    fn range(required: u64, limit: u64) -> SizeRange {
        SizeRange { required, limit }
    }

    #[test]
    fn a_node_may_round_a_size_up() {
        assert_eq!(most_bytes(1000 << 20), (1050 << 20) + (16 << 20));
        assert_eq!(most_bytes(u64::MAX), u64::MAX);
    }

    #[test]
    fn quantities_are_read_as_kubernetes_does() {
        for (text, bytes) in
            [("0", 0), ("1073741824", 1 << 30), ("1Gi", 1 << 30), ("1.5Ki", 1536), ("2M", 2_000_000)]
        {
            assert_eq!(parse_quantity(text), Ok(bytes), "{text}");
        }
        for text in ["", "Gi", "-1", "1.", ".5", "1GB", "1 Gi", "1e3", "99999999Pi", "1.0000000001Gi", "１"]
        {
            assert!(parse_quantity(text).is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_rounded_for_people() {
        assert_eq!(format_bytes(512), "512 B");
        assert_eq!(format_bytes(1 << 30), "1 GiB");
        assert_eq!(format_bytes(1536), "1.5 KiB");
        assert_eq!(format_bytes(5_497_558_138_880), "5 TiB");
    }

    #[test]
    fn a_size_that_a_unit_would_round_is_exact() {
        for (bytes, text) in [
            (0, "0 B"),
            (512, "512 B"),
            (1536, "1.5 KiB"),
            (5 * TIB, "5 TiB"),
            (TIB - 1, "1099511627775 bytes (1024.0 GiB)"),
            (1_000_001_536, "1000001536 bytes (953.7 MiB)"),
            (u64::MAX, "18446744073709551615 bytes (16 EiB)"),
        ] {
            assert_eq!(format_exactly(bytes), text);
        }
        assert_eq!(format_two(TIB, TIB + 1), ["1 TiB", "1099511627777 bytes (1.0 TiB)"]);
        assert_eq!(format_two(TIB, 2 * TIB + 1), ["1 TiB", "2.0 TiB"]);
        assert_eq!(format_two(1_000_000_000, 90 * MIB), ["953.7 MiB", "90 MiB"]);
        assert_eq!(format_two(MIB + 1, MIB + 1), ["1.0 MiB", "1.0 MiB"]);
    }

    #[test]
    fn chooses_exactly_what_is_asked_for() {
        assert_eq!(range(10 << 30, 10 << 30).choose(MIB, TIB), Ok(10 << 30));
        assert_eq!(range(0, 0).choose(MIB, TIB), Ok(DEFAULT_BYTES));
        assert_eq!(range(0, 5 * MIB + 1).choose(MIB, TIB), Ok(5 * MIB));
        assert_eq!(range(1_572_865, 0).choose(MIB, TIB), Ok(1_576_960));
        assert_eq!(range(1, 0).choose(4 * MIB, TIB), Ok(4 * MIB));
    }

    #[test]
    fn refuses_what_cannot_be() {
        assert!(matches!(range(2, 1).choose(1, TIB), Err(SizeError::LimitBelowRequired { .. })));
        assert!(matches!(range(TIB + 1, 0).choose(1, TIB), Err(SizeError::AboveMaximum { .. })));
        assert!(matches!(range(0, MIB).choose(4 * MIB, TIB), Err(SizeError::LimitBelowMinimum { .. })));
        // 1 byte below a whole block: rounding up would pass the limit.
        assert!(matches!(range(MIB + 1, MIB + 2).choose(1, TIB), Err(SizeError::LimitBelowMinimum { .. })));
        assert!(matches!(range(0, 4095).choose(1, TIB), Err(SizeError::LimitBelowMinimum { .. })));
    }

    proptest! {
        #[test]
        fn a_chosen_size_is_in_range(required in 0u64..TIB * 2, limit in 0u64..TIB * 2, minimum in 0u64..MIB * 400) {
            if let Ok(size) = range(required, limit).choose(minimum, TIB) {
                prop_assert!(range(required, limit).contains(size));
                prop_assert!(size >= minimum && size <= TIB && size % GRANULARITY == 0 && size > 0);
            }
        }

        #[test]
        fn no_text_panics(text in ".{0,30}") {
            let _ = parse_quantity(&text);
        }
    }
}
