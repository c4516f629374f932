//! What an RPC leaves in the log before it is decoded: the ids on its span, and at level debug the request
//! without its secrets.

use prost::Message;
use tonic::Request;
use tracing::Span;

use crate::wire::{csi, redact};

/// Longest value on a span in characters; a longer one is cut, since nothing has checked it yet.
const VALUE_LIMIT: usize = 512;

/// A request that the driver serves: its name in the protocol, and what identifies its object.
pub(super) trait Observed: Message {
    /// Full name of the message.
    const NAME: &'static str;

    /// Values for the fields that the server's span declares: `volume.id`, `volume.name`, `node.id`, `path`.
    fn ids(&self) -> Vec<(&'static str, &str)>;
}

/// Takes the request out of its envelope and leaves its traces.
pub(super) fn observe<R: Observed>(request: Request<R>) -> R {
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

            fn ids(&self) -> Vec<(&'static str, &str)> {
                vec![$(($span_field, self.$field.as_str())),*]
            }
        })*

        #[cfg(test)]
        const OBSERVED: &[&str] = &[$(<csi::$message as Observed>::NAME),*];
    };
}

observed! {
    CreateVolumeRequest { "volume.name" = name }
    DeleteVolumeRequest { "volume.id" = volume_id }
    ControllerPublishVolumeRequest { "volume.id" = volume_id, "node.id" = node_id }
    ControllerUnpublishVolumeRequest { "volume.id" = volume_id, "node.id" = node_id }
    ValidateVolumeCapabilitiesRequest { "volume.id" = volume_id }
    ListVolumesRequest {}
    ControllerGetVolumeRequest { "volume.id" = volume_id }
    GetCapacityRequest {}
    ControllerExpandVolumeRequest { "volume.id" = volume_id }
    NodeStageVolumeRequest { "volume.id" = volume_id, "path" = staging_target_path }
    NodeUnstageVolumeRequest { "volume.id" = volume_id, "path" = staging_target_path }
    NodePublishVolumeRequest { "volume.id" = volume_id, "path" = target_path }
    NodeUnpublishVolumeRequest { "volume.id" = volume_id, "path" = target_path }
    NodeGetVolumeStatsRequest { "volume.id" = volume_id, "path" = volume_path }
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

    fn log_of(level: Level, request: csi::ControllerPublishVolumeRequest) -> String {
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
    fn names_are_those_of_the_protocol() {
        let pool = prost_reflect::DescriptorPool::decode(csi::DESCRIPTOR).expect("descriptor");
        for name in OBSERVED {
            assert!(pool.get_message_by_name(name).is_some(), "{name}");
        }
    }
}
