//! The kernel's own state, held against what was acknowledged.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::bench::{Bench, OTHER};
use super::model::{Call, Cut, Known, Model, Origin, Spec};
use super::scenario::{LEN, OFFSETS};
use super::seen::{Seen, Verdict, ensure, is_either};
use crate::harness::kernel::{self, loop_attribute, pattern, read_at, write_at};
use crate::harness::{Kind, output, text};

/// Marks of what is unfinished.
const MARKS: [&str; 3] = ["making", "formatting", "deleting"];

/// Waits for what others may delay for a moment: udev, and whoever looks at every loop device.
fn soon(bench: &Bench, what: &str, mut condition: impl FnMut() -> Result<bool, String>) -> Verdict {
    let started = Instant::now();
    while !condition()? {
        ensure!(started.elapsed() < bench.patience, "not within {:?}: {what}", bench.patience);
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Every volume and mount of the model and none else, as it has to be, with its data.
pub fn check(bench: &Bench, model: &Model) -> Verdict {
    is_either(bench, model, model)?;
    for (name, known) in &model.volumes {
        let context = |problem: String| format!("{name}: {problem}");
        repeats(bench, model, name, known).map_err(context)?;
        devices(bench, name, known).map_err(context)?;
        mounts(bench, model, name, known).map_err(context)?;
        data(bench, model, name, known).map_err(context)?;
    }
    ensure!(Seen::now(bench)? == Seen::of(bench, model), "a repeated CreateVolume changed something");
    files(bench, model)?;
    quotas(bench, model)?;
    log(bench)
}

/// A directory with an enforced size has its limit, and no number is kept of one that is gone.
fn quotas(bench: &Bench, model: &Model) -> Verdict {
    for name in ["volume", "copy", "restored"] {
        let Some(quota) = bench.quota(name) else { return Ok(()) };
        match model.volumes.get(name) {
            Some(known) => {
                let limit = quota.limits.bytes;
                ensure!(limit == known.bytes, "{name} of {} bytes is limited to {limit}", known.bytes);
            }
            None => ensure!(quota.is_free(), "{name} is gone, and its number is not free: {quota:?}"),
        }
    }
    Ok(())
}

/// The driver has not panicked.
fn log(bench: &Bench) -> Verdict {
    let log = std::fs::read_to_string(bench.world.dir.join("log")).expect("the log");
    let panicked = log.lines().find(|line| line.contains("panicked"));
    ensure!(panicked.is_none(), "{panicked:?}");
    Ok(())
}

/// A repeat of the call that made a volume finds it.
fn repeats(bench: &Bench, model: &Model, name: &'static str, known: &Known) -> Verdict {
    if known.inline {
        return Ok(());
    }
    let request = bench.request(model, name, known.spec, known.origin);
    let again = bench.world.csi.create(request).map_err(|status| format!("create again: {status}"))?;
    ensure!(again.capacity_bytes as u64 == known.bytes, "create again: {again:?}");
    Ok(())
}

fn image_of(bench: &Bench, name: &str, known: &Known) -> PathBuf {
    let id = if known.inline { bench.inline_id() } else { bench.id(name) };
    bench.pool(known.spec).join("volumes").join(id).join("disk.img")
}

/// A loop volume in use has its devices, with the settings of its parameters, and no other has one.
fn devices(bench: &Bench, name: &'static str, known: &Known) -> Verdict {
    if known.spec.kind == Kind::Directory {
        return Ok(());
    }
    let image = image_of(bench, name, known);
    let allocated = kernel::allocated(&image);
    ensure!(!known.is_thick() || allocated >= known.bytes, "thick with {allocated} bytes");
    let writers = usize::from(known.is_in_use());
    let readers = known.published.values().filter(|read_only| **read_only).count();
    // A reader of a raw device has one of its own where the other one can be written to.
    let expected = match known.spec.kind {
        Kind::Block => writers..=writers + readers,
        _ => writers..=writers,
    };
    soon(bench, "its devices are those that are in use", || {
        Ok(expected.contains(&kernel::loops(&image).len()))
    })
    .map_err(|problem| format!("{problem}; found {:?}", kernel::loops(&image)))?;
    for number in kernel::loops(&image) {
        let direct = loop_attribute(number, "dio") == "1";
        let wanted = known.parameter("directIO") != Some("false");
        ensure!(direct == wanted, "direct I/O of loop{number} is {direct}");
        let queue = |file: &str| {
            let path = format!("/sys/block/loop{number}/{file}");
            std::fs::read_to_string(path).expect("sysfs").trim().parse::<u64>().expect("a number")
        };
        let keeps = known.is_thick() || known.parameter("discard") == Some("false");
        let limit = queue("queue/discard_max_bytes");
        // Nothing is discarded through a read-only device. One whose driver was killed just after LOOP_CONFIGURE may be what
        // its number was left as.
        let writes = queue("ro") == 0;
        ensure!(!keeps || limit == 0 || !writes, "loop{number} discards up to {limit}");
        // What was thick when it was attached keeps that until it is attached again.
        let settled = known.modified.is_empty() && !known.read_only && writes;
        ensure!(keeps || limit > 0 || !settled, "loop{number} does not discard");
        let size = queue("size") * 512;
        ensure!(size >= known.in_force, "loop{number} has {size} of {} bytes", known.in_force);
    }
    Ok(())
}

/// Where it is mounted, its filesystem has its size and its flags, and takes what is written.
fn mounts(bench: &Bench, model: &Model, name: &'static str, known: &Known) -> Verdict {
    if known.inline {
        return writable(bench.patience, &bench.inline_target(name));
    }
    let vol = bench.vol(model, name);
    for (pod, read_only) in &known.published {
        let target = vol.target(pod);
        let Some(mount) = kernel::mounts(&target).into_iter().find(|mount| mount.target == target) else {
            return Err(format!("{pod} has no mount"));
        };
        let flagged = mount.options.split(',').next() == Some("ro");
        // Through a raw device's node nothing is refused but by the device.
        ensure!(known.spec.kind == Kind::Block || flagged == *read_only, "{pod} has {}", mount.options);
        if known.spec.kind == Kind::Block {
            let size = kernel::device_size(&target);
            ensure!(size >= known.in_force, "{pod} has {size} of {} bytes", known.in_force);
        }
    }
    if known.staged && known.spec.kind != Kind::Block {
        if known.spec.kind != Kind::Directory {
            let (total, _) = kernel::space(&vol.staging());
            ensure!(total > known.in_force / 10 * 7, "{total} of {} bytes", known.in_force);
        }
        if known.read_only {
            let refused = write_at(&vol.staging().join("fresh"), 0, &pattern(7, 512));
            ensure!(refused.is_err(), "what is staged read-only can be written to");
        } else {
            writable(bench.patience, &vol.staging())?;
        }
    }
    Ok(())
}

/// Nobody waits for ever who writes, as in a filesystem that is frozen.
pub fn writable(patience: Duration, directory: &Path) -> Verdict {
    let (sender, receiver) = channel();
    let file = directory.join("fresh");
    std::thread::spawn(move || {
        // Nobody listens after the limit.
        let _ = sender.send(write_at(&file, 0, &pattern(7, 512)));
    });
    match receiver.recv_timeout(patience) {
        Ok(result) => result.map_err(|error| format!("cannot write to {}: {error}", directory.display())),
        Err(_) => {
            output("fsfreeze", &["-u", text(directory)]);
            Err(format!("{} is frozen", directory.display()))
        }
    }
}

/// Where a pod's writes go, and at which offsets; `None` while no pod can reach it.
fn place(bench: &Bench, model: &Model, name: &'static str, known: &Known) -> Option<PathBuf> {
    if known.inline {
        return Some(bench.inline_target(name).join("file"));
    }
    let vol = bench.vol(model, name);
    match known.published.keys().next() {
        Some(pod) => Some(vol.file(pod)),
        None => (known.staged && known.spec.kind != Kind::Block).then(|| vol.staging().join("file")),
    }
}

fn offsets(kind: Kind) -> &'static [u64] {
    if kind == Kind::Block { &OFFSETS } else { &OFFSETS[..1] }
}

/// A pod writes and syncs something new.
pub fn write(bench: &Bench, model: &mut Model, name: &'static str) {
    let seed = model.known(name).marker.unwrap_or(name.len() as u64) + 2;
    let file = place(bench, model, name, model.known(name)).expect("it is published");
    for offset in offsets(model.known(name).spec.kind) {
        write_at(&file, *offset, &pattern(seed, LEN)).expect("write");
    }
    model.change(name).marker = Some(seed);
}

fn data(bench: &Bench, model: &Model, name: &'static str, known: &Known) -> Verdict {
    let (Some(seed), Some(file)) = (known.marker, place(bench, model, name, known)) else { return Ok(()) };
    ensure!(file.exists(), "{} is lost", file.display());
    for offset in offsets(known.spec.kind) {
        ensure!(read_at(&file, *offset, LEN) == pattern(seed, LEN), "other data at {offset}");
    }
    Ok(())
}

/// What is in a directory.
pub fn names(directory: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(directory) else { return BTreeSet::new() };
    entries.map(|entry| entry.expect("list").file_name().into_string().expect("text")).collect()
}

/// Every volume and snapshot has its directory, nothing else has one, and nothing is marked as unfinished.
fn files(bench: &Bench, model: &Model) -> Verdict {
    let ids = model.volumes.iter().map(
        |(name, known)| {
            if known.inline { bench.inline_id() } else { bench.id(name) }
        },
    );
    let volumes: BTreeSet<_> = ids.collect();
    let snapshots: BTreeSet<_> = model.snapshots.keys().map(|id| bench.snapshot_id(*id)).collect();
    for (place, expected) in [("volumes", volumes), ("snapshots", snapshots)] {
        let mut found = BTreeSet::new();
        for directory in bench.pools().into_iter().map(|pool| pool.join(place)) {
            let there = names(&directory);
            let (records, there): (BTreeSet<_>, _) =
                there.into_iter().partition(|name| name.ends_with(".json"));
            let there: BTreeSet<String> = there;
            for name in &there {
                let files = names(&directory.join(name));
                let left: Vec<_> = files
                    .iter()
                    .filter(|file| MARKS.contains(&file.as_str()) || file.ends_with(".new"))
                    .collect();
                ensure!(left.is_empty(), "{place}/{name} has {left:?}");
                let inside = ["volume.json", "snapshot.json"].iter().any(|record| files.contains(*record));
                let beside = records.contains(&format!("{name}.json"));
                ensure!(inside != beside, "{place}/{name} has no record, or two");
            }
            let of_nothing =
                records.iter().find(|name| name.strip_suffix(".json").is_none_or(|id| !there.contains(id)));
            ensure!(of_nothing.is_none(), "{of_nothing:?} is a record of nothing");
            found.extend(there);
        }
        ensure!(found == expected, "expected {expected:?} in {place}, found {found:?}");
    }
    Ok(())
}

/// No mark of a freeze is left. One that cannot be removed does no harm until the next start.
pub fn nothing_frozen(bench: &Bench) -> Verdict {
    let frozen = names(&bench.world.data.join("frozen"));
    ensure!(frozen.is_empty(), "marks of a freeze: {frozen:?}");
    Ok(())
}

/// Reads what is not in use, checks filesystems, takes everything down but the volume that stays, and makes sure of
/// that.
pub fn tear_down(bench: &Bench, model: &mut Model) -> Verdict {
    let names: Vec<_> = model.volumes.keys().copied().filter(|name| *name != OTHER).collect();
    for name in names {
        if model.known(name).inline {
            done(bench, model, Call::UnpublishInline(name))?;
            continue;
        }
        at_rest(bench, model, name)?;
        done(bench, model, Call::Delete(name))?;
        bench.world.csi.delete(&bench.id(name)).map_err(|status| format!("delete again: {status}"))?;
    }
    let snapshots: Vec<_> = model.snapshots.iter().map(|(id, cut)| (*id, cut.clone())).collect();
    for (id, cut) in snapshots {
        restored(bench, model, id, &cut)?;
    }
    for (group, name) in model.snapshots.clone().into_keys() {
        match group {
            None => done(bench, model, Call::DeleteSnapshot(name))?,
            Some(group) => done(bench, model, Call::DeleteGroup(group))?,
        }
    }
    check(bench, model)
}

fn done(bench: &Bench, model: &mut Model, call: Call) -> Verdict {
    bench.surely(model, call).map_err(|status| format!("{call:?}: {status}"))
}

/// Brings a volume into use, reads it, takes it out of use and checks its filesystem.
fn at_rest(bench: &Bench, model: &mut Model, name: &'static str) -> Verdict {
    if model.known(name).read_only {
        done(bench, model, Call::Unstage(name))?;
    }
    if model.known(name).published.is_empty() {
        done(bench, model, Call::Stage(name))?;
        done(bench, model, Call::Publish(name, "reader", false))?;
    }
    let known = model.known(name).clone();
    data(bench, model, name, &known).map_err(|problem| format!("{name}: {problem}"))?;
    let pods: Vec<_> = known.published.into_keys().collect();
    for pod in pods {
        done(bench, model, Call::Unpublish(name, pod))?;
    }
    done(bench, model, Call::Unstage(name))?;
    let known = model.known(name);
    devices(bench, name, known)?;
    fsck(known.spec.kind, &image_of(bench, name, known)).map_err(|problem| format!("{name}: {problem}"))
}

/// The filesystem in an image that is not in use is whole, if it has one.
fn fsck(kind: Kind, image: &Path) -> Verdict {
    let (program, arguments): (_, &[&str]) = match kind {
        Kind::Ext4 => ("e2fsck", &["-f", "-n"]),
        Kind::Xfs => ("xfs_repair", &["-n", "-f"]),
        Kind::Btrfs => ("btrfs", &["check", "--readonly", "--force"]),
        Kind::Block | Kind::Directory => return Ok(()),
    };
    if output("blkid", &["-p", text(image)]).stdout.is_empty() {
        return Ok(());
    }
    let found = output(program, &[arguments, &[text(image)]].concat());
    let said = String::from_utf8_lossy(&found.stdout);
    ensure!(found.status.success(), "{program}: {} {}", said, String::from_utf8_lossy(&found.stderr));
    Ok(())
}

/// What was in a volume when it was cut is in a volume made from the snapshot.
fn restored(
    bench: &Bench,
    model: &mut Model,
    (group, name): (Option<&'static str>, &'static str),
    cut: &Cut,
) -> Verdict {
    const NAME: &str = "restored";
    let spec = Spec { bytes: cut.bytes, ..cut.spec };
    if group.is_some() {
        // Members of groups go by other names than snapshots: made by hand.
        let id = bench.snapshot_id((group, name));
        let (kind, parameters) = (spec.kind, spec.parameters());
        let request = crate::harness::volume::restore_request(kind, NAME, spec.bytes, &id, &parameters);
        bench.world.csi.create(request).map_err(|status| format!("restore {id}: {status}"))?;
        model.apply(Call::Create(NAME, spec, Origin::Nothing));
        model.change(NAME).marker = cut.marker;
    } else {
        done(bench, model, Call::Create(NAME, spec, Origin::Snapshot(name)))?;
    }
    at_rest(bench, model, NAME).map_err(|problem| format!("restored from {group:?} {name}: {problem}"))?;
    done(bench, model, Call::Delete(NAME))
}
