//! The driver or the machine starts again; pods go on.

use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use tonic::Code;

use crate::life::*;
use crate::support::*;

fn kinds() -> Vec<csi::CreateVolumeRequest> {
    let large = |request| csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..request };
    vec![
        large(create("ext4", mount())),
        large(create("xfs", fs("xfs"))),
        large(create("btrfs", fs("btrfs"))),
        large(create("block", block())),
        create_with("thick", &[("provisioning", "thick")]),
        create_with("directory", &[("backend", "directory"), ("pool", "directories")]),
    ]
}

fn file(vol: &Vol, pod: &str) -> String {
    if vol.is_block() { vol.target(pod) } else { format!("{}/file", vol.target(pod)) }
}

fn in_use(rig: &Rig) -> Vec<Vol> {
    let vols: Vec<Vol> = kinds().into_iter().map(|request| rig.made(request)).collect();
    for vol in &vols {
        rig.stage(vol);
        rig.publish(vol, "pod");
        rig.kernel.write_file(file(vol, "pod"), b"data").expect("write");
    }
    vols
}

#[test]
fn a_restart_of_the_driver_changes_nothing() {
    let mut rig = Rig::new();
    let vols = in_use(&rig);
    let (mounts, loops) = (rig.kernel.mounts(), rig.kernel.loops());
    rig.restart();
    assert_eq!((rig.kernel.mounts(), rig.kernel.loops()), (mounts.clone(), loops.clone()), "pods go on");
    for (vol, request) in vols.iter().zip(kinds()) {
        assert_eq!(rig.ok(request).volume.as_ref(), Some(&vol.info));
        rig.stage(vol);
        rig.publish(vol, "pod");
        assert_eq!(rig.kernel.read(file(vol, "pod"), 0, 4).expect("read"), b"data");
        rig.ok(vol.stats_request(vol.target("pod")));
        rig.fails(Code::FailedPrecondition, vol.delete_request());
    }
    assert_eq!((rig.kernel.mounts(), rig.kernel.loops()), (mounts, loops), "repeated calls change nothing");
    for vol in &vols {
        rig.unpublish(vol, "pod");
        assert!(!rig.kernel.exists(vol.target("pod")));
        rig.unstage(vol);
        rig.ok(vol.delete_request());
    }
    rig.assert_clean();
}

#[test]
fn staged_volumes_have_their_data_after_a_reboot() {
    for cut in [false, true] {
        let mut rig = Rig::new();
        let vols = in_use(&rig);
        for vol in &vols {
            if cut {
                let path = if vol.is_block() { vol.image() } else { file(vol, "pod") };
                rig.kernel.sync(path).expect("sync");
            }
        }
        match cut {
            true => rig.power_cut(),
            false => rig.reboot(),
        }
        assert!(rig.kernel.mounts().is_empty() && rig.kernel.loops().is_empty());
        for vol in &vols {
            rig.stage(vol);
            rig.publish(vol, "pod");
            assert_eq!(rig.kernel.read(file(vol, "pod"), 0, 4).expect("read"), b"data", "cut: {cut}");
            rig.unpublish(vol, "pod");
            rig.unstage(vol);
            rig.ok(vol.delete_request());
        }
        rig.assert_clean();
    }
}

#[test]
fn a_gone_volume_can_be_unpublished_after_a_reboot() {
    let mut rig = Rig::new();
    let vols = in_use(&rig);
    rig.reboot();
    for vol in &vols {
        for _ in 0..2 {
            rig.unpublish(vol, "pod");
            assert!(!rig.kernel.exists(vol.target("pod")));
            rig.unstage(vol);
        }
        rig.ok(vol.delete_request());
    }
    rig.assert_clean();
}

#[test]
fn devices_after_a_reboot_show_no_other_volume() {
    let mut rig = Rig::new();
    let (one, two) = (rig.volume("one", block()), rig.volume("two", block()));
    for vol in [&one, &two] {
        rig.stage(vol);
        let target = rig.publish(vol, "pod");
        rig.kernel.write(&target, 0, vol.id.as_bytes()).expect("write");
    }
    rig.reboot();
    // The other order: each gets the device number that the other had.
    for vol in [&two, &one] {
        rig.stage(vol);
        let target = rig.publish(vol, "pod");
        assert_eq!(rig.kernel.read(&target, 0, vol.id.len()).expect("read"), vol.id.as_bytes());
    }
}

#[test]
fn a_republished_pod_can_go_after_a_reboot() {
    let mut rig = Rig::new();
    let (vol, _) = rig.published("v", mount());
    rig.reboot();
    rig.stage(&vol);
    rig.publish(&vol, "pod-1");
    rig.unpublish(&vol, "pod-1");
    rig.unstage(&vol);
    rig.ok(vol.delete_request());
    rig.assert_clean();
}

#[test]
fn the_publish_to_a_node_is_remembered() {
    let mut rig = Rig::with(&["--attach"]);
    let vol = rig.volume("v", mount());
    rig.ok(vol.attach_request(NODE, false));
    rig.power_cut();
    rig.stage(&vol);
    rig.unstage(&vol);
    rig.ok(vol.detach_request(NODE));
    rig.power_cut();
    rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
}

#[test]
fn a_data_directory_of_another_node_is_not_touched() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let kernel = rig.kernel.clone();
    drop(rig);
    let before = kernel.tree(DATA);
    for flags in [["--node-id", "node-z"], ["--driver-name", "other.driver"]] {
        kernel.restart();
        let Err(error) = Rig::try_on(kernel.clone(), &flags) else { panic!("{flags:?}: it starts") };
        assert!(error.contains("state") && !error.contains('\n'), "{error}");
        let names_command = error.contains(&format!("hostloop state adopt-node --from {NODE}"));
        assert_eq!(names_command, flags[0] == "--node-id", "{error}");
        assert_eq!(kernel.tree(DATA), before);
    }
    kernel.restart();
    let rig = Rig::on(kernel, &[]);
    rig.stage(&vol);
}

#[test]
fn a_state_file_without_a_record_stops_the_start() {
    let rig = Rig::new();
    for n in 0..5 {
        rig.volume(&format!("v{n}"), mount());
    }
    let kernel: FakeKernel = rig.kernel.clone();
    let rig = rig.restart_with(&[]);
    drop(rig);
    let state = kernel.tree(DATA).into_iter().find(|path| path.contains("state")).expect("a state file");
    kernel.remove_file(&state).expect("remove");
    kernel.write_file(&state, b"").expect("write");
    let before = (kernel.tree(DATA), kernel.read_file(&state).expect("read"));
    kernel.restart();
    let Err(error) = Rig::try_on(kernel.clone(), &[]) else { panic!("it starts") };
    assert!(error.contains(&state) && !error.contains('\n'), "{error}");
    assert!(error.contains("hostloop state rebuild"), "{error}");
    assert_eq!((kernel.tree(DATA), kernel.read_file(&state).expect("read")), before, "nothing is touched");
}
