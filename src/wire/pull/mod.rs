//! The messages with which one node pulls data from another, to plain types and back, on both sides.

mod changes;
mod tree;

pub use changes::{
    changes_request, complete_copy, decode_changes, delete_copy, encode_changes, encode_changes_request,
    encode_updated, moved_to, reclaim_volume, release_cuts, retire_volume, update_copy,
};
pub use tree::{decode_tree, encode_tree, encode_tree_request, tree_request};

use prost::Message as _;

use crate::error::{Error, Result};
use crate::model::pull::{Blocks, Keep, OpenSource, Piece, Placed, SourceDescription, SourceHandle};
use crate::model::{
    Consistency, Content, Format, GroupSnapshotId, Permit, SnapshotId, Timestamp, VolumeSource,
};
use crate::wire::decode::fields;
use crate::wire::{handover, peer};
use peer::open_source_request::{self, Source};
use peer::pull_blocks_response::Message;

/// A message that no node of any version sends: what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub String);

pub fn encode_open(request: &OpenSource, permit: &Permit) -> peer::OpenSourceRequest {
    let OpenSource { source, target, consistency, began, keep, by_file } = request;
    peer::OpenSourceRequest {
        source: Some(match source {
            VolumeSource::Snapshot(id) => Source::SnapshotId(id.to_string()),
            VolumeSource::Volume(id) => Source::VolumeId(id.to_string()),
        }),
        target_volume_id: target.to_string(),
        no_freeze: !consistency.freeze,
        by_file: *by_file,
        freeze_timeout_ms: consistency.freeze_timeout_ms,
        permit: permit.as_bytes().to_vec(),
        began_ns: began.as_nanos(),
        keep: match keep {
            Keep::Nothing => None,
            Keep::First => Some(open_source_request::Keep::First(open_source_request::KeepFirst {})),
            Keep::After(cut) => Some(open_source_request::Keep::After(encode_cut(cut))),
            Keep::Made(cut) => Some(open_source_request::Keep::Made(encode_cut(cut))),
            Keep::Moves { node_id, group } => {
                let group_id = group.as_ref().map(ToString::to_string).unwrap_or_default();
                let moves = open_source_request::Moves { node_id: node_id.clone(), group_id };
                Some(open_source_request::Keep::Moves(moves))
            }
        },
    }
}

fn encode_cut(cut: &SourceHandle) -> peer::Cut {
    peer::Cut { handle: cut.id.to_string(), created_ns: cut.created.as_nanos() }
}

/// A cut that a request names.
///
/// # Errors
/// NOT_FOUND for one that no node has.
fn cut(cut: &peer::Cut) -> Result<SourceHandle> {
    handle(&cut.handle, cut.created_ns)
}

/// OpenSource as it arrives.
///
/// # Errors
/// `Invalid` for a target that is not a volume of hostloop; NOT_FOUND for a source that cannot be one.
pub fn open_source(request: peer::OpenSourceRequest) -> Result<OpenSource> {
    let missing = |id: &str| Error::NotFound(format!("source {id:?} does not exist"));
    let source = match request.source {
        Some(Source::SnapshotId(id)) => VolumeSource::Snapshot(id.parse().map_err(|_| missing(&id))?),
        Some(Source::VolumeId(id)) => VolumeSource::Volume(id.parse().map_err(|_| missing(&id))?),
        None => return Err(Error::Invalid("source is missing".to_owned())),
    };
    let target = request.target_volume_id.parse();
    let target = target.map_err(|error| Error::Invalid(format!("target_volume_id: {error}")))?;
    let consistency = consistency(request.no_freeze, request.freeze_timeout_ms);
    let began = Timestamp::from_nanos(request.began_ns);
    let keep = match &request.keep {
        None => Keep::Nothing,
        Some(open_source_request::Keep::First(_)) => Keep::First,
        Some(open_source_request::Keep::After(base)) => Keep::After(cut(base)?),
        Some(open_source_request::Keep::Made(made)) => Keep::Made(cut(made)?),
        Some(open_source_request::Keep::Moves(moves)) => Keep::Moves {
            node_id: fields::node_id(moves.node_id.clone())?,
            group: group_of(&moves.group_id)?,
        },
    };
    Ok(OpenSource { source, target, consistency, began, keep, by_file: request.by_file })
}

fn group_of(id: &str) -> Result<Option<GroupSnapshotId>> {
    let group = (!id.is_empty()).then(|| id.parse()).transpose();
    group.map_err(|error| Error::Invalid(format!("group_id: {error}")))
}

/// Returns the last second of the permit of a request, in seconds since 1970; `None` if the permit cannot be read. The caller
/// has checked its signature.
pub fn order(request: &peer::OpenSourceRequest) -> Option<u64> {
    let signed = peer::SignedPermit::decode(request.permit.as_slice()).ok()?;
    // What was signed cannot be written in another way, unlike the message around it.
    super::permit::decode(&signed.permit).ok().map(|grant| grant.expires)
}

/// How a volume in use is cut.
pub(super) fn consistency(no_freeze: bool, freeze_timeout_ms: u64) -> Consistency {
    let freeze_timeout_ms = match freeze_timeout_ms {
        0 => Consistency::default().freeze_timeout_ms,
        // Whoever is at the other end, nobody hangs for longer than a StorageClass can say.
        limit => limit.min(Consistency::LONGEST_FREEZE_MS),
    };
    Consistency { freeze: !no_freeze, freeze_timeout_ms }
}

pub fn encode_description(source: &SourceDescription) -> peer::OpenSourceResponse {
    use peer::{SourceContent, SourceFormat};
    let content = match source.content {
        Content::Block => SourceContent::Block,
        Content::Directory => SourceContent::Directory,
        Content::Filesystem { .. } => SourceContent::Filesystem,
    };
    let fs_type = source.content.fs_type();
    let format = match source.content.format() {
        None => SourceFormat::Unspecified,
        Some(Format::Blank) => SourceFormat::Blank,
        Some(Format::Formatting) => SourceFormat::Formatting,
        Some(Format::Copied | Format::Formatted) => SourceFormat::Formatted,
    };
    peer::OpenSourceResponse {
        handle: source.handle.id.to_string(),
        created_ns: source.handle.created.as_nanos(),
        content: content.into(),
        fs_type: fs_type.map(|fs_type| fs_type.to_string()).unwrap_or_default(),
        format: format.into(),
        size_bytes: source.size_bytes,
        requested_bytes: source.requested_bytes.unwrap_or_default(),
        block_size: source.block_size,
        data_bytes: source.data_bytes,
        sealed: source.sealed,
        generation: source.generation,
        volume_created_ns: source.volume_created.map_or(0, Timestamp::as_nanos),
        moving: source.moving.as_ref().map(handover::encode_moving),
    }
}

/// OpenSource's answer as it arrives.
///
/// # Errors
/// [`Malformed`], also for what only a newer node knows.
pub fn decode_description(answer: peer::OpenSourceResponse) -> Result<SourceDescription, Malformed> {
    use peer::{SourceContent, SourceFormat};
    let content = match answer.content() {
        SourceContent::Block => Content::Block,
        SourceContent::Directory => Content::Directory,
        SourceContent::Filesystem => {
            let format = match answer.format() {
                SourceFormat::Blank => Format::Blank,
                SourceFormat::Formatting => Format::Formatting,
                SourceFormat::Formatted => Format::Formatted,
                SourceFormat::Unspecified => return Err(Malformed("it has no format".to_owned())),
            };
            let fs_type = answer.fs_type.parse();
            Content::Filesystem {
                fs_type: fs_type
                    .map_err(|error: crate::model::UnknownFsType| Malformed(error.to_string()))?,
                format,
            }
        }
        SourceContent::Unspecified => {
            return Err(Malformed(format!("its content is of kind {}", answer.content)));
        }
    };
    if !(512..=4096).contains(&answer.block_size) || !answer.block_size.is_power_of_two() {
        return Err(Malformed(format!("its blocks have {} bytes", answer.block_size)));
    }
    // The size of a directory is a wish that nothing enforces.
    let most = if content == Content::Directory { u64::MAX } else { answer.size_bytes };
    Ok(SourceDescription {
        handle: decode_handle(&answer.handle, answer.created_ns)?,
        content,
        size_bytes: answer.size_bytes,
        requested_bytes: Some(answer.requested_bytes).filter(|bytes| (1..answer.size_bytes).contains(bytes)),
        block_size: answer.block_size,
        data_bytes: answer.data_bytes.min(most),
        sealed: answer.sealed,
        generation: answer.generation,
        volume_created: Some(answer.volume_created_ns).filter(|nanos| *nanos > 0).map(Timestamp::from_nanos),
        moving: answer.moving.map(handover::decode_moving).transpose()?,
    })
}

fn decode_handle(handle: &str, created_ns: u64) -> Result<SourceHandle, Malformed> {
    let id = handle.parse().map_err(|error: crate::model::InvalidId| Malformed(error.to_string()))?;
    Ok(SourceHandle { id, created: Timestamp::from_nanos(created_ns) })
}

/// The handle of a request as it arrives.
///
/// # Errors
/// NOT_FOUND for one that no source has.
fn handle(handle: &str, created_ns: u64) -> Result<SourceHandle> {
    decode_handle(handle, created_ns)
        .map_err(|_| Error::NotFound(format!("source {handle:?} does not exist")))
}

pub fn encode_blocks_request(handle: &SourceHandle, offset: u64, permit: &Permit) -> peer::PullBlocksRequest {
    let (created_ns, permit) = (handle.created.as_nanos(), permit.as_bytes().to_vec());
    peer::PullBlocksRequest { handle: handle.id.to_string(), created_ns, offset, permit }
}

/// PullBlocks as it arrives: what to read, and from where on.
///
/// # Errors
/// NOT_FOUND for a handle that no source has.
pub fn blocks_request(request: &peer::PullBlocksRequest) -> Result<(SourceHandle, u64)> {
    Ok((handle(&request.handle, request.created_ns)?, request.offset))
}

/// A message of PullBlocks' answer as it is sent.
pub fn encode_blocks(Placed { after, message }: Placed<u64, Blocks>) -> peer::PullBlocksResponse {
    let message = match message {
        Blocks::Data(piece) => Message::Data(encode_piece(piece)),
        Blocks::End { sent_bytes } => Message::End(peer::BlocksEnd { sent_bytes }),
    };
    peer::PullBlocksResponse { message: Some(message), after }
}

/// The same as it arrives.
pub fn decode_blocks(answer: peer::PullBlocksResponse) -> Result<Placed<u64, Blocks>, Malformed> {
    let after = answer.after;
    match answer.message {
        Some(Message::Data(data)) => Ok(Blocks::Data(decode_piece(data))),
        Some(Message::End(end)) => Ok(Blocks::End { sent_bytes: end.sent_bytes }),
        None => Err(Malformed("a message without content".to_owned())),
    }
    .map(|message| Placed { after, message })
}

fn encode_piece(piece: Piece) -> peer::Data {
    peer::Data { offset: piece.offset, data: piece.data, crc32: piece.crc32 }
}

fn decode_piece(data: peer::Data) -> Piece {
    Piece { offset: data.offset, data: data.data, crc32: data.crc32 }
}

pub fn encode_close(cut: &SnapshotId, permit: &Permit) -> peer::CloseSourceRequest {
    peer::CloseSourceRequest { handle: cut.to_string(), permit: permit.as_bytes().to_vec() }
}

/// CloseSource as it arrives; `None` for a handle that no source has.
pub fn close_source(request: &peer::CloseSourceRequest) -> Option<SnapshotId> {
    request.handle.parse().ok()
}

#[cfg(test)]
mod tests;
