//! An adoption that a kill, a power cut or an error interrupts is finished by the repeated request.

use super::*;

/// After any kill or failure: one volume with the data, and nothing else.
fn check(rig: &Rig, request: &peer::AdoptVolumeRequest, (file, path): (&str, &str), what: &str) {
    let adopted = match settled(|| rig.call(request.clone())) {
        Ok(adopted) => adopted,
        Err(status) => panic!("{what}: {:?} {}", status.code(), status.message()),
    };
    assert_eq!(ids(rig), [adopted.volume_id.as_str()], "{what}");
    assert_eq!(read(rig, &adopted, file), CONTENT, "{what}");
    assert!(!rig.kernel.exists(path), "{what}");
    let is_left = adopted.way == "copy";
    assert_eq!(
        (rig.kernel.exists(format!("{path}.adopted-{}", adopted.volume_id)), is_left),
        (is_left, !adopted.left.is_empty()),
        "{what}"
    );
    for pool in [DATA, DIRECTORIES_DIR] {
        let others = |name: &String| !name.contains(&adopted.volume_id);
        let volumes: Vec<_> = rig.kernel.tree(format!("{pool}/volumes")).into_iter().filter(others).collect();
        assert_eq!(volumes, Vec::<String>::new(), "{what}");
    }
    settled(|| rig.call(used(&adopted).delete_request())).unwrap();
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new(), "{what}");
}

#[test]
fn an_adoption_is_finished_after_a_kill_at_any_step() {
    for (file, request, path) in sources() {
        let rig = prepared(&path);
        rig.ok(request.clone());
        let steps = rig.kernel.steps().len();
        assert!(steps > 5, "{steps}");
        for step in 1..=steps {
            for kill in [Kill::Before, Kill::Torn, Kill::After] {
                let what = format!("{path}, killed {kill:?} at step {step}");
                let mut rig = prepared(&path);
                rig.kernel.kill_at(step, kill);
                let _ = rig.call(request.clone());
                rig.start_again();
                check(&rig, &request, (file, &path), &what);
            }
        }
    }
}

#[test]
fn an_adoption_is_finished_after_a_power_cut() {
    for (file, request, path) in sources() {
        let steps = {
            let rig = prepared(&path);
            rig.ok(request.clone());
            rig.kernel.steps().len()
        };
        for step in 1..=steps {
            let what = format!("{path}, power cut after step {step}");
            let mut rig = prepared(&path);
            rig.kernel.kill_at(step, Kill::After);
            let _ = rig.call(request.clone());
            rig.power_cut();
            if path == format!("{NEAR_DIRECTORIES}/pvc-1")
                && rig.kernel.exists(&path)
                && !ids(&rig).is_empty()
            {
                // A directory with two names, which no real filesystem has.
                rig.fails(Code::FailedPrecondition, request.clone());
                continue;
            }
            check(&rig, &request, (file, &path), &what);
        }
        let mut rig = prepared(&path);
        rig.ok(request.clone());
        rig.power_cut();
        check(&rig, &request, (file, &path), "acknowledged");
    }
}

#[test]
fn an_image_that_is_not_adopted_keeps_its_size() {
    let path = format!("{NEAR}/disk.img");
    let rig = prepared(&path);
    rig.ok(image(&path));
    let (steps, mut kept) = (rig.kernel.steps().len(), 0);
    for step in 1..=steps {
        let rig = prepared(&path);
        rig.kernel.fail_at(step, nix::errno::Errno::EIO);
        let failed = rig.call(image(&path)).is_err();
        if let (true, Some(stat)) = (failed, rig.kernel.stat(&path)) {
            assert_eq!(stat.size, (64 << 20) + 512, "failed at step {step}");
            kept += 1;
        }
    }
    assert!(kept > 3, "{kept} of {steps}");
}

#[test]
fn an_adoption_that_fails_anywhere_can_be_repeated() {
    for (file, request, path) in sources() {
        let rig = prepared(&path);
        rig.ok(request.clone());
        for step in 1..=rig.kernel.steps().len() {
            let what = format!("{path}, failed at step {step}");
            let rig = prepared(&path);
            rig.kernel.fail_at(step, nix::errno::Errno::EIO);
            let _ = rig.call(request.clone());
            rig.kernel.clear_plans();
            check(&rig, &request, (file, &path), &what);
        }
    }
}

/// The first request ended with an error, and its caller may have gone on with the source.
#[test]
fn a_repeated_adoption_removes_no_source() {
    let mut repeated = 0;
    for (_, request, path) in sources() {
        let request = peer::AdoptVolumeRequest { remove_source: true, ..request };
        let rig = prepared(&path);
        rig.ok(request.clone());
        for step in 1..=rig.kernel.steps().len() {
            let rig = prepared(&path);
            rig.kernel.fail_at(step, nix::errno::Errno::EIO);
            let failed = rig.call(request.clone()).is_err();
            rig.kernel.clear_plans();
            let made = settled(|| rig.call(csi::ListVolumesRequest::default())).unwrap().entries.len();
            if failed && made == 1 && rig.kernel.exists(&path) {
                let adopted = settled(|| rig.call(request.clone())).unwrap();
                let left = format!("{path}.adopted-{}", adopted.volume_id);
                assert!(rig.kernel.exists(&left) && adopted.left == left, "{path}, failed at step {step}");
                repeated += 1;
            }
        }
    }
    assert!(repeated > 0);
}
