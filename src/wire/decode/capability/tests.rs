use super::super::samples::{block, mount};
use super::*;

fn reason(capability: csi::VolumeCapability) -> String {
    let error = required(Some(capability)).expect_err("refused");
    assert!(matches!(error, Error::Invalid(_)));
    error.to_string()
}

fn with_mount(change: impl FnOnce(&mut MountVolume)) -> csi::VolumeCapability {
    let mut volume = MountVolume::default();
    change(&mut volume);
    csi::VolumeCapability { access_type: Some(CsiAccessType::Mount(volume)), ..mount("") }
}

fn with_mode(mode: i32) -> csi::VolumeCapability {
    csi::VolumeCapability { access_mode: Some(csi::volume_capability::AccessMode { mode }), ..mount("") }
}

#[test]
fn every_mode_has_its_name() {
    for mode in 1..=7 {
        let name = Mode::try_from(mode).expect("mode").as_str_name();
        assert_eq!(required(Some(with_mode(mode))).expect("capability").mode.as_str(), name);
    }
    assert!(reason(with_mode(0)).contains("UNKNOWN"));
    assert!(reason(with_mode(8)).contains("8 is not supported"));
    assert!(reason(with_mode(-1)).contains("not supported"));
}

#[test]
fn parts_that_are_missing_are_named() {
    assert!(required(None).expect_err("missing").to_string().contains("volume_capability is missing"));
    assert_eq!(optional(None).expect("none"), None);
    assert!(
        reason(csi::VolumeCapability { access_mode: None, ..mount("") }).contains("access_mode is missing")
    );
    assert!(reason(csi::VolumeCapability { access_type: None, ..mount("") }).contains("access_type"));
    assert!(all(Vec::new()).is_err());
    assert!(each(Vec::new()).expect("none").is_empty());
}

#[test]
fn filesystems_have_the_names_of_the_kernel() {
    for (name, fs) in
        [("", None), ("ext4", Some(FsType::Ext4)), ("xfs", Some(FsType::Xfs)), ("btrfs", Some(FsType::Btrfs))]
    {
        assert_eq!(required(Some(mount(name))).expect("capability").fs_type(), fs);
    }
    for name in ["ext3", "EXT4", " ext4", "ntfs"] {
        assert!(reason(mount(name)).contains("not supported; use ext4, xfs or btrfs"), "{name}");
    }
    assert!(required(Some(block())).expect("capability").is_block());
}

#[test]
fn mount_flags_are_checked_and_values_never_repeated() {
    let flags =
        |flags: &[&str]| with_mount(|m| m.mount_flags = flags.iter().map(|f| (*f).to_owned()).collect());
    let capability = required(Some(flags(&["noatime", "ro"]))).expect("capability");
    assert!(capability.mount_flags().read_only);
    assert!(reason(flags(&["password=CANARY", "bind"])).contains("\"bind\" is not allowed"));
    let large = "CANARY".repeat(700);
    for bad in [
        flags(&["bind=CANARY"]),
        flags(&["noatime=CANARY"]),
        flags(&["CANARY\0"]),
        flags(&["CANARY\n"]),
        flags(&[&large]),
    ] {
        assert!(!reason(bad).contains("CANARY"));
    }
    assert!(required(Some(flags(&[&"x".repeat(2048), &"y".repeat(2048)]))).is_ok());
}

#[test]
fn a_mount_group_is_not_supported() {
    assert!(reason(with_mount(|m| m.volume_mount_group = "1000".to_owned())).contains("volume_mount_group"));
}

#[test]
fn a_volume_is_one_thing() {
    assert_eq!(all(vec![mount(""), mount("xfs"), mount("")]).expect("capabilities").len(), 3);
    assert!(all(vec![block(), block()]).is_ok());
    assert!(all(vec![mount(""), block()]).expect_err("mixed").to_string().contains("both block and mount"));
    assert!(
        all(vec![mount("ext4"), mount(""), mount("xfs")]).expect_err("mixed").to_string().contains("fs_type")
    );
}

#[test]
fn each_capability_asked_about_has_an_answer() {
    let asked = vec![mount("ext4"), mount("zfs"), with_mode(99), block(), mount("xfs")];
    let answers = each(asked).expect("answers");
    assert_eq!(answers.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, false, false, false]);
    assert!(each(vec![csi::VolumeCapability { access_type: None, ..mount("") }]).is_err());
    assert!(each(vec![with_mode(0)]).is_err());
}
