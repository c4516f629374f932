//! Copies of a volume whose mkfs was cut off, and what has moved of it: they are formatted when they are used, as the volume
//! itself is.

use std::collections::HashMap;
use std::time::Duration;

use hostloop::wire::peer;
use hostloop_fake_kernel::Kill;
use nix::errno::Errno;

use super::pull::copied::Copied;
use super::pull::nodes::{Pair, TARGET};
use crate::cuts::*;
use crate::life::*;
use crate::support::*;

/// A volume whose mkfs was cut off.
fn half_made(rig: &Rig) -> Vol {
    let other = rig.volume("other", mount());
    rig.steps();
    rig.stage(&other);
    let make = rig.steps().iter().position(|step| *step == "make").expect("mkfs");
    let vol = rig.volume("half", mount());
    rig.kernel.fail_having_done_at(make + 1, Errno::EIO, Kill::Torn);
    rig.call(rig.stage_request(&vol)).expect_err("mkfs fails");
    vol
}

#[test]
fn a_half_made_filesystem_is_formatted_after_a_move() {
    for whole in [false, true] {
        let rig = Rig::new();
        let vol = half_made(&rig);
        let pair = Pair::with_patience(rig, Duration::from_millis(50));
        let copied = Copied::between(pair, (vol, String::new()), HashMap::new());
        let mark = format!("{}/formatting", copied.copy.directory());
        for round in 0..3 {
            assert!(copied.pair.target.kernel.exists(&mark), "{whole}, round {round}");
            if round == 1 {
                copied.seal(TARGET).expect("it is sealed");
            }
            copied.send(peer::UpdateCopyRequest { whole, ..copied.order() }).expect("it is updated");
        }
        copied.complete(false).expect("it is complete");
        let Copied { pair, copy, .. } = copied;
        let rig = pair.into_target();
        rig.stage(&copy);
        assert!(!rig.kernel.exists(&mark), "{whole}");
    }
}

#[test]
fn a_copy_of_a_half_made_filesystem_is_formatted() {
    for half in [true, false] {
        let rig = Rig::new();
        let (vol, target) = rig.published("whole", mount());
        rig.kernel.write_file(format!("{target}/file"), b"text").expect("write");
        rig.unpublish(&vol, "pod-1");
        rig.unstage(&vol);
        let vol = if half { half_made(&rig) } else { vol };
        let marked = |vol: &Vol| rig.kernel.exists(format!("{}/formatting", vol.directory()));
        assert_eq!(marked(&vol), half);
        let cut = rig.cut("s", &vol);
        for (name, source) in
            [("cloned", from_volume(&vol.id)), ("restored", from_snapshot(&cut.snapshot_id))]
        {
            let made = rig.made(copy(name, source, mount(), &[]));
            assert_eq!(marked(&made), half, "{name}");
            rig.stage(&made);
            let file = format!("{}/file", rig.publish(&made, "pod"));
            assert_eq!(rig.kernel.exists(&file), !half, "{name}");
            assert!(!marked(&made), "{name}");
        }
    }
}
