use super::super::samples::map;
use super::*;
use crate::model::{AccessMode, AccessType, MountFlags};

fn class(entries: &[(&str, &str)]) -> Result<VolumeParameters, String> {
    modified(entries, &[])
}

fn modified(entries: &[(&str, &str)], mutable: &[(&str, &str)]) -> Result<VolumeParameters, String> {
    let mutable = mutable::decode(&map(mutable))?;
    storage_class(&map(entries), mutable).map(|class| class.parameters)
}

fn reason(entries: &[(&str, &str)]) -> String {
    class(entries).expect_err("refused")
}

#[test]
fn parameters_have_defaults() {
    let parameters = class(&[]).expect("parameters");
    assert_eq!(parameters, VolumeParameters { direct_io: true, ..VolumeParameters::default() });
    assert!(!class(&[("backend", "directory")]).expect("parameters").direct_io);
}

#[test]
fn every_parameter_is_read() {
    let parameters = class(&[
        ("backend", "loop"),
        ("provisioning", "thick"),
        ("pool", "fast-1"),
        ("mkfsOptions", " -E  lazy_itable_init=0,nodiscard\t-O ^has_journal -q"),
        ("directIO", "false"),
        ("discard", "false"),
        ("sharedOnNode", "true"),
        ("crossNodeCopy", "false"),
        ("freeze", "false"),
        ("freezeTimeout", "1m"),
        ("csi.storage.k8s.io/fstype", "xfs"),
        ("csi.storage.k8s.io/pvc/name", "claim"),
    ])
    .expect("parameters");
    assert_eq!(parameters.provisioning, Provisioning::Thick);
    assert_eq!(parameters.pool.as_str(), "fast-1");
    assert_eq!(parameters.mkfs_options, ["-E", "lazy_itable_init=0,nodiscard", "-O", "^has_journal", "-q"]);
    assert!(!parameters.direct_io && parameters.shared_on_node && !parameters.discard);
}

#[test]
fn consistency_is_no_part_of_the_volume() {
    let given = |entries| storage_class(&map(entries), Modification::default());
    let class = given(&[("freeze", "false"), ("freezeTimeout", "1m")]).expect("class");
    assert_eq!(class.parameters, given(&[]).expect("class").parameters);
    assert_eq!(class.consistency, Consistency { freeze: false, freeze_timeout_ms: 60_000 });
    let here = given(&[("crossNodeCopy", "false")]).expect("class");
    let travels = |entries| placement_class(&map(entries)).map(|class| class.cross_node_copy);
    assert_eq!([travels(&[]), travels(&[("crossNodeCopy", "false")])], [Ok(true), Ok(false)]);
    assert_eq!(here.parameters, class.parameters);
    assert_eq!(given(&[]).expect("class").consistency, Consistency::default());
    assert!(given(&[("freezeTimeout", "forever")]).expect_err("refused").contains("freezeTimeout"));
}

#[test]
fn a_thick_volume_never_discards() {
    let thick = ("provisioning", "thick");
    let plain = class(&[thick]).expect("parameters");
    assert!(!plain.discards());
    assert!(class(&[thick, ("discard", "false")]).is_ok());
    assert!(class(&[("provisioning", "thin"), ("discard", "true")]).expect("parameters").discards());
    assert!(!class(&[("discard", "false")]).expect("parameters").discards());
    let want = "discard=true does not work with provisioning=thick";
    let discard = ("discard", "true");
    for refused in [
        class(&[thick, discard]),
        modified(&[thick], &[discard]),
        modified(&[discard], &[thick]),
        modified(&[], &[thick, discard]),
    ] {
        assert!(refused.expect_err("refused").contains(want));
    }
}

#[test]
fn mutable_parameters_win() {
    let all = [("provisioning", "thick"), ("directIO", "false"), ("discard", "false")];
    let plain = modified(&all, &[]).expect("parameters");
    assert_eq!(modified(&[("pool", "a")], &all).expect("parameters").pool.as_str(), "a");
    assert_eq!(modified(&[], &all).expect("parameters"), plain);
    let thin = modified(&all, &[("provisioning", "thin"), ("discard", "true")]).expect("parameters");
    assert!(thin.discards() && !thin.direct_io);
    // What is overridden was given all the same.
    assert!(modified(&[("directIO", "yes")], &[("directIO", "true")]).is_err());
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
        ("discard", "off"),
        ("freeze", "yes"),
        ("freezeTimeout", "30"),
        ("sharedOnNode", ""),
        ("crossNodeCopy", "no"),
        ("standby", "yes"),
        ("standbyInterval", "1s"),
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
fn a_copy_stands_by_on_another_node_only() {
    assert!(class(&[("standby", "1"), ("standbyInterval", "30s")]).is_ok());
    assert!(class(&[("standby", "0"), ("crossNodeCopy", "false")]).is_ok());
    let why = reason(&[("standby", "1"), ("crossNodeCopy", "false")]);
    assert!(why.contains("crossNodeCopy forbids"), "{why}");
}

#[test]
fn a_directory_takes_nothing_of_a_loop_device() {
    for other in [
        ("provisioning", "thick"),
        ("mkfsOptions", "-q"),
        ("mkfsOptions", ""),
        ("directIO", "true"),
        ("directIO", "false"),
        ("discard", "true"),
        ("discard", "false"),
    ] {
        assert!(reason(&[("backend", "directory"), other]).contains("does not work with backend=directory"));
        if other.0 != "mkfsOptions" {
            let refused = modified(&[("backend", "directory")], &[other]).expect_err("refused");
            assert!(refused.contains("does not work with backend=directory"), "{refused}");
        }
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
    let inline = |entries: &[(&str, &str)]| super::inline(&Given::new("volume attribute", &map(entries)));
    for (key, hint) in [
        ("mkfsOptions", "StorageClass"),
        ("sharedOnNode", "StorageClass"),
        ("crossNodeCopy", "StorageClass"),
        ("standby", "StorageClass"),
        ("standbyInterval", "StorageClass"),
        ("freeze", "StorageClass"),
        ("freezeTimeout", "StorageClass"),
        ("foo", "not known"),
    ] {
        assert!(inline(&[(key, "true")]).expect_err("refused").contains(hint));
    }
    assert!(inline(&[("backend", "directory"), ("pool", "fast")]).is_ok());
    assert!(!inline(&[("discard", "false")]).expect("parameters").discards());
}

#[test]
fn enforcement_and_inodes_limit_a_directory() {
    let directory = |entries: &[(&'static str, &'static str)]| {
        let entries = [&[("backend", "directory")], entries].concat();
        class(&entries).map(|parameters| (parameters.enforcement, parameters.inodes))
    };
    assert_eq!(directory(&[]), Ok((None, None)), "its pool decides");
    assert_eq!(directory(&[("enforcement", "none")]), Ok((Some(Enforcement::None), None)));
    let both = [("enforcement", "required"), ("inodes", "16")];
    assert_eq!(directory(&both), Ok((Some(Enforcement::Required), Some(16))));
    for count in ["15", "0", "-1", "+16", "1e6", "", " 16", "18446744073709551616"] {
        assert!(directory(&[("inodes", count)]).expect_err("refused").contains("at least 16"), "{count}");
    }
    let refused = directory(&[("enforcement", "none"), ("inodes", "16")]).expect_err("refused");
    assert!(refused.contains("inodes does not work with enforcement=none"), "{refused}");
    for (key, value) in both {
        assert!(reason(&[(key, value)]).contains(&format!("{key} does not work with backend=loop")));
    }
    let attributes = map(&[("backend", "directory"), ("enforcement", "none")]);
    let inline = inline(&Given::new("volume attribute", &attributes)).expect("attributes");
    assert!(!inline.is_sized());
}
