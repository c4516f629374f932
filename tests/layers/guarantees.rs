//! The tests that docs/guarantees.md and docs/doctor.md name are there: a promise whose test is gone is none.

use std::fs;
use std::path::{Path, PathBuf};

const PAGE: &str = "docs/guarantees.md";
/// What stands before the names of tests, and where these are.
const SUITES: [(&str, &str); 7] = [
    ("unit", "src"),
    ("csi", "tests/csi"),
    ("cluster", "tests/cluster"),
    ("contract", "crates/test-support/src/contract"),
    ("disks", "tests/disks"),
    ("root", "tests/root"),
    ("end", "tests/e2e/cases"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The names of tests in one cell, each with the directory of its suite.
fn named(cell: &str) -> Vec<(Option<&'static str>, &str)> {
    let mut suite = None;
    let mut names = Vec::new();
    for (n, piece) in cell.split('`').enumerate() {
        if n % 2 == 1 {
            names.push((suite, piece));
        } else {
            let words = piece.split(|c: char| !c.is_alphanumeric());
            let mut found = words.filter_map(|word| SUITES.iter().find(|(name, _)| *name == word));
            suite = found.next_back().map(|(_, place)| *place).or(suite);
        }
    }
    names
}

/// The file of a module of tests.
fn file_of(module: &Path) -> Option<PathBuf> {
    [module.with_extension("rs"), module.join("mod.rs")].into_iter().find(|file| file.is_file())
}

/// Why there is no such test.
fn missing(suite: Option<&str>, name: &str) -> Option<String> {
    if name.contains('/') {
        return (!root().join(name).exists()).then(|| format!("{name} is not there"));
    }
    let Some(suite) = suite else {
        return Some(format!("{name}: say which suite it is in"));
    };
    if suite == "tests/e2e/cases" {
        return (!root().join(suite).join(name).exists()).then(|| format!("{suite}/{name} is not there"));
    }
    let (place, name) = match name.split_once("::") {
        Some((package @ ("kernel" | "model"), rest)) if suite == "src" => {
            (format!("crates/{package}/src"), rest)
        }
        _ => (suite.to_owned(), name),
    };
    let (mut module, mut rest) = (root().join(place), name);
    while let Some((segment, after)) = rest.split_once("::").or((!rest.is_empty()).then_some((rest, ""))) {
        let next = module.join(segment);
        if file_of(&next).is_none() && !next.is_dir() {
            break;
        }
        (module, rest) = (next, after);
    }
    let Some(source) = file_of(&module).and_then(|file| fs::read_to_string(file).ok()) else {
        return Some(format!("{name} is not a module of {suite}"));
    };
    let function = format!("fn {rest}");
    (!rest.is_empty() && !source.contains(&function)).then(|| format!("{name}: no `{function}…` in {suite}"))
}

#[test]
fn every_test_that_is_named_is_there() {
    let page = fs::read_to_string(root().join(PAGE)).expect("the page");
    let rows = page.lines().filter(|line| line.starts_with("| ") && !line.starts_with("| Promise"));
    let mut count = 0;
    let mut problems = Vec::new();
    for row in rows {
        let cell = row.split('|').nth(2).expect("a column of tests");
        let names = named(cell);
        count += names.len();
        if names.is_empty() {
            problems.push(format!("no test is named: {row}"));
        }
        problems.extend(names.into_iter().filter_map(|(suite, name)| missing(suite, name)));
    }
    assert!(count > 50, "only {count} tests were found in {PAGE}");
    assert!(problems.is_empty(), "{PAGE}:\n{}", problems.join("\n"));
}

/// The classes of findings, as the code has them.
fn classes() -> Vec<String> {
    let source = fs::read_to_string(root().join("crates/model/src/findings.rs")).expect("the classes");
    let constants =
        source.lines().filter(|line| line.starts_with("pub const ") && line.contains(": &str = "));
    constants.map(|line| line.split('"').nth(1).expect("a text").to_owned()).collect()
}

#[test]
fn each_class_of_findings_has_its_tests() {
    let page = fs::read_to_string(root().join("docs/doctor.md")).expect("the page");
    let (_, rest) = page.split_once("## Each class, made by hand").expect("the table");
    let rows = rest.lines().skip(1).take_while(|line| !line.starts_with("## "));
    let rows: Vec<Vec<&str>> = rows
        .filter(|line| line.starts_with("| `"))
        .map(|row| row.split('|').map(str::trim).collect())
        .collect();
    let of: Vec<String> = rows.iter().map(|row| row[1].trim_matches('`').to_owned()).collect();
    assert_eq!(of, classes(), "one line for each class, in the order of the code");
    for row in &rows {
        assert!(row[2..7].iter().all(|cell| cell.len() > 5), "a cell is empty: {row:?}");
        let names = named(row[6]);
        assert!(!names.is_empty(), "{row:?}");
        let problems: Vec<String> =
            names.into_iter().filter_map(|(suite, name)| missing(suite, name)).collect();
        assert!(problems.is_empty(), "{}", problems.join("\n"));
    }
}

#[test]
fn a_test_that_is_gone_is_seen() {
    assert_eq!(
        named("root `a::b`, `c::`; csi `d`"),
        [(Some("tests/root"), "a::b"), (Some("tests/root"), "c::"), (Some("tests/csi"), "d"),]
    );
    assert_eq!(missing(Some("tests/root"), "crash::kill::nothing_is_lost"), None);
    assert_eq!(missing(Some("src"), "store::tests::room"), None);
    assert_eq!(missing(Some("src"), "kernel::linux::exec"), None);
    assert!(missing(Some("src"), "kernel::no_such_module").is_some());
    assert!(missing(Some("tests/root"), "crash::kill::no_such_test").is_some());
    assert!(missing(Some("tests/root"), "no_such_module::").is_some());
    assert!(missing(None, "tests/vm/no-such-script").is_some());
    assert!(missing(None, "crash::kill::").is_some());
}
