//! What only xfs asks for.

use std::path::Path;

use hostloop::kernel::AttachOptions;
use hostloop::model::{FsType, MountFlags};
use hostloop::wire::csi;
use tonic::Code;

use crate::life::*;
use crate::support::*;

/// A copy has the UUID of its source, and the kernel refuses a second xfs with the same one unless told otherwise.
#[test]
fn a_volume_is_staged_while_a_copy_of_it_is_mounted() {
    let rig = Rig::new();
    let request = |name: &str, capability| {
        rig.made(csi::CreateVolumeRequest { capacity_range: range(GIB, 0), ..create(name, capability) })
    };
    let vol = request("v", fs("xfs"));
    rig.stage(&vol);
    rig.kernel.write_file(format!("{}/file", vol.staging()), b"data").expect("write");
    rig.unstage(&vol);
    let (os, copy) = (rig.kernel.os(), Path::new("/var/lib/copy.img"));
    os.files.create_file(copy).expect("create");
    os.images.set_size(copy, GIB as u64).expect("size");
    let mut at = 0;
    while let Some((start, end)) = os.images.next_data(vol.image().as_ref(), at).expect("next data") {
        os.images.copy_range(vol.image().as_ref(), copy, start, end - start).expect("copy");
        at = end;
    }
    rig.kernel.create_directories("/mnt");
    let options =
        AttachOptions { read_only: false, autoclear: true, direct_io: false, block_size: 512, discard: true };
    let open = os.loops.attach(copy, options).expect("attach");
    os.mounts
        .mount(&open.device.path(), "/mnt".as_ref(), FsType::Xfs, &MountFlags::default())
        .expect("mount");
    drop(open);
    assert_eq!(rig.kernel.read_file("/mnt/file").expect("read"), b"data");

    rig.stage(&vol);
    assert_eq!(rig.kernel.read_file(format!("{}/file", vol.staging())).expect("read"), b"data");
    rig.unstage(&vol);
    // Whoever says it himself says it once, and what is wrong with his words is still told.
    for (words, code) in [(["nouuid"].as_slice(), None), (&["no_such_option"], Some(Code::InvalidArgument))] {
        let mode = csi::volume_capability::access_mode::Mode::SingleNodeWriter;
        let vol = request(words[0], fs("xfs")).used(mount_with("xfs", words, mode));
        match code {
            None => drop(rig.ok(rig.stage_request(&vol))),
            Some(code) => drop(rig.fails(code, rig.stage_request(&vol))),
        }
    }
}
