//! One span and one line in the log for each call.
//!
//! The span has empty fields such as `volume.name` (the name of the span itself would hide `name` in JSON), `volume.id`,
//! `snapshot.id` and `path`. Handlers fill them in with `tracing::Span::current().record("volume.id", id)`: as `&str`, so
//! that the log quotes them and no request can forge a line. Everything that is logged within the span carries them.

use std::sync::Arc;
use std::time::Instant;

use tonic::{Code, Status};
use tracing::field::Empty;
use tracing::{Span, debug, error_span, info, warn};

use super::rpc::Observer;

/// The longest method name that is logged. It comes from the caller, and may be anything.
const MAX_METHOD: usize = 128;

/// A call that is running. Dropped without [`end`](Call::end) it counts as given up by the caller.
pub struct Call {
    method: String,
    span: Span,
    observer: Option<Arc<dyn Observer>>,
    started: Instant,
    ended: bool,
}

impl Call {
    /// A call of the method at this path, such as `/csi.v1.Node/NodeStageVolume`.
    pub fn begin(path: &str, observer: Option<Arc<dyn Observer>>) -> Self {
        if let Some(observer) = &observer {
            observer.begun();
        }
        let method: String = path.trim_start_matches('/').chars().take(MAX_METHOD).collect();
        // The most important level, so that the fields are there for a warning whatever --log-level leaves out.
        let span = error_span!(
            "rpc",
            method = short(&method),
            peer = Empty,
            volume.name = Empty,
            volume.id = Empty,
            claim = Empty,
            pv.name = Empty,
            size = Empty,
            source.id = Empty,
            snapshot.name = Empty,
            snapshot.id = Empty,
            volumesnapshot = Empty,
            volumesnapshotcontent = Empty,
            base.id = Empty,
            group.name = Empty,
            group.id = Empty,
            node.id = Empty,
            pod.namespace = Empty,
            pod.name = Empty,
            pod.uid = Empty,
            path = Empty
        );
        Call { method, span, observer, started: Instant::now(), ended: false }
    }

    /// Service and method, without the leading slash.
    pub fn method(&self) -> &str {
        &self.method
    }

    pub fn span(&self) -> &Span {
        &self.span
    }

    pub fn end(mut self, status: &Status) {
        self.ended = true;
        let (code, ms) = (code_name(status.code()), self.milliseconds());
        self.observe(code);
        let _entered = self.span.enter();
        if status.code() != Code::Ok {
            warn!(code, ms, error = status.message(), "failed");
        } else if only_asks(&self.method) {
            debug!(code, ms, "done");
        } else {
            info!(code, ms, "done");
        }
    }

    fn observe(&self, code: &'static str) {
        if let Some(observer) = &self.observer {
            observer.ended(&self.method, code, self.started.elapsed());
        }
    }

    /// Duration so far, in thousandths.
    fn milliseconds(&self) -> f64 {
        self.started.elapsed().as_micros() as f64 / 1000.0
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if !self.ended {
            let code = code_name(Code::Cancelled);
            self.observe(code);
            let _entered = self.span.enter();
            warn!(code, ms = self.milliseconds(), "the caller gave up; a change that has begun goes on");
        }
    }
}

/// Whether a call changes nothing. Sidecars make these all the time.
fn only_asks(method: &str) -> bool {
    let name = method.rsplit('/').next().unwrap_or_default();
    name == "Probe" || name.starts_with("Validate") || name.contains("Get") || name.contains("List")
}

/// The method without the package, which is the same for all.
fn short(method: &str) -> &str {
    method.strip_prefix("csi.v1.").unwrap_or(method)
}

/// The code's name in gRPC's documents.
fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::Cancelled => "CANCELLED",
        Code::Unknown => "UNKNOWN",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::NotFound => "NOT_FOUND",
        Code::AlreadyExists => "ALREADY_EXISTS",
        Code::PermissionDenied => "PERMISSION_DENIED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::FailedPrecondition => "FAILED_PRECONDITION",
        Code::Aborted => "ABORTED",
        Code::OutOfRange => "OUT_OF_RANGE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::Internal => "INTERNAL",
        Code::Unavailable => "UNAVAILABLE",
        Code::DataLoss => "DATA_LOSS",
        Code::Unauthenticated => "UNAUTHENTICATED",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reading_is_told_from_changing() {
        for method in [
            "csi.v1.Identity/Probe",
            "csi.v1.Node/NodeGetVolumeStats",
            "csi.v1.Controller/GetCapacity",
            "csi.v1.Controller/ListVolumes",
            "csi.v1.Controller/ValidateVolumeCapabilities",
            "csi.v1.GroupController/GroupControllerGetCapabilities",
            "csi.v1.SnapshotMetadata/GetMetadataDelta",
        ] {
            assert!(only_asks(method), "{method}");
        }
        for method in [
            "csi.v1.Controller/CreateVolume",
            "csi.v1.Node/NodePublishVolume",
            "csi.v1.Controller/DeleteSnapshot",
            "csi.v1.GroupController/CreateVolumeGroupSnapshot",
            "",
            "x",
        ] {
            assert!(!only_asks(method), "{method}");
        }
    }
}
