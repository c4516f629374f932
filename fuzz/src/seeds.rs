//! Inputs that are valid from end to end, from which the corpora began.

use hostloop::model::pull::{Blocks, Piece, Placed, Zeros};
use hostloop::model::tree::{Attributes, Basis, Entry, Item, Kind, Position};
use hostloop::model::{Grant, GroupSnapshotId, NodeKey, SnapshotId, VolumeId, VolumeSource};
use hostloop::selftest::requests::{self, range};
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use hostloop::wire::pull::{encode_blocks, encode_tree};
use hostloop::wire::{METHODS, csi, peer, permit};
use prost::Message;

use crate::machine::KUBELET;
use crate::messages::{self, Tagged};
use crate::{pull, rpc};

/// The targets with their inputs; `states` are state files of earlier releases.
pub fn all(states: Vec<Vec<u8>>) -> Vec<(&'static str, Vec<Vec<u8>>)> {
    vec![
        ("config", config()),
        ("mountinfo", mountinfo()),
        ("pull", pulls()),
        ("registration", registration()),
        ("rpc", lives()),
        ("signature", signatures()),
        (
            "state",
            states
                .into_iter()
                .flat_map(|state| [[b"\0", &*state].concat(), [b"\x01", &*state].concat()])
                .collect(),
        ),
        (
            "tree",
            [Basis::Nothing, Basis::Content, Basis::Everything]
                .map(|basis| messages::write(&tree_stream(basis)))
                .to_vec(),
        ),
    ]
}

/// A call for the target `rpc`.
fn call(method: &str, request: &impl Message) -> Tagged {
    let number = METHODS.iter().position(|name| name.ends_with(&format!("/{method}"))).expect("a method");
    (u8::try_from(number).expect("few methods"), request.encode_to_vec())
}

fn capability(fs_type: Option<&str>) -> csi::VolumeCapability {
    requests::capability(fs_type, Mode::SingleNodeWriter)
}

fn volume_id(name: &str) -> String {
    VolumeId::of_name(&NodeKey::of(rpc::NODE), name).to_string()
}

fn snapshot_id(name: &str) -> String {
    SnapshotId::of_name(&NodeKey::of(rpc::NODE), name).to_string()
}

fn create(name: &str, fs_type: Option<&str>) -> csi::CreateVolumeRequest {
    let entry = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
    let directory = [("backend", "directory"), ("pool", "directories")].map(entry);
    csi::CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: range(64 << 20),
        volume_capabilities: vec![capability(fs_type)],
        parameters: if fs_type == Some("") { directory.into() } else { Default::default() },
        ..Default::default()
    }
}

fn growth(id: &str, staging: &str, target: &str) -> [Tagged; 2] {
    let expand = csi::ControllerExpandVolumeRequest {
        volume_id: id.to_owned(),
        capacity_range: range(96 << 20),
        ..Default::default()
    };
    let grow = csi::NodeExpandVolumeRequest {
        volume_id: id.to_owned(),
        volume_path: target.to_owned(),
        capacity_range: range(96 << 20),
        staging_target_path: staging.to_owned(),
        ..Default::default()
    };
    [call("ControllerExpandVolume", &expand), call("NodeExpandVolume", &grow)]
}

/// A volume from its creation to its deletion; or, where it stays `used`, not quite so far.
fn life(fs_type: Option<&str>, used: bool) -> Vec<Tagged> {
    let id = volume_id("a");
    let (staging, target) = (format!("{KUBELET}/stage/a"), format!("{KUBELET}/pods/p"));
    let stage = csi::NodeStageVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: staging.clone(),
        volume_capability: Some(capability(fs_type)),
        ..Default::default()
    };
    let publish = csi::NodePublishVolumeRequest {
        volume_id: id.clone(),
        staging_target_path: staging.clone(),
        target_path: target.clone(),
        volume_capability: Some(capability(fs_type)),
        ..Default::default()
    };
    let attach = csi::ControllerPublishVolumeRequest {
        volume_id: id.clone(),
        node_id: rpc::NODE.to_owned(),
        volume_capability: Some(capability(fs_type)),
        ..Default::default()
    };
    let stats = csi::NodeGetVolumeStatsRequest {
        volume_id: id.clone(),
        volume_path: target.clone(),
        ..Default::default()
    };
    let mut calls = vec![
        call("CreateVolume", &create("a", fs_type)),
        call("ControllerPublishVolume", &attach),
        call("NodeStageVolume", &stage),
        call("NodePublishVolume", &publish),
    ];
    calls.extend(growth(&id, &staging, &target));
    calls.extend([
        call("NodeGetVolumeStats", &stats),
        call("ListVolumes", &csi::ListVolumesRequest { max_entries: 1, ..Default::default() }),
    ]);
    if !used {
        let unpublish = csi::NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: target };
        let unstage = csi::NodeUnstageVolumeRequest { volume_id: id.clone(), staging_target_path: staging };
        let detach = csi::ControllerUnpublishVolumeRequest { volume_id: id.clone(), ..Default::default() };
        let delete = csi::DeleteVolumeRequest { volume_id: id, ..Default::default() };
        calls.extend([
            call("NodeUnpublishVolume", &unpublish),
            call("NodeUnstageVolume", &unstage),
            call("ControllerUnpublishVolume", &detach),
            call("DeleteVolume", &delete),
        ]);
    }
    calls
}

fn copies() -> Vec<Tagged> {
    use csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
    let a = volume_id("a");
    let from = |source| Some(csi::VolumeContentSource { r#type: Some(source) });
    let snapshot = SnapshotSource { snapshot_id: snapshot_id("s") };
    let restore = csi::CreateVolumeRequest {
        volume_content_source: from(Type::Snapshot(snapshot)),
        ..create("b", None)
    };
    let clone = csi::CreateVolumeRequest {
        volume_content_source: from(Type::Volume(VolumeSource { volume_id: a.clone() })),
        ..create("c", None)
    };
    let snapshot = |name: &str| csi::CreateSnapshotRequest {
        name: name.to_owned(),
        source_volume_id: a.clone(),
        ..Default::default()
    };
    let group = csi::CreateVolumeGroupSnapshotRequest {
        name: "g".to_owned(),
        source_volume_ids: vec![a.clone(), volume_id("b")],
        ..Default::default()
    };
    let allocated = csi::GetMetadataAllocatedRequest { snapshot_id: snapshot_id("s"), ..Default::default() };
    let delta = csi::GetMetadataDeltaRequest {
        base_snapshot_id: snapshot_id("s"),
        target_snapshot_id: snapshot_id("t"),
        ..Default::default()
    };
    let group_id = GroupSnapshotId::of_name(&NodeKey::of(rpc::NODE), "g").to_string();
    let get_group = csi::GetVolumeGroupSnapshotRequest { group_snapshot_id: group_id, ..Default::default() };
    vec![
        call("CreateVolume", &create("a", None)),
        call("CreateSnapshot", &snapshot("s")),
        call("CreateSnapshot", &snapshot("t")),
        call("CreateVolume", &restore),
        call("CreateVolume", &clone),
        call("CreateVolumeGroupSnapshot", &group),
        call("GetVolumeGroupSnapshot", &get_group),
        call("GetMetadataAllocated", &allocated),
        call("GetMetadataDelta", &delta),
        call("ListSnapshots", &csi::ListSnapshotsRequest { max_entries: 1, ..Default::default() }),
        call(
            "DeleteSnapshot",
            &csi::DeleteSnapshotRequest { snapshot_id: snapshot_id("s"), ..Default::default() },
        ),
    ]
}

fn peers() -> Vec<Tagged> {
    let target = VolumeId::of_name(&NodeKey::of("node-b"), "v");
    let grant = |source| {
        permit::encode(&Grant {
            source_node: rpc::NODE.to_owned(),
            target_node: "node-b".to_owned(),
            source,
            target: target.clone(),
            expires: u64::MAX,
        })
    };
    let volume = VolumeId::of_name(&NodeKey::of(rpc::NODE), "a");
    let cut = SnapshotId::of_pull(&NodeKey::of(rpc::NODE), &volume, &target).to_string();
    let permit = grant(VolumeSource::Volume(volume.clone()));
    let open = peer::OpenSourceRequest {
        source: Some(peer::open_source_request::Source::VolumeId(volume.to_string())),
        target_volume_id: target.to_string(),
        permit: permit.clone(),
        ..Default::default()
    };
    let (handle, permit) = (|| cut.clone(), || permit.clone());
    let mut calls = vec![
        call("CreateVolume", &create("a", Some("ext4"))),
        call("Hello", &peer::HelloRequest {}),
        call("FindVolume", &peer::FindVolumeRequest { volume_id: volume.to_string() }),
        call("FindSnapshot", &peer::FindSnapshotRequest { snapshot_id: cut.clone() }),
    ];
    calls.extend(handover(&cut, permit()));
    calls.extend([
        call("ReserveName", &peer::ReserveNameRequest { volume_id: volume_id("n") }),
        call("ReleaseName", &peer::ReleaseNameRequest { volume_id: volume_id("n") }),
        call("OpenSource", &open),
        call(
            "PullBlocks",
            &peer::PullBlocksRequest { handle: handle(), permit: permit(), ..Default::default() },
        ),
        call("PullTree", &peer::PullTreeRequest { handle: handle(), permit: permit(), ..Default::default() }),
        call("CloseSource", &peer::CloseSourceRequest { handle: handle(), permit: permit() }),
    ]);
    calls
}

/// The calls that move a snapshot to this node.
fn handover(cut: &str, permit: Vec<u8>) -> Vec<Tagged> {
    vec![
        call(
            "TakeSnapshot",
            &peer::TakeSnapshotRequest {
                snapshot_id: cut.to_owned(),
                source_address: "127.0.0.1:1".to_owned(),
                source_node_id: "node-b".to_owned(),
                permit,
                members: Vec::new(),
            },
        ),
        call(
            "ReleaseSnapshot",
            &peer::ReleaseSnapshotRequest {
                snapshot_id: cut.to_owned(),
                node_id: "node-b".to_owned(),
                number: 1,
            },
        ),
        call(
            "KeepSnapshot",
            &peer::KeepSnapshotRequest {
                snapshot_id: cut.to_owned(),
                node_id: "node-b".to_owned(),
                number: 1,
                alone: true,
            },
        ),
    ]
}

fn lives() -> Vec<Vec<u8>> {
    let every = METHODS.iter().enumerate().map(|(number, _)| (number as u8, Vec::new())).collect::<Vec<_>>();
    let (first, second) = every.split_at(METHODS.len() / 2);
    let mut lives = vec![copies(), peers(), first.to_vec(), second.to_vec()];
    for fs_type in [None, Some("ext4"), Some("xfs"), Some("btrfs"), Some("")] {
        lives.extend([life(fs_type, true), life(fs_type, false)]);
    }
    lives.iter().map(|calls| messages::write(calls)).collect()
}

fn description(content: peer::SourceContent, fs_type: &str) -> Vec<u8> {
    let answer = peer::OpenSourceResponse {
        handle: pull::snapshot().to_string(),
        created_ns: 1,
        content: content.into(),
        fs_type: fs_type.to_owned(),
        format: if fs_type.is_empty() { 0 } else { peer::SourceFormat::Formatted.into() },
        size_bytes: 64 << 20,
        requested_bytes: 64_000_000,
        block_size: 512,
        data_bytes: 8192,
        sealed: false,
        volume_created_ns: 1,
        generation: 1,
        moving: None,
    };
    answer.encode_to_vec()
}

fn block_stream() -> Vec<Tagged> {
    let data = |offset| Blocks::Data(Piece::new(offset, vec![7; 4096]));
    let placed = [(0, data(0)), (4096, data(1 << 20)), ((1 << 20) + 4096, Blocks::End { sent_bytes: 8192 })];
    let message = |(after, message)| (0, encode_blocks(Placed { after, message }).encode_to_vec());
    placed.into_iter().map(message).collect()
}

/// A tree of which a file has this of an earlier one.
fn tree_stream(basis: Basis) -> Vec<Tagged> {
    let entry = |number, parent, name: &str, kind, linked| {
        let basis = if matches!(kind, Kind::File { .. }) { basis } else { Basis::Nothing };
        let attributes = Attributes {
            mode: 0o755,
            extended: vec![(b"user.a".to_vec(), b"b".to_vec())],
            ..Default::default()
        };
        Item::Entry(Entry { number, parent, name: name.into(), kind, linked, attributes, basis })
    };
    let sends = |item: &Item| basis != Basis::Everything || !matches!(item, Item::Data(_) | Item::Zeros(_));
    let items = [
        entry(0, 0, "", Kind::Directory, false),
        entry(1, 0, "d", Kind::Directory, false),
        entry(2, 1, "f", Kind::File { size: 9000 }, true),
        Item::Data(Piece::new(0, vec![1; 4096])),
        Item::Alive,
        Item::Zeros(Zeros::new(4096, 4096)),
        Item::Data(Piece::new(8192, vec![2; 100])),
        entry(3, 1, "l", Kind::Link { entry: 2 }, true),
        entry(4, 0, "s", Kind::Symlink { target: b"../../other".to_vec() }, false),
        entry(5, 0, "c", Kind::Special { file_type: 0o020_000, rdev: 0x103 }, false),
        Item::End { entries: 6, sent_bytes: 4196 },
    ];
    let mut after = Position::default();
    let mut messages = Vec::new();
    for message in items.into_iter().filter(sends) {
        let behind = after.behind(&message);
        messages.push((0, encode_tree(Placed { after, message }).encode_to_vec()));
        after = behind;
    }
    messages
}

fn pulls() -> Vec<Vec<u8>> {
    use peer::SourceContent as Content;
    let with =
        |tag, description, stream: Vec<Tagged>| messages::write(&[vec![(tag, description)], stream].concat());
    vec![
        with(8, description(Content::Block, ""), block_stream()),
        with(1, description(Content::Filesystem, "ext4"), block_stream()),
        with(2, description(Content::Filesystem, "xfs"), block_stream()),
        with(0, description(Content::Directory, ""), tree_stream(Basis::Nothing)),
    ]
}

fn registration() -> Vec<Vec<u8>> {
    use hostloop::wire::registration::RegistrationStatus;
    let refused = RegistrationStatus { plugin_registered: false, error: "no".to_owned() };
    let registered = RegistrationStatus { plugin_registered: true, error: String::new() };
    vec![messages::write(&[(0, Vec::new()), (1, registered.encode_to_vec()), (1, refused.encode_to_vec())])]
}

fn mountinfo() -> Vec<Vec<u8>> {
    let lines = "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n\
                 36 22 7:300 /a /mnt/a\\040b ro,nosuid,noatime master:3 propagate_from:2 - xfs /dev/loop300 rw,nouuid\n\
                 37 22 0:5 / /x rw - tmpfs  rw,emergency_ro\n";
    vec![lines.into()]
}

fn signatures() -> Vec<Vec<u8>> {
    let mut ext4 = vec![0; 0x158];
    ext4[0x38..0x3c].copy_from_slice(&[0x53, 0xef, 3, 0]);
    ext4[0x60] = 0xc0;
    ext4[0x18] = 2;
    ext4[0x4] = 100;
    let mut btrfs = vec![0; 0x80];
    btrfs[0x40..0x48].copy_from_slice(b"_BHRfS_M");
    let raid = 0xa92b_4efc_u32.to_le_bytes().to_vec();
    let pieces: [(u8, &[u8]); 10] = [
        (6, &ext4),
        (10, &btrfs),
        (11, &raid),
        (0, b"XFSB\0\0\x10\0\0\0\0\0\0\0\0\x40"),
        (0, b"LUKS\xba\xbe"),
        (5, b"LVM2 001"),
        (8, b"SWAPSPACE2"),
        (9, b"CD001"),
        (7, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca"),
        (3, b"FAT32   "),
    ];
    pieces.map(|(tag, bytes)| messages::write(&[(tag, bytes.to_vec())])).into()
}

fn config() -> Vec<Vec<u8>> {
    let lines = [
        "serve\n--node-id\nn\n--data-dir\n/d\n--reserve\n10%\n--pool\nfast=/p,reserve=20Gi,overcommit=2",
        "serve\n--pool\nc=/d/c.img,kind=image,size=200Gi,fs=xfs\n--max-volume-size\n1Ti\n--log-format\njson",
        "serve\n--role\ncontroller\n--peer\na=10.0.0.1:9443\n--tls-dir\n/t",
        "serve\n--role\nnode\n--tls-dir\n/t\n--peer-listen\n[::1]:9443\n--metrics-listen\n127.0.0.1:9",
        "serve\n--endpoint\ntcp://127.0.0.1:1\n--socket-mode\n0600\n--shutdown-timeout\n30s",
        "selftest\n--only\next4\n--size\n64Mi\n--dir\n/tmp",
        "bench\n--dir\n/tmp\n--only\next4-thick\n--size\n64Mi\n--seconds\n9\n--svg\na\n--json",
        "bench\n--endpoint\n/a.sock\n--parameters\na=b\n--beside\n/b.sock\n--clients\n1,4\n--volumes\n9\n--block",
    ];
    lines.map(|line| line.as_bytes().to_vec()).into()
}
