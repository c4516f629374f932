//! Calls as values, and what they change for those who were told that they succeeded.

use std::collections::BTreeMap;

use crate::harness::{Kind, MIB};

/// What a volume is asked to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Spec {
    pub kind: Kind,
    pub thick: bool,
    pub bytes: u64,
    /// The pool, where it is not the default one.
    pub pool: Option<&'static str>,
}

impl Spec {
    pub fn new(kind: Kind) -> Spec {
        let pool = (kind == Kind::Directory).then_some("directories");
        Spec { kind, thick: false, bytes: kind.size(), pool }
    }

    pub fn thick(kind: Kind) -> Spec {
        Spec { thick: true, ..Spec::new(kind) }
    }

    pub fn managed(kind: Kind) -> Spec {
        Spec { pool: Some(super::bench::MANAGED), ..Spec::new(kind) }
    }

    /// A directory of the default pool, whose filesystem enforces its size.
    pub fn limited() -> Spec {
        Spec { pool: None, ..Spec::new(Kind::Directory) }
    }

    /// The same, larger.
    pub fn grown(self) -> Spec {
        Spec { bytes: self.bytes + 128 * MIB, ..self }
    }

    /// Parameters of the StorageClass. The kind's own are the request's.
    pub fn parameters(&self) -> Vec<(&'static str, &'static str)> {
        let pool = self.pool.map(|pool| ("pool", pool));
        self.thick.then_some(("provisioning", "thick")).into_iter().chain(pool).collect()
    }
}

/// What a volume is made from.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Origin {
    Nothing,
    Snapshot(&'static str),
    Volume(&'static str),
}

/// Parameters that can be changed.
pub type Changes = &'static [(&'static str, &'static str)];

/// A mutating RPC. Volumes, snapshots and groups go by their names.
#[derive(Debug, Clone, Copy)]
pub enum Call {
    Create(&'static str, Spec, Origin),
    Delete(&'static str),
    Stage(&'static str),
    /// By somebody who only reads.
    StageReadOnly(&'static str),
    Unstage(&'static str),
    /// To a pod, perhaps read-only.
    Publish(&'static str, &'static str, bool),
    Unpublish(&'static str, &'static str),
    Expand(&'static str, u64),
    NodeExpand(&'static str, u64),
    Modify(&'static str, Changes),
    Snapshot(&'static str, &'static str),
    DeleteSnapshot(&'static str),
    Group(&'static str, &'static [&'static str]),
    DeleteGroup(&'static str),
    PublishInline(&'static str, Kind),
    UnpublishInline(&'static str),
}

/// A volume as its callers know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Known {
    pub spec: Spec,
    pub origin: Origin,
    pub bytes: u64,
    /// What its device, and its filesystem, have taken on.
    pub in_force: u64,
    pub staged: bool,
    /// Nobody can write to what is staged.
    pub read_only: bool,
    /// By pod: whether it is read-only.
    pub published: BTreeMap<&'static str, bool>,
    pub inline: bool,
    /// The seed of what a pod wrote and synced, or it got from its source.
    pub marker: Option<u64>,
    pub modified: BTreeMap<&'static str, &'static str>,
}

impl Known {
    fn new(spec: Spec, origin: Origin) -> Known {
        Known {
            spec,
            origin,
            bytes: spec.bytes,
            in_force: 0,
            staged: false,
            read_only: false,
            published: BTreeMap::new(),
            inline: false,
            marker: None,
            modified: BTreeMap::new(),
        }
    }

    /// The value of a parameter.
    pub fn parameter(&self, key: &str) -> Option<&'static str> {
        let given = self.spec.parameters().into_iter().find(|(name, _)| *name == key);
        self.modified.get(key).copied().or(given.map(|(_, value)| value))
    }

    pub fn is_thick(&self) -> bool {
        self.parameter("provisioning") == Some("thick")
    }

    pub fn is_in_use(&self) -> bool {
        self.staged || !self.published.is_empty()
    }
}

/// A snapshot as its callers know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Cut {
    pub spec: Spec,
    pub bytes: u64,
    pub source: &'static str,
    pub group: Option<&'static str>,
    pub marker: Option<u64>,
}

/// Everything that was acknowledged. A snapshot that belongs to a group has the name of its source.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Model {
    pub volumes: BTreeMap<&'static str, Known>,
    pub snapshots: BTreeMap<(Option<&'static str>, &'static str), Cut>,
}

impl Model {
    pub fn known(&self, name: &str) -> &Known {
        self.volumes.get(name).expect("the scenario made this volume")
    }

    pub fn change(&mut self, name: &str) -> &mut Known {
        self.volumes.get_mut(name).expect("the scenario made this volume")
    }

    fn cut(&mut self, name: &'static str, source: &'static str, group: Option<&'static str>) {
        let Known { spec, bytes, marker, .. } = *self.known(source);
        self.snapshots.insert((group, name), Cut { spec, bytes, source, group, marker });
    }

    /// Takes note of a call that succeeded.
    pub fn apply(&mut self, call: Call) {
        match call {
            Call::Create(name, spec, origin) => {
                let marker = match origin {
                    Origin::Nothing => None,
                    Origin::Snapshot(from) => self.snapshots[&(None, from)].marker,
                    Origin::Volume(from) => self.known(from).marker,
                };
                self.volumes.insert(name, Known { marker, ..Known::new(spec, origin) });
            }
            Call::Delete(name) | Call::UnpublishInline(name) => drop(self.volumes.remove(name)),
            Call::Stage(name) => {
                let known = self.change(name);
                (known.staged, known.in_force) = (true, known.bytes);
            }
            Call::StageReadOnly(name) => {
                self.apply(Call::Stage(name));
                self.change(name).read_only = true;
            }
            Call::Unstage(name) => {
                let known = self.change(name);
                (known.staged, known.in_force, known.read_only) = (false, 0, false);
            }
            Call::Publish(name, pod, read_only) => drop(self.change(name).published.insert(pod, read_only)),
            Call::Unpublish(name, pod) => drop(self.change(name).published.remove(pod)),
            Call::Expand(name, bytes) => self.change(name).bytes = bytes,
            Call::NodeExpand(name, bytes) => {
                let known = self.change(name);
                (known.bytes, known.in_force) = (bytes, bytes);
            }
            Call::Modify(name, changes) => self.change(name).modified.extend(changes.iter().copied()),
            Call::Snapshot(name, source) => self.cut(name, source, None),
            Call::DeleteSnapshot(name) => drop(self.snapshots.remove(&(None, name))),
            Call::Group(name, sources) => {
                sources.iter().for_each(|source| self.cut(source, source, Some(name)));
            }
            Call::DeleteGroup(name) => self.snapshots.retain(|(group, _), _| *group != Some(name)),
            Call::PublishInline(name, kind) => {
                let spec = Spec::new(kind);
                let mut known =
                    Known { inline: true, in_force: spec.bytes, ..Known::new(spec, Origin::Nothing) };
                known.published.insert(name, false);
                self.volumes.insert(name, known);
            }
        }
    }
}
