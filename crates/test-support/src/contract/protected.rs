//! What the attributes immutable and append-only of chattr(1) forbid, and that kernel::Trees::remove takes them away

use std::io;
use std::path::Path;

use hostloop::kernel::Os;
use nix::errno::Errno;

use super::{directory, errno};

/// Changes the attributes of a file or directory by a word of chattr(1).
pub type Change<'a> = &'a dyn Fn(&str, &Path);

/// Asserts what the traits promise.
pub fn protected(os: &Os, dir: &Path, change: Change<'_>) {
    what_they_forbid(os, &directory(os, dir.join("forbidden")), change);
    a_tree_goes(os, &directory(os, dir.join("tree")), change);
    what_is_above_stays(os, &directory(os, dir.join("above")), change);
}

fn is_forbidden(result: io::Result<()>, what: &str) {
    assert_eq!(result.map_err(|error| hostloop::kernel::errno_of(&error)), Err(Some(Errno::EPERM)), "{what}");
}

fn what_they_forbid(os: &Os, dir: &Path, change: Change<'_>) {
    let files = &os.files;
    for word in ["i", "a"] {
        let top = directory(os, dir.join(word));
        let (file, inner, other) = (top.join("file"), directory(os, top.join("inner")), top.join("other"));
        files.create_file(&file).expect("create");
        files.create_file(&inner.join("file")).expect("create");
        let empty = directory(os, top.join("empty"));
        for path in [&file, &inner, &empty] {
            change(&format!("+{word}"), path);
        }
        is_forbidden(files.remove_file(&file), "unlink");
        is_forbidden(files.rename(&file, &other), "rename");
        is_forbidden(files.rename(&inner, &other), "rename of a directory");
        is_forbidden(files.remove_directory(&empty), "rmdir");
        is_forbidden(files.remove_file(&inner.join("file")), "unlink in it");
        is_forbidden(files.rename(&inner.join("file"), &other), "rename out of it");
        let made = files.create_file(&inner.join("new"));
        match word {
            "i" => is_forbidden(made, "create in it"),
            _ => made.expect("what is append-only gets new entries"),
        }
        os.trees.remove(&top).expect("remove");
    }
}

fn a_tree_goes(os: &Os, dir: &Path, change: Change<'_>) {
    for word in ["+i", "+a", "+ia"] {
        let top = directory(os, dir.join("top"));
        let deep = directory(os, directory(os, top.join("a")).join("b"));
        os.files.create_file(&deep.join("file")).expect("create");
        os.files.create_file(&deep.join("free")).expect("create");
        let above = top.join("a");
        for path in [&deep.join("file"), &deep, &above, &top] {
            change(word, path);
        }
        os.trees.remove(&top).expect("remove");
        assert_eq!(os.files.stat(&top).expect("stat"), None, "{word}");
    }
}

/// The directory that the tree is in is not a part of it.
fn what_is_above_stays(os: &Os, dir: &Path, change: Change<'_>) {
    let (above, top) = (directory(os, dir.join("above")), dir.join("above/top"));
    directory(os, top.clone());
    change("+i", &above);
    let error = os.trees.remove(&top).expect_err("its entry cannot go");
    assert!(error.to_string().contains("above/top"), "{error}");
    assert_eq!(hostloop::kernel::errno_of(&error), Some(Errno::EPERM));
    assert_eq!(errno(os.files.create_file(&above.join("new"))), Some(Errno::EPERM), "it is still immutable");
    change("-i", &above);
    os.trees.remove(&top).expect("remove");
}
