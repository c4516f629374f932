//! The commands against a cluster in memory (crates/fake-kubernetes) on which a controller moves volumes. The clock is the test's.

mod adopting;
mod cancelling;
mod emptying;
mod endings;
mod following;
mod many;
mod moving;
mod planning;
mod printing;
mod promoting;
mod world;

use std::ffi::OsString;
use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::sleep;

use self::world::World;
use super::api::Cluster;
use super::screen::{Screen, Style};
use super::{Outcome, Session};
use crate::cli::{AdminCommand, Command, parse};
use crate::shutdown::Shutdown;

const DRIVER: &str = "hostloop.csi.dev";

/// What was printed.
#[derive(Clone, Default)]
pub(super) struct Printed(Arc<Mutex<Vec<u8>>>);

impl Printed {
    pub(super) fn text(&self) -> String {
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
async fn until(world: &World, line: &str, interrupt: impl Future<Output = ()>) -> (Outcome, String, String) {
    let (out, err) = (Printed::default(), Printed::default());
    let command = command(line);
    let style = if line.contains("--json") { Style::Json } else { Style::Plain };
    let screen = Screen::on(style, Box::new(out.clone()), Box::new(err.clone()));
    let session = Session { cluster: Cluster::new(world.client()), screen, program: "hostloop" };
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

async fn run(world: &World, line: &str) -> (Outcome, String, String) {
    until(world, line, std::future::pending()).await
}

/// Runs Kubernetes and a controller that moves volumes, as long as the work takes.
fn with_a_controller<T>(world: &World, work: impl Future<Output = T>) -> T {
    on_a_clock_of_its_own(async {
        tokio::select! {
            () = world.clone().run() => unreachable!("it never ends"),
            done = work => {
                world.is_fine();
                done
            }
        }
    })
}

/// Runs Kubernetes alone.
fn without_a_controller<T>(world: &World, work: impl Future<Output = T>) -> T {
    on_a_clock_of_its_own(async {
        tokio::select! {
            () = world.run_kubernetes() => unreachable!("it never ends"),
            done = work => done,
        }
    })
}
