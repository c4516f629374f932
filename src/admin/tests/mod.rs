//! The commands against a cluster in memory (`cluster/mover/tests/`) on which the mover runs. The clock is the test's.

mod commands;
mod following;
mod many;
mod printing;

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::Value;
use tokio::time::sleep;

use super::api::Cluster;
use super::screen::{Screen, Style};
use super::{Outcome, Session};
use crate::cli::{AdminCommand, Command, parse};
use crate::cluster::mover::tests::nodes::Nodes;
use crate::cluster::mover::tests::server::{Shared, client};
use crate::cluster::mover::tests::world::World;
use crate::cluster::mover::{Figures, Mover};
use crate::shutdown::Shutdown;

const DRIVER: &str = "hostloop.csi.dev";

/// What was printed.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Printed {
    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn on_a_clock_of_its_own<T>(work: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().start_paused(true).build().unwrap().block_on(work)
}

fn command(line: &str) -> AdminCommand {
    match parse(line.split(' ').map(OsString::from)).unwrap().0 {
        Command::Admin(command) => command,
        other => panic!("{other:?}"),
    }
}

/// Runs a command until its end, or until Ctrl-C. Returns how it ended, and what it printed on standard output and on
/// standard error.
async fn until(world: &Shared, line: &str, interrupt: impl Future<Output = ()>) -> (Outcome, String, String) {
    let (out, err) = (Printed::default(), Printed::default());
    let command = command(line);
    let style = if line.contains("--json") { Style::Json } else { Style::Plain };
    let screen = Screen::on(style, Box::new(out.clone()), Box::new(err.clone()));
    let session = Session { cluster: Cluster::new(client(world, 9)), screen, program: "hostloop" };
    let (trigger, shutdown) = Shutdown::new();
    let mut run = std::pin::pin!(session.run(&command, shutdown));
    let outcome = tokio::select! {
        outcome = &mut run => outcome,
        () = interrupt => {
            trigger.pull();
            run.await
        }
    };
    (outcome, out.text(), err.text())
}

async fn run(world: &Shared, line: &str) -> (Outcome, String, String) {
    until(world, line, std::future::pending()).await
}

/// Kubernetes and a controller that moves volumes, as long as the work takes.
fn with_a_mover<T>(world: &Shared, work: impl Future<Output = T>) -> T {
    on_a_clock_of_its_own(async {
        let mover = Mover::new(client(world, 0), Nodes::new(world, 0), DRIVER, Arc::new(Figures::default()));
        let (_trigger, shutdown) = Shutdown::new();
        let mover = mover.run("hostloop", "controller-1".to_owned(), shutdown);
        tokio::select! {
            () = mover => unreachable!("nobody asks it to end"),
            () = kubernetes(world) => unreachable!("it never ends"),
            done = work => {
                assert_eq!(world.lock().unwrap().wrong, Vec::<String>::new());
                done
            }
        }
    })
}

async fn kubernetes(world: &Shared) {
    loop {
        sleep(Duration::from_millis(100)).await;
        world.lock().unwrap().tick();
    }
}

fn claim(world: &World) -> Value {
    world.get("persistentvolumeclaims", "data").expect("the claim")
}

/// The annotations of a claim that are of a move.
fn of_moves(world: &Shared) -> Vec<String> {
    let claim = claim(&world.lock().unwrap());
    let annotations = claim["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
    annotations.keys().filter(|key| key.starts_with("hostloop.csi.dev/")).cloned().collect()
}
