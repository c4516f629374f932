//! What tests reached when they last ran: of use as long as their program is the same.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use crate::Result;
use crate::run::{Name, Test};

/// By program and name: how long it took, and what it reached.
pub struct Remembered {
    file: PathBuf,
    tests: BTreeMap<Name, (Duration, Vec<usize>)>,
}

impl Remembered {
    /// What the file has of these very programs.
    pub fn load(target: &Path, programs: &BTreeMap<String, PathBuf>) -> Self {
        let file = target.join("mutants-reached");
        let stamps: BTreeMap<&str, String> =
            programs.iter().filter_map(|(name, path)| Some((name.as_str(), stamp(path)?))).collect();
        let mut tests = BTreeMap::new();
        for line in fs::read_to_string(&file).unwrap_or_default().lines() {
            let mut fields = line.split('\t');
            let mut next = || fields.next().unwrap_or_default();
            let (program, of, name, time, reached) = (next(), next(), next(), next(), next());
            if stamps.get(program).is_some_and(|stamp| stamp == of) {
                let time = Duration::from_millis(time.parse().unwrap_or_default());
                let reached = reached.split(' ').filter_map(|number| number.parse().ok()).collect();
                tests.insert((program.to_owned(), name.to_owned()), (time, reached));
            }
        }
        Self { file, tests }
    }

    /// What is remembered of a test.
    pub fn of(&self, name: &Name) -> Option<Test> {
        let (time, reached) = self.tests.get(name)?.clone();
        Some(Test { program: name.0.clone(), name: name.1.clone(), time, reached })
    }

    /// Writes what was seen this time.
    ///
    /// # Errors
    /// Where the file cannot be written.
    pub fn save(&self, tests: &[Test], programs: &BTreeMap<String, PathBuf>) -> Result<()> {
        let mut text = String::new();
        for Test { program, name, time, reached } in tests {
            let stamp = programs.get(program).and_then(|path| stamp(path)).unwrap_or_default();
            let reached = reached.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            text += &format!("{program}\t{stamp}\t{name}\t{}\t{reached}\n", time.as_millis());
        }
        Ok(fs::write(&self.file, text)?)
    }
}

/// What is another one after each build.
fn stamp(program: &Path) -> Option<String> {
    let there = fs::metadata(program).ok()?;
    let built = there.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(format!("{}:{}:{}", program.display(), there.len(), built.as_nanos()))
}
