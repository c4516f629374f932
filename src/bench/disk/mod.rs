//! `hostloop bench --dir`: what the disk gives in a plain directory, and what a volume of each kind gives of it.
//!
//! All places are made first. Then each pattern is measured in each place, in turns, so that what else the machine does
//! meets all of them; every second turn goes backwards. `ground` says what makes the figures honest.

mod advice;
mod bars;
mod ground;
mod ours;
mod pattern;
mod results;
mod svg;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Outcome;
use super::life::InUse;
use super::output::progress;
use crate::config::{Candidate, DiskConfig};
use crate::kernel::linux::{self, Tools};
use crate::kernel::{FileKind, Os, holder, write_whole};
use crate::model::{format_bytes, format_two};
use crate::selftest::machine::{self, Finding, Level};
use crate::selftest::workspace::Workspace;
use crate::shutdown::Shutdown;
use ground::{Ground, Slice};
use ours::Ours;
use pattern::Pattern;
use results::{Disk, Place, Results};

/// Free space beyond the volumes: the drivers' files, new files in the plain directory.
const SLACK: u64 = 256 << 20;
/// Part of a volume that is written and read.
const PART: u64 = 4;

/// What every step needs.
struct Bench<'a> {
    os: &'a Os,
    config: &'a DiskConfig,
    workspace: &'a Path,
    stop: &'a Arc<AtomicBool>,
}

/// A place that is measured.
struct Measured {
    ground: Ground,
    place: Place,
}

/// The drivers, and the volumes that are in use.
#[derive(Default)]
struct Volumes {
    drivers: Vec<Ours>,
    /// With the index of its driver.
    in_use: Vec<(usize, Candidate, InUse)>,
    left_out: Vec<(Candidate, String)>,
}

/// Measures and cleans up.
pub(super) async fn run(config: DiskConfig, shutdown: Shutdown, stop: Arc<AtomicBool>) -> Outcome {
    let os = linux::os(Tools::find());
    if let Err(problem) = possible(&os, &config) {
        return Outcome::problem(problem);
    }
    let workspace = match Workspace::create(&os, &config.dir, "bench") {
        Ok(workspace) => workspace,
        Err(error) => return Outcome::problem(format!("{error} (--dir)")),
    };
    let mut volumes = Volumes::default();
    let bench = Bench { os: &os, config: &config, workspace: workspace.path(), stop: &stop };
    let mut outcome = Outcome::default();
    let measured = tokio::select! {
        measured = measure(&bench, &mut volumes) => measured,
        () = shutdown.clone().forced() => Ok(None),
    };
    progress("Cleaning up");
    tokio::select! {
        problems = end(&mut volumes) => outcome.problems.extend(problems),
        // Drivers that are dropped are killed, and what they leave is swept up.
        () = shutdown.forced() => volumes.drivers.clear(),
    }
    match tokio::task::spawn_blocking(move || workspace.remove()).await {
        Ok(left) => outcome.problems.extend(left.into_iter().map(|what| format!("left behind: {what}"))),
        Err(_) => outcome.problems.push("bench met a bug while it removed its files".to_owned()),
    }
    match measured {
        Ok(Some(results)) => {
            outcome.problems.extend(draw(&os, &config, &results).err());
            outcome.result = Some(shown(&config, &results));
        }
        Ok(None) => outcome.interrupted = true,
        Err(problem) => outcome.problems.push(problem),
    }
    outcome
}

/// Refuses what cannot work, before anything is made.
fn possible(os: &Os, config: &DiskConfig) -> Result<(), String> {
    [machine::privileges(os), machine::kernel(os)].iter().find_map(hopeless).map_or(Ok(()), Err)?;
    is_directory(os, &config.dir, "--dir")?;
    if let Some(svg) = &config.svg {
        let parent = svg.parent().filter(|parent| !parent.as_os_str().is_empty());
        is_directory(os, parent.unwrap_or(Path::new(".")), "--svg")?;
    }
    let here = |candidate: &&Candidate| machine::impossible(os, &config.dir, candidate.check()).is_none();
    let rooms = config.candidates.iter().filter(here).map(|candidate| ours::room(*candidate, config.bytes));
    let needed = rooms.fold(config.bytes / PART + SLACK, u64::saturating_add);
    let space = os.files.space(&config.dir).map_err(|error| format!("{error} (--dir)"))?;
    if space.available < needed {
        let (dir, [free, needed]) = (config.dir.display(), format_two(space.available, needed));
        return Err(format!(
            "{dir} has {free} free, {needed} are needed; lower --size, choose volumes with --only, or use another --dir"
        ));
    }
    Ok(())
}

fn hopeless(finding: &Finding) -> Option<String> {
    let advice = finding.advice.as_deref().unwrap_or_default();
    (finding.level == Level::Fail).then(|| format!("{}: {}; {advice}", finding.what, finding.text))
}

fn is_directory(os: &Os, path: &Path, flag: &str) -> Result<(), String> {
    let real = os.files.canonicalize(path).and_then(|path| os.files.stat(&path));
    match real {
        Ok(Some(stat)) if stat.kind == FileKind::Directory => Ok(()),
        _ => Err(format!("{} is not a directory; create it or correct {flag}", path.display())),
    }
}

/// `None` where it was interrupted.
async fn measure(bench: &Bench<'_>, volumes: &mut Volumes) -> Result<Option<Results>, String> {
    let Bench { os, config, workspace, stop } = *bench;
    if !Ground::has_direct_io(&*os.files, workspace).map_err(|error| error.to_string())? {
        return Err(format!(
            "{} is on a filesystem without direct I/O, so memory would be measured; use a directory on a disk",
            config.dir.display()
        ));
    }
    let candidates = possible_here(bench, volumes)?;
    let mut places = vec![plain(bench)?];
    make(bench, &candidates, volumes, &mut places).await?;
    if places.len() < 2 {
        let reasons =
            volumes.left_out.iter().map(|(candidate, why)| format!("{}: {why}", candidate.as_str()));
        return match stop.load(Ordering::Relaxed) {
            true => Ok(None),
            false => {
                Err(format!("there is no volume to measure: {}", reasons.collect::<Vec<_>>().join("; ")))
            }
        };
    }
    for place in &places {
        progress(&format!("Writing the data of {}", place.place.name()));
        let (ground, stop) = (place.ground.clone(), Arc::clone(stop));
        blocking(place, move || ground.prepare(&stop)).await?;
    }
    // The first turn is not counted: nothing is in memory yet, and the disk may still be busy with the data.
    let rounds = (config.turns + 1) * Pattern::ALL.len() * places.len();
    let slice = config.budget / u32::try_from(rounds).unwrap_or(u32::MAX);
    for turn in 0..=config.turns {
        for pattern in Pattern::ALL {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let which =
                if turn == 0 { "Warming up".to_owned() } else { format!("Turn {turn} of {}", config.turns) };
            progress(&format!("{which}: {}", pattern.title()));
            measure_all(bench, &mut places, (turn, pattern), slice).await?;
        }
    }
    if stop.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let disk = disk(bench, slice.as_secs_f64());
    let places = places.into_iter().map(|place| place.place).collect();
    Ok(Some(Results { disk, places, left_out: std::mem::take(&mut volumes.left_out) }))
}

/// The kinds whose tools are there, and whose size the filesystem can enforce.
fn possible_here(bench: &Bench<'_>, volumes: &mut Volumes) -> Result<Vec<Candidate>, String> {
    let wanted = &bench.config.candidates;
    if !wanted.iter().all(|candidate| candidate.check().is_directory()) {
        let loops = machine::loop_devices(bench.os, bench.workspace);
        hopeless(&loops).map_or(Ok(()), Err)?;
    }
    let mut candidates = Vec::new();
    for candidate in wanted {
        match machine::impossible(bench.os, bench.workspace, candidate.check()) {
            None => candidates.push(*candidate),
            Some(why) => leave_out(volumes, *candidate, why),
        }
    }
    Ok(candidates)
}

fn leave_out(volumes: &mut Volumes, candidate: Candidate, why: String) {
    progress(&format!("{} is left out: {why}", candidate.as_str()));
    volumes.left_out.push((candidate, why));
}

fn plain(bench: &Bench<'_>) -> Result<Measured, String> {
    let path = bench.workspace.join("plain");
    bench.os.files.create_directory(&path, 0o700).map_err(|error| error.to_string())?;
    Ok(Measured { ground: Ground::new(path, false, bench.config.bytes / PART), place: Place::new(None) })
}

/// Starts the drivers and makes the volumes.
async fn make(
    bench: &Bench<'_>,
    candidates: &[Candidate],
    volumes: &mut Volumes,
    places: &mut Vec<Measured>,
) -> Result<(), String> {
    let (directories, loops): (Vec<Candidate>, Vec<Candidate>) =
        candidates.iter().partition(|candidate| ours::is_of_directories(**candidate));
    for candidates in [loops, directories].into_iter().filter(|candidates| !candidates.is_empty()) {
        let driver = Ours::start(bench.os, bench.workspace, &candidates, bench.config.bytes).await?;
        volumes.drivers.push(driver);
        for candidate in candidates {
            if bench.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let Some(driver) = volumes.drivers.last() else { continue };
            progress(&format!("Creating {}", candidate.as_str()));
            match driver.volume(candidate, bench.config.bytes).await {
                Ok(volume) => {
                    places.push(measured(bench, candidate, volume.target().to_owned()));
                    volumes.in_use.push((volumes.drivers.len() - 1, candidate, volume));
                }
                Err(failure) => leave_out(volumes, candidate, failure.to_string()),
            }
        }
    }
    Ok(())
}

fn measured(bench: &Bench<'_>, candidate: Candidate, target: PathBuf) -> Measured {
    let device = candidate.check() == crate::config::Check::Block;
    let ground = Ground::new(target, device, bench.config.bytes / PART);
    Measured { ground, place: Place::new(Some(candidate)) }
}

/// One pattern in each place. The figures of turn 0 are not kept.
async fn measure_all(
    bench: &Bench<'_>,
    places: &mut [Measured],
    (turn, pattern): (usize, Pattern),
    time: std::time::Duration,
) -> Result<(), String> {
    let seed = (turn * Pattern::ALL.len()) as u64 + pattern as u64 + 1;
    let mut order: Vec<&mut Measured> = places.iter_mut().collect();
    if turn % 2 == 1 {
        order.reverse();
    }
    for place in order {
        if place.ground.is_device() && !pattern.is_for_devices() {
            continue;
        }
        let (ground, files) = (place.ground.clone(), Arc::clone(&bench.os.files));
        let stop = Arc::clone(bench.stop);
        let work = move || ground.measure(&*files, pattern, Slice { time, seed, stop: &stop });
        let rate = blocking(place, work).await?;
        if turn > 0 {
            place.place.add(pattern, rate);
        }
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    place: &Measured,
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> Result<T, String> {
    let name = place.place.name();
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(|error| format!("{name}: {error}")),
        Err(_) => Err(format!("{name}: bench met a bug; please report it")),
    }
}

fn disk(bench: &Bench<'_>, seconds: f64) -> Disk {
    let mounts = bench.os.mounts.list().unwrap_or_default();
    let filesystem = holder(&mounts, bench.workspace)
        .map_or_else(|| "unknown".to_owned(), |mount| format!("{} on {}", mount.fs_type, mount.source));
    let config = bench.config;
    Disk {
        dir: config.dir.display().to_string(),
        filesystem,
        kernel: machine::kernel(bench.os).text,
        volume_bytes: config.bytes,
        file_bytes: config.bytes / PART,
        turns: config.turns,
        seconds,
    }
}

/// Ends the volumes and stops the drivers; what did not go well.
async fn end(volumes: &mut Volumes) -> Vec<String> {
    let mut problems = Vec::new();
    while let Some((index, candidate, volume)) = volumes.in_use.pop() {
        let Some(driver) = volumes.drivers.get(index) else { continue };
        if let Err(failure) = driver.end(candidate, volume).await {
            problems.push(format!("{}: {failure}", candidate.as_str()));
        }
    }
    while let Some(driver) = volumes.drivers.pop() {
        problems.extend(driver.stop().await.err());
    }
    problems
}

/// The result for people, or as JSON.
fn shown(config: &DiskConfig, results: &Results) -> String {
    let summary = advice::summary(results);
    if config.json {
        return format!("{:#}", results.json(&summary));
    }
    let Disk { dir, filesystem, kernel, turns, seconds, .. } = &results.disk;
    let (volume, file) = (format_bytes(config.bytes), format_bytes(config.bytes / PART));
    let head = format!(
        "{dir} ({filesystem}, Linux {kernel}): volumes of {volume}, {file} of each in use; medians of {turns} turns of \
         {seconds:.2} s"
    );
    let left_out =
        |(candidate, why): &(Candidate, String)| format!("{} is left out: {why}", candidate.as_str());
    let left_out: Vec<String> = results.left_out.iter().map(left_out).collect();
    let parts = [head, bars::bars(results), left_out.join("\n"), summary.join("\n")];
    let parts: Vec<&str> = parts.iter().map(|part| part.trim_end()).filter(|part| !part.is_empty()).collect();
    parts.join("\n\n")
}

fn draw(os: &Os, config: &DiskConfig, results: &Results) -> Result<(), String> {
    match &config.svg {
        Some(file) => write_whole(&*os.files, file, svg::svg(results).as_bytes())
            .map_err(|error| format!("{error} (--svg)")),
        None => Ok(()),
    }
}
