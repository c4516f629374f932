//! What images and devices hold, told from their bytes. A message is a piece of an image: its tag says near which
//! superblock or label it lies.

use hostloop::backend::{Signature, inspect, inspect_device, label};
use hostloop_fake_kernel::FakeKernel;

use crate::messages;

/// Where labels lie, and the end, before which RAID keeps its own.
const PLACES: [u64; 12] = [0, 3, 0x36, 0x52, 0x1fe, 0x218, 1024, 0x1018, 4086, 0x8001, 65536, SIZE - 65536];
/// A small image; all places are in it.
const SIZE: u64 = 256 << 10;
const IMAGE: &str = "/tmp/image";

/// Runs one input.
pub fn run(input: &[u8]) {
    let kernel = FakeKernel::new();
    let mut image = vec![0; SIZE as usize];
    kernel.write_file(IMAGE, b"").expect("an image");
    kernel.os().images.set_size(IMAGE.as_ref(), SIZE).expect("a size");
    for (tag, bytes) in messages::read(input) {
        let at = PLACES[usize::from(tag) % PLACES.len()] as usize;
        let end = (at + bytes.len()).min(image.len());
        image[at..end].copy_from_slice(&bytes[..end - at]);
        kernel.write(IMAGE, at as u64, &bytes[..end - at]).expect("a write");
    }
    let (images, path) = (kernel.os().images, IMAGE.as_ref());
    let found = inspect(&*images, path).expect("a readable image");
    let is_zero = image.iter().all(|byte| *byte == 0);
    assert_eq!(found == Signature::Blank, is_zero, "{found:?}");
    let on_device = inspect_device(&*images, path, SIZE).expect("a readable device");
    assert_eq!(on_device == Signature::Blank, is_zero, "{on_device:?}");
    if let Some(label) = label(&*images, path).expect("a readable image") {
        assert_eq!(found, label);
    }
}
