//! Copies that get another backend or another filesystem than their volume: they are made file by file, and whatever ends either node,
//! the volume has all of its files in the end.

use std::time::Duration;

use hostloop::service::{CONVERT, COPY};
use hostloop::wire::{csi, peer};
use hostloop_fake_kernel::Kill;
use nix::errno::Errno;
use tonic::{Code, Status};

use super::copied::{Copied, made, made_with};
use super::nodes::{Pair, TARGET};
use super::trees::{change, fill, seen_at};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;
use crate::walk::part::ways;

/// A backend with a filesystem, as a StorageClass names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ext4,
    Xfs,
    Btrfs,
    Directory,
}

use Kind::{Btrfs, Directory, Ext4, Xfs};

impl Kind {
    fn capability(self) -> csi::VolumeCapability {
        fs(match self {
            Ext4 => "ext4",
            Xfs => "xfs",
            Btrfs => "btrfs",
            Directory => "",
        })
    }

    fn parameters(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Ext4 | Xfs | Btrfs => &[],
            Directory => &[("backend", "directory"), ("pool", "directories")],
        }
    }
}

/// A size that both can have. The fake compares every byte of an image.
fn bytes(from: Kind, to: Kind) -> i64 {
    let large = |kind| matches!(kind, Xfs | Btrfs);
    if large(from) || large(to) { 512 * MIB } else { 64 * MIB }
}

/// A volume of one kind in use, and its copy, which becomes another kind.
fn converted(from: Kind, to: Kind) -> Copied {
    let rig = Rig::new();
    let made = csi::CreateVolumeRequest {
        capacity_range: range(bytes(from, to), 0),
        volume_capabilities: vec![from.capability()],
        ..create_with("source", from.parameters())
    };
    let (vol, top) = rig.in_use(made);
    fill(&rig.kernel, &top);
    rig.kernel.sync(&top).expect("sync");
    let pair = Pair::with_patience(rig, Duration::from_millis(50));
    let request = copy("copy", from_volume(&vol.id), to.capability(), to.parameters());
    let info = made_with(&pair, &request, &[COPY, CONVERT]).expect("a copy");
    // Its PersistentVolume says what it was.
    let copy = Vol::new(info, from.capability());
    Copied { pair, vol, top, copy, request }
}

impl Copied {
    fn files(&self) -> Vec<String> {
        seen_at(&self.pair.source.kernel, &self.top)
    }

    /// What the pod has changed reaches the disk.
    fn changed(&self, seed: u64) {
        change(self, seed);
        self.pair.source.kernel.sync(&self.top).expect("sync");
    }

    /// The last pass, and what follows. Each step can be repeated.
    fn cut_over(&self) -> Result<(), Status> {
        if self.pair.target.driver.store().volumes().iter().any(|volume| volume.copy_of.is_some()) {
            self.seal(TARGET)?;
            self.update()?;
        }
        self.complete(false)
    }
}

/// Stages the volume as kubelet does, by what its PersistentVolume says, and returns what its pod sees.
fn seen_by_pod(rig: &Rig, vol: &Vol, from: Kind) -> Vec<String> {
    let context = |backend: &str| [("backend".to_owned(), backend.to_owned())].into();
    let volume_context = context(if from == Directory { "directory" } else { "loop" });
    rig.ok(csi::NodeStageVolumeRequest { volume_context, ..rig.stage_request(vol) });
    let top = rig.publish(vol, "pod");
    let seen = seen_at(&rig.kernel, &top);
    rig.kernel.write_file(format!("{top}/of the pod"), b"written").expect("the pod can write");
    rig.rest(vol);
    seen
}

#[test]
fn a_converted_copy_has_every_file_of_its_volume() {
    let kinds = [Ext4, Xfs, Btrfs, Directory];
    for (from, to) in
        kinds.iter().flat_map(|from| kinds.map(|to| (*from, to))).filter(|(from, to)| from != to)
    {
        let which = format!("{from:?} to {to:?}");
        let copied = converted(from, to);
        for seed in 1..=3 {
            copied.changed(seed);
            copied.update().unwrap_or_else(|status| panic!("{which}: {status}"));
            assert_eq!(copied.pair.source.cuts(), 1, "{which}: the earlier one goes");
        }
        copied.changed(4);
        let wanted = copied.files();
        copied.rest();
        copied.cut_over().unwrap_or_else(|status| panic!("{which}: {status}"));
        copied.complete(false).unwrap_or_else(|status| panic!("again, {which}: {status}"));
        copied.release();
        assert_eq!(copied.pair.source.cuts(), 0, "{which}");
        assert_eq!(copied.pair.source.kernel.loops(), [], "{which}: no cut is attached");
        assert_eq!(copied.pair.source.kernel.hazards(), Vec::<String>::new(), "{which}");
        let Copied { pair, copy, .. } = copied;
        let rig = pair.into_target();
        assert_eq!(seen_by_pod(&rig, &copy, from), wanted, "{which}");
        assert_eq!(rig.kernel.hazards(), Vec::<String>::new(), "{which}");
        rig.ok(copy.delete_request());
        rig.assert_clean();
    }
}

/// The filesystem of an image is read by its files, so that its cut is of one moment, also if the class does without.
#[test]
fn a_cut_that_is_read_by_its_files_is_frozen() {
    for (from, freezes) in [(Ext4, true), (Directory, false)] {
        let copied = converted(from, if from == Ext4 { Directory } else { Ext4 });
        copied.changed(1);
        copied.pair.source.kernel.clear_steps();
        copied.send(peer::UpdateCopyRequest { no_freeze: true, ..copied.order() }).expect("it is updated");
        let steps = copied.pair.source.kernel.steps();
        assert_eq!(steps.iter().any(|step| step.name == "freeze"), freezes, "{from:?}: {steps:?}");
    }
}

/// A volume that no pod has used has no filesystem yet.
#[test]
fn a_volume_without_a_filesystem_becomes_empty() {
    for to in [Directory, Xfs] {
        let rig = Rig::new();
        let vol = rig.made(csi::CreateVolumeRequest {
            capacity_range: range(bytes(Ext4, to), 0),
            ..create("source", fs("ext4"))
        });
        let top = String::new();
        let pair = Pair::with_patience(rig, Duration::from_millis(50));
        let request = copy("copy", from_volume(&vol.id), to.capability(), to.parameters());
        let info = made_with(&pair, &request, &[COPY, CONVERT]).expect("a copy");
        let copied = Copied { pair, vol, top, copy: Vol::new(info, Ext4.capability()), request };
        copied.cut_over().expect("it is complete");
        let Copied { pair, copy, .. } = copied;
        assert_eq!(seen_by_pod(&pair.into_target(), &copy, Ext4), [""; 0], "{to:?}");
    }
}

#[test]
fn a_copy_of_another_kind_has_to_be_asked_for() {
    let copied = converted(Ext4, Directory);
    let request = csi::CreateVolumeRequest { name: "other".to_owned(), ..copied.request.clone() };
    copied.refused(
        made(&copied.pair, &request),
        Code::InvalidArgument,
        "cannot become one of backend directory",
    );
    let blocks = csi::CreateVolumeRequest { volume_capabilities: vec![block()], ..create("blocks", block()) };
    let raw =
        csi::CreateVolumeRequest { volume_content_source: request.volume_content_source.clone(), ..blocks };
    let refused = made_with(&copied.pair, &raw, &[COPY, CONVERT]);
    copied.refused(refused, Code::InvalidArgument, "a filesystem, which cannot become a raw block volume");
}

/// The steps of a round at the target and at the source.
fn steps(from: Kind, to: Kind) -> (usize, usize) {
    let copied = converted(from, to);
    copied.changed(1);
    copied.update().expect("an earlier round");
    copied.changed(2);
    copied.pair.source.kernel.clear_steps();
    copied.pair.target.kernel.clear_steps();
    copied.update().expect("it is updated");
    (copied.pair.target.kernel.steps().len(), copied.pair.source.kernel.steps().len())
}

/// Asserts that the next round brings an interrupted copy up to date, and that the volume has all of its files in the end.
fn goes_on(mut copied: Copied, from: Kind, which: &str) {
    copied.pair.power_cut_target();
    copied.pair.source.kernel.kill();
    copied.pair.restart_source();
    copied.update().unwrap_or_else(|status| panic!("{which}: {status}"));
    let wanted = copied.files();
    copied.rest();
    copied.cut_over().unwrap_or_else(|status| panic!("{which}: {status}"));
    let Copied { pair, copy, .. } = copied;
    let rig = pair.into_target();
    assert_eq!(seen_by_pod(&rig, &copy, from), wanted, "{which}");
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new(), "{which}");
}

#[test]
fn a_round_of_a_converted_copy_that_ends_is_repeated() {
    for kinds @ (from, to) in [(Directory, Ext4), (Ext4, Directory)] {
        let (target, source) = steps(from, to);
        assert!(target > 20 && source > 5, "{target} {source}");
        for (n, at_source) in (1..=target).map(|n| (n, false)).chain((1..=source).map(|n| (n, true))) {
            for kill in ways(n, &[Kill::Before, Kill::Torn, Kill::After]) {
                let copied = converted(from, to);
                copied.changed(1);
                copied.update().expect("an earlier round");
                copied.changed(2);
                let node = if at_source { &copied.pair.source } else { &copied.pair.target };
                node.kernel.kill_at(n, kill);
                let _ = copied.update();
                goes_on(copied, from, &format!("{kinds:?}, step {n}, at the source: {at_source}, {kill:?}"));
            }
        }
    }
}

/// A step fails: nothing that was acknowledged is lost, and the next round brings what is missing.
#[test]
fn a_step_of_a_round_of_a_converted_copy_fails() {
    for kinds @ (from, to) in [(Directory, Ext4), (Ext4, Directory)] {
        for n in 1..=steps(from, to).0 {
            for errno in ways(n, &[Errno::EIO, Errno::ENOSPC]) {
                let copied = converted(from, to);
                copied.changed(1);
                copied.update().expect("an earlier round");
                copied.changed(2);
                copied.pair.target.kernel.fail_at(n, errno);
                let _ = copied.update();
                goes_on(copied, from, &format!("{kinds:?}, step {n}, {errno}"));
            }
        }
    }
}

/// From the moment in which no pod has the volume, each step can be the last one of a process.
#[test]
fn a_completion_that_ends_is_repeated() {
    for kinds @ (from, to) in [(Directory, Ext4), (Xfs, Ext4)] {
        // Returns the copy after its last pass, and the files of the volume.
        let ready = || {
            let copied = converted(from, to);
            copied.changed(1);
            let wanted = copied.files();
            copied.rest();
            copied.seal(TARGET).expect("it is sealed");
            copied.update().expect("the last pass");
            copied.pair.target.kernel.clear_steps();
            (copied, wanted)
        };
        let steps = {
            let (copied, _) = ready();
            copied.complete(false).expect("it is complete");
            copied.pair.target.kernel.steps().len()
        };
        assert!(steps > 8, "{steps}");
        for n in 1..=steps {
            for kill in ways(n, &[Kill::Before, Kill::Torn, Kill::After]) {
                let which = format!("{kinds:?}, step {n}, {kill:?}");
                let (mut copied, wanted) = ready();
                copied.pair.target.kernel.kill_at(n, kill);
                let _ = copied.complete(false);
                match n % 2 {
                    0 => copied.pair.restart_target(),
                    _ => copied.pair.power_cut_target(),
                }
                copied.complete(false).unwrap_or_else(|status| panic!("{which}: {status}"));
                let Copied { pair, copy, .. } = copied;
                let rig = pair.into_target();
                assert_eq!(seen_by_pod(&rig, &copy, from), wanted, "{which}");
                assert_eq!(rig.kernel.hazards(), Vec::<String>::new(), "{which}");
            }
        }
    }
}

/// If a completion is interrupted, some files are at the top and some are not, so the copy cannot be updated.
#[test]
fn a_copy_that_was_being_completed_is_made_again() {
    let mut copied = converted(Directory, Ext4);
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    copied.update().expect("the last pass");
    copied.pair.target.kernel.fail_every("lift", Errno::EIO);
    copied.refused(copied.complete(false), Code::Internal, "put the files of");
    copied.pair.target.kernel.heal();
    copied.refused(copied.update(), Code::NotFound, "delete it and make another one");
    copied.pair.restart_target();
    copied.complete(false).expect("it is complete");
}

/// Files that do not fit into a filesystem of the same size: the pods keep the volume.
#[test]
fn files_that_do_not_fit_are_refused_with_the_size() {
    for (errno, why) in
        [(Errno::ENOSPC, "do not fit into ext4 of 64 MiB"), (Errno::EMLINK, "ext4 cannot hold a file of")]
    {
        let copied = converted(Directory, Ext4);
        copied.changed(1);
        copied.pair.target.kernel.fail_every("write_tree", errno);
        copied.refused(copied.update(), Code::ResourceExhausted, why);
        copied.pair.target.kernel.heal();
        copied.update().expect("it is updated");
    }
}

/// A volume that grows meanwhile needs a larger filesystem: the copy is made again.
#[test]
fn a_copy_of_a_volume_that_has_grown_is_made_again() {
    let copied = converted(Directory, Ext4);
    let size = hostloop::model::SizeRange { required: 1 << 30, limit: 0 };
    let request = hostloop::model::request::ControllerExpandVolume {
        volume_id: copied.vol.id.clone(),
        size,
        capability: None,
    };
    copied.pair.source.driver.controller_expand_volume(request).expect("it grows");
    copied.refused(copied.update(), Code::NotFound, "delete the copy and make another one");
}

/// A round brings the copy to the cut that the round before began with, however many files are removed since.
#[test]
fn a_copy_whose_cut_does_not_fit_is_made_again() {
    let copied = converted(Directory, Ext4);
    copied.changed(1);
    copied.pair.target.kernel.fail_every("write_tree", Errno::ENOSPC);
    copied.refused(copied.update(), Code::ResourceExhausted, "do not fit into ext4 of 64 MiB");
    copied.refused(copied.update(), Code::NotFound, "delete the copy and make another one");
}

/// The node keeps the files of a copy beneath a name at the top of its filesystem. A source could name what the node moves or removes there.
#[test]
fn a_file_with_a_name_of_the_node_is_refused() {
    for end in ["", "-whole"] {
        let copied = converted(Directory, Ext4);
        let name = format!(".hostloop-{}{end}", copied.copy.id);
        let kernel = &copied.pair.source.kernel;
        kernel.create_directories(format!("{}/a/{name}", copied.top));
        copied.update().expect("below the top it is a name like any other");
        kernel.symlink("/elsewhere", format!("{}/{name}", copied.top));
        copied.refused(copied.update(), Code::FailedPrecondition, &name);
        kernel.remove_file(format!("{}/{name}", copied.top)).expect("remove");
        let again = copied.update();
        copied.refused(again, Code::NotFound, "delete the copy and make another one");
    }
}

/// Two mounts of one image would destroy the filesystem.
#[test]
fn an_image_that_is_attached_is_not_completed() {
    let copied = converted(Directory, Ext4);
    let wanted = copied.files();
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    copied.update().expect("the last pass");
    let kernel = &copied.pair.target.kernel;
    let left = kernel.attach_foreign(copied.copy.image(), false).expect("attach");
    copied.refused(copied.complete(false), Code::Unavailable, "is in use");
    kernel.detach_foreign(left.number);
    copied.complete(false).expect("it is complete");
    let Copied { pair, copy, .. } = copied;
    assert_eq!(seen_by_pod(&pair.into_target(), &copy, Directory), wanted);
}

/// A state file that was restored can say that no filesystem was made yet.
#[test]
fn a_record_without_a_filesystem_empties_no_copy() {
    let copied = converted(Ext4, Directory);
    let store = copied.pair.source.driver.store();
    let volume = store.volumes().into_iter().next().expect("the volume");
    let content = volume.content.with_format(hostloop::model::Format::Blank);
    store.put(hostloop::model::Volume { content, ..(*volume).clone() }).expect("put");
    copied.refused(copied.update(), Code::FailedPrecondition, "holds an ext4 filesystem");
}
