//! Mount flags as CSI sends them: a list of `mount -o` words, split into what the kernel's VFS knows and what
//! goes to the filesystem as data (mount(2)).

use std::collections::BTreeSet;
use std::fmt;

/// A per-mount flag of the VFS (mount(2), `MS_*`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)] // each is the `mount -o` word of the same name
pub enum VfsFlag {
    NoAtime,
    NoDirAtime,
    RelAtime,
    StrictAtime,
    LazyTime,
    NoSuid,
    NoDev,
    NoExec,
    Sync,
    DirSync,
}

impl VfsFlag {
    pub const ALL: [VfsFlag; 10] = [
        VfsFlag::NoAtime,
        VfsFlag::NoDirAtime,
        VfsFlag::RelAtime,
        VfsFlag::StrictAtime,
        VfsFlag::LazyTime,
        VfsFlag::NoSuid,
        VfsFlag::NoDev,
        VfsFlag::NoExec,
        VfsFlag::Sync,
        VfsFlag::DirSync,
    ];

    /// The word of `mount -o` and of mountinfo.
    pub const fn as_str(self) -> &'static str {
        match self {
            VfsFlag::NoAtime => "noatime",
            VfsFlag::NoDirAtime => "nodiratime",
            VfsFlag::RelAtime => "relatime",
            VfsFlag::StrictAtime => "strictatime",
            VfsFlag::LazyTime => "lazytime",
            VfsFlag::NoSuid => "nosuid",
            VfsFlag::NoDev => "nodev",
            VfsFlag::NoExec => "noexec",
            VfsFlag::Sync => "sync",
            VfsFlag::DirSync => "dirsync",
        }
    }

    /// Whether mountinfo shows the flag per mount, so that a repeated call can be compared with what is there
    /// (the others belong to the superblock, or are the kernel's default and not shown).
    pub const fn is_shown_per_mount(self) -> bool {
        matches!(
            self,
            VfsFlag::NoAtime | VfsFlag::NoDirAtime | VfsFlag::NoSuid | VfsFlag::NoDev | VfsFlag::NoExec
        )
    }
}

#[derive(Clone, PartialEq, Eq, Default)]
pub struct MountFlags {
    /// `ro` was among them.
    pub read_only: bool,
    /// Flags of the VFS.
    pub vfs: BTreeSet<VfsFlag>,
    /// Words for the filesystem, in the order given, such as `nouuid` or `context="…"`.
    pub data: Vec<String>,
}

/// Flags may carry secrets (spec.md, MountVolume): only how many there are is ever printed.
impl fmt::Debug for MountFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "MountFlags {{ read_only: {}, vfs: {:?}, data: {} words }}",
            self.read_only,
            self.vfs,
            self.data.len()
        )
    }
}

/// A flag that would turn the mount into something else. The word itself is not sensitive: it is one of a fixed list.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("mount flag {0:?} is not allowed: it would change what is mounted or where")]
pub struct InvalidMountFlag(&'static str);

/// Words that mount(8) acts on itself, or that would make mount(2) do something else than mount this volume.
const REFUSED: [&str; 14] = [
    "bind",
    "rbind",
    "move",
    "remount",
    "loop",
    "shared",
    "rshared",
    "private",
    "rprivate",
    "slave",
    "rslave",
    "unbindable",
    "runbindable",
    "offset",
];

/// Words of fstab that mean nothing to the kernel.
const IGNORED: [&str; 8] = ["defaults", "rw", "auto", "noauto", "nofail", "_netdev", "user", "nouser"];

impl MountFlags {
    /// Parses the words of `mount_flags`; a word may itself be a list with commas.
    ///
    /// # Errors
    /// `InvalidMountFlag` for a word such as `bind` or `remount`.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidMountFlag> {
        let mut flags = MountFlags::default();
        for word in words.into_iter().flat_map(split_outside_quotes) {
            let key = word.split('=').next().unwrap_or(word);
            if let Some(refused) = REFUSED.iter().find(|r| **r == key) {
                return Err(InvalidMountFlag(refused));
            }
            match word {
                "" => {}
                "ro" => flags.read_only = true,
                _ if IGNORED.contains(&word) || word.starts_with("x-") => {}
                _ => match VfsFlag::ALL.into_iter().find(|f| f.as_str() == word) {
                    Some(flag) => drop(flags.vfs.insert(flag)),
                    None => flags.data.push(word.to_owned()),
                },
            }
        }
        Ok(flags)
    }

    /// The data argument of mount(2).
    pub fn data_string(&self) -> String {
        self.data.join(",")
    }
}

/// Splits at commas, but not within double quotes: an SELinux `context="…:c1,c2"` has commas of its own.
fn split_outside_quotes(word: &str) -> Vec<&str> {
    let (mut parts, mut start, mut quoted) = (Vec::new(), 0, false);
    for (at, c) in word.char_indices() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => {
                parts.push(word.get(start..at).unwrap_or_default());
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(word.get(start..).unwrap_or_default());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splits_vfs_from_data() {
        let flags =
            MountFlags::parse(["noatime,nodev", "ro", "defaults", "discard", "context=\"a:b:c1,c2\""])
                .expect("flags");
        assert!(flags.read_only);
        assert_eq!(flags.vfs.into_iter().collect::<Vec<_>>(), [VfsFlag::NoAtime, VfsFlag::NoDev]);
        assert_eq!(flags.data, ["discard", "context=\"a:b:c1,c2\""]);
    }

    #[test]
    fn refuses_what_would_mount_something_else() {
        for word in ["bind", "remount", "rw,move", "loop=/dev/loop0", "noatime,rbind", "offset=4096"] {
            assert!(MountFlags::parse([word]).is_err(), "{word}");
        }
    }

    #[test]
    fn debug_shows_no_data() {
        let flags = MountFlags::parse(["password=hunter2"]).expect("flags");
        assert!(!format!("{flags:?}").contains("hunter2"));
    }
}
