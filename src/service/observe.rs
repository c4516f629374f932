//! What an RPC leaves in the log before it is decoded: the ids on its span, and at level debug the request
//! without its secrets.

use std::borrow::Cow;

use prost::Message;
use tonic::Request;
use tracing::Span;

use crate::wire::{csi, redact};

/// Longest value on a span in characters; a longer one is cut, since nothing has checked it yet.
const VALUE_LIMIT: usize = 512;

/// A request that the driver serves: its name in the protocol, and what identifies its object.
pub(crate) trait Observed: Message {
    /// Full name of the message.
    const NAME: &'static str;

    /// Values for the fields that the server's span declares (`server/trace.rs`).
    fn ids(&self) -> Vec<(&'static str, Cow<'_, str>)>;
}

/// A field of a request as one value on the span.
trait Identifies {
    fn text(&self) -> Cow<'_, str>;
}

impl Identifies for String {
    fn text(&self) -> Cow<'_, str> {
        self.as_str().into()
    }
}

impl Identifies for Vec<String> {
    fn text(&self) -> Cow<'_, str> {
        self.join(",").into()
    }
}

impl Identifies for Option<csi::VolumeContentSource> {
    fn text(&self) -> Cow<'_, str> {
        use csi::volume_content_source::Type;
        match self.as_ref().and_then(|source| source.r#type.as_ref()) {
            Some(Type::Snapshot(snapshot)) => snapshot.snapshot_id.as_str().into(),
            Some(Type::Volume(volume)) => volume.volume_id.as_str().into(),
            None => "".into(),
        }
    }
}

/// Takes the request out of its envelope and leaves its traces.
pub(crate) fn observe<R: Observed>(request: Request<R>) -> R {
    let request = request.into_inner();
    let span = Span::current();
    for (field, value) in request.ids().into_iter().filter(|(_, value)| !value.is_empty()) {
        let cut = value.char_indices().nth(VALUE_LIMIT).map_or(value.len(), |(at, _)| at);
        span.record(field, value.get(..cut).unwrap_or_default());
    }
    // The macro makes the text only where the level is enabled.
    tracing::debug!(request = redact::describe(R::NAME, &request.encode_to_vec()), "request");
    request
}

macro_rules! observed {
    ($($message:ident { $($span_field:literal = $field:ident),* })*) => {
        $(impl Observed for csi::$message {
            const NAME: &'static str = concat!("csi.v1.", stringify!($message));

            fn ids(&self) -> Vec<(&'static str, Cow<'_, str>)> {
                vec![$(($span_field, self.$field.text())),*]
            }
        })*

        #[cfg(test)]
        const OBSERVED: &[&str] = &[$(<csi::$message as Observed>::NAME),*];
    };
}

observed! {
    CreateVolumeRequest { "volume.name" = name, "source.id" = volume_content_source }
    DeleteVolumeRequest { "volume.id" = volume_id }
    ControllerPublishVolumeRequest { "volume.id" = volume_id, "node.id" = node_id }
    ControllerUnpublishVolumeRequest { "volume.id" = volume_id, "node.id" = node_id }
    ValidateVolumeCapabilitiesRequest { "volume.id" = volume_id }
    ListVolumesRequest {}
    ControllerGetVolumeRequest { "volume.id" = volume_id }
    ControllerGetVolumeHealthRequest { "volume.id" = volume_id }
    ControllerListVolumeHealthRequest {}
    GetCapacityRequest {}
    ControllerExpandVolumeRequest { "volume.id" = volume_id }
    ControllerModifyVolumeRequest { "volume.id" = volume_id }
    CreateSnapshotRequest { "snapshot.name" = name, "source.id" = source_volume_id }
    DeleteSnapshotRequest { "snapshot.id" = snapshot_id }
    ListSnapshotsRequest { "snapshot.id" = snapshot_id, "source.id" = source_volume_id }
    GetSnapshotRequest { "snapshot.id" = snapshot_id }
    CreateVolumeGroupSnapshotRequest { "group.name" = name, "source.id" = source_volume_ids }
    DeleteVolumeGroupSnapshotRequest { "group.id" = group_snapshot_id, "snapshot.id" = snapshot_ids }
    GetVolumeGroupSnapshotRequest { "group.id" = group_snapshot_id, "snapshot.id" = snapshot_ids }
    GetMetadataAllocatedRequest { "snapshot.id" = snapshot_id }
    GetMetadataDeltaRequest { "snapshot.id" = target_snapshot_id, "base.id" = base_snapshot_id }
    NodeStageVolumeRequest { "volume.id" = volume_id, "path" = staging_target_path }
    NodeUnstageVolumeRequest { "volume.id" = volume_id, "path" = staging_target_path }
    NodePublishVolumeRequest { "volume.id" = volume_id, "path" = target_path }
    NodeUnpublishVolumeRequest { "volume.id" = volume_id, "path" = target_path }
    NodeGetVolumeStatsRequest { "volume.id" = volume_id, "path" = volume_path }
    NodeGetVolumeHealthRequest { "volume.id" = volume_id, "path" = volume_publish_path }
    NodeGetStorageHealthRequest {}
    NodeExpandVolumeRequest { "volume.id" = volume_id, "path" = volume_path }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    use tracing::Level;
    use tracing::field::Empty;

    use super::*;

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

    fn log_of(level: Level, request: impl Observed) -> String {
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
                source.id = Empty,
                snapshot.name = Empty,
                snapshot.id = Empty,
                base.id = Empty,
                group.name = Empty,
                group.id = Empty,
                node.id = Empty,
                path = Empty
            );
            let _entered = span.enter();
            observe(Request::new(request));
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

    #[test]
    fn names_are_those_of_the_protocol() {
        let pool = prost_reflect::DescriptorPool::decode(csi::DESCRIPTOR).expect("descriptor");
        for name in OBSERVED {
            assert!(pool.get_message_by_name(name).is_some(), "{name}");
        }
    }
}
