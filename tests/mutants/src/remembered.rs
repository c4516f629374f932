//! What tests reached when they last ran: of use as long as their program is the same.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::Result;
use crate::choices::Name;
use crate::run::Test;

/// By name: how long it took, and what it reached.
pub struct Remembered {
    file: PathBuf,
    stamps: BTreeMap<String, String>,
    tests: BTreeMap<String, (Duration, Vec<usize>)>,
}

impl Remembered {
    /// What the file has of these very programs; forgets the rest.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn load(target: &Path, programs: &BTreeMap<String, PathBuf>) -> Result<Self> {
        let file = target.join("mutants-reached");
        let stamps: BTreeMap<String, String> =
            programs.iter().filter_map(|(name, path)| Some((name.clone(), stamp(path)?))).collect();
        let (mut tests, mut kept) = (BTreeMap::new(), String::new());
        for line in fs::read_to_string(&file).unwrap_or_default().lines() {
            let mut fields = line.split('\t');
            let mut next = || fields.next().unwrap_or_default();
            let (program, of, name, time, reached) = (next(), next(), next(), next(), next());
            if stamps.get(program).is_some_and(|stamp| stamp == of) {
                let time = Duration::from_millis(time.parse().unwrap_or_default());
                let reached = reached.split(' ').filter_map(|number| number.parse().ok()).collect();
                tests.insert(name.to_owned(), (time, reached));
                kept += &format!("{line}\n");
            }
        }
        fs::write(&file, kept)?;
        Ok(Self { file, stamps, tests })
    }

    /// What is remembered of a test.
    pub fn of(&self, name: &Name) -> Option<Test> {
        let (time, reached) = self.tests.get(&name.to_string())?.clone();
        Some(Test { name: name.clone(), time, reached })
    }

    /// Writes down what was seen of a test, for the next time.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn add(&self, Test { name, time, reached }: &Test) -> Result<()> {
        let stamp = self.stamps.get(&name.program).map_or("", String::as_str);
        let reached = reached.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
        let line = format!("{}\t{stamp}\t{name}\t{}\t{reached}\n", name.program, time.as_millis());
        let mut file = OpenOptions::new().append(true).create(true).open(&self.file)?;
        Ok(file.write_all(line.as_bytes())?)
    }
}

/// What is another one after each build.
fn stamp(program: &Path) -> Option<String> {
    let there = fs::metadata(program).ok()?;
    let built = there.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{}:{}:{}", program.display(), there.len(), built.as_nanos()))
}
