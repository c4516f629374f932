//! The order of lines.

use std::cmp::Reverse;

use crate::cli::SortBy;

/// What a line can be ordered by.
pub(super) struct Keys<'a> {
    /// The namespace, the name and what tells two of one name apart. What is in no namespace comes last.
    pub(super) name: (Option<&'a str>, &'a str, &'a str),
    pub(super) disk: Option<u64>,
    pub(super) used: Option<u64>,
    pub(super) size: Option<u64>,
    pub(super) age: Option<i64>,
}

/// A line.
pub(super) trait Ordered {
    fn keys(&self) -> Keys<'_>;
}

/// Sorts lines: those with most bytes first, the youngest first, those without the key last.
pub(super) fn sort<T: Ordered>(rows: &mut [T], by: Option<SortBy>) {
    rows.sort_by(|a, b| {
        let (a, b) = (a.keys(), b.keys());
        let most = |a: Option<u64>, b: Option<u64>| Reverse(a).cmp(&Reverse(b));
        let first = match by {
            Some(SortBy::Disk) => most(a.disk, b.disk),
            Some(SortBy::Used) => most(a.used, b.used),
            Some(SortBy::Size) => most(a.size, b.size),
            Some(SortBy::Age) => (a.age.is_none(), a.age).cmp(&(b.age.is_none(), b.age)),
            Some(SortBy::Name) | None => std::cmp::Ordering::Equal,
        };
        let name = |keys: &Keys<'_>| (keys.name.0.is_none(), keys.name.0.map(str::to_owned));
        first
            .then_with(|| name(&a).cmp(&name(&b)))
            .then_with(|| (a.name.1, a.name.2).cmp(&(b.name.1, b.name.2)))
    });
}
