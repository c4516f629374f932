//! The result as bars of text.

use std::fmt::Write;

use super::pattern::Pattern;
use super::results::{Place, Results};
use crate::bench::output::figure;

/// Characters of a bar for the ratio 1.
const WHOLE: usize = 32;
/// No bar is longer: a ratio above this is cut, its number is not.
const LONGEST: usize = 48;
/// Eighths of a character, by how many.
const PARTS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];

/// A bar for a ratio, where 1 is [`WHOLE`] characters.
fn bar(ratio: f64) -> String {
    let eighths = (ratio * (WHOLE * 8) as f64).round().clamp(0.0, (LONGEST * 8) as f64) as usize;
    let part = PARTS.get(eighths % 8).copied().unwrap_or_default();
    format!("{}{part}", "█".repeat(eighths / 8))
}

/// A paragraph for each pattern, with a line for each place: name, median, ratio, bar.
pub(super) fn bars(results: &Results) -> String {
    let width = results.places.iter().map(|place| place.name().len()).max().unwrap_or_default();
    let mut text = String::new();
    for pattern in Pattern::ALL {
        let _ = writeln!(text, "{} ({})", pattern.title(), pattern.unit());
        let rows = results.places.iter().filter_map(|place| row(results, place, pattern, width));
        rows.for_each(|row| text.push_str(&row));
        text.push('\n');
    }
    text
}

fn row(results: &Results, place: &Place, pattern: Pattern, width: usize) -> Option<String> {
    let (median, ratio) = (place.median(pattern)?, results.ratio(place, pattern)?);
    Some(format!("  {:<width$} {:>9} {ratio:>5.2} {}\n", place.name(), figure(median), bar(ratio)))
}

#[cfg(test)]
mod tests {
    use super::super::results::tests::results;
    use super::*;
    use crate::config::Candidate;

    #[test]
    fn a_bar_is_as_long_as_its_ratio() {
        assert_eq!(bar(1.0), "█".repeat(32));
        assert_eq!(bar(0.5), "█".repeat(16));
        assert_eq!(bar(0.5 + 1.0 / 64.0), format!("{}▌", "█".repeat(16)));
        assert_eq!((bar(0.0).as_str(), bar(9.0).chars().count()), ("", LONGEST));
    }

    #[test]
    fn a_line_has_both_figures_and_a_device_has_no_files() {
        let text = bars(&results(&[
            (None, [20_000.0, 1.0, 1.0, 4.0, 1.0, 1.0]),
            (Some(Candidate::Block), [10_000.0, 1.0, 1.0, f64::NAN, 1.0, 1.0]),
        ]));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "Random read, 4 KiB (per second)");
        assert_eq!(lines[1], format!("  plain directory    20,000  1.00 {}", "█".repeat(32)));
        assert_eq!(lines[2], format!("  block              10,000  0.50 {}", "█".repeat(16)));
        let files = text.split("\n\n").find(|part| part.starts_with("New file")).unwrap();
        assert!(files.contains(PLAIN_LINE) && !files.contains("block"), "{files}");
    }

    const PLAIN_LINE: &str = "  plain directory      4.00  1.00 █";
}
