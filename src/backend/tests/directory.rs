//! Directories, and what others mount of theirs.

use super::*;
use crate::model::MountFlags;

/// Another driver has a directory of the same name, and a pod that uses it.
#[test]
fn a_directory_of_the_same_name_is_not_the_volumes() {
    let machine = Machine::new(Content::Directory);
    let theirs = Path::new("/other").join(machine.paths.data().strip_prefix("/pool").unwrap());
    machine.kernel.create_directories(&theirs);
    let bind = |source: &Path| {
        machine.os.mounts.bind(source, Path::new("/pods"), &MountFlags::default()).unwrap();
        let uses = machine.presence().uses(machine.place()).unwrap();
        machine.os.mounts.unmount(Path::new("/pods")).unwrap();
        uses
    };
    let uses = bind(&theirs);
    assert!(!uses.any(), "{}", uses.describe());
    assert_eq!(bind(&machine.paths.data()).mounts.len(), 1, "its own is");
    // What someone mounts inside is in the way of a deletion, whatever it is.
    machine.kernel.create_directories(machine.paths.data().join("inside"));
    machine.os.mounts.bind(&theirs, &machine.paths.data().join("inside"), &MountFlags::default()).unwrap();
    let uses = machine.presence().uses(machine.place()).unwrap();
    assert_eq!((uses.mounts.len(), uses.partial.len()), (0, 1));
}
