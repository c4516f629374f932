//! Random trees: the copy equals the source.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use nix::sys::stat::SFlag;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;

use super::build::{acl, hard_link, node, set_extended, set_mode, set_owner, set_times, sparse};
use super::entries::{assert_equal, metas};
use super::{copy, on_every_filesystem};

/// What anything has.
#[derive(Debug, Clone)]
struct Common {
    owner: (u32, u32),
    mode: u32,
    times: [(i64, i64); 2],
    attribute: Option<Vec<u8>>,
    acl: Option<u16>,
}

#[derive(Debug, Clone)]
enum Kind {
    File {
        size: u64,
        runs: Vec<(u64, usize)>,
    },
    Directory(Vec<(OsString, Entry)>),
    Link(String),
    Node(SFlag, u64),
    /// Another name of what was made this many files before.
    Again(usize),
}

#[derive(Debug, Clone)]
struct Entry {
    common: Common,
    kind: Kind,
}

fn common() -> impl Strategy<Value = Common> {
    // From 1901 to 2106: what all of the filesystems keep.
    let time = || (-2_147_483_648i64..4_294_967_295, 0i64..1_000_000_000);
    let owner = (prop_oneof![Just(0u32), 1..70_000u32], prop_oneof![Just(0u32), 1..70_000u32]);
    let attribute = proptest::option::of(vec(any::<u8>(), 0..1500));
    let acl = proptest::option::weighted(0.2, 0..8u16);
    (owner, 0..0o10000u32, [time(), time()], attribute, acl)
        .prop_map(|(owner, mode, times, attribute, acl)| Common { owner, mode, times, attribute, acl })
}

fn leaf() -> impl Strategy<Value = Kind> {
    let runs = vec((0..4_000_000u64, 1..20_000usize), 0..5);
    let device = (0..300u32, 0..300u32).prop_map(|(major, minor)| libc::makedev(major, minor));
    prop_oneof![
        6 => (0..5_000_000u64, runs).prop_map(|(size, runs)| Kind::File { size, runs }),
        1 => "[a-z./ ]{1,60}".prop_map(Kind::Link),
        1 => Just(Kind::Node(SFlag::S_IFIFO, 0)),
        1 => Just(Kind::Node(SFlag::S_IFSOCK, 0)),
        1 => device.prop_map(|device| Kind::Node(SFlag::S_IFCHR, device)),
        3 => (0..10usize).prop_map(Kind::Again),
    ]
}

fn entries(child: impl Strategy<Value = Entry> + 'static) -> impl Strategy<Value = Vec<(OsString, Entry)>> {
    let byte = (1..=255u8).prop_filter("no name has it", |byte| *byte != b'/');
    let name = vec(byte, 1..20).prop_map(OsString::from_vec);
    let name = name.prop_filter("not a name", |name| name != "." && name != "..");
    btree_map(name, child, 0..6).prop_map(|entries| entries.into_iter().collect())
}

fn directory(
    entries: impl Strategy<Value = Vec<(OsString, Entry)>> + 'static,
) -> impl Strategy<Value = Entry> {
    (common(), entries).prop_map(|(common, entries)| Entry { common, kind: Kind::Directory(entries) })
}

fn tree() -> impl Strategy<Value = Entry> {
    let leaf = (common(), leaf()).prop_map(|(common, kind)| Entry { common, kind });
    directory(entries(leaf.prop_recursive(4, 40, 6, |inner| directory(entries(inner)))))
}

fn build(path: &Path, entry: &Entry, files: &mut Vec<PathBuf>) {
    let Entry { common, kind } = entry;
    match kind {
        Kind::File { size, runs } => sparse(path, *size, runs),
        Kind::Directory(entries) => {
            std::fs::create_dir(path).expect("mkdir");
            entries.iter().for_each(|(name, entry)| build(&path.join(name), entry, files));
        }
        Kind::Link(to) => std::os::unix::fs::symlink(to, path).expect("symlink"),
        Kind::Node(kind, rdev) => node(path, *kind, *rdev),
        Kind::Again(back) => {
            if let Some(first) = files.iter().nth_back(*back) {
                return hard_link(first, path);
            }
            std::fs::write(path, "").expect("write");
        }
    }
    let (is_link, is_directory) = (matches!(kind, Kind::Link(_)), matches!(kind, Kind::Directory(_)));
    set_owner(path, common.owner.0, common.owner.1);
    if let Some(value) = &common.attribute {
        set_extended(path, c"trusted.random", value);
    }
    if let Some(mask) = common.acl.filter(|_| !is_link) {
        set_extended(path, c"system.posix_acl_access", &acl(mask));
        if is_directory {
            set_extended(path, c"system.posix_acl_default", &acl(mask));
        }
    }
    if !is_link {
        set_mode(path, common.mode);
    }
    if !is_directory {
        files.push(path.to_owned());
    }
    set_times(path, common.times[0], common.times[1]);
}

#[test]
fn a_copy_equals_its_source() {
    on_every_filesystem(1 << 30, |os, _, pool| {
        let config = ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() };
        proptest!(config, |(tree in tree(), share in any::<bool>())| {
            let (source, target) = (pool.join("source"), pool.join("target"));
            for leftover in [&source, &target] {
                os.trees.remove(leftover).expect("remove");
            }
            build(&source, &tree, &mut Vec::new());
            let before = metas(&source);
            copy(os, &source, &target, share);
            assert_equal(&before, &source, &target);
        });
    });
}
