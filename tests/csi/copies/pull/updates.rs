//! Copies that are brought up to date with a volume of another node.

use std::time::Duration;

use hostloop::wire::csi;
use tonic::{Code, Request};

use super::copied::{Copied, SIZE, blocks, made};
use super::nodes::{Pair, TARGET};
use super::{disk_of, pattern};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;

#[test]
fn a_copy_follows_a_volume_in_use_and_takes_its_place() {
    let copied = Copied::new();
    assert_eq!(copied.pair.source.cuts(), 1, "its cut stays");
    for seed in 1..=3 {
        copied.change(seed);
        copied.pair.network.mend();
        let before = copied.pair.network.passed();
        let updated = copied.update().expect("it is updated");
        assert!(copied.copy_bytes() == copied.source_bytes(), "round {seed}");
        assert!(!updated.sealed && updated.cut_ns > 0);
        let (data, zeros) = (8192 + 4096, if seed == 1 { 16384 } else { 0 });
        assert_eq!((updated.sent_bytes, updated.changed_bytes), (data, data + zeros), "{seed}");
        let passed = copied.pair.network.passed().saturating_sub(before);
        assert!(passed < 60_000, "{passed}");
        assert_eq!(copied.pair.source.cuts(), 1, "the earlier one goes");
    }
    copied.refused(copied.complete(false), Code::FailedPrecondition, "seal the source");
    copied.refused(copied.seal(TARGET), Code::FailedPrecondition, "in use");
    copied.change(4);
    takes_its_place(copied);
}

/// Everything is read and compared there.
#[test]
fn a_copy_follows_where_no_blocks_are_shared() {
    let mut request = create("source", block());
    request.parameters = map(&[("freeze", "false")]);
    let mut copied = Copied::of(true, request);
    copied.pair.source.kernel.set_reflink(DATA, false);
    copied.pair.restart_source();
    copied.change(1);
    copied.rest();
    takes_its_place(copied);
}

#[track_caller]
fn takes_its_place(copied: Copied) {
    if copied.pair.source.kernel.exists(copied.vol.target("pod")) {
        copied.rest();
    }
    copied.seal(TARGET).expect("it is sealed");
    copied.seal(TARGET).expect("again");
    let last = copied.update().expect("it is updated");
    assert!(last.sealed && copied.copy_bytes() == copied.source_bytes());
    copied.complete(false).expect("it is complete");
    copied.complete(false).expect("again");
    copied.refused(copied.update(), Code::FailedPrecondition, "has been completed");
    copied.release();
    copied.release();
    assert_eq!(copied.pair.source.cuts(), 0);
    let expected = copied.source_bytes();
    let Copied { pair, copy, .. } = copied;
    let rig = pair.into_target();
    rig.stage(&copy);
    let device = rig.publish(&copy, "pod");
    assert!(blocks(&rig.kernel, &device, SIZE) == expected);
    rig.rest(&copy);
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
}

#[test]
fn nobody_uses_a_copy_or_a_sealed_volume() {
    let copied = Copied::new();
    let target =
        |request| copied.pair.runtime.block_on(copied.pair.target.controller.send(Request::new(request)));
    let capability = copied.copy.capability.clone();
    let again = copy("again", from_volume(&copied.copy.id), capability.clone(), &[]);
    copied.refused(target(again), Code::FailedPrecondition, "being brought up to date");
    let controller = &copied.pair.target.controller;
    let on_copy = |why| (Code::FailedPrecondition, why);
    let snapshot = snapshot("cut", &copied.copy);
    let (code, why) = on_copy("being brought up to date");
    copied.refused(copied.pair.runtime.block_on(controller.call(snapshot)), code, why);
    let grow = copied.copy.expand_request(128 * MIB, 0);
    copied.refused(copied.pair.runtime.block_on(controller.call(grow)), code, why);
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    let source = &copied.pair.source.controller;
    let grow = copied.vol.expand_request(128 * MIB, 0);
    copied.refused(copied.pair.runtime.block_on(source.call(grow)), code, "its data move to node");
    copied.seal("").expect("not any more");
    copied.pair.runtime.block_on(source.call(copied.vol.expand_request(128 * MIB, 0))).expect("it grows");
    // Kubelet is told the same.
    let copy = copied.copy.clone();
    copied.seal(TARGET).expect("it is sealed");
    let (kernel, vol) = (copied.pair.source.kernel.clone(), copied.vol);
    let rig = copied.pair.into_target();
    rig.fails(Code::FailedPrecondition, rig.stage_request(&copy));
    drop(rig);
    kernel.kill();
    kernel.restart();
    let rig = Rig::on(kernel, &[]);
    let message = rig.fails(Code::FailedPrecondition, rig.stage_request(&vol));
    assert!(message.contains("its data move to node"), "{message}");
}

#[test]
fn a_copy_grows_with_its_source() {
    let copied = Copied::new();
    let source = &copied.pair.source.controller;
    copied.pair.runtime.block_on(source.call(copied.vol.expand_request(128 * MIB, 0))).expect("it grows");
    let write = |offset, bytes: &[u8]| {
        copied.pair.source.kernel.write(&copied.top, offset, bytes).expect("write");
    };
    write(100 << 20, &pattern(8192, 9));
    copied.update().expect("it is updated");
    let there = blocks(&copied.pair.target.kernel, &disk_of(&copied.copy.id), 2 * SIZE);
    assert!(there == blocks(&copied.pair.source.kernel, &copied.vol.image(), 2 * SIZE));
    let listed = csi::ControllerGetVolumeRequest { volume_id: copied.copy.id.clone() };
    let got = copied.pair.runtime.block_on(copied.pair.target.controller.call(listed)).expect("it is there");
    assert_eq!(got.volume.expect("a volume").capacity_bytes, 128 * MIB);
}

#[test]
fn a_copy_without_its_cut_is_made_anew() {
    let copied = Copied::new();
    copied.pair.source.driver.remove_idle_sources(Duration::ZERO);
    assert_eq!(copied.pair.source.cuts(), 1, "ten minutes are not enough");
    copied.release();
    copied.refused(copied.update(), Code::NotFound, "make another one");
    copied.refused(copied.complete(false), Code::FailedPrecondition, "seal the source");
    let delete = csi::DeleteVolumeRequest { volume_id: copied.copy.id.clone(), ..Default::default() };
    copied.pair.runtime.block_on(copied.pair.target.controller.call(delete)).expect("deleted");
    made(&copied.pair, &copied.request).expect("another one");
    copied.change(1);
    copied.update().expect("it is updated");
    assert!(copied.copy_bytes() == copied.source_bytes());
    // What is left of a lost node is better than nothing.
    copied.complete(true).expect("it is complete");
}

#[test]
fn a_filesystem_made_after_the_copy_comes_too() {
    let rig = Rig::new();
    let vol = rig.made(create("source", mount()));
    let request = copy("copy", from_volume(&vol.id), mount(), &[]);
    let pair = Pair::new(rig);
    let info = made(&pair, &request).expect("a copy of nothing");
    let copy = Vol::new(info, vol.capability.clone());
    let kernel = pair.source.kernel.clone();
    kernel.kill();
    kernel.restart();
    let rig = Rig::on(kernel, &[]);
    rig.stage(&vol);
    rig.publish(&vol, "pod");
    rig.write(&vol, "text");
    let mut pair = pair;
    drop(rig);
    pair.restart_source();
    let copied = Copied { pair, top: String::new(), copy, request, vol };
    copied.update().expect("it is updated");
    let source = copied.pair.source.kernel.clone();
    let (image, from) = (disk_of(&copied.copy.id), copied.vol.image());
    copied.pair.target.kernel.adopt_files(image, &source, from).expect("the same bytes");
    copied.complete(true).expect("it is complete");
    let Copied { pair, copy, .. } = copied;
    let rig = pair.into_target();
    assert_eq!(rig.content(&copy, 4), "text");
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
}

#[test]
fn a_thick_copy_keeps_its_blocks() {
    let rig = Rig::new();
    let thick = [("provisioning", "thick")];
    let parameters = map(&thick);
    let vol = rig.made(csi::CreateVolumeRequest { parameters, ..create("source", block()) });
    rig.kernel.write(vol.image(), 0, &pattern(1 << 20, 1)).expect("write");
    let request = copy("copy", from_volume(&vol.id), block(), &thick);
    let pair = Pair::new(rig);
    let info = made(&pair, &request).expect("a copy");
    let copy = Vol::new(info, vol.capability.clone());
    let copied = Copied { pair, vol, top: String::new(), copy, request };
    copied.pair.source.kernel.write(copied.vol.image(), 4096, &[0; 200_000]).expect("write");
    assert_eq!(copied.update().expect("it is updated").sent_bytes, 4096, "zeros are not sent");
    assert!(copied.copy_bytes() == copied.source_bytes());
    let stat = copied.pair.target.kernel.stat(disk_of(&copied.copy.id)).expect("an image");
    assert!(stat.allocated >= SIZE as u64, "{}", stat.allocated);
}

#[test]
fn a_volume_of_this_node_cannot_be_followed() {
    let rig = Rig::new();
    let (vol, _) = rig.in_use(create("source", block()));
    rig.rest(&vol);
    let cut = rig.cut("cut", &vol);
    let pair = Pair::new(rig);
    let of_snapshot = copy("copy", from_snapshot(&cut.snapshot_id), block(), &[]);
    let status = made(&pair, &of_snapshot).expect_err("it is refused");
    assert_eq!(status.code(), Code::InvalidArgument, "{}", status.message());
    assert!(status.message().contains("is not a volume of another node"), "{}", status.message());
    pair.assert_nothing_left();
    // One that is complete is followed no more, and an ordinary one never was.
    let request = copy("copy", from_volume(&vol.id), block(), &[]);
    pair.pulled(request.clone());
    assert_eq!(made(&pair, &request).expect_err("it is there").code(), Code::AlreadyExists);
}
