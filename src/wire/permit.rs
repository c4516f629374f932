//! The content of a permit as it is signed.

use prost::Message as _;

use crate::model::{Grant, VolumeSource};
use crate::wire::peer;
use crate::wire::pull::Malformed;
use peer::permit::Source;

pub fn encode(grant: &Grant) -> Vec<u8> {
    let Grant { source_node, target_node, source, target, expires } = grant;
    let permit = peer::Permit {
        source_node_id: source_node.clone(),
        target_node_id: target_node.clone(),
        source: Some(match source {
            VolumeSource::Snapshot(id) => Source::SnapshotId(id.to_string()),
            VolumeSource::Volume(id) => Source::VolumeId(id.to_string()),
        }),
        target_volume_id: target.to_string(),
        expires: *expires,
    };
    permit.encode_to_vec()
}

/// What was signed.
pub fn decode(bytes: &[u8]) -> Result<Grant, Malformed> {
    let permit = peer::Permit::decode(bytes).map_err(|_| Malformed("it cannot be read".to_owned()))?;
    let wrong = |what: &str, id: &str| Malformed(format!("its {what} {id:?} is not an id of hostloop"));
    let source = match permit.source {
        Some(Source::SnapshotId(id)) => {
            VolumeSource::Snapshot(id.parse().map_err(|_| wrong("snapshot_id", &id))?)
        }
        Some(Source::VolumeId(id)) => VolumeSource::Volume(id.parse().map_err(|_| wrong("volume_id", &id))?),
        None => return Err(Malformed("it names no source".to_owned())),
    };
    let target = permit.target_volume_id;
    Ok(Grant {
        source_node: permit.source_node_id,
        target_node: permit.target_node_id,
        source,
        target: target.parse().map_err(|_| wrong("target_volume_id", &target))?,
        expires: permit.expires,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{NodeKey, SnapshotId, VolumeId};

    #[test]
    fn permits_are_read_as_they_were_signed() {
        let [a, b] = ["a", "b"].map(NodeKey::of);
        for source in [
            VolumeSource::Snapshot(SnapshotId::of_name(&a, "s")),
            VolumeSource::Volume(VolumeId::of_name(&a, "v")),
        ] {
            let grant = Grant {
                source_node: "a".to_owned(),
                target_node: "b".to_owned(),
                source,
                target: VolumeId::of_name(&b, "t"),
                expires: 7,
            };
            assert_eq!(decode(&encode(&grant)), Ok(grant));
        }
    }

    #[test]
    fn a_permit_without_its_ids_is_refused() {
        let id = SnapshotId::of_name(&NodeKey::of("a"), "s").to_string();
        let permit = |source: Option<Source>, target: &str| {
            let target_volume_id = target.to_owned();
            peer::Permit { source, target_volume_id, ..Default::default() }.encode_to_vec()
        };
        for (bytes, why) in [
            (vec![], "no source"),
            (b"\xff\xff".to_vec(), "cannot be read"),
            (permit(Some(Source::SnapshotId("../x".to_owned())), ""), "snapshot_id"),
            (permit(Some(Source::VolumeId(id.clone())), ""), "volume_id"),
            (permit(Some(Source::SnapshotId(id)), "x"), "target_volume_id"),
        ] {
            let Malformed(said) = decode(&bytes).expect_err(why);
            assert!(said.contains(why), "{said}");
        }
    }
}
