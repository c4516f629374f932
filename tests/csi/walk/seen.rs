//! What the walk itself must see, and a few things that it cannot.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use hostloop::kernel::{BlockDevice, FileStat, Files, LogFile, Os, Pinned, Space};
use hostloop::wire::csi;
use nix::errno::Errno;

use super::call::{Call, Model, group_id_of, id_of, snapshot_id_of};
use super::kill;
use super::observe::{check, restore, write_marker};
use super::part::Part;
use super::scenario::{self, Scenario};
use crate::harness::{Server, machine, settings};
use crate::requests::{Kind, Spec, delete_group, delete_snapshot, staging_path, target_path};

/// Files that are not always synced.
struct Careless {
    files: Arc<dyn Files>,
    /// What is left out: the syncs of logs, of directories, of other files.
    logs: bool,
    directories: bool,
    contents: bool,
}

/// A log that is never synced.
struct Loose(Box<dyn LogFile>);

impl LogFile for Loose {
    fn reserve(&mut self, bytes: u64) -> io::Result<()> {
        self.0.reserve(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.append(bytes)
    }

    fn sync(&mut self) -> io::Result<()> {
        Ok(())
    }
}

macro_rules! pass_on {
    ($($name:ident($($argument:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $kind),*) -> io::Result<$result> {
            self.files.$name($($argument),*)
        })*
    };
}

impl Files for Careless {
    pass_on! {
        stat(path: &Path) -> Option<FileStat>;
        changed(path: &Path) -> Option<std::time::SystemTime>;
        open_below(directory: &Path, below: &Path) -> Pinned;
        canonicalize(path: &Path) -> PathBuf;
        list(directory: &Path) -> Vec<String>;
        read(file: &Path) -> Vec<u8>;
        read_through(file: &Path) -> ();
        seen_closed(file: &Path) -> bool;
        space(path: &Path) -> Space;
        block_device(device: &Path) -> BlockDevice;
        random_id() -> String;
        create_directory(path: &Path, mode: u32) -> ();
        create_file(path: &Path) -> ();
        rename(from: &Path, to: &Path) -> ();
        remove_file(path: &Path) -> ();
        remove_directory(path: &Path) -> ();
        lock(file: &Path) -> Box<dyn Send + Sync>;
    }

    fn open_log(&self, file: &Path, len: u64) -> io::Result<Box<dyn LogFile>> {
        let log = self.files.open_log(file, len)?;
        Ok(if self.logs { Box::new(Loose(log)) } else { log })
    }

    fn sync_file(&self, file: &Path) -> io::Result<()> {
        if self.contents { Ok(()) } else { self.files.sync_file(file) }
    }

    fn sync_directory(&self, directory: &Path) -> io::Result<()> {
        if self.directories { Ok(()) } else { self.files.sync_directory(directory) }
    }
}

fn named(name: &str) -> Scenario {
    scenario::all().into_iter().find(|scenario| scenario.name == name).expect("a scenario")
}

#[test]
fn a_driver_that_forgets_to_sync_is_found_out() {
    fn careless(os: Os, logs: bool, directories: bool, contents: bool) -> Os {
        let files = Arc::new(Careless { files: os.files.clone(), logs, directories, contents });
        Os { files, ..os }
    }
    let without_logs = |os| careless(os, true, false, false);
    let without_directories = |os| careless(os, false, true, false);
    let without_files = |os| careless(os, false, false, true);
    type Wrap = fn(Os) -> Os;
    // The same part each time.
    let part = Part { seed: 1, share: 16 };
    let all: [(_, Vec<Wrap>); 3] = [
        ("ext4: create", vec![without_logs, without_directories]),
        ("block: snapshot", vec![without_directories, without_files]),
        ("block: restore larger", vec![without_files]),
    ];
    for (name, wraps) in all {
        assert!(super::walk(&named(name), part).failures.is_empty());
        for wrap in wraps {
            let scenario = Scenario { wrap, ..named(name) };
            let ends = kill::ends(&scenario.steps()).into_iter().filter(|end| end.power);
            let found = ends.map(|end| kill::run(&scenario, end)).any(|verdict| verdict.is_err());
            assert!(found, "{name}: no power cut finds it");
        }
    }
}

/// A failed DeleteVolume may be followed by anything, and a crash later must not finish it then.
#[test]
fn a_volume_used_after_a_failed_deletion_stays() {
    let scenario = named("ext4: delete");
    for n in 1..=scenario.steps().len() {
        for power in [false, true] {
            let (kernel, server, mut model) = scenario.prepare();
            kernel.fail_at(n, Errno::EIO);
            let failed = scenario.call.run(&server).is_err();
            let Call::Delete(request) = &scenario.call else { panic!("another call") };
            let (id, spec) = (request.volume_id.clone(), Spec::new(Kind::Ext4));
            let stage = Call::stage(&id, spec);
            if !failed || stage.run(&server).is_err() {
                continue; // it is gone for callers
            }
            model.apply(&stage);
            write_marker(&kernel, &mut model, &id);
            kernel.kill();
            server.abandon();
            let server = scenario.start(if power { kernel.power_cut() } else { kernel.restart() }).unwrap();
            restore(&server, &model)
                .and_then(|()| check(&kernel, &server, &model))
                .unwrap_or_else(|problem| panic!("step {n}, power {power}: {problem}"));
        }
    }
}

/// RPCs that only look change nothing.
#[test]
fn looking_takes_no_step() {
    for kind in Kind::ALL {
        let (kernel, spec, id) = (machine(), Spec::new(kind), id_of("v"));
        kernel.create_directories(staging_path(&id));
        let mut settings = settings();
        settings.attach = true;
        let server = Server::start(&kernel, &settings);
        let mut model = Model::default();
        let calls = [
            Call::create(spec, "v"),
            Call::attach(&id, spec),
            Call::stage(&id, spec),
            Call::publish(&id, spec, "pod"),
        ];
        for call in calls {
            call.run(&server).unwrap();
            model.apply(&call);
        }
        kernel.clear_steps();
        look(&server, &id, spec);
        server.call(delete_snapshot(&snapshot_id_of("none"))).unwrap();
        server.call(delete_group(&group_id_of("none"))).unwrap();
        restore(&server, &model).unwrap();
        Call::create(spec, "v").run(&server).unwrap();
        Call::attach(&id, spec).run(&server).unwrap();
        Call::expand(&id, spec.bytes).run(&server).unwrap_or_else(|status| panic!("{status}"));
        let steps: Vec<_> = kernel.steps().into_iter().filter(|step| step.name != "update_size").collect();
        assert!(steps.is_empty(), "{steps:?}");
    }
}

fn look(server: &Server, id: &str, spec: Spec) {
    let volume_id = id.to_owned();
    server.call(csi::ProbeRequest::default()).unwrap();
    server.call(csi::GetPluginInfoRequest::default()).unwrap();
    server.call(csi::GetPluginCapabilitiesRequest::default()).unwrap();
    server.call(csi::ControllerGetCapabilitiesRequest::default()).unwrap();
    server.call(csi::NodeGetCapabilitiesRequest::default()).unwrap();
    server.call(csi::NodeGetInfoRequest::default()).unwrap();
    server.call(csi::ListVolumesRequest::default()).unwrap();
    server.call(csi::GetCapacityRequest::default()).unwrap();
    server.call(csi::ListSnapshotsRequest::default()).unwrap();
    let get = csi::ControllerGetVolumeRequest { volume_id: volume_id.clone() };
    server.call(get).unwrap();
    let validate = csi::ValidateVolumeCapabilitiesRequest {
        volume_id: volume_id.clone(),
        volume_capabilities: vec![spec.capability()],
        ..Default::default()
    };
    server.call(validate).unwrap();
    let stats = csi::NodeGetVolumeStatsRequest {
        volume_id,
        volume_path: target_path("pod"),
        staging_target_path: staging_path(id),
    };
    server.call(stats).unwrap();
}
