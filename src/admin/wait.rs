//! Waits for the ends of moves. Each look lists all objects that are followed, so that no end can be missed.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::Session;
use super::api::Failure;
use super::follow::{Follow, Goal, State};
use super::seen::Leader;

/// Between two looks.
const PAUSE: Duration = Duration::from_secs(1);
/// A controller has looked at a request after so long, unless there is none, or it is busy.
const SILENCE: Duration = Duration::from_secs(10);
/// Between two looks at the Lease while nothing happens, and after it had no holder.
const AGAIN: Duration = Duration::from_secs(30);
const AGAIN_SOON: Duration = Duration::from_secs(5);
/// When to stop waiting for a first sign of a controller whose Lease the user may not read.
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
    /// What was waited for has come.
    Over,
    /// No controller moves volumes.
    ForNobody,
}

/// When something last happened, and what is known of the controllers.
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
        let several = follows.len() > 1;
        follows.iter_mut().for_each(|follow| follow.among_others = several);
        let mut silence = Silence::begins(Instant::now());
        let mut troubled = false;
        loop {
            let looked = self.look_at(follows, driver).await;
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
            sleep(PAUSE).await;
        }
    }

    /// Looks at everything that has not ended. Returns whether anything was new.
    async fn look_at(&mut self, follows: &mut [Follow], driver: &str) -> Result<bool, Failure> {
        let going = || follows.iter().filter(|follow| !follow.has_ended());
        let moves = match going().any(|follow| follow.goal == Goal::Moved) {
            true => self.cluster.moves(one(going().map(|follow| follow.name.namespace.as_str()))).await?,
            false => Vec::new(),
        };
        let replicas = match going().any(|follow| follow.goal != Goal::Moved) {
            true => self.cluster.replicas(driver).await?,
            false => Vec::new(),
        };
        let mut any = false;
        for follow in follows.iter_mut().filter(|follow| !follow.has_ended()) {
            let (before, was) = (follow.told.clone(), follow.state.clone());
            let is_new = match follow.goal {
                Goal::Moved => {
                    follow.see_move(moves.iter().find(|asked| asked.uid == follow.uid), Instant::now())
                }
                Goal::GivenUp | Goal::Promoted => {
                    let replica = replicas.iter().find(|replica| replica.uid == follow.uid);
                    // As long as there is a copy that is to go, it says where the volume is.
                    let node = match replica.is_none() || follow.goal == Goal::Promoted {
                        true => self.cluster.node_of(&follow.volume).await?,
                        false => None,
                    };
                    follow.see_replica(replica, node.as_deref())
                }
            };
            // The end has a line of its own.
            if let Some(told) = follow.told.as_ref().filter(|_| is_new && !follow.has_ended()) {
                self.screen.told(&follow.name, before.as_ref(), told);
            }
            any |= is_new || follow.state != was;
            if follow.state != was {
                self.screen.ended(follow);
            }
        }
        Ok(any)
    }

    /// Nothing has happened for a while: returns whether that is because no controller moves volumes.
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
            Leader::Leads(name) => {
                silence.nobody = false;
                if silent && !silence.said {
                    silence.said = true;
                    self.screen
                        .say(&format!("controller {name} moves volumes; waiting until it looks at these"));
                }
            }
            Leader::Unknown if silent => {
                if now.duration_since(silence.since) >= NO_SIGN {
                    return Ok(true);
                }
                if !silence.said {
                    silence.said = true;
                    self.screen.say("nothing has happened yet; does a controller run with --move?");
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

/// Returns what all have in common.
fn one<'a>(mut all: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let first = all.next()?;
    all.all(|other| other == first).then_some(first)
}
