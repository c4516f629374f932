//! The scenarios: what was done before, and the call under test. Their names are those of `tests/csi/walk`.

use super::bench::{Disk, OTHER};
use super::model::{Call, Changes, Origin, Spec};
use super::plan::{Action, Plan, When, Who};
use crate::harness::{Kind, MIB};

/// Something that happens before the call under test.
#[derive(Debug, Clone, Copy)]
pub enum Act {
    Call(Call),
    /// A pod writes to the volume.
    Write(&'static str),
    /// A call that ends with the driver and all that it has started, after this system call.
    CutOff(Call, Cut),
}

/// The n-th system call of this kind.
pub type Cut = (&'static str, usize);

/// A plan that ends everything there.
pub fn cut_off((key, nth): Cut) -> Plan {
    Plan { key: key.to_owned(), nth, action: Action::Kill(Who::All, When::After) }
}

#[derive(Debug, Clone)]
pub struct Scenario {
    pub name: String,
    pub disk: Disk,
    pub before: Vec<Act>,
    pub call: Call,
    /// Where the call ends, so that it is the start of the next driver that is walked.
    pub starts_after: Option<Cut>,
}

const VOLUME: &str = "volume";
/// A volume made from another one, or from a snapshot.
const COPY: &str = "copy";
const POD: &str = "pod";
const SNAPSHOT: &str = "snapshot";
const GROUP: &str = "group";

/// A volume with one of these is at rest.
const AT_REST: bool = false;
/// Or a pod has it.
const IN_USE: bool = true;

fn name_of(kind: Kind) -> String {
    format!("{kind:?}").to_lowercase()
}

/// The life of a volume of one kind.
#[derive(Clone, Copy)]
struct Life {
    spec: Spec,
    disk: Disk,
}

impl Life {
    fn new(kind: Kind) -> Life {
        Life { spec: Spec::new(kind), disk: Disk::Machine }
    }

    fn on(kind: Kind, fs_type: &'static str) -> Life {
        Life { spec: Spec::new(kind), disk: Disk::Sharing(fs_type) }
    }

    fn managed(kind: Kind, fs_type: &'static str) -> Life {
        Life { spec: Spec::managed(kind), disk: Disk::Managed(fs_type) }
    }

    fn limited() -> Life {
        Life { spec: Spec::limited(), disk: Disk::Limiting }
    }

    fn name(&self) -> String {
        let thick = if self.spec.thick { " thick" } else { "" };
        format!("{}{thick}{}", name_of(self.spec.kind), self.disk.name())
    }

    fn scenario(&self, what: &str, before: Vec<Act>, call: Call) -> Scenario {
        let name = format!("{}: {what}", self.name());
        Scenario { name, disk: self.disk, before, call, starts_after: None }
    }

    fn create(&self) -> Act {
        Act::Call(Call::Create(VOLUME, self.spec, Origin::Nothing))
    }

    /// Made, staged, published, and written to.
    fn in_use(&self) -> Vec<Act> {
        let (stage, publish) = (Call::Stage(VOLUME), Call::Publish(VOLUME, POD, false));
        vec![self.create(), Act::Call(stage), Act::Call(publish), Act::Write(VOLUME)]
    }

    /// In use, but no longer published.
    fn staged(&self) -> Vec<Act> {
        with(self.in_use(), &[Call::Unpublish(VOLUME, POD)])
    }

    /// Was in use.
    fn at_rest(&self) -> Vec<Act> {
        with(self.staged(), &[Call::Unstage(VOLUME)])
    }

    fn life(&self) -> Vec<Scenario> {
        let bytes = self.spec.grown().bytes;
        let (expand, node_expand) = (Call::Expand(VOLUME, bytes), Call::NodeExpand(VOLUME, bytes));
        let grows = crate::volumes::life::can_grow(self.spec.kind);
        let staged = with(vec![self.create()], &[Call::Stage(VOLUME)]);
        let mut list = vec![
            ("create", vec![], Call::Create(VOLUME, self.spec, Origin::Nothing)),
            ("delete", self.at_rest(), Call::Delete(VOLUME)),
            ("stage first", vec![self.create()], Call::Stage(VOLUME)),
            ("stage again", self.at_rest(), Call::Stage(VOLUME)),
            ("stage grown", with(self.at_rest(), &[expand]), Call::Stage(VOLUME)),
            ("stage read-only", self.at_rest(), Call::StageReadOnly(VOLUME)),
            ("unstage", self.staged(), Call::Unstage(VOLUME)),
            ("publish", staged, Call::Publish(VOLUME, POD, false)),
            ("publish read-only", self.staged(), Call::Publish(VOLUME, POD, true)),
            ("unpublish", self.in_use(), Call::Unpublish(VOLUME, POD)),
            ("expand at rest", self.at_rest(), expand),
        ];
        if grows {
            list.extend([
                ("expand in use", self.in_use(), expand),
                ("node expand beyond", self.in_use(), node_expand),
            ]);
        }
        // A directory has nothing that would have to grow.
        if grows && self.spec.kind != Kind::Directory {
            list.push(("node expand", with(self.in_use(), &[expand]), node_expand));
        }
        list.into_iter().map(|(what, before, call)| self.scenario(what, before, call)).collect()
    }

    /// The first use of a volume whose first mkfs was cut off in the middle.
    fn cut_off_mkfs(&self) -> Scenario {
        let mkfs = match self.spec.kind {
            Kind::Xfs => ("mkfs.xfs: pwrite64 /dev/loopN", 6),
            Kind::Btrfs => ("mkfs.btrfs: pwrite64 /dev/loopN", 6),
            _ => ("mke2fs: pwrite64 /dev/loopN", 6),
        };
        let (before, stage) = (vec![self.create()], Call::Stage(VOLUME));
        let cut_off = Act::CutOff(stage, mkfs);
        self.scenario("stage after a cut-off mkfs", [before, vec![cut_off]].concat(), stage)
    }

    /// A raw device published read-only while it is published writable elsewhere.
    fn beside_a_writer(&self) -> Scenario {
        let reader = Call::Publish(VOLUME, "reader beside", true);
        self.scenario("publish read-only beside a writer", self.in_use(), reader)
    }

    /// Where thick differs: where the image is made, attached or grown.
    fn thick(kind: Kind) -> Vec<Scenario> {
        let differs = [": create", ": stage first", ": stage grown", ": expand in use"];
        let life = Life { spec: Spec::thick(kind), ..Life::new(kind) };
        let all = life.life().into_iter();
        all.filter(|scenario| differs.iter().any(|what| scenario.name.ends_with(what))).collect()
    }

    /// The volume, perhaps after this call and more that was written.
    fn source(&self, in_use: bool, cut: Option<Call>) -> Vec<Act> {
        let mut acts = self.in_use();
        if let Some(cut) = cut {
            acts.extend([Act::Call(cut), Act::Write(VOLUME)]);
        }
        if in_use { acts } else { with(acts, &[Call::Unpublish(VOLUME, POD), Call::Unstage(VOLUME)]) }
    }

    /// A volume with a snapshot.
    fn cut(&self, in_use: bool) -> Vec<Act> {
        let call = Call::Snapshot(SNAPSHOT, VOLUME);
        let held_back = !matches!(self.spec.kind, Kind::Block | Kind::Directory);
        if held_back { self.source(in_use, Some(call)) } else { with(self.source(AT_REST, None), &[call]) }
    }

    fn snapshot(&self, in_use: bool) -> Scenario {
        let what = if in_use { "snapshot in use" } else { "snapshot" };
        self.scenario(what, self.source(in_use, None), Call::Snapshot(SNAPSHOT, VOLUME))
    }

    fn delete_snapshot(&self) -> Scenario {
        self.scenario("delete snapshot", self.cut(IN_USE), Call::DeleteSnapshot(SNAPSHOT))
    }

    fn restore(&self, larger: bool) -> Scenario {
        let (what, spec) =
            if larger { ("restore larger", self.spec.grown()) } else { ("restore", self.spec) };
        self.scenario(what, self.cut(AT_REST), Call::Create(COPY, spec, Origin::Snapshot(SNAPSHOT)))
    }

    fn clone_of(&self, in_use: bool, larger: bool) -> Scenario {
        let spec = if larger { self.spec.grown() } else { self.spec };
        let what =
            ["clone", if in_use { " in use" } else { "" }, if larger { " larger" } else { "" }].concat();
        let call = Call::Create(COPY, spec, Origin::Volume(VOLUME));
        self.scenario(&what, self.source(in_use, None), call)
    }

    /// The first use of a restored volume, beside its source.
    fn stage_restored(&self) -> Scenario {
        let restore = Call::Create(COPY, self.spec.grown(), Origin::Snapshot(SNAPSHOT));
        self.scenario("stage restored", with(self.cut(IN_USE), &[restore]), Call::Stage(COPY))
    }

    fn group(&self) -> Scenario {
        self.scenario("group", self.source(IN_USE, None), Call::Group(GROUP, &[VOLUME, OTHER]))
    }

    fn delete_group(&self) -> Scenario {
        let group = Call::Group(GROUP, &[VOLUME, OTHER]);
        self.scenario("delete group", self.source(IN_USE, Some(group)), Call::DeleteGroup(GROUP))
    }

    fn modify(&self, in_use: bool, changes: Changes) -> Scenario {
        let named: Vec<String> = changes.iter().map(|(key, value)| format!("{key}={value}")).collect();
        let what = format!("modify{} {}", if in_use { " in use" } else { "" }, named.join(" "));
        self.scenario(&what, self.source(in_use, None), Call::Modify(VOLUME, changes))
    }

    /// A volume whose blocks a snapshot has as well becomes thick.
    fn modify_shared(&self) -> Scenario {
        let call = Call::Modify(VOLUME, &[("provisioning", "thick")]);
        self.scenario("modify shared", self.cut(IN_USE), call)
    }
}

fn with(mut acts: Vec<Act>, calls: &[Call]) -> Vec<Act> {
    acts.extend(calls.iter().copied().map(Act::Call));
    acts
}

fn inline(kind: Kind) -> [Scenario; 2] {
    let scenario = |what: &str, before, call| Scenario {
        name: format!("inline {}: {what}", name_of(kind)),
        disk: Disk::Machine,
        before,
        call,
        starts_after: None,
    };
    let publish = Call::PublishInline("inline", kind);
    let before = vec![Act::Call(publish), Act::Write("inline")];
    [scenario("publish", vec![], publish), scenario("unpublish", before, Call::UnpublishInline("inline"))]
}

/// Calls that leave work for the next start, and where they end.
const LEAVE_WORK: [(&str, Cut); 14] = [
    ("ext4: create", ("driver: fsync ~/data/volumes", 1)),
    ("ext4: delete", ("driver: unlinkat ~/data/volumes/<volume>/disk.img", 1)),
    ("ext4: restore", ("driver: fsync ~/data/volumes/<copy>/disk.img", 1)),
    ("ext4: stage first", ("mke2fs: pwrite64 /dev/loopN", 6)),
    ("ext4: snapshot in use", ("driver: sync_file_range ~/data/snapshots/<snapshot>/disk.img", 3)),
    ("ext4: group", ("freeze-guard: FIFREEZE ~/kube let/<other>/globalmount", 1)),
    ("ext4: delete group", ("driver: unlinkat ~/data/snapshots/<group: volume>", 1)),
    ("block thick: expand in use", ("driver: fdatasync ~/data/state.jsonl", 1)),
    ("block: expand in use", ("driver: fdatasync ~/data/state.jsonl", 1)),
    ("directory: create", ("driver: fsync ~/directories/volumes", 1)),
    ("directory: delete", ("driver: unlinkat ~/directories/volumes/<volume>/data/file", 1)),
    ("directory: restore", ("driver: syncfs ~/directories/volumes/<copy>/data", 1)),
    ("inline ext4: publish", ("driver: fsync ~/data/volumes", 1)),
    ("inline directory: unpublish", ("driver: unlinkat ~/directories/volumes/<inline>/data/file", 1)),
];

/// The starts after calls that were cut off.
fn starts(scenarios: &[Scenario]) -> Vec<Scenario> {
    let start = |(name, cut): &(&str, Cut)| {
        let scenario = scenarios.iter().find(|scenario| scenario.name == *name);
        start_after(scenario.unwrap_or_else(|| panic!("no scenario has the name {name}")), *cut)
    };
    LEAVE_WORK.iter().map(start).collect()
}

/// The start after a call that was cut off.
fn start_after(scenario: &Scenario, cut: Cut) -> Scenario {
    let name = format!("start after {}, {} ({})", scenario.name, cut.0, cut.1);
    Scenario { name, starts_after: Some(cut), ..scenario.clone() }
}

fn copies() -> Vec<Scenario> {
    let new = Life::new;
    let (ext4, xfs, btrfs) = (new(Kind::Ext4), new(Kind::Xfs), new(Kind::Btrfs));
    let (block, directory) = (new(Kind::Block), new(Kind::Directory));
    let thick = Life { spec: Spec::thick(Kind::Ext4), ..ext4 };
    vec![
        ext4.cut_off_mkfs(),
        thick.cut_off_mkfs(),
        xfs.cut_off_mkfs(),
        btrfs.cut_off_mkfs(),
        block.beside_a_writer(),
        ext4.snapshot(IN_USE),
        ext4.snapshot(AT_REST),
        xfs.snapshot(IN_USE),
        btrfs.snapshot(IN_USE),
        block.snapshot(AT_REST),
        directory.snapshot(AT_REST),
        Life::on(Kind::Ext4, "xfs").snapshot(IN_USE),
        Life::on(Kind::Block, "btrfs").snapshot(IN_USE),
        ext4.delete_snapshot(),
        directory.delete_snapshot(),
        ext4.restore(false),
        block.restore(true),
        directory.restore(false),
        Life::on(Kind::Btrfs, "btrfs").restore(true),
        ext4.clone_of(IN_USE, false),
        xfs.clone_of(IN_USE, true),
        directory.clone_of(AT_REST, false),
        Life::on(Kind::Block, "xfs").clone_of(IN_USE, true),
        ext4.stage_restored(),
        xfs.stage_restored(),
        btrfs.stage_restored(),
        ext4.group(),
        Life::on(Kind::Block, "xfs").group(),
        ext4.delete_group(),
        ext4.modify(IN_USE, &[("provisioning", "thick"), ("directIO", "false"), ("discard", "false")]),
        block.modify(AT_REST, &[("provisioning", "thick")]),
        thick.modify(IN_USE, &[("provisioning", "thin"), ("directIO", "false")]),
        xfs.modify(IN_USE, &[("discard", "false")]),
        Life::on(Kind::Ext4, "xfs").modify_shared(),
    ]
}

/// A directory whose size btrfs enforces: where a number is taken, limited, copied into or given back.
fn limited() -> Vec<Scenario> {
    let life = Life::limited();
    let chosen =
        [": create", ": delete", ": stage first", ": unstage", ": expand at rest", ": expand in use"];
    let mut all: Vec<_> = life.life();
    all.retain(|scenario| chosen.iter().any(|what| scenario.name.ends_with(what)));
    all.extend([
        life.snapshot(AT_REST),
        life.delete_snapshot(),
        life.restore(false),
        life.restore(true),
        life.clone_of(AT_REST, false),
    ]);
    let cuts = [
        (": create", ("driver: BTRFS_IOC_SUBVOL_CREATE_V2 ~/pool/data/volumes", 1)),
        (": delete", ("driver: BTRFS_IOC_SNAP_DESTROY ~/pool/data/volumes", 1)),
        (": expand in use", ("driver: BTRFS_IOC_QGROUP_LIMIT ~/pool/data/volumes", 1)),
    ];
    let starts: Vec<_> = cuts
        .iter()
        .filter_map(|(what, cut)| Some((all.iter().find(|one| one.name.ends_with(what))?, *cut)))
        .map(|(scenario, cut)| start_after(scenario, cut))
        .collect();
    all.extend(starts);
    all
}

/// Every scenario.
pub fn all() -> Vec<Scenario> {
    let mut all: Vec<_> = Kind::ALL.into_iter().flat_map(|kind| Life::new(kind).life()).collect();
    all.extend(Kind::LOOP.into_iter().flat_map(Life::thick));
    all.extend([Kind::Ext4, Kind::Directory].into_iter().flat_map(inline));
    all.extend(copies());
    let managed = [Life::managed(Kind::Ext4, "xfs"), Life::managed(Kind::Block, "btrfs")];
    for life in managed {
        let chosen = [": create", ": delete", ": stage first", ": unstage"];
        all.extend(life.life().into_iter().filter(|s| chosen.iter().any(|what| s.name.ends_with(what))));
        all.extend([life.snapshot(IN_USE), life.restore(false)]);
    }
    if crate::directories::quotas::has_simple_quotas() {
        all.extend(limited());
    }
    let starts = starts(&all);
    all.extend(starts);
    all
}

/// What a pod writes at once.
pub const LEN: usize = 1 << 16;
/// Where it writes to on a raw device: far enough from each other to be copied one by one.
pub const OFFSETS: [u64; 2] = [4096, 40 * MIB];
