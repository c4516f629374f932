//! What people see. A reader that goes away, such as `head`, stops nothing.

use std::io::{self, Write};

use anstream::{AutoStream, ColorChoice};
use comfy_table::{CellAlignment, Table, presets};

use super::life::{Step, Times};
use super::machine::{Finding, Level};
use crate::config::Check;

/// Standard output.
#[derive(Debug, Clone)]
pub(super) struct Output {
    colours: bool,
}

/// How a thing went, for its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tone {
    Good,
    Doubtful,
    Bad,
}

impl Output {
    /// Returns output with colours if standard output is a terminal that has them. NO_COLOR, CLICOLOR, CLICOLOR_FORCE
    /// and TERM decide as in other programs.
    pub(super) fn new() -> Self {
        Output { colours: AutoStream::choice(&io::stdout()) != ColorChoice::Never }
    }

    /// Text without an end of line.
    fn text(&self, text: &str) {
        let mut out = io::stdout().lock();
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    /// A line.
    pub(super) fn line(&self, line: impl std::fmt::Display) {
        self.text(&format!("{line}\n"));
    }

    /// A text in the colour of its tone.
    pub(super) fn coloured(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            Tone::Good => "32",
            Tone::Doubtful => "33",
            Tone::Bad => "31",
        };
        if self.colours { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }

    /// What was found on the machine.
    pub(super) fn finding(&self, finding: &Finding) {
        let (word, tone) = match finding.level {
            Level::Ok => ("ok  ", Tone::Good),
            Level::Warn => ("warn", Tone::Doubtful),
            Level::Fail => ("FAIL", Tone::Bad),
        };
        self.line(format_args!("  {}  {:<12} {}", self.coloured(tone, word), finding.what, finding.text));
        if let Some(advice) = &finding.advice {
            self.line(format_args!("  {:<18} {advice}", ""));
        }
    }

    /// The progress line of a kind begins.
    pub(super) fn begin(&self, check: Check) {
        self.text(&format!("  {:<20}", check.as_str()));
    }

    /// A step begins.
    pub(super) fn progress(&self, step: &str) {
        self.text(&format!("{step} · "));
    }

    /// The progress line ends.
    pub(super) fn end(&self, tone: Tone, how: &str) {
        self.line(self.coloured(tone, how));
    }
}

/// Milliseconds of each step of each kind.
pub(super) fn times(kinds: &[(Check, Times)]) -> String {
    let ms = |time: std::time::Duration| format!("{:.1}", time.as_secs_f64() * 1000.0);
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let names = kinds.iter().map(|(check, _)| check.as_str().to_owned());
    table.set_header(std::iter::once("ms".to_owned()).chain(names));
    for (row, step) in Step::ALL.into_iter().enumerate() {
        let cells = kinds
            .iter()
            .map(|(_, times)| times.get(row).copied().flatten().map_or_else(|| "-".to_owned(), ms));
        table.add_row(std::iter::once(step.as_str().to_owned()).chain(cells));
    }
    let total = kinds.iter().map(|(_, times)| ms(times.iter().flatten().sum()));
    table.add_row(std::iter::once("total".to_owned()).chain(total));
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.trim_fmt()
}

/// `a`, `a and b`, `a, b and c`.
pub(crate) fn list(names: &[&str]) -> String {
    match names {
        [] => "nothing".to_owned(),
        [one] => (*one).to_owned(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_step_not_reached_is_a_dash() {
        let some = vec![Some(Duration::from_micros(1500)), None, Some(Duration::from_millis(20))];
        let table = times(&[(Check::Ext4, some), (Check::Block, Vec::new())]);
        let row =
            |name: &str| table.lines().find(|line| line.trim().starts_with(name)).map(str::to_owned).unwrap();
        assert!(row("create").contains("1.5") && row("create").trim().ends_with('-'), "{table}");
        assert!(row("total").contains("21.5") && row("total").trim().ends_with("0.0"), "{table}");
        assert!(row("delete").matches('-').count() >= 2 && !table.contains('\x1b'), "{table}");
    }

    #[test]
    fn lists_read_like_a_sentence() {
        assert_eq!((list(&["a"]).as_str(), list(&["a", "b", "c"]).as_str()), ("a", "a, b and c"));
    }
}
