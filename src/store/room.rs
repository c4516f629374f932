//! Room for the lines that a full disk must not refuse.
//!
//! Beyond its end, the state file owns blocks that nothing has been written to. There are enough to remove every record
//! from the file, so that what frees room can always be recorded, and [`SPARE`] for changes that neither free nor take
//! any, such as what staging records. A further record, and any other change that removes nothing, is refused before it
//! would take from that room.

use std::io;

use nix::errno::Errno;

use crate::kernel::{LogFile, is_errno, is_full};

/// Bytes beside the way out.
const SPARE: u64 = 1 << 20;
/// So much more is taken at once, so that not every change has to ask for some.
const STEP: u64 = 64 << 10;

/// The room behind the end of the state file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Room {
    /// So many bytes can be appended whatever happens.
    Bytes(u64),
    /// The filesystem can set nothing aside.
    Unknown,
}

impl Room {
    /// Sets room aside behind the end of `log`: for the `way_out` of all records and some more, or at least as much as
    /// fits in.
    ///
    /// # Errors
    /// The kernel's where not even `least` bytes can be had; ENOSPC where the disk is full.
    pub fn take(log: &mut dyn LogFile, way_out: u64, least: u64) -> io::Result<Room> {
        let mut full = None;
        for bytes in [way_out.saturating_add(SPARE + STEP), way_out.saturating_add(SPARE / 2), way_out, least]
        {
            match log.reserve(bytes) {
                Ok(()) => return Ok(Room::Bytes(bytes.max(least))),
                Err(error) if is_errno(&error, Errno::EOPNOTSUPP) => return Ok(Room::Unknown),
                Err(error) if is_full(&error) => full = Some(error),
                Err(error) => return Err(error),
            }
            if bytes <= least {
                break;
            }
        }
        match full.filter(|_| least > 0) {
            Some(error) => Err(error),
            None => Ok(Room::Bytes(0)),
        }
    }

    /// Whether it is time to take more before `bytes` are appended.
    pub fn is_short(self, bytes: u64, way_out: u64) -> bool {
        match self {
            // Seldom, so that what a caller was told to be free is free when a volume is made of it.
            Room::Bytes(room) => room.saturating_sub(bytes) < way_out.saturating_add(SPARE / 2),
            Room::Unknown => false,
        }
    }

    /// Whether the way out is still covered after `bytes` have been appended.
    pub fn covers(self, bytes: u64, way_out: u64) -> bool {
        match self {
            Room::Bytes(room) => room >= bytes.saturating_add(way_out),
            Room::Unknown => true,
        }
    }

    /// What a file that takes this one's place must have at least.
    pub fn least(self, way_out: u64) -> u64 {
        match self {
            Room::Bytes(room) => room.min(way_out),
            Room::Unknown => 0,
        }
    }

    /// What is left after `bytes` have been appended.
    pub fn without(self, bytes: u64) -> Room {
        match self {
            Room::Bytes(room) => Room::Bytes(room.saturating_sub(bytes)),
            Room::Unknown => Room::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{errno_error, errno_of};

    /// A log on a disk that can set so much aside.
    struct Disk {
        room: Result<u64, Errno>,
        asked: Vec<u64>,
    }

    impl LogFile for Disk {
        fn append(&mut self, _bytes: &[u8]) -> io::Result<()> {
            unreachable!("nothing is written")
        }

        fn sync(&mut self) -> io::Result<()> {
            unreachable!("nothing is written")
        }

        fn reserve(&mut self, bytes: u64) -> io::Result<()> {
            self.asked.push(bytes);
            match self.room {
                Ok(room) if bytes <= room => Ok(()),
                Ok(_) => Err(errno_error(Errno::ENOSPC, "a full disk")),
                Err(errno) => Err(errno_error(errno, "a disk that fails")),
            }
        }
    }

    #[test]
    fn the_reserve_takes_as_much_as_there_is() {
        const WAY_OUT: u64 = 10_000;
        let take = |room, least| {
            let mut disk = Disk { room, asked: Vec::new() };
            let taken = Room::take(&mut disk, WAY_OUT, least).map_err(|error| errno_of(&error));
            (taken, disk.asked)
        };
        let (most, half) = (WAY_OUT + SPARE + STEP, WAY_OUT + SPARE / 2);
        assert_eq!(take(Ok(most), 100), (Ok(Room::Bytes(most)), vec![most]));
        assert_eq!(take(Ok(half), 100), (Ok(Room::Bytes(half)), vec![most, half]));
        assert_eq!(take(Ok(half - 1), 100), (Ok(Room::Bytes(WAY_OUT)), vec![most, half, WAY_OUT]));
        assert_eq!(take(Ok(100), 100), (Ok(Room::Bytes(100)), vec![most, half, WAY_OUT, 100]));
        let full = Err(Some(Errno::ENOSPC));
        assert_eq!(take(Ok(99), 100), (full, vec![most, half, WAY_OUT, 100]));
        assert_eq!(take(Ok(half), half).0, Ok(Room::Bytes(half)));
        assert_eq!(take(Ok(0), half), (full, vec![most, half]), "less than that is of no use");
        assert_eq!(take(Ok(0), 0).0, Ok(Room::Bytes(0)));
        assert_eq!(take(Err(Errno::EDQUOT), 0).0, Ok(Room::Bytes(0)), "nothing has to be there");
        assert_eq!(take(Err(Errno::EIO), 0), (Err(Some(Errno::EIO)), vec![most]));
        assert_eq!(take(Err(Errno::EOPNOTSUPP), 100), (Ok(Room::Unknown), vec![most]));
    }

    #[test]
    fn the_way_out_is_always_covered() {
        let enough = Room::Bytes(SPARE / 2 + 30);
        assert!(!enough.is_short(0, 30) && enough.is_short(1, 30));
        assert!(Room::Bytes(40).covers(10, 30) && !Room::Bytes(40).covers(11, 30));
        assert_eq!((Room::Bytes(100).least(30), Room::Bytes(10).least(30)), (30, 10));
        assert_eq!(
            (Room::Bytes(40).without(10), Room::Bytes(5).without(10)),
            (Room::Bytes(30), Room::Bytes(0))
        );
    }

    #[test]
    fn nothing_is_refused_if_nothing_can_be_set_aside() {
        assert!(!Room::Unknown.is_short(u64::MAX, 30) && Room::Unknown.covers(u64::MAX, 30));
        assert_eq!((Room::Unknown.least(30), Room::Unknown.without(30)), (0, Room::Unknown));
    }
}
