//! Mount flags as CSI sends them: a list of `mount -o` words, read as mount(8) reads them. They are split into what the
//! kernel's VFS knows and what goes to the filesystem as data (mount(2)).

use std::collections::BTreeSet;
use std::fmt;

/// A flag of the VFS (mount(2), `MS_*`).
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
    Mand,
    IVersion,
    Silent,
    NoSymFollow,
}

impl VfsFlag {
    pub const ALL: [VfsFlag; 14] = [
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
        VfsFlag::Mand,
        VfsFlag::IVersion,
        VfsFlag::Silent,
        VfsFlag::NoSymFollow,
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
            VfsFlag::Mand => "mand",
            VfsFlag::IVersion => "iversion",
            VfsFlag::Silent => "silent",
            VfsFlag::NoSymFollow => "nosymfollow",
        }
    }

    /// Returns whether mountinfo shows the flag per mount (the others belong to the superblock, or are the kernel's
    /// default and not shown).
    pub const fn is_shown_per_mount(self) -> bool {
        matches!(
            self,
            VfsFlag::NoAtime
                | VfsFlag::NoDirAtime
                | VfsFlag::NoSuid
                | VfsFlag::NoDev
                | VfsFlag::NoExec
                | VfsFlag::NoSymFollow
        )
    }

    /// Returns whether a mount that was acknowledged shows the flag on every kernel, so that a repeated call can be
    /// compared with it. Kernels before Linux 5.10 ignore `nosymfollow`.
    pub const fn is_comparable(self) -> bool {
        self.is_shown_per_mount() && !matches!(self, VfsFlag::NoSymFollow)
    }

    /// Returns whether the flag changes the whole filesystem, through whichever mount it is used.
    pub const fn is_of_superblock(self) -> bool {
        matches!(
            self,
            VfsFlag::LazyTime | VfsFlag::Sync | VfsFlag::DirSync | VfsFlag::Mand | VfsFlag::IVersion
        )
    }
}

#[derive(Clone, PartialEq, Eq, Default)]
pub struct MountFlags {
    /// `ro` was the last word of `ro` and `rw`.
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

/// The part of a word that a message may repeat: what is before the `=`. A value may be a secret (spec.md, MountVolume).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OptionName(String);

impl OptionName {
    /// Longer names are cut: no filesystem has one.
    const LIMIT: usize = 64;

    /// Returns the name of a word.
    pub fn of(word: &str) -> Self {
        let name = key_of(word);
        match name.char_indices().nth(Self::LIMIT) {
            Some((at, _)) => OptionName(format!("{}…", name.get(..at).unwrap_or_default())),
            None => OptionName(name.to_owned()),
        }
    }
}

/// In quotes, since it is the caller's text.
impl fmt::Display for OptionName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.0)
    }
}

/// A word of `mount_flags` that no volume can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidMountFlag {
    /// One that would turn the mount into something else, or make mount(8) do something.
    #[error(
        "mount option {0} is not allowed: it would change what is mounted, where, or whose it is; remove it from \
         mountOptions"
    )]
    NotAllowed(OptionName),
    /// A flag with a value. The kernel takes some of these for the flag itself.
    #[error("mount option {0} takes no value; write it without \"=\"")]
    TakesNoValue(OptionName),
}

/// What a word of `mount -o` does.
#[derive(Debug, Clone, Copy)]
enum Meaning {
    ReadOnly(bool),
    Set(&'static [VfsFlag]),
    Clear(VfsFlag),
    /// It is for mount(8) or for readers of fstab, and does nothing to the mount.
    Nothing,
    NotAllowed,
}

/// What is implied by `user` and `users`, and what by `owner` and `group` (mount(8)).
const OF_USERS: &[VfsFlag] = &[VfsFlag::NoExec, VfsFlag::NoSuid, VfsFlag::NoDev];
const OF_OWNERS: &[VfsFlag] = &[VfsFlag::NoSuid, VfsFlag::NoDev];

/// The words that mount(8) does not pass to the filesystem. As there, `defaults`, `nouser`, `nousers`, `noowner` and
/// `nogroup` take nothing back.
const WORDS: [(&str, Meaning); 59] = {
    use Meaning::{Clear, NotAllowed, Nothing, ReadOnly, Set};
    use VfsFlag::*;
    [
        ("ro", ReadOnly(true)),
        ("rw", ReadOnly(false)),
        ("noexec", Set(&[NoExec])),
        ("exec", Clear(NoExec)),
        ("nosuid", Set(&[NoSuid])),
        ("suid", Clear(NoSuid)),
        ("nodev", Set(&[NoDev])),
        ("dev", Clear(NoDev)),
        ("sync", Set(&[Sync])),
        ("async", Clear(Sync)),
        ("dirsync", Set(&[DirSync])),
        ("noatime", Set(&[NoAtime])),
        ("atime", Clear(NoAtime)),
        ("nodiratime", Set(&[NoDirAtime])),
        ("diratime", Clear(NoDirAtime)),
        ("relatime", Set(&[RelAtime])),
        ("norelatime", Clear(RelAtime)),
        ("strictatime", Set(&[StrictAtime])),
        ("nostrictatime", Clear(StrictAtime)),
        ("lazytime", Set(&[LazyTime])),
        ("nolazytime", Clear(LazyTime)),
        ("silent", Set(&[Silent])),
        ("loud", Clear(Silent)),
        ("iversion", Set(&[IVersion])),
        ("noiversion", Clear(IVersion)),
        ("nosymfollow", Set(&[NoSymFollow])),
        ("symfollow", Clear(NoSymFollow)),
        ("mand", Set(&[Mand])),
        ("nomand", Clear(Mand)),
        ("user", Set(OF_USERS)),
        ("nouser", Nothing),
        ("users", Set(OF_USERS)),
        ("nousers", Nothing),
        ("owner", Set(OF_OWNERS)),
        ("noowner", Nothing),
        ("group", Set(OF_OWNERS)),
        ("nogroup", Nothing),
        ("auto", Nothing),
        ("noauto", Nothing),
        ("defaults", Nothing),
        ("nofail", Nothing),
        ("_netdev", Nothing),
        ("comment", Nothing),
        ("bind", NotAllowed),
        ("rbind", NotAllowed),
        ("move", NotAllowed),
        ("remount", NotAllowed),
        ("shared", NotAllowed),
        ("rshared", NotAllowed),
        ("private", NotAllowed),
        ("rprivate", NotAllowed),
        ("slave", NotAllowed),
        ("rslave", NotAllowed),
        ("unbindable", NotAllowed),
        ("runbindable", NotAllowed),
        ("loop", NotAllowed),
        ("offset", NotAllowed),
        ("sizelimit", NotAllowed),
        ("encryption", NotAllowed),
    ]
};

/// More words that are not allowed, with or without a value: programs that mount(8) would start, and options with which
/// a filesystem opens another device.
const ALSO_NOT_ALLOWED: [&str; 8] =
    ["helper", "uhelper", "source", "journal_dev", "journal_path", "logdev", "rtdev", "device"];

/// Returns what a word does; `None` if it is for the filesystem.
fn meaning_of(word: &str) -> Result<Option<Meaning>, InvalidMountFlag> {
    let name = key_of(word);
    // The directory is there, so that there is nothing to make.
    if matches!(name, "X-mount.mkdir" | "x-mount.mkdir") {
        return Ok(Some(Meaning::Nothing));
    }
    if ["X-mount.", "verity."].iter().any(|prefix| name.starts_with(prefix)) {
        return Ok(Some(Meaning::NotAllowed)); // mount(8) acts on these
    }
    if ["x-", "X-"].iter().any(|prefix| name.starts_with(prefix)) {
        return Ok(Some(Meaning::Nothing));
    }
    if ALSO_NOT_ALLOWED.contains(&name) {
        return Ok(Some(Meaning::NotAllowed));
    }
    let Some((_, meaning)) = WORDS.iter().find(|(known, _)| *known == name) else { return Ok(None) };
    match (meaning, name) {
        _ if name == word => Ok(Some(*meaning)),
        (Meaning::NotAllowed, _) => Ok(Some(Meaning::NotAllowed)),
        // `user=name` is what mount(8) records of who has mounted it.
        (_, "user" | "comment" | "defaults") => Ok(Some(Meaning::Nothing)),
        _ => Err(InvalidMountFlag::TakesNoValue(OptionName::of(word))),
    }
}

impl MountFlags {
    /// Reads the words of `mount_flags`; a word may itself be a list with commas. Of words that contradict each other
    /// the later one counts.
    ///
    /// # Errors
    /// `InvalidMountFlag` for a word such as `bind` or `remount`.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidMountFlag> {
        let mut flags = MountFlags::default();
        for word in words.into_iter().flat_map(split_outside_quotes).filter(|word| !word.is_empty()) {
            match meaning_of(word)? {
                None => flags.data.push(word.to_owned()),
                Some(Meaning::Nothing) => {}
                Some(Meaning::ReadOnly(read_only)) => flags.read_only = read_only,
                Some(Meaning::Set(set)) => flags.vfs.extend(set),
                Some(Meaning::Clear(flag)) => drop(flags.vfs.remove(&flag)),
                Some(Meaning::NotAllowed) => {
                    return Err(InvalidMountFlag::NotAllowed(OptionName::of(word)));
                }
            }
        }
        flags.settle_access_times();
        Ok(flags)
    }

    /// Leaves of the flags for access times the one that the kernel obeys (mount(2)), which is what mountinfo shows.
    fn settle_access_times(&mut self) {
        if self.vfs.contains(&VfsFlag::StrictAtime) {
            self.vfs.remove(&VfsFlag::NoAtime);
            self.vfs.remove(&VfsFlag::RelAtime);
        } else if self.vfs.contains(&VfsFlag::NoAtime) {
            self.vfs.remove(&VfsFlag::RelAtime);
        }
    }

    /// The data argument of mount(2).
    pub fn data_string(&self) -> String {
        self.data.join(",")
    }

    /// Returns the names of the words for the filesystem, for a message.
    pub fn data_names(&self) -> String {
        let names: Vec<String> = self.data.iter().map(|word| OptionName::of(word).to_string()).collect();
        names.join(", ")
    }

    /// Returns the name of the first word that changes a whole filesystem, and so cannot be had of a bind mount.
    pub fn of_filesystem(&self) -> Option<OptionName> {
        let flag = self.vfs.iter().find(|flag| flag.is_of_superblock());
        let word = self.data.first().map(String::as_str).or(flag.map(|flag| flag.as_str()));
        word.map(OptionName::of)
    }
}

/// Returns the part of a word before the `=`.
fn key_of(word: &str) -> &str {
    word.split('=').next().unwrap_or(word)
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

    fn vfs(words: &[&str]) -> Vec<&'static str> {
        let flags = MountFlags::parse(words.iter().copied()).expect("flags");
        flags.vfs.into_iter().map(VfsFlag::as_str).collect()
    }

    #[test]
    fn splits_vfs_from_data() {
        let flags =
            MountFlags::parse(["noatime,nodev", "ro", "defaults", "discard", "context=\"a:b:c1,c2\""])
                .expect("flags");
        assert!(flags.read_only);
        assert_eq!(flags.vfs.into_iter().collect::<Vec<_>>(), [VfsFlag::NoAtime, VfsFlag::NoDev]);
        assert_eq!(flags.data, ["discard", "context=\"a:b:c1,c2\""]);
    }

    /// Each pair was tried with mount(8); tests/root does so with every two words.
    #[test]
    fn the_later_one_of_two_words_counts() {
        let read_only = |words: &[&str]| MountFlags::parse(words.iter().copied()).expect("flags").read_only;
        assert!(!read_only(&["ro", "rw"]) && read_only(&["rw,ro"]) && read_only(&["ro", "defaults"]));
        assert_eq!(vfs(&["noexec", "exec"]), [] as [&str; 0]);
        assert_eq!(vfs(&["exec", "noexec"]), ["noexec"]);
        assert_eq!(vfs(&["user", "exec"]), ["nosuid", "nodev"]);
        assert_eq!(vfs(&["exec", "users", "nousers"]), ["nosuid", "nodev", "noexec"]);
        assert_eq!(vfs(&["owner", "group"]), ["nosuid", "nodev"]);
        assert_eq!(vfs(&["sync", "noexec", "defaults"]), ["noexec", "sync"]);
        assert_eq!(vfs(&["strictatime", "noatime"]), ["strictatime"]);
        assert_eq!(vfs(&["noatime", "relatime"]), ["noatime"]);
        assert_eq!(vfs(&["noatime", "atime", "relatime", "norelatime"]), [] as [&str; 0]);
        assert_eq!(vfs(&["silent", "loud", "mand", "nomand", "lazytime", "nolazytime"]), [] as [&str; 0]);
    }

    #[test]
    fn comments_reach_nothing() {
        let comments =
            "comment=x,x-systemd.automount,X-foo=bar,X-mount.mkdir=0700,_netdev,nofail,user=joe,auto";
        assert_eq!(MountFlags::parse([comments]).expect("flags"), MountFlags::default());
    }

    #[test]
    fn refuses_what_would_mount_something_else() {
        for word in [
            "bind",
            "remount",
            "rw,move",
            "loop=/dev/loop0",
            "noatime,rbind",
            "offset=4096",
            "X-mount.subdir=a",
            "X-mount.owner=1000",
            "X-mount.idmap=x",
            "verity.roothash=x",
            "uhelper=x",
            "journal_path=/dev/sda",
            "device=/dev/sda",
        ] {
            let refused = MountFlags::parse([word]).expect_err(word);
            assert!(matches!(refused, InvalidMountFlag::NotAllowed(_)), "{word}");
        }
    }

    #[test]
    fn a_flag_with_a_value_is_refused_by_its_name() {
        for word in ["ro=secret", "noatime=secret", "_netdev=secret"] {
            let refused = MountFlags::parse([word]).expect_err(word).to_string();
            let name = word.strip_suffix("=secret").expect("a value");
            assert!(refused.contains(&format!("{name:?}")) && !refused.contains("secret"), "{refused}");
        }
    }

    #[test]
    fn a_name_is_what_is_before_the_value() {
        assert_eq!(OptionName::of("password=hunter2").to_string(), "\"password\"");
        assert_eq!(OptionName::of("a\"b").to_string(), "\"a\\\"b\"");
        assert!(OptionName::of(&"ä".repeat(3000)).to_string().chars().count() < 70);
    }

    #[test]
    fn words_of_the_whole_filesystem_are_named() {
        let name =
            |word| MountFlags::parse([word]).expect("flags").of_filesystem().map(|name| name.to_string());
        assert_eq!(name("noatime,nosymfollow,silent,ro"), None);
        assert_eq!(name("noatime,dirsync").as_deref(), Some("\"dirsync\""));
        assert_eq!(name("sync,commit=5").as_deref(), Some("\"commit\""));
    }

    #[test]
    fn debug_shows_no_data() {
        let flags = MountFlags::parse(["password=hunter2"]).expect("flags");
        assert!(!format!("{flags:?}").contains("hunter2"));
    }
}
