//! The backends, and what a volume of each can hold.

use serde::{Deserialize, Serialize};

use super::FsType;

/// Where a volume's bytes live.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BackendKind {
    /// An image file behind a loop device; the size is a hard limit.
    #[default]
    Loop,
    /// A directory, bind-mounted; its filesystem may enforce a size ([`Enforcement`](super::Enforcement)).
    Directory,
}

impl BackendKind {
    pub const ALL: [BackendKind; 2] = [BackendKind::Loop, BackendKind::Directory];

    /// Whether the data are an image behind a loop device: only such a volume can be thick, raw or written past the page
    /// cache, and only it gets a filesystem of its own.
    pub const fn has_image(self) -> bool {
        match self {
            BackendKind::Loop => true,
            BackendKind::Directory => false,
        }
    }

    /// The value of the parameter `backend`.
    pub const fn as_str(self) -> &'static str {
        match self {
            BackendKind::Loop => "loop",
            BackendKind::Directory => "directory",
        }
    }
}

/// Whether a filesystem has been made in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Format {
    /// Never formatted: the image must be blank, and anything found in it stops the staging.
    Blank,
    /// Only of a snapshot: when it was taken, mkfs of its volume had not finished. The record of the volume itself stays `Blank`, and a
    /// mark beside its image tells of it (`backend::Mark`).
    Formatting,
    /// The image is a copy whose filesystem still has the identity of its source: it gets one of its own before
    /// it is mounted.
    Copied,
    /// A filesystem was made: it is mounted, never made again.
    Formatted,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Content {
    Block,
    /// A filesystem in an image.
    #[serde(rename_all = "camelCase")]
    Filesystem {
        fs_type: FsType,
        /// Whether it has been made.
        format: Format,
    },
    /// A plain directory on the pool's filesystem.
    Directory,
}

impl Content {
    pub fn backend(&self) -> BackendKind {
        match self {
            Content::Block | Content::Filesystem { .. } => BackendKind::Loop,
            Content::Directory => BackendKind::Directory,
        }
    }

    /// The filesystem in its image, if it is to have one, and whether it has been made.
    pub fn filesystem(&self) -> Option<(FsType, Format)> {
        match self {
            Content::Filesystem { fs_type, format } => Some((*fs_type, *format)),
            Content::Block | Content::Directory => None,
        }
    }

    /// The filesystem in its image, if it is to have one.
    pub fn fs_type(&self) -> Option<FsType> {
        self.filesystem().map(|(fs_type, _)| fs_type)
    }

    /// Whether a filesystem has been made, where there is to be one.
    pub fn format(&self) -> Option<Format> {
        self.filesystem().map(|(_, format)| format)
    }

    /// The same with another format, where it has one.
    #[must_use]
    pub fn with_format(&self, format: Format) -> Content {
        self.fs_type().map_or_else(|| self.clone(), |fs_type| Content::Filesystem { fs_type, format })
    }

    /// Reports whether both are the same on the disk, so that one can be a copy of the bytes, or of the tree, of the other.
    pub fn is_kind_of(&self, other: &Content) -> bool {
        (self.backend(), self.fs_type(), *self == Content::Block)
            == (other.backend(), other.fs_type(), *other == Content::Block)
    }

    /// The smallest size in bytes that it can have.
    pub fn minimum_bytes(&self) -> u64 {
        self.fs_type().map_or(1, FsType::minimum_bytes)
    }
}
