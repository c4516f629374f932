//! The first start of a driver: nothing is there, and it makes its data directory, its state and its pools.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::bench::{self, Disk, MANAGED};
use super::model::Spec;
use super::plan::Plan;
use super::run::{Done, HELD, PATIENCE, said, with_log};
use super::seen::{Verdict, ensure};
use super::tracer::{Change, Traced, trace};
use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::volume::create_request;
use crate::harness::{Kind, Vol, World, text};

const LEN: usize = 1 << 16;

/// Starts a driver on this disk, with something happening at one position; what it changes. What ended there, or was
/// refused, is started again, and serves.
pub fn first_start(disk: Disk, plan: Option<&Plan>) -> Result<(Done, Vec<Change>), String> {
    let started = catch_unwind(AssertUnwindSafe(|| {
        let mut world = bench::world(disk);
        let started = start(&mut world, plan).and_then(|done| {
            // Twice, as the next start finds what this one made.
            use_it(&world, disk)?;
            world.restart_after_kill();
            use_it(&world, disk)?;
            Ok(done)
        });
        let started = started.map_err(|problem| with_log(&world, &problem))?;
        bench::take_down(world, disk);
        Ok(started)
    }));
    started.unwrap_or_else(|panic| Err(said(&*panic)))
}

fn start(world: &mut World, plan: Option<&Plan>) -> Result<(Done, Vec<Change>), String> {
    let (log, names) = (world.dir.join("log"), vec![(text(&world.dir).to_owned(), "~".to_owned())]);
    let driver = world.start_stopped();
    let (answer, mut traced) = trace(driver, &log, names, plan.cloned(), || world.go_on());
    let done = Done { met: traced.met, late: answer.clone().err() };
    if let Err(problem) = answer {
        ensure!(traced.met, "the start fails: {problem}");
        world.take_driver().kill();
        again(world, &mut traced);
    } else {
        traced.release();
        // What a fault left for later is done by the next start at the latest.
        if traced.met {
            world.restart_after_kill();
        }
    }
    Ok((done, traced.changes.clone()))
}

/// Starts it again, also while a program of the first process still works.
fn again(world: &mut World, traced: &mut Traced) {
    std::thread::scope(|scope| {
        let (serves, wait) = channel::<()>();
        scope.spawn(move || {
            // Disconnected is the sign.
            let _ = wait.recv_timeout(HELD);
            traced.release();
        });
        world.start();
        drop(serves);
    });
}

/// Makes a volume in each pool, writes to it, reads that from the disk, and deletes it.
fn use_it(world: &World, disk: Disk) -> Verdict {
    let further = match disk {
        Disk::Machine => Some(Spec::new(Kind::Directory)),
        Disk::Managed(_) => Some(Spec::managed(Kind::Ext4)),
        Disk::Sharing(_) | Disk::Limiting => None,
    };
    for spec in [Some(Spec::new(Kind::Ext4)), further].into_iter().flatten() {
        let name = spec.pool.unwrap_or("default");
        let request = create_request(spec.kind, name, spec.bytes, &spec.parameters());
        let started = Instant::now();
        // A pool of the driver's own may be made a moment later, when the program of the first process is gone.
        let made = loop {
            match world.csi.create(request.clone()) {
                Ok(made) => break made,
                Err(status) => ensure!(started.elapsed() < PATIENCE, "no volume in {name}: {status}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let vol = Vol::of(world, spec.kind, made);
        vol.up();
        let file = vol.file("a");
        write_at(&file, 0, &pattern(3, LEN)).map_err(|error| format!("write in {name}: {error}"))?;
        vol.down();
        vol.up();
        ensure!(read_at(&file, 0, LEN) == pattern(3, LEN), "other data in {name}");
        vol.remove();
    }
    let managed = matches!(disk, Disk::Managed(_));
    let pools = world.data.join("pools").join(MANAGED);
    ensure!(!managed || pools.join("volumes").exists(), "the pool is not at {}", pools.display());
    Ok(())
}
