//! What is amiss on a node, to the protocol between processes and back. 0 and an empty text stand for what is not known.

use crate::model::findings::{Finding, FindingsPage, Fix, FixFinding, HeldMount, HeldRecord, LeftBy};
use crate::model::{Claim, Timestamp};
use crate::wire::peer;

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
pub fn encode(page: FindingsPage) -> peer::ListFindingsResponse {
    peer::ListFindingsResponse {
        node_id: page.node_id,
        now_ns: page.now.as_nanos(),
        unknown: page.unknown,
        findings: page.findings.into_iter().map(encode_finding).collect(),
        records: page.records.into_iter().map(encode_record).collect(),
        next_token: page.next_token.unwrap_or_default(),
        driver_name: page.driver_name,
    }
}

/// Decodes a page.
pub fn decode(page: peer::ListFindingsResponse) -> FindingsPage {
    FindingsPage {
        node_id: page.node_id,
        driver_name: page.driver_name,
        now: Timestamp::from_nanos(page.now_ns),
        unknown: page.unknown,
        findings: page.findings.into_iter().map(decode_finding).collect(),
        records: page.records.into_iter().map(decode_record).collect(),
        next_token: text(page.next_token),
    }
}

/// Encodes a request to put a finding right.
pub fn encode_fix(fix: FixFinding) -> peer::FixFindingRequest {
    let FixFinding { node_id, class, id, path, seen, unnamed, pod_gone } = fix;
    peer::FixFindingRequest { node_id, class, id, path, seen, unnamed, pod_gone }
}

/// Decodes a request to put a finding right.
pub fn decode_fix(fix: peer::FixFindingRequest) -> FixFinding {
    let peer::FixFindingRequest { node_id, class, id, path, seen, unnamed, pod_gone } = fix;
    FixFinding { node_id, class, id, path, seen, unnamed, pod_gone }
}

fn no_claim() -> Claim {
    Claim { namespace: String::new(), name: String::new(), persistent_volume: String::new() }
}

fn encode_finding(finding: Finding) -> peer::Finding {
    let (fix, kept) = match finding.fix {
        Fix::Does(fix) => (fix, String::new()),
        Fix::Kept(kept) => (String::new(), kept),
    };
    let claim = finding.claim.unwrap_or_else(no_claim);
    peer::Finding {
        class: finding.class,
        id: finding.id,
        pool: finding.pool,
        path: finding.path,
        since_ns: nanos(finding.since),
        bytes: finding.bytes,
        found: finding.found,
        fix,
        kept,
        loses_data: finding.loses_data,
        needs_unnamed: finding.needs_unnamed,
        seen: finding.seen,
        persistent_volume: claim.persistent_volume,
        claim_namespace: claim.namespace,
        claim_name: claim.name,
        name: finding.name,
        content_name: finding.content.unwrap_or_default(),
    }
}

fn decode_finding(finding: peer::Finding) -> Finding {
    // A node of an earlier version says only which PersistentVolume it is.
    let is_claimed = !finding.claim_name.is_empty() || !finding.persistent_volume.is_empty();
    let claim = is_claimed.then_some(Claim {
        namespace: finding.claim_namespace,
        name: finding.claim_name,
        persistent_volume: finding.persistent_volume,
    });
    Finding {
        class: finding.class,
        id: finding.id,
        pool: finding.pool,
        path: finding.path,
        since: time(finding.since_ns),
        bytes: finding.bytes,
        found: finding.found,
        fix: text(finding.fix).map_or(Fix::Kept(finding.kept), Fix::Does),
        loses_data: finding.loses_data,
        needs_unnamed: finding.needs_unnamed,
        seen: finding.seen,
        name: finding.name,
        claim,
        content: text(finding.content_name),
    }
}

fn encode_record(record: HeldRecord) -> peer::HeldRecord {
    let claim = record.claim.unwrap_or_else(no_claim);
    let left_by =
        record.left_by.unwrap_or(LeftBy { id: String::new(), generation: 0, node_id: String::new() });
    peer::HeldRecord {
        id: record.id,
        kind: record.kind,
        name: record.name,
        pool: record.pool,
        phase: record.phase,
        since_ns: nanos(record.since),
        bytes: record.bytes,
        path: record.path,
        mounts: record.mounts.into_iter().map(encode_mount).collect(),
        uses: record.uses.unwrap_or_default(),
        claim_namespace: claim.namespace,
        claim_name: claim.name,
        persistent_volume: claim.persistent_volume,
        content_name: record.content.unwrap_or_default(),
        generation: record.generation,
        left_by: left_by.id,
        left_by_generation: left_by.generation,
        left_by_node: left_by.node_id,
        seen: record.seen,
    }
}

fn decode_record(record: peer::HeldRecord) -> HeldRecord {
    let claim = text(record.claim_name).map(|name| Claim {
        namespace: record.claim_namespace,
        name,
        persistent_volume: record.persistent_volume,
    });
    let left_by = text(record.left_by).map(|id| LeftBy {
        id,
        generation: record.left_by_generation,
        node_id: record.left_by_node,
    });
    HeldRecord {
        id: record.id,
        kind: record.kind,
        name: record.name,
        pool: record.pool,
        phase: record.phase,
        since: time(record.since_ns),
        bytes: record.bytes,
        path: record.path,
        mounts: record.mounts.into_iter().map(decode_mount).collect(),
        uses: text(record.uses),
        claim,
        content: text(record.content_name),
        generation: record.generation,
        left_by,
        seen: record.seen,
    }
}

fn encode_mount(mount: HeldMount) -> peer::HeldMount {
    peer::HeldMount {
        path: mount.path,
        pod_uid: mount.pod_uid.unwrap_or_default(),
        since_ns: nanos(mount.since),
        seen: mount.seen,
    }
}

fn decode_mount(mount: peer::HeldMount) -> HeldMount {
    HeldMount {
        path: mount.path,
        pod_uid: text(mount.pod_uid),
        since: time(mount.since_ns),
        seen: mount.seen,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_come_back_as_they_were() {
        let word = |text: &str| text.to_owned();
        let finding = Finding {
            class: word("frozen"),
            id: word("v"),
            pool: word("p"),
            path: word("/p"),
            since: time(3),
            bytes: Some(0),
            found: word("it is frozen"),
            fix: Fix::Does(word("thaws it")),
            loses_data: true,
            needs_unnamed: true,
            seen: word("x"),
            name: word("pvc-1"),
            claim: Some(Claim { namespace: word("n"), name: word("c"), persistent_volume: word("pv") }),
            content: Some(word("content")),
        };
        let kept = Finding { fix: Fix::Kept(word("in use")), bytes: None, ..Finding::default() };
        let record = HeldRecord {
            id: word("v"),
            kind: word("left"),
            name: word("pvc-1"),
            pool: word("p"),
            phase: word("ready"),
            since: time(1),
            bytes: Some(4),
            path: word("/p/volumes/v"),
            mounts: vec![HeldMount {
                path: word("/m"),
                pod_uid: Some(word("u")),
                since: time(2),
                seen: word("m"),
            }],
            uses: Some(word("mounted")),
            claim: Some(Claim { namespace: word("n"), name: word("c"), persistent_volume: word("pv") }),
            content: Some(word("content")),
            generation: 2,
            left_by: Some(LeftBy { id: word("w"), generation: 3, node_id: word("b") }),
            seen: word("y"),
        };
        let page = FindingsPage {
            node_id: word("n"),
            driver_name: word("d"),
            now: Timestamp::from_nanos(9),
            unknown: vec![word("pool p")],
            findings: vec![finding, kept],
            records: vec![record, HeldRecord::default()],
            next_token: Some(word("t")),
        };
        assert_eq!(decode(encode(page.clone())), page);
        let fix = FixFinding {
            node_id: word("n"),
            class: word("c"),
            unnamed: true,
            pod_gone: true,
            ..FixFinding::default()
        };
        assert_eq!(decode_fix(encode_fix(fix.clone())), fix);
    }
}
