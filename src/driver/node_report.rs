//! What the kernel of this node says, for people who look into a problem (`hostloop support-bundle`, the RPC GetNodeReport).

use super::Driver;
use crate::error::Result;
use crate::kernel::report;
use crate::model::details::ReportPart;

/// The most bytes of one part. A message of gRPC has 4 MiB, and there are four parts.
const MOST: usize = 900 << 10;

impl Driver {
    /// Returns what the kernel says of its mounts, loop devices and disks. Nothing of it is of a process, its flags or its environment.
    ///
    /// # Errors
    /// NOT_FOUND if `node_id` is neither empty nor that of this node.
    pub fn node_report(&self, node_id: &str) -> Result<Vec<ReportPart>> {
        self.expect_named(node_id)?;
        let part = |part: report::Part| {
            let report::Part { name, about, text } = part.bounded(MOST);
            let text = text.map_err(|error| error.to_string());
            ReportPart { name: name.to_owned(), about: about.to_owned(), text }
        };
        Ok(report::of_kernel().into_iter().map(part).collect())
    }
}
