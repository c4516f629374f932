//! What is logged of an RPC before it is checked: the ids on its span, and at level debug the request without its
//! secrets.

use tracing::Span;

use super::declare::{Field, Request};
use super::object;
use crate::driver::Driver;
use crate::wire::redact;

/// Longest value on a span in characters; a longer one is cut, since nothing has checked it yet.
const VALUE_LIMIT: usize = 512;

/// Puts the id of what a call makes on the span of the call.
pub(crate) fn observe_made<Q: Request>(request: &Q, node_id: &str) {
    if let Some((field, id)) = request.makes(node_id) {
        Span::current().record(field, id.as_str());
    }
}

/// Leaves the traces of a request, which came as these bytes.
pub(crate) fn observe<Q: Request>(request: Q, bytes: &[u8]) -> Q {
    record(request.ids());
    // What other processes of the cluster ask has no descriptor at run time, and may hold a permit.
    if Q::MESSAGE.starts_with("csi.") {
        // The macro makes the text only where the level is enabled.
        tracing::debug!(request = redact::describe(Q::MESSAGE, bytes), "request");
    }
    request
}

/// Puts the names of what Kubernetes has made a volume or a snapshot for on the span of a call about it, from the records of the
/// driver. Touches no disk.
pub(crate) fn observe_recorded<Q: Request>(request: &Q, driver: &Driver) {
    for (field, id) in request.ids() {
        match field {
            "volume.id" => record(object::of_volume(driver, &id)),
            "snapshot.id" => record(object::of_snapshot(driver, &id)),
            _ => {}
        }
    }
}

fn record(fields: Vec<Field<'_>>) {
    let span = Span::current();
    for (field, value) in fields.into_iter().filter(|(_, value)| !value.is_empty()) {
        let cut = value.char_indices().nth(VALUE_LIMIT).map_or(value.len(), |(at, _)| at);
        span.record(field, value.get(..cut).unwrap_or_default());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing::Level;
    use tracing::field::Empty;

    use super::*;
    use crate::wire::csi;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("lock").write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn log_of(level: Level, request: impl Request) -> String {
        let lines = Lines::default();
        let writer = lines.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let span = tracing::info_span!(
                "rpc",
                volume.id = Empty,
                volume.name = Empty,
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
            let _entered = span.enter();
            let bytes = request.encode_to_vec();
            observe(request, &bytes);
            tracing::info!("done");
        });
        let bytes = lines.0.lock().expect("lock").clone();
        String::from_utf8(bytes).expect("text")
    }

    fn request() -> csi::ControllerPublishVolumeRequest {
        csi::ControllerPublishVolumeRequest {
            volume_id: "vol-1\nforged line".to_owned(),
            node_id: "n".repeat(5000),
            secrets: HashMap::from([("CANARY".to_owned(), "CANARY".to_owned())]),
            ..Default::default()
        }
    }

    #[test]
    fn ids_are_on_the_span_and_the_request_only_at_debug() {
        let info = log_of(Level::INFO, request());
        assert!(info.contains("volume.id=\"vol-1\\nforged line\"") && info.contains("node.id="), "{info}");
        assert!(!info.contains("stripped") && !info.contains(&"n".repeat(513)), "{info}");
        assert_eq!(info.lines().count(), 1);
        let debug = log_of(Level::DEBUG, request());
        assert!(debug.contains("***stripped***") && !debug.contains("CANARY"), "{debug}");
    }

    #[test]
    fn snapshots_and_sources_are_on_the_span() {
        let secrets = || HashMap::from([("CANARY".to_owned(), "CANARY".to_owned())]);
        let snapshot_id = "snap-1\nforged".to_owned();
        let source = csi::volume_content_source::SnapshotSource { snapshot_id: snapshot_id.clone() };
        let create = log_of(
            Level::DEBUG,
            csi::CreateVolumeRequest {
                secrets: secrets(),
                volume_content_source: Some(csi::VolumeContentSource {
                    r#type: Some(csi::volume_content_source::Type::Snapshot(source)),
                }),
                ..Default::default()
            },
        );
        assert!(create.contains("source.id=\"snap-1\\nforged\""), "{create}");
        let delta = log_of(
            Level::DEBUG,
            csi::GetMetadataDeltaRequest {
                base_snapshot_id: "snap-0".to_owned(),
                target_snapshot_id: snapshot_id,
                secrets: secrets(),
                ..Default::default()
            },
        );
        assert!(delta.contains("base.id=\"snap-0\"") && delta.contains("snapshot.id=\"snap-1"), "{delta}");
        let group = log_of(
            Level::DEBUG,
            csi::CreateVolumeGroupSnapshotRequest {
                name: "g".to_owned(),
                source_volume_ids: vec!["vol-1".to_owned(), "vol-2".to_owned()],
                secrets: secrets(),
                ..Default::default()
            },
        );
        assert!(group.contains("group.name=\"g\"") && group.contains("source.id=\"vol-1,vol-2\""), "{group}");
        for log in [create, delta, group] {
            assert!(log.contains("***stripped***") && !log.contains("CANARY"), "{log}");
        }
    }
}
