//! The scenarios: what was done before, and the call under test. Steps are never written down here, they are
//! found by running.

mod copies;

use csi::volume_capability::access_mode::Mode;
use std::sync::OnceLock;

use hostloop::kernel::Os;
use hostloop::model::{BackendKind, Settings};
use hostloop::wire::csi;
use hostloop_fake_kernel::{FakeKernel, Kill};
use nix::errno::Errno;
use tonic::Code;

use super::call::{Call, Model, group_id_of, id_of, snapshot_id_of};
use super::fault::FAULTS;
use super::observe::{other, write_marker};
use crate::harness::{
    DATA_DIR, DIRECTORIES, LIMITED, QGROUPS, Server, machine, settings, with_limits, with_sharing,
};
use crate::requests::{
    Kind, MIB, MadeFrom, Spec, expand, node_expand, publish, stage, staging_path, target_path,
};

/// Something that happens before the call under test.
#[derive(Debug, Clone)]
pub enum Act {
    Call(Call),
    /// A pod writes to the volume with this id.
    Write(String),
    /// A call whose process is killed in the middle of this step, and a new process.
    Cut(Call, usize),
    /// So many changes of a directory volume that the state file is written anew at the next one.
    Churn(String),
}

/// How much of a scenario is walked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Each step with every end and every fault.
    Full,
    /// Each step with every end, in turn of the process and of the power, and with the faults in turn: for a long call
    /// of parts that are walked on their own.
    Brief,
    /// Each step with every end of the process alone, which is one of its container: its helpers die with it.
    Container,
}

impl Pace {
    /// Whether an end is walked: every other one on its own, and the others with the power.
    pub fn walks(self, turn: bool, power: bool) -> bool {
        match self {
            Pace::Full => true,
            Pace::Brief => turn == power,
            Pace::Container => !power,
        }
    }

    /// The faults of the n-th step.
    pub fn faults(self, n: usize) -> Vec<(Errno, Code)> {
        match self {
            Pace::Full => FAULTS.to_vec(),
            Pace::Brief => vec![FAULTS[n % FAULTS.len()]],
            Pace::Container => Vec::new(),
        }
    }
}

/// One call on one kind of volume.
#[derive(Clone)]
pub struct Scenario {
    pub name: String,
    pub settings: Settings,
    pub before: Vec<Act>,
    pub call: Call,
    /// What the machine is made to be for the driver.
    pub wrap: fn(Os) -> Os,
    pub pace: Pace,
    /// There is a pool that can share blocks.
    pub sharing: bool,
    /// There are pools that limit directories.
    pub limited: bool,
    /// The kernel is older than 5.12: a bind gets its flags in a step of its own.
    pub old_kernel: bool,
}

impl Scenario {
    fn new(name: impl Into<String>, before: Vec<Act>, call: Call) -> Scenario {
        let (name, settings) = (name.into(), settings());
        let (pace, sharing, limited, old_kernel) = (Pace::Full, false, false, false);
        Scenario { name, settings, before, call, wrap: |os| os, pace, sharing, limited, old_kernel }
    }

    fn in_container(mut self) -> Scenario {
        self.pace = Pace::Container;
        self.name += ", in a container";
        self
    }

    fn on_an_old_kernel(mut self) -> Scenario {
        self.old_kernel = true;
        self.name += ", on an old kernel";
        self
    }

    fn brief(mut self) -> Scenario {
        self.pace = Pace::Brief;
        self
    }

    fn with_sharing(mut self) -> Scenario {
        self.settings = with_sharing(&machine(), self.settings);
        self.sharing = true;
        self
    }

    fn with_limits(mut self) -> Scenario {
        self.settings = with_limits(&machine(), self.settings);
        self.limited = true;
        self
    }

    /// The administrator allows directories for inline volumes.
    fn with_inline_directories(mut self) -> Scenario {
        self.settings.inline.backends.push(BackendKind::Directory);
        self.settings.inline.pools.push(DIRECTORIES.parse().expect("a name of a pool"));
        self
    }

    fn attached(mut self) -> Scenario {
        self.settings.attach = true;
        self
    }

    /// A machine on which everything before the call has been done.
    pub fn prepare(&self) -> (FakeKernel, Server, Model) {
        let kernel = machine();
        kernel.set_container(self.pace == Pace::Container);
        kernel.set_binds_in_two_steps(self.old_kernel);
        if self.sharing {
            with_sharing(&kernel, settings());
        }
        if self.limited {
            with_limits(&kernel, settings());
        }
        for id in [other(), id_of(VOLUME), id_of(COPY)] {
            kernel.create_directories(staging_path(&id));
        }
        let mut server = self.start(kernel.os()).expect("the first start");
        let mut model = Model::default();
        let spec = Spec::new(Kind::Ext4);
        let mut acts = vec![Act::Call(Call::create(spec, "other"))];
        acts.extend(self.settings.attach.then(|| Act::Call(Call::attach(&other(), spec))));
        acts.extend([Act::Call(Call::stage(&other(), spec)), Act::Write(other())]);
        for act in acts.iter().chain(&self.before) {
            match act {
                Act::Call(call) => {
                    call.run(&server).unwrap_or_else(|status| panic!("{}: {call:?}: {status}", self.name));
                    model.apply(call);
                }
                Act::Churn(id) => server = self.churn(&kernel, server, &mut model, id),
                Act::Write(id) => write_marker(&kernel, &mut model, id),
                Act::Cut(call, step) => {
                    kernel.kill_at(*step, Kill::Torn);
                    call.run(&server).expect_err("its process is killed");
                    server.abandon();
                    server = self.start(kernel.restart()).expect("the next start");
                }
            }
        }
        kernel.clear_steps();
        (kernel, server, model)
    }

    /// Makes the calls once; later machines get the state file that they left, and a start that keeps it, since
    /// it fails to write a new one.
    fn churn(&self, kernel: &FakeKernel, server: Server, model: &mut Model, id: &str) -> Server {
        static CHURNED: OnceLock<(Vec<u8>, u64, usize)> = OnceLock::new();
        let known = model.volumes.get_mut(id).expect("the scenario made this volume");
        let state = format!("{DATA_DIR}/state.jsonl");
        let mut size = known.bytes;
        let (bytes, size, open_log) = CHURNED.get_or_init(|| {
            let lines =
                kernel.read_file(&state).expect("a state file").split(|byte| *byte == b'\n').count() - 2;
            // See `Store`: more than 1000 lines beyond twice the volumes are too many.
            for _ in lines..1000 + 2 * 2 {
                size += 4096;
                server.call(expand(id, size as i64)).expect("it grows");
            }
            let bytes = kernel.read_file(&state).expect("a state file");
            let os = kernel.restart();
            kernel.clear_steps();
            drop(self.start(os).expect("it starts"));
            let open_log =
                kernel.steps().iter().position(|step| step.name == "open_log").expect("a new file");
            (bytes, size, 1 + open_log)
        });
        known.bytes = *size;
        kernel.kill();
        server.abandon();
        kernel.write_file(&state, bytes).expect("the state file");
        kernel.sync(&state).expect("the disk");
        let os = kernel.restart();
        kernel.fail_at(*open_log, Errno::ENOSPC);
        self.start(os).expect("it keeps the file")
    }

    /// The steps of the call when nothing goes wrong.
    pub fn steps(&self) -> Vec<&'static str> {
        let (kernel, server, _) = self.prepare();
        self.call.run(&server).unwrap_or_else(|status| panic!("{}: {status}", self.name));
        kernel.steps().iter().map(|step| step.name).collect()
    }

    pub fn start(&self, os: Os) -> Result<Server, String> {
        Server::try_start((self.wrap)(os), &self.settings).map_err(|error| format!("start: {error}"))
    }
}

const VOLUME: &str = "volume";
const POD: &str = "pod";
/// A volume made from another one, or from a snapshot.
const COPY: &str = "copy";
const SNAPSHOT: &str = "snapshot";
const GROUP: &str = "group";

/// Steps of the life of a volume of one kind, to be put together.
struct Life {
    spec: Spec,
    id: String,
}

impl Life {
    fn create(&self) -> Act {
        Act::Call(Call::create(self.spec, VOLUME))
    }

    fn stage(&self) -> Act {
        Act::Call(Call::stage(&self.id, self.spec))
    }

    fn publish(&self) -> Act {
        Act::Call(Call::publish(&self.id, self.spec, POD))
    }

    /// Made, staged, published, and written to.
    fn in_use(&self) -> Vec<Act> {
        vec![self.create(), self.stage(), self.publish(), Act::Write(self.id.clone())]
    }

    /// In use, but no longer published.
    fn staged(&self) -> Vec<Act> {
        let mut acts = self.in_use();
        acts.push(Act::Call(Call::unpublish(&self.id, POD)));
        acts
    }

    /// Was in use.
    fn at_rest(&self) -> Vec<Act> {
        let mut acts = self.staged();
        acts.push(Act::Call(Call::unstage(&self.id)));
        acts
    }

    fn grown(&self) -> i64 {
        self.spec.bytes + 256 * MIB
    }

    /// A path at which NodeExpandVolume finds it.
    fn path(&self) -> String {
        target_path(POD)
    }

    pub(super) fn name(&self) -> String {
        let (thick, sharing) = (self.spec.thick, self.spec.sharing);
        let name = format!("{}{}", self.spec.kind.name(), if thick { " thick" } else { "" });
        match self.spec.limited {
            Some(number) => name + " " + LIMITED[number].0,
            None if sharing => name + ", sharing",
            None => name,
        }
    }

    fn scenarios(&self) -> Vec<Scenario> {
        let (spec, id, name) = (self.spec, &self.id, self.name());
        let expand = Call::expand(id, self.grown());
        let mut grown = self.in_use();
        grown.push(Act::Call(expand.clone()));
        let mut grown_at_rest = self.at_rest();
        grown_at_rest.push(Act::Call(expand.clone()));
        let node_expand = |bytes| Call::NodeExpand(node_expand(id, &self.path(), bytes));
        let list = vec![
            ("create", vec![], Call::create(spec, VOLUME)),
            ("delete", self.at_rest(), Call::delete(id)),
            ("stage first", vec![self.create()], Call::stage(id, spec)),
            ("stage again", self.at_rest(), Call::stage(id, spec)),
            ("stage grown", grown_at_rest, Call::stage(id, spec)),
            ("unstage", self.staged(), Call::unstage(id)),
            ("publish", vec![self.create(), self.stage()], Call::publish(id, spec, POD)),
            ("unpublish", self.in_use(), Call::unpublish(id, POD)),
            ("expand at rest", self.at_rest(), expand.clone()),
            ("expand in use", self.in_use(), expand),
            ("node expand", grown, node_expand(None)),
            ("node expand beyond", self.in_use(), node_expand(Some(self.grown()))),
        ];
        let scenario = |(what, before, call)| {
            let scenario = Scenario::new(format!("{name}: {what}"), before, call);
            if spec.limited.is_some() { scenario.with_limits() } else { scenario }
        };
        list.into_iter().map(scenario).collect()
    }

    fn read_only(&self) -> Vec<Scenario> {
        let (spec, id) = (self.spec, &self.id);
        let name = spec.kind.name();
        let reader = stage(id, spec.capability_in(Mode::SingleNodeReaderOnly));
        let mut published = publish(id, spec.capability(), POD);
        published.readonly = true;
        vec![
            Scenario::new(format!("{name}: stage read-only"), self.at_rest(), Call::Stage(reader)),
            Scenario::new(format!("{name}: publish read-only"), self.staged(), Call::Publish(published)),
        ]
    }

    fn attach(&self) -> Vec<Scenario> {
        let (spec, id) = (self.spec, &self.id);
        let attach = Act::Call(Call::attach(id, spec));
        let mut at_rest = self.at_rest();
        at_rest.insert(1, attach.clone());
        let mut detached = at_rest.clone();
        detached.push(Act::Call(Call::detach(id)));
        let list = vec![
            ("attach", vec![self.create()], Call::attach(id, spec)),
            ("detach", at_rest, Call::detach(id)),
            ("stage attached", vec![self.create(), attach], Call::stage(id, spec)),
            ("delete detached", detached, Call::delete(id)),
        ];
        let name = spec.kind.name();
        let scenario = |(what, b, call)| Scenario::new(format!("{name}: {what}"), b, call).attached();
        list.into_iter().map(scenario).collect()
    }
}

fn life(spec: Spec) -> Life {
    Life { spec, id: id_of(VOLUME) }
}

/// Every scenario.
pub fn all() -> Vec<Scenario> {
    let mut all = Vec::new();
    for kind in Kind::ALL {
        let thin = life(Spec::new(kind));
        all.extend(thin.scenarios());
        all.extend(thin.read_only());
        if kind != Kind::Directory {
            // Thick differs where the image is made, attached or grown.
            let differs = [": create", ": stage first", ": stage grown", ": expand in use"];
            let thick = life(Spec::thick(kind)).scenarios();
            all.extend(thick.into_iter().filter(|s| differs.iter().any(|what| s.name.ends_with(what))));
        }
    }
    all.extend(life(Spec::new(Kind::Ext4)).attach());
    all.extend(life(Spec::new(Kind::Directory)).attach());
    let formatted = [Kind::Ext4, Kind::Xfs, Kind::Btrfs].map(Spec::new);
    for spec in formatted.into_iter().chain([Spec::thick(Kind::Ext4)]) {
        let cut_off = life(spec);
        let stage = Call::stage(&cut_off.id, cut_off.spec);
        let name = format!("{}: stage after a cut-off mkfs", cut_off.name());
        let mut scenario = Scenario::new(name, vec![cut_off.create()], stage.clone());
        let make = 1 + scenario.steps().iter().position(|step| *step == "make").expect("mkfs");
        scenario.before.push(Act::Cut(stage, make));
        all.push(scenario);
    }
    all.push(block_read_only_beside());
    for kind in [Kind::Ext4, Kind::Directory] {
        let published = life(Spec::new(kind)).read_only().into_iter().skip(1);
        all.extend(published.map(Scenario::on_an_old_kernel));
    }
    let kept = life(Spec::new(Kind::Directory));
    let before = vec![kept.create(), Act::Churn(kept.id.clone())];
    all.push(Scenario::new("compaction", before, Call::expand(&kept.id, kept.grown())));
    all.extend(inline(Spec::new(Kind::Ext4)));
    let directories = inline(Spec::new(Kind::Directory)).into_iter();
    all.extend(directories.map(Scenario::with_inline_directories));
    all.extend(copies::all());
    all.extend(limited());
    all
}

/// Directories whose size their filesystem enforces. Where one is made, grown or deleted, each filesystem is walked.
fn limited() -> Vec<Scenario> {
    let mut all = life(Spec::limited(0)).scenarios();
    let differs = [": create", ": delete", ": expand in use"];
    for number in 1..LIMITED.len() {
        let scenarios = life(Spec::limited(number)).scenarios().into_iter();
        all.extend(scenarios.filter(|scenario| differs.iter().any(|what| scenario.name.ends_with(what))));
    }
    all
}

/// A raw device published read-only while it is published writable elsewhere.
fn block_read_only_beside() -> Scenario {
    let spec = Spec::new(Kind::Block);
    let (life, capability) = (life(spec), spec.capability_in(Mode::SingleNodeMultiWriter));
    let id = &life.id;
    let mut create = spec.create(VOLUME);
    create.volume_capabilities = vec![capability.clone()];
    let mut reader = publish(id, capability.clone(), "reader-pod");
    reader.readonly = true;
    let before = vec![
        Act::Call(Call::Create(spec, create)),
        Act::Call(Call::Stage(stage(id, capability.clone()))),
        Act::Call(Call::Publish(publish(id, capability, POD))),
        Act::Write(id.clone()),
    ];
    Scenario::new("block: publish read-only beside a writer", before, Call::Publish(reader))
}

/// Inline ephemeral volumes.
fn inline(spec: Spec) -> Vec<Scenario> {
    let id = format!("csi-{}", "0a".repeat(32));
    let publish = Call::PublishInline(spec, spec.publish_inline(&id, POD));
    let name = spec.kind.name();
    let before = vec![Act::Call(publish.clone()), Act::Write(id.clone())];
    vec![
        Scenario::new(format!("inline {name}: publish"), vec![], publish),
        Scenario::new(format!("inline {name}: unpublish"), before, Call::unpublish(&id, POD)),
    ]
}
