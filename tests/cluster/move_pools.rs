//! A move to another pool of the same node, by the calls that a controller makes: the volume keeps its id, and its pods come back before
//! kubelet has unstaged it.

use hostloop::cluster::moves::copies::{Access, NewCopy};
use hostloop::cluster::moves::nodes::{NodeError, Nodes, PassRequest, Presence};
use hostloop::cluster::moves::resources::VolumeReplicaSpec;
use hostloop::wire::csi;
use hostloop::wire::peer::ListDetailsRequest;
use tokio_stream::StreamExt as _;
use tonic::{Code, Request, Status};

use crate::harness::node::DATA_DIR;
use crate::harness::process::{FAST_DIR, NodeProcess, Processes};
use crate::harness::{volume, within};
use crate::move_calls::replica;
use crate::pki::controller;
use crate::requests::{MIB, delete, delta};

const SIZE: i64 = 512 * MIB;
const STAGING: &str = "/var/lib/kubelet/plugins/kubernetes.io/csi/hostloop.csi.dev/1/globalmount";

/// What a volume holds, and how its pods see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holds {
    Files,
    Blocks,
    /// A directory with an enforced size.
    Tree,
}

impl Holds {
    fn access(self) -> Access {
        let (block, fs_type) = match self {
            Holds::Files => (false, "ext4".to_owned()),
            Holds::Blocks => (true, String::new()),
            Holds::Tree => (false, String::new()),
        };
        Access { block, fs_type, mount_options: Vec::new(), modes: vec!["ReadWriteOnce".to_owned()] }
    }

    fn capability(self) -> csi::VolumeCapability {
        use csi::volume_capability::access_mode::Mode;
        use csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
        let access_type = match self {
            Holds::Files => {
                AccessType::Mount(MountVolume { fs_type: "ext4".to_owned(), ..Default::default() })
            }
            Holds::Blocks => AccessType::Block(BlockVolume {}),
            Holds::Tree => AccessType::Mount(MountVolume::default()),
        };
        let access_mode = Some(AccessMode { mode: Mode::SingleNodeMultiWriter.into() });
        csi::VolumeCapability { access_mode, access_type: Some(access_type) }
    }

    fn parameters(self) -> std::collections::HashMap<String, String> {
        let parameters: &[(&str, &str)] = match self {
            Holds::Files | Holds::Blocks => &[],
            Holds::Tree => &[("backend", "directory"), ("enforcement", "required")],
        };
        parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    /// Where a pod with this uid has the volume.
    fn target(self, pod: &str) -> String {
        match self {
            Holds::Files | Holds::Tree => {
                format!("/var/lib/kubelet/pods/{pod}/volumes/kubernetes.io~csi/pvc-1/mount")
            }
            Holds::Blocks => {
                format!("/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/{pod}")
            }
        }
    }
}

/// A volume on node `a`, with kubelet's calls about it.
struct Case {
    processes: Processes,
    holds: Holds,
    id: String,
    context: std::collections::HashMap<String, String>,
}

impl Case {
    async fn new(holds: Holds) -> Case {
        let processes = Processes::with_two_pools(&["a"]).await;
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![holds.capability()],
            parameters: holds.parameters(),
            ..volume("v", SIZE, &["a"])
        };
        let made = processes.create(request).await.unwrap();
        let kernel = &processes.node("a").kernel;
        kernel.create_directories(STAGING.rsplit_once('/').unwrap().0);
        for pod in ["1", "2"] {
            kernel.create_directories(holds.target(pod).rsplit_once('/').unwrap().0);
        }
        let (id, context) = (made.volume_id, made.volume_context);
        let publish = csi::ControllerPublishVolumeRequest {
            volume_id: id.clone(),
            node_id: "a".to_owned(),
            volume_capability: Some(holds.capability()),
            volume_context: context.clone(),
            ..Default::default()
        };
        within(processes.controller.call(publish)).await.unwrap();
        Case { processes, holds, id, context }
    }

    fn node(&self) -> &NodeProcess {
        self.processes.node("a")
    }

    async fn stage(&self) {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: STAGING.to_owned(),
            volume_capability: Some(self.holds.capability()),
            volume_context: self.context.clone(),
            ..Default::default()
        };
        within(self.node().kubelet().call(request)).await.unwrap();
    }

    async fn unstage(&self) {
        let (volume_id, staging_target_path) = (self.id.clone(), STAGING.to_owned());
        let request = csi::NodeUnstageVolumeRequest { volume_id, staging_target_path };
        within(self.node().kubelet().call(request)).await.unwrap();
    }

    async fn publish(&self, pod: &str) -> Result<(), Status> {
        let request = csi::NodePublishVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: STAGING.to_owned(),
            target_path: self.holds.target(pod),
            volume_capability: Some(self.holds.capability()),
            volume_context: self.context.clone(),
            ..Default::default()
        };
        within(self.node().kubelet().call(request)).await.map(drop)
    }

    async fn unpublish(&self, pod: &str) {
        let (volume_id, target_path) = (self.id.clone(), self.holds.target(pod));
        let request = csi::NodeUnpublishVolumeRequest { volume_id, target_path };
        within(self.node().kubelet().call(request)).await.unwrap();
    }

    fn file(&self, pod: &str) -> String {
        match self.holds {
            Holds::Files | Holds::Tree => format!("{}/data", self.holds.target(pod)),
            Holds::Blocks => self.holds.target(pod),
        }
    }

    fn write(&self, pod: &str, text: &str) {
        match self.holds {
            Holds::Files | Holds::Tree => {
                self.node().kernel.write_file(self.file(pod), text.as_bytes()).unwrap()
            }
            Holds::Blocks => self.node().kernel.write(self.file(pod), 0, text.as_bytes()).unwrap(),
        }
    }

    fn read(&self, pod: &str, len: usize) -> String {
        String::from_utf8(self.node().kernel.read(self.file(pod), 0, len).unwrap()).unwrap()
    }

    /// Where the image of a directory of a volume is.
    fn image(&self, pool: &str, directory: &str) -> String {
        match pool {
            "fast" => format!("{FAST_DIR}/volumes/{directory}/disk.img"),
            _ => self.node().image(directory),
        }
    }

    fn copy(&self, replica: &VolumeReplicaSpec, pool: &str) -> NewCopy {
        self.copy_as(replica, pool, self.holds)
    }

    /// A copy that becomes this, whatever the volume is.
    fn copy_as(&self, replica: &VolumeReplicaSpec, pool: &str, becomes: Holds) -> NewCopy {
        NewCopy {
            convert: becomes != self.holds,
            name: replica.copy_name.clone(),
            source: replica.volume_id.clone(),
            source_node: replica.source_node.clone(),
            generation: replica.generation,
            target: replica.target_node.clone(),
            bytes: SIZE as u64,
            access: becomes.access(),
            parameters: becomes
                .parameters()
                .into_iter()
                .chain([("pool".to_owned(), pool.to_owned())])
                .collect(),
            mutable_parameters: Default::default(),
        }
    }

    /// Returns the pool that has the volume, and the number of volumes and of what is left of volumes on the node.
    async fn pool(&self) -> (String, usize) {
        let by = self.processes.pki.tls("looker", &controller());
        let mut peer = self.processes.peer(&by, "a").await;
        let details = peer.list_details(ListDetailsRequest::default()).await.unwrap().into_inner();
        let own = details.volumes.iter().find(|volume| volume.id == self.id).expect("the volume");
        (own.pool.clone(), details.volumes.len())
    }
}

fn pass(last: bool) -> PassRequest {
    PassRequest { parameters: Default::default(), whole: false, most_bytes: 2 * SIZE as u64, last }
}

async fn create(nodes: &dyn Nodes, copy: &NewCopy) {
    while let Err(error) = nodes.create(copy).await {
        assert!(matches!(error, NodeError::Running(_)), "{error:?}");
    }
}

async fn moves_with_pods(holds: Holds) {
    moves_and_becomes(holds, holds).await;
}

/// The volume moves to another pool and becomes something else, and back.
async fn moves_and_becomes(holds: Holds, becomes: Holds) {
    let case = Case::new(holds).await;
    let router = case.processes.router(&["a"]);
    let nodes: &dyn Nodes = &router;
    case.stage().await;
    case.publish("1").await.unwrap();
    let mut image = case.image("default", &case.id);
    for (pool, from, generation, [old, new], kind) in
        [("fast", "default", 0, ["1", "2"], becomes), ("default", "fast", 1, ["2", "1"], holds)]
    {
        case.write(old, &format!("before {generation}"));
        let replica = replica(&case.id, &format!("copy-{generation}"), ("a", "a"), generation);
        // What moves back is asked for as well: the claim does not say what the volume is by now.
        let copy = NewCopy { convert: holds != becomes, ..case.copy_as(&replica, pool, kind) };
        create(nodes, &copy).await;
        assert!(nodes.update(&replica, &pass(false)).await.unwrap().source_in_use);
        case.write(old, &format!("while {generation}"));
        let in_use = nodes.fence(&replica).await.unwrap_err();
        assert!(matches!(in_use, NodeError::InUse(_)), "{in_use:?}");
        let early = nodes.complete(&replica, false, 0).await.unwrap_err();
        assert!(matches!(early, NodeError::InUse(_)), "{early:?}");
        assert_eq!(case.read(old, 5), "while", "its pod goes on");
        case.write(old, &format!("after {generation}"));

        // The next pod is there when the first one leaves, and kubelet does not unstage the volume.
        case.unpublish(old).await;
        let sealed = case.publish(new).await.expect_err("it is sealed");
        assert_eq!(sealed.code(), Code::FailedPrecondition, "{sealed:?}");
        nodes.fence(&replica).await.expect("the node unstages it");
        assert!(!nodes.update(&replica, &pass(true)).await.unwrap().source_in_use);
        for _ in 0..2 {
            nodes.complete(&replica, false, 0).await.unwrap();
        }
        let source = std::mem::replace(&mut image, case.image(pool, &replica.copy_id));
        // Bytes of an image carry no files between two places of the fake.
        if (holds, becomes) == (Holds::Files, Holds::Files) {
            let kernel = &case.node().kernel;
            kernel.adopt_files(&image, kernel, source).expect("all of the bytes are there");
        }
        let left = nodes.retire(&replica).await.unwrap();
        assert_eq!(nodes.retire(&replica).await.unwrap(), left, "a repeated call");
        assert_ne!(left, case.id);
        assert_eq!(nodes.find("a", &case.id).await, Ok(Presence::Has(generation + 1)));
        assert_eq!(case.pool().await, (pool.to_owned(), 2), "the volume, and what it left in pool {from}");
        case.publish(new).await.expect("staged again");
        assert_eq!(case.read(new, 7), format!("after {generation}"), "nothing is lost");

        nodes.release(&replica).await.unwrap();
        nodes.delete_left(&replica, &left).await.unwrap();
        assert_eq!(case.pool().await, (pool.to_owned(), 1));
        assert_eq!(case.node().snapshots(), Vec::<String>::new(), "no cut is left");
        assert!(case.node().kernel.tree(format!("{FAST_DIR}/snapshots")).is_empty());
    }
    case.unpublish("1").await;
    case.unstage().await;
    assert!(case.node().kernel.mounts().iter().all(|mount| !mount.target.starts_with("/var/lib/kubelet")));
    let detach = csi::ControllerUnpublishVolumeRequest {
        volume_id: case.id.clone(),
        node_id: "a".to_owned(),
        ..Default::default()
    };
    within(case.processes.controller.call(detach)).await.unwrap();
    within(case.processes.controller.call(delete(&case.id))).await.unwrap();
    assert_eq!(nodes.find("a", &case.id).await, Ok(Presence::Deleted));
}

#[tokio::test]
async fn files_move_to_another_pool_and_back() {
    moves_with_pods(Holds::Files).await;
}

#[tokio::test]
async fn blocks_move_to_another_pool_and_back() {
    moves_with_pods(Holds::Blocks).await;
}

#[tokio::test]
async fn a_directory_moves_to_another_pool_and_back() {
    moves_with_pods(Holds::Tree).await;
}

/// kubelet calls as if nothing had happened: the PersistentVolume says what the volume was.
#[tokio::test]
async fn files_become_a_directory_and_files_again() {
    moves_and_becomes(Holds::Files, Holds::Tree).await;
}

#[tokio::test]
async fn a_directory_becomes_files_and_a_directory_again() {
    moves_and_becomes(Holds::Tree, Holds::Files).await;
}

#[tokio::test]
async fn a_cancelled_move_of_a_pool_stages_again() {
    let case = Case::new(Holds::Files).await;
    let router = case.processes.router(&["a"]);
    let nodes: &dyn Nodes = &router;
    case.stage().await;
    case.publish("1").await.unwrap();
    case.write("1", "kept");
    let replica = replica(&case.id, "copy", ("a", "a"), 0);
    create(nodes, &case.copy(&replica, "fast")).await;
    case.unpublish("1").await;
    nodes.fence(&replica).await.unwrap();
    nodes.unfence(&replica).await.unwrap();
    case.publish("2").await.expect("staged again");
    assert_eq!(case.read("2", 4), "kept");
    nodes.delete_copy(&replica).await.unwrap();
    nodes.release(&replica).await.unwrap();
    assert_eq!(case.pool().await, ("default".to_owned(), 1));
    case.unpublish("2").await;
    case.unstage().await;
    let unstaged = case.publish("1").await.expect_err("kubelet has unstaged it");
    assert!(unstaged.message().contains("is not staged"), "{unstaged:?}");
}

/// Returns the number of changed bytes between two snapshots of a volume that was moved between them, and the numbers of their first blocks
/// on the two disks. `others` is the number of blocks of other files on the second one.
async fn changes_over_a_move(others: u64) -> (i64, [u64; 2]) {
    let case = Case::new(Holds::Blocks).await;
    let router = case.processes.router(&["a"]);
    let nodes: &dyn Nodes = &router;
    case.stage().await;
    case.publish("1").await.unwrap();
    case.write("1", "before");
    let base = case.processes.snapshot("base", &case.id).await.snapshot_id;
    let replica = replica(&case.id, "copy", ("a", "a"), 0);
    let kernel = &case.node().kernel;
    kernel.write_file(format!("{FAST_DIR}/other"), &vec![1; others as usize * 4096]).unwrap();
    create(nodes, &case.copy(&replica, "fast")).await;
    case.unpublish("1").await;
    nodes.fence(&replica).await.unwrap();
    nodes.update(&replica, &pass(true)).await.unwrap();
    nodes.complete(&replica, false, 0).await.unwrap();
    case.publish("1").await.unwrap();
    case.write("1", "behind");
    let target = case.processes.snapshot("target", &case.id).await.snapshot_id;
    let first = |dir: &str, id: &str| {
        let image = format!("{dir}/snapshots/{id}/disk.img");
        kernel.os().images.extents(image.as_ref(), 0, 1, true).unwrap()[0].physical / 4096
    };
    let first = [first(DATA_DIR, &base), first(FAST_DIR, &target)];
    let request = Request::new(delta(&base, &target));
    let mut stream = within(case.processes.controller.open(request)).await.unwrap();
    let mut changed = 0;
    while let Some(message) = stream.next().await {
        changed += message.unwrap().block_metadata.iter().map(|range| range.size_bytes).sum::<i64>();
    }
    (changed, first)
}

/// The numbers of blocks on two disks say nothing about each other.
#[tokio::test]
async fn changes_between_two_pools_are_compared() {
    let (changed, [one, other]) = changes_over_a_move(0).await;
    assert_eq!(changed, 4096, "the block that was written");
    let (changed, [one, other]) = changes_over_a_move(one - other).await;
    assert_eq!((changed, one), (4096, other), "also if both have the same number");
}

/// A copy of a volume of another node must not replace a volume of this one.
#[tokio::test]
async fn only_the_source_of_a_copy_is_replaced() {
    let case = Case::new(Holds::Blocks).await;
    let router = case.processes.router(&["a"]);
    let nodes: &dyn Nodes = &router;
    let replica = replica(&case.id, "copy", ("a", "a"), 0);
    create(nodes, &case.copy(&replica, "fast")).await;
    let unsealed = nodes.complete(&replica, true, 0).await.unwrap_err();
    assert!(matches!(&unsealed, NodeError::InUse(why) if why.contains("retire it before")), "{unsealed:?}");
    nodes.fence(&replica).await.unwrap();
    let later = VolumeReplicaSpec { generation: 1, ..replica.clone() };
    let refused = nodes.complete(&later, true, 0).await.unwrap_err();
    assert!(matches!(refused, NodeError::InUse(_)), "{refused:?}");
    assert_eq!(nodes.find("a", &case.id).await, Ok(Presence::Has(0)));
    case.stage_refused().await;
}

impl Case {
    async fn stage_refused(&self) {
        let request = csi::NodeStageVolumeRequest {
            volume_id: self.id.clone(),
            staging_target_path: STAGING.to_owned(),
            volume_capability: Some(self.holds.capability()),
            ..Default::default()
        };
        let refused = within(self.node().kubelet().call(request)).await.expect_err("it is sealed");
        assert_eq!(refused.code(), Code::FailedPrecondition, "{refused:?}");
    }
}
