//! Read-only is real, also for root.

use std::path::Path;

use hostloop::wire::csi::volume_capability::access_mode::Mode;
use nix::errno::Errno;

use crate::harness::kernel::{self, pattern, read_at, write_at};
use crate::harness::{Kind, MIB, Vol, World, eventually};

const LEN: usize = 1 << 20;

fn errno(result: std::io::Result<()>) -> Option<Errno> {
    result.err().and_then(|e| e.raw_os_error()).map(Errno::from_raw)
}

/// Published for writing to `a` and for reading to `b`.
fn readers_read_and_writers_write(kind: Kind) {
    let world = World::for_kind(kind, &[]);
    let vol = Vol::create(&world, kind, "shared", kind.size(), &[]);
    vol.up();
    write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
    vol.publish_as("b", true).expect("NodePublishVolume readonly");
    vol.publish_as("b", true).expect("NodePublishVolume readonly again");
    let code = vol.publish_as("b", false).expect_err("it is there otherwise").code();
    assert_eq!(code, tonic::Code::AlreadyExists);
    assert_eq!(vol.publish_as("a", true).expect_err("the same").code(), tonic::Code::AlreadyExists);
    assert_eq!(read_at(&vol.file("b"), 0, LEN), pattern(1, LEN));
    refused(kind, &vol.target("b"), &vol.file("b"));
    write_at(&vol.file("a"), LEN as u64, &pattern(2, LEN)).expect("the writer still writes");
    assert_eq!(read_at(&vol.file("a"), 0, LEN), pattern(1, LEN));
    vol.unpublish("b").expect("NodeUnpublishVolume");
    assert!(!vol.target("b").exists());
    write_at(&vol.file("a"), LEN as u64, &pattern(3, LEN)).expect("and afterwards");
    // For writing again where it was for reading.
    vol.publish("b").expect("NodePublishVolume");
    write_at(&vol.file("b"), 0, &pattern(4, LEN)).expect("write");
    vol.unpublish("b").expect("NodeUnpublishVolume");
    vol.remove();
    world.finish();
}

fn refused(kind: Kind, target: &Path, file: &Path) {
    let written = errno(write_at(file, 0, &pattern(9, 4096)));
    if kind == Kind::Block {
        assert!(matches!(written, Some(Errno::EPERM | Errno::EROFS | Errno::EACCES)), "{written:?}");
        assert_eq!(read_at(file, 0, 4096), pattern(1, LEN)[..4096], "nothing was written");
    } else {
        assert_eq!(written, Some(Errno::EROFS));
        assert_eq!(errno(std::fs::create_dir(target.join("d"))), Some(Errno::EROFS));
        let mount = kernel::mounts(target).pop().expect("a mount");
        assert!(mount.options.starts_with("ro"), "{mount:?}");
    }
}

#[test]
fn filesystems_have_read_only_publishes() {
    readers_read_and_writers_write(Kind::Ext4);
}

#[test]
fn xfs_has_read_only_publishes() {
    readers_read_and_writers_write(Kind::Xfs);
}

#[test]
fn directories_have_read_only_publishes() {
    readers_read_and_writers_write(Kind::Directory);
}

#[test]
fn devices_have_read_only_publishes() {
    readers_read_and_writers_write(Kind::Block);
}

/// Staged with the reader's access mode: nothing can be written anywhere.
#[test]
fn a_reader_only_volume_is_staged_read_only() {
    let world = World::new(&[]);
    for kind in [Kind::Ext4, Kind::Block] {
        let mut vol = Vol::create(&world, kind, &format!("reader {kind:?}"), 64 * MIB, &[]);
        vol.up();
        write_at(&vol.file("a"), 0, &pattern(1, LEN)).expect("write");
        vol.down();
        eventually("the device goes", || kernel::loops(&world.data).is_empty());
        vol.capability = kind.capability(Mode::SingleNodeReaderOnly);
        vol.up();
        assert_eq!(read_at(&vol.file("a"), 0, LEN), pattern(1, LEN));
        refused(kind, &vol.target("a"), &vol.file("a"));
        let numbers = kernel::loops(&world.data);
        assert_eq!(numbers.len(), 1, "{numbers:?}");
        vol.remove();
    }
    world.finish();
}
