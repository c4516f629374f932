use super::super::samples::map;
use super::*;
use crate::model::{AccessMode, AccessType, MountFlags};

fn class(entries: &[(&str, &str)]) -> Result<VolumeParameters, String> {
    storage_class(&map(entries))
}

fn reason(entries: &[(&str, &str)]) -> String {
    class(entries).expect_err("refused")
}

#[test]
fn defaults() {
    let parameters = class(&[]).expect("parameters");
    assert_eq!(parameters, VolumeParameters { direct_io: true, ..VolumeParameters::default() });
    assert!(!class(&[("backend", "directory")]).expect("parameters").direct_io);
}

#[test]
fn every_key() {
    let parameters = class(&[
        ("backend", "loop"),
        ("provisioning", "thick"),
        ("pool", "fast-1"),
        ("mkfsOptions", " -E  lazy_itable_init=0,nodiscard\t-O ^has_journal -q"),
        ("directIO", "false"),
        ("sharedOnNode", "true"),
        ("csi.storage.k8s.io/fstype", "xfs"),
        ("csi.storage.k8s.io/pvc/name", "claim"),
    ])
    .expect("parameters");
    assert_eq!(parameters.provisioning, Provisioning::Thick);
    assert_eq!(parameters.pool.as_str(), "fast-1");
    assert_eq!(parameters.mkfs_options, ["-E", "lazy_itable_init=0,nodiscard", "-O", "^has_journal", "-q"]);
    assert!(!parameters.direct_io && parameters.shared_on_node);
}

#[test]
fn unknown_keys_are_named_with_those_that_exist() {
    for key in ["kind", "Backend", "fsType", "csi.storage.k8s.io", "kubernetes.io/x", ""] {
        let reason = reason(&[(key, "x")]);
        assert!(
            reason.contains(&format!("{key:?}")) && reason.contains("backend, provisioning, pool"),
            "{reason}"
        );
    }
}

#[test]
fn values_are_exact() {
    for (key, value) in [
        ("directIO", "True"),
        ("directIO", "1"),
        ("sharedOnNode", ""),
        ("backend", "Loop"),
        ("backend", " loop"),
        ("provisioning", "sparse"),
        ("pool", "../x"),
        ("pool", ""),
    ] {
        let reason = reason(&[(key, value)]);
        assert!(reason.contains(key) && reason.contains(&format!("{value:?}")), "{reason}");
    }
}

#[test]
fn a_directory_takes_nothing_of_a_loop_device() {
    for other in [
        ("provisioning", "thick"),
        ("mkfsOptions", "-q"),
        ("mkfsOptions", ""),
        ("directIO", "true"),
        ("directIO", "false"),
    ] {
        assert!(reason(&[("backend", "directory"), other]).contains("does not go with backend=directory"));
    }
    assert!(class(&[("backend", "directory"), ("provisioning", "thin"), ("sharedOnNode", "true")]).is_ok());
}

#[test]
fn block_takes_nothing_of_a_filesystem() {
    let block = Capability { access: AccessType::Block, mode: AccessMode::SingleNodeWriter };
    let access = AccessType::Mount { fs_type: None, flags: MountFlags::default() };
    let mount = Capability { access, mode: AccessMode::SingleNodeWriter };
    for entry in [("backend", "directory"), ("mkfsOptions", "-q"), ("sharedOnNode", "true")] {
        let parameters = class(&[entry]).expect("parameters");
        assert!(fit(&parameters, &block).expect_err("refused").contains(entry.0));
        assert!(fit(&parameters, &mount).is_ok());
    }
    assert!(fit(&class(&[("provisioning", "thick")]).expect("parameters"), &block).is_ok());
}

#[test]
fn mkfs_options_name_no_file_and_no_device() {
    let long = format!("-L {}", "x".repeat(1024));
    for bad in [
        "foo",
        "-E a b",
        "-E a /dev/sda",
        "-d /etc",
        "-- x",
        "-",
        "-L $(id)",
        "-L a;b",
        "-L 'a'",
        "-L é",
        "-L \0",
        "-E a -- b",
        &long,
    ] {
        assert!(reason(&[("mkfsOptions", bad)]).contains("mkfsOptions"), "{bad}");
    }
    for (good, words) in [("", 0), ("  ", 0), ("-q", 1), ("-m 0 -i 8192", 4), ("--csum xxhash", 2)] {
        assert_eq!(class(&[("mkfsOptions", good)]).expect("parameters").mkfs_options.len(), words, "{good}");
    }
}

#[test]
fn a_pod_cannot_set_what_is_for_administrators() {
    for (key, hint) in
        [("mkfsOptions", "StorageClass"), ("sharedOnNode", "StorageClass"), ("foo", "not known")]
    {
        assert!(inline(BTreeMap::from([(key, "true")])).expect_err("refused").contains(hint));
    }
    assert!(inline(BTreeMap::from([("backend", "directory"), ("pool", "fast")])).is_ok());
}
