//! The identity of a btrfs: the fsid in its superblock (btrfs documentation, "On-disk Format").
//!
//! The kernel tells filesystems apart by fsid and refuses a second one with the same fsid. With the feature METADATA_UUID,
//! every block of metadata keeps the old id, which the superblock names in another field, so a new fsid changes only the
//! superblock. `btrfstune -m` does that too, but cannot be used here (seen with 6.2). It commits transactions first, after
//! which the kernel refuses the log tree of a filesystem that was copied while it was in use, and so the mount. If it was
//! interrupted, it leaves a flag with which neither the kernel nor btrfstune accepts the filesystem any more.
#![allow(clippy::disallowed_types, clippy::disallowed_methods, reason = "writes a device for Filesystems")]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use uuid::Uuid;

use super::super::errno_error;
use super::claim::Claim;
use super::{at, ioctl};

/// Bytes of a superblock, and where it and its copies lie (BTRFS_SUPER_INFO_OFFSET, btrfs_sb_offset()).
const SIZE: usize = 4096;
const PLACES: [u64; 3] = [64 << 10, 64 << 20, 256 << 30];
const MAGIC: [u8; 8] = *b"_BHRfS_M";

/// Offsets of fields of `struct btrfs_super_block` (linux/btrfs_tree.h).
mod field {
    pub(super) const CHECKSUM: usize = 0;
    pub(super) const FSID: usize = 0x20;
    pub(super) const PLACE: usize = 0x30;
    pub(super) const FLAGS: usize = 0x38;
    pub(super) const MAGIC: usize = 0x40;
    pub(super) const LOG_ROOT: usize = 0x60;
    pub(super) const DEVICES: usize = 0x88;
    pub(super) const INCOMPAT: usize = 0xBC;
    pub(super) const CHECKSUM_TYPE: usize = 0xC4;
    pub(super) const METADATA_UUID: usize = 0x23B;
}

/// BTRFS_FEATURE_INCOMPAT_METADATA_UUID
const INCOMPAT_METADATA_UUID: u64 = 1 << 10;

/// BTRFS_CSUM_TYPE_CRC32, which mkfs takes unless told otherwise.
const CRC32C: [u8; 2] = [0, 0];

/// Flags of a filesystem in its normal life: BTRFS_HEADER_FLAG_WRITTEN and RELOC, BTRFS_SUPER_FLAG_ERROR. Others say
/// that it is a seed, a dump of metadata, or in the middle of a change of its ids.
const USUAL_FLAGS: u64 = 1 | 2 | 4;

/// A superblock as it lies on the disk.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Superblock([u8; SIZE]);

impl Superblock {
    fn get<const N: usize>(&self, at: usize) -> [u8; N] {
        let bytes = self.0.get(at..at + N).and_then(|bytes| bytes.try_into().ok());
        bytes.unwrap_or([0; N])
    }

    fn number(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.get(at))
    }

    fn put(&mut self, at: usize, bytes: &[u8]) {
        if let Some(place) = self.0.get_mut(at..at + bytes.len()) {
            place.copy_from_slice(bytes);
        }
    }

    /// The checksum of all that follows its field of 32 bytes.
    fn checksum(&self) -> [u8; 4] {
        crc32c(self.0.get(32..).unwrap_or_default()).to_le_bytes()
    }

    /// Whether it is one, written in whole.
    fn is_valid(&self) -> bool {
        self.get(field::MAGIC) == MAGIC && self.get(field::CHECKSUM) == self.checksum()
    }

    /// The same filesystem under a new fsid.
    ///
    /// # Errors
    /// EOPNOTSUPP for what cannot be told from its superblock alone.
    fn renamed(mut self, fsid: Uuid) -> io::Result<Self> {
        let (flags, devices) = (self.number(field::FLAGS), self.number(field::DEVICES));
        if flags & !USUAL_FLAGS != 0 || devices != 1 {
            let context = format!("give btrfs a new id: it has flags {flags:#x} and {devices} devices");
            return Err(errno_error(Errno::EOPNOTSUPP, context));
        }
        let features = self.number(field::INCOMPAT);
        if features & INCOMPAT_METADATA_UUID == 0 {
            let old: [u8; 16] = self.get(field::FSID);
            self.put(field::METADATA_UUID, &old);
            self.put(field::INCOMPAT, &(features | INCOMPAT_METADATA_UUID).to_le_bytes());
        }
        self.put(field::FSID, fsid.as_bytes());
        Ok(self)
    }

    /// The copy of it that belongs at this place.
    fn at(mut self, place: u64) -> Self {
        self.put(field::PLACE, &place.to_le_bytes());
        let checksum = self.checksum();
        self.put(field::CHECKSUM, &checksum);
        self
    }
}

/// CRC-32C (Castagnoli), as in RFC 3720, appendix B.4. A superblock is too small for a table to pay.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82F6_3B78 } else { crc >> 1 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

enum Checked {
    /// It is valid, or its copy is.
    Valid(Superblock),
    /// Its checksum is one that is not known here.
    Foreign(Superblock),
}

/// The superblock, or its copy where a power cut has torn it: [`write()`] writes the copies first.
fn read(file: &File, size: u64) -> io::Result<Option<Checked>> {
    for place in places(size) {
        let mut bytes = [0; SIZE];
        file.read_exact_at(&mut bytes, place)?;
        let found = Superblock(bytes);
        if found.is_valid() && found.number(field::PLACE) == place {
            return Ok(Some(Checked::Valid(found)));
        }
        if found.get(field::MAGIC) == MAGIC && found.get(field::CHECKSUM_TYPE) != CRC32C {
            return Ok(Some(Checked::Foreign(found)));
        }
    }
    Ok(None)
}

/// Writes the superblock's copies, and when they are on the disk the superblock itself. The kernel updates the copies
/// less often, so that before this they may lack the log tree, which holds what was synced last.
fn write(file: &File, size: u64, superblock: &Superblock) -> io::Result<()> {
    for place in places(size).rev() {
        let Superblock(bytes) = superblock.clone().at(place);
        file.write_all_at(&bytes, place)?;
        file.sync_all()?;
    }
    Ok(())
}

/// The places that lie on a device of this size.
fn places(size: u64) -> impl DoubleEndedIterator<Item = u64> {
    PLACES.into_iter().filter(move |place| place + SIZE as u64 <= size)
}

/// Gives the filesystem on a device that is not mounted a new random fsid. It can be repeated whenever it was
/// interrupted. False where nothing was done since its checksums are not the usual ones: `btrfstune -m` can, and nothing
/// is lost by it.
///
/// # Errors
/// EBUSY where the device is mounted, EUCLEAN where it has no superblock, EOPNOTSUPP where its id cannot be changed.
pub(super) fn renew_identity(device: &Path) -> io::Result<bool> {
    // Nobody has it mounted.
    let _claim = Claim::new(device)?;
    let file = File::from(
        open(device, OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty()).map_err(at("open", device))?,
    );
    let size = ioctl::device_size(&file).map_err(at("get the size of", device))?;
    match read(&file, size).map_err(at("read", device))? {
        Some(Checked::Valid(superblock)) => {
            let renamed = superblock.renamed(random_uuid()?)?;
            write(&file, size, &renamed).map_err(at("write", device))?;
            Ok(true)
        }
        Some(Checked::Foreign(superblock)) if superblock.number(field::LOG_ROOT) == 0 => Ok(false),
        Some(Checked::Foreign(_)) => {
            let what = "its checksums are not crc32c, and it was copied while its log was in use";
            Err(errno_error(
                Errno::EOPNOTSUPP,
                format_args!("give btrfs on {} a new id: {what}", device.display()),
            ))
        }
        None => {
            let context = format!("give btrfs on {} a new id: it has no superblock", device.display());
            Err(errno_error(Errno::EUCLEAN, context))
        }
    }
}

/// From the kernel (random(4)).
pub(super) fn random_uuid() -> io::Result<Uuid> {
    let path = Path::new("/proc/sys/kernel/random/uuid");
    let text = std::fs::read_to_string(path).map_err(at("read", path))?;
    Uuid::try_parse(text.trim()).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device of 65 MiB with a superblock and one copy, which is older and knows of no log tree.
    fn device() -> (File, u64, Superblock) {
        let mut superblock = Superblock([0; SIZE]);
        superblock.put(field::MAGIC, &MAGIC);
        superblock.put(field::FSID, &[7; 16]);
        superblock.put(field::FLAGS, &1u64.to_le_bytes());
        superblock.put(field::DEVICES, &1u64.to_le_bytes());
        superblock.put(field::INCOMPAT, &0x361u64.to_le_bytes());
        let (file, size) = (tempfile::tempfile().expect("file"), 65 << 20);
        file.set_len(size).expect("size");
        file.write_all_at(&superblock.clone().at(PLACES[1]).0, PLACES[1]).expect("write");
        superblock.put(field::LOG_ROOT, &4096u64.to_le_bytes());
        let superblock = superblock.at(PLACES[0]);
        file.write_all_at(&superblock.0, PLACES[0]).expect("write");
        (file, size, superblock)
    }

    fn found(file: &File, size: u64) -> Superblock {
        match read(file, size).expect("read") {
            Some(Checked::Valid(superblock)) => superblock,
            _ => panic!("no valid superblock"),
        }
    }

    #[test]
    fn the_checksum_is_castagnoli() {
        assert_eq!(crc32c(b"123456789"), 0xE306_9283);
    }

    #[test]
    fn a_received_subvolume_changes_its_id_only() {
        let (_, _, before) = device();
        let (first, second) = (Uuid::from_bytes([1; 16]), Uuid::from_bytes([2; 16]));
        let once = before.clone().renamed(first).expect("renamed").at(PLACES[0]);
        assert!(once.is_valid());
        assert_eq!((once.get(field::FSID), once.get(field::METADATA_UUID)), ([1u8; 16], [7u8; 16]));
        assert_eq!(once.number(field::INCOMPAT), 0x361 | INCOMPAT_METADATA_UUID);
        assert_eq!(once.number(field::LOG_ROOT), 4096, "with it what was synced last");
        let again = once.clone().renamed(second).expect("renamed");
        assert_eq!((again.get(field::FSID), again.get(field::METADATA_UUID)), ([2u8; 16], [7u8; 16]));
        assert_eq!(
            once.at(PLACES[0]).renamed(Uuid::from_bytes([7; 16])).expect("renamed").get(field::FSID),
            [7u8; 16]
        );
    }

    #[test]
    fn a_torn_superblock_is_taken_from_its_copy() {
        let (file, size, before) = device();
        let renamed = before.renamed(Uuid::from_bytes([1; 16])).expect("renamed");
        write(&file, size, &renamed).expect("write");
        assert_eq!(found(&file, size), renamed.clone().at(PLACES[0]));
        file.write_all_at(&[0xFF; 512], PLACES[0] + 512).expect("tear");
        assert_eq!(found(&file, size), renamed.at(PLACES[1]), "with the log tree");
        file.write_all_at(&[0xFF; 512], PLACES[1]).expect("tear");
        assert!(read(&file, size).expect("read").is_none());
    }

    #[test]
    fn an_unusual_btrfs_is_left_alone() {
        let (_, _, usual) = device();
        for (at, value) in [(field::DEVICES, 2u64), (field::FLAGS, 1 | 1 << 36), (field::FLAGS, 1 << 32)] {
            let mut odd = usual.clone();
            odd.put(at, &value.to_le_bytes());
            let error = odd.renamed(Uuid::from_bytes([1; 16])).expect_err("odd");
            assert!(crate::is_errno(&error, Errno::EOPNOTSUPP), "{error}");
        }
    }
}
