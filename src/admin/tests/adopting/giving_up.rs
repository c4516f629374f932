//! `hostloop adopt --give-up`: a claim gets back what it had.

use super::*;

const GIVE_UP: &str = "hostloop adopt --claim default/shop-data --give-up --yes";

/// The request with this number, counted from 0, is lost.
fn lose(world: &World, lost: i32) {
    let left = Arc::new(Mutex::new(lost));
    world.refuse(move |_| {
        let mut left = left.lock().unwrap();
        *left -= 1;
        (*left == -1).then_some(500)
    });
}

#[test]
fn an_adoption_is_given_up_after_any_request() {
    let mut given_up = 0;
    for (lost, again) in
        (0..24).flat_map(|lost| (0..12).step_by(3).map(move |again| (lost, again + lost % 3)))
    {
        let (world, nodes) = (world(), Makers::default());
        let before = volume(&world).unwrap();
        nodes.refuse(&[NotAdopted::Refused("no room".to_owned())], false);
        lose(&world, lost);
        with_kubernetes(&world, async {
            assert_eq!(adopt(&world, &nodes, YES).await.0, Outcome::Failed);
            if recorded(&world).is_some() {
                given_up += 1;
                let (outcome, _, err) = adopt(&world, &nodes, GIVE_UP.trim_end_matches(" --yes")).await;
                assert!(outcome == Outcome::Done && err.contains("would get PersistentVolume"), "{err}");
                lose(&world, again);
                let first = adopt(&world, &nodes, GIVE_UP).await.0;
                lose(&world, i32::MAX);
                if first != Outcome::Done && recorded(&world).is_some() {
                    let (outcome, _, err) = adopt(&world, &nodes, GIVE_UP).await;
                    assert_eq!(outcome, Outcome::Done, "requests {lost} and {again}: {err}");
                }
            }
            lose(&world, i32::MAX);
            is_back(&world, &before);
            let (outcome, _, err) = adopt(&world, &nodes, GIVE_UP).await;
            assert!(outcome == Outcome::Failed && err.contains("no adoption"), "{err}");
        });
    }
    assert!(given_up > 10, "{given_up}");
}

/// The claim is bound to what it had.
fn is_back(world: &World, before: &Value) {
    let after = volume(world).unwrap();
    assert_eq!(claim(world)["status"]["phase"], "Bound");
    assert_eq!(after["metadata"]["deletionTimestamp"], Value::Null);
    is_clean(world);
    for field in ["hostPath", "nodeAffinity", "persistentVolumeReclaimPolicy", "capacity", "claimRef"] {
        assert_eq!(after["spec"][field], before["spec"][field], "{field}");
    }
}

#[test]
fn a_renamed_source_cannot_be_given_back() {
    let (world, nodes) = (world(), Makers::default());
    let uid = claim(&world)["metadata"]["uid"].clone();
    nodes.refuse(&[NotAdopted::Refused("the disk is full".to_owned())], true);
    with_kubernetes(&world, async {
        for (left, says) in [
            (None, "volume vol-1 of node node-1 has the data of /opt/lp/pvc-1:"),
            (Some("/opt/lp/pvc-1.adopted-vol-1"), "which was renamed to /opt/lp/pvc-1.adopted-vol-1"),
        ] {
            nodes.0.lock().unwrap().left = left.map(str::to_owned);
            if recorded(&world).is_none() {
                assert_eq!(adopt(&world, &nodes, YES).await.0, Outcome::Failed);
            }
            let (outcome, _, err) = adopt(&world, &nodes, GIVE_UP).await;
            assert!(outcome == Outcome::Failed && err.contains(says), "{err}");
            assert!(err.contains("without --give-up"), "{err}");
            assert_eq!(volume(&world), None, "pods with it would find an empty directory");
        }
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
        is_adopted(&world, &uid);
    });
}

/// A program has written to it after the copy.
#[test]
fn a_copied_source_can_be_given_back() {
    let (world, nodes) = (world(), Makers::default());
    let before = volume(&world).unwrap();
    nodes.refuse(&[NotAdopted::Refused("it was written to".to_owned())], true);
    nodes.0.lock().unwrap().left = Some("/opt/lp/pvc-1".to_owned());
    with_kubernetes(&world, async {
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert!(outcome == Outcome::Failed && err.contains("(--give-up)"), "{err}");
        assert!(err.contains("has a copy of /opt/lp/pvc-1, which is in its place"), "{err}");
        let (outcome, _, err) = adopt(&world, &nodes, GIVE_UP).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
        assert!(err.contains("volume vol-1 of node node-1 has a copy"), "{err}");
        is_back(&world, &before);
    });
}

#[test]
fn a_silent_node_gives_nothing_back() {
    let (world, nodes) = (world(), Makers::default());
    nodes.refuse(&[NotAdopted::Refused("the disk is full".to_owned())], true);
    with_kubernetes(&world, async {
        assert_eq!(adopt(&world, &nodes, YES).await.0, Outcome::Failed);
        nodes.0.lock().unwrap().silent = true;
        let (outcome, _, err) = adopt(&world, &nodes, GIVE_UP).await;
        assert!(outcome == Outcome::Failed && err.contains("before node node-1 says where"), "{err}");
        assert!(volume(&world).is_none() && recorded(&world).is_some());
    });
}

/// Its disk is not mounted, or the directory was removed: pods would get an empty directory.
#[test]
fn a_source_that_is_not_seen_is_not_given_back() {
    let (world, nodes) = (world(), Makers::default());
    let before = volume(&world).unwrap();
    nodes.0.lock().unwrap().blind = true;
    with_kubernetes(&world, async {
        nodes.refuse(&[NotAdopted::Refused("no room".to_owned())], false);
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert!(
            outcome == Outcome::Failed && err.contains("no room. node node-1 has made no volume"),
            "{err}"
        );
        assert!(volume(&world).is_none() && recorded(&world).is_some(), "by itself");
        let (outcome, _, err) = adopt(&world, &nodes, GIVE_UP).await;
        assert!(outcome == Outcome::Failed && err.contains("does not see that it is there"), "{err}");
        assert!(volume(&world).is_none() && recorded(&world).is_some(), "with --give-up");
        nodes.0.lock().unwrap().blind = false;
        let (outcome, _, err) = adopt(&world, &nodes, GIVE_UP).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
        is_back(&world, &before);
    });
}

/// Another administrator waits for the node. Without this, the node would rename the source away from the PersistentVolume that is back.
#[test]
fn an_adoption_that_is_given_up_asks_no_more() {
    for asked in 1..5 {
        let (world, nodes) = (world(), Makers::default());
        let before = volume(&world).unwrap();
        nodes.refuse(&vec![NotAdopted::Working("3%".to_owned()); asked], false);
        with_kubernetes(&world, async {
            let give_up = async {
                sleep(Duration::from_secs(1)).await;
                adopt(&world, &nodes, GIVE_UP).await
            };
            let ((first, _, says), (second, _, err)) = tokio::join!(adopt(&world, &nodes, YES), give_up);
            assert_eq!((first, second), (Outcome::Failed, Outcome::Done), "{says} {err}");
            assert!(says.contains("another command gives the adoption up"), "{says}");
            assert_eq!(nodes.volumes(), 0, "after {asked} answers");
            is_back(&world, &before);
        });
    }
}

/// The other command has read the PersistentVolume, and is about to delete it.
#[test]
fn a_kept_volume_is_not_deleted_by_another_command() {
    let (world, nodes) = (world(), Makers::default());
    world.server.with(|k| {
        k.change("persistentvolumes", VOLUME, |volume| {
            volume["spec"]["persistentVolumeReclaimPolicy"] = json!("Retain");
        });
    });
    let before = volume(&world).unwrap();
    let (other, done) = (world.without_rule(), Arc::new(Mutex::new(None)));
    let (given_up, of) = (Arc::clone(&done), nodes.clone());
    world.refuse(move |request| {
        let mut given_up = given_up.lock().unwrap();
        if request.starts_with("DELETE") && request.ends_with(VOLUME) && given_up.is_none() {
            let (other, nodes) = (other.clone(), of.clone());
            let run = move || on_a_clock_of_its_own(adopt(&other, &nodes, GIVE_UP));
            *given_up = Some(std::thread::spawn(run).join().unwrap());
        }
        None
    });
    with_kubernetes(&world, async {
        let (outcome, _, says) = adopt(&world, &nodes, YES).await;
        let given_up = done.lock().unwrap().take();
        let (second, _, err) = given_up.expect("the first command deletes the PersistentVolume");
        assert_eq!((outcome, second), (Outcome::Failed, Outcome::Done), "{says} {err}");
        assert!(says.contains("has given the adoption up"), "{says}");
        is_back(&world, &before);
        assert_eq!(volume(&world).unwrap()["metadata"]["uid"], before["metadata"]["uid"]);
        assert_eq!(volume(&world).unwrap()["metadata"]["annotations"], before["metadata"]["annotations"]);
    });
}
