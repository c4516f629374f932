//! The archive: a list of what is in it, then that.

use std::io::{self, Write};

use tar::{Builder, Header};

use super::redact;
use crate::model::{Timestamp, format_bytes};

/// The first member, which lists the others.
pub(super) const CONTENTS: &str = "contents.txt";
/// The directory in which everything is.
const TOP: &str = "hostloop-support";

/// One file in the archive, or why there is none.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) name: String,
    /// What it is, for people.
    pub(super) about: String,
    pub(super) text: Result<String, String>,
}

impl Member {
    /// Returns a member without what may be secret.
    pub(super) fn new(
        name: impl Into<String>,
        about: impl Into<String>,
        text: Result<String, String>,
    ) -> Self {
        Member { name: name.into(), about: about.into(), text: text.map(|text| redact::text(&text)) }
    }
}

/// Returns the list of what is in the archive, and of what could not be read.
pub(super) fn contents(members: &[Member]) -> String {
    let mut text = String::new();
    for member in members {
        let what = match &member.text {
            Ok(text) => format_bytes(text.len() as u64),
            Err(why) => format!("not read: {}", why.replace('\n', " ")),
        };
        text.push_str(&format!("{}  {} ({what})\n", member.name, member.about));
    }
    text
}

/// Writes the archive.
///
/// # Errors
/// That of the writer.
pub(super) fn write(out: impl Write, members: &[Member]) -> io::Result<()> {
    let mut archive = Builder::new(out);
    let time = u64::try_from(Timestamp::now().seconds()).unwrap_or(0);
    let list = contents(members);
    let texts = members.iter().filter_map(|member| Some((member.name.as_str(), member.text.as_ref().ok()?)));
    for (name, text) in [(CONTENTS, &list)].into_iter().chain(texts) {
        let mut header = Header::new_gnu();
        header.set_size(text.len() as u64);
        header.set_mode(0o600);
        header.set_mtime(time);
        archive.append_data(&mut header, format!("{TOP}/{name}"), text.as_bytes())?;
    }
    archive.into_inner()?.flush()
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn the_list_of_an_archive_comes_first() {
        let members = [
            Member::new("nodes.json", "the nodes", Ok("{}".to_owned())),
            Member::new("objects/pods.json", "the pods", Err("you may not\nlist pods".to_owned())),
            Member::new("logs/a.log", "a log", Ok("password=hunter2".to_owned())),
        ];
        let mut bytes = Vec::new();
        write(&mut bytes, &members).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut found = Vec::new();
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let (path, mut text) = (entry.path().unwrap().display().to_string(), String::new());
            entry.read_to_string(&mut text).unwrap();
            found.push((path, text));
        }
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(
            names,
            ["hostloop-support/contents.txt", "hostloop-support/nodes.json", "hostloop-support/logs/a.log"]
        );
        assert_eq!(
            found[0].1,
            "nodes.json  the nodes (2 B)\nobjects/pods.json  the pods (not read: you may not list pods)\nlogs/a.log  a log (12 B)\n"
        );
        assert_eq!(found[2].1, "password=***");
    }
}
