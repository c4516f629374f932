//! The namespace of a claim is deleted while its volume moves. Its claim cannot be made again: nobody can use the volume any
//! more, and what Kubernetes does with the volume of a deleted claim is done with it and with its copy.

use super::*;

/// Deletes the namespace after so many steps, and sees what is left. Between two steps, Kubernetes does `pace` ticks.
fn left_after(world: World, steps: usize, pace: usize, gives_up: bool) -> Shared {
    let shared = world.shared();
    run(async {
        let mover = mover(&shared, 0);
        for at in 0..steps + 40 {
            {
                let mut world = shared.lock().unwrap();
                if at == steps {
                    world.delete_namespace();
                } else if gives_up {
                    Administrator::GivesUp(Phase::Switching).act(&mut world);
                }
            }
            step(&mover, &shared).await;
            let mut world = shared.lock().unwrap();
            (0..pace).for_each(|_| world.tick());
            assert_eq!(world.wrong, Vec::<String>::new(), "{:#?}", world.calls);
        }
    });
    shared
}

#[test]
fn a_deleted_namespace_takes_the_volume_and_its_copy() {
    for gives_up in [false, true] {
        for steps in 0..30 {
            for pace in [1, 4] {
                let world = World::new(Administrator::IsInAHurry.wish());
                let shared = left_after(world, steps, pace, gives_up);
                let world = shared.lock().unwrap();
                let objects: Vec<&Value> = world.all("persistentvolumes").collect();
                assert!(
                    world.volumes.is_empty() && objects.is_empty(),
                    "deleted after {steps} steps, {pace} ticks each: {:?}\n{objects:#?}\n{:#?}",
                    world.volumes,
                    world.calls
                );
            }
        }
    }
}

/// A class that keeps volumes keeps this one, but one of the two is enough.
#[test]
fn a_retained_volume_outlives_its_namespace() {
    for steps in 0..30 {
        let mut world = World::new(Administrator::IsInAHurry.wish());
        world.change("persistentvolumes", "pvc-1", |volume| {
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        });
        let shared = left_after(world, steps, 1, false);
        let world = shared.lock().unwrap();
        let objects: Vec<&Value> = world.all("persistentvolumes").collect();
        let [volume] = objects.as_slice() else { panic!("after {steps} steps: {objects:#?}") };
        assert_eq!(volume["spec"]["persistentVolumeReclaimPolicy"], "Retain", "after {steps} steps");
        assert_eq!(volume["metadata"]["labels"][MOVING], Value::Null, "after {steps} steps: {volume:#}");
        assert!(!volume["spec"]["claimRef"]["uid"].is_null(), "no claim may take it: {volume:#}");
        let handle = volume["spec"]["csi"]["volumeHandle"].as_str().unwrap();
        assert_eq!(world.volumes.keys().collect::<Vec<_>>(), [handle], "after {steps} steps");
    }
}
