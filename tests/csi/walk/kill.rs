//! The kill walk: the process, or the power, ends at every step of a call.

use std::collections::BTreeMap;

use hostloop::kernel::Os;
use hostloop_fake_kernel::{FakeKernel, Kill};
use nix::errno::Errno;

use super::call::Model;
use super::observe::{
    Seen, Verdict, check, clean_start, ensure, fits, formats, kubelet_cleans_up, restore, tear_down,
};
use super::scenario::Scenario;
use crate::harness::Server;

/// Steps of which the fake kernel can do half; for all others torn is the same as before.
const TORN: [&str; 12] = [
    "append",
    "open_log",
    "remove_tree",
    "allocate",
    "make",
    "reflink",
    "copy_range",
    "copy_tree",
    "unshare",
    "write_at",
    "write_tree",
    "create_limited",
];

/// One way to end.
#[derive(Debug, Clone, Copy)]
pub struct End {
    /// At which step of the call; `None` for right after the answer.
    pub at: Option<(usize, Kill)>,
    /// The power goes as well, not the process alone.
    pub power: bool,
}

/// Every end of a call with these steps.
pub fn ends(steps: &[&'static str]) -> Vec<End> {
    let mut at = vec![None];
    for (step, n) in steps.iter().zip(1..) {
        at.extend([Some((n, Kill::Before)), Some((n, Kill::After))]);
        at.extend(TORN.contains(step).then_some(Some((n, Kill::Torn))));
    }
    at.into_iter().flat_map(|at| [false, true].map(|power| End { at, power })).collect()
}

/// Runs the scenario's call to its end, starts again, and checks everything.
pub fn run(scenario: &Scenario, end: End) -> Verdict {
    let ended = Ended::make(scenario, None, end)?;
    let server = ended.start_again()?;
    ended.finish(server)
}

/// Lets one step of the call fail, and then ends its retry after one of its steps.
pub fn run_after_fault(scenario: &Scenario, fault: usize, end: End) -> Verdict {
    let ended = Ended::make(scenario, Some(fault), end)?;
    let server = ended.start_again()?;
    ended.finish(server)
}

/// The steps of the retry after a fault.
pub fn steps_after_fault(scenario: &Scenario, fault: usize) -> usize {
    let (kernel, server, _) = scenario.prepare();
    kernel.fail_at(fault, Errno::EIO);
    drop(scenario.call.run(&server));
    kernel.clear_steps();
    drop(scenario.call.run(&server));
    kernel.steps().len()
}

/// A machine on which a scenario's call came to its end.
pub struct Ended<'a> {
    pub scenario: &'a Scenario,
    pub kernel: FakeKernel,
    /// What was acknowledged before the call, and what is with it.
    before: Model,
    after: Model,
    pub acknowledged: bool,
    /// The power goes before the next start.
    pub power: bool,
    /// It has gone since the call.
    pub mounts_gone: bool,
    /// It has gone at any time.
    cut: bool,
    formatted: BTreeMap<String, usize>,
}

impl Ended<'_> {
    /// The power goes now.
    pub fn cut_power(&mut self) {
        (self.power, self.mounts_gone, self.cut) = (true, true, true);
    }

    /// Runs the call to its end; with `fault` after a first attempt of which this step fails.
    pub fn make(scenario: &Scenario, fault: Option<usize>, end: End) -> Result<Ended<'_>, String> {
        let (kernel, server, before) = scenario.prepare();
        if let Some(n) = fault {
            kernel.fail_at(n, Errno::EIO);
            drop(scenario.call.run(&server));
            kernel.clear_plans();
        }
        let mut after = before.clone();
        after.apply(&scenario.call);
        let formatted = formats(&kernel, &before);
        if let Some((n, kill)) = end.at {
            kernel.kill_at(n, kill);
        }
        let answer = scenario.call.run(&server);
        match end.at {
            None => ensure!(answer.is_ok(), "the call fails: {answer:?}"),
            // After a fault there may be less to do.
            Some(_) => ensure!(
                kernel.is_dead() || (fault.is_some() && answer.is_ok()),
                "the call did not come to this step: {answer:?}"
            ),
        }
        kernel.kill();
        server.abandon();
        let acknowledged = answer.is_ok();
        let (power, mounts_gone, cut) = (end.power, end.power, end.power);
        Ok(Ended { scenario, kernel, before, after, acknowledged, power, mounts_gone, cut, formatted })
    }

    /// The machine for the next process.
    pub fn os(&self) -> Os {
        if self.power { self.kernel.power_cut() } else { self.kernel.restart() }
    }

    pub fn start_again(&self) -> Result<Server, String> {
        self.scenario.start(self.os())
    }

    /// Checks what the new server shows, repeats the call, and takes everything down.
    pub fn finish(&self, server: Server) -> Verdict {
        let Ended { scenario, kernel, before, after, acknowledged, mounts_gone, cut, formatted, .. } = self;
        let seen = Seen::now(kernel, &server);
        let (old, new) = (Seen::of(before, !mounts_gone), Seen::of(after, !mounts_gone));
        let known = seen == new || (!acknowledged && seen == old);
        ensure!(known, "acknowledged: {acknowledged}; expected {new:?}, found {seen:?}");
        clean_start(kernel, &server)?;
        let (unmodified, modified) = (before.common(after), after.common(before));
        if unmodified != modified && (*acknowledged || fits(kernel, &server, &unmodified).is_err()) {
            fits(kernel, &server, &modified)?;
        }
        restore(&server, &unmodified)?;
        self.retry(&server)?;
        for (id, count) in formats(kernel, after) {
            let so_far = formatted.get(&id).copied().unwrap_or_default();
            ensure!(count == so_far, "{id} was formatted over its data");
        }
        if *cut {
            kubelet_cleans_up(kernel, after);
        }
        tear_down(kernel, &server, after, scenario.settings.attach)?;
        server.abandon();
        Ok(())
    }

    /// The caller's retry succeeds and is complete.
    pub fn retry(&self, server: &Server) -> Verdict {
        self.scenario.call.repeat(server)?;
        restore(server, &self.after)?;
        check(&self.kernel, server, &self.after)
    }
}
