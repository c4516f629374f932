//! What the state of an object means for a command that waits for its end. No I/O.

use std::time::Duration;

use tokio::time::Instant;

use super::seen::{Move, Name, Replica, Told};

/// A claim of the same pods may be asked to move as well meanwhile. The controller looks at what it has refused every 30 seconds.
const PATIENCE: Duration = Duration::from_secs(40);
/// How a move ends that was given up in time.
pub(super) const AS_BEFORE: &str = "everything is as it was before";

/// What is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Goal {
    /// The volume is on the node that its VolumeMove asks for.
    Moved,
    /// The move is given up.
    GivenUp,
    /// The claim has its copy.
    Promoted,
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    Done(String),
    /// Nothing was done; the message says why.
    Refused(String),
    /// It was given up, by a user or for this reason.
    GivenUp(String),
    /// There is no claim of that name.
    Gone,
}

/// How far it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    Going,
    /// The copy is nearly up to date, so the pods may leave, or have left.
    Ready,
    Ended(Ending),
}

/// One claim whose move or promotion is followed.
#[derive(Debug, Clone)]
pub(super) struct Follow {
    pub(super) name: Name,
    pub(super) goal: Goal,
    pub(super) state: State,
    /// What the controller has written last; `None` before it has looked.
    pub(super) told: Option<Told>,
    /// The uid of the VolumeMove, or of the VolumeReplica if the goal is another one than a move.
    pub(super) uid: String,
    /// The PersistentVolume, and the node of its copy; empty for a move.
    pub(super) volume: String,
    target: String,
    /// The copy is in this pool of the volume's own node; empty for another node.
    pool: String,
    /// Others are asked for at the same time, which the controller may find one after the other.
    pub(super) among_others: bool,
    /// The move that is waited for was seen under way.
    began: bool,
    refused: Option<(Instant, String)>,
}

impl Follow {
    fn new(name: Name, goal: Goal) -> Self {
        Follow {
            name,
            goal,
            state: State::Going,
            told: None,
            uid: String::new(),
            volume: String::new(),
            target: String::new(),
            pool: String::new(),
            among_others: false,
            began: false,
            refused: None,
        }
    }

    pub(super) fn of_move(asked: &Move) -> Self {
        Follow { uid: asked.uid.clone(), ..Follow::new(asked.claim.clone(), Goal::Moved) }
    }

    pub(super) fn of_replica(replica: &Replica, goal: Goal) -> Self {
        Follow {
            uid: replica.uid.clone(),
            volume: replica.spec.persistent_volume.name.clone(),
            target: replica.spec.target_node.clone(),
            pool: replica.told.target_pool.clone(),
            ..Follow::new(replica.claim.clone(), goal)
        }
    }

    /// Returns one that has ended before it began.
    pub(super) fn ended(name: Name, goal: Goal, ending: Ending) -> Self {
        Follow { state: State::Ended(ending), ..Follow::new(name, goal) }
    }

    /// Returns whether the goal was reached.
    pub(super) fn is_good(&self) -> bool {
        match (&self.state, self.goal) {
            (State::Ended(Ending::Done(_)), Goal::Moved | Goal::Promoted) => true,
            (State::Ended(Ending::GivenUp(_)), Goal::GivenUp) => true,
            (State::Ready, Goal::Moved) => true,
            (State::Ended(_) | State::Ready | State::Going, _) => false,
        }
    }

    /// Returns why it ended, or what the controller has written last.
    pub(super) fn why(&self) -> &str {
        match &self.state {
            State::Ended(Ending::Done(why) | Ending::Refused(why) | Ending::GivenUp(why)) => why,
            State::Ended(Ending::Gone) => "there is no claim of this name",
            State::Ready | State::Going => self.told.as_ref().map_or("", |told| &told.message),
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }

    /// Takes in its VolumeMove as it is now. Returns whether the controller has written something new.
    pub(super) fn see_move(&mut self, asked: Option<&Move>, now: Instant) -> bool {
        let Some(asked) = asked else {
            self.state = State::Ended(Ending::GivenUp("its VolumeMove was deleted".to_owned()));
            return false;
        };
        self.state = self.is_moving(&asked.told, now);
        self.is_told(&asked.told)
    }

    /// Takes in its VolumeReplica as it is now, and the node of its PersistentVolume if that is known. Returns whether the
    /// controller has written something new.
    pub(super) fn see_replica(&mut self, replica: Option<&Replica>, node: Option<&str>) -> bool {
        // The PersistentVolume does not say in which pool the volume is.
        let is_there = self.pool.is_empty() && node == Some(&self.target);
        let has_moved = is_there || replica.is_some_and(|r| r.told.is(&["Retiring", "Left"]));
        self.state = match self.goal {
            Goal::Promoted => self.is_promoted(replica, has_moved),
            Goal::GivenUp | Goal::Moved => self.is_given_up(replica, has_moved),
        };
        replica.is_some_and(|replica| self.is_told(&replica.told))
    }

    fn is_told(&mut self, told: &Told) -> bool {
        let is_new = !told.phase.is_empty() && self.told.as_ref() != Some(told);
        if is_new {
            self.told = Some(told.clone());
        }
        is_new
    }

    fn is_moving(&mut self, told: &Told, now: Instant) -> State {
        if told.is(&["Refused"]) {
            return self.is_refused(&told.message, now);
        }
        self.refused = None;
        self.began |= !told.phase.is_empty();
        match told.phase.as_str() {
            "Done" if told.target_node.is_empty() || !told.target_pool.is_empty() => {
                State::Ended(Ending::Done(told.message.clone()))
            }
            "Done" => State::Ended(Ending::Done(format!("the volume is on node {}", told.target_node))),
            "Ready" | "CuttingOver" => State::Ready,
            _ => State::Going,
        }
    }

    fn is_refused(&mut self, why: &str, now: Instant) -> State {
        let since = match &self.refused {
            Some((since, before)) if before == why => *since,
            _ => now,
        };
        self.refused = Some((since, why.to_owned()));
        // What was seen under way failed; what has not begun may begin when another claim is asked for.
        if self.began || !self.among_others || now.duration_since(since) >= PATIENCE {
            return State::Ended(Ending::Refused(why.to_owned()));
        }
        State::Going
    }

    fn is_given_up(&self, replica: Option<&Replica>, has_moved: bool) -> State {
        let before = ["Pending", "Copying", "Following", "Ready", "Standby"];
        match replica {
            _ if has_moved => {
                let place = match self.pool.as_str() {
                    "" => format!("on node {}", self.target),
                    pool => format!("in pool {pool} of node {}", self.target),
                };
                State::Ended(Ending::Done(format!("it was too late: the volume is {place}")))
            }
            // The copy was lent to the move, and stands by again.
            Some(replica) if !(replica.stands_by() && replica.told.is(&before)) => State::Going,
            Some(_) | None => State::Ended(Ending::GivenUp(AS_BEFORE.to_owned())),
        }
    }

    fn is_promoted(&self, replica: Option<&Replica>, has_moved: bool) -> State {
        let given_up = |why: &str| State::Ended(Ending::GivenUp(why.to_owned()));
        match replica {
            _ if has_moved => {
                State::Ended(Ending::Done(format!("the claim has the copy on node {}", self.target)))
            }
            None => given_up("its VolumeReplica is gone"),
            Some(replica) if replica.told.is(&["Abandoning"]) => given_up(&replica.told.message),
            Some(replica)
                if !replica.promoted && !replica.told.is(&["Exchanging", "LastPass", "Completing"]) =>
            {
                given_up("the annotation promote of its VolumeReplica was removed")
            }
            Some(_) => State::Going,
        }
    }
}
