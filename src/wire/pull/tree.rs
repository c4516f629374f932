//! Entries of a directory tree.

use prost::Message as _;

use super::{Malformed, cut, decode_piece, encode_cut, encode_piece, handle};
use crate::error::Result;
use crate::model::Permit;
use crate::model::pull::{Placed, SourceHandle, Zeros};
use crate::model::tree::{Attributes, Basis, Entry, FileTime, Item, Kind, Position};
use crate::wire::{fields, peer};
use peer::pull_tree_response::{Alive, Message, Place};
use peer::tree_entry as wire;

/// NAME_MAX in bytes. An error names the entry.
const LONGEST_NAME: usize = 255;

/// The fields of the extended attributes in a TreeEntry.
const EXTENDED: [u32; 2] = [9, 6];

/// PullTree of a source, from a place on; `base` is the earlier cut of which the reader has everything.
pub fn encode_tree_request(
    handle: &SourceHandle,
    base: Option<&SourceHandle>,
    from: Position,
    permit: &Permit,
) -> peer::PullTreeRequest {
    peer::PullTreeRequest {
        handle: handle.id.to_string(),
        created_ns: handle.created.as_nanos(),
        entry: from.entry,
        offset: from.offset,
        permit: permit.as_bytes().to_vec(),
        base: base.map(encode_cut),
    }
}

/// PullTree as it arrives: what to read, the earlier cut that the reader has, and from where on.
///
/// # Errors
/// NOT_FOUND for a handle that no source has.
pub fn tree_request(
    request: &peer::PullTreeRequest,
) -> Result<(SourceHandle, Option<SourceHandle>, Position)> {
    let from = Position { entry: request.entry, offset: request.offset };
    let base = request.base.as_ref().map(cut).transpose()?;
    Ok((handle(&request.handle, request.created_ns)?, base, from))
}

/// A message of PullTree's answer as it is sent.
pub fn encode_tree(Placed { after, message }: Placed<Position, Item>) -> peer::PullTreeResponse {
    let message = match message {
        Item::Entry(entry) => {
            let tree_entry = encode_entry(entry).encode_to_vec();
            let crc32 = crc32fast::hash(&tree_entry);
            Message::Entry(peer::CheckedEntry { tree_entry: tree_entry.into(), crc32 })
        }
        Item::Data(piece) => Message::Data(encode_piece(piece)),
        Item::Zeros(Zeros { offset, len, crc32 }) => Message::Zeros(peer::Zeros { offset, len, crc32 }),
        Item::Alive => Message::Alive(Alive {}),
        Item::End { entries, sent_bytes } => Message::End(peer::TreeEnd { entries, sent_bytes }),
    };
    let after = Place { entry: after.entry, offset: after.offset };
    peer::PullTreeResponse { message: Some(message), after: Some(after) }
}

/// The same as it arrives. The checksum of an entry is checked here, that of data by whoever writes them.
pub fn decode_tree(answer: peer::PullTreeResponse) -> Result<Placed<Position, Item>, Malformed> {
    let Place { entry, offset } =
        answer.after.ok_or_else(|| Malformed("a message does not say where it belongs".to_owned()))?;
    let after = Position { entry, offset };
    match answer.message {
        Some(Message::Entry(checked)) => {
            if crc32fast::hash(&checked.tree_entry) != checked.crc32 {
                return Err(Malformed("an entry arrived with a wrong checksum".to_owned()));
            }
            expect_few_attributes(&checked.tree_entry)?;
            let entry = peer::TreeEntry::decode(checked.tree_entry);
            decode_entry(entry.map_err(|error| Malformed(format!("an entry cannot be read: {error}")))?)
                .map(Item::Entry)
        }
        Some(Message::Data(data)) => Ok(Item::Data(decode_piece(data))),
        Some(Message::Zeros(peer::Zeros { offset, len, crc32 })) => {
            Ok(Item::Zeros(Zeros { offset, len, crc32 }))
        }
        Some(Message::Alive(Alive {})) => Ok(Item::Alive),
        Some(Message::End(end)) => Ok(Item::End { entries: end.entries, sent_bytes: end.sent_bytes }),
        None => Err(Malformed("a message without content".to_owned())),
    }
    .map(|message| Placed { after, message })
}

/// Checks the number of extended attributes before they are decoded: each takes far more memory than room in the message.
fn expect_few_attributes(entry: &[u8]) -> Result<(), Malformed> {
    match fields::count(entry, &EXTENDED) {
        Some(count) if count <= Attributes::MOST_EXTENDED => Ok(()),
        Some(count) => Err(Malformed(format!("an entry has {count} extended attributes"))),
        None => Err(Malformed("an entry cannot be read".to_owned())),
    }
}

fn encode_entry(entry: Entry) -> peer::TreeEntry {
    let Entry { number, parent, name, kind, linked, attributes, basis } = entry;
    let is_link = matches!(kind, Kind::Link { .. });
    let kind = match kind {
        Kind::Directory => wire::Kind::Directory(wire::Directory {}),
        Kind::File { size } => wire::Kind::File(wire::File { size }),
        Kind::Symlink { target } => wire::Kind::Symlink(wire::Symlink { target }),
        Kind::Special { file_type, rdev } => wire::Kind::Special(wire::Special { file_type, rdev }),
        Kind::Link { entry } => wire::Kind::Link(wire::Link { entry }),
    };
    let attributes = (!is_link).then(|| encode_attributes(attributes));
    let basis = match basis {
        Basis::Nothing => wire::Basis::Unspecified,
        Basis::Content => wire::Basis::Content,
        Basis::Everything => wire::Basis::Everything,
    };
    peer::TreeEntry { number, parent, name, kind: Some(kind), attributes, linked, basis: basis.into() }
}

fn encode_attributes(attributes: Attributes) -> peer::Attributes {
    use peer::attributes::Extended;
    let Attributes { mode, uid, gid, atime, mtime, extended, flags } = attributes;
    let time = |time: FileTime| peer::attributes::FileTime { seconds: time.seconds, nanos: time.nanos };
    let extended = extended.into_iter().map(|(name, value)| Extended { name, value }).collect();
    let (atime, mtime) = (Some(time(atime)), Some(time(mtime)));
    peer::Attributes { mode, uid, gid, atime, mtime, extended, flags }
}

fn decode_entry(entry: peer::TreeEntry) -> Result<Entry, Malformed> {
    let number = entry.number;
    let basis = match wire::Basis::try_from(entry.basis) {
        Ok(wire::Basis::Unspecified) => Basis::Nothing,
        Ok(wire::Basis::Content) => Basis::Content,
        Ok(wire::Basis::Everything) => Basis::Everything,
        Err(_) => {
            return Err(Malformed(format!("entry {number} has a basis that this version does not know")));
        }
    };
    let kind = match entry.kind {
        Some(wire::Kind::Directory(_)) => Kind::Directory,
        Some(wire::Kind::File(file)) => Kind::File { size: file.size },
        Some(wire::Kind::Symlink(link)) => Kind::Symlink { target: link.target },
        Some(wire::Kind::Special(node)) => Kind::Special { file_type: node.file_type, rdev: node.rdev },
        Some(wire::Kind::Link(link)) => Kind::Link { entry: link.entry },
        None => {
            return Err(Malformed(format!("entry {number} is of a kind that this version does not know")));
        }
    };
    let name = entry.name;
    let is_name = name.is_empty() == (number == 0)
        && name.len() <= LONGEST_NAME
        && !name.iter().any(|byte| matches!(byte, b'/' | 0))
        && name != b"."
        && name != b"..";
    if !is_name || (number != 0 && entry.parent >= number) {
        return Err(Malformed(format!("entry {number} has no place in a tree")));
    }
    if basis != Basis::Nothing && !matches!(kind, Kind::File { .. }) {
        return Err(Malformed(format!("entry {number} has a basis and is no regular file")));
    }
    let attributes = entry.attributes.map(decode_attributes).unwrap_or_default();
    Ok(Entry { number, parent: entry.parent, name, kind, linked: entry.linked, attributes, basis })
}

fn decode_attributes(attributes: peer::Attributes) -> Attributes {
    let peer::Attributes { mode, uid, gid, atime, mtime, extended, flags } = attributes;
    let time = |time: Option<peer::attributes::FileTime>| {
        time.map(|time| FileTime { seconds: time.seconds, nanos: time.nanos }).unwrap_or_default()
    };
    let extended = extended.into_iter().map(|pair| (pair.name, pair.value)).collect();
    Attributes { mode: mode & 0o7777, uid, gid, atime: time(atime), mtime: time(mtime), extended, flags }
}
