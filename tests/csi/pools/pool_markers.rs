//! The file in a pool that says whose it is, and its twin in the data directory: a disk that is missing, or another one, is
//! noticed before anything is made on it.

use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop_fake_kernel::FakeKernel;
use nix::errno::Errno;
use tonic::Code;

use crate::life::*;
use crate::support::*;

const POOL: &str = "/pools/fast";
const MARKER: &str = "/pools/fast/hostloop-pool";
const TWIN: &str = "/var/lib/hostloop/known-pools/fast";
const FLAGS: [&str; 2] = ["--pool", "fast=/pools/fast,reserve=0"];

/// A driver with a further pool on a disk of its own.
fn rig() -> Rig {
    let kernel = FakeKernel::new();
    kernel.add_disk(POOL, FsType::Ext4, 100 << 30);
    Rig::on(kernel, &FLAGS)
}

fn text(rig: &Rig, file: &str) -> String {
    String::from_utf8(rig.kernel.read_file(file).expect("read")).expect("text")
}

/// Whether a volume can be made in the pool; why not.
fn usable(rig: &Rig) -> Result<(), String> {
    let count = rig.ok(csi::ListVolumesRequest::default()).entries.len();
    match rig.call(create_with(&format!("volume {count}"), &[("pool", "fast")])) {
        Ok(_) => Ok(()),
        Err(status) => {
            assert_eq!(status.code(), Code::ResourceExhausted, "{}", status.message());
            Err(status.message().to_owned())
        }
    }
}

#[test]
fn marker_and_twin_agree_and_stay_at_a_restart() {
    let rig = rig();
    let marker = text(&rig, MARKER);
    let owner = format!("driver=hostloop.csi.dev\nnode={NODE}\npool=fast\nid=");
    assert!(marker.starts_with(&owner), "{marker}");
    assert_eq!(text(&rig, TWIN), marker);
    let rig = rig.restart_with(&FLAGS);
    assert_eq!((text(&rig, MARKER), text(&rig, TWIN)), (marker.clone(), marker));
    assert_eq!(usable(&rig), Ok(()));
}

#[test]
fn a_missing_or_other_disk_is_refused_untouched() {
    let large = "x".repeat(4097);
    for (found, why) in [
        (None, "now has no file hostloop-pool: is its disk mounted?"),
        (Some("driver=hostloop.csi.dev\nnode=other\npool=fast\nid=1\n"), "another pool's"),
        (Some(large.as_str()), "another pool's: its file hostloop-pool says \"\""),
        (Some(""), "another pool's"),
    ] {
        let rig = rig();
        let own = text(&rig, MARKER);
        rig.kernel.remove_file(MARKER).expect("remove");
        if let Some(found) = found {
            rig.kernel.write_file(MARKER, found.as_bytes()).expect("write");
        }
        let rig = rig.restart_with(&FLAGS);
        let said = usable(&rig).expect_err("refused");
        assert!(said.contains(why), "{said}");
        assert_eq!(rig.kernel.exists(MARKER), found.is_some());
        assert_eq!(text(&rig, TWIN), own);
    }
}

#[test]
fn another_disk_is_refused_until_the_twin_is_removed() {
    let rig = rig();
    let other = text(&rig, MARKER).replace("id=", "id=0");
    rig.kernel.remove_file(MARKER).expect("remove");
    rig.kernel.write_file(MARKER, other.as_bytes()).expect("write");
    let rig = rig.restart_with(&FLAGS);
    let said = usable(&rig).expect_err("refused");
    assert!(said.contains("is not the directory that it was") && said.contains(TWIN), "{said}");
    rig.kernel.remove_file(TWIN).expect("remove");
    let rig = rig.restart_with(&FLAGS);
    assert_eq!((usable(&rig), text(&rig, TWIN)), (Ok(()), other));
}

/// Both may be lost in a restore: then the pool has what the state file says, or its disk is not mounted.
#[test]
fn a_missing_marker_is_written_if_volumes_are_there() {
    let rig = rig();
    rig.made(create_with("one", &[("pool", "fast")]));
    let unmarked = |rig: Rig| {
        [MARKER, TWIN].into_iter().for_each(|file| rig.kernel.remove_file(file).expect("remove"));
        rig
    };
    let rig = unmarked(rig).restart_with(&FLAGS);
    assert_eq!(usable(&rig), Ok(()));
    assert!(rig.kernel.exists(MARKER) && rig.kernel.exists(TWIN));

    let rig = unmarked(rig);
    rig.kernel.unmount_lazily(POOL).expect("unmount");
    let rig = rig.restart_with(&FLAGS);
    let said = usable(&rig).expect_err("refused");
    assert!(said.contains("holds none of the 2 volumes and snapshots that are in it"), "{said}");
    assert!(!rig.kernel.exists(MARKER) && !rig.kernel.exists(TWIN));
}

#[test]
fn a_marker_without_room_is_written_by_a_later_start() {
    let machine = || {
        let kernel = FakeKernel::new();
        kernel.add_disk(POOL, FsType::Ext4, 100 << 30);
        kernel
    };
    let steps = Rig::on(machine(), &FLAGS).kernel.steps();
    let step = |name: &str, subject: &str| {
        steps.iter().find(|step| step.name == name && step.subject == subject).expect("a step").number
    };
    let failing = |step: usize, errno: Errno| {
        let kernel = machine();
        kernel.fail_at(step, errno);
        Rig::on(kernel, &FLAGS)
    };
    for file in [MARKER, TWIN] {
        let append = step("append", &format!("{file}.new"));
        let rig = failing(append, Errno::ENOSPC);
        assert_eq!(usable(&rig), Ok(()), "{file}");
        assert_eq!((rig.kernel.exists(MARKER), rig.kernel.exists(TWIN)), (file == TWIN, false));
        let rig = rig.restart_with(&FLAGS);
        assert_eq!((usable(&rig), text(&rig, TWIN)), (Ok(()), text(&rig, MARKER)), "{file}");
        let said = usable(&failing(append, Errno::EIO)).expect_err("refused");
        assert!(said.contains(&format!("write {file}")), "{said}");
    }
    // The first pool makes the directory of the twins.
    let (twins, first) = (format!("{DATA}/known-pools"), format!("{DATA}/known-pools/directories"));
    let create = step("create_directory", &twins);
    let directory = || create_with("d", &[("pool", "directories"), ("backend", "directory")]);
    let rig = failing(create, Errno::ENOSPC);
    rig.made(directory());
    assert!(!rig.kernel.exists(&first));
    let rig = rig.restart_with(&FLAGS);
    assert!(rig.kernel.exists(&first));
    let said = failing(create, Errno::EIO).fails(Code::ResourceExhausted, directory());
    assert!(said.contains(&format!("make {twins}")), "{said}");
}

/// As on a disk that is not mounted: what is below would be taken for the pool.
#[test]
fn a_pool_without_recorded_directories_is_refused() {
    for (place, recorded) in
        [("volumes", true), ("snapshots", true), ("volumes", false), ("snapshots", false)]
    {
        let rig = rig();
        for pool in ["default", "fast"].into_iter().filter(|pool| recorded || *pool == "default") {
            let vol = rig.made(create_with(pool, &[("pool", pool)]));
            rig.cut(pool, &vol);
            if place == "snapshots" && pool == "fast" {
                rig.ok(vol.delete_request());
            }
        }
        let os = rig.kernel.spawn();
        let (from, to) = (format!("{POOL}/{place}"), format!("{POOL}/away"));
        os.files.rename(from.as_ref(), to.as_ref()).expect("rename");
        let rig = rig.restart_with(&FLAGS);
        match usable(&rig) {
            Ok(()) => assert!(!recorded, "{place}"),
            Err(said) => assert!(recorded && said.contains(&format!("should hold {place}")), "{said}"),
        }
    }
}

/// A snapshot alone is enough, and without one the pool is a new one.
#[test]
fn records_of_other_pools_are_not_looked_for() {
    for with_snapshot in [false, true] {
        let rig = rig();
        let vol = rig.made(create_with("of another pool", &[]));
        rig.cut("of another pool", &vol);
        if with_snapshot {
            let vol = rig.made(create_with("v", &[("pool", "fast")]));
            rig.cut("s", &vol);
            rig.ok(vol.delete_request());
        }
        [MARKER, TWIN].into_iter().for_each(|file| rig.kernel.remove_file(file).expect("remove"));
        if with_snapshot {
            rig.kernel.unmount_lazily(POOL).expect("unmount");
        }
        let rig = rig.restart_with(&FLAGS);
        match usable(&rig) {
            Ok(()) => assert!(!with_snapshot),
            Err(said) => {
                assert!(with_snapshot && said.contains("none of the 1 volumes and snapshots"), "{said}");
            }
        }
    }
}
