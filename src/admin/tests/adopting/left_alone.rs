//! Claims and paths that others use are not adopted.

use super::*;

#[test]
fn a_claim_in_use_is_left_alone() {
    let (world, nodes) = (world(), Makers::default());
    let before = volume(&world);
    world.server.with(|k| {
        let volumes = json!([{"name": "v", "persistentVolumeClaim": {"claimName": CLAIM}}]);
        let pod = json!({"metadata": {"name": "db-0", "namespace": NAMESPACE}, "spec": {"containers": [], "volumes": volumes},
            "status": {"phase": "Running"}});
        k.create(key("pods", NAMESPACE, "db-0"), pod)
    });
    with_kubernetes(&world, async {
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("is used by db-0"), "{err}");
        assert_eq!((volume(&world), nodes.volumes()), (before, 0));
    });
}

/// Creates a PersistentVolume of a directory on the node with this host name.
fn add_volume(world: &World, name: &str, path: &str, host: &str) {
    let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
        [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}]}});
    let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "static",
        "nodeAffinity": affinity, "local": {"path": path}});
    world.server.with(|k| {
        k.create(key("persistentvolumes", "", name), json!({"metadata": {"name": name}, "spec": spec}))
    });
}

/// Creates a pod that mounts a directory of a node.
fn add_pod(world: &World, name: &str, path: &str, (node, phase): (&str, &str)) {
    let volumes = json!([{"name": "v", "hostPath": {"path": path}}]);
    let pod = json!({"metadata": {"name": name, "namespace": "other"},
        "spec": {"containers": [], "volumes": volumes, "nodeName": node}, "status": {"phase": phase}});
    world.server.with(|k| k.create(key("pods", "other", name), pod));
}

#[test]
fn a_path_with_another_volume_is_left_alone() {
    for (path, host, is_refused) in [
        ("/opt/lp/pvc-1", "host-1", true),
        ("/opt/lp/pvc-1/", "host-1", true),
        ("/opt/lp/pvc-1/sub", "host-1", true),
        ("/opt/lp/pvc-1", "host-2", false),
        ("/opt/lp", "host-1", false),
        ("/opt/lp/pvc-10", "host-1", false),
    ] {
        let (world, nodes) = (world(), Makers::default());
        let before = volume(&world);
        add_volume(&world, "pv-static", path, host);
        with_kubernetes(&world, async {
            let (outcome, _, err) = adopt(&world, &nodes, YES).await;
            assert_eq!(outcome == Outcome::Failed, is_refused, "{path} of {host}: {err}");
            if is_refused {
                assert!(err.contains("PersistentVolume pv-static has /opt/lp/pvc-1 of node node-1"), "{err}");
                assert_eq!((volume(&world), nodes.volumes(), recorded(&world)), (before, 0, None));
            }
        });
    }
}

#[test]
fn a_path_that_a_pod_mounts_is_left_alone() {
    for (path, node, phase, is_refused) in [
        ("/opt/lp/pvc-1", "node-1", "Running", true),
        ("/opt/lp/pvc-1/sub/", "node-1", "Pending", true),
        ("/opt/lp/pvc-1", "node-1", "Succeeded", false),
        ("/opt/lp/pvc-1", "node-2", "Running", false),
        ("/opt/lp", "node-1", "Running", false),
    ] {
        let (world, nodes) = (world(), Makers::default());
        let before = volume(&world);
        add_pod(&world, "backup-0", path, (node, phase));
        with_kubernetes(&world, async {
            let (outcome, _, err) = adopt(&world, &nodes, YES).await;
            assert_eq!(outcome == Outcome::Failed, is_refused, "{path} on {node}, {phase}: {err}");
            if is_refused {
                assert!(err.contains("pod other/backup-0 mounts /opt/lp/pvc-1 of node node-1"), "{err}");
                assert_eq!((volume(&world), nodes.volumes(), recorded(&world)), (before, 0, None));
            }
        });
    }
}

#[test]
fn a_directory_that_a_pod_mounts_is_left_alone() {
    let (world, nodes) = (world(), Makers::default());
    add_pod(&world, "backup-0", "/old/db", ("node-2", "Running"));
    let line = "hostloop adopt --directory /old/db --size 2Gi --node node-2 --class directories --new-claim default/db --yes";
    with_kubernetes(&world, async {
        let (outcome, _, err) = adopt(&world, &nodes, line).await;
        assert_eq!((outcome, nodes.volumes()), (Outcome::Failed, 0));
        assert!(err.contains("pod other/backup-0 mounts /old/db"), "{err}");
    });
}

/// A cluster can have more objects than an API server answers at once.
#[test]
fn other_users_are_read_page_by_page() {
    let (world, nodes) = (world(), Makers::default());
    for number in 0..1200 {
        let path = if number == 1100 { "/opt/lp/pvc-1".to_owned() } else { format!("/data/{number}") };
        add_volume(&world, &format!("pv-{number:04}"), &path, "host-1");
        add_pod(&world, &format!("pod-{number:04}"), &path, ("node-1", "Running"));
    }
    // Without the namespace, the command looks for a controller by its label, which this API server does not select by.
    let line = format!("{YES} --driver-namespace {DRIVERS}");
    with_kubernetes(&world, async {
        let (outcome, _, err) = adopt(&world, &nodes, &line).await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("PersistentVolume pv-1100 has /opt/lp/pvc-1"), "{err}");
        world.server.with(|k| k.remove(&key("persistentvolumes", "", "pv-1100")));
        let (outcome, _, err) = adopt(&world, &nodes, &line).await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("pod other/pod-1100 mounts /opt/lp/pvc-1"), "{err}");
    });
    let longest = world.server.with(|k| k.longest_list);
    assert!((1..=500).contains(&longest), "{longest} objects in one answer");
}
