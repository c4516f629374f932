//! What people and programs see: lines, bars on a terminal, or JSON. A reader that goes away, such as `head`, stops
//! nothing.

use std::io::{self, IsTerminal as _, Write};

use comfy_table::{Table, presets};
use serde::Serialize;

use super::follow::{Ending, Follow, Goal, State};
use super::seen::{Name, Told};
use crate::cluster::moves::progress::percent;

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

/// A move or a copy, as a program reads it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row<'a> {
    pub(super) namespace: &'a str,
    pub(super) claim: &'a str,
    /// The kind and the name of the object, as kubectl takes them.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) object: String,
    #[serde(flatten)]
    pub(super) told: Told,
    pub(super) standby: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) last_pass: Option<&'a str>,
    /// Seconds since the last pass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) age: Option<i64>,
    /// The standby copy is older than its StorageClass allows.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(super) late: bool,
    /// How it ended, if a command waited for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) outcome: Option<&'static str>,
}

impl<'a> Row<'a> {
    pub(super) fn new(name: &'a Name, told: Told) -> Self {
        let (namespace, claim) = (name.namespace.as_str(), name.name.as_str());
        let (object, standby, last_pass, age) = (String::new(), false, None, None);
        Row { namespace, claim, object, told, standby, last_pass, age, late: false, outcome: None }
    }
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

    /// Prints all there is to see. With `again`, a terminal shows it in place of what it showed before.
    pub(super) fn page(&mut self, text: &str, again: bool) {
        if again && self.style == Style::Bars {
            let _ = write!(self.out, "\x1b[H\x1b[2J");
        }
        if !text.is_empty() {
            self.line(text);
        }
    }

    fn clear(&mut self) {
        if self.drawn > 0 {
            let _ = write!(self.out, "\x1b[{}A\r\x1b[J", self.drawn).and_then(|()| self.out.flush());
            self.drawn = 0;
        }
    }

    /// Prints what the controller has written of a claim after `before`.
    pub(super) fn told(&mut self, name: &Name, before: Option<&Told>, told: &Told) {
        match self.style {
            Style::Json => self.json(&Row::new(name, told.clone())),
            Style::Plain | Style::Bars => {
                if let Some(line) = news(before, told) {
                    self.line(&format!("{name}: {line}"));
                }
            }
        }
    }

    pub(super) fn json(&mut self, row: &Row<'_>) {
        if let Ok(text) = serde_json::to_string(row) {
            self.line(&text);
        }
    }

    /// Prints the end of a claim that is followed, if it has ended.
    pub(super) fn ended(&mut self, follow: &Follow) {
        let State::Ended(ending) = &follow.state else { return };
        let (outcome, text) = words(ending, follow.goal);
        if self.style == Style::Json {
            let told = Told { message: text, ..follow.told.clone().unwrap_or_default() };
            return self.json(&Row { outcome: Some(outcome), ..Row::new(&follow.name, told) });
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
fn words(ending: &Ending, goal: Goal) -> (&'static str, String) {
    match (ending, goal) {
        (Ending::Done(how), Goal::GivenUp) => ("done", how.clone()),
        (Ending::Done(how), _) => ("done", format!("done, {how}")),
        (Ending::Refused(why), _) => ("refused", format!("refused: {why}")),
        (Ending::GivenUp(how), Goal::GivenUp) => ("givenUp", format!("given up, {how}")),
        (Ending::GivenUp(why), _) => ("givenUp", format!("given up: {why}")),
        (Ending::Gone, _) => ("gone", "there is no claim of this name".to_owned()),
    }
}

/// Returns what is new for people: a phase, each tenth of the first copy, the passes, or what is waited for.
fn news(before: Option<&Told>, told: &Told) -> Option<String> {
    let before = before.filter(|before| before.phase == told.phase && before.target_node == told.target_node);
    if let Some(before) = before {
        let progress = || Some(format!("{}: {}", told.phase, told.progress));
        match (percent(&before.progress).unwrap_or(0), percent(&told.progress)) {
            (earlier, Some(percent)) if percent / 10 > earlier / 10 => return progress(),
            (_, Some(_)) => return None,
            (_, None) if before.progress != told.progress && !told.progress.is_empty() => return progress(),
            (_, None) if before.message == told.message => return None,
            (_, None) => {}
        }
    }
    let way = match (told.source_node.is_empty(), told.target_node.is_empty()) {
        (false, false) => format!(" ({} to {})", told.from(), told.to()),
        (true, false) => format!(" (to {})", told.to()),
        (_, true) => String::new(),
    };
    let message = if told.message.is_empty() { String::new() } else { format!(": {}", told.message) };
    Some(format!("{}{way}{message}", told.phase))
}

fn bar(follow: &Follow, width: usize) -> String {
    let name = follow.name.to_string();
    let Some(told) = &follow.told else { return format!("{name:width$}  waits for the controller") };
    let filled = match told.phase.as_str() {
        "Copying" if told.progress.is_empty() => 0,
        "Copying" => percent(&told.progress).unwrap_or(100),
        "Refused" | "GivingUp" | "Abandoning" => 0,
        _ => 100,
    };
    let filled = usize::from(filled).saturating_mul(BAR) / 100;
    let bar = format!("{}{}", "#".repeat(filled), "-".repeat(BAR.saturating_sub(filled)));
    let detail = match told.phase.as_str() {
        "Copying" if !told.progress.is_empty() => told.progress.clone(),
        _ => told.message.clone(),
    };
    format!("{name:width$}  [{bar}]  {:<11}  {detail}", told.phase)
}

/// Returns an age in seconds as kubectl prints it: 5s, 3m, 2h, 4d.
pub(super) fn age(seconds: Option<i64>) -> String {
    match seconds.map(|seconds| seconds.max(0)) {
        None => "-".to_owned(),
        Some(seconds) if seconds < 120 => format!("{seconds}s"),
        Some(seconds) if seconds < 2 * 3600 => format!("{}m", seconds / 60),
        Some(seconds) if seconds < 48 * 3600 => format!("{}h", seconds / 3600),
        Some(seconds) => format!("{}d", seconds / 86400),
    }
}

/// Returns the table of `hostloop status`.
pub(super) fn table(rows: &[Row<'_>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "NAMESPACE",
        "CLAIM",
        "OBJECT",
        "PHASE",
        "FROM",
        "TO",
        "PROGRESS",
        "LAST PASS",
        "MESSAGE",
    ]);
    let or_dash = |text: &str| if text.is_empty() { "-".to_owned() } else { text.to_owned() };
    for row in rows {
        let late = if row.late { " (late)" } else { "" };
        table.add_row([
            row.namespace.to_owned(),
            row.claim.to_owned(),
            row.object.clone(),
            row.told.phase.clone(),
            or_dash(&row.told.from()),
            or_dash(&row.told.to()),
            or_dash(&row.told.progress),
            format!("{}{late}", age(row.age)),
            row.told.message.clone(),
        ]);
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}
