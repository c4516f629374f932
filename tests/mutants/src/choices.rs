//! Which tests are asked: all that are cheap, and for what survives these a portion of those that are not.

use std::path::Path;

use crate::Result;

/// Its tests remove their mounts and devices themselves, if they are let.
pub const ON_THE_KERNEL: &str = "root";

/// The tests of a program that are used.
#[derive(Clone, Copy)]
pub struct Choice {
    /// The test program's name: `lib`, `csi`.
    pub program: &'static str,
    /// Those that begin with one of these; all where there is none.
    pub only: &'static [&'static str],
    /// Without those that begin with one of these.
    pub skipped: &'static [&'static str],
}

/// A test, and what it is asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name {
    /// The test program's name: `lib`, `csi`.
    pub program: String,
    /// Its name in it.
    pub test: String,
    /// Variables that choose what it does, as `NAME=value`: a portion, a seed.
    pub portion: Vec<String>,
    /// Others, for when it is only seen what it reaches: a smaller portion.
    pub glimpse: Vec<String>,
}

impl std::fmt::Display for Name {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.program, self.test)?;
        self.portion.iter().try_for_each(|variable| write!(f, " {variable}"))
    }
}

/// The cheapest tests that can catch a mutant of any module.
pub const TESTS: [Choice; 5] = [
    Choice { program: "lib", only: &[], skipped: &[] },
    Choice { program: "hostloop_kernel", only: &[], skipped: &[] },
    Choice { program: "contract", only: &[], skipped: &[] },
    Choice {
        program: "csi",
        only: &[],
        skipped: &["walk::", "copies::pull::ends::", "pools::managed_pools::walk::", LONG_LIST, LONG_ANSWER],
    },
    Choice { program: "cluster", only: &[], skipped: &[] },
];
/// These need minutes beside other tests.
const LONG_LIST: &str = "volumes::list_pages::a_client_without_a_limit_reads_all_volumes";
const LONG_ANSWER: &str = "volumes::list_pages::no_answer_is_too_large_whatever_the_entries";

/// What only the real kernel can show.
pub const KERNEL: Choice = Choice {
    program: ON_THE_KERNEL,
    only: &[
        "os_contract::",
        "node::os_mounts::",
        "copies::os_copies::",
        "node::unused_devices::",
        "copies::copy_tree::",
        "snapshots::metadata::",
        "copies::copy_on_write::",
        "snapshots::freeze::",
        "metrics::volume_health::",
        "volumes::limits::",
    ],
    skipped: &[],
};

/// Compares the steps of every call that is walked with those that are known: the first that is asked of what takes long.
pub const KNOWN_STEPS: &str = "walk::counted::";
/// What takes long even by itself, on the fake kernel; the walks are in [`portions`].
pub const LAST: [Choice; 1] = [Choice {
    program: "csi",
    only: &[KNOWN_STEPS, "copies::pull::ends::", "pools::managed_pools::walk::"],
    skipped: &[],
}];

/// The driver's process on the real kernel.
pub const LAST_ON_THE_KERNEL: Choice = Choice {
    program: ON_THE_KERNEL,
    only: &[
        "copies::in_use::",
        "copies::pull::",
        "crash::anchor::",
        "crash::kill::",
        "crash::restart::",
        "crash::starting::",
        "directories::placement::",
        "metrics::process::",
        "node::bare_dev::",
        "node::flags::",
        "node::foreign::",
        "node::node_expand_volume::",
        "node::held::",
        "node::inline::",
        "node::long_tools::",
        "node::old_kernels::",
        "node::one_step::",
        "node::read_only_sysfs::",
        "node::readonly::",
        "node::stacked::",
        "node::subvolumes::",
        "node::taken_over::",
        "node::node_unpublish_volume::",
        "pools::broken_pools::",
        "pools::filesystems::",
        "pools::full_disk::",
        "pools::lost::",
        "pools::managed_pools::",
        "pools::other_devices::",
        "pools::reserve::",
        "pools::space_promises::",
        "snapshots::group_snapshot::",
        "volumes::controller_expand_volume::",
        "volumes::life::",
        "volumes::modify_volume::",
        "volumes::thick::",
        "volumes::truncated::",
    ],
    skipped: &["copies::pull::updates::"],
};

/// The programs of [`portions`].
pub const PORTIONED: [&str; 3] = ["csi", "model", "simulation"];

const WALK: &str = "walk::every_call_survives_an_end_and_failure_at_any_step";
const CRUEL: &str = "walk::cruel::every_call_survives_a_cruel_kernel";

/// What is exhaustive, in portions that end soon, each with a seed that is always the same: the walks a scenario at a time, a short
/// run of the model, and a few seeds of the simulation.
///
/// # Errors
/// Where the scenarios cannot be read.
pub fn portions(tree: &Path) -> Result<Vec<Name>> {
    let portion = |program: &str, test: &str, portion: &[&str], glimpse: &[&str]| Name {
        program: program.to_owned(),
        test: test.to_owned(),
        portion: portion.iter().map(ToString::to_string).collect(),
        glimpse: glimpse.iter().map(ToString::to_string).collect(),
    };
    let steps = std::fs::read_to_string(tree.join("tests/csi/walk/steps.golden"))?;
    let mut all = Vec::new();
    // The first line has counts.
    for line in steps.lines().skip(1) {
        let (scenario, _) = line.rsplit_once(": ").ok_or("steps.golden has a line without steps")?;
        let scenario = format!("WALK=={scenario}");
        let of = |variable| [scenario.as_str(), "HOSTLOOP_SEED=1", variable];
        all.push(portion("csi", WALK, &of("HOSTLOOP_WALK_SHARE=4"), &of("HOSTLOOP_WALK_SHARE=40")));
        all.push(portion("csi", CRUEL, &of("HOSTLOOP_SHARE=16"), &of("HOSTLOOP_SHARE=160")));
    }
    let retries = |variable| ["WALK=retry of", "HOSTLOOP_SEED=1", variable];
    all.push(portion("csi", WALK, &retries("HOSTLOOP_WALK_SHARE=40"), &retries("HOSTLOOP_WALK_SHARE=400")));
    // What a start does with what some of them left; of these the walk takes no part.
    for start in ["first start", "start after ext4: create", "start after ext4: delete group"] {
        let start = format!("WALK=={start}");
        let of = [start.as_str(), "HOSTLOOP_SEED=1", "HOSTLOOP_WALK_SHARE=40"];
        all.push(portion("csi", WALK, &of, &of));
    }
    let model = "every_answer_of_a_long_run_is_explained";
    all.push(portion("model", model, &["HOSTLOOP_SEED=1", "CALLS=1000"], &["HOSTLOOP_SEED=1", "CALLS=1000"]));
    let seeds = ["HOSTLOOP_SIMULATION_FROM=0", "HOSTLOOP_SIMULATION_SEEDS=4"];
    all.push(portion("simulation", "seeds::many", &seeds, &seeds));
    Ok(all)
}
