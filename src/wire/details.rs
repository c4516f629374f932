//! What a node says of its pools, volumes and snapshots, to the protocol between processes and back. 0 and an empty text stand
//! for what is not known.

use crate::model::details::{
    DetailedTrouble, DetailsPage, KnownNode, NodeDetails, OnDisk, PoolBytes, PoolDetails, ReportPart,
    SnapshotDetails, VolumeDetails,
};
use crate::model::{Claim, SnapshotObject, Timestamp};
use crate::wire::{handover, peer};

fn nanos(time: Option<Timestamp>) -> u64 {
    time.map_or(0, Timestamp::as_nanos)
}

fn time(nanos: u64) -> Option<Timestamp> {
    (nanos > 0).then(|| Timestamp::from_nanos(nanos))
}

fn text(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

/// Encodes a page.
pub fn encode(page: DetailsPage) -> peer::ListDetailsResponse {
    peer::ListDetailsResponse {
        node: page.node.map(encode_node),
        volumes: page.volumes.into_iter().map(encode_volume).collect(),
        snapshots: page.snapshots.into_iter().map(encode_snapshot).collect(),
        next_token: page.next_token.unwrap_or_default(),
    }
}

/// Decodes a page.
pub fn decode(page: peer::ListDetailsResponse) -> DetailsPage {
    DetailsPage {
        node: page.node.map(decode_node),
        volumes: page.volumes.into_iter().map(decode_volume).collect(),
        snapshots: page.snapshots.into_iter().map(decode_snapshot).collect(),
        next_token: text(page.next_token),
    }
}

/// Encodes a node as another process knows it.
pub fn encode_known(node: KnownNode) -> peer::KnownNode {
    peer::KnownNode {
        node_id: node.node_id,
        address: node.address.unwrap_or_default(),
        last_answer_ns: nanos(node.last_answer),
    }
}

/// Decodes a node as another process knows it.
pub fn decode_known(node: peer::KnownNode) -> KnownNode {
    KnownNode { node_id: node.node_id, address: text(node.address), last_answer: time(node.last_answer_ns) }
}

/// Encodes what the kernel of a node says.
pub fn encode_report(parts: Vec<ReportPart>) -> peer::GetNodeReportResponse {
    let part = |ReportPart { name, about, text }: ReportPart| {
        let (text, problem) = match text {
            Ok(text) => (text, String::new()),
            Err(problem) => (String::new(), problem),
        };
        peer::ReportPart { name, about, text, problem }
    };
    peer::GetNodeReportResponse { parts: parts.into_iter().map(part).collect() }
}

/// Decodes what the kernel of a node says.
pub fn decode_report(answer: peer::GetNodeReportResponse) -> Vec<ReportPart> {
    let part = |peer::ReportPart { name, about, text, problem }: peer::ReportPart| {
        let text = if problem.is_empty() { Ok(text) } else { Err(problem) };
        ReportPart { name, about, text }
    };
    answer.parts.into_iter().map(part).collect()
}

fn encode_node(node: NodeDetails) -> peer::NodeDetails {
    peer::NodeDetails {
        node_id: node.node_id,
        version: node.version,
        certificate_end_ns: nanos(node.certificate_end),
        pools: node.pools.into_iter().map(encode_pool).collect(),
    }
}

fn decode_node(node: peer::NodeDetails) -> NodeDetails {
    NodeDetails {
        node_id: node.node_id,
        version: node.version,
        certificate_end: time(node.certificate_end_ns),
        pools: node.pools.into_iter().map(decode_pool).collect(),
    }
}

fn encode_pool(pool: PoolDetails) -> peer::PoolDetails {
    let named = peer::PoolDetails {
        name: pool.name,
        path: pool.path,
        unusable: pool.unusable.unwrap_or_default(),
        ..peer::PoolDetails::default()
    };
    let Some(figures) = pool.figures else { return named };
    peer::PoolDetails {
        measured_ns: figures.measured.as_nanos(),
        size_bytes: figures.size,
        used_bytes: figures.used,
        free_bytes: figures.free,
        reserve_bytes: figures.reserve,
        usable_bytes: figures.usable,
        promised_thin_bytes: figures.promised_thin,
        promised_thick_bytes: figures.promised_thick,
        promised_snapshot_bytes: figures.promised_snapshots,
        room_bytes: figures.room,
        lacking_bytes: figures.lacking,
        removing_bytes: figures.removing,
        overcommit: figures.overcommit,
        ..named
    }
}

fn decode_pool(pool: peer::PoolDetails) -> PoolDetails {
    let figures = time(pool.measured_ns).map(|measured| PoolBytes {
        measured,
        size: pool.size_bytes,
        used: pool.used_bytes,
        free: pool.free_bytes,
        reserve: pool.reserve_bytes,
        usable: pool.usable_bytes,
        promised_thin: pool.promised_thin_bytes,
        promised_thick: pool.promised_thick_bytes,
        promised_snapshots: pool.promised_snapshot_bytes,
        room: pool.room_bytes,
        lacking: pool.lacking_bytes,
        removing: pool.removing_bytes,
        overcommit: pool.overcommit,
    });
    PoolDetails { name: pool.name, path: pool.path, unusable: text(pool.unusable), figures }
}

fn encode_volume(volume: VolumeDetails) -> peer::VolumeDetails {
    let claim = volume.claim.unwrap_or(Claim {
        namespace: String::new(),
        name: String::new(),
        persistent_volume: String::new(),
    });
    let trouble = |trouble: DetailedTrouble| peer::DetailedTrouble {
        severity: trouble.severity,
        reason: trouble.reason,
        message: trouble.message,
    };
    peer::VolumeDetails {
        id: volume.id,
        name: volume.name,
        pool: volume.pool,
        backend: volume.backend,
        content: volume.content,
        provisioning: volume.provisioning,
        phase: volume.phase,
        kind: volume.kind,
        size_bytes: volume.size_bytes,
        used_bytes: volume.used_bytes,
        disk_bytes: volume.disk.bytes,
        shared_bytes: volume.disk.shared,
        measured_ns: nanos(volume.disk.measured),
        pods: volume.pods,
        examined: volume.troubles.is_some(),
        troubles: volume.troubles.into_iter().flatten().map(trouble).collect(),
        claim_namespace: claim.namespace,
        claim_name: claim.name,
        persistent_volume: claim.persistent_volume,
        generation: volume.generation,
        unmeasured: volume.unmeasured.unwrap_or_default(),
        created_ns: nanos(volume.created),
    }
}

fn decode_volume(volume: peer::VolumeDetails) -> VolumeDetails {
    let trouble = |trouble: peer::DetailedTrouble| DetailedTrouble {
        severity: trouble.severity,
        reason: trouble.reason,
        message: trouble.message,
    };
    let troubles: Vec<DetailedTrouble> = volume.troubles.into_iter().map(trouble).collect();
    VolumeDetails {
        id: volume.id,
        name: volume.name,
        pool: volume.pool,
        backend: volume.backend,
        content: volume.content,
        provisioning: volume.provisioning,
        phase: volume.phase,
        kind: volume.kind,
        size_bytes: volume.size_bytes,
        used_bytes: volume.used_bytes,
        disk: OnDisk {
            bytes: volume.disk_bytes,
            shared: volume.shared_bytes,
            measured: time(volume.measured_ns),
        },
        pods: volume.pods,
        troubles: volume.examined.then_some(troubles),
        claim: text(volume.claim_name).map(|name| Claim {
            namespace: volume.claim_namespace,
            name,
            persistent_volume: volume.persistent_volume,
        }),
        generation: volume.generation,
        unmeasured: text(volume.unmeasured),
        created: time(volume.created_ns),
    }
}

fn encode_snapshot(snapshot: SnapshotDetails) -> peer::SnapshotDetails {
    let object = snapshot.object.unwrap_or(SnapshotObject {
        namespace: String::new(),
        name: String::new(),
        content: String::new(),
    });
    peer::SnapshotDetails {
        id: snapshot.id,
        name: snapshot.name,
        pool: snapshot.pool,
        volume_id: snapshot.volume_id,
        phase: snapshot.phase,
        kind: snapshot.kind,
        size_bytes: snapshot.size_bytes,
        disk_bytes: snapshot.disk.bytes,
        shared_bytes: snapshot.disk.shared,
        measured_ns: nanos(snapshot.disk.measured),
        created_ns: nanos(snapshot.created),
        namespace: object.namespace,
        snapshot_name: object.name,
        content_name: object.content,
        group_id: snapshot.group_id.unwrap_or_default(),
        handover: snapshot.handover.map(handover::encode),
    }
}

fn decode_snapshot(snapshot: peer::SnapshotDetails) -> SnapshotDetails {
    SnapshotDetails {
        id: snapshot.id,
        name: snapshot.name,
        pool: snapshot.pool,
        volume_id: snapshot.volume_id,
        phase: snapshot.phase,
        kind: snapshot.kind,
        size_bytes: snapshot.size_bytes,
        disk: OnDisk {
            bytes: snapshot.disk_bytes,
            shared: snapshot.shared_bytes,
            measured: time(snapshot.measured_ns),
        },
        created: time(snapshot.created_ns),
        object: text(snapshot.snapshot_name).map(|name| SnapshotObject {
            namespace: snapshot.namespace,
            name,
            content: snapshot.content_name,
        }),
        group_id: text(snapshot.group_id),
        handover: snapshot.handover.and_then(handover::decode),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> OnDisk {
        OnDisk { bytes: Some(0), shared: Some(7), measured: time(5) }
    }

    fn volume() -> VolumeDetails {
        let word = |text: &str| text.to_owned();
        VolumeDetails {
            id: word("id"),
            name: word("name"),
            pool: word("pool"),
            backend: word("loop"),
            content: word("xfs"),
            provisioning: word("thin"),
            phase: word("ready"),
            kind: word("volume"),
            size_bytes: 1,
            used_bytes: Some(0),
            disk: disk(),
            pods: vec![word("uid")],
            troubles: Some(vec![DetailedTrouble {
                severity: word("degraded"),
                reason: word("Slow"),
                message: word("why"),
            }]),
            claim: Some(Claim { namespace: word("ns"), name: word("data"), persistent_volume: word("pv") }),
            generation: 3,
            unmeasured: Some(word("no disk")),
            created: Some(Timestamp::from_nanos(11)),
        }
    }

    #[test]
    fn a_page_comes_back_as_it_was() {
        let figures =
            PoolBytes { measured: Timestamp::from_nanos(9), size: 5, overcommit: 1.5, ..Default::default() };
        let pool =
            |figures| PoolDetails { name: "p".to_owned(), path: "/p".to_owned(), unusable: None, figures };
        let node = NodeDetails {
            node_id: "n".to_owned(),
            version: "1".to_owned(),
            certificate_end: time(4),
            pools: vec![pool(Some(figures)), pool(None)],
        };
        let snapshot = SnapshotDetails {
            id: "s".to_owned(),
            disk: disk(),
            created: time(2),
            object: Some(SnapshotObject {
                namespace: "a".to_owned(),
                name: "b".to_owned(),
                content: "c".to_owned(),
            }),
            group_id: Some("g".to_owned()),
            ..SnapshotDetails::default()
        };
        let page = DetailsPage {
            node: Some(node),
            volumes: vec![volume(), VolumeDetails::default()],
            snapshots: vec![snapshot, SnapshotDetails::default()],
            next_token: Some("t".to_owned()),
        };
        assert_eq!(decode(encode(page.clone())), page);
        assert_eq!(decode(encode(DetailsPage::default())), DetailsPage::default());
        let known = KnownNode { node_id: "n".to_owned(), address: None, last_answer: time(1) };
        assert_eq!(decode_known(encode_known(known.clone())), known);
    }

    #[test]
    fn unknown_bytes_are_not_zero_bytes() {
        let unknown = VolumeDetails { used_bytes: None, disk: OnDisk::default(), troubles: None, ..volume() };
        let page = DetailsPage { volumes: vec![unknown], ..DetailsPage::default() };
        let [read] = &decode(encode(page)).volumes[..] else { panic!("one volume") };
        assert_eq!((read.used_bytes, read.disk, read.troubles.clone()), (None, OnDisk::default(), None));
        let [read] =
            &decode(encode(DetailsPage { volumes: vec![volume()], ..DetailsPage::default() })).volumes[..]
        else {
            panic!("one volume")
        };
        assert_eq!((read.used_bytes, read.disk.bytes), (Some(0), Some(0)));
    }
}
