//! Claims of the drivers that docs/migrate.md names, with PersistentVolumes as these drivers make them.

use super::*;

/// The finalizers of a PersistentVolume that csi-provisioner has made and csi-attacher has attached once.
const FINALIZERS: [&str; 3] = [
    "external-provisioner.volume.kubernetes.io/finalizer",
    "kubernetes.io/pv-protection",
    "external-attacher/hostpath-csi-k8s-io",
];

/// A PersistentVolume of csi-driver-host-path.
fn of_hostpath(volume: &mut Value) {
    of_csi(volume, "hostpath.csi.k8s.io", "topology.hostpath.csi/node");
    volume["spec"]["csi"]["volumeHandle"] = json!("692cb36c-ec74-11f1-b961-6ef829ae2668");
    volume["metadata"]["finalizers"] = json!(FINALIZERS);
}

/// A PersistentVolume of OpenEBS rawfile, whose volumes have the names of their PersistentVolumes.
fn of_rawfile(volume: &mut Value) {
    of_csi(volume, "rawfile.csi.openebs.io", "hostname");
    let csi = &mut volume["spec"]["csi"];
    csi["volumeHandle"] = json!(VOLUME);
    csi["fsType"] = json!("xfs");
    csi["volumeAttributes"]["openebs.io/rawfile/format-options"] = json!("");
}

fn of_csi(volume: &mut Value, driver: &str, key: &str) {
    let spec = volume["spec"].as_object_mut().unwrap();
    spec.remove("hostPath");
    let attributes =
        json!({"storage.kubernetes.io/csiProvisionerIdentity": format!("1764475200000-1-{driver}-node-1")});
    spec.insert("csi".to_owned(), json!({"driver": driver, "volumeAttributes": attributes}));
    spec.insert("nodeAffinity".to_owned(), affinity(&[(key, "node-1")]));
    let prefix = "volume.kubernetes.io/provisioner-deletion-secret";
    volume["metadata"]["annotations"] = json!({"pv.kubernetes.io/provisioned-by": driver,
        (format!("{prefix}-name")): "", (format!("{prefix}-namespace")): ""});
}

/// A PersistentVolume of the hostpath provisioner of OpenEBS.
fn of_openebs(volume: &mut Value, labels: &[(&str, &str)]) {
    let spec = volume["spec"].as_object_mut().unwrap();
    spec.remove("hostPath");
    spec.insert("local".to_owned(), json!({"path": format!("/var/openebs/local/{VOLUME}"), "fsType": ""}));
    spec.insert("nodeAffinity".to_owned(), affinity(labels));
    let annotations = json!({"pv.kubernetes.io/provisioned-by": "openebs.io/local"});
    volume["metadata"]["annotations"] = annotations;
    volume["metadata"]["labels"] = json!({"openebs.io/cas-type": "local-hostpath"});
}

fn affinity(labels: &[(&str, &str)]) -> Value {
    let expression = |(key, value): &(&str, &str)| json!({"key": key, "operator": "In", "values": [value]});
    let expressions: Vec<Value> = labels.iter().map(expression).collect();
    json!({"required": {"nodeSelectorTerms": [{"matchExpressions": expressions}]}})
}

/// A cluster whose claim has such a PersistentVolume.
fn world_of(change: impl FnOnce(&mut Value)) -> World {
    let world = world();
    world.server.with(|k| k.change("persistentvolumes", VOLUME, change));
    world
}

/// Makes a PersistentVolume that of another driver.
type Change = fn(&mut Value);

#[test]
fn a_claim_of_each_driver_is_adopted() {
    let at_hostpath = "/var/lib/csi-hostpath-data/692cb36c-ec74-11f1-b961-6ef829ae2668";
    let of_openebs: Change = |volume| of_openebs(volume, &[("kubernetes.io/hostname", "host-1")]);
    let of_block: Change = |volume| {
        of_hostpath(volume);
        volume["spec"]["volumeMode"] = json!("Block");
    };
    let drivers = [
        (of_hostpath as Change, "", at_hostpath.to_owned(), [true, false], ""),
        (of_block, "", at_hostpath.to_owned(), [false, true], ""),
        (
            of_rawfile,
            " --source-root /mnt/nvme",
            format!("/mnt/nvme/{VOLUME}/disk.img"),
            [false, false],
            "xfs",
        ),
        (of_openebs, "", format!("/var/openebs/local/{VOLUME}"), [true, false], ""),
    ];
    for (change, flags, path, kind, fs_type) in drivers {
        let (world, nodes) = (world_of(change), Makers::default());
        let uid = claim(&world)["metadata"]["uid"].clone();
        with_kubernetes(&world, async {
            let (outcome, _, err) = adopt(&world, &nodes, &format!("{YES}{flags}")).await;
            assert_eq!(outcome, Outcome::Done, "{path}: {err}");
            is_adopted(&world, &uid);
        });
        let order = nodes.last();
        assert_eq!((order.path.as_str(), order.node_id.as_str()), (path.as_str(), "node-1"));
        assert_eq!(([order.is_directory, order.block], order.fs_type.as_str()), (kind, fs_type), "{path}");
        let adopted = volume(&world).unwrap();
        let finalizers = adopted["metadata"]["finalizers"].to_string();
        assert!(!finalizers.contains("external-"), "{path}: {finalizers}");
        let annotations = adopted["metadata"]["annotations"].to_string();
        assert!(!annotations.contains("deletion-secret"), "{path}: {annotations}");
    }
}

#[test]
fn a_rawfile_volume_needs_the_place_of_its_pool() {
    let (world, nodes) = (world_of(of_rawfile), Makers::default());
    let before = volume(&world);
    with_kubernetes(&world, async {
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!(outcome, Outcome::Failed, "which of two images is the volume is not known: {err}");
        assert!(err.contains("--source-root") && err.contains("/var/csi/rawfile"), "{err}");
        assert_eq!((volume(&world), nodes.volumes(), recorded(&world)), (before, 0, None));
    });
}

#[test]
fn openebs_labels_of_one_node_name_that_node() {
    let rack = [("openebs.io/rack", "r1"), ("openebs.io/slot", "4")];
    for (others, is_adopted) in [
        (json!({"openebs.io/rack": "r1"}), true),
        (json!({"openebs.io/rack": "r1", "openebs.io/slot": "4"}), false),
    ] {
        let (world, nodes) = (world_of(|volume| of_openebs(volume, &rack)), Makers::default());
        world.server.with(|k| {
            k.change("nodes", "node-1", |node| {
                node["metadata"]["labels"] = json!({"openebs.io/rack": "r1", "openebs.io/slot": "4"});
            });
            k.change("nodes", "node-2", |node| node["metadata"]["labels"] = others.clone());
        });
        with_kubernetes(&world, async {
            let (outcome, _, err) = adopt(&world, &nodes, YES).await;
            assert_eq!(outcome == Outcome::Done, is_adopted, "{err}");
            if is_adopted {
                assert_eq!(nodes.last().node_id, "node-1");
            } else {
                assert!(err.contains("by labels that 2 nodes have (openebs.io/rack=r1, "), "{err}");
            }
        });
    }
}

/// The place of a driver's volumes is not known: its chart may have another one, and its name may be another.
#[test]
fn a_path_named_by_a_volume_handle_is_left_alone() {
    for (driver, node, is_refused) in [
        ("rawfile.csi.openebs.io", "node-2", true),
        ("rawfile.of.my.chart", "node-2", true),
        ("rawfile.csi.openebs.io", "node-1", false),
        (DRIVER, "node-2", false),
    ] {
        let (world, nodes) = (world(), Makers::default());
        world.server.with(|k| {
            let mut spec = json!({"metadata": {"name": "pvc-9"}, "spec": {"capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"], "storageClassName": "rawfile"}});
            of_csi(&mut spec, driver, "hostname");
            spec["spec"]["nodeAffinity"] = affinity(&[("hostname", node)]);
            spec["spec"]["csi"]["volumeHandle"] = json!("pvc-9");
            k.create(key("persistentvolumes", "", "pvc-9"), spec);
        });
        let line = "hostloop adopt --image /mnt/nvme/pvc-9/disk.img --node node-2 --class directories --new-claim default/db --yes";
        with_kubernetes(&world, async {
            let (outcome, _, err) = adopt(&world, &nodes, line).await;
            assert_eq!(outcome == Outcome::Failed, is_refused, "{driver} on {node}: {err}");
            if is_refused {
                assert!(err.contains("PersistentVolume pvc-9 of driver"), "{err}");
                assert_eq!(nodes.volumes(), 0);
            }
        });
    }
}

/// If a repeated command looked in another directory, it would find no volume, and restore a PersistentVolume without data.
#[test]
fn an_adoption_goes_on_only_with_its_source_root() {
    let give_up = "hostloop adopt --claim default/shop-data --give-up --yes";
    for (first, again, is_refused) in [
        (" --source-root /data", format!("{YES} --source-root /other"), true),
        (" --source-root /data", format!("{give_up} --source-root /other"), true),
        ("", format!("{YES} --source-root /data"), true),
        (" --source-root /data", YES.to_owned(), false),
        (" --source-root /data", format!("{YES} --source-root /data/"), false),
    ] {
        let (world, nodes) = (world_of(of_hostpath), Makers::default());
        let uid = claim(&world)["metadata"]["uid"].clone();
        nodes.refuse(&[NotAdopted::Refused("the disk is full".to_owned())], true);
        with_kubernetes(&world, async {
            assert_eq!(adopt(&world, &nodes, &format!("{YES}{first}")).await.0, Outcome::Failed);
            let (outcome, _, err) = adopt(&world, &nodes, &again).await;
            assert_eq!(outcome == Outcome::Failed, is_refused, "{first}, then {again}: {err}");
            if is_refused {
                assert!(err.contains("--source-root"), "{err}");
                assert_eq!((volume(&world), nodes.volumes()), (None, 1), "{first}, then {again}");
                let (outcome, _, err) = adopt(&world, &nodes, &format!("{YES}{first}")).await;
                assert_eq!(outcome, Outcome::Done, "{err}");
            }
            is_adopted(&world, &uid);
        });
    }
}

#[test]
fn a_given_up_claim_is_sought_in_its_source_root() {
    let (world, nodes) = (world_of(of_hostpath), Makers::default());
    nodes.refuse(&[NotAdopted::Refused("the disk is full".to_owned())], true);
    with_kubernetes(&world, async {
        assert_eq!(adopt(&world, &nodes, &format!("{YES} --source-root /data")).await.0, Outcome::Failed);
        let give_up = "hostloop adopt --claim default/shop-data --give-up --yes";
        let (outcome, _, err) = adopt(&world, &nodes, give_up).await;
        assert_eq!(outcome, Outcome::Failed, "the data are in a volume of hostloop: {err}");
        assert!(err.contains("has the data of /data/692cb36c"), "{err}");
        assert_eq!(volume(&world), None);
    });
}
