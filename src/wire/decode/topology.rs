//! CSI `TopologyRequirement` and `Topology`.

use super::fields::{check_map, invalid};
use crate::error::{Error, Result};
use crate::model::{Settings, TopologyRequirement, check_topology_value};
use crate::wire::csi;

/// `accessibility_requirements`. One that is there must say something (csi.proto: either requisite or
/// preferred or both MUST be specified).
pub(super) fn requirement(
    requirement: Option<csi::TopologyRequirement>,
) -> Result<Option<TopologyRequirement>> {
    let Some(csi::TopologyRequirement { requisite, preferred }) = requirement else {
        return Ok(None);
    };
    if requisite.is_empty() && preferred.is_empty() {
        return invalid(
            "accessibility_requirements is empty; name a requisite or a preferred topology, or leave it out",
        );
    }
    let terms = |field: &str, terms: Vec<csi::Topology>| -> Result<Vec<Option<String>>> {
        terms
            .into_iter()
            .enumerate()
            .map(|(at, t)| term(&format!("accessibility_requirements.{field}[{at}]"), t))
            .collect()
    };
    Ok(Some(TopologyRequirement {
        requisite: terms("requisite", requisite)?,
        preferred: terms("preferred", preferred)?,
    }))
}

/// `accessible_topology` of GetCapacity; no segment is no restriction, which is what external-provisioner
/// sends for nodes that registered no topology key.
pub fn place(topology: Option<csi::Topology>) -> Result<Option<TopologyRequirement>> {
    match topology {
        Some(topology) if !topology.segments.is_empty() => {
            let requisite = vec![term("accessible_topology", topology)?];
            Ok(Some(TopologyRequirement { requisite, preferred: Vec::new() }))
        }
        _ => Ok(None),
    }
}

/// The value of the driver's key, or `None` for a place that no node of this driver is in, since it has a key
/// that the driver does not give out. Keys are case-insensitive (csi.proto, Topology).
fn term(field: &str, topology: csi::Topology) -> Result<Option<String>> {
    check_map(&format!("{field}.segments"), &topology.segments)?;
    let (ours, others): (Vec<_>, Vec<_>) =
        topology.segments.into_iter().partition(|(key, _)| key.eq_ignore_ascii_case(Settings::TOPOLOGY_KEY));
    let mut ours = ours.into_iter().map(|(_, value)| value);
    let value = ours.next();
    if ours.next().is_some() {
        return invalid(format!("{field}.segments has {} twice, in different case", Settings::TOPOLOGY_KEY));
    }
    if value.is_none() && others.is_empty() {
        return invalid(format!("{field}.segments is missing; it is required"));
    }
    if let Some(value) = &value {
        check_topology_value(value).map_err(|e| Error::Invalid(format!("{field}.segments: {e}")))?;
    }
    Ok(value.filter(|_| others.is_empty()))
}

#[cfg(test)]
mod tests {
    use super::super::samples::map;
    use super::*;

    const KEY: &str = Settings::TOPOLOGY_KEY;

    fn topology(segments: &[(&str, &str)]) -> csi::Topology {
        csi::Topology { segments: map(segments) }
    }

    fn one(segments: &[(&str, &str)]) -> Result<Option<String>> {
        term("t", topology(segments))
    }

    #[test]
    fn a_term_is_met_here_if_it_has_our_key_alone() {
        assert_eq!(one(&[(KEY, "a")]).expect("term").as_deref(), Some("a"));
        assert_eq!(one(&[(&KEY.to_uppercase(), "a")]).expect("term").as_deref(), Some("a"));
        assert_eq!(one(&[(KEY, "a"), ("zone", "z")]).expect("term"), None);
        assert_eq!(one(&[("zone", "z"), ("rack", "r")]).expect("term"), None);
    }

    #[test]
    fn terms_without_sense_are_refused() {
        let twice = KEY.to_uppercase();
        let large = "v".repeat(4096);
        let cases: [&[(&str, &str)]; 5] =
            [&[], &[(KEY, "")], &[(KEY, "a b")], &[(KEY, "a"), (&twice, "a")], &[("zone", &large)]];
        for segments in cases {
            assert!(matches!(one(segments), Err(Error::Invalid(_))), "{segments:?}");
        }
    }

    #[test]
    fn order_is_kept() {
        assert_eq!(requirement(None).expect("none"), None);
        assert!(requirement(Some(csi::TopologyRequirement::default())).is_err());
        let sent = csi::TopologyRequirement {
            requisite: vec![topology(&[(KEY, "b")]), topology(&[("zone", "z")]), topology(&[(KEY, "a")])],
            preferred: vec![topology(&[(KEY, "a")])],
        };
        let decoded = requirement(Some(sent)).expect("requirement").expect("some");
        assert_eq!(decoded.requisite, [Some("b".to_owned()), None, Some("a".to_owned())]);
        assert!(decoded.allows("a") && !decoded.allows("c"));
    }

    #[test]
    fn a_place_without_segments_is_everywhere() {
        assert_eq!(place(None).expect("none"), None);
        assert_eq!(place(Some(topology(&[]))).expect("none"), None);
        assert!(place(Some(topology(&[(KEY, "a")]))).expect("place").expect("some").allows("a"));
        assert!(!place(Some(topology(&[("zone", "z")]))).expect("place").expect("some").allows("a"));
    }
}
