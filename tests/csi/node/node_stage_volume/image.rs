//! What staging does to an image: a growth that was put off, and the blocks that a thick one has lost.

use super::*;

/// A volume with data whose image was made larger while it was not staged.
fn larger(rig: &Rig) -> (Vol, String) {
    let vol = rig.volume("v", mount());
    rig.stage(&vol);
    let file = format!("{}/file", vol.staging());
    rig.kernel.write_file(&file, b"data").expect("write");
    rig.unstage(&vol);
    rig.ok(vol.expand_request(2 * SIZE, 0));
    rig.kernel.set_sys_resource(false);
    (vol, file)
}

fn is_larger(rig: &Rig, vol: &Vol, file: &str) {
    assert_eq!(rig.kernel.read_file(file).expect("read"), b"data");
    let shown = rig.kernel.os().files.space(vol.staging().as_ref()).expect("space").total;
    assert!(shown > SIZE as u64, "{shown}");
    let left = rig.kernel.tree(rig.directory(vol));
    assert!(left.iter().all(|path| !path.ends_with(".growing")), "{left:?}");
}

/// Without CAP_SYS_RESOURCE it grows before it is mounted, and whatever cuts that off, its data are there.
#[test]
fn offline_growth_survives_an_end_at_any_step() {
    for kill in [Kill::Before, Kill::Torn, Kill::After] {
        for step in 1.. {
            let mut rig = Rig::new();
            let (vol, file) = larger(&rig);
            let request = rig.stage_request(&vol);
            rig.kernel.clear_steps();
            rig.kernel.kill_at(step, kill);
            let staged = rig.call(request);
            rig.kernel.clear_plans();
            if staged.is_ok() {
                let steps = rig.kernel.steps();
                assert!(steps.iter().any(|step| step.name == "grow_unmounted"), "{steps:?}");
                is_larger(&rig, &vol, &file);
                break;
            }
            rig.restart();
            rig.stage(&vol);
            is_larger(&rig, &vol, &file);
        }
    }
}

#[test]
fn a_growth_that_fails_leaves_the_volume_as_it_was() {
    for step in 1.. {
        let rig = Rig::new();
        let (vol, file) = larger(&rig);
        let request = rig.stage_request(&vol);
        rig.kernel.fail_at(step, Errno::ENOSPC);
        let staged = rig.call(request);
        rig.kernel.clear_plans();
        rig.stage(&vol);
        is_larger(&rig, &vol, &file);
        if staged.is_ok() {
            break;
        }
    }
}

#[test]
fn a_thick_volume_gets_its_trimmed_blocks_back() {
    for (provisioning, expected) in [("thick", SIZE as u64), ("thin", 0)] {
        let rig = Rig::new();
        let request = csi::CreateVolumeRequest {
            parameters: map(&[("provisioning", provisioning)]),
            ..create("v", block())
        };
        let vol = rig.made(request);
        let os = rig.kernel.os();
        for size in [0, SIZE as u64] {
            os.images.set_size(vol.image().as_ref(), size).unwrap();
        }
        assert_eq!(rig.image(&vol).allocated, 0, "a hole");
        rig.stage(&vol);
        assert_eq!(rig.image(&vol).allocated, expected, "{provisioning}");
    }
}
