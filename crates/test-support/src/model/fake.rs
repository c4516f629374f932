//! The fake kernel as the machine of the clients.

use std::collections::BTreeMap;
use std::io;

use hostloop_fake_kernel::FakeKernel;

use super::{Kind, Machine};
use crate::harness::KUBELET;
use crate::invariants::directory_of;

/// Where a pod writes on a raw device.
const AT: u64 = 4096;

impl Machine for FakeKernel {
    fn staging(&self, id: &str) -> String {
        format!("{KUBELET}/stage/{id}")
    }

    fn target(&self, id: &str, pod: usize) -> String {
        format!("{KUBELET}/pods/{id}-{pod}")
    }

    fn prepare(&self, id: &str) {
        self.create_directories(self.staging(id));
    }

    fn is_gone(&self) -> bool {
        self.is_dead()
    }

    fn mounts(&self) -> BTreeMap<String, bool> {
        let mounts = FakeKernel::mounts(self).into_iter();
        mounts.map(|m| (m.target.display().to_string(), m.read_only || m.superblock_read_only)).collect()
    }

    fn write(&self, id: &str, kind: Kind, target: &str, value: u32) -> io::Result<()> {
        let text = super::text_of(value);
        if kind == Kind::Block {
            FakeKernel::write(self, target, AT, text.as_bytes())?;
            return self.sync(directory_of(self, id).expect("the directory of what is mounted"));
        }
        self.write_file(format!("{target}/number"), text.as_bytes())?;
        self.sync(target)
    }

    fn read(&self, kind: Kind, target: &str) -> io::Result<u32> {
        if kind == Kind::Block {
            return Ok(super::value_of(&FakeKernel::read(self, target, AT, super::text_of(0).len())?));
        }
        let file = format!("{target}/number");
        match self.exists(&file) {
            true => self.read_file(file).map(|bytes| super::value_of(&bytes)),
            false => Ok(0),
        }
    }
}
