//! A cluster of real processes on one machine: two nodes and a controller, over mutual TLS with certificates that
//! `hostloop certs` made.

use std::net::TcpListener;
use std::path::Path;

use hostloop::wire::csi;
use tonic::Code;

use crate::harness::kernel::{pattern, read_at, write_at};
use crate::harness::process::{binary, command, node_of};
use crate::harness::volume::{clone_request, create_request, restore_request};
use crate::harness::{Csi, Driver, Kind, MIB, Vol, World, output, text};

const TOPOLOGY: &str = "topology.hostloop.csi.dev/node";

/// A node, its id, and where it serves its controller.
pub struct Node {
    pub world: World,
    id: String,
    address: String,
}

impl Node {
    fn start(ca: &Path, program: &str, kind: Kind) -> Node {
        let mut world = World::empty_for(kind, &[]);
        let id = node_of(&world.data);
        // Free a moment ago; nobody else on the machine wants exactly this one.
        let port = TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr()).expect("a port").port();
        let (tls, address) = (world.dir.join("tls"), format!("127.0.0.1:{port}"));
        issue(ca, &["--role", "node", "--node-id", &id], &tls);
        world.set_flags(&["--role", "node", "--tls-dir", text(&tls), "--peer-listen", &address]);
        world.start_as(command(program).args(world.arguments()));
        Node { world, id, address }
    }

    /// Goes on with the driver of another release.
    pub fn replace(&mut self, program: &str) {
        self.world.take_driver().stop();
        self.world.start_as(command(program).args(self.world.arguments()));
    }

    /// What CreateVolume says so that the volume is made here.
    pub fn here(&self) -> Option<csi::TopologyRequirement> {
        let segments = [(TOPOLOGY.to_owned(), self.id.clone())].into();
        let topology = csi::Topology { segments };
        Some(csi::TopologyRequirement { requisite: vec![topology.clone()], preferred: vec![topology] })
    }

    fn has(&self, volume: &csi::Volume) -> bool {
        volume.accessible_topology == self.here().expect("a requirement").requisite
            && self.world.volume_directory(&volume.volume_id).exists()
    }

    fn finish(mut self) {
        self.world.take_driver().stop();
        self.world.assert_nothing_left();
    }
}

fn certs(arguments: &[&str]) {
    let mut all = vec!["certs"];
    all.extend(arguments);
    let made = output(binary(), &all);
    assert!(made.status.success(), "{made:?}");
}

fn issue(ca: &Path, role: &[&str], to: &Path) {
    certs(&[&["issue", "--ca", text(ca), "--out", text(to)], role].concat());
}

pub struct Cluster {
    pub nodes: [Node; 2],
    pub csi: Csi,
    controller: Option<Driver>,
    dir: tempfile::TempDir,
}

impl Cluster {
    fn start() -> Cluster {
        Cluster::start_as(binary())
    }

    /// All of it with this program.
    pub fn start_as(program: &str) -> Cluster {
        Cluster::start_with(program, Kind::Ext4)
    }

    /// With default pools for volumes of this kind.
    pub fn start_for(kind: Kind) -> Cluster {
        Cluster::start_with(binary(), kind)
    }

    fn start_with(program: &str, kind: Kind) -> Cluster {
        let dir = tempfile::tempdir().expect("tempdir");
        let ca = dir.path().join("ca");
        certs(&["init", "--dir", text(&ca)]);
        issue(&ca, &["--role", "controller"], &dir.path().join("tls"));
        let nodes = [Node::start(&ca, program, kind), Node::start(&ca, program, kind)];
        let csi = Csi::new(&dir.path().join("csi.sock"));
        let mut cluster = Cluster { nodes, csi, controller: None, dir };
        cluster.start_controller(program);
        cluster
    }

    fn start_controller(&mut self, program: &str) {
        let at = |name: &str| self.dir.path().join(name);
        let endpoint = format!("unix://{}", text(&at("csi.sock")));
        let peers = self.nodes.iter().map(|node| format!("--peer={}={}", node.id, node.address));
        let mut serve = command(program);
        serve.args(["serve", "--role", "controller", "--endpoint", &endpoint, "--tls-dir", text(&at("tls"))]);
        let mut controller = Driver::spawn(serve.args(peers), &at("log"));
        controller.wait_ready(&self.csi);
        self.controller = Some(controller);
    }

    /// Another client of the controller.
    pub fn client(&self) -> Csi {
        Csi::new(&self.dir.path().join("csi.sock"))
    }

    /// Goes on with the controller of another release.
    pub fn replace_controller(&mut self, program: &str) {
        self.controller.take().expect("it runs").stop();
        self.start_controller(program);
    }

    pub fn finish(self) {
        let left = self.csi.list(0, "").expect("ListVolumes").entries;
        assert!(left.is_empty(), "{left:?}");
        assert!(self.csi.list_snapshots().expect("ListSnapshots").is_empty());
        self.controller.expect("it runs").stop();
        self.nodes.into_iter().for_each(Node::finish);
    }
}

/// What is in a volume, read where it is.
pub fn content(node: &Node, kind: Kind, volume: &csi::Volume, len: usize) -> Vec<u8> {
    let vol = Vol::of(&node.world, kind, volume.clone());
    vol.up();
    let bytes = read_at(&vol.file("a"), 0, len);
    vol.down();
    bytes
}

#[test]
fn copies_are_made_on_the_node_that_is_asked_for() {
    let cluster = Cluster::start();
    let [here, there] = &cluster.nodes;
    for kind in [Kind::Ext4, Kind::Block] {
        let on = |node: &Node, request: csi::CreateVolumeRequest| {
            let request = csi::CreateVolumeRequest { accessibility_requirements: node.here(), ..request };
            let volume = cluster.csi.create(request.clone()).expect("CreateVolume");
            assert!(node.has(&volume), "{volume:?}");
            assert_eq!(cluster.csi.create(request).expect("again"), volume);
            volume
        };
        let data = pattern(7, 3 * MIB as usize);
        let volume = on(here, create_request(kind, &format!("{kind:?}"), kind.size(), &[]));
        let source = Vol::of(&here.world, kind, volume.clone());
        source.up();
        write_at(&source.file("a"), 0, &data).expect("write");
        let device = std::fs::File::open(source.file("a")).expect("open");
        device.sync_all().expect("fsync");
        drop(device);
        // An ext4 in use is frozen for its snapshot; a raw device must rest where blocks cannot be shared.
        if kind == Kind::Block {
            source.down();
        }
        let (id, bytes) = (volume.volume_id.as_str(), source.bytes());
        let snapshot = cluster.csi.snapshot(&format!("{kind:?}"), id, &[]).expect("CreateSnapshot");
        let restore = |name: &str| restore_request(kind, name, bytes, &snapshot.snapshot_id, &[]);
        let made = [
            (here, on(here, restore(&format!("{kind:?} beside")))),
            (there, on(there, restore(&format!("{kind:?} restored")))),
            (there, on(there, clone_request(kind, &format!("{kind:?} cloned"), bytes, id, &[]))),
        ];
        for (node, copy) in &made {
            assert!(content(node, kind, copy, data.len()) == data, "{kind:?}: {copy:?}");
        }
        assert_eq!(cluster.csi.list(0, "").expect("ListVolumes").entries.len(), 4);
        if kind != Kind::Block {
            source.down();
        }
        for copy in made.iter().map(|(_, copy)| &copy.volume_id).chain([&volume.volume_id]) {
            cluster.csi.delete(copy).expect("DeleteVolume");
        }
        cluster.csi.delete_snapshot(&snapshot.snapshot_id).expect("DeleteSnapshot");
    }
    cluster.finish();
}

#[test]
fn a_node_that_is_down_is_named_and_others_go_on() {
    let mut cluster = Cluster::start();
    let make = |cluster: &Cluster, node: usize, name: &str| {
        let node = &cluster.nodes[node];
        let request = create_request(Kind::Ext4, name, Kind::Ext4.size(), &[]);
        cluster.csi.create(csi::CreateVolumeRequest { accessibility_requirements: node.here(), ..request })
    };
    let volume = make(&cluster, 0, "one").expect("CreateVolume");
    cluster.nodes[0].world.take_driver().kill();
    let id = cluster.nodes[0].id.clone();
    for refused in [
        cluster.csi.delete(&volume.volume_id),
        make(&cluster, 0, "more").map(drop),
        cluster.csi.list(0, "").map(drop),
    ] {
        let refused = refused.expect_err("its node is down");
        assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
        assert!(refused.message().contains(&id), "{refused:?}");
    }
    let other = make(&cluster, 1, "two").expect("CreateVolume on the other node");
    cluster.nodes[0].world.start();
    crate::harness::eventually("the node is found again", || cluster.csi.delete(&volume.volume_id).is_ok());
    cluster.csi.delete(&other.volume_id).expect("DeleteVolume");
    cluster.finish();
}

/// A controller of another CA, and one without any right to be one, are not heard.
#[test]
fn a_controller_without_its_certificate_is_refused() {
    let cluster = Cluster::start();
    let [node, _] = &cluster.nodes;
    let dir = tempfile::tempdir().expect("tempdir");
    let at = |name: &str| dir.path().join(name);
    certs(&["init", "--dir", text(&at("ca"))]);
    issue(&at("ca"), &["--role", "controller"], &at("tls"));
    let endpoint = format!("unix://{}", text(&at("csi.sock")));
    let peer = format!("--peer={}={}", node.id, node.address);
    let serve = ["serve", "--role", "controller", "--endpoint", &endpoint, &peer, "--tls-dir"];
    let mut stranger = Driver::spawn(command(binary()).args(serve).arg(at("tls")), &at("log"));
    let csi = Csi::new(&at("csi.sock"));
    stranger.wait_ready(&csi);
    let refused = csi.list(0, "").expect_err("it has no CA that counts");
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    stranger.stop();
    // A node's own certificate is none of a controller: it does not even start.
    let refused = command(binary()).args(serve).arg(node.world.dir.join("tls")).output().expect("it runs");
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("is of a node and not of a controller"), "{said}");
    cluster.finish();
}
