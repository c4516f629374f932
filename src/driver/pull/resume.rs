//! Streams that are resumed where they broke.

use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::errno::Errno;

use super::{Broken, Remote};
use crate::error::{Error, Result};
use crate::kernel::errno_error;

/// How long the first try after a break waits; each further one waits twice as long, up to the longest.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Runs `stream` until it has come to its end. It gets `state`, which tells by `position` how far it is: as long as
/// that moves, or the source does, every break has the full patience.
///
/// # Errors
/// UNAVAILABLE where it cannot be taken up again; INTERNAL where the same part arrived damaged twice; NOT_FOUND where
/// the source is gone.
pub(super) fn resumed<S, P: PartialEq>(
    remote: &Remote,
    state: &mut S,
    position: impl Fn(&S) -> P,
    mut stream: impl FnMut(&mut S) -> Result<(), Broken>,
) -> Result<()> {
    let place = |state: &S| (position(state), remote.opened.moves());
    let (mut since, mut wait, mut at) = (Instant::now(), FIRST_WAIT, place(state));
    let mut damaged_at = None;
    loop {
        let broken = match remote.expect_in_time().and_then(|()| stream(state)) {
            Ok(()) => return Ok(()),
            Err(broken) => broken,
        };
        let now = place(state);
        if now != at {
            (since, wait, at) = (Instant::now(), FIRST_WAIT, now);
        }
        let why = match broken {
            Broken::Ended(error) => return Err(remote.gone(error)),
            Broken::Connection(why) => why,
            Broken::Damaged(what) if damaged_at.as_ref() == Some(&at) => return Err(damaged(remote, &what)),
            Broken::Damaged(what) => {
                damaged_at = Some(place(state));
                what
            }
        };
        let source = &remote.source;
        if since.elapsed() + wait > remote.patience {
            return Err(Error::Unavailable(format!(
                "{source} cannot be read from its node any more: {why}; a retry starts again"
            )));
        }
        tracing::warn!(
            %source,
            why,
            wait_ms = wait.as_millis() as u64,
            "the pull broke off and goes on where it was"
        );
        sleep(wait);
        wait = (wait * 2).min(LONGEST_WAIT);
    }
}

fn damaged(remote: &Remote, what: &str) -> Error {
    let context =
        format!("pull {}: {what}, twice; check the memory and the disks of both nodes", remote.source);
    Error::Os { context, source: errno_error(Errno::EBADMSG, "checksum") }
}
