//! Puts mutants into a source file, each behind a switch, so that one build has them all.
//!
//! Everything is an insertion: `a == b` becomes `(if on(7) { (a) != (b) } else { a == b })`, and the other mutants inside
//! of `a` and `b` are in the second branch. What is inserted for a mutant has lines of its own: an error of the
//! compiler there tells which one it is.

use std::collections::HashMap;

use proc_macro2::LineColumn;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Arm, BinOp, Expr, ExprBinary, ExprMatch, ExprStruct, ExprUnary, Pat, PatGuard, UnOp};

use crate::Result;
use crate::list::{Mutant, Place};

/// A file with its mutants in it.
pub struct Switched {
    /// Its text.
    pub text: String,
    /// First and last line of what was inserted, and for which mutant.
    pub lines: Vec<(usize, usize, usize)>,
    /// Those that cannot be behind a switch.
    pub left_out: Vec<usize>,
}

/// Text that goes in between two characters of the file.
struct Insertion {
    at: usize,
    /// Of several at one place: ends before beginnings, inner ends first, outer beginnings first.
    order: (u8, i64),
    text: String,
    mutant: Option<usize>,
}

struct Switches<'a> {
    text: &'a str,
    lines: Vec<usize>,
    /// By the start of their spans.
    wanted: HashMap<Place, Vec<(usize, &'a Mutant)>>,
    insertions: Vec<Insertion>,
    done: Vec<usize>,
}

/// The file's text with `mutants`, each with its number.
///
/// # Errors
/// Where it is no Rust.
pub fn switch(text: &str, mutants: &[(usize, &Mutant)]) -> Result<Switched> {
    let file = syn::parse_file(text)?;
    let mut lines = vec![0];
    lines.extend(text.match_indices('\n').map(|(at, _)| at + 1));
    let mut wanted: HashMap<Place, Vec<(usize, &Mutant)>> = HashMap::new();
    for (number, mutant) in mutants {
        wanted.entry(mutant.span.start).or_default().push((*number, mutant));
    }
    let mut switches = Switches { text, lines, wanted, insertions: Vec::new(), done: Vec::new() };
    for (number, mutant) in mutants {
        // A hidden type cannot be that of the mutant, too.
        let hidden = mutant.function.as_ref().is_some_and(|function| function.return_type.contains("impl "));
        match mutant.genre.as_str() {
            "FnValue" if !hidden => switches.value(*number, mutant),
            "MatchArmGuard" => switches.guard(*number, mutant),
            _ => {}
        }
    }
    switches.visit_file(&file);
    let left_out =
        mutants.iter().map(|(number, _)| *number).filter(|number| !switches.done.contains(number)).collect();
    let (text, lines) = switches.write();
    Ok(Switched { text, lines, left_out })
}

impl<'a> Switches<'a> {
    fn offset(&self, place: Place) -> usize {
        let start = self.lines.get(place.line - 1).copied().unwrap_or(self.text.len());
        let line = self.text.get(start..).unwrap_or_default();
        start + line.char_indices().nth(place.column - 1).map_or(line.len(), |(at, _)| at)
    }

    /// First and last byte of a piece of syntax.
    fn range(&self, piece: &impl Spanned) -> (usize, usize) {
        let place = |at: LineColumn| Place { line: at.line, column: at.column + 1 };
        (self.offset(place(piece.span().start())), self.offset(place(piece.span().end())))
    }

    fn source(&self, (start, end): (usize, usize)) -> String {
        self.text.get(start..end).unwrap_or_default().to_owned()
    }

    fn wanted_at(&self, piece: &impl Spanned, genre: &str) -> Vec<(usize, &'a Mutant)> {
        let start = piece.span().start();
        let place = Place { line: start.line, column: start.column + 1 };
        let found = self.wanted.get(&place).into_iter().flatten();
        found.filter(|(_, mutant)| mutant.genre == genre).copied().collect()
    }

    /// Instead of what is at `range` is `text` while the mutant is on.
    fn wrap(&mut self, number: usize, (start, end): (usize, usize), text: &str) {
        let length = (end - start) as i64;
        // Two mutants of one place: the later one is around the earlier one, and so on.
        let depth = self.insertions.len() as i64;
        let before = format!("(if\ncrate::mutant::on({number}) {{\n{text}\n}} else {{\n");
        self.insertions.push(Insertion {
            at: start,
            order: (2, -length * 1_000_000 - depth),
            text: before,
            mutant: Some(number),
        });
        let after = "\n})".to_owned();
        self.insertions.push(Insertion {
            at: end,
            order: (0, length * 1_000_000 + depth),
            text: after,
            mutant: None,
        });
        self.done.push(number);
    }

    fn insert(&mut self, number: usize, at: usize, text: String) {
        self.insertions.push(Insertion { at, order: (1, 0), text, mutant: Some(number) });
        self.done.push(number);
    }

    fn value(&mut self, number: usize, mutant: &Mutant) {
        let at = self.offset(mutant.span.start);
        let text = format!("\nif crate::mutant::on({number}) {{ return {}; }}\n", mutant.replacement);
        self.insert(number, at, text);
    }

    fn guard(&mut self, number: usize, mutant: &Mutant) {
        let range = (self.offset(mutant.span.start), self.offset(mutant.span.end));
        // A `let` cannot be in brackets, and what it binds is not there while the guard is true without it.
        match (self.source(range).starts_with("let "), mutant.replacement.as_str()) {
            (false, _) => self.wrap(number, range, &mutant.replacement),
            (true, "false") => self.chain(number, range.0),
            (true, _) => {}
        }
    }

    /// The chain with a `let` that begins at `at` is false while the mutant is on.
    fn chain(&mut self, number: usize, at: usize) {
        self.insert(number, at, format!("\n!crate::mutant::on({number}) &&\n"));
    }

    fn write(mut self) -> (String, Vec<(usize, usize, usize)>) {
        self.insertions.sort_by_key(|insertion| (insertion.at, insertion.order));
        let (mut text, mut lines, mut line, mut copied) = (String::new(), Vec::new(), 1, 0);
        let breaks = |text: &str| text.matches('\n').count();
        for insertion in &self.insertions {
            let between = self.text.get(copied..insertion.at).unwrap_or_default();
            let first = line + breaks(between);
            line = first + breaks(&insertion.text);
            if let Some(mutant) = insertion.mutant {
                lines.push((first + 1, line.max(first + 2) - 1, mutant));
            }
            text.push_str(between);
            text.push_str(&insertion.text);
            copied = insertion.at;
        }
        text.push_str(self.text.get(copied..).unwrap_or_default());
        (text, lines)
    }
}

/// Whether a `let` is a part of this condition: such a chain is not an expression that could be in brackets.
fn is_chain(expression: &Expr) -> bool {
    match expression {
        Expr::Let(_) => true,
        Expr::Binary(binary) => {
            matches!(binary.op, BinOp::And(_)) && (is_chain(&binary.left) || is_chain(&binary.right))
        }
        _ => false,
    }
}

fn is_assignment(operator: &BinOp) -> bool {
    use BinOp::{
        AddAssign, BitAndAssign, BitOrAssign, BitXorAssign, DivAssign, MulAssign, RemAssign, ShlAssign,
        ShrAssign, SubAssign,
    };
    matches!(
        operator,
        AddAssign(_)
            | SubAssign(_)
            | MulAssign(_)
            | DivAssign(_)
            | RemAssign(_)
            | BitXorAssign(_)
            | BitAndAssign(_)
            | BitOrAssign(_)
            | ShlAssign(_)
            | ShrAssign(_)
    )
}

/// Whether this arm takes whatever there is.
fn takes_all(arm: &Arm) -> bool {
    match &arm.pat {
        Pat::Wild(_) => true,
        Pat::Ident(name) => name.subpat.is_none() && name.ident.to_string().starts_with(char::is_lowercase),
        _ => false,
    }
}

impl<'ast> Visit<'ast> for Switches<'_> {
    fn visit_expr_binary(&mut self, binary: &'ast ExprBinary) {
        if !is_chain(&binary.left) && !is_chain(&binary.right) {
            let (left, right) =
                (self.source(self.range(&binary.left)), self.source(self.range(&binary.right)));
            for (number, mutant) in self.wanted_at(&binary.op, "BinaryOperator") {
                let operator = &mutant.replacement;
                let text = match is_assignment(&binary.op) {
                    true => format!("{left} {operator} {right}"),
                    false => format!("({left}) {operator} ({right})"),
                };
                self.wrap(number, self.range(binary), &text);
            }
        }
        visit::visit_expr_binary(self, binary);
    }

    fn visit_expr_unary(&mut self, unary: &'ast ExprUnary) {
        for (number, _) in self.wanted_at(&unary.op, "UnaryOperator") {
            if matches!(unary.op, UnOp::Not(_) | UnOp::Neg(_)) {
                self.wrap(number, self.range(unary), &self.source(self.range(&unary.expr)));
            }
        }
        visit::visit_expr_unary(self, unary);
    }

    fn visit_expr_match(&mut self, whole: &'ast ExprMatch) {
        let last = whole.arms.iter().rposition(takes_all);
        for (index, arm) in whole.arms.iter().enumerate() {
            for (number, _) in self.wanted_at(arm, "MatchArm") {
                match &arm.pat {
                    Pat::Guard(PatGuard { guard, .. }) if is_chain(guard) => {
                        self.chain(number, self.range(guard).0);
                    }
                    Pat::Guard(PatGuard { guard, .. }) => self.wrap(number, self.range(guard), "false"),
                    // Without another arm for what it takes, it would not compile.
                    pattern if last.is_some_and(|last| index < last) => {
                        let (_, end) = self.range(pattern);
                        self.insert(number, end, format!(" if\n!crate::mutant::on({number})\n"));
                    }
                    _ => {}
                }
            }
        }
        visit::visit_expr_match(self, whole);
    }

    fn visit_expr_struct(&mut self, whole: &'ast ExprStruct) {
        let path = self.source(self.range(&whole.path));
        for field in &whole.fields {
            for (number, _) in self.wanted_at(field, "StructField") {
                let Some(rest) = &whole.rest else { continue };
                let rest = self.source(self.range(rest));
                let name = self.source(self.range(&field.member));
                let text = format!("{{ let rest: {path} = {rest}; rest.{name} }}");
                if field.colon_token.is_some() {
                    self.wrap(number, self.range(&field.expr), &text);
                } else {
                    let (_, end) = self.range(field);
                    self.insert(
                        number,
                        end,
                        format!(":\nif crate::mutant::on({number}) {{ {text} }} else {{ {name} }}\n"),
                    );
                }
            }
        }
        visit::visit_expr_struct(self, whole);
    }
}
