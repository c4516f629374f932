//! A driver on a state file of which a record cannot be read, and `hostloop state repair`.

use super::rebuilt::replace_state;
use super::*;
use hostloop::error::Error;
use hostloop::model::{NodeKey, VolumeId};
use tonic::Code;

/// One byte of each line is changed, one line at a time.
#[test]
fn a_damaged_record_costs_its_volume_alone() {
    let mut world = World::new();
    let before = world.seen();
    let whole = world.rig.kernel.read_file(STATE).expect("read");
    let ends: Vec<usize> =
        whole.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at).collect();
    // The last line has nothing behind it that says that it was acknowledged.
    for end in &ends[..ends.len() - 1] {
        let mut bytes = whole.clone();
        bytes[end - 20] ^= 1;
        world.rig.kernel.kill();
        world.rig.kernel.restart();
        replace_state(&world, &bytes);
        world.rig.start_again();
        let get = |vol: &Vol| csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() };
        let mut unavailable = 0;
        for vol in &world.vols {
            match world.rig.call(get(vol)) {
                Ok(_) => {}
                Err(status) => {
                    assert_eq!(status.code(), Code::Unavailable, "{}", status.message());
                    assert!(status.message().contains("hostloop state repair"), "{}", status.message());
                    unavailable += 1;
                    world.rig.fails(Code::Unavailable, vol.delete_request());
                }
            }
        }
        assert!(unavailable <= 2, "{unavailable} volumes by the line that ends at {end}");
        let made = world.rig.made(create("while damaged", block()));
        world.rig.ok(made.delete_request());
        let report = world.run(Verb::Repair, Wishes::default());
        assert!(report.good, "{end}: {}", report.text);
        assert_eq!(world.seen(), before, "{end}: {}", report.text);
    }
    world.check_data();
}

/// "Nothing" and "deleted" have a controller delete what other nodes keep of a volume.
#[test]
fn a_damaged_node_does_not_say_that_it_has_nothing() {
    let world = World::new();
    let text = String::from_utf8(world.rig.kernel.read_file(STATE).expect("read")).expect("text");
    let lost = &world.vols[7].id;
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains(lost.as_str())).collect();
    world.rig.kernel.kill();
    let os = world.rig.kernel.restart();
    replace_state(&world, (lines.join("\n") + "\n").as_bytes());
    let driver = world.rig.driver_on(os);
    let found = |id: &VolumeId| driver.find_volume(id).map(|found| found.generation);
    assert!(matches!(found(&lost.parse().expect("an id")), Err(Error::Unavailable(_))));
    let never = VolumeId::of_name(&NodeKey::of(NODE), "never");
    assert!(matches!(found(&never), Err(Error::Unavailable(_))), "its record may be what is lost");
    assert_eq!(found(&world.vols[0].id.parse().expect("an id")).expect("a volume"), Some(0));
}

/// Kubelet ends a pod whose volume is not available.
#[test]
fn a_pod_of_an_unavailable_volume_can_end() {
    let mut world = World::new();
    let text = String::from_utf8(world.rig.kernel.read_file(STATE).expect("read")).expect("text");
    for vol in &world.vols.clone()[..5] {
        let lost: Vec<&str> = text.lines().filter(|line| !line.contains(&vol.id)).collect();
        world.rig.kernel.kill();
        world.rig.kernel.restart();
        replace_state(&world, (lost.join("\n") + "\n").as_bytes());
        world.rig.start_again();
        world.rig.fails(Code::Unavailable, world.rig.stage_request(vol));
        world.rig.fails(Code::Unavailable, csi::ControllerGetVolumeRequest { volume_id: vol.id.clone() });
        world.rig.rest(vol);
        world.run(Verb::Repair, Wishes::default());
        world.rig.stage(vol);
        world.rig.publish(vol, "pod");
        assert_eq!(world.rig.read(vol, 4), "text");
    }
}
