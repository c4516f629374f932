//! The protocol between processes of one cluster: what a release could say, its successors understand.
//!
//! `tests/golden/peer-VERSION.proto` is `proto/hostloop/v1/peer.proto` as that release has it; a release that changes
//! it adds its own. That of the next release is made anew until it is published (docs/releasing.md).

use std::path::Path;

use prost_reflect::DescriptorPool;

use super::Protocol;
use super::descriptor::protocol_of_package;

/// The protocol of a file, which imports nothing.
fn protocol(file: &Path) -> Protocol {
    let (directory, name) = (file.parent().expect("a directory"), file.file_name().expect("a name"));
    let mut compiler = protox::Compiler::new([directory]).expect("a compiler");
    compiler.open_file(name).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let pool: DescriptorPool = compiler.descriptor_pool();
    protocol_of_package(&pool, "hostloop.v1")
}

/// What of `old` is missing in `new`, or means something else there.
fn broken(old: &Protocol, new: &Protocol) -> Vec<String> {
    let elements = old.elements.iter();
    let changed = elements.filter(|(key, was)| new.elements.get(*key).is_none_or(|is| is.shape != was.shape));
    changed.map(|(key, was)| format!("{key}: was {:?}", was.shape)).collect()
}

#[test]
fn messages_of_earlier_releases_are_understood() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let now = protocol(&root.join("proto/hostloop/v1/peer.proto"));
    let golden = std::fs::read_dir(root.join("tests/golden")).expect("tests/golden");
    let golden = golden.map(|entry| entry.expect("list").path());
    let protos: Vec<_> = golden.filter(|path| path.extension().is_some_and(|end| end == "proto")).collect();
    assert!(!protos.is_empty());
    for file in protos {
        let then = protocol(&file);
        assert!(then.elements.keys().any(|key| key == "rpc hostloop.v1.Peer.Hello"), "{:?}", then.elements);
        let broken = broken(&then, &now);
        assert!(broken.is_empty(), "{}: {}", file.display(), broken.join("\n"));
    }
}

#[test]
fn a_field_that_changes_or_goes_is_found() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto/hostloop/v1/peer.proto");
    let then = protocol(&file);
    let key = "field hostloop.v1.HelloResponse.node_id";
    let mut gone = then.clone();
    gone.elements.remove(key);
    assert_eq!(broken(&then, &gone).len(), 1);
    let mut other = then.clone();
    other.elements.get_mut(key).expect("the field").shape = "string = 9".to_owned();
    assert_eq!(broken(&then, &other).len(), 1);
}
