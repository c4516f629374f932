//! A driver under the load of many clients for long: what it holds stays as much as it was.

use std::time::{Duration, Instant};

use crate::harness::kernel;
use crate::harness::process::binary;
use crate::volumes::many_clients::Run;

/// Between two samples.
const EVERY: Duration = Duration::from_secs(10);
/// What is sampled, and by how much it may differ whatever it is: the load is another one at each moment.
const SERIES: [(&str, f64); 5] = [
    ("RSS, KiB", 4096.0),
    ("descriptors", 48.0),
    ("threads", 24.0),
    ("loop devices", 12.0),
    ("mounts", 24.0),
];
/// By how much it may grow besides.
const SHARE: f64 = 0.15;

type Sample = [f64; SERIES.len()];

fn status(pid: u32, field: &str) -> f64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("the status of the driver");
    let line = status.lines().find_map(|line| line.strip_prefix(field)).expect("the field");
    line.trim_start_matches(':').split_whitespace().next().and_then(|n| n.parse().ok()).expect("a number")
}

fn sample(pid: u32, world: &std::path::Path) -> Sample {
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("the descriptors").count();
    let (loops, mounts) = (kernel::loops(world).len(), kernel::mounts(world).len());
    [status(pid, "VmRSS"), descriptors as f64, status(pid, "Threads"), loops as f64, mounts as f64]
}

/// Growth from the first to the last of these, by the line of least squares.
fn growth(values: &[f64]) -> f64 {
    let n = values.len() as f64;
    let (mean_x, mean_y) = ((n - 1.0) / 2.0, values.iter().sum::<f64>() / n);
    let at = |(x, y): (usize, &f64)| ((x as f64 - mean_x) * (y - mean_y), (x as f64 - mean_x).powi(2));
    let (above, below) = values.iter().enumerate().map(at).fold((0.0, 0.0), |a, b| (a.0 + b.0, a.1 + b.1));
    above / below * (n - 1.0)
}

fn most(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Why a series is not flat. The first quarter is the warm-up: neither does the line through the rest rise by more
/// than may be, nor is the most of the last quarter more than that of the second.
fn not_flat(values: &[f64], slack: f64) -> Option<String> {
    let quarter = values.len() / 4;
    let (rest, second, last) = (&values[quarter..], &values[quarter..2 * quarter], &values[3 * quarter..]);
    let allowed = slack + SHARE * rest.iter().sum::<f64>() / rest.len() as f64;
    let (line, step) = (growth(rest), most(last) - most(second));
    (line > allowed || step > allowed)
        .then(|| format!("the line rises by {line:.0}, the maximum by {step:.0}, allowed is {allowed:.0}"))
}

#[test]
fn growth_is_told_from_a_flat_line() {
    let wave = |n: usize| 100.0 + (n % 7) as f64;
    let flat: Vec<f64> = (0..80).map(wave).collect();
    assert_eq!(not_flat(&flat, 4.0), None);
    let warm: Vec<f64> = (0..80).map(|n| wave(n) - if n < 20 { 60.0 } else { 0.0 }).collect();
    assert_eq!(not_flat(&warm, 4.0), None, "it grows at first");
    let leak: Vec<f64> = (0..80).map(|n| wave(n) + n as f64).collect();
    assert!(not_flat(&leak, 4.0).is_some());
    let late: Vec<f64> = (0..80).map(|n| wave(n) + if n == 75 { 50.0 } else { 0.0 }).collect();
    assert!(not_flat(&late, 4.0).is_some());
}

/// `make soak MINUTES=30`, on the release driver.
#[test]
#[ignore = "long; `make soak` runs it"]
fn a_driver_under_load_stays_as_large_as_it_is() {
    let minutes: f64 = std::env::var("MINUTES").expect("MINUTES says how long").parse().expect("a number");
    let driver = std::env::var("HOSTLOOP_SOAK_DRIVER").unwrap_or_else(|_| binary().to_owned());
    let mut run = Run::new(&driver);
    let (pid, place, started) = (run.world.driver().pid(), run.world.dir.clone(), Instant::now());
    let length = Duration::from_secs_f64(minutes * 60.0);
    let sampler = std::thread::spawn(move || {
        let mut samples: Vec<Sample> = Vec::new();
        while started.elapsed() < length {
            std::thread::sleep(EVERY);
            samples.push(sample(pid, &place));
        }
        samples
    });
    while started.elapsed() < length {
        run.epoch(500, None);
    }
    let samples = sampler.join().expect("the samples");
    eprintln!("{driver}: {} calls in {:.1?}", run.calls(), started.elapsed());
    eprintln!("{:>8}  {}", "seconds", SERIES.map(|(name, _)| format!("{name:>12}")).join("  "));
    for (at, sample) in samples.iter().enumerate() {
        let values = sample.map(|value| format!("{value:>12}")).join("  ");
        eprintln!("{:>8}  {values}", (at + 1) * 10);
    }
    assert!(samples.len() >= 16, "{} samples tell nothing: give it more MINUTES", samples.len());
    let mut wrong = Vec::new();
    for (at, (name, slack)) in SERIES.into_iter().enumerate() {
        let values: Vec<f64> = samples.iter().map(|sample| sample[at]).collect();
        wrong.extend(not_flat(&values, slack).map(|why| format!("{name}: {why}")));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    run.finish(false);
}
