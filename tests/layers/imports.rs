//! What a source names.

/// The top-level modules and crates of the workspace that the code names, with their lines: `crate::x`,
/// `crate::{x, y::z}`, `hostloop::x` in the binary, `hostloop_x`, and `super::x` where that leads to the top.
pub fn imports(file: &str, code: &str) -> Vec<(usize, String)> {
    let depth = file.matches('/').count() + usize::from(!file.ends_with("/mod.rs") && file != "lib.rs");
    let to_the_top = "super::".repeat(depth);
    // In a crate of its own, these lead to nothing else, and Cargo.toml says what it may name.
    let own = if ["kernel/", "model/"].iter().any(|name| file.starts_with(name)) {
        ["", ""]
    } else {
        ["crate::", to_the_top.as_str()]
    };
    let prefixes = ["hostloop::", "hostloop_"].into_iter().chain(own);
    let mut found = Vec::new();
    for prefix in prefixes.filter(|prefix| !prefix.is_empty()) {
        for (start, _) in code.match_indices(prefix) {
            let before = code[..start].chars().next_back();
            if before.is_some_and(|c| is_word(c) || c == ':' || c == '$') {
                continue;
            }
            let rest = &code[start + prefix.len()..];
            let names = if rest.starts_with('{') { group(rest) } else { vec![(0, first_word(rest))] };
            for (offset, name) in names {
                let at = start + prefix.len() + offset;
                found.push((code[..at].matches('\n').count() + 1, name));
            }
        }
    }
    found
}

/// The first words of the items of `{a, b::{c, d}, e}`, with their places.
fn group(text: &str) -> Vec<(usize, String)> {
    let (mut names, mut depth, mut fresh) = (Vec::new(), 0, false);
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
        if depth == 1 && fresh && is_word(c) {
            names.push((at, first_word(&text[at..])));
            fresh = false;
        }
        fresh |= depth == 1 && matches!(c, '{' | ',');
    }
    names
}

fn first_word(text: &str) -> String {
    text.chars().take_while(|c| is_word(*c)).collect()
}

pub fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// What follows each place where `word` stands by itself.
pub fn words<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    line.match_indices(word).filter_map(move |(at, _)| {
        let rest = &line[at + word.len()..];
        let alone = !line[..at].ends_with(is_word) && !rest.starts_with(is_word);
        alone.then_some(rest)
    })
}

/// Whether a crate is named: a path that begins with it, or a `use` of it as a whole.
pub fn crate_is_used(line: &str, name: &str) -> bool {
    let whole = line.trim_start().trim_start_matches("pub ").starts_with(&format!("use {name};"));
    whole || words(line, name).any(|rest| rest.starts_with("::"))
}
