//! A copy of a directory on another node is brought up to date, on the real kernel.

use std::os::unix::fs::symlink;
use std::path::Path;

use hostloop::service::COPY;
use hostloop::wire::csi;
use hostloop::wire::peer::{
    CompleteCopyRequest, UpdateCopyRequest, UpdateCopyResponse, peer_client::PeerClient,
};

use crate::copies::copy_tree::{assert_equal, everything, metas, set_extended};
use crate::copies::pull::{ADDRESS, Nodes, together};
use crate::harness::kernel::{pattern, write_at};
use crate::harness::volume::clone_request;
use crate::harness::{Kind, MIB, Vol, World, run, text};

/// A node whose default pool is on a filesystem of this type.
fn node(fs_type: &str, limited: bool) -> World {
    let mut world = World::on(fs_type, 3 << 30, &[]);
    match limited {
        true => run("btrfs", &["quota", "enable", text(&world.dir.join("pool"))]),
        false => world.serve(Kind::Directory),
    }
    world
}

/// Something of everything that a pod can do with files.
pub fn change(top: &Path, round: u64) {
    let at = |name: &str| top.join(name);
    write_at(&at("large"), round << 20, &pattern(round, 8192)).expect("write");
    write_at(&at("large"), 30 << 20, &[0; 16384]).expect("write");
    std::fs::write(at("small"), format!("round {round}")).expect("write");
    std::fs::set_permissions(at("mode"), std::os::unix::fs::PermissionsExt::from_mode(0o600 + round as u32))
        .expect("chmod");
    set_extended(&at("attribute"), c"user.round", &[round as u8]);
    match round {
        1 => {
            std::fs::remove_dir_all(at("tree/sub")).expect("remove");
            std::fs::write(at("tree/sub"), "a file by now").expect("write");
            std::fs::rename(at("tree/empty"), at("tree/renamed")).expect("rename");
            std::fs::hard_link(at("large"), at("second name")).expect("link");
        }
        2 => {
            std::fs::remove_file(at("large")).expect("remove");
            std::fs::rename(at("second name"), at("large")).expect("rename");
            symlink("nowhere", at("second name")).expect("link");
        }
        _ => {
            std::fs::File::options().write(true).open(at("large")).expect("open").set_len(5000).expect("cut")
        }
    }
}

/// A volume on one node, and its copy on the other one.
pub struct Copied<'a> {
    nodes: &'a Nodes,
    peer: PeerClient<tonic::transport::Channel>,
    request: csi::CreateVolumeRequest,
    copy: String,
}

impl<'a> Copied<'a> {
    pub fn new(nodes: &'a Nodes, request: csi::CreateVolumeRequest, copy: String) -> Self {
        Copied { nodes, peer: PeerClient::new(nodes.channel()), request, copy }
    }

    pub fn update(&mut self) -> UpdateCopyResponse {
        let order = UpdateCopyRequest {
            volume_id: self.copy.clone(),
            source_node_id: self.nodes.source.settings().node_id.clone(),
            source_address: ADDRESS.to_owned(),
            permit: self.nodes.permit(&self.request).as_bytes().to_vec(),
            ..Default::default()
        };
        self.nodes.runtime.block_on(self.peer.update_copy(order)).expect("UpdateCopy").into_inner()
    }

    pub fn complete(&mut self) {
        let request = CompleteCopyRequest { volume_id: self.copy.clone(), ..Default::default() };
        self.nodes.runtime.block_on(self.peer.complete_copy(request)).expect("CompleteCopy");
    }
}

fn is_followed(from: (&str, bool), to: (&str, bool)) {
    let (mut source, mut target) = (node(from.0, from.1), node(to.0, to.1));
    let parameters = |limited| if limited { vec![("enforcement", "required")] } else { Vec::new() };
    let vol = Vol::create(&source, Kind::Directory, "source", 512 * MIB, &parameters(from.1));
    let id = vol.id().to_owned();
    let top = source.volume_directory(&id).join("data");
    everything(&top.join("tree"));
    std::fs::write(top.join("large"), pattern(9, 40 << 20)).expect("write");
    for name in ["small", "mode", "attribute"] {
        std::fs::write(top.join(name), name).expect("write");
    }
    source.take_driver().stop();
    target.take_driver().stop();
    // To read a symbolic link is an access to it.
    let first = metas(&top);
    let request = clone_request(Kind::Directory, "copy", 512 * MIB, &id, &parameters(to.1));
    let copy = together(&source, &target, |nodes| {
        let mut order = nodes.order(request.clone());
        order.metadata_mut().insert(COPY, "1".parse().expect("a header"));
        let copy = nodes.create(order).volume_id;
        let directory = target.volume_directory(&copy);
        let mut copied = Copied::new(nodes, request, copy.clone());
        assert_equal(&first, &top, &directory.join("data"));
        for round in 1..=3 {
            change(&top, round);
            let before = metas(&top);
            let updated = copied.update();
            assert_equal(&before, &top, &directory.join("data"));
            let names = std::fs::read_dir(&directory)
                .expect("list")
                .map(|entry| entry.expect("an entry").file_name());
            assert_eq!(names.collect::<Vec<_>>(), ["data"], "{from:?} to {to:?}, round {round}");
            // Two names of one file are one file more to send, which is in blocks that have not changed.
            assert!(
                updated.sent_bytes < 8 * MIB,
                "{from:?} to {to:?}, round {round}: {}",
                updated.sent_bytes
            );
        }
        assert_eq!(copied.update().sent_bytes, 0);
        nodes.source.seal_volume(&id, (0, 0), Some("node".to_owned())).expect("it is sealed");
        let last = metas(&top);
        assert!(copied.update().sealed);
        copied.complete();
        nodes
            .source
            .release_cuts(&id.parse().expect("an id"), &copy.parse().expect("an id"))
            .expect("released");
        assert_equal(&last, &top, &directory.join("data"));
        // The copy is a volume of its own, and a fenced volume is not deleted.
        nodes.source.seal_volume(&id, (0, 0), None).expect("taken back");
        copy
    });
    for (mut world, id) in [(target, copy), (source, id)] {
        world.start();
        world.csi.delete(&id).expect("DeleteVolume");
        world.finish();
    }
}

#[test]
fn a_copy_of_a_directory_follows_it() {
    is_followed(("ext4", false), ("ext4", false));
    is_followed(("xfs", false), ("xfs", false));
}

#[test]
fn a_copy_of_a_directory_follows_to_another_kind() {
    is_followed(("ext4", false), ("btrfs", true));
    is_followed(("xfs", false), ("ext4", false));
}

#[test]
fn a_copy_of_a_subvolume_follows_it() {
    is_followed(("btrfs", true), ("btrfs", true));
}
