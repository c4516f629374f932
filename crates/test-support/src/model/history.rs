//! What clients were answered, held against the specification of each object.

use std::collections::{BTreeMap, HashMap, HashSet};

use tonic::Code;

use super::Kind;
use super::Setup;
use super::call::{Answer, Call, From, Made, Outcome};
use super::lin::{Ran, Spec, check};
use super::snapshot::{self, Group, Snapshot};
use super::volume::{self, Volume};

/// How an epoch ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// The driver runs on.
    Pause,
    Stop,
    Kill,
    Power,
}

/// What is mounted of a volume when no call runs: by pods, and at the staging path.
pub type Mounted = (BTreeMap<usize, bool>, Option<bool>);

/// From one start of the driver to the next.
pub struct Epoch {
    /// What was mounted of each volume before the first call.
    pub mounted: Vec<Mounted>,
    pub calls: Vec<Made>,
    pub ending: Ending,
}

/// A snapshot, or a member of a group, by when it was made.
type Copy = (From, u64);

/// The whole of a run.
#[derive(Default)]
pub struct History {
    pub epochs: Vec<Epoch>,
    /// What copies held, as somebody read it in a volume made from them.
    held: HashMap<Copy, u32>,
}

impl History {
    /// Takes note of what a copy held.
    ///
    /// # Errors
    /// Where it held something else before.
    pub fn hold(&mut self, copy: Copy, value: u32) -> Result<(), String> {
        match self.held.insert(copy, value) {
            Some(before) if before != value => Err(format!("{copy:?} held {before}, and now {value}")),
            _ => Ok(()),
        }
    }

    /// Everything that has no explanation.
    pub fn unexplained(&self, setup: &Setup) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        for epoch in &self.epochs {
            found.extend(epoch.calls.iter().filter_map(|made| refusal(made, &epoch.calls)));
        }
        for (v, name) in setup.volumes.iter().enumerate() {
            let power = |state: Volume, ending| match ending {
                Ending::Pause => state,
                Ending::Stop | Ending::Kill => state.restarted(false),
                Ending::Power => state.restarted(true),
            };
            let start = Volume::none(name.kind, name.kind != Kind::Ext4 || setup.ext4_grows);
            found.extend(self.follow(start, |epoch| self.of_volume(setup, v, epoch), power));
        }
        let same = |state, _| state;
        for s in 0..setup.snapshots {
            let of = |epoch: &Epoch| of_snapshot(setup, s, epoch);
            found.extend(self.follow(Snapshot::default(), of, same));
        }
        let same = |state, _| state;
        for g in 0..setup.groups {
            let of = |epoch: &Epoch| of_group(setup, g, epoch);
            found.extend(self.follow(Group::default(), of, same));
        }
        found
    }

    /// One object from the first call to the last.
    fn follow<S: Spec>(
        &self,
        start: S,
        of: impl Fn(&Epoch) -> Vec<Ran<S::Op>>,
        restart: impl Fn(S, Ending) -> S,
    ) -> Option<String> {
        let mut states = HashSet::from([start]);
        for (at, epoch) in self.epochs.iter().enumerate() {
            match check(states, &of(epoch)) {
                Ok(after) => states = after.into_iter().map(|state| restart(state, epoch.ending)).collect(),
                Err(why) => return Some(format!("in epoch {at}: {why}")),
            }
        }
        None
    }

    fn of_volume(&self, setup: &Setup, v: usize, epoch: &Epoch) -> Vec<Ran<volume::Op>> {
        use volume::Op;
        let (pods, staged) = epoch.mounted[v].clone();
        let mut history = vec![Ran { start: 0, end: 0, op: Op::Mounts(pods, staged) }];
        for made in effective(epoch) {
            if made.call.volume() == Some(v) {
                history.push(ran(made, Op::Call(made.call.clone(), made.outcome.clone())));
            }
            history.extend(self.as_source(v, made).into_iter().map(|op| ran(made, op)));
            if let (Call::ListVolumes(_), Outcome::List(listed)) = (&made.call, &made.outcome) {
                let id = setup.volume_id(v);
                let seen = listed.iter().find(|listed| listed.id == id);
                history.push(match seen {
                    Some(seen) => {
                        Ran { start: seen.start, end: seen.end, op: Op::Listed(Some(seen.answer.clone())) }
                    }
                    None => ran(made, Op::Listed(None)),
                });
            }
        }
        history
    }

    /// What a copy, or a refusal to make one, says about the volume that was to be copied.
    fn as_source(&self, v: usize, made: &Made) -> Option<volume::Op> {
        use volume::Op;
        let held = |from: From, created: u64| self.held.get(&(from, created)).copied();
        // It was made by this call, or by one at the same time, if it was made while this call ran.
        let now = |answer: &Answer| (made.wall.0..=made.wall.1).contains(&answer.created);
        Some(match (&made.call, &made.outcome) {
            (Call::Snapshot { s, v: source }, Outcome::Ok(answer)) if *source == v && now(answer) => {
                Op::Cut { bytes: Some(answer.bytes), value: held(From::Snapshot(*s), answer.created) }
            }
            (Call::Group { g, volumes }, Outcome::Ok(answer)) if volumes.contains(&v) && now(answer) => {
                Op::Cut { bytes: None, value: held(From::Member(*g, v), answer.created) }
            }
            (Call::Probe { from: From::Volume(source), .. }, Outcome::Ok(answer)) if *source == v => {
                Op::Cut { bytes: Some(answer.bytes), value: Some(answer.value) }
            }
            (
                Call::Snapshot { v: source, .. }
                | Call::Probe { from: From::Volume(source), .. }
                | Call::Create { from: Some(From::Volume(source)), .. },
                Outcome::Err(code, _),
            ) if *source == v => match code {
                Code::NotFound => Op::Absent,
                Code::FailedPrecondition => Op::InUse,
                _ => return None,
            },
            _ => return None,
        })
    }
}

/// The calls that say something of an object: not those that found it taken.
fn effective(epoch: &Epoch) -> impl Iterator<Item = &Made> {
    epoch.calls.iter().filter(|made| !matches!(made.outcome, Outcome::Err(Code::Aborted, _)))
}

fn ran<Op>(made: &Made, op: Op) -> Ran<Op> {
    Ran { start: made.start, end: made.end, op }
}

fn of_snapshot(setup: &Setup, s: usize, epoch: &Epoch) -> Vec<Ran<snapshot::Op>> {
    use snapshot::Op;
    let mut history = Vec::new();
    for made in effective(epoch) {
        let op = match (&made.call, &made.outcome) {
            (Call::Snapshot { s: at, .. } | Call::DeleteSnapshot(at) | Call::GetSnapshot(at), outcome)
                if *at == s =>
            {
                Op::Call(made.call.clone(), outcome.clone())
            }
            (Call::Probe { from: From::Snapshot(at), .. }, Outcome::Ok(answer)) if *at == s => {
                Op::Exists { at_least: answer.bytes, of: None }
            }
            (
                Call::Probe { from: From::Snapshot(at), .. }
                | Call::Create { from: Some(From::Snapshot(at)), .. },
                Outcome::Err(Code::NotFound, _),
            ) if *at == s => Op::Absent { of: None },
            (Call::ListSnapshots(_), Outcome::List(listed)) => {
                let id = setup.snapshot_id(s);
                match listed.iter().find(|listed| listed.id == id) {
                    Some(seen) => {
                        let op = Op::Listed(Some(seen.answer.clone()));
                        history.push(Ran { start: seen.start, end: seen.end, op });
                        continue;
                    }
                    None => Op::Listed(None),
                }
            }
            _ => continue,
        };
        history.push(ran(made, op));
    }
    history
}

fn of_group(setup: &Setup, g: usize, epoch: &Epoch) -> Vec<Ran<snapshot::Op>> {
    use snapshot::Op;
    let mut history = Vec::new();
    for made in effective(epoch) {
        let op = match (&made.call, &made.outcome) {
            (
                Call::Group { g: at, .. }
                | Call::DeleteGroup { g: at, .. }
                | Call::GetGroup { g: at, .. }
                | Call::GetMember { g: at, .. }
                | Call::DeleteMember { g: at, .. },
                outcome,
            ) if *at == g => Op::Call(made.call.clone(), outcome.clone()),
            (Call::Probe { from: From::Member(at, v), .. }, Outcome::Ok(answer)) if *at == g => {
                Op::Exists { at_least: answer.bytes, of: Some(*v) }
            }
            (
                Call::Probe { from: From::Member(at, v), .. }
                | Call::Create { from: Some(From::Member(at, v)), .. },
                Outcome::Err(Code::NotFound, _),
            ) if *at == g => Op::Absent { of: Some(*v) },
            (Call::ListSnapshots(_), Outcome::List(listed)) => {
                let members = (0..setup.volumes.len()).map(|v| setup.member_id(g, v));
                let members: HashSet<String> = members.collect();
                let seen: Vec<_> = listed.iter().filter(|listed| members.contains(&listed.id)).collect();
                let all = seen.iter().map(|seen| Ran {
                    start: seen.start,
                    end: seen.end,
                    op: Op::Listed(Some(seen.answer.clone())),
                });
                history.extend(all);
                if !seen.is_empty() {
                    continue;
                }
                Op::Listed(None)
            }
            _ => continue,
        };
        history.push(ran(made, op));
    }
    history
}

/// ABORTED is for a call that another one on the same object kept out, or that came while as many copies ran as may.
fn refusal(made: &Made, all: &[Made]) -> Option<String> {
    let Outcome::Err(Code::Aborted, message) = &made.outcome else { return None };
    let beside =
        |other: &&Made| !std::ptr::eq(*other, made) && other.start <= made.end && other.end >= made.start;
    if message.contains("--max-copies") {
        let copies = all.iter().filter(beside).filter(|other| other.call.is_copy()).count();
        return (copies < 16).then(|| format!("beside {copies} copies {made:?} is too many"));
    }
    let keys = keys(&made.call);
    let mut others = all.iter().filter(beside).filter(|other| other.call.is_alone());
    let explained = others.any(|other| self::keys(&other.call).iter().any(|key| keys.contains(key)));
    (!explained).then(|| format!("no call on the same object explains {made:?}"))
}

/// What a call takes for itself, or shares; the members of a group count as the group.
fn keys(call: &Call) -> Vec<From> {
    let group = |g: usize| From::Member(g, 0);
    let source = |from: &From| match *from {
        From::Member(g, _) => group(g),
        other => other,
    };
    match call {
        Call::Create { v, from, .. } => from.iter().map(source).chain([From::Volume(*v)]).collect(),
        Call::Snapshot { s, v } => vec![From::Snapshot(*s), From::Volume(*v)],
        Call::DeleteSnapshot(s) => vec![From::Snapshot(*s)],
        Call::Group { g, volumes } => volumes.iter().map(|v| From::Volume(*v)).chain([group(*g)]).collect(),
        Call::DeleteGroup { g, .. } | Call::DeleteMember { g, .. } => vec![group(*g)],
        Call::Probe { from, .. } => vec![source(from)],
        call => call.volume().map(From::Volume).into_iter().collect(),
    }
}

impl History {
    /// How many calls of each kind had which answer.
    pub fn summary(&self) -> String {
        let mut counts: BTreeMap<String, BTreeMap<String, usize>> = BTreeMap::new();
        for made in self.epochs.iter().flat_map(|epoch| &epoch.calls) {
            let call = format!("{:?}", made.call);
            let call = call.split([' ', '(']).next().unwrap_or_default().to_owned();
            let answer = match &made.outcome {
                Outcome::Ok(_) | Outcome::List(_) => "OK".to_owned(),
                Outcome::Err(code, _) => format!("{code:?}"),
                Outcome::Cut => "cut".to_owned(),
            };
            *counts.entry(call).or_default().entry(answer).or_default() += 1;
        }
        let line = |(call, answers): (String, BTreeMap<String, usize>)| {
            let answers: Vec<_> = answers.iter().map(|(answer, count)| format!("{answer} {count}")).collect();
            format!("  {call:15} {}", answers.join(", "))
        };
        let lines: Vec<String> = counts.into_iter().map(line).collect();
        format!("{} copies read\n{}", self.held.len(), lines.join("\n"))
    }
}
