//! The answers of a hostile node to one that pulls a volume from it, up to the files that are made of them. The first
//! message is the description of the source, each further one a part of its stream.

use std::sync::Arc;
use std::time::Duration;

use hostloop::driver::{Broken, RemoteSource, RemoteSources, Take};
use hostloop::error::{Error, Result};
use hostloop::model::pull::{
    Blocks, Changes, OpenSource, Piece, Placed, SourceDescription, SourceHandle, Way, Zeros,
};
use hostloop::model::request::CreateVolume;
use hostloop::model::tree::{Item, Position};
use hostloop::model::{NodeKey, Permit, SnapshotId};
use hostloop::selftest::requests;
use hostloop::wire::peer::pull_blocks_response::Message as BlocksMessage;
use hostloop::wire::peer::pull_changes_response::Message as ChangesMessage;
use hostloop::wire::peer::pull_tree_response::Message as TreeMessage;
use hostloop::wire::pull::{Malformed, decode_blocks, decode_changes, decode_description, decode_tree};
use hostloop::wire::{csi, decode, peer};
use prost::Message as _;

use crate::machine::{machine, settings};
use crate::messages::{self, Tagged};

/// The node that pulls.
const NODE: &str = "node-b";
/// A message with this bit in its tag keeps its checksum, right or wrong.
const AS_IT_IS: u8 = 0x80;

/// The snapshot that is pulled.
pub fn snapshot() -> SnapshotId {
    SnapshotId::of_name(&NodeKey::of("node-a"), "s")
}

/// The node with the source.
struct Hostile(Vec<Tagged>);

struct Opened {
    description: SourceDescription,
    stream: Vec<Tagged>,
}

impl RemoteSources for Hostile {
    fn open(&self, _: &Way, _: &OpenSource) -> Result<Arc<dyn RemoteSource>> {
        let refused = || Error::Unavailable("the node makes no sense".to_owned());
        let (first, stream) = self.0.split_first().ok_or_else(refused)?;
        let answer = peer::OpenSourceResponse::decode(first.1.as_slice()).map_err(|_| refused())?;
        let description = decode_description(answer).map_err(|_| refused())?;
        Ok(Arc::new(Opened { description, stream: stream.to_vec() }))
    }

    fn patience(&self) -> Duration {
        Duration::ZERO
    }
}

impl RemoteSource for Opened {
    fn description(&self) -> &SourceDescription {
        &self.description
    }

    fn blocks(&self, _: u64, take: Take<'_, u64, Blocks>) -> std::result::Result<(), Broken> {
        self.stream.iter().try_for_each(|message| take(blocks(message).map_err(broken)?))
    }

    fn tree(
        &self,
        _: Option<&SourceHandle>,
        _: Position,
        take: Take<'_, Position, Item>,
    ) -> std::result::Result<(), Broken> {
        self.stream.iter().try_for_each(|message| take(tree(message).map_err(broken)?))
    }

    fn show(&self, _: &Way) {}

    fn moves(&self) -> u64 {
        0
    }

    fn changes(
        &self,
        _: &SourceHandle,
        _: u64,
        take: Take<'_, u64, Changes>,
    ) -> std::result::Result<(), Broken> {
        self.stream.iter().try_for_each(|message| take(changes(message).map_err(broken)?))
    }

    fn end(&self) {}

    fn close(&self, _: &SnapshotId) {}
}

fn broken(Malformed(why): Malformed) -> Broken {
    Broken::Damaged(why)
}

fn unreadable(error: prost::DecodeError) -> Malformed {
    Malformed(error.to_string())
}

fn blocks((tag, bytes): &Tagged) -> std::result::Result<Placed<u64, Blocks>, Malformed> {
    let mut answer = peer::PullBlocksResponse::decode(bytes.as_slice()).map_err(unreadable)?;
    if tag & AS_IT_IS == 0
        && let Some(BlocksMessage::Data(data)) = &mut answer.message
    {
        data.crc32 = Piece::checksum(data.offset, &data.data);
    }
    decode_blocks(answer)
}

/// A message of what has changed as the node that pulls sees it.
fn changes((tag, bytes): &Tagged) -> std::result::Result<Placed<u64, Changes>, Malformed> {
    let mut answer = peer::PullChangesResponse::decode(bytes.as_slice()).map_err(unreadable)?;
    match &mut answer.message {
        _ if tag & AS_IT_IS != 0 => {}
        Some(ChangesMessage::Data(data)) => data.crc32 = Piece::checksum(data.offset, &data.data),
        Some(ChangesMessage::Zeros(zeros)) => zeros.crc32 = Zeros::checksum(zeros.offset, zeros.len),
        _ => {}
    }
    decode_changes(answer)
}

/// A message of a tree as the node that pulls sees it.
///
/// # Errors
/// What that one finds wrong.
pub fn tree((tag, bytes): &Tagged) -> std::result::Result<Placed<Position, Item>, Malformed> {
    let mut answer = peer::PullTreeResponse::decode(bytes.as_slice()).map_err(unreadable)?;
    match &mut answer.message {
        _ if tag & AS_IT_IS != 0 => {}
        Some(TreeMessage::Entry(entry)) => entry.crc32 = crc32fast::hash(&entry.tree_entry),
        Some(TreeMessage::Data(data)) => data.crc32 = Piece::checksum(data.offset, &data.data),
        _ => {}
    }
    decode_tree(answer)
}

/// Runs one input. The tag of its first message is the kind of volume that is wanted.
pub fn run(input: &[u8]) {
    let messages = messages::read(input);
    let Some((kind, _)) = messages.first() else { return };
    let request = CreateVolume {
        way: Permit::new(Vec::new()).map(|permit| Way {
            node_key: NodeKey::of("node-a"),
            address: "10.0.0.1:9443".to_owned(),
            permit,
        }),
        ..decode::create_volume(request(*kind)).expect("a good request")
    };
    let kernel = machine();
    let driver = hostloop::app::driver(settings(NODE), kernel.os()).expect("an empty machine");
    driver.recover();
    let driver = driver.with_remote_sources(Arc::new(Hostile(messages)));
    let made = driver.create_volume(request);
    assert_eq!(kernel.hazards(), Vec::<String>::new());
    let files: Vec<_> = ["/var/lib/hostloop/volumes", "/pools/directories/volumes"]
        .iter()
        .flat_map(|directory| kernel.tree(directory))
        .collect();
    match made {
        Ok(_) => assert!(!files.is_empty()),
        Err(error) => {
            assert!(files.is_empty() && driver.store().volumes().is_empty(), "{error}: {files:?} were left");
        }
    }
}

fn request(kind: u8) -> csi::CreateVolumeRequest {
    use csi::volume_capability::access_mode::Mode;
    use requests::{MadeFrom, capability, parameters};
    let fs_type = ["", "ext4", "xfs"][usize::from(kind) % 3];
    let (block, directory) = (kind & 8 != 0, kind.is_multiple_of(3));
    let class: &[_] =
        if directory && !block { &[("backend", "directory"), ("pool", "directories")] } else { &[] };
    let request = csi::CreateVolumeRequest {
        name: "v".to_owned(),
        volume_capabilities: vec![capability((!block).then_some(fs_type), Mode::SingleNodeWriter)],
        parameters: parameters(class),
        ..Default::default()
    };
    MadeFrom::Snapshot(snapshot().to_string()).source_of(request)
}
