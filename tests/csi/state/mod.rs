//! What becomes of volumes whose state file is lost, damaged or older than they are.

mod adopted;
mod damaged;
mod rebuilt;
mod undecided;

use std::path::PathBuf;

use hostloop::model::{FsType, PoolName};
use hostloop::state::{Report, Task, Verb, Wishes, run};
use hostloop::store::Identity;
use hostloop::wire::csi;

use crate::cuts::*;
use crate::harness::DIRECTORIES_DIR;
use crate::life::*;
use crate::support::*;

const STATE: &str = "/var/lib/hostloop/state.jsonl";
const LIMITED: &str = "/pools/limited-xfs";

type Seen = (csi::ListVolumesResponse, Vec<csi::Snapshot>, csi::GetVolumeGroupSnapshotResponse);

/// A driver with a volume of each kind, some in use, and snapshots and copies of them.
struct World {
    rig: Rig,
    vols: Vec<Vol>,
    group: String,
}

impl World {
    fn new() -> Self {
        let kernel = machine_with_fast(FsType::Xfs);
        kernel.add_disk(LIMITED, FsType::Xfs, 100 << 30);
        kernel.set_quotas(LIMITED, true);
        let limited = format!("limited-xfs={LIMITED}");
        let rig = Rig::on(kernel, &[&WITH_FAST[..], &["--pool", &limited]].concat());
        let directory = [("backend", "directory"), ("pool", "directories")];
        let used = [
            create("ext4", fs("ext4")),
            create("block", block()),
            create_with("shared", &[("pool", "fast")]),
            create_with("directory", &directory),
            create_with("limited", &[("backend", "directory"), ("pool", "limited-xfs")]),
        ];
        let mut vols: Vec<Vol> = used.into_iter().map(|request| rig.in_use(request).0).collect();
        vols.iter().for_each(|vol| rig.write(vol, "text"));
        rig.ok(csi::ControllerExpandVolumeRequest {
            volume_id: vols[1].id.clone(),
            capacity_range: range(3 * SIZE, 0),
            ..Default::default()
        });
        let cut = rig.cut("cut", &vols[0]);
        let ids = [vols[0].id.as_str(), vols[2].id.as_str()];
        let group = rig.ok(group("group", &ids)).group_snapshot.expect("a group").group_snapshot_id;
        vols.push(rig.made(copy("restored", from_snapshot(&cut.snapshot_id), fs("ext4"), &[])));
        vols.push(rig.made(copy("cloned", from_volume(&vols[2].id), mount(), &[("pool", "fast")])));
        vols.push(rig.made(create_with("thick", &[("provisioning", "thick")])));
        rig.made(create("gone", block()));
        let gone = rig.ok(csi::ListVolumesRequest::default()).entries.into_iter().filter_map(|it| it.volume);
        let gone = gone.map(|volume| volume.volume_id).find(|id| vols.iter().all(|vol| vol.id != *id));
        rig.ok(csi::DeleteVolumeRequest { volume_id: gone.expect("one more"), ..Default::default() });
        World { rig, vols, group }
    }

    /// All that callers see.
    fn seen(&self) -> Seen {
        let rig = &self.rig;
        let volumes = rig.ok(csi::ListVolumesRequest::default());
        (volumes, rig.snapshots(), rig.ok(get_group(&self.group, &[])))
    }

    /// Stops the driver as by a kill, and removes the state file.
    fn lose_state(&self) {
        self.rig.kernel.kill();
        self.rig.kernel.restart();
        self.rig.kernel.remove_file(STATE).expect("remove");
    }

    /// Starts a driver without the state file, after an administrator has removed the anchors.
    fn start_without_state(&mut self) {
        self.lose_state();
        let anchors = self
            .rig
            .kernel
            .tree("/var/lib")
            .into_iter()
            .filter(|path| path.ends_with("hostloop-anchor") || path.ends_with("hostloop-installation"));
        anchors.for_each(|anchor| self.rig.kernel.remove_file(anchor).expect("remove"));
        self.rig.start_again();
    }

    /// Runs a command while no driver runs, and starts the driver again.
    fn run(&mut self, verb: Verb, wishes: Wishes) -> Report {
        let task = Task { wishes, ..task(verb, true) };
        let os = self.rig.kernel.restart();
        let report = run(&os, &task).expect("it runs");
        self.rig.start_again();
        report
    }

    /// Each volume has its data, can be used by a further pod, and goes.
    fn check_data(&self) {
        let rig = &self.rig;
        for (at, vol) in self.vols.iter().enumerate() {
            if at < 5 {
                assert_eq!(rig.read(vol, 4), "text", "{at}");
                rig.rest(vol);
            }
            rig.stage(vol);
            rig.unstage(vol);
        }
    }
}

fn task(verb: Verb, yes: bool) -> Task {
    let pools = [
        ("default", DATA),
        ("fast", FAST),
        ("fast-directories", "/pools/fast-directories"),
        ("limited-xfs", LIMITED),
        ("directories", DIRECTORIES_DIR),
    ];
    let pools = pools.map(|(name, path)| (name.parse::<PoolName>().expect("a name"), PathBuf::from(path)));
    Task {
        verb,
        identity: Identity { driver: "hostloop.csi.dev".to_owned(), node_id: NODE.to_owned() },
        data_dir: PathBuf::from(DATA),
        pools: pools.into(),
        wishes: Wishes::default(),
        from: None,
        yes,
    }
}
