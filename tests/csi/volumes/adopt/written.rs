//! A source that a program writes to while it is adopted, or afterwards.

use super::*;

const WRITTEN: &[u8] = b"what it has written since.";

/// The file that a program writes to while its directory or image is adopted, with the length that it had.
fn write_later(kernel: &FakeKernel, path: &str) {
    assert_eq!(WRITTEN.len(), CONTENT.len());
    let file = if path.contains(".img") { path.to_owned() } else { format!("{path}/sub/file") };
    kernel.write(file, 0, WRITTEN).unwrap();
}

/// A machine on which a program writes to the source before a call of the driver, once.
fn written_before(path: &str, call: &'static str, at: impl Fn(&str) -> bool + Send + Sync + 'static) -> Rig {
    let rig = prepared(path);
    let (kernel, source) = (rig.kernel.clone(), path.to_owned());
    let written = std::sync::atomic::AtomicBool::new(false);
    rig.kernel.set_pace(move |name, subject| {
        if name == call && at(subject) && !written.swap(true, std::sync::atomic::Ordering::SeqCst) {
            let renamed = kernel.tree(FAR).into_iter().find(|name| name.starts_with(&source)).unwrap();
            write_later(&kernel, &renamed);
        }
    });
    rig
}

#[test]
fn a_write_after_the_comparison_is_seen() {
    for (request, path) in far_sources() {
        // The record of the volume is written when the copy has been compared.
        let rig = written_before(&path, "open_log", |subject| subject.ends_with(".json"));
        let why = rig.fails(Code::Unavailable, request.clone());
        assert!(why.contains("changed while it was looked at"), "{why}");
        assert!(rig.kernel.exists(&path) && ids(&rig).is_empty(), "{path}");
        rig.ok(request);
    }
}

#[test]
fn a_source_written_after_its_copy_stays() {
    for (request, path) in far_sources() {
        let rig = prepared(&path);
        rig.ok(request.clone());
        let renames = |step: &Step| step.name == "rename" && step.subject.contains(".adopted-");
        let rename = rig.kernel.steps().into_iter().find(renames).unwrap().number;
        let rig = prepared(&path);
        rig.kernel.fail_at(rename, nix::errno::Errno::EIO);
        assert!(rig.call(request.clone()).is_err());
        let inode = rig.kernel.stat(&path).unwrap().id;
        write_later(&rig.kernel, &path);
        let why = settled(|| rig.call(request.clone())).unwrap_err();
        assert_eq!(why.code(), Code::FailedPrecondition, "{why}");
        assert!(why.message().contains(&format!("{path} was written to after it was copied")), "{why}");
        let tried = peer::AdoptVolumeRequest { dry_run: true, ..request.clone() };
        let why = rig.call(tried).unwrap_err();
        assert!(why.message().contains("was written to after it was copied"), "{why}");
        assert_eq!(rig.kernel.stat(&path).map(|stat| stat.id), Some(inode));
        rig.kernel.os().files.rename(Path::new(&path), Path::new("/old/moved")).unwrap();
        assert_eq!(rig.ok(request).left, "", "without the source, the volume is whole");
    }
}

#[test]
fn a_source_written_at_the_end_is_not_removed() {
    for (request, path) in far_sources() {
        let request = peer::AdoptVolumeRequest { remove_source: true, ..request };
        let rig = written_before(&path, "fingerprint", |subject| subject.contains(".adopted-"));
        let adopted = rig.ok(request);
        assert_eq!(adopted.left, format!("{path}.adopted-{}", adopted.volume_id));
        assert!(rig.kernel.exists(&adopted.left), "a program goes on with what it has open");
    }
}
