//! A start that ends, or fails, at each of its steps.

use super::*;
use crate::walk::part::ways;

/// A start that is walked: what is there before, the flags, and what must be there after.
struct Scenario {
    name: &'static str,
    prepare: fn() -> FakeKernel,
    pool: &'static str,
    bytes: u64,
    /// Data that must be there.
    file: bool,
}

impl Scenario {
    fn start(&self, kernel: &FakeKernel) -> Result<Rig, String> {
        Rig::try_on(kernel.clone(), &["--pool", self.pool])
    }

    /// A start after whatever has happened brings the pool up, whole, and with its data.
    fn recovers(&self, kernel: &FakeKernel, what: &str) {
        let rig = self.start(kernel).unwrap_or_else(|error| panic!("{}, {what}: {error}", self.name));
        is_up(kernel, self.bytes);
        let free = rig.ok(capacity(&[("pool", "copies")])).available_capacity;
        assert!(
            free > self.bytes as i64 / 2,
            "{}, {what}: the filesystem has the size of its image",
            self.name
        );
        let vol = rig.made(in_pool("v"));
        rig.stage(&vol);
        let file = format!("{}/file", rig.publish(&vol, "pod"));
        if self.file {
            assert_eq!(kernel.read_file(file).expect("read"), b"data", "{}, {what}", self.name);
        }
        assert_eq!(kernel.loops().len(), 2, "{}, {what}: {:?}", self.name, kernel.loops());
    }
}

/// The process, or the power, ends at each step of the start; and each step fails. A run takes one of the ways in which a step can
/// end or fail, and `make walk` takes all.
fn walk(scenario: &Scenario) {
    let kernel = (scenario.prepare)();
    kernel.restart();
    kernel.clear_steps();
    drop(scenario.start(&kernel).expect("it starts"));
    let steps = kernel.steps();
    println!("{}: {} steps", scenario.name, steps.len());
    for step in &steps {
        for kill in ways(step.number, &[Kill::Before, Kill::Torn, Kill::After]) {
            for power in [false, true] {
                let kernel = (scenario.prepare)();
                kernel.restart();
                kernel.kill_at(step.number, kill);
                let ended = scenario.start(&kernel);
                kernel.kill();
                drop(ended);
                let _: Os = if power { kernel.power_cut() } else { kernel.restart() };
                let twice = devices_of_any(&kernel);
                assert!(twice.is_empty(), "{}: two devices on {twice:?}", scenario.name);
                scenario
                    .recovers(&kernel, &format!("{kill:?} {} {}, power {power}", step.name, step.subject));
            }
        }
        for errno in ways(step.number, &[Errno::EIO, Errno::ENOSPC]) {
            let kernel = (scenario.prepare)();
            kernel.restart();
            kernel.fail_at(step.number, errno);
            drop(scenario.start(&kernel));
            kernel.restart();
            scenario.recovers(&kernel, &format!("{errno} at {} {}", step.name, step.subject));
        }
    }
}

#[test]
fn a_first_start_can_end_at_any_step() {
    walk(&Scenario { name: "first start", prepare: machine, pool: POOL, bytes: BYTES, file: false });
}

#[test]
fn a_start_that_takes_over_can_end_at_any_step() {
    walk(&Scenario { name: "start again", prepare: with_data, pool: POOL, bytes: BYTES, file: true });
}

#[test]
fn a_start_after_a_reboot_can_end_at_any_step() {
    walk(&Scenario { name: "after a reboot", prepare: rebooted, pool: POOL, bytes: BYTES, file: true });
}

#[test]
fn growing_can_end_at_any_step() {
    walk(&Scenario { name: "grow", prepare: with_data, pool: LARGER, bytes: 2 * BYTES, file: true });
    walk(&Scenario {
        name: "grow after a reboot",
        prepare: rebooted,
        pool: LARGER,
        bytes: 2 * BYTES,
        file: true,
    });
}

/// Files that two loop devices have.
fn devices_of_any(kernel: &FakeKernel) -> Vec<FileId> {
    let mut backing: Vec<_> = kernel.loops().iter().filter_map(|device| device.backing).collect();
    backing.sort();
    backing.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]).collect()
}
