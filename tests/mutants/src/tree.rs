//! A copy of the repository with all mutants in it, and the test programs that are built from it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::Result;
use crate::list::Mutant;
use crate::switch;

/// The switches, which go into the copy.
const SWITCHES: &str = include_str!("mutant.rs.in");
/// The packages that are mutated, each with the folder of its sources.
pub const PACKAGES: [(&str, &str); 2] = [("hostloop", "src"), ("hostloop-kernel", "crates/kernel/src")];
/// The programs that have the unit tests of a package: of hostloop, and of the kernel.
const UNIT: [&str; 2] = ["lib", "hostloop_kernel"];
/// So often the compiler may refuse some: it does not show every error at once.
const ROUNDS: usize = 12;

/// Where everything is.
pub struct Tree {
    /// The repository.
    pub root: PathBuf,
    /// `target/mutants-tree`, the copy.
    pub tree: PathBuf,
    /// cargo's target directory, that of the repository.
    pub target: PathBuf,
}

/// Mutants that are in no test program, by their numbers.
#[derive(Default)]
pub struct Absent {
    /// The compiler refuses them.
    pub unviable: BTreeSet<usize>,
    /// They cannot be behind a switch: constants, hidden return types.
    pub left_out: BTreeSet<usize>,
}

type Lines = HashMap<PathBuf, Vec<(usize, usize, usize)>>;

impl Tree {
    /// That of the repository at `root`.
    ///
    /// # Errors
    /// Where it cannot be made.
    pub fn new(root: &Path) -> Result<Self> {
        let target = match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) => root.join(target),
            None => root.join("target"),
        };
        let tree = target.join("mutants-tree");
        fs::create_dir_all(&tree)?;
        Ok(Tree { root: root.to_owned(), tree, target })
    }

    /// Copies every file that git would have, and removes what is not there any more.
    fn copy(&self) -> Result<()> {
        let listed = Command::new("git")
            .current_dir(&self.root)
            .args(["ls-files", "-coz", "--exclude-standard"])
            .output()?;
        let listed = String::from_utf8(listed.stdout)?;
        let names: BTreeSet<&str> =
            listed.split('\0').filter(|name| !name.is_empty() && self.root.join(name).is_file()).collect();
        for name in &names {
            let from = self.root.join(name);
            // Sources are written by `write`, with their mutants.
            if !is_source(name) {
                put(&self.tree.join(name), &fs::read(&from)?)?;
                fs::set_permissions(self.tree.join(name), fs::metadata(&from)?.permissions())?;
            }
        }
        let kept = |path: &Path| {
            path.strip_prefix(&self.tree).is_ok_and(|name| names.contains(&*name.to_string_lossy()))
        };
        for folder in ["src", "crates", "tests"] {
            prune(&self.tree.join(folder), &kept)?;
        }
        Ok(())
    }

    /// Writes the sources with all mutants that are not `absent`; adds those that cannot be switched.
    fn write(&self, mutants: &[Mutant], absent: &mut Absent) -> Result<Lines> {
        let mut by_file: BTreeMap<PathBuf, Vec<(usize, &Mutant)>> = BTreeMap::new();
        for (_, folder) in PACKAGES {
            for path in sources(&self.root.join(folder))? {
                by_file.insert(path.strip_prefix(&self.root)?.to_owned(), Vec::new());
            }
        }
        for (index, mutant) in mutants.iter().enumerate() {
            let number = index + 1;
            if !absent.unviable.contains(&number) && !absent.left_out.contains(&number) {
                by_file.entry(PathBuf::from(&mutant.file)).or_default().push((number, mutant));
            }
        }
        let mut lines = Lines::new();
        for (name, mutants) in by_file {
            let text = fs::read_to_string(self.root.join(&name))?;
            let mut switched =
                switch::switch(&text, &mutants).map_err(|error| format!("{}: {error}", name.display()))?;
            absent.left_out.extend(switched.left_out);
            match name.to_str() {
                Some(file) if PACKAGES.iter().any(|(_, folder)| file == format!("{folder}/lib.rs")) => {
                    switched.text = format!("#![allow(warnings)]{}pub mod mutant;\n", switched.text)
                }
                // The driver's own program is started without an environment, but has mutants.
                Some("crates/kernel/src/linux/exec.rs") => {
                    let own = ".arg0(\"hostloop\")";
                    if !switched.text.contains(own) {
                        return Err(
                            format!("{}: nothing starts the driver's own program", name.display()).into()
                        );
                    }
                    switched.text =
                        switched.text.replace(own, &format!(".envs(crate::mutant::handed_on()){own}"));
                }
                _ => {}
            }
            put(&self.tree.join(&name), switched.text.as_bytes())?;
            lines.insert(name, switched.lines);
        }
        for (_, folder) in PACKAGES {
            put(&self.tree.join(folder).join("mutant.rs"), SWITCHES.as_bytes())?;
        }
        Ok(lines)
    }

    fn cargo(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        command.current_dir(&self.tree).env("CARGO_TARGET_DIR", &self.target).args(arguments);
        command.args(["--locked", "--message-format=json"]);
        // Dependencies are those of the other tests, and nobody reads the backtraces of these.
        for (package, _) in PACKAGES {
            command.args(["--config", &format!("profile.dev.package.{package}.debug=false")]);
        }
        command.env("CARGO_INCREMENTAL", "0");
        command
    }

    /// Builds the test programs `tests`, without the mutants that do not compile. Answers where each is.
    ///
    /// # Errors
    /// Where the repository itself does not build.
    pub fn build(&self, mutants: &[Mutant], tests: &[&str]) -> Result<(Absent, BTreeMap<String, PathBuf>)> {
        self.copy()?;
        let known = self.target.join("mutants-unviable");
        let keys = self.keys(mutants)?;
        let remembered = fs::read_to_string(&known).unwrap_or_default();
        let remembered: BTreeSet<&str> = remembered.lines().collect();
        let mut absent = Absent::default();
        for (index, key) in keys.iter().enumerate() {
            if remembered.contains(format!("unviable {key}").as_str()) {
                absent.unviable.insert(index + 1);
            } else if remembered.contains(format!("left out {key}").as_str()) {
                absent.left_out.insert(index + 1);
            }
        }
        let of = |word: &str, numbers: &BTreeSet<usize>| -> String {
            numbers
                .iter()
                .filter_map(|number| keys.get(number - 1))
                .map(|key| format!("{word} {key}\n"))
                .collect()
        };
        for round in 1.. {
            let lines = self.write(mutants, &mut absent)?;
            let refused = self.refused(&lines)?;
            if refused.is_empty() {
                break;
            }
            println!("round {round}: the compiler refuses {}", refused.len());
            if round == ROUNDS {
                return Err("the compiler refuses some of them again and again".into());
            }
            for (number, is_constant) in refused {
                if is_constant {
                    absent.left_out.insert(number)
                } else {
                    absent.unviable.insert(number)
                };
            }
            fs::write(&known, of("unviable", &absent.unviable) + &of("left out", &absent.left_out))?;
        }
        Ok((absent, self.programs(tests)?))
    }

    /// What a mutant is remembered by: its name, and its file as it is.
    fn keys(&self, mutants: &[Mutant]) -> Result<Vec<String>> {
        let mut hashes: HashMap<&str, u64> = HashMap::new();
        let mut keys = Vec::new();
        for mutant in mutants {
            if !hashes.contains_key(mutant.file.as_str()) {
                let mut hasher = DefaultHasher::new();
                fs::read(self.root.join(&mutant.file))?.hash(&mut hasher);
                hashes.insert(&mutant.file, hasher.finish());
            }
            keys.push(format!(
                "{:x} {}",
                hashes.get(mutant.file.as_str()).copied().unwrap_or_default(),
                mutant.name
            ));
        }
        Ok(keys)
    }

    /// The mutants that the compiler refuses in the library, and whether each is in a constant. With a test, so that the
    /// dependencies have the features that they have for the tests, and are built once.
    fn refused(&self, lines: &Lines) -> Result<BTreeMap<usize, bool>> {
        let output = self.cargo(&["build", "--lib", "--test", "layers"]).stderr(Stdio::inherit()).output()?;
        let (mut refused, mut other) = (BTreeMap::new(), Vec::new());
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            let message = &message["message"];
            if message["level"] != "error" {
                continue;
            }
            let code = message["code"]["code"].as_str().unwrap_or_default();
            let found = blamed(message, lines);
            if found.is_empty() && !message["spans"].as_array().is_none_or(Vec::is_empty) {
                other.push(message["rendered"].as_str().unwrap_or_default().to_owned());
            }
            refused.extend(found.into_iter().map(|number| (number, code == "E0015")));
        }
        match output.status.success() {
            true => Ok(BTreeMap::new()),
            false if refused.is_empty() => {
                Err(format!("the copy does not build:\n{}", other.join("\n")).into())
            }
            false => Ok(refused),
        }
    }

    fn programs(&self, tests: &[&str]) -> Result<BTreeMap<String, PathBuf>> {
        let mut arguments = vec!["test", "--no-run", "--lib"];
        for test in tests.iter().filter(|test| !UNIT.contains(test)) {
            arguments.extend(["--test", test]);
        }
        let output = self.cargo(&arguments).stderr(Stdio::inherit()).output()?;
        if !output.status.success() {
            return Err("the tests do not build on the mutated sources".into());
        }
        let mut programs = BTreeMap::new();
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let Ok(message) = serde_json::from_str::<Value>(line) else { continue };
            let is_test = message["profile"]["test"] == true;
            let (Some(program), true) = (message["executable"].as_str(), is_test) else { continue };
            let is_library = message["target"]["kind"][0] == "lib";
            let target = message["target"]["name"].as_str().unwrap_or_default();
            let name = match target {
                "hostloop" if is_library => "lib",
                _ => target,
            };
            programs.insert(name.to_owned(), PathBuf::from(program));
        }
        Ok(programs)
    }
}

/// The mutants on whose lines an error is: on its primary place, else on any that it shows.
fn blamed(message: &Value, lines: &Lines) -> BTreeSet<usize> {
    let mut spans: Vec<&Value> = Vec::new();
    gather(message, &mut spans);
    let (primary, other): (Vec<&Value>, Vec<&Value>) =
        spans.into_iter().partition(|span| span["is_primary"] == true);
    let of =
        |spans: &[&Value]| -> BTreeSet<usize> { spans.iter().filter_map(|span| at(span, lines)).collect() };
    let found = of(&primary);
    if found.is_empty() { of(&other) } else { found }
}

fn gather<'a>(message: &'a Value, spans: &mut Vec<&'a Value>) {
    spans.extend(message["spans"].as_array().into_iter().flatten());
    for child in message["children"].as_array().into_iter().flatten() {
        gather(child, spans);
    }
}

fn at(span: &Value, lines: &Lines) -> Option<usize> {
    let lines = lines.get(Path::new(span["file_name"].as_str()?))?;
    let (start, end) = (span["line_start"].as_u64()? as usize, span["line_end"].as_u64()? as usize);
    // That on which it begins and ends; a longer error is around the mutant.
    let inside = lines.iter().filter(|(first, last, _)| *first <= start && end <= *last);
    inside.min_by_key(|(first, last, _)| last - first).map(|(.., mutant)| *mutant)
}

/// Whether a file is written with its mutants.
fn is_source(name: &str) -> bool {
    name.ends_with(".rs") && PACKAGES.iter().any(|(_, folder)| Path::new(name).starts_with(folder))
}

/// Writes a file unless it is like that already, so that cargo sees what has changed.
fn put(path: &Path, bytes: &[u8]) -> Result<()> {
    if fs::read(path).is_ok_and(|there| there == bytes) {
        return Ok(());
    }
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    Ok(fs::write(path, bytes)?)
}

fn sources(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(sources(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(found)
}

fn prune(folder: &Path, kept: &dyn Fn(&Path) -> bool) -> Result<()> {
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry?.path();
        if path.is_dir() && !path.is_symlink() {
            prune(&path, kept)?;
        } else if !kept(&path) && !path.ends_with("src/mutant.rs") {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}
