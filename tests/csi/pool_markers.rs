//! The file in a pool that says whose it is, and its twin in the data directory: a disk that is missing, or another one, is
//! noticed before anything is made on it.

use hostloop::model::FsType;
use hostloop::os::fake::FakeKernel;
use hostloop::wire::csi;
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
fn both_files_say_the_same_of_a_pool_and_stay_as_they_are() {
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
fn a_missing_disk_and_another_one_are_refused_and_left_as_they_are() {
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
fn the_disk_of_another_time_is_refused_until_the_twin_is_removed() {
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

/// As 0.1.0 left it: without a marker, and with what the state file says, or on a disk that is not mounted.
#[test]
fn a_pool_without_a_marker_gets_one_where_it_holds_what_is_recorded() {
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
