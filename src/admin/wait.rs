//! Waits for the ends of moves. Every look at a claim is a call of its own, so nothing can be missed that matters; watching
//! the claims only says when a look is worth it.

use std::collections::HashSet;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::{Instant, sleep_until};

use super::Session;
use super::api::Failure;
use super::follow::{Follow, State};
use super::seen::{Leader, Name};

/// Between two looks at a claim that nobody says has changed; and while it may be made again.
const CALM: Duration = Duration::from_secs(5);
const PRESSING: Duration = Duration::from_secs(1);
/// A mover has looked at a claim after so long, unless there is none, or it is busy.
const SILENCE: Duration = Duration::from_secs(10);
/// Between two looks at the Lease while nothing happens, and after it had no holder.
const AGAIN: Duration = Duration::from_secs(30);
const AGAIN_SOON: Duration = Duration::from_secs(5);
/// When to stop waiting for a first sign of a mover whose Lease the user may not read.
const NO_SIGN: Duration = Duration::from_secs(60);

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Until {
    /// The moves have ended.
    Ended,
    /// They have ended, or their copies are ready for the pods to leave.
    Ready,
}

/// Why the waiting is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waited {
    /// It is as it was waited for.
    Over,
    /// There is nobody who moves volumes.
    ForNobody,
}

/// When something last happened, and what is known of who makes it happen.
struct Silence {
    since: Instant,
    /// When to look at the Lease.
    ask: Instant,
    nobody: bool,
    said: bool,
}

impl Silence {
    fn begins(now: Instant) -> Self {
        Silence { since: now, ask: now + SILENCE, nobody: false, said: false }
    }

    fn is_broken(&mut self, now: Instant) {
        *self = Silence { said: self.said, ..Silence::begins(now) };
    }
}

impl Session {
    pub(super) async fn wait(
        &mut self,
        follows: &mut [Follow],
        until: Until,
        driver: &str,
    ) -> Result<Waited, Failure> {
        let mut changes = self.cluster.changes(
            one(follows.iter().map(|follow| follow.name.namespace.as_str())),
            one(follows.iter().map(|follow| follow.name.name.as_str())),
        );
        let several = follows.len() > 1;
        follows.iter_mut().for_each(|follow| follow.among_others = several);
        let mut due: HashSet<Name> = names(follows);
        let mut silence = Silence::begins(Instant::now());
        let mut troubled = false;
        loop {
            let looked = self.look_at(follows, &due).await;
            let was_troubled = std::mem::replace(&mut troubled, matches!(looked, Err(Failure::Later(_))));
            match looked {
                Ok(true) => silence.is_broken(Instant::now()),
                Ok(false) => {}
                Err(Failure::Later(error)) => {
                    if !was_troubled {
                        self.screen.say(&format!("the API server does not answer; trying again: {error}"));
                    }
                    silence.is_broken(Instant::now());
                }
                Err(error) => return Err(error),
            }
            self.screen.draw(follows);
            if follows.iter().all(|follow| is_settled(follow, until)) {
                self.screen.keep();
                return Ok(Waited::Over);
            }
            if Instant::now() >= silence.ask && self.is_nobody_there(follows, driver, &mut silence).await? {
                return Ok(Waited::ForNobody);
            }
            let pause = if follows.iter().any(Follow::is_pressing) { PRESSING } else { CALM };
            let next = Instant::now() + pause;
            due = tokio::select! {
                Some(name) = changes.next() => HashSet::from([name]),
                () = sleep_until(next) => names(follows),
            };
        }
    }

    /// Looks at these claims. Tells whether anything was new.
    async fn look_at(&mut self, follows: &mut [Follow], due: &HashSet<Name>) -> Result<bool, Failure> {
        let mut any = false;
        for follow in follows.iter_mut().filter(|f| !f.has_ended() && due.contains(&f.name)) {
            let seen = self.cluster.look(&follow.name).await?;
            let before = follow.told.clone();
            let was = follow.state.clone();
            let new = follow.see(&seen, Instant::now());
            any |= new;
            // The end is told by itself.
            if let Some(told) = follow.told.as_ref().filter(|_| new && !follow.has_ended()) {
                self.screen.told(&follow.name, before.as_ref(), told);
            }
            if follow.state != was {
                any = true;
                self.screen.ended(follow);
            }
        }
        Ok(any)
    }

    /// Nothing has happened for a while: tells whether that is because nobody moves volumes.
    async fn is_nobody_there(
        &mut self,
        follows: &[Follow],
        driver: &str,
        silence: &mut Silence,
    ) -> Result<bool, Failure> {
        let now = Instant::now();
        silence.ask = now + AGAIN;
        let leader = match self.cluster.leader(driver).await {
            Ok(leader) => leader,
            Err(Failure::Later(_)) => return Ok(false),
            Err(error) => return Err(error),
        };
        let silent = follows.iter().any(|follow| !follow.has_ended() && follow.told.is_none());
        match leader {
            // Between two leaders there is none for a moment.
            Leader::Nobody if silence.nobody => return Ok(true),
            Leader::Nobody => {
                silence.nobody = true;
                silence.ask = now + AGAIN_SOON;
            }
            Leader::Leads(who) => {
                silence.nobody = false;
                if silent && !silence.said {
                    silence.said = true;
                    self.screen
                        .say(&format!("controller {who} moves volumes; waiting until it looks at these"));
                }
            }
            Leader::Unknown if silent => {
                if now.duration_since(silence.since) >= NO_SIGN {
                    return Ok(true);
                }
                if !silence.said {
                    silence.said = true;
                    self.screen
                        .say("nothing has happened yet; is moving turned on (move.enabled in the chart)?");
                }
            }
            Leader::Unknown => {}
        }
        Ok(false)
    }
}

fn is_settled(follow: &Follow, until: Until) -> bool {
    follow.has_ended() || (until == Until::Ready && follow.state == State::Ready)
}

fn names(follows: &[Follow]) -> HashSet<Name> {
    follows.iter().map(|follow| follow.name.clone()).collect()
}

/// What all have in common.
fn one<'a>(mut all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}
