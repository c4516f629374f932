//! A test's name says its subject, a condition and the result, and is short enough for a line of a report.

use std::fs;
use std::path::Path;

use super::collect;

const PLACES: [&str; 4] = ["src", "crates", "tests", "fuzz"];
const LONGEST: usize = 50;
/// A subject and a result. What is ignored is a program that other tests start, and needs no more than a name.
const WORDS: usize = 3;
/// A name that begins so does not say its subject.
const NO_SUBJECT: [&str; 4] = ["it_", "what_", "who_", "of_"];
const TEST: [&str; 2] = ["#[test]", "#[tokio::test"];

/// Why a name breaks the rule.
fn problem(name: &str) -> Option<String> {
    if name.len() > LONGEST {
        return Some(format!("has {} characters", name.len()));
    }
    if name.split('_').count() < WORDS {
        return Some(format!("has fewer than {WORDS} words"));
    }
    let start = NO_SUBJECT.into_iter().find(|start| name.starts_with(start))?;
    Some(format!("begins with {start} and not with its subject"))
}

/// The tests of a source that are not ignored, each with the number of its line.
fn tests(source: &str) -> Vec<(usize, String)> {
    let mut lines = source.lines().enumerate().map(|(number, line)| (number + 1, line.trim_start()));
    let mut found = Vec::new();
    while let Some((_, line)) = lines.next() {
        if !TEST.iter().any(|test| line.starts_with(test)) {
            continue;
        }
        let mut is_ignored = false;
        let name = lines.find_map(|(number, line)| {
            is_ignored |= line.starts_with("#[ignore");
            let (_, rest) = line.split_once("fn ").filter(|_| !line.starts_with(['#', '/']))?;
            let name = rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
            Some((number, name.to_owned()))
        });
        found.extend(name.filter(|_| !is_ignored));
    }
    found
}

/// The names in a source that break the rule, as `PATH:LINE: NAME REASON`.
fn violations(path: &str, source: &str) -> Vec<String> {
    let tests = tests(source).into_iter();
    tests
        .filter_map(|(line, name)| problem(&name).map(|why| format!("{path}:{line}: {name} {why}")))
        .collect()
}

#[test]
fn every_test_has_a_name_that_keeps_the_rule() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let (mut count, mut found) = (0, Vec::new());
    for place in PLACES {
        let mut files = Vec::new();
        collect(&root.join(place), &["rs"], &mut files);
        for file in files {
            let source = fs::read_to_string(&file).expect("a source file");
            let path = file.strip_prefix(root).expect("a file of it").display().to_string();
            count += tests(&source).len();
            found.extend(violations(&path, &source));
        }
    }
    assert!(count > 1500, "only {count} tests were found");
    assert!(
        found.is_empty(),
        "rename these tests. A test's name is `<subject>_<condition>_<result>`, has at most {LONGEST} \
         characters and at least {WORDS} words, and does not begin with {}:\n{}",
        NO_SUBJECT.join(", "),
        found.join("\n")
    );
}

#[test]
fn a_name_that_breaks_the_rule_is_found() {
    let long = format!("a_b_{}", "c".repeat(LONGEST - 3));
    for (attribute, function, hint) in [
        ("#[test]", format!("fn {long}() {{}}"), "has 51 characters"),
        ("#[tokio::test(start_paused = true)]", format!("async fn {long}() {{}}"), "has 51 characters"),
        ("#[test]\n#[should_panic]", "pub fn it_works_well() {}".to_owned(), "begins with it_"),
        ("#[test]", "fn two_words() {}".to_owned(), "has fewer than 3 words"),
        ("#[test]\n// No fn name: a comment.", "fn of_two_one_wins() {}".to_owned(), "begins with of_"),
    ] {
        let source = format!("\n    {attribute}\n    {function}\n");
        let line = source.lines().count();
        let found = violations("x.rs", &source);
        assert!(matches!(&found[..], [one] if one.contains(hint)), "{function}: {found:?}");
        assert!(found[0].starts_with(&format!("x.rs:{line}: ")), "{found:?}");
    }
    for source in [
        format!("#[test]\nfn a_b_{}() {{}}\nfn what_it_needs() {{}}\n", "c".repeat(LONGEST - 4)),
        "// #[test]\nfn it_works() {}\n".to_owned(),
        "#[test]\n#[ignore = \"started by another\"]\nfn program() {}\n".to_owned(),
    ] {
        assert_eq!(violations("x.rs", &source), Vec::<String>::new());
    }
}
