//! `hostloop adopt` against an API server in memory and nodes that make volumes of paths.

mod drivers;
mod giving_up;
mod left_alone;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hostloop_fake_kubernetes::{NAMESPACE, key};

use super::*;
use crate::admin::adopt::{Nodes, Session};
use crate::admin::api::adopt::claim::TOUCHED;
use crate::admin::api::adopt::record;
use crate::cluster::details::NotAdopted;
use crate::model::{Adoption, AdoptionOrder};

const CLAIM: &str = "shop-data";
const VOLUME: &str = "pvc-local";

/// Nodes with paths that become volumes.
#[derive(Clone, Default)]
struct Makers(Arc<Mutex<Made>>);

#[derive(Default)]
struct Made {
    /// Volume ids by path.
    volumes: BTreeMap<String, String>,
    orders: Vec<AdoptionOrder>,
    /// Answers to real orders, the last one first.
    refusals: Vec<NotAdopted>,
    /// The volume is made nevertheless.
    late: bool,
    /// Where the sources of volumes are.
    left: Option<String>,
    /// The node does not answer.
    silent: bool,
    /// The node sees no source.
    blind: bool,
}

impl Nodes for Makers {
    async fn adopt(&self, order: &AdoptionOrder) -> Result<Adoption, NotAdopted> {
        let mut made = self.0.lock().unwrap();
        made.orders.push(order.clone());
        if made.silent {
            return Err(NotAdopted::Refused("the node does not answer".to_owned()));
        }
        let is_real = !order.dry_run && !order.look;
        let refusal = if is_real { made.refusals.pop() } else { None };
        if is_real && (refusal.is_none() || made.late) {
            made.volumes.insert(order.path.clone(), "vol-1".to_owned());
        }
        let is_made = made.volumes.contains_key(&order.path);
        match refusal {
            Some(refusal) => Err(refusal),
            None => Ok(Adoption {
                volume_id: "vol-1".to_owned(),
                capacity_bytes: order.size_bytes.max(4096),
                volume_context: BTreeMap::from([("backend".to_owned(), "directory".to_owned())]),
                node_id: order.node_id.clone(),
                driver_name: DRIVER.to_owned(),
                way: "rename".to_owned(),
                made: is_made,
                left: match order.look && !is_made && !made.blind {
                    true => Some(order.path.clone()),
                    false => made.left.clone(),
                },
                ..Adoption::default()
            }),
        }
    }
}

impl Makers {
    fn refuse(&self, refusals: &[NotAdopted], late: bool) {
        let mut made = self.0.lock().unwrap();
        (made.refusals, made.late) = (refusals.iter().rev().cloned().collect(), late);
    }

    fn volumes(&self) -> usize {
        self.0.lock().unwrap().volumes.len()
    }

    fn last(&self) -> AdoptionOrder {
        self.0.lock().unwrap().orders.last().cloned().unwrap()
    }
}

/// A cluster with a claim of local-path-provisioner on a node whose name is not its host name.
fn world() -> World {
    let world = World::of(0, json!({}));
    world.server.with(|kubernetes| {
        let labels = json!({"kubernetes.io/hostname": "host-1"});
        kubernetes.change("nodes", "node-1", |node| node["metadata"]["labels"] = labels);
        let labels = json!({"hostloop.csi.dev/controller": DRIVER});
        let controller = json!({"metadata": {"name": "controller-0", "namespace": DRIVERS, "labels": labels},
            "spec": {"containers": []}, "status": {"phase": "Running"}});
        kubernetes.create(key("pods", DRIVERS, "controller-0"), controller);
        let class = json!({"metadata": {"name": "directories"}, "provisioner": DRIVER,
            "parameters": {"backend": "directory", "csi.storage.k8s.io/fstype": "ext4"}});
        kubernetes.create(key("storageclasses", "", "directories"), class);
        let spec = json!({"accessModes": ["ReadWriteOnce"], "storageClassName": "local-path", "volumeName": VOLUME,
            "resources": {"requests": {"storage": "1Gi"}}});
        let claim = json!({"metadata": {"name": CLAIM, "namespace": NAMESPACE}, "spec": spec});
        let made = kubernetes.create(key("persistentvolumeclaims", NAMESPACE, CLAIM), claim);
        let affinity = json!({"required": {"nodeSelectorTerms": [{"matchExpressions":
            [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-1"]}]}]}});
        let spec = json!({"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local-path",
            "persistentVolumeReclaimPolicy": "Delete", "volumeMode": "Filesystem", "nodeAffinity": affinity,
            "hostPath": {"path": "/opt/lp/pvc-1", "type": "DirectoryOrCreate"},
            "claimRef": {"namespace": NAMESPACE, "name": CLAIM, "uid": made["metadata"]["uid"]}});
        let annotations = json!({"pv.kubernetes.io/provisioned-by": "rancher.io/local-path"});
        let volume = json!({"metadata": {"name": VOLUME, "annotations": annotations}, "spec": spec});
        kubernetes.create(key("persistentvolumes", "", VOLUME), volume);
    });
    tick(&world);
    tick(&world);
    assert_eq!(claim(&world)["status"]["phase"], "Bound");
    world
}

/// Does what Kubernetes does in a moment.
fn tick(world: &World) {
    world.server.with(|kubernetes| {
        kubernetes.offer();
        kubernetes.bind(CLAIM);
        kubernetes.protect(CLAIM);
        kubernetes.protect_volumes();
    });
}

fn claim(world: &World) -> Value {
    world.server.with(|k| k.get("persistentvolumeclaims", CLAIM)).unwrap()
}

fn volume(world: &World) -> Option<Value> {
    world.server.with(|k| k.get("persistentvolumes", VOLUME))
}

async fn adopt(world: &World, nodes: &Makers, line: &str) -> (Outcome, String, String) {
    let (out, err) = (Printed::default(), Printed::default());
    let Command::Adopt(args) = parse(line.split(' ').map(OsString::from)).unwrap().0 else {
        panic!("{line}")
    };
    let screen = Screen::on(Style::Json, Box::new(out.clone()), Box::new(err.clone()));
    let cluster = args.source.endpoint.is_none().then(|| Cluster::new(world.client()));
    let mut session = Session { cluster, nodes: nodes.clone(), screen, args };
    let outcome = session.run().await;
    (outcome, out.text(), err.text())
}

fn with_kubernetes<T>(world: &World, work: impl Future<Output = T>) -> T {
    on_a_clock_of_its_own(async {
        let run = async {
            loop {
                sleep(Duration::from_millis(200)).await;
                tick(world);
            }
        };
        tokio::select! {
            () = run => unreachable!("it never ends"),
            done = work => done,
        }
    })
}

const YES: &str = "hostloop adopt --claim default/shop-data --class directories --yes";

/// The namespace of the driver.
const DRIVERS: &str = "hostloop";

/// What the adoption of the claim has begun with.
fn recorded(world: &World) -> Option<Value> {
    let name = record::name(claim(world)["metadata"]["uid"].as_str().unwrap());
    world.server.with(|k| k.all("configmaps").find(|map| map["metadata"]["name"] == *name).cloned())
}

/// Nothing of the adoption is left.
fn is_clean(world: &World) {
    assert_eq!(recorded(world), None);
    assert_eq!(claim(world)["metadata"]["annotations"].get(TOUCHED), None);
}

/// The claim is bound to the volume of hostloop, and nothing of the adoption is left on it.
fn is_adopted(world: &World, uid: &Value) {
    let (claim, volume) = (claim(world), volume(world).unwrap());
    assert_eq!((&claim["metadata"]["uid"], &claim["status"]["phase"]), (uid, &json!("Bound")));
    is_clean(world);
    let spec = &volume["spec"];
    assert_eq!((&spec["csi"]["driver"], &spec["csi"]["volumeHandle"]), (&json!(DRIVER), &json!("vol-1")));
    assert!(spec.get("hostPath").is_none() && spec["csi"].get("fsType").is_none(), "{spec}");
    assert_eq!(spec["persistentVolumeReclaimPolicy"], "Delete", "as it was");
    assert_eq!((&spec["storageClassName"], &spec["claimRef"]["uid"]), (&json!("local-path"), uid));
    let term = &spec["nodeAffinity"]["required"]["nodeSelectorTerms"][0]["matchExpressions"][0];
    assert_eq!(
        (&term["key"], &term["values"]),
        (&json!("topology.hostloop.csi.dev/node"), &json!(["node-1"]))
    );
    assert_eq!(volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"], DRIVER);
    assert_eq!(world.server.with(|k| k.wrong.clone()), Vec::<String>::new());
}

#[test]
fn a_claim_of_local_path_gets_a_volume_of_hostloop() {
    let (world, nodes) = (world(), Makers::default());
    let uid = claim(&world)["metadata"]["uid"].clone();
    with_kubernetes(&world, async {
        let before = volume(&world);
        let (outcome, _, err) = adopt(&world, &nodes, YES.trim_end_matches(" --yes")).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
        assert!(err.contains("would become volume") && err.contains("--yes"), "{err}");
        assert_eq!((volume(&world), nodes.volumes()), (before, 0), "nothing was changed");

        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
        is_adopted(&world, &uid);
        let order = nodes.last();
        assert_eq!(
            (order.node_id.as_str(), order.path.as_str(), order.size_bytes),
            ("node-1", "/opt/lp/pvc-1", 1 << 30)
        );
        assert!(order.is_directory && order.fs_type.is_empty());
        let key = |name: &str| order.parameters.get(name).map(String::as_str);
        assert_eq!(key("csi.storage.k8s.io/pvc/name"), Some(CLAIM));
        assert_eq!((key("csi.storage.k8s.io/pv/name"), key("backend")), (Some(VOLUME), Some("directory")));
        assert_eq!(key("csi.storage.k8s.io/fstype"), None);

        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!((outcome, nodes.volumes()), (Outcome::Done, 1), "a repeated command: {err}");
    });
}

#[test]
fn an_adoption_ends_well_after_any_lost_request() {
    for lost in 0..40 {
        let (world, nodes) = (world(), Makers::default());
        let uid = claim(&world)["metadata"]["uid"].clone();
        let left = Arc::new(Mutex::new(lost));
        world.refuse(move |_| {
            let mut left = left.lock().unwrap();
            *left -= 1;
            (*left == -1).then_some(500)
        });
        with_kubernetes(&world, async {
            let (outcome, _, err) = adopt(&world, &nodes, YES).await;
            if outcome != Outcome::Done {
                assert!(err.contains("you may not do this"), "{err}");
                let (outcome, _, err) = adopt(&world, &nodes, YES).await;
                assert_eq!(outcome, Outcome::Done, "request {lost}: {err}");
            }
            is_adopted(&world, &uid);
        });
    }
}

#[test]
fn a_refused_claim_gets_back_what_it_had() {
    let (world, nodes) = (world(), Makers::default());
    nodes.refuse(&[NotAdopted::Working("3%".to_owned()), NotAdopted::Refused("no room".to_owned())], false);
    with_kubernetes(&world, async {
        let before = volume(&world).unwrap();
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("no room") && err.contains("what it had before"), "{err}");
        let after = volume(&world).unwrap();
        assert_eq!(claim(&world)["status"]["phase"], "Bound");
        is_clean(&world);
        for field in ["hostPath", "nodeAffinity", "persistentVolumeReclaimPolicy", "capacity", "claimRef"] {
            assert_eq!(after["spec"][field], before["spec"][field], "{field}");
        }
        assert_eq!(after["metadata"]["annotations"], before["metadata"]["annotations"]);
        assert_eq!(nodes.volumes(), 0);
    });
}

#[test]
fn a_volume_that_was_made_is_never_given_up() {
    let (world, nodes) = (world(), Makers::default());
    let uid = claim(&world)["metadata"]["uid"].clone();
    nodes.refuse(&[NotAdopted::Refused("the disk is full".to_owned())], true);
    with_kubernetes(&world, async {
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("the disk is full") && err.contains("run the command again"), "{err}");
        assert_eq!(volume(&world), None, "pods with it would find an empty directory");
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
        is_adopted(&world, &uid);
    });
}
#[test]
fn a_tenant_cannot_change_what_is_adopted() {
    let (world, nodes) = (world(), Makers::default());
    let uid = claim(&world)["metadata"]["uid"].clone();
    nodes.refuse(&[NotAdopted::Refused("the disk is full".to_owned())], true);
    with_kubernetes(&world, async {
        assert_eq!(adopt(&world, &nodes, YES).await.0, Outcome::Failed);
        let record = recorded(&world).unwrap();
        assert_eq!(record["metadata"]["namespace"], DRIVERS);
        let mut other: Value =
            serde_json::from_str(record["data"][record::VOLUME].as_str().unwrap()).unwrap();
        other["spec"]["hostPath"]["path"] = json!("/opt/lp/of-another");
        world.server.with(|k| {
            k.change("persistentvolumeclaims", CLAIM, |claim| {
                claim["metadata"]["annotations"]["hostloop.csi.dev/adopting"] = json!(other.to_string());
            });
        });
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
        is_adopted(&world, &uid);
        assert_eq!(nodes.last().path, "/opt/lp/pvc-1");
    });
}

#[test]
fn a_begun_adoption_goes_on_only_with_yes() {
    let (world, nodes) = (world(), Makers::default());
    nodes.refuse(&[NotAdopted::Refused("the disk is full".to_owned())], true);
    with_kubernetes(&world, async {
        assert_eq!(adopt(&world, &nodes, YES).await.0, Outcome::Failed);
        let orders = nodes.0.lock().unwrap().orders.len();
        for line in [YES.replace(" --yes", ""), YES.replace("--yes", "--dry-run")] {
            let before = (volume(&world), claim(&world), recorded(&world));
            let (outcome, _, err) = adopt(&world, &nodes, &line).await;
            assert_eq!(outcome, Outcome::Done, "{err}");
            assert!(err.contains("has begun; repeat the command with --yes"), "{err}");
            assert_eq!((volume(&world), claim(&world), recorded(&world)), before);
            assert_eq!(nodes.0.lock().unwrap().orders.len(), orders, "nor is a node asked");
        }
    });
}

#[test]
fn controllers_of_two_namespaces_are_not_chosen_from() {
    let (world, nodes) = (world(), Makers::default());
    world.server.with(|k| {
        let pod = k.all("pods").find(|pod| pod["metadata"]["name"] == "controller-0").cloned().unwrap();
        k.create(
            key("pods", NAMESPACE, "false"),
            json!({"metadata": {"name": "false", "namespace": NAMESPACE,
            "labels": pod["metadata"]["labels"]}, "spec": pod["spec"], "status": pod["status"]}),
        )
    });
    with_kubernetes(&world, async {
        let (outcome, _, err) = adopt(&world, &nodes, YES).await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("--driver-namespace"), "{err}");
        let (outcome, _, err) = adopt(&world, &nodes, &format!("{YES} --driver-namespace {DRIVERS}")).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
    });
}
#[test]
fn a_path_becomes_a_claim_that_is_created() {
    let (world, nodes) = (world(), Makers::default());
    let line = "hostloop adopt --directory /old/db --size 2Gi --node node-2 --class directories --new-claim default/db";
    with_kubernetes(&world, async {
        let (outcome, out, err) = adopt(&world, &nodes, line).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
        assert!(
            out.contains("kind: PersistentVolume\n") && out.contains("kind: PersistentVolumeClaim"),
            "{out}"
        );
        assert!(
            out.contains("volumeHandle: vol-1") && out.contains("volumeName: adopted-default-db"),
            "{out}"
        );
        assert_eq!(world.server.with(|k| k.get("persistentvolumeclaims", "db")), None);
        for _ in 0..2 {
            let (outcome, out, err) = adopt(&world, &nodes, &format!("{line} --yes")).await;
            assert_eq!((outcome, out.as_str()), (Outcome::Done, ""), "{err}");
        }
        let claim = world.server.with(|k| k.get("persistentvolumeclaims", "db")).unwrap();
        assert_eq!(claim["spec"]["volumeName"], "adopted-default-db");
        assert_eq!(claim["spec"]["resources"]["requests"]["storage"], "2147483648");
        let other = line.replace("default/db", "default/shop-data");
        let (outcome, _, err) = adopt(&world, &nodes, &format!("{other} --yes")).await;
        assert_eq!(outcome, Outcome::Failed);
        assert!(err.contains("has another volume"), "{err}");
        let (outcome, _, err) = adopt(&world, &nodes, &line.replace(" --class directories", "")).await;
        assert!(outcome == Outcome::Failed && err.contains("--class"), "{err}");
    });
}

#[test]
fn a_taken_or_long_volume_name_is_seen_at_once() {
    let (world, nodes) = (world(), Makers::default());
    world.server.with(|k| {
        let spec =
            json!({"capacity": {"storage": "1Gi"}, "claimRef": {"namespace": "default-a", "name": "b"}});
        let volume = json!({"metadata": {"name": "adopted-default-a-b"}, "spec": spec});
        k.create(key("persistentvolumes", "", "adopted-default-a-b"), volume)
    });
    with_kubernetes(&world, async {
        let line = "hostloop adopt --image /old/disk.img --node node-2 --class directories --yes --new-claim default/";
        let (outcome, _, err) = adopt(&world, &nodes, &format!("{line}a-b")).await;
        assert_eq!((outcome, nodes.volumes()), (Outcome::Failed, 0));
        assert!(err.contains("is for claim default-a/b"), "{err}");
        let (outcome, _, err) = adopt(&world, &nodes, &format!("{line}{}", "a".repeat(245))).await;
        assert_eq!((outcome, nodes.volumes()), (Outcome::Failed, 0));
        assert!(err.contains("longer than 253"), "{err}");
    });
}

#[test]
fn a_node_without_an_api_server_prints_the_objects() {
    let (world, nodes) = (world(), Makers::default());
    let line =
        "hostloop adopt --image /old/disk.img --new-claim shop/data --class local --endpoint /csi.sock";
    on_a_clock_of_its_own(async {
        let (outcome, out, err) = adopt(&world, &nodes, line).await;
        assert_eq!(outcome, Outcome::Done, "{err}");
        assert!(out.contains("namespace: shop") && out.contains("storageClassName: local"), "{out}");
        let (outcome, out, err) = adopt(&world, &nodes, &format!("{line} --dry-run")).await;
        assert_eq!((outcome, out.as_str()), (Outcome::Done, ""), "{err}");
    });
}
