//! Mount options, compared with what mount(8) of this machine makes of the same words.

use std::path::Path;
use std::process::{Command, Stdio};

use hostloop::kernel::LoopDevice;
use hostloop::model::FsType;
use hostloop::wire::csi;
use hostloop::wire::csi::volume_capability::access_mode::Mode;
use tonic::Code;

use crate::client::{self, with_options};
use crate::contract::{Cleanup, FOR_BLOCK, directory, flags, formatted};
use crate::harness::calls::Calls;
use crate::harness::process::{binary, command};
use crate::harness::volume::{create_request, restore_request};
use crate::harness::{Kind, MIB, Vol, World, eventually, kernel, run, text};
use crate::os_contract::setup;

/// The words of fstab that do something to the mount, and those that only mount(8) reads.
const WORDS: [&str; 51] = [
    "ro",
    "rw",
    "exec",
    "noexec",
    "suid",
    "nosuid",
    "dev",
    "nodev",
    "sync",
    "async",
    "dirsync",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "nostrictatime",
    "lazytime",
    "nolazytime",
    "silent",
    "loud",
    "iversion",
    "noiversion",
    "symfollow",
    "nosymfollow",
    "mand",
    "nomand",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "auto",
    "noauto",
    "defaults",
    "nofail",
    "_netdev",
    "comment=a",
    "x-systemd.automount",
    "X-comment",
    "X-mount.mkdir",
    "user=joe",
    "noexec,exec",
    "ro,rw",
    "exec,user",
    "context=\"system_u:object_r:tmp_t:s0\"",
];

/// What mountinfo shows of the mount and of its superblock.
fn shown(target: &Path) -> String {
    let mounts = kernel::mounts(target);
    assert_eq!(mounts.len(), 1, "{mounts:?}");
    mounts[0].options.clone()
}

/// Mounts a device with mount(8) and returns what mountinfo shows; `None` if mount(8) refuses.
fn mounted(device: &LoopDevice, target: &Path, words: &str) -> Option<String> {
    let mount = Command::new("mount")
        .args(["-o", words])
        .args([&device.path(), target])
        .stderr(Stdio::null())
        .status();
    let shown = mount.expect("mount").success().then(|| shown(target))?;
    run("umount", &[text(target)]);
    wait_until_released(device.number);
    Some(shown)
}

/// Waits until the kernel has no superblock of an ext4 on loop device `number`. Mount namespaces of other tests hold copies of this
/// test's mounts; while one does, the next mount gets the old superblock with the old options (super.c, sget_fc).
fn wait_until_released(number: u32) {
    let superblock = format!("/sys/fs/ext4/loop{number}");
    eventually("every mount of the device is gone", || !Path::new(&superblock).exists());
}

#[test]
fn each_word_of_fstab_is_what_mount_8_makes_of_it() {
    let world = World::new(&[]);
    let (os, _temp, dir) = setup();
    let cleanup = Cleanup::new(&os, &dir);
    let point = directory(&os, dir.join("point"));
    let image = dir.join("m.img");
    drop(formatted(&os, &image, FsType::Ext4, 32 * MIB));
    let reference = os.loops.attach(&image, FOR_BLOCK).expect("attach");
    let request = |name: &str, words: &[&str]| {
        let capability = with_options(Kind::Ext4.capability(Mode::SingleNodeMultiWriter), words);
        csi::CreateVolumeRequest {
            volume_capabilities: vec![capability],
            ..create_request(Kind::Ext4, name, Kind::Ext4.size(), &[])
        }
    };
    let volume = world.csi.create(request("v", &[])).expect("CreateVolume");
    let mut differ = Vec::new();
    for words in WORDS {
        let expected = mounted(&reference.device, &point, words).expect("mount(8) takes it");
        let vol = Vol::of(&world, Kind::Ext4, volume.clone()).with_flags(&[words]);
        // The same volume again: the class of a claim that is made anew.
        let created = world.csi.create(request("v", &[words])).map(drop);
        let staged = created.and_then(|()| vol.stage()).map(|()| {
            let shown = shown(&vol.staging());
            vol.stage().expect("it is there already");
            vol.publish("a").expect("NodePublishVolume");
            vol.publish("a").expect("it is there already");
            let devices = kernel::loops(&world.volume_directory(vol.id()));
            vol.down();
            devices.into_iter().for_each(wait_until_released);
            shown
        });
        match staged {
            Ok(shown) if shown == expected => {}
            other => differ.push(format!("{words}: {other:?} is not {expected}")),
        }
    }
    assert!(differ.is_empty(), "{} of {} differ:\n{}", differ.len(), WORDS.len(), differ.join("\n"));
    world.csi.delete(&volume.volume_id).expect("DeleteVolume");
    os.loops.detach(&reference.device).expect("detach");
    drop((reference, cleanup));
    world.finish();
}

#[test]
fn every_two_words_are_what_mount_8_makes_of_them() {
    let (os, _temp, dir) = setup();
    let cleanup = Cleanup::new(&os, &dir);
    let (point, image) = (directory(&os, dir.join("point")), dir.join("m.img"));
    drop(formatted(&os, &image, FsType::Ext4, 32 * MIB));
    let device = os.loops.attach(&image, FOR_BLOCK).expect("attach");
    // Words that the tables of mount(8) only skip are alike.
    let skipped =
        ["x-", "X-", "comment", "context", "auto", "noauto", "nofail", "_netdev", "noexec,", "ro,", "exec,"];
    let words: Vec<&str> =
        WORDS.into_iter().filter(|word| skipped.iter().all(|skipped| !word.starts_with(skipped))).collect();
    let mut differ = Vec::new();
    let pairs = words.iter().flat_map(|first| words.iter().map(move |second| format!("{first},{second}")));
    for words in pairs {
        let expected = mounted(&device.device, &point, &words).expect("mount(8) takes them");
        os.mounts.mount(&device.device.path(), &point, FsType::Ext4, &flags(&[&words])).expect("mount");
        let seen = shown(&point);
        os.mounts.unmount(&point).expect("unmount");
        wait_until_released(device.device.number);
        if seen != expected {
            differ.push(format!("{words}: {seen} is not {expected}"));
        }
    }
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
    os.loops.detach(&device.device).expect("detach");
    drop((device, cleanup));
}

/// The node asks its own kernel, which tells without a device.
#[test]
fn an_unknown_word_is_named_before_a_volume_is_made() {
    let mut world = World::new(&[]);
    let (os, _temp, _) = setup();
    for kind in [Kind::Ext4, Kind::Xfs, Kind::Btrfs] {
        if kind == Kind::Btrfs
            && os.mounts.refused_option(FsType::Btrfs, &["no_such_word".to_owned()]).is_none()
        {
            continue; // before Linux 6.8 it does not tell
        }
        world.serve(kind);
        let with = |words: &[&str], request: csi::CreateVolumeRequest| csi::CreateVolumeRequest {
            volume_capabilities: vec![with_options(kind.capability(Mode::SingleNodeMultiWriter), words)],
            ..request
        };
        let create = |name: &str, words: &[&str]| {
            world.csi.create(with(words, create_request(kind, name, kind.size(), &[])))
        };
        let vol = Vol::of(&world, kind, create("v", &["noatime,discard"]).expect("CreateVolume"));
        let cut = world.csi.snapshot("cut", vol.id(), &[]).expect("CreateSnapshot");
        for words in [&["noatime,no_such_word=hunter2"][..], &["discard", "no_such_word"]] {
            let refused = create("other", words).expect_err("unknown");
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
            assert!(refused.message().contains("\"no_such_word\"") && !refused.message().contains("hunter2"));
            let restore = restore_request(kind, "restored", kind.size(), &cut.snapshot_id, &[]);
            let refused = world.csi.create(with(words, restore)).expect_err("unknown");
            assert!(refused.message().contains("\"no_such_word\""), "{kind:?} {refused}");
            let asked = csi::ValidateVolumeCapabilitiesRequest {
                volume_id: vol.id().to_owned(),
                volume_capabilities: with(words, create_request(kind, "", 0, &[])).volume_capabilities,
                ..Default::default()
            };
            let answer = world.csi.call(asked).expect("ValidateVolumeCapabilities");
            assert!(answer.confirmed.is_none() && answer.message.contains("\"no_such_word\""), "{answer:?}");
        }
        let vol = vol.with_flags(&["noatime", "no_such_word=hunter2"]);
        let refused = vol.stage().expect_err("unknown");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains("\"no_such_word\"") && !refused.message().contains("hunter2"));
        world.csi.delete_snapshot(&cut.snapshot_id).expect("DeleteSnapshot");
        vol.delete().expect("DeleteVolume");
    }
    world.finish();
}

/// As before Linux 5.17 with ext4, and before 6.8 with btrfs.
#[test]
fn a_kernel_that_does_not_tell_refuses_the_mount() {
    let mut world = World::empty(&[]);
    Calls::hold(&[Calls::missing(&[libc::SYS_fsopen])], || {
        world.start_as(command(binary()).args(world.arguments()));
    });
    let vol = Vol::create(&world, Kind::Ext4, "v", Kind::Ext4.size(), &[]);
    let vol = vol.with_flags(&["discard", "no_such_word=hunter2"]);
    let request = csi::CreateVolumeRequest {
        volume_capabilities: vec![vol.capability.clone()],
        ..create_request(Kind::Ext4, "w", Kind::Ext4.size(), &[])
    };
    let made = world.csi.create(request).expect("nothing is known of the word");
    world.csi.delete(&made.volume_id).expect("DeleteVolume");
    let refused = vol.stage().expect_err("unknown");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("\"discard\", \"no_such_word\""), "{refused}");
    assert!(!refused.message().contains("hunter2"), "{refused}");
    vol.delete().expect("DeleteVolume");
    world.finish();
}

#[test]
fn a_directory_refuses_filesystem_words_by_name() {
    let world = World::for_kind(Kind::Directory, &[]);
    for (words, named) in [("noatime,commit=5", "\"commit\""), ("noexec,sync", "\"sync\"")] {
        let capability = with_options(Kind::Directory.capability(Mode::SingleNodeMultiWriter), &[words]);
        let request = csi::CreateVolumeRequest {
            volume_capabilities: vec![capability],
            ..create_request(Kind::Directory, "v", 64 * MIB, &[])
        };
        let refused = world.csi.create(request).expect_err("a word of the filesystem");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
        assert!(refused.message().contains(named), "{refused}");
    }
    let vol = Vol::create(&world, Kind::Directory, "v", 64 * MIB, &[]);
    let vol = vol.with_flags(&["user", "exec", "nosymfollow", "noatime"]);
    vol.stage().expect("NodeStageVolume");
    vol.stage().expect("NodeStageVolume again");
    vol.publish("a").expect("NodePublishVolume");
    let shown = shown(&vol.target("a"));
    for word in ["nosuid", "nodev", "nosymfollow", "noatime"] {
        assert!(shown.split(',').any(|option| option == word), "{word}: {shown}");
    }
    assert!(!shown.split(',').any(|option| option == "noexec"), "{shown}");
    vol.remove();
    world.finish();
}

#[test]
fn an_inline_volume_with_an_unknown_word_is_not_made() {
    let world = World::new(&[]);
    let target = world.kubelet.join("pod");
    let capability = with_options(Kind::Ext4.capability(Mode::SingleNodeWriter), &["no_such_word=hunter2"]);
    let volume_context = client::parameters(&[("csi.storage.k8s.io/ephemeral", "true"), ("size", "48Mi")]);
    let refused = world
        .csi
        .publish(csi::NodePublishVolumeRequest {
            volume_id: format!("csi-{}", "0b".repeat(32)),
            target_path: text(&target).to_owned(),
            volume_capability: Some(capability),
            volume_context,
            ..Default::default()
        })
        .expect_err("unknown");
    assert_eq!(refused.code(), Code::InvalidArgument, "{refused}");
    assert!(refused.message().contains("\"no_such_word\"") && !refused.message().contains("hunter2"));
    assert!(!target.exists(), "nothing was made");
    world.finish();
}
