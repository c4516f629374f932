//! SIGKILL at any moment: nothing acknowledged is lost, and nothing is left that the next process does not know.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use hostloop::wire::csi;
use tonic::{Code, Status};

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::volume::create_request;
use crate::harness::{Kind, MIB, Vol, World, mount_image, run, text};

const FOR: Duration = Duration::from_secs(15);
const LEN: usize = 1 << 16;

/// What its caller knows of a volume.
struct Known {
    kind: Kind,
    name: String,
    volume: Option<csi::Volume>,
    /// The size that was acknowledged last.
    bytes: u64,
    /// What was written durably, by the seed of its pattern.
    written: Option<u64>,
    /// The call to make next.
    step: usize,
    /// How often the volume was used from staging to unstaging.
    circles: u64,
    /// Whether every byte of it is its own, on a disk that is full now and then.
    thick: bool,
}

impl Known {
    fn new(kind: Kind) -> Known {
        let name = format!("killed {kind:?}");
        Known {
            kind,
            name,
            volume: None,
            bytes: kind.size(),
            written: None,
            step: 0,
            circles: 0,
            thick: false,
        }
    }

    fn thick(kind: Kind) -> Known {
        Known { thick: true, ..Known::new(kind) }
    }

    fn request(&self) -> csi::CreateVolumeRequest {
        let parameters: &[_] = match self.kind {
            Kind::Directory => &[("pool", "directories")],
            _ if self.thick => &[("provisioning", "thick")],
            _ => &[],
        };
        create_request(self.kind, &self.name, self.bytes, parameters)
    }

    /// Makes the next call. One that got no answer is made again after the restart.
    fn advance(&mut self, world: &World, seed: u64) -> Result<(), Status> {
        let Some(volume) = self.volume.clone() else {
            self.volume = Some(world.csi.create(self.request())?);
            self.step = 1;
            return Ok(());
        };
        let vol = Vol::of(world, self.kind, volume);
        match self.step {
            1 => vol.stage()?,
            2 => vol.publish("a")?,
            3 => {
                self.check(&vol.file("a"));
                write_at(&vol.file("a"), 0, &pattern(seed, LEN)).expect("write");
                self.written = Some(seed);
            }
            4 if crate::life::can_grow(self.kind) => {
                vol.expand(self.bytes + MIB)?;
                vol.node_expand("a", self.bytes + MIB)?;
                self.bytes += MIB;
            }
            4 => {}
            5 => vol.unpublish("a")?,
            6 => vol.unstage()?,
            // Around again with the data, or a new volume of the same name.
            7 if self.circles % 3 != 2 => {
                self.circles += 1;
                self.step = 0;
            }
            _ => {
                vol.delete()?;
                *self = Known { circles: self.circles + 1, thick: self.thick, ..Known::new(self.kind) };
                return Ok(());
            }
        }
        self.step += 1;
        Ok(())
    }

    /// What was written durably is there.
    fn check(&self, file: &Path) {
        if let Some(seed) = self.written {
            assert!(read_at(file, 0, LEN) == pattern(seed, LEN), "{} lost data", self.name);
        }
    }

    /// Repeats the last call, looks at the data, and takes everything away.
    fn tear_down(self, world: &World) {
        let deleting = self.step == 7 && self.circles % 3 == 2;
        let volume = match &self.volume {
            Some(volume) => volume.clone(),
            // Perhaps made and not acknowledged.
            None => world.csi.create(self.request()).expect("CreateVolume"),
        };
        let vol = Vol::of(world, self.kind, volume);
        if !deleting {
            vol.up();
            self.check(&vol.file("a"));
            if self.kind == Kind::Block {
                let size = kernel::device_size(&vol.target("a"));
                assert!(size >= self.bytes, "{size} of {}", self.bytes);
            }
            vol.down();
        }
        vol.delete().expect("DeleteVolume");
    }
}

/// Calls for one volume until the driver is gone. No call may fail for another reason, but for what takes room on a disk
/// that is full.
fn until_killed(world: &World, known: &mut Known, seed: u64) -> u64 {
    for turn in 0.. {
        match known.advance(world, seed + turn) {
            Ok(()) => {}
            Err(error) if gone(&error) => return turn,
            Err(error) if known.thick && error.code() == Code::ResourceExhausted => match known.step {
                0 => std::thread::sleep(Duration::from_millis(5)),
                4 => known.step = 5,
                step => panic!("{} at step {step}: {error:?}", known.name),
            },
            Err(error) => panic!("{} at step {}: {error:?}", known.name, known.step),
        }
    }
    0
}

/// Whether the connection broke.
fn gone(error: &Status) -> bool {
    matches!(error.code(), Code::Unavailable | Code::Unknown | Code::Cancelled)
        || error.message().contains("h2 protocol")
}

/// Kills and starts the driver under calls for these volumes, until what happens beside it has happened often enough.
fn kill_again_and_again(world: &mut World, volumes: &mut [Known], is_enough: impl Fn() -> bool) {
    let (started, mut rounds, mut calls) = (Instant::now(), 0, 0);
    let mut random = u64::from(std::process::id());
    let is_done = |rounds, calls| rounds > 10 && calls > 50 && is_enough();
    // On a busy machine the calls get slow, and the starts.
    while started.elapsed() < FOR || !is_done(rounds, calls) && started.elapsed() < 8 * FOR {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let driver = world.take_driver();
        std::thread::scope(|scope| {
            let (world, seed) = (&*world, random >> 20);
            let callers: Vec<_> = volumes
                .iter_mut()
                .map(|known| scope.spawn(move || until_killed(world, known, seed)))
                .collect();
            std::thread::sleep(
                Duration::from_micros((random >> 33) % 250_000)
                    * (1 + (started.elapsed().as_secs() / FOR.as_secs()) as u32),
            );
            driver.kill();
            calls += callers.into_iter().map(|caller| caller.join().expect("no other error")).sum::<u64>();
        });
        world.start();
        rounds += 1;
    }
    eprintln!("killed {rounds} times in {calls} calls");
    assert!(is_done(rounds, calls), "{rounds} {calls}");
}

#[test]
fn nothing_is_lost_and_nothing_is_left() {
    let mut world = World::empty(&[]);
    let disk = world.dir.join("directories");
    mount_image(&world.dir.join("directories.img"), &disk, "ext4", 256 * MIB);
    world.set_flags(&["--pool", &format!("directories={},directories=true", text(&disk))]);
    world.start();
    let mut volumes = [Kind::Ext4, Kind::Block, Kind::Directory, Kind::Xfs].map(Known::new);
    kill_again_and_again(&mut world, &mut volumes, || true);
    for known in volumes {
        known.tear_down(&world);
    }
    assert_eq!(std::fs::read_dir(disk.join("volumes")).expect("list").count(), 0);
    world.take_driver().stop();
    run("umount", &[text(&disk)]);
    world.assert_nothing_left();
}

/// Another program takes all the room that there is, and gives it back, at moments of its own.
fn fill_now_and_then(directory: &Path, stop: &AtomicBool, full: &AtomicU32) {
    let path = directory.join("of-others");
    let mut random = u64::from(std::process::id()) | 1;
    while !stop.load(Ordering::Acquire) {
        let mut file = std::fs::File::create(&path).expect("create");
        let piece = vec![0x5a; 1 << 16];
        while file.write_all(&piece).is_ok() {}
        full.fetch_add(1, Ordering::Relaxed);
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros((random >> 33) % 400_000));
        file.set_len(0).expect("truncate");
        std::thread::sleep(Duration::from_micros((random >> 23) % 100_000));
    }
    std::fs::remove_file(path).expect("remove");
}

#[test]
fn a_disk_that_is_full_now_and_then_loses_nothing_either() {
    let mut world = World::on("ext4", 512 * MIB, &["--reserve", "0"]);
    let mut volumes = [Kind::Ext4, Kind::Block, Kind::Xfs].map(Known::thick);
    let pool = world.data.parent().expect("the disk").to_owned();
    let (stop, full) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| fill_now_and_then(&pool, &stop, &full));
        let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            kill_again_and_again(&mut world, &mut volumes, || full.load(Ordering::Relaxed) > 10);
        }));
        stop.store(true, Ordering::Release);
        if let Err(panic) = killed {
            std::panic::resume_unwind(panic);
        }
    });
    eprintln!("full {} times", full.into_inner());
    for known in volumes {
        known.tear_down(&world);
    }
    world.take_driver().stop();
    world.assert_nothing_left();
}
