//! Topology: a volume is where its node is.

/// CSI `TopologyRequirement`, reduced to what one node needs to know: which values of the driver's key the
/// requisite and preferred terms name. A term without the key allows every node.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TopologyRequirement {
    /// Each requisite term's value of the driver's topology key; `None` for a term that can only be met
    /// elsewhere (it names a key that this driver does not have).
    pub requisite: Vec<Option<String>>,
    /// The same for the preferred terms, best first.
    pub preferred: Vec<Option<String>>,
}

impl TopologyRequirement {
    /// Whether a volume on the node with this topology value meets the requirement: the volume must be
    /// accessible from at least one requisite term (csi.proto, TopologyRequirement).
    pub fn allows(&self, node: &str) -> bool {
        let names = |terms: &[Option<String>]| terms.iter().flatten().any(|value| value == node);
        if self.requisite.is_empty() {
            self.preferred.is_empty() || names(&self.preferred)
        } else {
            names(&self.requisite)
        }
    }
}

/// A node id that cannot be the value of a topology segment.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a topology value: it needs 1 to 63 of the characters A-Z, a-z, 0-9, -, _ and ., with a letter or digit at both ends"
)]
pub struct InvalidTopology(String);

/// Checks the syntax of a topology segment's value (csi.proto, Topology; the same as a Kubernetes label's).
///
/// # Errors
/// `InvalidTopology` for a value that kubelet could not put on its Node.
pub fn check_topology_value(value: &str) -> Result<(), InvalidTopology> {
    let inner = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let ends = value.starts_with(|c: char| c.is_ascii_alphanumeric())
        && value.ends_with(|c: char| c.is_ascii_alphanumeric());
    if value.len() <= 63 && ends && value.chars().all(inner) {
        Ok(())
    } else {
        Err(InvalidTopology(value.to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(values: &[&str]) -> Vec<Option<String>> {
        values.iter().map(|v| Some((*v).to_owned())).collect()
    }

    #[test]
    fn requisite_decides_and_preferred_only_without_it() {
        let requirement = |requisite: &[&str], preferred: &[&str]| TopologyRequirement {
            requisite: terms(requisite),
            preferred: terms(preferred),
        };
        assert!(requirement(&[], &[]).allows("a"));
        assert!(requirement(&["b", "a"], &["b"]).allows("a"));
        assert!(!requirement(&["b"], &["a"]).allows("a"));
        assert!(!requirement(&[], &["b"]).allows("a"));
        assert!(!TopologyRequirement { requisite: vec![None], preferred: Vec::new() }.allows("a"));
    }

    #[test]
    fn topology_values_are_label_values() {
        for good in ["a", "node-1.example", "A_b"] {
            assert!(check_topology_value(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "a.", "a b", "é", &"x".repeat(64)] {
            assert!(check_topology_value(bad).is_err(), "{bad}");
        }
    }
}
