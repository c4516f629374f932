//! What people see: the result on stdout, what happens meanwhile on stderr, so that `--json` has stdout for itself. A
//! reader that goes away, such as `head`, stops nothing.

use std::io::{self, Write};

/// A line about what happens now.
pub(super) fn progress(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// The result, without its last end of line.
pub(super) fn result(text: &str) {
    let mut out = io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

/// A rate or a time with about three digits.
pub(super) fn figure(value: f64) -> String {
    match value {
        value if value >= 100.0 => thousands(value),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

/// A whole number with separators: 12,345.
fn thousands(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_the_digits_that_say_something() {
        for (value, text) in [
            (0.123, "0.12"),
            (9.994, "9.99"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1234.0, "1,234"),
            (1e6, "1,000,000"),
        ] {
            assert_eq!(figure(value), text);
        }
    }
}
