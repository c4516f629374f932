//! The memory that trees in the making take for names. Their entries come from another node, which may send any number of
//! directories within each other, and of files with several names.

use std::sync::atomic::{AtomicUsize, Ordering};

use nix::errno::Errno;

use super::report::Fault;

/// The limit for one tree, in bytes: enough for about 170,000 files that have several names.
pub(super) const MOST: usize = 24 << 20;
/// The limit for all trees of the process together, in bytes.
const MOST_OF_ALL: usize = 40 << 20;

/// What all trees of the process take.
static ALL: AtomicUsize = AtomicUsize::new(0);

/// What one tree takes; given back when it is dropped.
pub(super) struct Memory {
    bytes: usize,
    all: &'static AtomicUsize,
}

impl Memory {
    pub(super) fn new() -> Self {
        Memory { bytes: 0, all: &ALL }
    }

    /// Counts `bytes` more.
    ///
    /// # Errors
    /// E2BIG if the tree takes more than one may; ENOMEM if all trees do.
    pub(super) fn take(&mut self, bytes: usize) -> Result<(), Fault> {
        if self.bytes.saturating_add(bytes) > MOST {
            let what = "keep more than 24 MiB of names of directories, and of files with several names, for";
            return Err(Fault::Call(what, Errno::E2BIG));
        }
        let before = self.all.fetch_add(bytes, Ordering::Relaxed);
        self.bytes += bytes;
        match before.saturating_add(bytes) > MOST_OF_ALL {
            true => Err(Fault::Call("keep names of more trees at a time, beside", Errno::ENOMEM)),
            false => Ok(()),
        }
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts `bytes` less, which [`Memory::take`] has counted.
    pub(super) fn give_back(&mut self, bytes: usize) {
        self.all.fetch_sub(bytes, Ordering::Relaxed);
        self.bytes -= bytes;
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errno(taken: Result<(), Fault>) -> Option<Errno> {
        match taken {
            Ok(()) => None,
            Err(Fault::Call(_, errno)) => Some(errno),
            Err(Fault::Caller(error)) => panic!("{error}"),
        }
    }

    #[test]
    fn trees_take_no_more_memory_than_they_may() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        let new = || Memory { bytes: 0, all: &TAKEN };
        let (mut one, mut other) = (new(), new());
        assert_eq!(errno(one.take(MOST)), None);
        assert_eq!(errno(one.take(1)), Some(Errno::E2BIG));
        assert_eq!(errno(other.take(MOST)), Some(Errno::ENOMEM));
        drop(one);
        let mut third = new();
        assert_eq!(errno(third.take(MOST_OF_ALL - MOST)), None);
        assert_eq!(errno(third.take(1)), Some(Errno::ENOMEM));
        third.give_back(2);
        assert_eq!(errno(third.take(1)), None);
        drop((third, other));
        assert_eq!(TAKEN.load(Ordering::Relaxed), 0);
    }
}
