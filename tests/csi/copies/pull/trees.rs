//! Copies of directories that are brought up to date: each round makes the tree of a later cut beside that of the earlier one,
//! so the copy is one cut whole whatever happens to either node.

use std::collections::BTreeMap;
use std::time::Duration;

use hostloop::kernel::FileKind;
use hostloop::wire::{csi, peer};
use hostloop_fake_kernel::{FakeKernel, Kill};
use nix::errno::Errno;
use tonic::{Code, Status};

use super::copied::Copied;
use super::nodes::{Pair, TARGET};
use super::pattern;
use crate::harness::DIRECTORIES_DIR;
use crate::life::*;
use crate::support::*;
use crate::walk::part::ways;

const PLAIN: [(&str, &str); 2] = [("backend", "directory"), ("pool", "directories")];

fn copied() -> Copied {
    of(&PLAIN, |_| {})
}

/// A directory in use with something in it, on machines that are prepared like this, and its copy.
fn of(parameters: &[(&str, &str)], prepare: fn(&FakeKernel)) -> Copied {
    let rig = Rig::new();
    prepare(&rig.kernel);
    let request =
        csi::CreateVolumeRequest { capacity_range: range(16 * MIB, 0), ..create_with("source", parameters) };
    let (vol, top) = rig.in_use(request.clone());
    fill(&rig.kernel, &top);
    let pair = Pair::with_patience(rig, Duration::from_millis(50));
    prepare(&pair.target.kernel);
    Copied::between(pair, (vol, top), request.parameters)
}

/// Makes a tree with something of everything.
pub fn fill(kernel: &FakeKernel, top: &str) {
    kernel.create_directories(format!("{top}/a/b"));
    kernel.write_file(format!("{top}/large"), &pattern(1 << 20, 1)).expect("write");
    kernel.write_file(format!("{top}/same"), &pattern(8192, 2)).expect("write");
    kernel.write_file(format!("{top}/a/file"), b"text").expect("write");
    kernel.link(format!("{top}/a/file"), format!("{top}/a/b/name")).expect("link");
    kernel.symlink("../large", format!("{top}/a/symlink"));
}

/// What a pod changes, so that each round has something of everything.
pub fn change(copied: &Copied, seed: u64) {
    let (kernel, top) = (&copied.pair.source.kernel, &copied.top);
    kernel.write(format!("{top}/large"), 8192, &pattern(4096, seed)).expect("write");
    kernel.write(format!("{top}/large"), 65536, &[0; 8192]).expect("write");
    kernel.write_file(format!("{top}/a/file"), format!("text {seed}").as_bytes()).expect("write");
    kernel.write_file(format!("{top}/new-{seed}"), &pattern(4096, seed)).expect("write");
    if seed > 1 {
        let before = format!("{top}/new-{}", seed - 1);
        kernel.remove_file(&before).expect("remove");
        kernel.create_directories(&before);
        kernel.symlink("x", format!("{before}/y"));
    }
}

/// Where a volume is.
fn directory_of(kernel: &FakeKernel, vol: &Vol) -> String {
    let mut places = [DATA, DIRECTORIES_DIR].map(|pool| format!("{pool}/volumes/{}", vol.id)).into_iter();
    places.find(|path| kernel.exists(path)).expect("its directory")
}

/// The tree of a directory volume.
fn seen(kernel: &FakeKernel, vol: &Vol) -> Vec<String> {
    seen_at(kernel, &format!("{}/data", directory_of(kernel, vol)))
}

/// A tree as its reader sees it: names, kinds, modes, bytes, and which names are the same file.
pub fn seen_at(kernel: &FakeKernel, top: &str) -> Vec<String> {
    let mut first = BTreeMap::new();
    let describe = |path: String| {
        let stat = kernel.stat(&path).expect("it is listed");
        let name = path.strip_prefix(top).expect("below").to_owned();
        let crc = match stat.kind {
            FileKind::File => crc32fast::hash(&kernel.read(&path, 0, stat.size as usize).expect("read")),
            _ => 0,
        };
        let same = first.entry(stat.id).or_insert_with(|| name.clone());
        let size = if stat.kind == FileKind::File { stat.size } else { 0 };
        format!("{name} {:?} {size} {:?} {crc} {same}", stat.kind, kernel.mode(&path))
    };
    kernel.tree(top).into_iter().map(describe).collect()
}

impl Copied {
    fn source_tree(&self) -> Vec<String> {
        seen(&self.pair.source.kernel, &self.vol)
    }

    fn place(&self) -> String {
        directory_of(&self.pair.target.kernel, &self.copy)
    }

    fn copy_tree(&self) -> Vec<String> {
        seen(&self.pair.target.kernel, &self.copy)
    }

    /// As for a standby copy.
    fn whole(&self) -> Result<peer::UpdateCopyResponse, Status> {
        self.send(peer::UpdateCopyRequest { whole: true, no_freeze: true, ..self.order() })
    }

    /// Nothing is beside the data.
    #[track_caller]
    fn assert_alone(&self, which: &str) {
        let (kernel, data) = (&self.pair.target.kernel, format!("{top}/data", top = self.place()));
        let is_data = |path: &String| *path == data || path.starts_with(&format!("{data}/"));
        let beside: Vec<_> = kernel.tree(self.place()).into_iter().filter(|path| !is_data(path)).collect();
        assert_eq!(beside, [""; 0], "{which}");
    }
}

/// The steps of a round at the target and at the source.
fn steps() -> (usize, usize) {
    let copied = copied();
    change(&copied, 1);
    copied.update().expect("an earlier round");
    change(&copied, 2);
    copied.pair.source.kernel.clear_steps();
    copied.pair.target.kernel.clear_steps();
    copied.update().expect("it is updated");
    (copied.pair.target.kernel.steps().len(), copied.pair.source.kernel.steps().len())
}

#[test]
fn a_copy_of_a_directory_follows_it_and_replaces_it() {
    let copied = copied();
    assert!(copied.copy_tree() == copied.source_tree());
    for seed in 1..=3 {
        change(&copied, seed);
        let updated = match seed {
            2 => copied.whole(),
            _ => copied.update(),
        };
        let updated = updated.expect("it is updated");
        assert_eq!(copied.copy_tree(), copied.source_tree(), "round {seed}");
        // A block of the large file, the text and the new file; and what was overwritten with zeros, once.
        let (text, zeros) = if seed == 1 { (" 1".len(), 8192) } else { ("text 2".len(), 0) };
        let data = 4096 + text as u64 + 4096;
        assert_eq!((updated.sent_bytes, updated.changed_bytes), (data, data + zeros), "{seed}");
        assert_eq!(copied.pair.source.cuts(), 1, "the earlier one goes");
        copied.assert_alone("a round");
    }
    let nothing = copied.update().expect("it is updated");
    assert_eq!((nothing.sent_bytes, nothing.changed_bytes), (0, 0));
    copied.refused(copied.complete(false), Code::FailedPrecondition, "seal the source");
    copied.refused(copied.seal(TARGET), Code::FailedPrecondition, "in use");
    change(&copied, 4);
    copied.rest();
    copied.seal(TARGET).expect("it is sealed");
    assert!(copied.update().expect("it is updated").sealed);
    assert_eq!(copied.copy_tree(), copied.source_tree());
    copied.complete(false).expect("it is complete");
    copied.complete(false).expect("again");
    copied.release();
    assert_eq!(copied.pair.source.cuts(), 0);
    let Copied { pair, copy, .. } = copied;
    let rig = pair.into_target();
    rig.stage(&copy);
    let top = rig.publish(&copy, "pod");
    assert_eq!(rig.kernel.read_file(format!("{top}/a/b/name")).expect("read"), b"text 4");
    rig.rest(&copy);
    assert_eq!(rig.kernel.hazards(), Vec::<String>::new());
    rig.ok(copy.delete_request());
    rig.assert_clean();
}

/// Of one moment it is only where the class says that it need not be: otherwise nobody can say what a standby copy has.
#[test]
fn a_standby_copy_in_use_needs_freeze_false() {
    let copied = copied();
    let order = peer::UpdateCopyRequest { whole: true, ..copied.order() };
    copied.refused(copied.send(order), Code::FailedPrecondition, "stop its pods");
    copied.whole().expect("with freeze=false");
}

#[test]
fn a_round_that_ends_leaves_a_usable_copy() {
    let (target, source) = steps();
    assert!(target > 20 && source > 5, "{target} {source}");
    for (n, at_source) in (1..=target).map(|n| (n, false)).chain((1..=source).map(|n| (n, true))) {
        for kill in ways(n, &[Kill::Before, Kill::Torn, Kill::After]) {
            let mut copied = copied();
            change(&copied, 1);
            copied.update().expect("an earlier round");
            let before = copied.source_tree();
            change(&copied, 2);
            let after = copied.source_tree();
            let node = if at_source { &copied.pair.source } else { &copied.pair.target };
            node.kernel.kill_at(n, kill);
            let ended = copied.update();
            let which = format!("step {n}, at the source: {at_source}, {kill:?}");
            assert!(node.kernel.is_dead(), "{which}");
            assert!(at_source || ended.is_err(), "{which}");
            copied.pair.power_cut_target();
            copied.pair.source.kernel.kill();
            copied.complete(true).unwrap_or_else(|status| panic!("{which}: {status}"));
            let there = copied.copy_tree();
            assert!(there == before || there == after, "{which}: some of both: {there:#?}");
            assert!(ended.is_err() || there == after, "{which}: an earlier cut than was told");
            copied.assert_alone(&which);
            copied.complete(true).unwrap_or_else(|status| panic!("again, {which}: {status}"));
        }
    }
}

#[test]
fn a_round_that_ends_is_followed_by_another() {
    let (target, source) = steps();
    for (n, at_source) in (1..=target).map(|n| (n, false)).chain((1..=source).map(|n| (n, true))) {
        let mut copied = copied();
        change(&copied, 1);
        copied.update().expect("an earlier round");
        change(&copied, 2);
        let node = if at_source { &copied.pair.source } else { &copied.pair.target };
        node.kernel.kill_at(n, Kill::After);
        let _ = copied.update();
        match (at_source, n % 2) {
            (true, _) => copied.pair.restart_source(),
            (false, 0) => copied.pair.restart_target(),
            (false, _) => copied.pair.power_cut_target(),
        }
        let which = format!("step {n}, at the source: {at_source}");
        change(&copied, 3);
        copied.update().unwrap_or_else(|status| panic!("{which}: {status}"));
        assert!(copied.copy_tree() == copied.source_tree(), "{which}");
        copied.assert_alone(&which);
        copied.release();
        assert_eq!(copied.pair.source.cuts(), 0, "{which}");
    }
}

#[test]
fn a_step_of_a_round_of_a_directory_fails() {
    for n in 1..=steps().0 {
        for errno in ways(n, &[Errno::EIO, Errno::ENOSPC]) {
            let copied = copied();
            change(&copied, 1);
            copied.update().expect("an earlier round");
            let before = copied.source_tree();
            change(&copied, 2);
            let after = copied.source_tree();
            copied.pair.target.kernel.fail_at(n, errno);
            let ended = copied.update();
            if let Err(status) = &ended {
                let code = if errno == Errno::ENOSPC { Code::ResourceExhausted } else { Code::Internal };
                assert_eq!(status.code(), code, "step {n}: {}", status.message());
            }
            copied.complete(true).unwrap_or_else(|status| panic!("step {n}, {errno}: {status}"));
            let there = copied.copy_tree();
            assert!(there == after || (ended.is_err() && there == before), "step {n}, {errno}: some of both");
            copied.assert_alone(&format!("step {n}, {errno}"));
        }
    }
}

/// The record says that the tree of the later cut is there, and it is not: nobody takes the earlier one for it.
#[test]
fn an_earlier_tree_is_not_taken_for_a_missing_later() {
    let mut gone = 0;
    for n in 1..=steps().0 {
        for updated in [false, true] {
            let mut copied = copied();
            change(&copied, 1);
            copied.update().expect("an earlier round");
            let before = copied.source_tree();
            change(&copied, 2);
            // In this round alone: whoever has the earlier one is not told of it again.
            copied.pair.source.kernel.write(format!("{}/same", copied.top), 0, b"once").expect("write");
            let after = copied.source_tree();
            copied.pair.target.kernel.kill_at(n, Kill::After);
            let _ = copied.update();
            let os = copied.pair.target.kernel.restart();
            let top = copied.place();
            let names = os.files.list(top.as_ref()).expect("list");
            let staged = |name: &String| {
                name.strip_prefix("data.").is_some_and(|cut| cut.bytes().all(|byte| byte.is_ascii_digit()))
            };
            let Some(staged) = names.iter().find(|name| staged(name)) else { continue };
            if !names.contains(&"data".to_owned()) {
                continue; // nothing is left of the volume then
            }
            os.trees.remove(format!("{top}/{staged}").as_ref()).expect("remove");
            copied.pair.restart_target();
            gone += 1;
            let which = format!("step {n}");
            if updated {
                change(&copied, 3);
                match copied.update() {
                    Ok(_) => assert!(copied.copy_tree() == copied.source_tree(), "{which}"),
                    Err(status) => assert_eq!(status.code(), Code::NotFound, "{which}: {status}"),
                }
            }
            copied.complete(true).unwrap_or_else(|status| panic!("{which}: {status}"));
            assert!([before, after, copied.source_tree()].contains(&copied.copy_tree()), "{which}");
            copied.assert_alone(&which);
        }
    }
    assert!(gone > 2, "{gone}");
}

/// A disk that has lost a file: the copy cannot be brought up to date, and says so.
#[test]
fn a_damaged_copy_of_a_directory_is_made_anew() {
    let copied = copied();
    let data = copied.place() + "/data";
    copied.pair.target.kernel.remove_file(format!("{data}/same")).expect("remove");
    change(&copied, 1);
    copied.refused(copied.update(), Code::NotFound, "delete it and make another one");
    copied.assert_alone("damaged");
}

#[test]
fn a_full_disk_takes_no_round_and_leaves_the_copy() {
    let copied = copied();
    let before = copied.source_tree();
    change(&copied, 1);
    let kernel = &copied.pair.target.kernel;
    kernel.set_space_at(DIRECTORIES_DIR, 1 << 30, 2 << 20);
    copied.refused(copied.update(), Code::ResourceExhausted, "pool directories has room for a");
    copied.assert_alone("full");
    assert!(copied.copy_tree() == before);
    kernel.set_space_at(DIRECTORIES_DIR, 1 << 40, 1 << 39);
    copied.update().expect("it is updated");
    assert!(copied.copy_tree() == copied.source_tree());
}

/// Two trees are in it during a round, so its limit is lifted for that time, and is there again whatever ends the round.
#[test]
fn a_copy_has_its_limit_when_the_round_has_ended() {
    let limited = [("backend", "directory"), ("enforcement", "required")];
    let quotas = |kernel: &FakeKernel| {
        kernel.set_quotas(DATA, true);
        // With it, a process may go beyond every limit of ext4.
        kernel.set_sys_resource(false);
    };
    let limits = |copied: &Copied| {
        let quotas = copied.pair.target.kernel.quotas(DATA);
        quotas.iter().map(|(_, limits)| limits.bytes).collect::<Vec<_>>()
    };
    // All of it is taken, and most of it changes.
    let full = |copied: &Copied, seed| {
        let file = format!("{}/full", copied.top);
        let size = (copied.vol.info.capacity_bytes - (4 << 20)) as usize;
        copied.pair.source.kernel.write_file(file, &pattern(size, seed)).expect("write");
    };
    let copied_of = || {
        let copied = of(&limited, quotas);
        full(&copied, 1);
        copied
    };
    let copied = copied_of();
    let bytes = copied.vol.info.capacity_bytes as u64;
    assert_eq!(limits(&copied), [bytes]);
    for seed in [2, 3] {
        copied.update().expect("it is updated");
        assert!(copied.copy_tree() == copied.source_tree());
        assert_eq!(limits(&copied), [bytes]);
        full(&copied, seed);
    }
    copied.pair.target.kernel.clear_steps();
    copied.update().expect("it is updated");
    for n in 1..=copied.pair.target.kernel.steps().len() {
        let mut copied = copied_of();
        copied.pair.target.kernel.kill_at(n, Kill::After);
        let _ = copied.update();
        copied.pair.restart_target();
        copied.complete(true).expect("it is complete");
        assert_eq!(limits(&copied), [bytes], "step {n}");
        copied.assert_alone("complete");
    }
}

/// What was begun for a copy that is deleted goes with it.
#[test]
fn a_deleted_copy_takes_its_unfinished_trees() {
    let mut left = 0;
    for n in 1..=steps().0 {
        let mut copied = copied();
        change(&copied, 1);
        copied.pair.target.kernel.kill_at(n, Kill::After);
        let _ = copied.update();
        copied.pair.restart_target();
        let kernel = copied.pair.target.kernel.clone();
        left += usize::from(kernel.tree(DIRECTORIES_DIR).iter().any(|path| path.contains("/data.")));
        let delete = copied.copy.delete_request();
        copied.pair.runtime.block_on(copied.pair.target.controller.call(delete)).expect("deleted");
        assert_eq!(copied.pair.target.files(), Vec::<String>::new(), "step {n}");
    }
    assert!(left > 5, "{left}");
}
