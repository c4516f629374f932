//! What people and programs see: lines, bars on a terminal, or JSON. A reader that goes away, such as `head`, stops
//! nothing.

use std::io::{self, IsTerminal as _, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::follow::{Ending, Follow, Goal, State};
use super::seen::{Name, Told};
use crate::cluster::mover::status::seconds_since;
use crate::model::format_bytes;

/// The width of a bar.
const BAR: usize = 24;
/// The most bars at a time.
const MOST_BARS: usize = 20;
/// Ends and begins the wrapping of long lines, so that a bar is one line on every terminal.
const CUT: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Style {
    /// A line for each phase and each round.
    Plain,
    /// The same, above a bar for each volume that is on its way.
    Bars,
    /// An object for each change.
    Json,
}

/// Standard output and standard error.
pub(super) struct Screen {
    pub(super) style: Style,
    out: Box<dyn Write + Send>,
    err: Box<dyn Write + Send>,
    /// Lines of bars that are drawn below the last line.
    drawn: usize,
}

/// A move or a copy that stands by, as a program reads it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Row<'a> {
    namespace: &'a str,
    claim: &'a str,
    phase: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    source: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    target: &'a str,
    bytes: u64,
    rounds: u32,
    sent_bytes: u64,
    changed_bytes: u64,
    last_sent_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    last_cut: Option<&'a str>,
    /// Seconds since the last cut.
    #[serde(skip_serializing_if = "Option::is_none")]
    age: Option<i64>,
    standby: bool,
    message: &'a str,
    /// How it ended, for a command that waits.
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
}

impl Screen {
    /// Returns a screen with bars if standard output is a terminal that can move its cursor.
    pub(super) fn new(json: bool) -> Self {
        let moves = io::stdout().is_terminal() && anstyle_query::term_supports_color();
        let style = match (json, moves) {
            (true, _) => Style::Json,
            (false, true) => Style::Bars,
            (false, false) => Style::Plain,
        };
        Screen::on(style, Box::new(io::stdout()), Box::new(io::stderr()))
    }

    pub(super) fn on(style: Style, out: Box<dyn Write + Send>, err: Box<dyn Write + Send>) -> Self {
        Screen { style, out, err, drawn: 0 }
    }

    /// A line for people. JSON has standard output for itself.
    pub(super) fn say(&mut self, line: &str) {
        match self.style {
            Style::Json => drop(writeln!(self.err, "{line}")),
            Style::Plain | Style::Bars => self.line(line),
        }
    }

    /// Something that is wrong.
    pub(super) fn problem(&mut self, line: &str) {
        self.clear();
        let _ = writeln!(self.err, "hostloop: {line}");
    }

    /// A result, whatever the style.
    pub(super) fn line(&mut self, line: &str) {
        self.clear();
        let _ = writeln!(self.out, "{line}").and_then(|()| self.out.flush());
    }

    fn clear(&mut self) {
        if self.drawn > 0 {
            let _ = write!(self.out, "\x1b[{}A\r\x1b[J", self.drawn).and_then(|()| self.out.flush());
            self.drawn = 0;
        }
    }

    /// The mover has told something new of a claim, after `before`.
    pub(super) fn told(&mut self, name: &Name, before: Option<&Told>, told: &Told) {
        match self.style {
            Style::Json => self.json(name, told, None),
            Style::Plain | Style::Bars => {
                if let Some(line) = news(before, told) {
                    self.line(&format!("{name}: {line}"));
                }
            }
        }
    }

    pub(super) fn json(&mut self, name: &Name, told: &Told, outcome: Option<&'static str>) {
        let row = Row {
            namespace: &name.namespace,
            claim: &name.name,
            phase: &told.phase,
            source: &told.source,
            target: &told.target,
            bytes: told.bytes,
            rounds: told.rounds,
            sent_bytes: told.sent_bytes,
            changed_bytes: told.changed_bytes,
            last_sent_bytes: told.last_sent_bytes,
            last_cut: told.last_cut.as_deref(),
            age: told.last_cut.as_deref().and_then(seconds_since),
            standby: told.stands_by(),
            message: &told.message,
            outcome,
        };
        if let Ok(text) = serde_json::to_string(&row) {
            self.line(&text);
        }
    }

    /// A claim that is followed has come to its end.
    pub(super) fn ended(&mut self, follow: &Follow) {
        let State::Ended(ending) = &follow.state else { return };
        let (outcome, text) = words(ending, &follow.goal);
        if self.style == Style::Json {
            let mut told = follow.told.clone().unwrap_or_default();
            told.message = text;
            return self.json(&follow.name, &told, Some(outcome));
        }
        self.line(&format!("{}: {text}", follow.name));
    }

    /// Draws a bar for each claim that has not ended.
    pub(super) fn draw(&mut self, follows: &[Follow]) {
        if self.style != Style::Bars {
            return;
        }
        self.clear();
        let going: Vec<&Follow> = follows.iter().filter(|follow| !follow.has_ended()).collect();
        let width = going.iter().map(|follow| follow.name.to_string().len()).max().unwrap_or(0);
        let mut lines: Vec<String> = going.iter().take(MOST_BARS).map(|follow| bar(follow, width)).collect();
        if going.len() > MOST_BARS {
            lines.push(format!("and {} more", going.len().saturating_sub(MOST_BARS)));
        }
        if lines.is_empty() {
            return;
        }
        self.drawn = lines.len();
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let _ = write!(self.out, "{CUT}{text}{WRAP}").and_then(|()| self.out.flush());
    }

    /// Leaves the bars where they are: what follows is below them.
    pub(super) fn keep(&mut self) {
        self.drawn = 0;
    }
}

/// How it ended, for programs and for people.
fn words(ending: &Ending, goal: &Goal) -> (&'static str, String) {
    match (ending, goal) {
        (Ending::Done(how), Goal::GivenUp) => ("done", how.clone()),
        (Ending::Done(how), _) => ("done", format!("done, {how}")),
        (Ending::Refused(why), _) => ("refused", format!("refused: {why}")),
        (Ending::GivenUp(how), Goal::GivenUp) => ("givenUp", format!("given up, {how}")),
        (Ending::GivenUp(why), _) => ("givenUp", format!("given up: {why}")),
        (Ending::Gone, _) => ("gone", "there is no claim of this name any more".to_owned()),
    }
}

/// What is new for people: a phase, a round, or what is waited for. `None` where it is only a percentage.
fn news(before: Option<&Told>, told: &Told) -> Option<String> {
    let same_phase = before.is_some_and(|before| before.phase == told.phase && before.target == told.target);
    let rounds = before.map_or(0, |before| before.rounds);
    if same_phase && told.rounds > rounds {
        return Some(format!(
            "{}, round {}: {} sent",
            told.phase,
            told.rounds,
            format_bytes(told.last_sent_bytes)
        ));
    }
    let same_message =
        before.is_some_and(|before| before.message == told.message || told.percent().is_some());
    if same_phase && same_message {
        return None;
    }
    let way = match (told.source.is_empty(), told.target.is_empty()) {
        (false, false) => format!(" ({} to {})", told.source, told.target),
        (true, false) => format!(" (to {})", told.target),
        (_, true) => String::new(),
    };
    let message = if told.message.is_empty() { String::new() } else { format!(": {}", told.message) };
    Some(format!("{}{way}{message}", told.phase))
}

fn bar(follow: &Follow, width: usize) -> String {
    let name = follow.name.to_string();
    let Some(told) = &follow.told else { return format!("{name:width$}  waits for the controller") };
    let filled = match told.phase.as_str() {
        "Copying" => told.percent().unwrap_or(0),
        "Refused" | "Cancelling" | "Returning" => 0,
        _ => 100,
    };
    let filled = (filled as usize).saturating_mul(BAR) / 100;
    let bar = format!("{}{}", "#".repeat(filled), "-".repeat(BAR.saturating_sub(filled)));
    let detail = match told.phase.as_str() {
        "Copying" => told.percent().map_or_else(|| told.message.clone(), |percent| format!("{percent} %")),
        "CatchingUp" => {
            format!("round {}, {} sent", told.rounds.saturating_add(1), format_bytes(told.sent_bytes))
        }
        _ => told.message.clone(),
    };
    format!("{name:width$}  [{bar}]  {:<10}  {detail}", told.phase)
}

/// The age of a moment in RFC 3339, as kubectl has it: 5s, 3m, 2h, 4d.
pub(super) fn age(moment: Option<&str>) -> String {
    match moment.and_then(seconds_since) {
        None => "-".to_owned(),
        Some(seconds) => match seconds.max(0) {
            seconds if seconds < 120 => format!("{seconds}s"),
            seconds if seconds < 2 * 3600 => format!("{}m", seconds / 60),
            seconds if seconds < 48 * 3600 => format!("{}h", seconds / 3600),
            seconds => format!("{}d", seconds / 86400),
        },
    }
}

/// The table of `hostloop status`.
pub(super) fn table(rows: &[(Name, Told)]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "NAMESPACE",
        "CLAIM",
        "PHASE",
        "FROM",
        "TO",
        "SIZE",
        "SENT",
        "ROUNDS",
        "LAST CUT",
        "MESSAGE",
    ]);
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    let bytes = |bytes: u64| if bytes == 0 { "-".to_owned() } else { format_bytes(bytes) };
    for (name, told) in rows {
        table.add_row([
            name.namespace.clone(),
            name.name.clone(),
            told.phase.clone(),
            or_dash(&told.source),
            or_dash(&told.target),
            bytes(told.bytes),
            bytes(told.sent_bytes),
            told.rounds.to_string(),
            age(told.last_cut.as_deref()),
            told.message.clone(),
        ]);
    }
    for column in 5..=8 {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}
