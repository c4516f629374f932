//! What a claim's state means for somebody who waits for the end of its move. No I/O.

use std::time::Duration;

use tokio::time::Instant;

use super::seen::{Name, PROMOTE, Seen, Told, is_asked_for};
use crate::cluster::mover::status::{HAS_GROWN, NOT_ASKED_FOR};

/// A claim of the same pods may be asked to come along meanwhile. The mover looks at what it has refused every 30 seconds.
const PATIENCE: Duration = Duration::from_secs(40);
/// How often a claim may be missing that is just being made again; there is a look each second.
const PATIENT_LOOKS: u32 = 60;

/// What is waited for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Goal {
    /// The volume is on this node, or on any other.
    Moved(String),
    /// The move is given up.
    GivenUp,
    /// The claim has its copy, which is on this node.
    Promoted(String),
}

/// How it ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ending {
    Done(String),
    /// Nothing was done; the message says why.
    Refused(String),
    /// It was given up, by somebody or for this reason.
    GivenUp(String),
    /// There is no claim of that name any more.
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

/// One claim whose move is followed.
#[derive(Debug, Clone)]
pub(super) struct Follow {
    pub(super) name: Name,
    pub(super) goal: Goal,
    pub(super) state: State,
    /// What was last told.
    pub(super) told: Option<Told>,
    /// Whether others are asked for at the same time, which the mover may find one after the other.
    pub(super) among_others: bool,
    /// Whether the move that is waited for was seen under way.
    began: bool,
    refused: Option<(Instant, String)>,
    /// Looks in a row that found neither the claim nor a record of it.
    missing: u32,
}

impl Follow {
    pub(super) fn new(name: Name, goal: Goal) -> Self {
        Follow {
            name,
            goal,
            state: State::Going,
            told: None,
            among_others: false,
            began: false,
            refused: None,
            missing: 0,
        }
    }

    /// One that has ended before it began.
    pub(super) fn ended(name: Name, goal: Goal, ending: Ending) -> Self {
        Follow { state: State::Ended(ending), ..Follow::new(name, goal) }
    }

    /// Whether it ended as it was to.
    pub(super) fn is_good(&self) -> bool {
        match (&self.state, &self.goal) {
            (State::Ended(Ending::Done(_)), Goal::Moved(_) | Goal::Promoted(_)) => true,
            (State::Ended(Ending::GivenUp(_) | Ending::Gone), Goal::GivenUp) => true,
            (State::Ended(_), _) => false,
            (State::Ready, goal) => matches!(goal, Goal::Moved(_)),
            (State::Going, _) => false,
        }
    }

    pub(super) fn has_ended(&self) -> bool {
        matches!(self.state, State::Ended(_))
    }

    /// Whether changes may come without one of the claim: while it is made again, only its PersistentVolumes change.
    pub(super) fn is_pressing(&self) -> bool {
        !self.has_ended()
            && (self.missing > 0
                || self.told.as_ref().is_none_or(|told| told.is(&["Switching", "Rebinding"])))
    }

    /// Takes in what was seen. Returns whether the mover has told something new.
    pub(super) fn see(&mut self, seen: &Seen, now: Instant) -> bool {
        if self.has_ended() {
            return false;
        }
        self.missing = match seen.claim.is_none() && seen.record.is_none() {
            true => self.missing.saturating_add(1),
            false => 0,
        };
        self.state = self.judge(seen, now);
        let told = seen.told().filter(|told| self.concerns(told)).cloned();
        let new = told.is_some() && told != self.told;
        if told.is_some() {
            self.told = told;
        }
        new
    }

    /// Whether a status is one of this move, not of one to another node before it.
    fn concerns(&self, told: &Told) -> bool {
        match &self.goal {
            Goal::Moved(to) => told.target.is_empty() || is_asked_for(to, &told.target),
            Goal::GivenUp | Goal::Promoted(_) => true,
        }
    }

    fn judge(&mut self, seen: &Seen, now: Instant) -> State {
        if self.missing > 0 {
            // Between two calls, the claim may have been made and its record have gone. And not everybody may see records.
            let swapping = self.told.as_ref().is_some_and(|told| told.is(&["Switching", "Rebinding"]));
            let most = if swapping { PATIENT_LOOKS } else { 1 };
            return if self.missing > most { State::Ended(Ending::Gone) } else { State::Going };
        }
        match self.goal.clone() {
            Goal::Moved(to) => self.is_moving(seen, &to, now),
            Goal::GivenUp => is_given_up(seen),
            Goal::Promoted(to) => is_promoted(seen, &to),
        }
    }

    fn is_moving(&mut self, seen: &Seen, to: &str, now: Instant) -> State {
        let Some(told) = seen.told() else {
            let asked = seen.wanted().is_some() || seen.is_held();
            return match asked {
                true => State::Going,
                false => State::Ended(Ending::GivenUp("its annotation move-to was removed".to_owned())),
            };
        };
        if told.is(&["Refused"]) {
            return self.is_refused(seen, told, to, now);
        }
        self.refused = None;
        if !is_asked_for(to, &told.target) {
            return State::Going;
        }
        match told.phase.as_str() {
            // One that is asked to move again has not ended this move.
            "Done" if seen.wanted().is_none_or(|wanted| wanted == told.target) => {
                State::Ended(Ending::Done(format!("the volume is on node {}", told.target)))
            }
            "Ready" | "Switching" | "Rebinding" => {
                self.began = true;
                State::Ready
            }
            "Copying" | "CatchingUp" | "Cancelling" | "Returning" => {
                self.began = true;
                State::Going
            }
            _ => State::Going,
        }
    }

    fn is_refused(&mut self, seen: &Seen, told: &Told, to: &str, now: Instant) -> State {
        let why = &told.message;
        if seen.wanted().is_none() {
            return State::Ended(Ending::GivenUp(why.clone()));
        }
        if seen.node.as_deref() == Some(to) {
            return State::Ended(Ending::Done(format!("the volume is on node {to}")));
        }
        if [HAS_GROWN, NOT_ASKED_FOR].contains(&why.as_str()) {
            return State::Going;
        }
        let since = match &self.refused {
            Some((since, before)) if before == why => *since,
            _ => now,
        };
        self.refused = Some((since, why.clone()));
        // What was seen under way failed; what has not begun may begin when another claim is asked for.
        if self.began || !self.among_others || now.duration_since(since) >= PATIENCE {
            return State::Ended(Ending::Refused(why.clone()));
        }
        State::Going
    }
}

fn is_given_up(seen: &Seen) -> State {
    let all_as_before = || State::Ended(Ending::GivenUp("everything is as it was before".to_owned()));
    match seen.told() {
        _ if seen.wanted().is_some() => State::Going,
        None if !seen.is_held() => all_as_before(),
        Some(told) if told.is(&["Done"]) => {
            State::Ended(Ending::Done(format!("it was too late: the volume is on node {}", told.target)))
        }
        // Its finalizer is that of the copy.
        Some(told) if told.stands_by() => all_as_before(),
        Some(told) if !told.is_under_way() && !seen.is_held() => all_as_before(),
        _ => State::Going,
    }
}

fn is_promoted(seen: &Seen, to: &str) -> State {
    let asked = seen.claim.as_ref().is_some_and(|claim| claim.annotations.contains_key(PROMOTE));
    let swapping = seen.told().is_some_and(|told| told.is(&["Switching", "Rebinding"]));
    match seen.told() {
        Some(told) if told.is(&["Refused"]) && (asked || seen.node.as_deref() != Some(to)) => {
            State::Ended(Ending::Refused(told.message.clone()))
        }
        Some(told) if told.is(&["Done"]) && told.target == to => {
            State::Ended(Ending::Done(format!("the claim has the copy on node {to}")))
        }
        _ if !asked && !swapping && seen.node.as_deref() == Some(to) => {
            State::Ended(Ending::Done(format!("the claim has the copy on node {to}")))
        }
        // The wish was taken back before anything was done.
        Some(told) if !asked && seen.claim.is_some() && told.is(&["Standby"]) => {
            State::Ended(Ending::GivenUp("its annotation promote was removed".to_owned()))
        }
        _ => State::Going,
    }
}
