//! A source without what is not a code of the driver.

use crate::imports::is_word;

/// The source with comments, strings and characters blanked out, line for line.
pub fn code_only(source: &str) -> String {
    let chars: Vec<char> = source.chars().collect();
    let mut code = String::with_capacity(source.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match (chars[at], chars.get(at + 1)) {
            ('/', Some('/')) => until(&chars, at, |c, _| c == '\n'),
            ('/', Some('*')) => block_comment(&chars, at),
            ('r', Some('"' | '#')) if !code.ends_with(is_word) => raw_string(&chars, at),
            ('"', _) => string(&chars, at),
            // A lifetime has no closing quote.
            ('\'', Some('\\')) => until(&chars, at + 3, |c, _| c == '\'') + 1,
            ('\'', Some(_)) if chars.get(at + 2) == Some(&'\'') => at + 3,
            _ => at,
        };
        let end = end.min(chars.len());
        if end == at {
            code.push(chars[at]);
            at += 1;
        } else {
            code.extend(chars[at..end].iter().map(|c| if *c == '\n' { '\n' } else { ' ' }));
            at = end;
        }
    }
    code
}

fn until(chars: &[char], from: usize, stop: impl Fn(char, usize) -> bool) -> usize {
    (from..chars.len()).find(|at| stop(chars[*at], *at)).unwrap_or(chars.len())
}

fn block_comment(chars: &[char], from: usize) -> usize {
    let mut depth = 0;
    let mut at = from;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => (depth, at) = (depth + 1, at + 2),
            ('*', Some('/')) => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn raw_string(chars: &[char], from: usize) -> usize {
    let hashes = chars[from + 1..].iter().take_while(|c| **c == '#').count();
    let open = from + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return from;
    }
    let closes = |at: usize| chars[at + 1..].iter().take(hashes).filter(|c| **c == '#').count() == hashes;
    until(chars, open + 1, |c, at| c == '"' && closes(at)) + 1 + hashes
}

fn string(chars: &[char], from: usize) -> usize {
    let mut at = from + 1;
    while at < chars.len() && chars[at] != '"' {
        at += if chars[at] == '\\' { 2 } else { 1 };
    }
    at + 1
}

/// The code without its `#[cfg(test)]` items: up to the end of the block, or of the declaration without one.
pub fn without_tests(code: &str) -> String {
    let mut rest = code;
    let mut kept = String::with_capacity(code.len());
    while let Some(start) = rest.find("#[cfg(test)]") {
        kept.push_str(&rest[..start]);
        let item = &rest[start..];
        let mut depth = 0;
        let end = item.char_indices().find_map(|(at, c)| {
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            (depth == 0 && matches!(c, '}' | ';')).then_some(at + 1)
        });
        let (skipped, after) = item.split_at(end.unwrap_or(item.len()));
        kept.extend(skipped.chars().filter(|c| *c == '\n'));
        rest = after;
    }
    kept + rest
}
