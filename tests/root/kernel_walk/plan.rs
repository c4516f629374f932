//! What is done at which position of a call.

use std::fmt;

use nix::errno::Errno;

use super::tracer::Change;

/// Errors that each call fails with in turn.
const ERRORS: [Errno; 5] = [Errno::EIO, Errno::ENOSPC, Errno::ENOMEM, Errno::EBUSY, Errno::EINTR];

/// Who ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// The driver alone, as with a crash: what it has started goes on, here only after the next start.
    Driver,
    /// The program that makes the call, as with the OOM killer.
    Program,
    /// All of them, as with the container.
    All,
}

/// When.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    Before,
    After,
}

/// What happens there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    Kill(Who, When),
    /// The call does nothing and returns this.
    Fail(Errno),
    /// About half of the bytes are written.
    Short,
}

impl Action {
    /// Everything that can happen at a position.
    pub fn all(change: &Change) -> Vec<Action> {
        use {When::*, Who::*};
        let kills: &[_] = if change.in_driver {
            &[(Driver, Before), (Driver, After)]
        } else {
            &[(Driver, Before), (Driver, After), (Program, Before), (Program, After), (All, After)]
        };
        let kills = kills.iter().map(|(who, when)| Action::Kill(*who, *when));
        let short = change.can_be_short.then_some(Action::Short);
        kills.chain(ERRORS.map(Action::Fail)).chain(short).collect()
    }
}

/// An action at a position: the n-th system call with this key, whatever others do in between.
#[derive(Debug, Clone)]
pub struct Plan {
    pub key: String,
    pub nth: usize,
    pub action: Action,
}

impl Plan {
    /// Everything that can happen in a call.
    pub fn all(changes: &[Change]) -> Vec<Plan> {
        let plan = |change: &Change, action| Plan { key: change.key.clone(), nth: change.nth, action };
        changes.iter().flat_map(|change| Action::all(change).into_iter().map(|a| plan(change, a))).collect()
    }

    pub fn is_at(&self, change: &Change) -> bool {
        self.nth == change.nth && self.key == change.key
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ({}): {:?}", self.key, self.nth, self.action)
    }
}
