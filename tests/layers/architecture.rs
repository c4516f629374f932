//! docs/architecture.md says which files and imports there are: both are looked up.

use std::fs;
use std::path::Path;

use super::LAYERS;

const PAGE: &str = "docs/architecture.md";
/// What a path of this repository begins with.
const ROOTS: [&str; 5] = ["src/", "crates/", "tests/", "proto/", "docs/"];

fn page() -> String {
    fs::read_to_string(root().join(PAGE)).expect(PAGE)
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What stands between backticks, outside of blocks of code.
fn quoted(text: &str) -> Vec<&str> {
    let outside = text.split("```").step_by(2);
    outside.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn every_file_that_is_named_is_there() {
    let page = page();
    let named: Vec<&str> =
        quoted(&page).into_iter().filter(|name| ROOTS.iter().any(|root| name.starts_with(root))).collect();
    assert!(named.len() > 30, "only {} files: is this the right page?", named.len());
    let gone: Vec<&&str> = named.iter().filter(|name| !root().join(name).exists()).collect();
    assert!(gone.is_empty(), "{PAGE} names what is not there: {gone:?}");
}

#[test]
fn the_imports_are_those_that_are_enforced() {
    let page = page();
    let rows: Vec<&str> = page.lines().skip_while(|line| *line != "| Module | Imports |").skip(2).collect();
    let rows: Vec<&str> = rows.into_iter().take_while(|line| line.starts_with('|')).collect();
    let wanted: Vec<String> = LAYERS
        .iter()
        .map(|(module, imports)| {
            let imports: Vec<String> = imports.iter().map(|import| format!("`{import}`")).collect();
            let imports = if imports.is_empty() { "nothing".to_owned() } else { imports.join(", ") };
            format!("| `{module}` | {imports} |")
        })
        .collect();
    assert_eq!(rows, wanted, "{PAGE} and tests/layers differ");
}
