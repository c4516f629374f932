//! The fault walk: every step of a call fails once, and the process lives.

use nix::errno::Errno;
use tonic::Code;

use super::call::Call;
use super::observe::{
    Seen, Verdict, check, clean_start, ensure, fits, in_force, invariants, restore, snapshot, tear_down,
};
use super::scenario::Scenario;

/// The errors that are tried, and the code that a caller is to see.
pub const FAULTS: [(Errno, Code); 3] = [
    (Errno::EIO, Code::Internal),
    (Errno::ENOSPC, Code::ResourceExhausted),
    (Errno::EBUSY, Code::FailedPrecondition),
];

/// Steps after which a failed expansion stays: the storage has grown and is recorded, and a device may have taken
/// on the size, so that taking it back could cut off data. The caller's retry goes on from there.
const GROWN_ALREADY: [&str; 2] = ["update_size", "grow"];

/// Tools that want the device for themselves: who has it may be the tool of a driver that was killed, and ends.
const TOOLS_ON_A_DEVICE: [&str; 2] = ["renew_identity", "repair"];

/// Runs the scenario's call with its n-th step failing, then repeats the call, then starts again.
pub fn run(scenario: &Scenario, n: usize, (errno, code): (Errno, Code)) -> Verdict {
    let (kernel, server, before) = scenario.prepare();
    let mut after = before.clone();
    after.apply(&scenario.call);
    let snapshot_before = snapshot(&kernel, &server);
    kernel.fail_at(n, errno);
    let answer = scenario.call.run(&server);
    match &answer {
        Ok(()) => check(&kernel, &server, &after)?,
        Err(status) => {
            let step = kernel.steps().get(n - 1).map_or("", |step| step.name);
            let code = if errno == Errno::EBUSY && TOOLS_ON_A_DEVICE.contains(&step) {
                Code::Unavailable
            } else {
                code
            };
            ensure!(status.code() == code, "{errno} of {step} became {status}");
            let expanding = matches!(scenario.call, Call::Expand(_) | Call::NodeExpand(_));
            if scenario.call.is_forward_only() || (expanding && GROWN_ALREADY.contains(&step)) {
                invariants(&kernel, &server)?;
                let seen = Seen::now(&kernel, &server);
                let known = [Seen::of(&before, true), Seen::of(&after, true)];
                ensure!(known.contains(&seen), "expected one of {known:?}, found {seen:?}");
            } else {
                let now = snapshot(&kernel, &server);
                ensure!(now == snapshot_before, "not rolled back:\n{}", difference(&snapshot_before, &now));
                invariants(&kernel, &server)?;
                fits(&kernel, &server, &before)?;
                in_force(&kernel, &before)?;
            }
        }
    }
    if answer.is_err() {
        scenario.call.repeat(&server)?;
        check(&kernel, &server, &after)?;
    }
    kernel.kill();
    server.abandon();
    let server = scenario.start(kernel.restart())?;
    clean_start(&kernel, &server)?;
    restore(&server, &after)?;
    check(&kernel, &server, &after)?;
    tear_down(&kernel, &server, &after, scenario.settings.attach)?;
    server.abandon();
    Ok(())
}

/// The lines that only one of the two has.
fn difference(before: &str, after: &str) -> String {
    let gone =
        before.lines().filter(|line| !after.lines().any(|other| other == *line)).map(|l| format!("-{l}"));
    let new =
        after.lines().filter(|line| !before.lines().any(|other| other == *line)).map(|l| format!("+{l}"));
    gone.chain(new).collect::<Vec<_>>().join("\n")
}
