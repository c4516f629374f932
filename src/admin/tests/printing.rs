//! What is printed, without a cluster.

use super::Printed;
use crate::admin::follow::{Ending, Follow, Goal};
use crate::admin::screen::{Row, Screen, Style, table};
use crate::admin::seen::{Move, Name, Told};

fn name(name: &str) -> Name {
    Name { namespace: "shop".to_owned(), name: name.to_owned() }
}

fn told(phase: &str, message: &str) -> Told {
    Told {
        phase: phase.to_owned(),
        message: message.to_owned(),
        source_node: "node-1".to_owned(),
        target_node: "node-2".to_owned(),
        ..Told::default()
    }
}

fn follow(claim: &str) -> Follow {
    Follow::of_move(&Move { claim: name(claim), ..Move::default() })
}

fn screen(style: Style) -> (Screen, Printed) {
    let out = Printed::default();
    (Screen::on(style, Box::new(out.clone()), Box::new(Printed::default())), out)
}

#[test]
fn a_line_for_each_phase_and_each_pass() {
    let (mut screen, out) = screen(Style::Plain);
    let passes = |progress: &str| Told {
        progress: progress.to_owned(),
        ..told("Copying", "passes bring what has changed meanwhile")
    };
    let copied = |percent: &str| Told {
        progress: percent.to_owned(),
        ..told("Copying", &format!("another operation is running: {percent} copied"))
    };
    let all = [
        told("Copying", "the first copy is being made"),
        copied("4%"),
        copied("11%"),
        copied("19%"),
        copied("90%"),
        told("Copying", "passes bring what has changed meanwhile"),
        passes("1 pass, 3 MiB"),
        passes("2 passes, 4 MiB"),
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
         shop/data: Copying: 11%\n\
         shop/data: Copying: 90%\n\
         shop/data: Copying (node-1 to node-2): passes bring what has changed meanwhile\n\
         shop/data: Copying: 1 pass, 3 MiB\n\
         shop/data: Copying: 2 passes, 4 MiB\n\
         shop/data: Ready (node-1 to node-2): waiting until pod db-0 has left\n\
         shop/data: Ready (node-1 to node-2): waiting until pod db-1 has left\n"
    );
}

#[test]
fn bars_are_drawn_over_each_other_below_the_lines() {
    let (mut screen, out) = screen(Style::Bars);
    let mut copying = follow("data");
    let progress = "50%".to_owned();
    copying.told = Some(Told { progress, ..told("Copying", "another operation is running") });
    let waiting = follow("a-longer-name");
    let done = Follow::ended(name("done"), Goal::GivenUp, Ending::Gone);
    let follows = [copying, waiting, done];
    screen.draw(&follows);
    let text = out.text();
    assert!(text.contains("shop/data           [############------------]  Copying      50%\n"), "{text}");
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
fn bars_beyond_the_limit_are_not_drawn() {
    let (mut screen, out) = screen(Style::Bars);
    let follows: Vec<Follow> = (0..25).map(|n| follow(&format!("data-{n}"))).collect();
    screen.draw(&follows);
    assert!(out.text().contains("and 5 more\n"));
    assert_eq!(out.text().matches("shop/").count(), 20);
}

#[test]
fn the_table_has_a_row_for_each_object() {
    let (data, log) = (name("data"), name("log"));
    let progress = "7 passes, 5 MiB".to_owned();
    let standby = Row {
        object: "vreplica/pvc-1".to_owned(),
        age: Some(3 * 86400),
        late: true,
        ..Row::new(&data, Told { progress, ..told("Standby", "") })
    };
    let refused = Told { phase: "Refused".to_owned(), message: "no room".to_owned(), ..Told::default() };
    let text = table(&[standby, Row { object: "vmove/log".to_owned(), ..Row::new(&log, refused) }]);
    let words = |line: usize| text.lines().nth(line).unwrap().split_whitespace().collect::<Vec<_>>();
    assert_eq!(words(0)[..6], ["NAMESPACE", "CLAIM", "OBJECT", "PHASE", "FROM", "TO"]);
    let row = words(1);
    assert_eq!(row[..6], ["shop", "data", "vreplica/pvc-1", "Standby", "node-1", "node-2"], "{text}");
    assert_eq!(row[6..], ["7", "passes,", "5", "MiB", "3d", "(late)"], "{text}");
    assert_eq!(words(2), ["shop", "log", "vmove/log", "Refused", "-", "-", "-", "-", "no", "room"]);
}
