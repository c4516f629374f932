//! The superblocks of the three filesystems, as far as a signature probe reads them, at their real places.

use hostloop_model::FsType;

use super::content::Content;

/// The first byte after the region in which any filesystem keeps a signature.
pub(super) const REGION: u64 = 68 << 10;

const EXT4: u64 = 1024;
const BTRFS: u64 = 64 << 10;

/// Writes a superblock for a filesystem of `size` bytes: where it goes, and its bytes.
pub(super) fn build(fs_type: FsType, size: u64, uuid: [u8; 16]) -> (u64, Vec<u8>) {
    let mut bytes = vec![0; 1024];
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    let blocks = size / 4096;
    match fs_type {
        FsType::Ext4 => {
            put(0x04, &(blocks as u32).to_le_bytes());
            put(0x150, &((blocks >> 32) as u32).to_le_bytes());
            put(0x18, &2u32.to_le_bytes());
            put(0x38, &0xEF53u16.to_le_bytes());
            put(0x3A, &1u16.to_le_bytes());
            put(0x4C, &1u32.to_le_bytes());
            put(0x5C, &0x4u32.to_le_bytes());
            put(0x60, &(0x40u32 | 0x80).to_le_bytes());
            put(0x68, &uuid);
            (EXT4, bytes)
        }
        FsType::Xfs => {
            put(0, b"XFSB");
            put(4, &4096u32.to_be_bytes());
            put(8, &blocks.to_be_bytes());
            put(32, &uuid);
            (0, bytes)
        }
        FsType::Btrfs => {
            put(0x20, &uuid);
            put(0x30, &BTRFS.to_le_bytes());
            put(0x40, b"_BHRfS_M");
            put(0x70, &size.to_le_bytes());
            put(0x90, &4096u32.to_le_bytes());
            put(0x94, &16384u32.to_le_bytes());
            (BTRFS, bytes)
        }
    }
}

/// What a mkfs that was killed leaves: mkfs.xfs starts with a superblock that says "in progress", the other
/// two end with theirs and leave tables that no probe knows.
pub(super) fn torn(fs_type: FsType) -> (u64, Vec<u8>) {
    match fs_type {
        FsType::Xfs => {
            let (at, mut bytes) = build(FsType::Xfs, 0, [0xAA; 16]);
            bytes[126] = 1;
            (at, bytes)
        }
        FsType::Ext4 | FsType::Btrfs => (16 << 10, vec![0xA5; 8192]),
    }
}

/// The filesystem in an image, and its size in bytes.
pub(super) fn probe(image: &Content) -> Option<(FsType, u64)> {
    let le32 = |at| u64::from(u32::from_le_bytes(image.read(at, 4).try_into().unwrap_or_default()));
    if image.read(EXT4 + 0x38, 2) == 0xEF53u16.to_le_bytes() {
        return Some((FsType::Ext4, (le32(EXT4 + 4) | le32(EXT4 + 0x150) << 32) * 4096));
    }
    if image.read(0, 4) == b"XFSB" {
        return Some((FsType::Xfs, u64::from_be_bytes(image.read(8, 8).try_into().ok()?) * 4096));
    }
    if image.read(BTRFS + 0x40, 8) == b"_BHRfS_M" {
        return Some((FsType::Btrfs, u64::from_le_bytes(image.read(BTRFS + 0x70, 8).try_into().ok()?)));
    }
    None
}

/// Where the superblock has its UUID.
pub(super) fn uuid_at(fs_type: FsType) -> u64 {
    match fs_type {
        FsType::Ext4 => EXT4 + 0x68,
        FsType::Xfs => 32,
        FsType::Btrfs => BTRFS + 0x20,
    }
}

/// The UUID of the filesystem in an image.
pub(super) fn uuid(fs_type: FsType, image: &Content) -> Vec<u8> {
    image.read(uuid_at(fs_type), 16)
}

/// Where the superblock has its size, and the bytes to put there.
pub(super) fn size_fields(fs_type: FsType, size: u64) -> Vec<(u64, Vec<u8>)> {
    let blocks = size / 4096;
    match fs_type {
        FsType::Ext4 => vec![
            (EXT4 + 4, (blocks as u32).to_le_bytes().to_vec()),
            (EXT4 + 0x150, ((blocks >> 32) as u32).to_le_bytes().to_vec()),
        ],
        FsType::Xfs => vec![(8, blocks.to_be_bytes().to_vec())],
        FsType::Btrfs => vec![(BTRFS + 0x70, size.to_le_bytes().to_vec())],
    }
}

/// Where ext4 keeps its state: bit 1 is "cleanly unmounted", bit 2 "has errors".
pub(super) const EXT4_STATE: u64 = EXT4 + 0x3A;
