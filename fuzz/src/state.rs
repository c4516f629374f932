//! State files. What is damaged is told, and left as it is; what is read is read again by the next start, and no file of
//! a volume that is ready is lost.
//!
//! The first byte of an input says whether its lines get right checksums, since no mutation would find one.

use hostloop::model::{BackendKind, PoolName};
use hostloop::store::{Identity, Store};
use hostloop_fake_kernel::FakeKernel;

use crate::machine::{DATA_DIR, DIRECTORIES, machine, start};

/// The node of the state files in the corpus.
pub const NODE: &str = "node-golden";

/// Runs one input.
pub fn run(input: &[u8]) {
    let Some((mode, text)) = input.split_first() else { return };
    let state = if mode & 1 == 0 { text.to_vec() } else { with_checksums(text) };
    let kernel = machine();
    let file = Store::file(DATA_DIR.as_ref());
    kernel.write_file(&file, &state).expect("a state file");
    kernel.sync(&file).expect("a disk");
    let identity = || Identity { driver: "hostloop.csi.dev".to_owned(), node_id: NODE.to_owned() };
    let open = |kernel: &FakeKernel| Store::open(kernel.restart().files, DATA_DIR.as_ref(), identity());
    let store = match open(&kernel) {
        Ok(store) => store,
        Err(error) => {
            assert_eq!(kernel.read_file(&file).expect("the file"), state, "{error}");
            return;
        }
    };
    let records = (store.volumes(), store.snapshots(), store.groups());
    drop(store);
    let again = open(&kernel).expect("what was read once is read again");
    assert_eq!((again.volumes(), again.snapshots(), again.groups()), records);
    drop(again);

    let mut files = Vec::new();
    for volume in records.0.iter().filter(|volume| volume.is_ready()) {
        let pool = match volume.parameters.pool.as_str() {
            PoolName::DEFAULT => DATA_DIR,
            "directories" => DIRECTORIES,
            _ => continue,
        };
        let directory = format!("{pool}/volumes/{}", volume.id);
        let (content, name) = match volume.parameters.backend {
            BackendKind::Loop => (format!("{directory}/disk.img"), "disk.img"),
            BackendKind::Directory => (format!("{directory}/data/file"), "data"),
        };
        let parent = if name == "data" { format!("{directory}/data") } else { directory };
        kernel.create_directories(&parent);
        kernel.write_file(&content, b"data").expect("a file of a volume");
        files.push(content);
    }
    let Ok(_) = start(kernel.restart(), NODE) else { return };
    for file in files {
        assert_eq!(kernel.read_file(&file).ok().as_deref(), Some(&b"data"[..]), "{file} is lost");
    }
}

/// The lines, each with the checksum that makes it intact.
pub fn with_checksums(text: &[u8]) -> Vec<u8> {
    const MEMBER: &[u8] = b",\"crc\"";
    let mut output = Vec::new();
    for line in text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
        let end = line.windows(MEMBER.len()).rposition(|window| window == MEMBER);
        let content = &line[..end.unwrap_or(line.len())];
        output.extend(content);
        output.extend(format!(",\"crc\":\"{:08x}\"}}\n", crc32fast::hash(content)).bytes());
    }
    output
}
