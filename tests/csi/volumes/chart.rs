//! The chart refuses parameters that the driver does not know, by lists of its own.

use std::collections::BTreeSet;

use hostloop::wire::csi;
use tonic::Code;

use crate::cuts::*;
use crate::life::*;
use crate::support::*;

/// The words of a list in the chart.
fn list(name: &str) -> BTreeSet<String> {
    let checks = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/helm/hostloop/templates/_checks.tpl");
    #[allow(clippy::disallowed_methods, reason = "a file of the repository")]
    let text = std::fs::read_to_string(checks).expect(checks);
    let begin = format!("define \"hostloop.keys.{name}\" -}}}}\n");
    let words = text.split_once(&begin).expect("the list").1.lines().next().expect("a line");
    words.split(' ').map(str::to_owned).collect()
}

/// The keys that a message names behind its last colon or `are`.
fn named(message: &str) -> BTreeSet<String> {
    let keys = message.rsplit_once(" are ").expect("a list of keys").1;
    keys.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_chart_knows_the_keys_of_the_driver() {
    let rig = Rig::new();
    let vol = rig.volume("v", mount());
    let unknown = [("no-such-key", "x")];
    let message = rig.fails(Code::InvalidArgument, create_with("w", &unknown));
    assert_eq!(named(&message), list("storageClass"), "{message}");
    let message = rig.fails(Code::InvalidArgument, snapshot_with("s", &vol, &unknown));
    assert_eq!(named(&message), list("snapshotClass"), "{message}");
    let request = csi::ControllerModifyVolumeRequest {
        volume_id: vol.id.clone(),
        mutable_parameters: map(&unknown),
        ..Default::default()
    };
    let message = rig.fails(Code::InvalidArgument, request);
    assert_eq!(named(&message), list("attributesClass"), "{message}");
}
