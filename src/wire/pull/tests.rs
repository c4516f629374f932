use proptest::prelude::*;
use prost::Message as _;

use super::*;
use crate::model::pull::Zeros;
use crate::model::tree::{Attributes, Basis, Entry, FileTime, Item, Kind, Position};
use crate::model::{FsType, Grant, NodeKey, VolumeId};

fn snapshot() -> SnapshotId {
    SnapshotId::of_name(&NodeKey::of("node-a"), "s")
}

fn volume(name: &str) -> VolumeId {
    VolumeId::of_name(&NodeKey::of("node-a"), name)
}

#[test]
fn an_order_arrives_as_it_was_sent() {
    for source in [VolumeSource::Snapshot(snapshot()), VolumeSource::Volume(volume("v"))] {
        for freeze in [true, false] {
            let consistency = Consistency { freeze, freeze_timeout_ms: 7 };
            let began = Timestamp::from_nanos(7);
            let cut = SourceHandle { id: snapshot(), created: Timestamp::from_nanos(9) };
            for keep in [Keep::Nothing, Keep::First, Keep::After(cut.clone()), Keep::Made(cut)] {
                let (source, target) = (source.clone(), volume("new"));
                let order = OpenSource { source, target, consistency, began, keep, by_file: !freeze };
                let sent = encode_open(&order, &Permit::new(b"a permit".to_vec()).expect("a short one"));
                assert_eq!(sent.permit, b"a permit");
                assert_eq!(open_source(sent).expect("an order"), order);
            }
        }
    }
    let order = peer::OpenSourceRequest {
        source: Some(Source::VolumeId(volume("v").to_string())),
        target_volume_id: volume("new").to_string(),
        ..Default::default()
    };
    assert_eq!(open_source(order.clone()).expect("an order").consistency, Consistency::default());
    let for_ever = peer::OpenSourceRequest { freeze_timeout_ms: u64::MAX, ..order };
    let bounded = open_source(for_ever).expect("an order").consistency.freeze_timeout_ms;
    assert_eq!(bounded, Consistency::LONGEST_FREEZE_MS);
}

#[test]
fn an_order_is_known_by_the_end_of_its_permit() {
    let grant = Grant {
        source_node: "a".to_owned(),
        target_node: "b".to_owned(),
        source: VolumeSource::Volume(volume("v")),
        target: volume("copy"),
        expires: 1_800_000_000,
    };
    let permit = peer::SignedPermit { permit: crate::wire::permit::encode(&grant), ..Default::default() };
    let request = peer::OpenSourceRequest { permit: permit.encode_to_vec(), ..Default::default() };
    assert_eq!(order(&request), Some(1_800_000_000));
    let damaged = peer::OpenSourceRequest { permit: b"no permit".to_vec(), ..Default::default() };
    assert_eq!(order(&damaged), None);
}

#[test]
fn an_order_for_nothing_is_refused() {
    let order = |id: &str, target: &str| {
        let source = Some(Source::SnapshotId(id.to_owned()));
        open_source(peer::OpenSourceRequest {
            source,
            target_volume_id: target.to_owned(),
            ..Default::default()
        })
    };
    let target = volume("new").to_string();
    assert!(matches!(order("../../etc", &target), Err(Error::NotFound(_))));
    assert!(matches!(order(snapshot().as_str(), "../x"), Err(Error::Invalid(_))));
    let empty = peer::OpenSourceRequest { target_volume_id: target, ..Default::default() };
    assert!(matches!(open_source(empty), Err(Error::Invalid(_))));
}

#[test]
fn a_description_arrives_as_it_was_sent() {
    let handle = SourceHandle { id: snapshot(), created: Timestamp::now() };
    let filesystem = |format| Content::Filesystem { fs_type: FsType::Xfs, format };
    let contents =
        [Content::Block, Content::Directory, filesystem(Format::Blank), filesystem(Format::Formatted)];
    for content in contents {
        let (handle, size_bytes, block_size, data_bytes) = (handle.clone(), 1 << 40, 4096, 12345);
        for sealed in [false, true] {
            let (handle, content) = (handle.clone(), content.clone());
            let requested_bytes = sealed.then_some(1_000_000_000_000);
            let source = SourceDescription {
                handle,
                content,
                size_bytes,
                requested_bytes,
                block_size,
                data_bytes,
                sealed,
                generation: 2,
                volume_created: sealed.then(|| Timestamp::from_nanos(1_700_000_000_000_000_001)),
                moving: None,
            };
            assert_eq!(decode_description(encode_description(&source)), Ok(source));
        }
    }
    let good = || {
        let (handle, content) = (handle.clone(), Content::Block);
        encode_description(&SourceDescription {
            handle,
            content,
            size_bytes: 1,
            requested_bytes: None,
            block_size: 512,
            data_bytes: 0,
            sealed: false,
            generation: 0,
            volume_created: None,
            moving: None,
        })
    };
    assert!(decode_description(good()).is_ok());
    // A size is never less than was asked for.
    let more = decode_description(peer::OpenSourceResponse { requested_bytes: 2, ..good() });
    assert_eq!(more.map(|source| source.requested_bytes), Ok(None));
    for bad in [
        peer::OpenSourceResponse { handle: "/".to_owned(), ..good() },
        peer::OpenSourceResponse::default(),
        peer::OpenSourceResponse { content: 0, ..good() },
        peer::OpenSourceResponse { content: 77, ..good() },
        peer::OpenSourceResponse { content: 2, format: 3, fs_type: "vfat".to_owned(), ..good() },
        peer::OpenSourceResponse { content: 2, format: 0, fs_type: "xfs".to_owned(), ..good() },
        peer::OpenSourceResponse { block_size: 0, ..good() },
        peer::OpenSourceResponse { block_size: 513, ..good() },
        peer::OpenSourceResponse { block_size: 1 << 20, ..good() },
    ] {
        assert!(decode_description(bad.clone()).is_err(), "{bad:?}");
    }
}

fn entry(kind: Kind) -> Entry {
    let attributes = Attributes {
        mode: 0o4755,
        uid: 1000,
        gid: 0,
        atime: FileTime { seconds: -1, nanos: 999_999_999 },
        mtime: FileTime { seconds: 1 << 33, nanos: 0 },
        extended: vec![(b"user.x".to_vec(), vec![0, 255])],
        flags: Some(64),
    };
    let attributes = if matches!(kind, Kind::Link { .. }) { Attributes::default() } else { attributes };
    Entry {
        number: 3,
        parent: 1,
        name: vec![0xff, b'a'],
        kind,
        linked: true,
        attributes,
        basis: Basis::Nothing,
    }
}

fn placed(item: Item) -> Placed<Position, Item> {
    Placed { after: Position { entry: 3, offset: 11 }, message: item }
}

fn kinds() -> [Kind; 5] {
    [
        Kind::Directory,
        Kind::File { size: 1 << 50 },
        Kind::Symlink { target: b"../x\xff".to_vec() },
        Kind::Special { file_type: 0o010000, rdev: 0 },
        Kind::Link { entry: 2 },
    ]
}

#[test]
fn an_entry_arrives_as_it_was_sent() {
    for item in kinds().map(|kind| placed(Item::Entry(entry(kind)))) {
        assert_eq!(decode_tree(encode_tree(item.clone())), Ok(item));
    }
}

#[test]
fn the_basis_of_a_file_arrives() {
    for basis in [Basis::Nothing, Basis::Content, Basis::Everything] {
        let item = placed(Item::Entry(Entry { basis, ..entry(Kind::File { size: 1 }) }));
        assert_eq!(decode_tree(encode_tree(item.clone())), Ok(item));
    }
    for item in [Item::Zeros(Zeros::new(7, 9)), Item::Alive].map(placed) {
        assert_eq!(decode_tree(encode_tree(item.clone())), Ok(item));
    }
    let directory = Entry { basis: Basis::Content, ..entry(Kind::Directory) };
    assert!(decode_tree(encode_tree(placed(Item::Entry(directory)))).is_err());
    let handle = SourceHandle { id: snapshot(), created: Timestamp::from_nanos(9) };
    let base = SourceHandle { created: Timestamp::from_nanos(8), ..handle.clone() };
    let (from, permit) = (Position { entry: 3, offset: 4 }, Permit::new(vec![1]).expect("a short one"));
    for base in [None, Some(base)] {
        let request = encode_tree_request(&handle, base.as_ref(), from, &permit);
        assert_eq!(tree_request(&request).expect("a request"), (handle.clone(), base, from));
    }
}

#[test]
fn a_message_without_its_place_is_refused() {
    let data = Placed { after: 7, message: Blocks::Data(Piece::new(9, vec![1])) };
    assert_eq!(decode_blocks(encode_blocks(data.clone())), Ok(data));
    let item = encode_tree(placed(Item::Entry(entry(Kind::Directory))));
    assert!(decode_tree(peer::PullTreeResponse { after: None, ..item }).is_err());
}

#[test]
fn an_entry_that_leads_out_of_the_tree_is_refused() {
    for name in ["", ".", "..", "a/b", "/", "a\0b", &"n".repeat(256)] {
        let bad = Entry { name: name.as_bytes().to_vec(), ..entry(Kind::Directory) };
        assert!(decode_tree(encode_tree(placed(Item::Entry(bad)))).is_err(), "{name:?}");
    }
    let bad = Entry { parent: 3, ..entry(Kind::Directory) };
    assert!(decode_tree(encode_tree(placed(Item::Entry(bad)))).is_err());
    let top = Entry { number: 0, parent: 0, ..entry(Kind::Directory) };
    assert!(decode_tree(encode_tree(placed(Item::Entry(top.clone())))).is_err(), "the top has no name");
    assert!(decode_tree(encode_tree(placed(Item::Entry(Entry { name: Vec::new(), ..top })))).is_ok());
}

/// Each takes 2 bytes of the message, and 48 bytes of memory.
#[test]
fn an_entry_with_too_many_attributes_is_refused() {
    let with = |number| {
        let extended = vec![Default::default(); number];
        let entry = entry(Kind::Directory);
        encode_tree(placed(Item::Entry(Entry {
            attributes: Attributes { extended, ..entry.attributes },
            ..entry
        })))
    };
    assert!(decode_tree(with(Attributes::MOST_EXTENDED)).is_ok());
    let refused = decode_tree(with(Attributes::MOST_EXTENDED + 1));
    assert_eq!(refused, Err(Malformed("an entry has 10001 extended attributes".to_owned())));
}

proptest! {
    #[test]
    fn a_changed_entry_is_noticed(at in any::<prop::sample::Index>(), bit in 0u8..8, kind in 0usize..5) {
        use peer::pull_tree_response::Message;
        let mut answer = encode_tree(placed(Item::Entry(entry(kinds()[kind].clone()))));
        if let Some(Message::Entry(checked)) = &mut answer.message {
            let at = at.index(checked.tree_entry.len());
            let mut changed = checked.tree_entry.to_vec();
            changed[at] ^= 1 << bit;
            checked.tree_entry = changed.into();
        }
        prop_assert!(decode_tree(answer).is_err());
    }
}
