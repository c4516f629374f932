//! What a snapshot and a group of snapshots are and do, one call after the other.

use tonic::Code;

use super::call::{Answer, Call, Outcome};
use super::lin::Spec;

/// A snapshot's name, with the snapshot if there is one: its volume, and its size and time, which are not known yet where
/// the call that made it was cut off.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Snapshot(pub Option<(usize, Option<(u64, u64)>)>);

/// A group's name, with its volumes if there is one, and its time as soon as that is known.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Group(pub Option<([usize; 2], Option<u64>)>);

/// What is seen of a snapshot or a group.
#[derive(Debug, Clone)]
pub enum Op {
    Call(Call, Outcome),
    Listed(Option<Answer>),
    /// It was there, and a volume was made from it; of a group, from the member of this volume.
    Exists {
        at_least: u64,
        of: Option<usize>,
    },
    /// It was not there; of a group, or has no member of this volume.
    Absent {
        of: Option<usize>,
    },
}

impl Snapshot {
    /// An answer that tells of it, and tells what was not known.
    fn shown(&self, answer: &Answer) -> Vec<Self> {
        let shown = (answer.bytes, answer.created);
        match self.0 {
            Some((source, known)) if source == answer.source && known.is_none_or(|known| known == shown) => {
                vec![Snapshot(Some((source, Some(shown))))]
            }
            _ => Vec::new(),
        }
    }

    fn if_so(&self, so: bool) -> Vec<Self> {
        if so { vec![self.clone()] } else { Vec::new() }
    }
}

impl Spec for Snapshot {
    type Op = Op;

    fn after(&self, op: &Op) -> Vec<Self> {
        match op {
            Op::Call(Call::Snapshot { v, .. }, outcome) => match (outcome, self.0) {
                (Outcome::Cut, Some(_)) => vec![self.clone()],
                (Outcome::Cut, None) => vec![Snapshot(None), Snapshot(Some((*v, None)))],
                (Outcome::Ok(answer), there) => Snapshot(there.or(Some((*v, None)))).shown(answer),
                (Outcome::Err(Code::AlreadyExists, _), Some((source, ..))) => self.if_so(source != *v),
                (Outcome::Err(Code::NotFound | Code::FailedPrecondition, _), None) => vec![self.clone()],
                _ => Vec::new(),
            },
            Op::Call(Call::DeleteSnapshot(_), Outcome::Ok(_)) => vec![Snapshot(None)],
            Op::Call(Call::DeleteSnapshot(_), Outcome::Cut) => vec![self.clone(), Snapshot(None)],
            Op::Call(Call::GetSnapshot(_), Outcome::Ok(answer)) => self.shown(answer),
            Op::Call(Call::GetSnapshot(_), Outcome::Err(Code::NotFound, _)) => self.if_so(self.0.is_none()),
            Op::Call(_, Outcome::Cut) => vec![self.clone()],
            Op::Call(..) => Vec::new(),
            Op::Listed(Some(answer)) => self.shown(answer),
            Op::Listed(None) => self.if_so(self.0.is_none()),
            Op::Exists { at_least, .. } => {
                self.if_so(self.0.is_some_and(|(_, known)| known.is_none_or(|(bytes, _)| bytes <= *at_least)))
            }
            Op::Absent { .. } => self.if_so(self.0.is_none()),
        }
    }
}

impl Group {
    fn if_so(&self, so: bool) -> Vec<Self> {
        if so { vec![self.clone()] } else { Vec::new() }
    }

    /// An answer that tells of it, and perhaps when it was made.
    fn shown(&self, answer: &Answer) -> Vec<Self> {
        match self.0 {
            Some((volumes, known)) if known.is_none_or(|known| known == answer.created) => {
                vec![Group(Some((volumes, Some(answer.created))))]
            }
            _ => Vec::new(),
        }
    }

    fn shows_member(&self, v: usize, answer: &Answer) -> Vec<Self> {
        if self.has(v) && answer.source == v { self.shown(answer) } else { Vec::new() }
    }

    fn has(&self, v: usize) -> bool {
        self.0.is_some_and(|(volumes, _)| volumes.contains(&v))
    }
}

impl Spec for Group {
    type Op = Op;

    fn after(&self, op: &Op) -> Vec<Self> {
        match op {
            Op::Call(Call::Group { volumes, .. }, outcome) => match (outcome, self.0) {
                (Outcome::Cut, Some(_)) => vec![self.clone()],
                (Outcome::Cut, None) => vec![Group(None), Group(Some((*volumes, None)))],
                (Outcome::Ok(answer), None) => Group(Some((*volumes, None))).shown(answer),
                (Outcome::Ok(answer), Some((there, _))) if there == *volumes => self.shown(answer),
                (Outcome::Err(Code::AlreadyExists, _), Some((there, _))) => self.if_so(there != *volumes),
                (Outcome::Err(Code::NotFound | Code::FailedPrecondition, _), None) => vec![self.clone()],
                _ => Vec::new(),
            },
            Op::Call(Call::DeleteGroup { wrong_members, .. }, outcome) => match (outcome, self.0) {
                (Outcome::Cut, _) if *wrong_members => vec![self.clone()],
                (Outcome::Cut, _) => vec![self.clone(), Group(None)],
                (Outcome::Ok(_), there) => match *wrong_members && there.is_some() {
                    true => Vec::new(),
                    false => vec![Group(None)],
                },
                (Outcome::Err(Code::InvalidArgument, _), Some(_)) => self.if_so(*wrong_members),
                _ => Vec::new(),
            },
            Op::Call(Call::GetGroup { wrong_members, .. }, outcome) => match (outcome, self.0) {
                (Outcome::Cut, _) => vec![self.clone()],
                (Outcome::Ok(answer), Some(_)) if !wrong_members => self.shown(answer),
                (Outcome::Err(Code::InvalidArgument, _), Some(_)) => self.if_so(*wrong_members),
                (Outcome::Err(Code::NotFound, _), None) => vec![self.clone()],
                _ => Vec::new(),
            },
            Op::Call(Call::GetMember { v, .. }, outcome) => match outcome {
                Outcome::Cut => vec![self.clone()],
                Outcome::Ok(answer) => self.shows_member(*v, answer),
                Outcome::Err(Code::NotFound, _) => self.if_so(!self.has(*v)),
                _ => Vec::new(),
            },
            Op::Call(Call::DeleteMember { v, .. }, outcome) => self.if_so(match outcome {
                Outcome::Ok(_) => !self.has(*v),
                Outcome::Err(Code::InvalidArgument, _) => self.has(*v),
                outcome => matches!(outcome, Outcome::Cut),
            }),
            Op::Call(_, Outcome::Cut) => vec![self.clone()],
            Op::Call(..) => Vec::new(),
            Op::Listed(Some(answer)) => self.shows_member(answer.source, answer),
            Op::Listed(None) => self.if_so(self.0.is_none()),
            Op::Exists { of, .. } => self.if_so(of.is_some_and(|v| self.has(v))),
            Op::Absent { of } => self.if_so(of.is_none_or(|v| !self.has(v))),
        }
    }
}
