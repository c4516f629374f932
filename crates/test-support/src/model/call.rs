//! The calls that clients make, and what becomes of them.

use tonic::Code;

/// The access mode of a capability.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    Writer,
    Reader,
    MultiWriter,
    /// Of several nodes, which no volume here has.
    MultiNode,
}

/// A capability: of the volume's access type, or of the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Wanted {
    pub mode: Mode,
    pub other_access: bool,
}

impl Wanted {
    /// Whether a volume can have it.
    pub fn is_possible(self) -> bool {
        !self.other_access && self.mode != Mode::MultiNode
    }
}

/// What a volume is made from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum From {
    Snapshot(usize),
    Volume(usize),
    /// The snapshot of a volume in a group.
    Member(usize, usize),
}

/// A call. Volumes, snapshots, groups and pods by their numbers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Call {
    Create {
        v: usize,
        bytes: u64,
        limit: u64,
        thick: bool,
        from: Option<From>,
        wanted: Wanted,
    },
    Delete(usize),
    Attach {
        v: usize,
        read_only: bool,
        wanted: Wanted,
    },
    Detach {
        v: usize,
        other_node: bool,
    },
    Stage {
        v: usize,
        wanted: Wanted,
    },
    Unstage(usize),
    Publish {
        v: usize,
        pod: usize,
        read_only: bool,
        wanted: Wanted,
    },
    Unpublish {
        v: usize,
        pod: usize,
    },
    Expand {
        v: usize,
        bytes: u64,
        limit: u64,
    },
    NodeExpand {
        v: usize,
        pod: usize,
        bytes: u64,
    },
    Modify {
        v: usize,
        thick: Option<bool>,
        direct_io: Option<bool>,
    },
    Get(usize),
    Validate {
        v: usize,
        wanted: Wanted,
    },
    Stats {
        v: usize,
        pod: usize,
    },
    /// A pod writes a number and syncs it; no call of CSI.
    Write {
        v: usize,
        pod: usize,
        value: u32,
    },
    /// A pod reads it.
    Read {
        v: usize,
        pod: usize,
    },
    Snapshot {
        s: usize,
        v: usize,
    },
    DeleteSnapshot(usize),
    GetSnapshot(usize),
    Group {
        g: usize,
        volumes: [usize; 2],
    },
    DeleteGroup {
        g: usize,
        wrong_members: bool,
    },
    GetGroup {
        g: usize,
        wrong_members: bool,
    },
    GetMember {
        g: usize,
        v: usize,
    },
    DeleteMember {
        g: usize,
        v: usize,
    },
    /// All pages of so many entries; 0 for one page.
    ListVolumes(i32),
    ListSnapshots(i32),
    /// A volume of a name that no other call has, made from this, read and deleted.
    Probe {
        number: usize,
        from: From,
    },
    /// Calls that change nothing whatever they are answered: capacity, capabilities, health.
    Other(usize),
    /// A call that is refused for what it says.
    Invalid(usize),
}

impl Call {
    /// The volume that it is about, where it is about one.
    pub fn volume(&self) -> Option<usize> {
        Some(match *self {
            Call::Create { v, .. } | Call::Delete(v) | Call::Attach { v, .. } | Call::Detach { v, .. } => v,
            Call::Stage { v, .. } | Call::Unstage(v) | Call::Publish { v, .. } => v,
            Call::Unpublish { v, .. } | Call::Expand { v, .. } | Call::NodeExpand { v, .. } => v,
            Call::Modify { v, .. } | Call::Get(v) | Call::Validate { v, .. } | Call::Stats { v, .. } => v,
            Call::Write { v, .. } | Call::Read { v, .. } => v,
            _ => return None,
        })
    }

    /// Whether it takes the lock of what it is about, so that others are told ABORTED.
    pub fn is_alone(&self) -> bool {
        use Call::*;
        let shared = matches!(self, Get(_) | Validate { .. } | Stats { .. } | Write { .. } | Read { .. });
        let lists = matches!(self, ListVolumes(_) | ListSnapshots(_) | Other(_) | Invalid(_));
        !shared && !lists && !matches!(self, GetSnapshot(_) | GetGroup { .. } | GetMember { .. })
    }

    /// Whether it may make a copy, of which only so many run at a time.
    pub fn is_copy(&self) -> bool {
        use Call::*;
        matches!(self, Snapshot { .. } | Group { .. } | Probe { .. } | Create { from: Some(_), .. })
    }
}

/// What was answered, as far as the model looks at it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Answer {
    pub bytes: u64,
    /// When a snapshot was made, in nanoseconds since the epoch.
    pub created: u64,
    /// Whether a volume is published to the node.
    pub attached: bool,
    /// The number of the volume that a snapshot is of.
    pub source: usize,
    /// The number that a pod has read.
    pub value: u32,
    /// Whether capabilities were confirmed.
    pub confirmed: bool,
}

/// What a list shows of one object, and in which time.
#[derive(Debug, Clone)]
pub struct Listed {
    pub id: String,
    pub start: u64,
    pub end: u64,
    pub answer: Answer,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub enum Outcome {
    Ok(Answer),
    List(Vec<Listed>),
    Err(Code, String),
    /// Its driver was killed before the answer was taken.
    Cut,
}

/// A call that was made.
#[derive(Debug, Clone)]
pub struct Made {
    pub call: Call,
    pub start: u64,
    pub end: u64,
    /// The same by the clock of the day, in nanoseconds since the epoch.
    pub wall: (u64, u64),
    pub outcome: Outcome,
}
