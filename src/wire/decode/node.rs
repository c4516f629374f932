//! Requests of the Node service.

use super::fields::{self, check_map, check_secrets};
use super::{capability, inline, parameters};
use crate::error::{Error, Result};
use crate::model::request::{
    NodeExpandVolume, NodeGetVolumeHealth, NodeGetVolumeStats, NodePublishVolume, NodeStageVolume,
    NodeUnpublishVolume, NodeUnstageVolume,
};
use crate::wire::csi;

pub fn node_stage_volume(request: csi::NodeStageVolumeRequest) -> Result<NodeStageVolume> {
    let volume_id = fields::volume_id(request.volume_id)?;
    let staging_path = fields::path("staging_target_path", &request.staging_target_path)?;
    let capability = capability::required(request.volume_capability)?;
    check_map("publish_context", &request.publish_context)?;
    check_secrets(&request.secrets)?;
    let context = fields::context(request.volume_context)?;
    Ok(NodeStageVolume { volume_id, staging_path, capability, context })
}

pub fn node_unstage_volume(request: csi::NodeUnstageVolumeRequest) -> Result<NodeUnstageVolume> {
    Ok(NodeUnstageVolume {
        volume_id: fields::volume_id(request.volume_id)?,
        staging_path: fields::path("staging_target_path", &request.staging_target_path)?,
    })
}

/// CSI NodePublishVolume. That the staging path is needed for all but inline volumes is not decided here: the
/// answer to that is FAILED_PRECONDITION.
pub fn node_publish_volume(request: csi::NodePublishVolumeRequest) -> Result<NodePublishVolume> {
    let volume_id = fields::volume_id(request.volume_id)?;
    let target_path = fields::path("target_path", &request.target_path)?;
    let capability = capability::required(request.volume_capability)?;
    let staging_path = fields::optional_path("staging_target_path", &request.staging_target_path)?;
    check_map("publish_context", &request.publish_context)?;
    check_map("volume_context", &request.volume_context)?;
    check_secrets(&request.secrets)?;
    let inline = inline::decode(&request.volume_context)?;
    if let Some(inline) = &inline {
        parameters::fit(&inline.parameters, &capability).map_err(Error::Invalid)?;
    }
    let context = fields::context(request.volume_context)?;
    let read_only = request.readonly;
    Ok(NodePublishVolume { volume_id, staging_path, target_path, capability, read_only, context, inline })
}

pub fn node_unpublish_volume(request: csi::NodeUnpublishVolumeRequest) -> Result<NodeUnpublishVolume> {
    Ok(NodeUnpublishVolume {
        volume_id: fields::volume_id(request.volume_id)?,
        target_path: fields::path("target_path", &request.target_path)?,
    })
}

pub fn node_get_volume_stats(request: csi::NodeGetVolumeStatsRequest) -> Result<NodeGetVolumeStats> {
    Ok(NodeGetVolumeStats {
        volume_id: fields::volume_id(request.volume_id)?,
        volume_path: fields::volume_path(&request.volume_path)?,
    })
}

pub fn node_get_volume_health(request: csi::NodeGetVolumeHealthRequest) -> Result<NodeGetVolumeHealth> {
    Ok(NodeGetVolumeHealth {
        volume_id: fields::volume_id(request.volume_id)?,
        publish_path: fields::optional_path("volume_publish_path", &request.volume_publish_path)?,
        staging_path: fields::optional_path("staging_target_path", &request.staging_target_path)?,
    })
}

pub fn node_expand_volume(request: csi::NodeExpandVolumeRequest) -> Result<NodeExpandVolume> {
    let volume_id = fields::volume_id(request.volume_id)?;
    let volume_path = fields::volume_path(&request.volume_path)?;
    check_secrets(&request.secrets)?;
    let size = fields::size(request.capacity_range)?;
    Ok(NodeExpandVolume {
        volume_id,
        volume_path,
        size,
        capability: capability::optional(request.volume_capability)?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::samples::{block, map, mount};
    use super::*;
    use crate::model::SizeRange;

    fn refused<T: std::fmt::Debug>(result: Result<T>, field: &str) {
        match result {
            Err(Error::Invalid(message)) => {
                assert!(message.contains(field), "{message} does not name {field}")
            }
            other => panic!("{other:?} is not Invalid ({field})"),
        }
    }

    fn stage(change: impl FnOnce(&mut csi::NodeStageVolumeRequest)) -> Result<NodeStageVolume> {
        let mut request = csi::NodeStageVolumeRequest {
            volume_id: "v".to_owned(),
            staging_target_path: "/stage//v/".to_owned(),
            volume_capability: Some(mount("")),
            ..Default::default()
        };
        change(&mut request);
        node_stage_volume(request)
    }

    fn publish(change: impl FnOnce(&mut csi::NodePublishVolumeRequest)) -> Result<NodePublishVolume> {
        let mut request = csi::NodePublishVolumeRequest {
            volume_id: "v".to_owned(),
            target_path: "/pods/v".to_owned(),
            volume_capability: Some(mount("")),
            ..Default::default()
        };
        change(&mut request);
        node_publish_volume(request)
    }

    #[test]
    fn staging_needs_its_fields() {
        assert_eq!(stage(|_| {}).expect("request").staging_path, Path::new("/stage/v"));
        refused(stage(|r| r.volume_id.clear()), "volume_id");
        refused(stage(|r| r.staging_target_path.clear()), "staging_target_path");
        refused(stage(|r| r.staging_target_path = "/a/../b".to_owned()), "staging_target_path");
        refused(stage(|r| r.volume_capability = None), "volume_capability");
        refused(stage(|r| r.publish_context = map(&[("k", &"v".repeat(4096))])), "publish_context");
        refused(stage(|r| r.secrets = map(&[("/", "x")])), "secrets");
        let unstage = |volume_id: &str, path: &str| {
            let (volume_id, staging_target_path) = (volume_id.to_owned(), path.to_owned());
            node_unstage_volume(csi::NodeUnstageVolumeRequest { volume_id, staging_target_path })
        };
        assert!(unstage("v", "/a").is_ok());
        refused(unstage("", "/a"), "volume_id");
        refused(unstage("v", ""), "staging_target_path");
    }

    #[test]
    fn publishing_needs_its_fields() {
        let plain = publish(|r| r.readonly = true).expect("request");
        assert!(plain.staging_path.is_none() && plain.inline.is_none() && plain.read_only);
        let staged = publish(|r| r.staging_target_path = "/stage".to_owned()).expect("request");
        assert_eq!(staged.staging_path.as_deref(), Some(Path::new("/stage")));
        refused(publish(|r| r.volume_id.clear()), "volume_id");
        refused(publish(|r| r.target_path.clear()), "target_path");
        refused(publish(|r| r.target_path = "pods".to_owned()), "target_path");
        refused(publish(|r| r.volume_capability = None), "volume_capability");
        refused(publish(|r| r.staging_target_path = "stage".to_owned()), "staging_target_path");
        let unpublish = |volume_id: &str, path: &str| {
            let (volume_id, target_path) = (volume_id.to_owned(), path.to_owned());
            node_unpublish_volume(csi::NodeUnpublishVolumeRequest { volume_id, target_path })
        };
        assert!(unpublish("v", "/a").is_ok());
        refused(unpublish("", "/a"), "volume_id");
        refused(unpublish("v", "/"), "target_path");
    }

    #[test]
    fn publishing_reads_an_inline_volume() {
        let inline = |entries: &[(&str, &str)]| {
            let mut context = map(entries);
            context.insert("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned());
            publish(|r| r.volume_context = context)
        };
        let made = inline(&[("size", "1Mi")]).expect("request");
        assert_eq!(made.inline.expect("inline").size.required, 1 << 20);
        assert_eq!(made.context.keys().collect::<Vec<_>>(), ["size"]);
        refused(inline(&[("mkfsOptions", "-q")]), "mkfsOptions");
        let block_directory = publish(|r| {
            r.volume_context = map(&[("csi.storage.k8s.io/ephemeral", "true"), ("backend", "directory")]);
            r.volume_capability = Some(block());
        });
        refused(block_directory, "backend");
        // Not inline: the context is the driver's to compare.
        assert!(publish(|r| r.volume_context = map(&[("mkfsOptions", "-q")])).is_ok());
    }

    #[test]
    fn looking_at_a_path_needs_its_fields() {
        let stats = |volume_id: &str, path: &str| {
            let (volume_id, volume_path) = (volume_id.to_owned(), path.to_owned());
            node_get_volume_stats(csi::NodeGetVolumeStatsRequest {
                volume_id,
                volume_path,
                ..Default::default()
            })
        };
        assert_eq!(stats("v", "some/path").expect("request").volume_path, Path::new("some/path"));
        refused(stats("", "/a"), "volume_id");
        refused(stats("v", ""), "volume_path");
        let expand = |volume_id: &str, path: &str, range| {
            let (volume_id, volume_path) = (volume_id.to_owned(), path.to_owned());
            let capacity_range = range;
            node_expand_volume(csi::NodeExpandVolumeRequest {
                volume_id,
                volume_path,
                capacity_range,
                ..Default::default()
            })
        };
        assert_eq!(expand("v", "some/path", None).expect("request").size, SizeRange::default());
        refused(expand("", "/a", None), "volume_id");
        refused(expand("v", "", None), "volume_path");
        refused(
            expand("v", "/a", Some(csi::CapacityRange { required_bytes: -1, limit_bytes: 0 })),
            "required_bytes",
        );
    }
    #[test]
    fn secrets_of_the_storage_health_are_looked_at() {
        let of = |key| fields::check_secrets(&map(&[(key, "x")]));
        assert!(of("user").is_ok());
        refused(of("no key"), "secrets");
    }
}
