//! What a volume is and does, one call after the other.

use std::collections::BTreeMap;

use tonic::Code;

use super::Kind;
use super::call::{Answer, Call, From, Mode, Outcome, Wanted};
use super::lin::Spec;

/// More than any pool of the tests has, and less than `--max-volume-size`.
pub const HUGE: u64 = 1 << 43;
/// More than any volume can have.
pub const TOO_LARGE: u64 = 1 << 52;

/// A mount of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Mount {
    pub read_only: bool,
    /// The process that runs has answered for it; else a bind may be tightened.
    pub answered: bool,
}

/// A volume that is there.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Here {
    pub bytes: u64,
    pub thick: bool,
    pub direct_io: bool,
    pub from: Option<From>,
    pub attached: Option<(bool, Mode)>,
    pub staged: Option<Mount>,
    pub published: BTreeMap<usize, Mount>,
    /// The number that a pod wrote last; `None` where it is not known yet, as a copy's.
    pub data: Option<u32>,
}

/// A name of a volume, with the volume if there is one.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Volume {
    pub kind: Kind,
    /// The kernel grows its filesystem while it is mounted.
    pub grows: bool,
    pub here: Option<Here>,
}

/// What is seen of a volume.
#[derive(Debug, Clone)]
pub enum Op {
    Call(Call, Outcome),
    /// It was listed, or was not.
    Listed(Option<Answer>),
    /// There was none.
    Absent,
    /// A copy of this size was made of it; what it held, if that was read later.
    Cut {
        bytes: Option<u64>,
        value: Option<u32>,
    },
    /// A copy of it was refused for its users.
    InUse,
    /// What is mounted, by pods; the second is the staging path's.
    Mounts(BTreeMap<usize, bool>, Option<bool>),
}

/// What a call may be answered, with the state after it.
type Step = (Result<Answer, Code>, Volume);

impl Volume {
    pub fn none(kind: Kind, grows: bool) -> Volume {
        Volume { kind, grows, here: None }
    }

    /// The same after another start of the driver; `power` says that the machine started, too.
    pub fn restarted(mut self, power: bool) -> Volume {
        if let Some(here) = &mut self.here {
            if power {
                (here.staged, here.published) = (None, BTreeMap::new());
            }
            for mount in here.staged.iter_mut().chain(here.published.values_mut()) {
                mount.answered = false;
            }
        }
        self
    }

    fn with(&self, change: impl FnOnce(&mut Here)) -> Volume {
        let mut changed = self.clone();
        changed.here.as_mut().map(change);
        changed
    }

    fn ok(&self) -> Vec<Step> {
        vec![(Ok(Answer::default()), self.clone())]
    }

    fn err(&self, code: Code) -> Vec<Step> {
        vec![(Err(code), self.clone())]
    }

    fn done(&self, change: impl FnOnce(&mut Here)) -> Vec<Step> {
        vec![(Ok(Answer::default()), self.with(change))]
    }

    /// What a call does in this state.
    fn run(&self, call: &Call) -> Vec<Step> {
        let Some(here) = &self.here else { return self.run_absent(call) };
        match *call {
            Call::Create { bytes, limit, thick, from, wanted, .. } => {
                let fits = here.bytes >= bytes && (limit == 0 || here.bytes <= limit);
                let same = here.thick == thick && here.direct_io == self.default_direct_io();
                match fits && same && here.from == from && wanted.mode != Mode::MultiNode {
                    true => vec![(Ok(Answer { bytes: here.bytes, ..Answer::default() }), self.clone())],
                    false => self.err(Code::AlreadyExists),
                }
            }
            Call::Delete(_) => match here.attached.is_none() && here.staged.is_none() {
                true => vec![(Ok(Answer::default()), Volume::none(self.kind, self.grows))],
                false => self.err(Code::FailedPrecondition),
            },
            Call::Attach { read_only, wanted, .. } => match here.attached {
                _ if !wanted.is_possible() => self.err(Code::InvalidArgument),
                Some(there) if there == (read_only, wanted.mode) => self.ok(),
                Some(_) => self.err(Code::AlreadyExists),
                None => self.done(|here| here.attached = Some((read_only, wanted.mode))),
            },
            Call::Detach { other_node: true, .. } => self.ok(),
            Call::Detach { .. } => self.done(|here| here.attached = None),
            Call::Stage { wanted, .. } => self.stage(here, wanted),
            Call::Unstage(_) => match here.staged.is_some() && !here.published.is_empty() {
                true => self.err(Code::FailedPrecondition),
                false => self.done(|here| here.staged = None),
            },
            Call::Publish { pod, read_only, wanted, .. } => self.publish(here, pod, read_only, wanted),
            Call::Unpublish { pod, .. } => self.done(|here| {
                here.published.remove(&pod);
            }),
            _ => self.use_it(here, call),
        }
    }

    /// What a call does that is not part of coming and going.
    fn use_it(&self, here: &Here, call: &Call) -> Vec<Step> {
        match *call {
            Call::Expand { bytes, limit, .. } => self.expand(here, bytes, limit),
            Call::NodeExpand { pod, bytes, .. } => {
                let images = matches!(self.kind, Kind::Ext4 | Kind::Xfs);
                let mut mounts = here.staged.iter().chain(here.published.values());
                match here.published.contains_key(&pod) {
                    false if self.kind == Kind::Block && here.staged.is_some() => {
                        self.err(Code::NotFound).into_iter().chain(self.expand(here, bytes, 0)).collect()
                    }
                    false => self.err(Code::NotFound),
                    true if images && mounts.all(|mount| mount.read_only) => {
                        self.err(Code::FailedPrecondition)
                    }
                    true => {
                        let grown = self.expand(here, bytes, 0);
                        // The image grows all the same, and the filesystem when it is staged next.
                        let refused = grown.iter().filter(|(answer, _)| answer.is_ok() && !self.grows);
                        let refused = refused.map(|(_, after)| (Err(Code::Internal), after.clone()));
                        refused.collect::<Vec<_>>().into_iter().chain(grown).collect()
                    }
                }
            }
            Call::Modify { thick, direct_io, .. } if self.kind == Kind::Directory => {
                match thick != Some(true) && direct_io.is_none() {
                    true => self.ok(),
                    false => self.err(Code::InvalidArgument),
                }
            }
            Call::Modify { thick, direct_io, .. } => {
                let mut steps = self.done(|here| {
                    here.thick = thick.unwrap_or(here.thick);
                    here.direct_io = direct_io.unwrap_or(here.direct_io);
                });
                // A device in use whose disk cannot do it.
                let may_be_refused = direct_io == Some(true) && here.staged.is_some();
                steps.extend(may_be_refused.then(|| (Err(Code::InvalidArgument), self.clone())));
                steps
            }
            Call::Get(_) => vec![(Ok(self.shown(here)), self.clone())],
            Call::Validate { wanted, .. } => {
                let confirmed = wanted.is_possible();
                vec![(Ok(Answer { confirmed, ..Answer::default() }), self.clone())]
            }
            Call::Stats { pod, .. } if !here.published.contains_key(&pod) => {
                // The empty file that a killed call leaves is as good as a raw device's target.
                let device = if self.kind == Kind::Block { self.ok() } else { Vec::new() };
                self.err(Code::NotFound).into_iter().chain(device).collect()
            }
            Call::Stats { .. } => self.ok(),
            Call::Write { pod, value, .. } => match here.published.get(&pod) {
                Some(mount) if !mount.read_only => self.done(|here| here.data = Some(value)),
                _ => Vec::new(),
            },
            Call::Read { pod, .. } if here.published.contains_key(&pod) => {
                vec![(Ok(Answer { value: here.data.unwrap_or_default(), ..Answer::default() }), self.clone())]
            }
            _ => Vec::new(),
        }
    }

    fn run_absent(&self, call: &Call) -> Vec<Step> {
        match *call {
            Call::Create { bytes, wanted, .. } if wanted.mode == Mode::MultiNode || bytes == TOO_LARGE => {
                let code = if bytes == TOO_LARGE { Code::OutOfRange } else { Code::InvalidArgument };
                // A source is looked for before the rest.
                let missing = (Err(Code::NotFound), self.clone());
                self.err(code).into_iter().chain([missing]).collect()
            }
            Call::Create { bytes, from: None, .. } if bytes == HUGE => self.err(Code::ResourceExhausted),
            Call::Create { bytes, thick, from, .. } => {
                let here = Here {
                    bytes,
                    thick,
                    direct_io: self.default_direct_io(),
                    from,
                    attached: None,
                    staged: None,
                    published: BTreeMap::new(),
                    data: from.is_none().then_some(0),
                };
                let made = Volume { here: Some(here), ..self.clone() };
                let mut steps = vec![(Ok(Answer { bytes, ..Answer::default() }), made)];
                if from.is_some() {
                    // What the source says is checked at the source.
                    let refusals =
                        [Code::NotFound, Code::OutOfRange, Code::FailedPrecondition, Code::InvalidArgument];
                    steps.extend(refusals.map(|code| (Err(code), self.clone())));
                    steps.retain(|(answer, _)| bytes != HUGE || answer.is_err());
                    steps.extend((bytes == HUGE).then(|| (Err(Code::ResourceExhausted), self.clone())));
                }
                steps
            }
            // The kernel knows nothing of it.
            Call::Delete(_) | Call::Detach { .. } | Call::Unstage(_) | Call::Unpublish { .. } => self.ok(),
            Call::Write { .. } | Call::Read { .. } => Vec::new(),
            _ => self.err(Code::NotFound),
        }
    }

    /// There is no loop device under a directory.
    fn default_direct_io(&self) -> bool {
        self.kind != Kind::Directory
    }

    fn shown(&self, here: &Here) -> Answer {
        Answer { bytes: here.bytes, attached: here.attached.is_some(), ..Answer::default() }
    }

    fn stage(&self, here: &Here, wanted: Wanted) -> Vec<Step> {
        let Some((granted_read_only, _)) = here.attached.filter(|_| wanted.is_possible()) else {
            return self.err(Code::FailedPrecondition);
        };
        let read_only = granted_read_only || wanted.mode == Mode::Reader;
        let fresh = Mount { read_only, answered: true };
        match here.staged {
            None => self.done(|here| here.staged = Some(fresh)),
            Some(there) => self.again(there, read_only, self.kind == Kind::Directory, |here| {
                here.staged = Some(fresh);
            }),
        }
    }

    /// What is there already is asked for.
    fn again(
        &self,
        there: Mount,
        read_only: bool,
        is_bind: bool,
        fresh: impl FnOnce(&mut Here),
    ) -> Vec<Step> {
        match there.read_only == read_only || (is_bind && read_only && !there.answered) {
            true => self.done(fresh),
            false => self.err(Code::AlreadyExists),
        }
    }

    fn publish(&self, here: &Here, pod: usize, read_only: bool, wanted: Wanted) -> Vec<Step> {
        let Some((granted_read_only, _)) = here.attached.filter(|_| wanted.is_possible()) else {
            return self.err(Code::FailedPrecondition);
        };
        let Some(staged) = here.staged else { return self.err(Code::FailedPrecondition) };
        let read_only = granted_read_only || read_only || wanted.mode == Mode::Reader || staged.read_only;
        let fresh = Mount { read_only, answered: true };
        match here.published.get(&pod) {
            Some(there) => self.again(*there, read_only, self.kind != Kind::Block, |here| {
                here.published.insert(pod, fresh);
            }),
            None if !here.published.is_empty() && wanted.mode != Mode::MultiWriter => {
                self.err(Code::FailedPrecondition)
            }
            None => self.done(|here| {
                here.published.insert(pod, fresh);
            }),
        }
    }

    fn expand(&self, here: &Here, bytes: u64, limit: u64) -> Vec<Step> {
        if limit != 0 && limit < here.bytes {
            return self.err(Code::OutOfRange);
        }
        match bytes.max(here.bytes) {
            TOO_LARGE => self.err(Code::OutOfRange),
            HUGE => self.err(Code::ResourceExhausted),
            bytes => vec![(Ok(Answer { bytes, ..Answer::default() }), self.with(|here| here.bytes = bytes))],
        }
    }

    /// What was read is what was written, or tells what a copy held.
    fn holds(&self, value: u32) -> Vec<Self> {
        match self.here.as_ref().and_then(|here| here.data) {
            Some(data) if data != value => Vec::new(),
            _ => vec![self.with(|here| here.data = Some(value))],
        }
    }

    /// Returns the state after a kill while NodeStageVolume grows a filesystem offline: NodeStageVolume unmounts it first, if the
    /// kernel refuses to grow it while it is mounted.
    fn unmounted_to_grow(&self, call: &Call) -> Option<Self> {
        let here = self.here.as_ref()?;
        let may_be = !self.grows && here.staged.is_some() && here.published.is_empty();
        (may_be && matches!(call, Call::Stage { .. })).then(|| self.with(|here| here.staged = None))
    }

    fn if_so(&self, so: bool) -> Vec<Self> {
        if so { vec![self.clone()] } else { Vec::new() }
    }
}

impl Spec for Volume {
    type Op = Op;

    fn after(&self, op: &Op) -> Vec<Self> {
        let here = self.here.as_ref();
        match op {
            Op::Call(call, Outcome::Cut) => {
                let done = self.run(call).into_iter().filter(|(answer, _)| answer.is_ok());
                done.map(|(_, after)| after)
                    .chain([self.clone()])
                    .chain(self.unmounted_to_grow(call))
                    .collect()
            }
            Op::Call(call @ Call::Read { .. }, Outcome::Ok(answer)) => match self.run(call).is_empty() {
                true => Vec::new(),
                false => self.holds(answer.value),
            },
            Op::Call(call, outcome) => {
                let said = |expected: &Result<Answer, Code>| match (expected, outcome) {
                    (Ok(expected), Outcome::Ok(answer)) => expected == answer,
                    (Err(expected), Outcome::Err(code, _)) => expected == code,
                    _ => false,
                };
                self.run(call)
                    .into_iter()
                    .filter(|(answer, _)| said(answer))
                    .map(|(_, after)| after)
                    .collect()
            }
            Op::Listed(listed) => self.if_so(here.map(|here| self.shown(here)) == *listed),
            Op::Absent => self.if_so(here.is_none()),
            Op::InUse => self.if_so(here.is_some_and(|here| here.staged.is_some())),
            Op::Cut { bytes, value } => {
                match here.is_some_and(|here| bytes.is_none_or(|b| b == here.bytes)) {
                    false => Vec::new(),
                    true => value.map_or(vec![self.clone()], |value| self.holds(value)),
                }
            }
            Op::Mounts(pods, staged) => {
                let there = here.map(|here| {
                    let pods = here.published.iter().map(|(pod, mount)| (*pod, mount.read_only));
                    (pods.collect::<BTreeMap<_, _>>(), here.staged.map(|mount| mount.read_only))
                });
                let (there, staging) = there.unwrap_or_default();
                // A raw volume is mounted nowhere when it is staged, and its device is read-only rather than the mount.
                self.if_so(match self.kind {
                    Kind::Block => there.keys().eq(pods.keys()),
                    _ => there == *pods && staging == *staged,
                })
            }
        }
    }
}
