//! A finding as people and programs see it.

use comfy_table::{Table, presets};
use serde::Serialize;

use crate::admin::screen::age;
use crate::model::findings::FixFinding;
use crate::model::format_bytes;

/// One finding. What is not known is `null`.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Row {
    pub(super) node: String,
    pub(super) class: String,
    /// The CSI id.
    pub(super) id: String,
    /// The claim, or the VolumeSnapshot, with its namespace.
    pub(super) claim: Option<String>,
    pub(super) persistent_volume: Option<String>,
    pub(super) pool: Option<String>,
    pub(super) path: Option<String>,
    pub(super) age_seconds: Option<i64>,
    pub(super) bytes: Option<u64>,
    pub(super) found: String,
    /// What `--fix` does; `null` for nothing.
    pub(super) fix: Option<String>,
    /// Why it does nothing.
    pub(super) kept: Option<String>,
    /// It does so with `--delete-data` only.
    pub(super) deletes_data: bool,
    /// What has become of it, with `--fix`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) done: Option<String>,
    /// Why nothing was done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) failed: Option<String>,
    /// The node whose answer the fix relies on, beside its own.
    #[serde(skip)]
    pub(super) relies_on: Option<String>,
    #[serde(skip)]
    pub(super) request: Option<FixFinding>,
}

impl Row {
    pub(super) fn keep(&mut self, why: String) {
        (self.fix, self.kept, self.request) = (None, Some(why), None);
    }

    pub(super) fn fixed_by(&mut self, what: String, request: FixFinding) {
        (self.fix, self.kept, self.request) = (Some(what), None, Some(request));
    }

    /// What tells it from others, also in a later look.
    pub(super) fn key(&self) -> (&str, &str, &str, Option<&str>) {
        (&self.node, &self.class, &self.id, self.path.as_deref())
    }

    /// How people know it.
    fn object(&self) -> &str {
        let named = self.claim.as_deref().or(self.persistent_volume.as_deref());
        named.filter(|name| !name.is_empty()).unwrap_or(&self.id)
    }

    fn outcome(&self) -> String {
        match (&self.done, &self.failed, &self.fix, &self.kept) {
            (Some(done), ..) => format!("done: {done}"),
            (_, Some(why), ..) => format!("not done: {why}"),
            (_, _, Some(fix), _) if self.deletes_data => format!("{fix} (with --delete-data)"),
            (_, _, Some(fix), _) => fix.clone(),
            (_, _, None, kept) => format!("nothing: {}", kept.as_deref().unwrap_or_default()),
        }
    }
}

/// Returns a table without lines between its cells.
pub(super) fn table(rows: &[Row], was_fixed: bool) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    let last = if was_fixed { "OUTCOME" } else { "--fix" };
    table.set_header(["NODE", "CLASS", "OBJECT", "AGE", "BYTES", "FOUND", last]);
    for row in rows {
        let bytes = row.bytes.map_or_else(|| "-".to_owned(), format_bytes);
        let cells =
            [&row.node, &row.class, row.object(), &age(row.age_seconds), &bytes, &row.found, &row.outcome()];
        table.add_row(cells.map(str::to_owned));
    }
    let lines: Vec<String> = table.lines().map(|line| line.trim().to_owned()).collect();
    lines.join("\n")
}
