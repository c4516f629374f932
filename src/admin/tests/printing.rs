//! What is printed, without a cluster.

use super::Printed;
use crate::admin::follow::{Ending, Follow, Goal};
use crate::admin::screen::{Screen, Style, table};
use crate::admin::seen::{Name, Told};

fn name(name: &str) -> Name {
    Name { namespace: "shop".to_owned(), name: name.to_owned() }
}

fn told(phase: &str, message: &str) -> Told {
    Told {
        phase: phase.to_owned(),
        message: message.to_owned(),
        source: "node-1".to_owned(),
        target: "node-2".to_owned(),
        bytes: 10 << 30,
        ..Told::default()
    }
}

fn screen(style: Style) -> (Screen, Printed) {
    let out = Printed::default();
    (Screen::on(style, Box::new(out.clone()), Box::new(Printed::default())), out)
}

#[test]
fn a_line_for_each_phase_and_each_round() {
    let (mut screen, out) = screen(Style::Plain);
    let round = |rounds, sent| Told {
        rounds,
        sent_bytes: sent,
        last_sent_bytes: sent,
        ..told("CatchingUp", "what has changed is being copied")
    };
    let all = [
        told("Copying", "the first copy is being made"),
        told("Copying", "the first copy is being made: 10 %"),
        told("Copying", "the first copy is being made: 90 %"),
        told("CatchingUp", "what has changed is being copied"),
        round(1, 3 << 20),
        round(2, 1 << 20),
        told("Ready", "waiting until pod db-0 has left"),
        told("Ready", "waiting until pod db-1 has left"),
    ];
    let mut before: Option<&Told> = None;
    for told in &all {
        screen.told(&name("data"), before, told);
        before = Some(told);
    }
    assert_eq!(
        out.text(),
        "shop/data: Copying (node-1 to node-2): the first copy is being made\n\
         shop/data: CatchingUp (node-1 to node-2): what has changed is being copied\n\
         shop/data: CatchingUp, round 1: 3 MiB sent\n\
         shop/data: CatchingUp, round 2: 1 MiB sent\n\
         shop/data: Ready (node-1 to node-2): waiting until pod db-0 has left\n\
         shop/data: Ready (node-1 to node-2): waiting until pod db-1 has left\n"
    );
}

#[test]
fn bars_are_drawn_over_each_other_below_the_lines() {
    let (mut screen, out) = screen(Style::Bars);
    let mut copying = Follow::new(name("data"), Goal::Moved("node-2".to_owned()));
    copying.told = Some(told("Copying", "the first copy is being made: 50 %"));
    let waiting = Follow::new(name("a-longer-name"), Goal::Moved("node-2".to_owned()));
    let done = Follow::ended(name("done"), Goal::GivenUp, Ending::Gone);
    let follows = [copying, waiting, done];
    screen.draw(&follows);
    let text = out.text();
    assert!(text.contains("shop/data           [############------------]  Copying     50 %\n"), "{text}");
    assert!(text.contains("shop/a-longer-name  waits for the controller\n"), "{text}");
    assert!(!text.contains("shop/done"), "{text}");
    screen.line("a line");
    assert!(
        out.text().ends_with("\x1b[2A\r\x1b[Ja line\n"),
        "two lines are taken away first: {:?}",
        out.text()
    );
    screen.draw(&follows);
    screen.draw(&follows);
    assert_eq!(out.text().matches("\x1b[2A").count(), 2);
}

#[test]
fn only_so_many_bars_are_drawn() {
    let (mut screen, out) = screen(Style::Bars);
    let follows: Vec<Follow> =
        (0..25).map(|n| Follow::new(name(&format!("data-{n}")), Goal::GivenUp)).collect();
    screen.draw(&follows);
    assert!(out.text().contains("and 5 more\n"));
    assert_eq!(out.text().matches("shop/").count(), 20);
}

#[test]
fn the_table_has_a_row_for_each_claim() {
    let cut = Some("2026-01-02T03:04:05Z".to_owned());
    let standby = Told { last_cut: cut, rounds: 7, sent_bytes: 5 << 20, ..told("Standby", "") };
    let refused = Told { phase: "Refused".to_owned(), message: "no room".to_owned(), ..Told::default() };
    let text = table(&[(name("data"), standby), (name("log"), refused)]);
    let words = |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(0)[..5], ["NAMESPACE", "CLAIM", "PHASE", "FROM", "TO"]);
    let row = words(1);
    assert_eq!(
        row[..10],
        ["shop", "data", "Standby", "node-1", "node-2", "10", "GiB", "5", "MiB", "7"],
        "{text}"
    );
    assert!(row[10].ends_with('d'), "the age of the copy: {text}");
    assert_eq!(words(2), ["shop", "log", "Refused", "-", "-", "-", "-", "0", "-", "no", "room"]);
}
