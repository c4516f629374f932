//! Changes that are whole on this node before any of them is applied: a standby copy has all data of one cut whatever
//! happens to the node of its source.
//!
//! The file beside the image has an entry for each run of bytes: [`Header`], and the data where they are no zeros. A record
//! says how long the file is when it is whole; what is behind that, or without a record, is of no use.

use std::path::Path;

use nix::errno::Errno;

use super::changes::{Image, Sink};
use super::room::Room;
use crate::driver::{Driver, Pool};
use crate::error::{Error, OsContext, Result};
use crate::kernel::{LogFile, errno_error};
use crate::model::pull::{Piece, Zeros};
use crate::model::{format_bytes, with_margin};

/// What stands before the data of an entry: four numbers, little-endian.
struct Header {
    kind: Kind,
    /// As in [`Piece`] or [`Zeros`].
    crc32: u32,
    offset: u64,
    len: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Data = 1,
    Zeros = 2,
}

impl Header {
    const LEN: usize = 24;

    fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        let numbers = (self.kind as u32).to_le_bytes().into_iter().chain(self.crc32.to_le_bytes());
        let numbers = numbers.chain(self.offset.to_le_bytes()).chain(self.len.to_le_bytes());
        bytes.iter_mut().zip(numbers).for_each(|(to, from)| *to = from);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Header> {
        let (kind, rest) = bytes.split_first_chunk()?;
        let (crc32, rest) = rest.split_first_chunk()?;
        let (offset, rest) = rest.split_first_chunk()?;
        let (len, _) = rest.split_first_chunk()?;
        let kind = match u32::from_le_bytes(*kind) {
            1 => Kind::Data,
            2 => Kind::Zeros,
            _ => return None,
        };
        let [offset, len] = [offset, len].map(|number| u64::from_le_bytes(*number));
        Some(Header { kind, crc32: u32::from_le_bytes(*crc32), offset, len })
    }
}

/// The file of changes while it is being written.
pub(super) struct Staging<'a> {
    path: &'a Path,
    log: Box<dyn LogFile>,
    bytes: u64,
    most: u64,
    room: Room<'a>,
}

impl<'a> Staging<'a> {
    /// Creates an empty file of changes for an image of `size` bytes, in place of one that an earlier call
    /// left.
    pub(super) fn begin(driver: &'a Driver, pool: &'a Pool, path: &'a Path, size: u64) -> Result<Self> {
        let log = driver.os.files.open_log(path, 0).doing(|| format!("make {}", path.display()))?;
        Ok(Staging { path, log, bytes: 0, most: with_margin(size), room: Room::begin(driver, pool, 0)? })
    }

    fn append(&mut self, header: &Header, data: &[u8]) -> Result<()> {
        let len = (Header::LEN + data.len()) as u64;
        if self.bytes + len > self.most {
            // With runs of a few bytes, the headers take more than the data.
            return Err(Error::Unavailable(format!(
                "the changes in {} take more than {}, the limit for its image: the node of the source sends them in runs that are too short",
                self.path.display(),
                format_bytes(self.most)
            )));
        }
        self.room.take(len)?;
        let writing = || format!("write {}", self.path.display());
        self.log.append(&header.encode()).doing(writing)?;
        if !data.is_empty() {
            self.log.append(data).doing(writing)?;
        }
        self.bytes += len;
        Ok(())
    }

    /// Makes it durable, and gives its length in bytes.
    pub(super) fn end(mut self) -> Result<u64> {
        self.log.sync().doing(|| format!("sync {}", self.path.display()))?;
        Ok(self.bytes)
    }
}

impl Sink for Staging<'_> {
    fn data(&mut self, piece: &Piece) -> Result<()> {
        let &Piece { offset, crc32, .. } = piece;
        self.append(&Header { kind: Kind::Data, crc32, offset, len: piece.data.len() as u64 }, &piece.data)
    }

    fn zeros(&mut self, zeros: Zeros) -> Result<()> {
        let Zeros { offset, len, crc32 } = zeros;
        self.append(&Header { kind: Kind::Zeros, crc32, offset, len }, &[])
    }
}

impl Driver {
    /// Applies the first `bytes` of a file of changes to an image. Nothing is durable yet on return.
    ///
    /// # Errors
    /// NOT_FOUND where the file is not what was written, with what to do; the kernel's.
    pub(in crate::driver) fn apply_staged(
        &self,
        (path, bytes): (&Path, u64),
        (image, is_thick): (&Path, bool),
    ) -> Result<()> {
        let mut image = Image { driver: self, path: image, is_thick };
        let mut at = 0;
        while at < bytes {
            at = self.apply_entry(path, at, &mut image)?;
        }
        Ok(())
    }

    /// Applies one entry. Gives where the next one begins.
    fn apply_entry(&self, path: &Path, at: u64, image: &mut Image<'_>) -> Result<u64> {
        let reading = || format!("read {}", path.display());
        let read = |at, len| self.os.images.read_at(path, at, len).doing(reading);
        let damaged = || damaged(path, at);
        let Header { kind, crc32, offset, len } =
            Header::decode(&read(at, Header::LEN)?).ok_or_else(damaged)?;
        let data_at = at + Header::LEN as u64;
        match kind {
            Kind::Zeros => {
                let zeros = Zeros { offset, len, crc32 };
                zeros.is_intact().then_some(()).ok_or_else(damaged)?;
                image.zeros(zeros)?;
                Ok(data_at)
            }
            Kind::Data => {
                let len = usize::try_from(len).ok().filter(|len| *len <= Piece::MOST).ok_or_else(damaged)?;
                let piece = Piece { offset, data: read(data_at, len)?, crc32 };
                piece.is_intact().then_some(()).ok_or_else(damaged)?;
                image.data(&piece)?;
                Ok(data_at + len as u64)
            }
        }
    }
}

/// NOT_FOUND makes whoever keeps the copy make another one: this one is of two cuts by halves, perhaps for ever.
fn damaged(path: &Path, at: u64) -> Error {
    let cause = errno_error(Errno::EBADMSG, "checksum");
    Error::NotFound(format!(
        "{} is damaged at byte {at} ({cause}), so the copy cannot be brought up to date any more; delete it and make another one, \
         and check the disk",
        path.display()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_read_as_it_was_written() {
        let header = Header { kind: Kind::Zeros, crc32: 7, offset: 1 << 40, len: 4096 };
        let Header { kind, crc32, offset, len } = Header::decode(&header.encode()).unwrap();
        assert_eq!((kind, crc32, offset, len), (Kind::Zeros, 7, 1 << 40, 4096));
        assert!(Header::decode(&[0; Header::LEN]).is_none(), "an unknown kind");
        assert!(Header::decode(&header.encode()[1..]).is_none(), "cut off");
    }
}
