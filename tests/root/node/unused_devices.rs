//! Loop devices that nobody uses, beside those of other processes.

use crate::contract::{FOR_BLOCK, MIB, image};
use crate::os_contract::setup;
use hostloop::kernel::linux::{Tools, os};
use hostloop::kernel::{Os, SPARE};

/// A driver removes the numbers that it made. Those of another process stay, also the free ones: it may know them.
#[test]
fn numbers_that_others_made_are_not_removed() {
    let (other, _temp, dir) = setup();
    let own = os(Tools::find());
    let file = dir.join("disk.img");
    image(&other, &file, 8 * MIB);
    let attach = |os: &Os| os.loops.attach(&file, FOR_BLOCK).expect("attach").device;
    // More than are left as spare ones.
    let made: Vec<_> = (0..2 * SPARE).map(|_| attach(&other)).collect();
    let first = attach(&own);
    made.iter().for_each(|device| other.loops.detach(device).expect("detach"));
    let removed = own.loops.remove_unused().expect("remove what is unused");
    let of_other = made.iter().filter(|device| removed.contains(&device.number));
    assert_eq!(of_other.count(), 0, "{removed:?}");
    own.loops.detach(&first).expect("detach");
}
