//! CreateVolume from a volume: one that may be written to meanwhile.

use hostloop::wire::csi;
use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

fn cloned(name: &str, vol: &Vol, parameters: &[(&str, &str)]) -> csi::CreateVolumeRequest {
    copy(name, from_volume(&vol.id), vol.capability.clone(), parameters)
}

fn volumes(rig: &Rig) -> usize {
    rig.ok(csi::ListVolumesRequest::default()).entries.len()
}

#[test]
fn a_filesystem_in_use_is_frozen_while_it_is_copied() {
    for (pool, cut_by) in [("default", "copy_range"), ("fast", "reflink")] {
        let rig = both_pools();
        let class = [("pool", pool)];
        let request = csi::CreateVolumeRequest { parameters: map(&class), ..create("v", mount()) };
        let (vol, target) = rig.in_use(request);
        rig.write(&vol, "text");
        rig.steps();
        let made = rig.made(cloned("c", &vol, &class));
        let steps = rig.steps();
        let at =
            |name| steps.iter().position(|step| *step == name).unwrap_or_else(|| panic!("{name}: {steps:?}"));
        assert!(at("freeze") < at(cut_by) && at(cut_by) < at("thaw"), "{steps:?}");
        assert_eq!(rig.kernel.frozen(), Vec::<std::path::PathBuf>::new());
        rig.kernel.write_file(format!("{target}/file"), b"more").expect("writing goes on");
        assert_eq!(rig.content(&made, 4), "text");
        rig.made(cloned("as it is", &vol, &[class[0], AS_IT_IS[0]]));
        assert!(!rig.steps().contains(&"freeze"));
    }
}

#[test]
fn a_clone_without_a_freeze_needs_freeze_false() {
    let rig = both_pools();
    let [fast, directory] = [("pool", "fast"), ("backend", "directory")];
    let [plain, shared] = ["directories", "fast-directories"].map(|pool| ("pool", pool));
    let classes = [
        ("device", block(), vec![], false),
        ("shared device", block(), vec![fast], true),
        ("directory", mount(), vec![plain, directory], false),
        ("shared directory", mount(), vec![shared, directory], false),
    ];
    for (name, capability, class, possible) in &classes {
        let capability = capability.clone();
        let request = csi::CreateVolumeRequest { parameters: map(class), ..create(name, capability) };
        let (vol, _) = rig.in_use(request);
        rig.write(&vol, "text");
        let before = volumes(&rig);
        let request = cloned(&format!("{name} cloned"), &vol, class);
        match possible {
            true => drop(rig.ok(request)),
            false => {
                let message = rig.fails(Code::FailedPrecondition, request);
                assert!(message.contains("freeze: \"false\""), "{message}");
                assert_eq!(volumes(&rig), before);
            }
        }
        let made =
            rig.made(cloned(&format!("{name} as it is"), &vol, &[class.as_slice(), &AS_IT_IS].concat()));
        assert_eq!(rig.content(&made, 4), "text");
        rig.rest(&vol);
        let made = rig.made(cloned(&format!("{name} at rest"), &vol, class));
        assert_eq!(rig.content(&made, 4), "text");
    }
}

#[test]
fn a_freeze_that_does_not_hold_leaves_nothing() {
    let rig = Rig::new();
    let (vol, target) = rig.in_use(create("v", mount()));
    rig.write(&vol, "text");
    rig.kernel.set_freezes_expire(true);
    let message = rig.fails(Code::FailedPrecondition, cloned("c", &vol, &[("freezeTimeout", "100ms")]));
    assert!(message.contains("freezeTimeout"), "{message}");
    let of_one = ["", "/disk.img", "/formatted", "/volume.json"]
        .map(|file| format!("{DATA}/volumes/{}{file}", vol.id));
    assert_eq!((volumes(&rig), rig.kernel.tree(format!("{DATA}/volumes"))), (1, of_one.to_vec()));
    rig.kernel.write_file(format!("{target}/file"), b"more").expect("writing goes on");
    rig.kernel.freeze_foreign(&target).expect("fsfreeze");
    rig.kernel.set_freezes_expire(false);
    rig.ok(cloned("c", &vol, &[]));
    assert_eq!((volumes(&rig), rig.kernel.frozen().is_empty()), (2, false), "as the other program left it");
}

#[test]
fn a_volume_does_not_record_how_it_was_copied() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let made = rig.made(cloned("c", &vol, &AS_IT_IS));
    assert_eq!(rig.ok(cloned("c", &vol, &[])).volume.as_ref(), Some(&made.info));
    assert_eq!(rig.ok(cloned("c", &vol, &[("freezeTimeout", "1s")])).volume.as_ref(), Some(&made.info));
}

#[test]
fn the_source_goes_and_the_clone_stays() {
    let rig = both_pools();
    for pool in ["default", "fast"] {
        let class = [("pool", pool)];
        let request = csi::CreateVolumeRequest { parameters: map(&class), ..create(pool, mount()) };
        let (vol, _) = rig.in_use(request);
        rig.write(&vol, "text");
        let made = rig.made(cloned(&format!("{pool} cloned"), &vol, &class));
        rig.rest(&vol);
        rig.ok(vol.delete_request());
        assert_eq!(rig.content(&made, 4), "text");
        rig.fails(Code::NotFound, cloned("another", &vol, &class));
    }
}
